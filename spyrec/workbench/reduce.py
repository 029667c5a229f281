"""The smallest module that still shows something: candidates are tried, simpler ones first, until
none is left that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from spyrec.ir.core import Module, Op
from spyrec.ir.errors import SpyrecError
from spyrec.ir.printer import print_module
from spyrec.ir.verifier import verify
from spyrec.progress import Progress, silent

from .part import named_in, part, weight
from .shrink import (
    bypasses,
    one_output,
    plainer_attributes,
    plainer_constants,
    smaller_sizes,
    some_smaller_sizes,
)

Test = Callable[[Module], bool]
"""Whether a module shows what is looked for."""
Step = Callable[[Module], Iterator[Module]]

STEPS: tuple[Step, ...] = (
    one_output, bypasses, smaller_sizes, plainer_attributes, plainer_constants,
    some_smaller_sizes,
)  # fmt: skip
"""Tried in turn, each until it finds nothing more."""
MOST_TRIES = 2000


@dataclass
class Reduction:
    """Reduces modules while ``shows`` holds. The same module gives the same result. ``tries``: how
    many candidates were tested; at ``most`` it ends with the best so far. ``steps``: only these,
    and no op is left out."""

    shows: Test
    progress: Progress = silent
    most: int = MOST_TRIES
    steps: Sequence[Step] | None = None
    tries: int = 0
    _seen: dict[str, bool] = field(default_factory=dict)

    def run(self, module: Module) -> Module:
        """The reduced module. SpyrecError when ``module`` itself does not show it."""
        if not self._test(module):
            raise SpyrecError("the module does not show what is looked for, so nothing is reduced")
        before = ""
        while before != (before := _text(module)):
            if self.steps is None:
                module = self._fewer_ops(module)
            for step in STEPS if self.steps is None else self.steps:
                module = self._all_of(module, step)
        return module

    def _fewer_ops(self, module: Module) -> Module:
        """Leave out runs of ops: halves, quarters and so on down to single ones, those again as
        long as that helps."""
        size = max(1, weight(module) // 2)
        while True:
            at, helped = 0, False
            while at < len(ops := _ops(module)) and len(ops) > 1:
                candidate = named_in(part(module, [*ops[:at], *ops[at + size :]]))
                if 0 < weight(candidate) < len(ops) and self._test(candidate):
                    module, helped = candidate, True
                else:
                    at += size
            if size == 1 and not helped:
                return module
            size = max(1, size // 2)

    def _all_of(self, module: Module, step: Step) -> Module:
        """Apply candidates of one kind until none is accepted. One may turn out to be the module as
        it is, which gets nowhere: what it made smaller can follow from something else."""
        while True:
            here = _text(module)
            made = map(named_in, step(module))
            found = next((c for c in made if _text(c) != here and self._test(c)), None)
            if found is None:
                return module
            module = found

    def _test(self, candidate: Module) -> bool:
        """Whether the candidate is well formed and shows it; each text is tested once."""
        if self.tries >= self.most:
            return False
        text = _text(candidate)
        if text not in self._seen:
            self._seen[text] = _well_formed(candidate) and self._shown(candidate)
        return self._seen[text]

    def _shown(self, candidate: Module) -> bool:
        self.tries += 1
        self.progress(f"{weight(candidate)} ops", self.tries, 0)
        return self.shows(candidate)


def _ops(module: Module) -> list[Op]:
    return [op for op in module.body.ops if op.name != "constant"]


def _text(module: Module) -> str:
    return print_module(module, data="elide")


def _well_formed(module: Module) -> bool:
    try:
        verify(module)
    except SpyrecError:
        return False
    return True
