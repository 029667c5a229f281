"""Programs with state: what a run leaves behind is there when the next begins, as in the memory of
a card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.api import Array, Program, Result, simulate
from spyrec.ir.errors import SpyrecError


class Session:
    """Runs one or several programs that share state by name, as prefill and decode share a cache;
    one run at a time.

    >>> session = Session(prefill, decode)
    >>> session.run(prefill, {"input_ids": ids})
    """

    def __init__(self, *programs: Program) -> None:
        self._programs = programs
        self.state: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        """Put the state back to what the model was exported with. SpyrecError when two programs
        keep something of one name and another shape or type."""
        self.state = {}
        for program in self._programs:
            for name, first in runtime.first_state(program.code).items():
                known = self.state.setdefault(name, first)
                if known.shape != first.shape or known.dtype != first.dtype:
                    raise SpyrecError(
                        f"two programs keep {name!r}, one as {known.dtype}{list(known.shape)}, the "
                        f"other as {first.dtype}{list(first.shape)}"
                    )

    def run(
        self, program: Program, inputs: Mapping[str, Array] | None = None, **options: Any
    ) -> Result:
        """Simulate one of the programs; ``inputs`` (but for the state) and ``options`` as for
        ``simulate``. A run for time only leaves the state as it is."""
        if program not in self._programs:
            raise SpyrecError("the program is not one of this session")
        if options.get("timing_only"):
            return simulate(program, **options)
        if inputs is None:
            inputs = runtime.random_inputs(program.inputs, options.get("seed", 0))
        kept = runtime.state_of(program.code)
        state = {name: self.state[name] for name in kept}
        given = {name: np.asarray(array) for name, array in inputs.items()} | state
        result = simulate(program, given, **options)
        for name, new in kept.items():
            if new in result.outputs:
                self.state[name] = result.outputs[new].copy()
        return result
