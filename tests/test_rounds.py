"""At most eight fragments come to a core at once: exchanges of more take rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from small_models import module, run_binary

from spyrec.backend.rounds import Rounds, bits
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.passes.manager import Target
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device
from spyrec.sim.engine import Engine
from spyrec.sim.isa import Program, instructions

DEVICE = load_device()
MOST = DEVICE.ring.fragments_max


@dataclass(frozen=True)
class Sent:
    core: int
    cores: int


exchanges = st.lists(
    st.builds(Sent, st.integers(0, 5), st.integers(1, 2**6 - 1)), min_size=1, max_size=40
)


@given(exchanges, st.integers(1, 4))
def test_no_round_brings_a_core_more_than_it_takes(sends: list[Sent], most: int) -> None:
    rounds = Rounds(sends, most)
    assert Counter(s for r in rounds.sends for s in r) == Counter(sends)
    for number, now in enumerate(rounds.sends):
        assert now
        assert rounds.fragments[number] == Counter(c for s in now for c in bits(s.cores))
        assert max(rounds.fragments[number].values()) <= most
    for number, now in enumerate(rounds.sends):
        for send in now:  # it came in no earlier round because there a receiver had its fill
            for before in rounds.fragments[:number]:
                assert any(before.get(c, 0) == most for c in bits(send.cores))


@given(exchanges, st.integers(1, 4))
def test_senders_wait_for_as_many_as_tell_them(sends: list[Sent], most: int) -> None:
    rounds = Rounds(sends, most)
    told: Counter[tuple[int, int]] = Counter()
    for number, fragments in enumerate(rounds.fragments):
        for core in fragments:
            if following := rounds.following(core, number):
                told.update((following, s) for s in bits(rounds.senders(core, following)))
    waits = {
        (number, core): n
        for number in range(len(rounds.sends)) for core, n in rounds.waits(number).items()
    }  # fmt: skip
    assert waits == dict(told)


def test_one_core_gathers_in_rounds_of_eight() -> None:
    rounds = Rounds([Sent(c, 1) for c in range(20)], MOST)
    assert [len(r) for r in rounds.sends] == [8, 8, 4]
    assert rounds.waits(0) == {} and rounds.waits(1) == dict.fromkeys(range(8, 16), 1)
    assert rounds.senders(0, 2) == 0b1111 << 16 and rounds.following(0, 2) == 0


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

    def watched(now: int, core: int, nbytes: int, mask: int) -> tuple[int, int]:
        left, arrived = send(now, core, nbytes, mask)
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
    assert taken == [8, 8, 8, 8]
    assert incoming(program) == MOST


def test_rounds_change_no_result() -> None:
    m, plan = gathered()
    assert run_binary(m, plan=plan).relative <= 0.01


def test_rounds_neither_race_nor_deadlock() -> None:
    m, plan = gathered()
    program = compile_module(m, Target(DEVICE), plan=plan).program
    assert find_hazards(program, DEVICE) == ()
