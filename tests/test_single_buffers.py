"""Kernels whose tiles have one slot: right numbers, no overlap of trips, one room for a chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from small_models import module, run_program

from spyrec.driver import Compiled, compile_module
from spyrec.ir.core import Module
from spyrec.passes.attrs import entries
from spyrec.passes.manager import Target
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device
from spyrec.sim.isa import Instr, Kernel
from spyrec.sim.run import run
from spyrec.sim.stats import LaunchStats
from tests.test_end_to_end import (
    conv,
    depthwise_conv,
    layer_norm,
    long_inner_dimension,
    mean_of_a_large_image,
    softmax,
    softmax_down,
    transpose,
)

TARGET = Target(load_device(), "dl16")
Pins = dict[str, Any]


def row_sums() -> Module:
    return module(
        lambda g, x, y: [g("reduce_mean", g("mul", x, y), axes=(1,))],
        ("x", (67, 1000), "f32"), ("y", (67, 1000), "f32"),
    )  # fmt: skip


def twice_beside() -> Module:
    return module(lambda g, x: [g("concat", x, x, axis=1)], ("x", (200, 192), "f32"))


def look_up() -> Module:
    return module(lambda g, i: [g("gather", g.weight(500, 192), i, axis=0)], ("i", (3, 100), "u16"))


def two_results() -> Module:
    """The first leaves alone what the second reads."""
    def make(g: Any, x: Any) -> list[Any]:
        size = g("abs", x)
        return [g("neg", size), g("exp", size)]

    return module(make, ("x", (67, 300), "f32"))


CASES: Mapping[str, tuple[Callable[[], Module], Pins]] = {
    "rows": (softmax, {"parts": {"d0": 7}, "tile": {"d0": 4}}),
    "columns": (softmax_down, {"parts": {"d1": 2}, "tile": {"d1": 64}}),
    "norm": (layer_norm, {"parts": {"d0": 7}, "tile": {"d0": 4}}),
    "sums": (row_sums, {"parts": {"d0": 7}, "tile": {"d0": 4, "d1": 192}}),
    "two": (two_results, {"parts": {"d0": 7, "d1": 1}, "tile": {"d0": 4, "d1": 128}}),
    "k loop": (long_inner_dimension, {"parts": {"k": 1}, "tile": {"k": 1024}}),
    "conv": (conv, {"parts": {"oh": 3, "ow": 2, "oc": 1}, "tile": {"oh": 2, "oc": 64}}),
    "window": (depthwise_conv, {"parts": {"oh": 4, "ow": 1, "c": 1}, "tile": {"oh": 3}}),
    "fold": (mean_of_a_large_image, {}),
    "look-up": (look_up, {"parts": {"i1": 1, "d": 2}}),
    "turned": (transpose, {"parts": {"d0": 2, "d1": 1}, "tile": {"d0": 64, "d1": 64}}),
    "beside": (twice_beside, {"parts": {"d0": 3, "d1": 1}, "tile": {"d0": 16, "d1": 128}}),
}


QUICK = replace(
    TARGET.device, sfp=replace(TARGET.device.sfp, switch_cycles=0, lane_reduce_cycles=0)
)
"""A vector unit that keeps up with memory: no store comes when the loads ahead have ended."""


def compiled(m: Module, pins: Pins, buffers: int) -> Compiled:
    """The module with ``pins`` on its first kernel, and ``buffers`` on all."""
    names = list(compile_module(m, TARGET).plan["kernels"])
    kernels = {n: {"buffers": buffers} | (pins if n == names[0] else {}) for n in names}
    return compile_module(m, TARGET, plan={"kernels": kernels})


@dataclass
class Busy:
    """An observer: (first cycle, last) of what is done, by launch, core and unit."""

    spans: dict[tuple[int, int, str], list[tuple[int, int]]] = field(default_factory=dict)

    def started(self, launch: int, kernel: Kernel, cycle: int) -> None:
        pass

    def worked(
        self, launch: int, kernel: Kernel, core: int, unit: str, instr: Instr, start: int,
        end: int, nbytes: int,
    ) -> None:
        self.spans.setdefault((launch, core, unit), []).append((start, end))

    def finished(self, stats: LaunchStats) -> None:
        pass

    def overlaps(self) -> int:
        """How many pairs of a load and a store of one core and launch run at the same time."""
        return sum(
            a < d and c < b
            for (launch, core, unit), loads in self.spans.items() if unit == "ml"
            for a, b in loads
            for c, d in self.spans.get((launch, core, "ms"), [])
        )


@pytest.mark.parametrize("name", CASES)
def test_trips_do_not_overlap_and_the_binary_is_right(name: str) -> None:
    model, pins = CASES[name]
    done = compiled(model(), pins, 1)
    kernels = [op for op in done.module.body.ops if op.name == "kernel"]
    assert {slots for op in kernels for _, _, slots in entries(op, "lx")} == {1}
    outcome = run_program(model(), done.program)
    assert outcome.worst >= 0.9999 and outcome.relative <= 0.01
    busy = Busy()
    run(done.program, TARGET.device, timing_only=True, observer=busy)
    assert any(unit == "ms" for _, _, unit in busy.spans)
    assert busy.overlaps() == 0


@pytest.mark.parametrize("name", ["two", "sums", "conv", "turned", "beside"])
def test_with_two_slots_they_do_overlap(name: str) -> None:
    model, pins = CASES[name]
    busy = Busy()
    run(compiled(model(), pins, 2).program, QUICK, timing_only=True, observer=busy)
    assert busy.overlaps() > 0


@pytest.mark.parametrize("name", CASES)
def test_where_only_loads_overlap_the_binary_is_right(name: str) -> None:
    model, pins = CASES[name]
    done = compiled(model(), pins | {"overlap": "loads"}, 2)
    outcome = run_program(model(), done.program)
    assert outcome.worst >= 0.9999 and outcome.relative <= 0.01
    assert find_hazards(done.program, TARGET.device) == ()


def test_where_only_loads_overlap_all_cores_begin_a_trip_together() -> None:
    model, pins = _case("rows")
    done = compiled(model, pins | {"overlap": "loads"}, 2)
    assert len(done.program.kernels) == 1
    busy, trips = Busy(), 3  # 67 rows on 7 cores, 4 at a time
    run(done.program, TARGET.device, timing_only=True, observer=busy)
    steps = len(busy.spans[0, 0, "sfp"]) // trips
    begun = [[busy.spans[0, c, "sfp"][steps * t][0] for c in range(6)] for t in range(trips)]
    stored = [[busy.spans[0, c, "ms"][t][1] for c in range(6)] for t in range(trips)]
    loaded = [[busy.spans[0, c, "ml"][t][0] for c in range(6)] for t in range(trips)]
    for t in range(1, trips):
        assert len({*begun[t]}) == 1 and begun[t][0] >= max(stored[t - 1])
        assert max(loaded[t]) < min(stored[t - 1])  # the next tile comes meanwhile


def rooms(done: Compiled) -> dict[str, int]:
    """Addresses of the tiles of the first kernel."""
    op = next(op for op in done.module.body.ops if op.name == "kernel")
    return {str(name): int(address) for name, address, _ in entries(op, "lx")}


def test_a_chain_of_whole_tiles_lies_in_one_room() -> None:
    tiles = rooms(compiled(*_case("rows"), 1))
    source = next(a for name, a in tiles.items() if name.startswith("x"))
    assert sum(a == source for a in tiles.values()) == 3  # x, its exponential, the result
    tiles = rooms(compiled(*_case("rows"), 2))
    assert len(set(tiles.values())) == len(tiles)
    model, pins = _case("rows")
    tiles = rooms(compiled(model, pins | {"overlap": "loads"}, 2))
    assert sum(a == tiles[name] for name in tiles if name[0] == "x" for a in tiles.values()) == 3


def test_what_is_read_again_keeps_its_room() -> None:
    tiles = rooms(compiled(*_case("two"), 1))
    first = {name[0]: address for name, address in tiles.items()}
    assert first["x"] == first["e"] != first["n"]


def _case(name: str) -> tuple[Module, Pins]:
    model, pins = CASES[name]
    return model(), pins
