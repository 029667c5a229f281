"""Programs that share state on one card, run one after the other: the short way to a
``runtime.Card``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.api import Array, Program, Result, result_of
from spyrec.ir.errors import SpyrecError
from spyrec.sim.device import DeviceSpec


class Session:
    """Loads programs onto a card and runs them there one at a time. State stays in card memory;
    programs share it by name, as prefill and decode share a cache.

    ``card``: one to load onto, else a new one of the first program's device; ``card_options`` as
    for ``runtime.Card``. SpyrecError when two programs keep something of one name and another
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
        self._loaded = [(program, self.card.load(program)) for program in programs]
        self._stream = self.card.stream()

    @property
    def state(self) -> dict[str, Array]:
        """What the state holds now, by the names of the inputs that read it."""
        return dict(chain(*(self.card.state(loaded).items() for _, loaded in self._loaded)))

    def reset(self) -> None:
        """Put the state back to what the model was exported with."""
        for _, loaded in self._loaded:
            self.card.reset(loaded)

    def run(
        self, program: Program, inputs: Mapping[str, Array] | None = None, *,
        timing_only: bool = False, seed: int = 0,
    ) -> Result:
        """Run one of the programs. ``inputs``: arrays by name as for ``simulate``, without state,
        which may be among them to replace what is there; random ones from ``seed`` when None.

        Outputs that are the next value of state stay on the card: see ``state``. A run for time
        only leaves memory as it is. ``report()["host"]`` tells what launching took.
        """
        loaded = next((known for mine, known in self._loaded if mine is program), None)
        if loaded is None:
            raise SpyrecError("the program is not one of this session")
        card, stream, told = self.card, self._stream, len(self.card.notes)
        fed = [] if timing_only else self._feed(loaded, inputs, seed)
        card.synchronize()
        mode, before, start = card.mode(loaded), len(card.timeline), time.perf_counter()
        card.launch(stream, loaded, timing_only=timing_only)
        card.synchronize()
        wall_s, launched = time.perf_counter() - start, card.timeline[before:]
        wanted = [] if timing_only else loaded.results
        fetched = [(port, card.get(stream, loaded, port.name)) for port in wanted]
        card.synchronize()
        assert loaded.ran is not None
        result = result_of(
            loaded.code, card.device, loaded.ran, fed,
            None if timing_only else [(port, one.value) for port, one in fetched], wall_s=wall_s,
            host=runtime.summed(card.device, mode, loaded.jobs, launched),
        )
        return replace(result, warnings=(*result.warnings, *card.notes[told:]))

    def _feed(
        self, loaded: runtime.Loaded, inputs: Mapping[str, Array] | None, seed: int
    ) -> list[tuple[runtime.Port, Array]]:
        """Put the inputs on the card: which, and what."""
        state = {kept.reads.name for kept in loaded.kept}
        if inputs is None:
            wanted = [port for port in loaded.inputs if port.name not in state]
            inputs = runtime.random_inputs(wanted, seed)
        given = {name: np.asarray(array) for name, array in inputs.items()}
        runtime.check(loaded.inputs, given)
        fed = [(port, given[port.name]) for port in loaded.inputs if port.name in given]
        for port, array in fed:
            self.card.put(self._stream, loaded, port.name, array)
        return fed
