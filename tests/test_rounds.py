"""At most eight fragments come to a core at once: of more, each waits for one to be taken."""

from __future__ import annotations

from typing import Any

from small_models import module, run_binary

from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.passes.manager import Target
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device
from spyrec.sim.engine import Engine
from spyrec.sim.isa import Program, instructions
from spyrec.sim.ring import Cores

DEVICE = load_device()
MOST = DEVICE.ring.fragments_max


def gathered() -> tuple[Module, dict[str, Any]]:
    """A row of the middle on each core, and all rows needed on each."""

    def make(g: Any, x: Any) -> list[Any]:
        return [g("matmul", g("relu", g("matmul", x, g.weight(128, 256))), g.weight(256, 2048))]

    m = module(make, ("x", (64, 128), "f32"))
    first, second = compile_module(m, Target(DEVICE)).plan["kernels"]
    return m, {"kernels": {
        first: {"parts": {"m": 32, "n": 1}}, second: {"parts": {"m": 1, "n": 32}},
    }}  # fmt: skip


def incoming(program: Program) -> int:
    """The most fragments that are on their way to one core at some time."""
    engine = Engine(program, DEVICE)
    send, flights = engine.ring.send, []

    def watched(
        now: int, core: int, nbytes: int, mask: int, far: Cores | None = None
    ) -> tuple[int, int]:
        left, arrived = send(now, core, nbytes, mask, far)
        flights.append((now, arrived, mask))
        return left, arrived

    engine.ring.send = watched  # type: ignore[method-assign]
    engine.run()
    most = 0
    for core in range(DEVICE.cores.count):
        mine = [(a, b) for a, b, mask in flights if mask >> core & 1]
        most = max([most, *(sum(a <= at < b for a, b in mine) for at, _ in mine)])
    return most


def test_a_core_that_needs_what_all_have_takes_eight_at_a_time() -> None:
    m, plan = gathered()
    program = compile_module(m, Target(DEVICE), plan=plan).program
    (receives,) = (k.streams["rr"] for k in program.kernels if "rr" in k.streams)
    taken = [i.imm["fragments"] for i, _ in instructions(receives) if i.op == "recv"]
    assert sum(taken) == 32 and max(taken) == MOST
    assert incoming(program) == MOST


def test_exchanges_change_no_result() -> None:
    m, plan = gathered()
    assert run_binary(m, plan=plan).relative <= 0.01


def test_exchanges_neither_race_nor_deadlock() -> None:
    m, plan = gathered()
    program = compile_module(m, Target(DEVICE), plan=plan).program
    assert find_hazards(program, DEVICE) == ()
