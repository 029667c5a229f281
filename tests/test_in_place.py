"""Results in the room of an operand: traffic of the published softmax stages, numbers, and the
cases in which the room is still needed."""

from __future__ import annotations

import pytest

from benchmarks.targets import SOFTMAX, SOFTMAX_STAGES, compile_pinned, softmax
from spyrec.driver import Compiled
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.in_place import reused_rooms
from spyrec.sim.device import load_device
from tests.small_models import run_program

DEVICE = load_device()
TALL = "tensor<512x1024xdl16>"


def test_softmax_moves_the_published_elements_at_every_stage() -> None:
    moved = [line for line in softmax(DEVICE) if line.unit == "elements"]
    assert [line.case for line in moved] == list(SOFTMAX_STAGES)
    assert [line.predicted for line in moved] == [line.low for line in moved]


def test_numbers_are_those_of_separate_rooms() -> None:
    spaces = dict.fromkeys(("clone", "max", "sub", "exp", "sum"), "lx")
    done = compile_pinned(SOFTMAX, 1, spaces, ({},) * 6, DEVICE)
    assert rooms(done) == [("sub", "clone"), ("exp", "sub")]
    outcome = run_program(in_float32(SOFTMAX), done.program)
    assert outcome.worst > 0.99999 and outcome.relative < 0.005


def in_float32(text: str) -> Module:
    return parse_module(text.replace("xdl16>", "xf32>"))


def rooms(done: Compiled) -> list[tuple[str, str]]:
    """(result, operand whose room it has) by names in the text."""
    reused = reused_rooms(done.module.body.ops)
    return [(a.name.split("_")[0], b.name.split("_")[0]) for a, b in reused]


ROWS, COLUMNS = {"parts": {"d0": 8}}, {"parts": {"d1": 8}}
BODIES = {
    "read again later": (
        f"%a = neg(%x) : {TALL}\n%b = exp(%a) : {TALL}\n%c = add(%b, %a) : {TALL}\n"
        f"%d = neg(%c) : {TALL}", (ROWS, ROWS, ROWS, ROWS), [("c", "b")],
    ),
    "read after a reduction": (
        f"%a = neg(%x) : {TALL}\n%m = reduce_max(%a) {{axes = (1,), keepdims = true}} : "
        f"tensor<512x1xdl16>\n%c = sub(%a, %m) : {TALL}\n%d = exp(%c) : {TALL}",
        (ROWS, ROWS, ROWS, ROWS), [("c", "a")],
    ),
    "cut differently": (
        f"%a = neg(%x) : {TALL}\n%b = exp(%a) : {TALL}\n%c = neg(%b) : {TALL}",
        (ROWS, COLUMNS, COLUMNS), [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_room_is_taken_only_when_nobody_needs_it(name: str) -> None:
    body, pins, expected = BODIES[name]
    *made, last = (line.split(" = ")[0][1:] for line in body.split("\n"))
    text = f'module "m" {{\ninput %x: {TALL}\n{body}\noutput "y" = %{last}\n}}'
    done = compile_pinned(text, 8, dict.fromkeys(made, "lx"), pins, DEVICE)
    assert rooms(done) == expected
    assert run_program(in_float32(text), done.program).worst > 0.9999
