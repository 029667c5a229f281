"""K-splits: matrix kernels whose summed dimension is divided among neighbouring cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipeline_proof import DL16_ERROR, F32_ERROR, fitted
from small_models import Graph, module, random_inputs, run_binary, run_program

from spyrec.driver import Compiled, compile_module, lower_module
from spyrec.ir import interp
from spyrec.ir.core import Module, Value, walk
from spyrec.ir.errors import PassError, VerifyError
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.tiles import Nest
from spyrec.ir.verifier import verify
from spyrec.passes.allocate import largest_part, owned_boxes
from spyrec.passes.kernel import GROUP, rank1
from spyrec.passes.manager import Pass, Target, output_error
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device
from spyrec.sim.isa import Instr, Loop, Program, instructions
from spyrec.sim.objfile import dump
from spyrec.sim.run import run

DEVICE = load_device()
TARGET = Target(DEVICE)
Pins = Mapping[str, Any]


def matmul(m: int, k: int, n: int) -> Module:
    return module(lambda g, x: [g("matmul", x, g.weight(k, n))], ("x", (m, k), "f32"))


def finished(m: int, k: int, n: int) -> Module:
    """Bias, activation and a residual come in once, where the sum is."""

    def make(g: Graph, x: Value, r: Value) -> list[Value]:
        return [g("add", g("relu", g("add", g("matmul", x, g.weight(k, n)), g.weight(n))), r)]

    return module(make, ("x", (m, k), "f32"), ("r", (m, n), "f32"))


def batched(b: int, m: int, k: int, n: int) -> Module:
    return module(
        lambda g, x, y: [g("matmul", x, y)], ("x", (b, m, k), "f32"), ("y", (b, k, n), "f32")
    )


def conv() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        y = g("conv", x, g.weight(70, 200, 3, 3), g.weight(70), strides=(2, 1), pads=(1, 1, 1, 1),
              dilations=(1, 1))  # fmt: skip
        return [g("relu", y)]

    return module(make, ("x", (1, 200, 9, 10), "f32"))


def chain(m: int, k: int, n: int) -> Module:
    """The next kernel reads the sums, which the last cores hold, over the ring."""

    def make(g: Graph, x: Value) -> list[Value]:
        y = g("relu", g("matmul", x, g.weight(k, n)))
        return [g("add", g("matmul", y, g.weight(n, k)), x)]

    return module(make, ("x", (m, k), "f32"))


CASES: dict[str, tuple[Module, Pins]] = {
    "even": (matmul(16, 512, 512), {"parts": {"m": 1, "n": 8, "k": 4}}),
    "a group of all cores": (matmul(5, 2048, 70), {"parts": {"m": 1, "n": 1, "k": 32}}),
    "uneven parts": (matmul(7, 64 * 7, 300), {"parts": {"m": 1, "n": 5, "k": 3}}),
    "a tail in the last lanes": (matmul(9, 300, 130), {"parts": {"m": 3, "n": 2, "k": 5}}),
    "tails in loops": (
        matmul(70, 1000, 520),
        {"parts": {"m": 2, "n": 3, "k": 5}, "tile": {"m": 8, "n": 128, "k": 128}},
    ),
    "columns in the outer loop": (
        finished(40, 700, 400),
        {"parts": {"m": 1, "n": 2, "k": 4}, "tile": {"m": 16, "n": 64, "k": 64},
         "loops": ["n", "m", "k"]},
    ),
    "epilogue": (finished(33, 640, 320), {"parts": {"m": 2, "n": 5, "k": 3}}),
    "batch in a loop": (batched(3, 20, 390, 90), {"parts": {"b0": 2, "m": 2, "n": 2, "k": 3}}),
    "convolution": (conv(), {"parts": {"oh": 3, "oc": 2, "ic": 4}}),
    "read over the ring": (chain(24, 512, 320), {"parts": {"m": 1, "n": 5, "k": 4}}),
    "reads over the ring": (chain(24, 200, 448), {"parts": {"m": 2, "n": 2, "k": 5}}),
    "uneven rows over the ring": (
        chain(7, 200, 448), {"parts": {"m": 4, "n": 1, "k": 5}, "tile": {"m": 1}},
    ),
}  # fmt: skip


def contract(m: Module) -> str:
    """The name of the matrix kernel with the longest sum."""
    kernels = [op for op in compile_module(m, TARGET).module.body.ops if op.name == "kernel"]
    nests = [nest for nest in map(Nest, kernels) if nest.kind == "contract"]
    return max(nests, key=lambda nest: nest.extents[nest.k]).name


def pinned(m: Module, pins: Pins) -> dict[str, Any]:
    return {"kernels": {contract(m): pins}}


@cache
def plan_of(case: str) -> dict[str, Any]:
    return pinned(*CASES[case])


@cache
def compiled(case: str) -> Compiled:
    return compile_module(CASES[case][0], TARGET, plan=plan_of(case))


@pytest.mark.parametrize("case", CASES)
def test_the_binary_agrees_with_the_interpreter(case: str) -> None:
    outcome = run_program(CASES[case][0], compiled(case).program)
    assert outcome.worst >= 0.99995
    assert outcome.relative <= 0.01
    assert {i.op for i in ring(outcome.program)} >= {"psum"}


def test_in_fp32_the_sums_are_exact_to_their_order() -> None:
    m, _ = CASES["epilogue"]
    assert run_binary(m, "fp32", plan=plan_of("epilogue")).relative <= F32_ERROR


@pytest.mark.parametrize("case", CASES)
def test_every_pass_keeps_the_meaning(case: str) -> None:
    m, _ = CASES[case]
    inputs = random_inputs(m)
    want = interp.run(m, inputs)

    def check(step: Pass, _before: Module, after: Module, _seconds: float) -> None:
        verify(after)
        got = interp.run(after, fitted(after, inputs))
        for name, expected in want.items():
            assert output_error(expected, got[name]) <= DL16_ERROR, step.name

    final = lower_module(m, TARGET, plan=plan_of(case), hook=check)
    assert print_module(parse_module(print_module(final))) == print_module(final)


@pytest.mark.parametrize("case", CASES)
def test_no_timing_makes_a_race(case: str) -> None:
    assert find_hazards(compiled(case).program, DEVICE) == ()


def test_the_plan_of_a_split_pins_it_again() -> None:
    case = "columns in the outer loop"
    first = compiled(case)
    again = compile_module(CASES[case][0], TARGET, plan=first.plan)
    assert dump(again.program) == dump(first.program)


@pytest.mark.parametrize("what", ["ready", "arrived"])
def test_both_tokens_of_the_chain_are_needed(what: str) -> None:
    """Without one a neighbour's accumulators are added to before it has multiplied, or passed on
    before all terms are in them."""
    program = compiled("epilogue").program
    (kernel,) = program.kernels
    _, between = (i for i in ring(program) if i.op == "psum")
    token = between.waits[0 if what == "ready" else 1].token

    def loose(item: Instr | Loop) -> Instr | Loop:
        if isinstance(item, Loop):
            return replace(item, body=tuple(map(loose, item.body)))
        return replace(item, waits=tuple(w for w in item.waits if w.token != token))

    streams = {unit: tuple(map(loose, stream)) for unit, stream in kernel.streams.items()}
    broken = replace(program, kernels=(replace(kernel, streams=streams),))
    assert "race" in {finding.kind for finding in find_hazards(broken, DEVICE)}


@st.composite
def splits(draw: st.DrawFn) -> tuple[Module, Pins]:
    """A matrix product, maybe with an epilogue, cut at random, with random tiles."""
    sizes = {"m": draw(st.integers(1, 40)), "n": draw(st.integers(1, 300)),
             "k": draw(st.integers(65, 700))}  # fmt: skip
    grains = {"m": 1, "n": GROUP, "k": GROUP}
    parts, tile, left = {}, {}, DEVICE.cores.count
    for name in ("k", "n", "m"):
        units = -(-sizes[name] // grains[name])
        parts[name] = draw(st.integers(2 if name == "k" else 1, min(units, left)))
        left //= parts[name]
        part = largest_part(sizes[name], parts[name], grains[name])
        tile[name] = draw(st.sampled_from([*range(grains[name], part, grains[name]), part]))
    make = draw(st.sampled_from([matmul, finished]))
    return make(sizes["m"], sizes["k"], sizes["n"]), {"parts": parts, "tile": tile}


UNEVEN_LOOPS = {"parts": {"k": 2, "n": 1, "m": 2}, "tile": {"k": 64, "n": 128, "m": 1}}
"""Both loops over the results end sooner on one core than on the others."""


@given(splits())
@example((matmul(3, 65, 129), UNEVEN_LOOPS))
@settings(max_examples=25, deadline=None)
def test_any_split_with_any_tile_is_right(split: tuple[Module, Pins]) -> None:
    m, pins = split
    assert run_binary(m, "fp32", plan=pinned(m, pins)).relative <= F32_ERROR


def ring(program: Program) -> list[Instr]:
    return [i for k in program.kernels for i, _ in instructions(k.streams.get("rs", ()))]


def test_the_last_core_of_each_group_finishes_alone() -> None:
    program = compiled("epilogue").program
    kernel = program.kernels[0]
    last = sum(1 << c for c in range(30) if c % 3 == 2)
    for unit in ("sfp", "ms"):
        work = [i for i, _ in instructions(kernel.streams[unit]) if i.op not in ("sync", "prog")]
        assert work and {i.where for i in work} == {last}
    first, between = (i for i in ring(program) if i.op == "psum")
    assert first.where == sum(1 << c for c in range(0, 30, 3))
    assert between.where == sum(1 << c for c in range(1, 30, 3))
    assert [i.imm["partial"] for i, _ in instructions(kernel.streams["pt"]) if i.op == "mm"] == [1]


@pytest.mark.parametrize("case", ["read over the ring", "reads over the ring"])
def test_sums_stay_in_the_scratchpads(case: str) -> None:
    ops = compiled(case).module.body.ops
    (there,) = (op for op in ops if op.name == "relayout")
    (split,) = (op for op in ops if op.name == "kernel" and Nest(op).terms > 1)
    if case == "read over the ring":
        assert there.operands == split.results
        boxes = dict(split.attrs["resident"])[0]  # type: ignore[call-overload]
        holds = [c for c, box in enumerate(boxes) if all(n for _, n in box)]
        assert holds == list(range(3, 20, 4))
    else:
        assert split.operands[0] is there.result


def test_every_term_goes_over_the_ring_once() -> None:
    program = compiled("even").program
    result = run(program, DEVICE, timing_only=True)
    # 16 rows of one group of columns, 256 bytes each, three times in each of eight groups of cores
    assert result.launches[0].ring_bytes == 16 * 256 * 3 * 8


def test_ownership_is_that_of_a_layout_with_a_sum_digit() -> None:
    kernel = next(op for op in compiled("uneven parts").module.body.ops if op.name == "kernel")
    nest = Nest(kernel)
    layout = kernel.result.type.layout
    assert layout is not None
    held = layout.owned({0: nest.parts[0], 1: nest.parts[1]}, (1,)).summed(nest.terms)
    owned = owned_boxes(nest, nest.out_maps[0], rank1(kernel.result.type))
    assert held.cores == len(owned) == 15
    for core, box in enumerate(owned):
        assert sizes(box) == sizes(held.box(core))
        assert not any(sizes(box)) or box == held.box(core)


def sizes(box: tuple[tuple[int, int], ...]) -> list[int]:
    return [n if all(m for _, m in box) else 0 for _, n in box]


def test_accumulators_say_that_they_hold_terms() -> None:
    (kernel,) = (op for op in compiled("tails in loops").module.body.ops if op.name == "kernel")
    ops = list(walk(kernel.regions[0]))
    (psum,) = (op for op in ops if op.name == "psum")
    (multiplied,) = (op for op in ops if op.attrs.get("unit") == "pt")
    before, after = (v.type.layout for v in (*psum.operands, *psum.results))
    assert before is not None and after == before.complete() and before.terms == 5
    assert multiplied.result.type.layout == before


# What is refused

RULES: list[tuple[Pins, str]] = [
    ({"parts": {"k": 9}}, "parts: k = 512 is cut in steps of 64 into 8 parts at most, got 9"),
    ({"parts": {"n": 8, "k": 8}}, "parts: n=8 x k=8 are 64 parts, there are 32 cores"),
    ({"parts": {"n": 2, "k": 4}, "core_order": ["k", "n"]},
     "core_order: k is summed over, so the cores that divide it are neighbours; put it last"),
    ({"parts": {"k": 4}, "tile": {"k": 192}}, "tile: k = 192 is larger than the part of a core, "
     "128"),
]  # fmt: skip


@pytest.mark.parametrize(("pins", "message"), RULES)
def test_pins_that_cannot_be(pins: Pins, message: str) -> None:
    m = matmul(16, 512, 512)
    with pytest.raises(PassError) as error:
        compile_module(m, TARGET, plan=pinned(m, pins))
    assert str(error.value) == f"plan: kernel {contract(m)}, {message}"


def broken(change: Callable[[str], str]) -> str:
    text = print_module(compiled("even").module)
    assert change(text) != text
    with pytest.raises(VerifyError) as error:
        verify(parse_module(change(text)))
    return str(error.value)


def test_terms_are_nothing_to_store_or_finish() -> None:
    def without_psum(text: str) -> str:
        lines = text.splitlines()
        at = next(i for i, line in enumerate(lines) if " = psum(" in line)
        made, given = lines[at].split(" = psum(")[0].strip(), lines[at].split("(")[1].split(")")[0]
        rest = [line.replace(f"({made})", f"({given})") for line in lines[at + 1 :]]
        return "\n".join(lines[:at] + rest)

    assert "is one of 4 terms; only psum makes a sum of them" in broken(without_psum)


def test_terms_are_of_as_many_cores_as_share_the_dimension() -> None:
    found = broken(lambda text: text.replace("sum:4*0 core", "sum:2*0 core"))
    assert "4 cores hold a term of the result, but its layout says 2" in found


def test_cores_that_add_up_are_neighbours() -> None:
    found = broken(lambda text: text.replace("core_order = (1, 2)", "core_order = (2, 1)"))
    assert "k is summed over, so the cores that divide it are neighbours" in found


def test_psum_wants_a_tile_of_terms() -> None:
    found = broken(lambda text: text.replace("sum:4*0 core, ", ""))
    assert "expected a tile of which cores hold terms" in found


# What the planner chooses


def parts(m: Module, k_split: bool = True) -> tuple[tuple[int, ...], int]:
    """Parts of the only kernel, and cycles of the program."""
    plan = None if k_split else pinned(m, {"parts": {"k": 1}})
    made = compile_module(m, TARGET, plan=plan)
    (kernel,) = (op for op in made.module.body.ops if op.name == "kernel")
    return Nest(kernel).parts, run(made.program, DEVICE, timing_only=True).total_cycles


@pytest.mark.parametrize("size", [(8, 8192, 64), (64, 8192, 64), (1, 8192, 64)])
def test_a_long_sum_of_few_results_is_split_and_faster_for_it(size: tuple[int, int, int]) -> None:
    m = matmul(*size)
    split, cycles = parts(m)
    whole, before = parts(m, k_split=False)
    assert split[2] > 1 and whole[2] == 1
    assert cycles < before


@pytest.mark.parametrize("size", [(512, 4096, 4096), (1, 4096, 4096), (128, 768, 768)])
def test_what_keeps_all_cores_busy_is_not_split(size: tuple[int, int, int]) -> None:
    assert parts(matmul(*size))[0][2] == 1
