"""Programs that share state on one card, run one after the other: the short way to a
``runtime.Card``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from spyrec import buckets as bucketed
from spyrec import runtime
from spyrec.api import Array, Program, Result, as_array, result_of
from spyrec.ir.errors import SpyrecError
from spyrec.report import BucketUse
from spyrec.sim.device import DeviceSpec
from spyrec.sim.link import bucket_program

Parts = Mapping[str, runtime.Loaded]
"""A program on the card: itself under "", or its buckets by name."""


class Session:
    """Loads programs onto a card and runs them there one at a time. State stays in card memory;
    programs share it by name, as prefill and decode share a cache, and the buckets of a program do.

    ``device``: of the card, that of the first program when None; ``card_options`` as for
    ``runtime.Card``. SpyrecError when two programs keep something of one name and another
    shape or type, CapacityError when they do not fit.

    >>> session = Session(prefill, decode)
    >>> session.run(prefill, {"input_ids": ids})
    """

    def __init__(
        self, *programs: Program, device: str | DeviceSpec | None = None, **card_options: Any
    ) -> None:
        if not programs:
            raise SpyrecError("a session is of at least one program")
        self.card = runtime.Card(device or programs[0].device, **card_options)
        self._loaded = [(program, self._load(program)) for program in programs]
        self._stream = self.card.stream()

    @property
    def state(self) -> Mapping[str, Array]:
        """What the state holds now, by the names of the inputs that read it: a copy. To change it,
        hand it to ``run`` among the inputs."""
        found = dict(chain(*(self.card.state(loaded).items() for loaded in self._all())))
        return MappingProxyType(found)

    def reset(self) -> None:
        """Put the state back to what the model was exported with."""
        for loaded in self._all():
            self.card.reset(loaded)

    def run(
        self, program: Program, inputs: Mapping[str, Array] | None = None, *,
        timing_only: bool = False, seed: int = 0, bucket: Mapping[str, int] | None = None,
    ) -> Result:
        """Run one of the programs. ``inputs``: arrays by name as for ``simulate``, without state,
        which may be among them to replace what is there; random ones from ``seed`` when None.
        ``bucket`` as for ``simulate``.

        Outputs that are the next value of state stay on the card: see ``state``. A run for time
        only leaves memory as it is. ``report()["host"]`` tells what launching took.
        """
        given = None if inputs is None else {n: as_array(array) for n, array in inputs.items()}
        loaded, chosen = self._chosen(program, given, bucket)
        use = None if chosen is None else chosen.use
        card, stream, told = self.card, self._stream, len(self.card.notes)
        fed = [] if timing_only else self._feed(loaded, chosen, given, seed)
        card.synchronize()
        mode, before, start = card.mode(loaded), len(card.timeline), time.perf_counter()
        card.launch(stream, loaded, timing_only=timing_only)
        card.synchronize()
        wall_s, launched = time.perf_counter() - start, card.timeline[before:]
        got = None if timing_only else self._fetched(loaded, use)
        assert loaded.ran is not None
        result = result_of(
            loaded.code, card.device, loaded.ran, fed, got, wall_s=wall_s,
            host=runtime.summed(card.device, mode, loaded.jobs, launched), bucket=use,
        )
        return replace(result, warnings=(*result.warnings, *card.notes[told:]))

    def _load(self, program: Program) -> Parts:
        code = program.code
        codes = {bucket.name: bucket_program(code, i) for i, bucket in enumerate(code.buckets)}
        return {
            name: self.card.load(replace(program, code=part))
            for name, part in (codes or {"": code}).items()
        }

    def _all(self) -> Iterator[runtime.Loaded]:
        return (loaded for _, parts in self._loaded for loaded in parts.values())

    def _chosen(
        self, program: Program, given: Mapping[str, Array] | None, bucket: Mapping[str, int] | None
    ) -> tuple[runtime.Loaded, bucketed.Chosen | None]:
        parts = next((known for mine, known in self._loaded if mine is program), None)
        if parts is None:
            raise SpyrecError("the program is not one of this session")
        chosen = bucketed.chosen(program.code, given, bucket)
        return parts["" if chosen is None else chosen.use.name], chosen

    def _feed(
        self, loaded: runtime.Loaded, chosen: bucketed.Chosen | None,
        given: Mapping[str, Array] | None, seed: int,
    ) -> list[tuple[runtime.Port, Array]]:
        """Put the inputs on the card: which, and what."""
        if given is None:
            state = {kept.reads.name for kept in loaded.kept}
            wanted = loaded.inputs if chosen is None else bucketed.asked(chosen)
            given = runtime.random_inputs([p for p in wanted if p.name not in state], seed)
        if chosen is not None:
            given = bucketed.filled(chosen, given)
        runtime.check(loaded.inputs, given)
        fed = [(port, given[port.name]) for port in loaded.inputs if port.name in given]
        for port, array in fed:
            self.card.put(self._stream, loaded, port.name, array)
        return fed

    def _fetched(
        self, loaded: runtime.Loaded, use: BucketUse | None
    ) -> list[tuple[runtime.Port, Array]]:
        """The outputs, but for those that are the next value of state."""
        wanted = [(port, self.card.get(self._stream, loaded, port.name)) for port in loaded.results]
        self.card.synchronize()
        return [(port, bucketed.cropped(port, one.value, use)) for port, one in wanted]
