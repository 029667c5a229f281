"""The first pass after which a model is no longer what it was: it fails, leaves a module that is
not well formed, or one that computes something else; and the smallest module that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from spyrec.ir.core import Module
from spyrec.ir.errors import SpyrecError
from spyrec.ir.verifier import problems
from spyrec.passes.improve import Improve
from spyrec.passes.lower_tiles import LowerTiles
from spyrec.passes.manager import ChangedInput, Pipeline, Target, faint, random_inputs
from spyrec.passes.pipeline import PLANNING
from spyrec.progress import Progress, silent

from .reduce import MOST_TRIES, Reduction
from .states import (
    CODE,
    Array,
    Faint,
    Road,
    State,
    allowed,
    interpreted,
    simulated,
    travel,
    worst,
)

Kind = Literal["fails", "malformed", "differs"]
FAR = "the error of output"
"""How it is told that results are too far off."""


@dataclass(frozen=True)
class Finding:
    """``number``: of the guilty pass, counted from 1, code generation after the last; ``before``:
    the module it was given; ``after``: what it made, None when it made none or a program."""

    kind: Kind
    step: str
    number: int
    told: str
    before: Module
    after: Module | None = None

    def carries_out(self, passes: Pipeline) -> tuple[str, ...]:
        """The planning passes whose decisions show in results here for the first time: maps, cuts
        and tiles when tiles are lowered, layouts and addresses in the program."""
        if self.kind == "malformed" or self.step not in (LowerTiles.name, CODE):
            return ()
        before = (step.name for step in passes[: self.number - 1])
        return tuple(name for name in before if name in PLANNING)


@dataclass(frozen=True)
class Outcome:
    """What a search found. ``faint``: where nothing was, the outputs in which errors do not show;
    ``rounding``: a pass changes results by an error that it may owe to 16-bit floats alone, since
    no pass breaks the same model with floats of 32 bits."""

    finding: Finding | None
    faint: tuple[Faint, ...] = ()
    rounding: bool = False


@dataclass(frozen=True)
class Bisection:
    """Looks for the guilty pass of ``passes``. ``tolerance``: allowed error of results, None for
    what suits the formats of each module (``states.allowed``). ``seed``: of random inputs."""

    passes: Pipeline
    target: Target
    tolerance: float | None = None
    seed: int = 0
    progress: Progress = silent

    def find(self, module: Module, inputs: Mapping[str, Array] | None = None) -> Finding | None:
        """The first thing that goes wrong with a module of the tensor stage, None when nothing
        does. ``inputs``: in the module's own types, random ones unless given.

        Passes are told apart by halving, so of several that change results one is found, and the
        results before it are still good.
        """
        return self._look(module, inputs).finding

    def search(self, module: Module, inputs: Mapping[str, Array] | None = None) -> Outcome:
        """As ``find``, with what has to be known of the answer; a pass that changes results under
        16-bit numerics is looked for again under 32-bit ones."""
        outcome = self._look(module, inputs)
        found = outcome.finding
        if found is None or not found.told.startswith(FAR) or self.target.numerics == "fp32":
            return outcome
        wide = replace(self, target=replace(self.target, numerics="fp32"))
        return replace(outcome, rounding=wide.find(module, inputs) is None)

    def _look(self, module: Module, inputs: Mapping[str, Array] | None) -> Outcome:
        self.progress("passes", 0, 0)
        road = travel(module, self.passes, self.target)
        found = self._malformed(road)
        if found is None and road.error is not None:
            last = road.states[-1]
            told = f"{type(road.error).__name__}: {road.error}"
            found = Finding("fails", road.failed, len(road.states), told, last.module)
        if found is not None and found.kind == "malformed":  # what it computes means nothing
            road = Road(road.states[: found.number])
        if found is not None and isinstance(road.error, ChangedInput):  # nor any module before it
            return Outcome(found)
        given = random_inputs(module, self.seed) if inputs is None else inputs
        want, _ = interpreted(road.states[0].module, given)
        found = self._differs(road, given, want) or found
        return Outcome(found, () if found else tuple(self._faint(road, want)))

    def _faint(self, road: Road, want: Mapping[str, Array]) -> Iterator[Faint]:
        """The outputs in which no state, or none from some pass on, shows an error."""
        limits = [self._allowed(state) for state in road.states]
        for name, largest in faint(want, max(limits)).items():
            i = next(i for i, limit in enumerate(limits) if largest <= limit)
            yield Faint(name, largest, limits[i], road.states[i].step if i else "")

    def _malformed(self, road: Road) -> Finding | None:
        for i, state in enumerate(road.states):
            if i and (found := problems(state.module)):
                before = road.states[i - 1].module
                told = f"rule {found[0].rule}: {found[0].sentence}"
                return Finding("malformed", state.step, i, told, before, state.module)
        return None

    def _differs(
        self, road: Road, inputs: Mapping[str, Array], want: Mapping[str, Array]
    ) -> Finding | None:
        count = len(road.states) + (road.program is not None)

        def wrong(i: int) -> str | None:
            """What is wrong with the results after state ``i``."""
            self.progress("interpreter", i, count)
            state = road.states[min(i, len(road.states) - 1)]
            limit, misread = self._allowed(state), ""
            try:
                if i < len(road.states):
                    got, misread = interpreted(state.module, inputs, limit)
                else:
                    assert road.program is not None
                    got = simulated(road.program, self.target, inputs)
                name, off = worst(want, got)
            except Exception as error:  # what a pass made cannot be run at all
                return f"{type(error).__name__}: {error}"
            if off <= limit:
                return misread or None
            return f"{FAR} {name} is {off:.3g}, allowed is {limit:.3g}"

        good, bad = 0, 0
        told = None
        for end in self._ends(road, count):
            if end > good and (told := wrong(end)) is not None:
                bad = end
                break
            good = end
        if told is None:
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            if (here := wrong(middle)) is None:
                good = middle
            else:
                bad, told = middle, here
        return _finding(road.states, bad, told)

    def _ends(self, road: Road, count: int) -> list[int]:
        """States to look at first: the last before more error is allowed, since what is wrong there
        may be less than that; the last module, of which the program may not show all; the last."""
        limits = [self._allowed(state) for state in road.states]
        looser = (i - 1 for i, limit in enumerate(limits) if limit > limits[0])
        return sorted({next(looser, 0), len(road.states) - 1, count - 1})

    def _allowed(self, state: State) -> float:
        return allowed(state.module) if self.tolerance is None else self.tolerance

    def smallest(self, module: Module, found: Finding, most: int = MOST_TRIES) -> Module:
        """The smallest module found with which the same pass goes wrong in the same way, from
        ``module`` as it was imported. Its inputs are random, and it can be run with them if
        ``module`` can."""
        runs = self._runs(module)

        def shows(candidate: Module) -> bool:
            return self._again(candidate, found) and (not runs or self._runs(candidate))

        if not shows(module):
            raise SpyrecError(
                "the model does not show it again with random inputs, so no smaller one is looked "
                "for; another --seed may" if found.kind == "differs" else
                f"{found.step} does not do it again with the model: it changed it the first time, "
                "or does not do the same each time; so no smaller one is looked for"
            )
        return Reduction(shows, self.progress, most).run(module)

    def _runs(self, module: Module) -> bool:
        """Whether a model as it was imported can be interpreted with random inputs."""
        try:
            interpreted(module, random_inputs(module, self.seed))
        except SpyrecError:
            return False
        return True

    def _again(self, candidate: Module, found: Finding) -> bool:
        """Whether that pass goes wrong with the candidate in that way, and none before it."""
        whole = found.step in (CODE, Improve.name)  # improve tries out what is after it
        passes = self.passes if whole else self.passes[: found.number]
        road = travel(candidate, passes, self.target)
        if found.kind == "fails":
            if road.error is None or (road.failed, len(road.states)) != (found.step, found.number):
                return False
            return type(road.error).__name__ == found.told.partition(":")[0]
        if road.error is not None:
            return False
        if found.kind == "malformed":
            here = self._malformed(road)
            return here is not None and here.number == found.number
        try:
            inputs = random_inputs(candidate, self.seed)
            want, _ = interpreted(candidate, inputs)
            here = self._differs(road, inputs, want)
        except SpyrecError:  # the candidate itself cannot be interpreted
            return False
        return here is not None and here.number == found.number


def _finding(states: tuple[State, ...], bad: int, told: str) -> Finding:
    if bad == len(states):
        return Finding("differs", CODE, bad, told, states[-1].module)
    return Finding(
        "differs", states[bad].step, bad, told, states[bad - 1].module, states[bad].module
    )
