"""The small parts of the planning passes: stages, clipped pieces, placing by lifetime, and the
before and after that each pass shows."""

from __future__ import annotations

import doctest
import importlib
from itertools import pairwise

import numpy as np
import pytest
import test_end_to_end as end_to_end
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.driver import compile_module
from spyrec.ir.core import Block, Builder, Module, Op, Value
from spyrec.ir.errors import CapacityError
from spyrec.ir.moves import AffineMap, Piece
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.types import tensor
from spyrec.passes.fuse import Fuse
from spyrec.passes.groups import Group, Grouper
from spyrec.passes.hbm_plan import place_tensors
from spyrec.passes.intervals import Span, first_fit, peak, tops
from spyrec.passes.manager import Target, run_pipeline
from spyrec.passes.packing import place
from spyrec.passes.pieces import clip_piece
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.primitives import REDUCTIONS
from spyrec.passes.stages import COSTLY, Stage, stages
from spyrec.sim.device import load_device
from tests.graphs import modules

DOCUMENTED = (
    "merge_moves", "fuse", "stick_layout", "allocate", "residency", "tiling", "lower_tiles",
    "scratchpad", "hbm_plan", "selection",
)  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_docstring_shows_before_and_after(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(f"spyrec.passes.{name}"))
    assert outcome.attempted >= 4
    assert outcome.failed == 0


# Placing by lifetime --------------------------------------------------------------------------


@st.composite
def spans(draw: st.DrawFn, most: int) -> list[Span]:
    made = []
    for i in range(draw(st.integers(1, most))):
        first = draw(st.integers(0, 5))
        size = draw(st.integers(1, 6)) * 100
        made.append(Span(f"s{i}", size, first, first + draw(st.integers(0, 3))))
    return made


def whole(size: int) -> int:
    return -(-size // 128) * 128


@given(spans(12), st.sampled_from([0, 256]))
@settings(max_examples=200)
def test_no_two_that_live_at_once_overlap(made: list[Span], start: int) -> None:
    where, top = place(made, start)
    assert set(where) == {s.name for s in made}
    assert top == max(where[s.name] + whole(s.size) for s in made)
    assert top >= start + peak(made)
    for i, a in enumerate(made):
        assert where[a.name] >= start
        assert where[a.name] % 128 == 0
        for b in made[:i]:
            if a.first <= b.last and b.first <= a.last:
                low, high = sorted((a, b), key=lambda s: where[s.name])
                assert where[low.name] + low.size <= where[high.name]


@given(spans(10))
def test_the_peak_is_the_fullest_step(made: list[Span]) -> None:
    alive = [sum(s.size for s in made if s.first <= t <= s.last) for t in range(10)]
    assert peak(made) == max(alive)


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Span]:
    """Some short, some as long as all the rest, from any step on."""
    start, made = draw(st.integers(-3, 40)), []
    for i in range(draw(st.integers(1, 30))):
        first = start + draw(st.integers(0, 70))
        last = first + draw(st.sampled_from([0, 0, 1, 2, 7, 70]))
        made.append(Span(f"s{i}", draw(st.integers(1, 6)) * 128, first, last))
    return made


def plainly(made: list[Span], start: int) -> dict[str, int]:
    """First fit that looks at every span placed before."""
    where: dict[str, int] = {}
    for i, s in enumerate(made):
        at = start
        met = [o for o in made[:i] if o.first <= s.last and s.first <= o.last]
        for o in sorted(met, key=lambda o: where[o.name]):
            if at + s.size > where[o.name]:
                at = max(at, where[o.name] + o.size)
        where[s.name] = at
    return where


@given(lifetimes(), st.sampled_from([0, 256]))
@settings(max_examples=200)
def test_first_fit_meets_all_that_live_at_once(made: list[Span], start: int) -> None:
    where, top = first_fit(made, start)
    assert where == plainly(made, start)
    steps = range(min(s.first for s in made) - 1, max(s.last for s in made) + 2)
    alive = {t: [where[s.name] + s.size for s in made if s.first <= t <= s.last] for t in steps}
    assert tops(made, where, steps) == {t: max(ends, default=0) for t, ends in alive.items()}
    assert top == max(map(max, filter(None, alive.values())))


def test_the_plan_does_not_depend_on_the_order_given() -> None:
    made = [Span("a", 300, 0, 2), Span("b", 300, 1, 1), Span("c", 128, 2, 2)]
    assert place(made, 0) == place(made[::-1], 0) == ({"a": 0, "b": 384, "c": 384}, 768)


def test_resident_tensors_and_buffers_of_a_launch_never_overlap() -> None:
    """In compiled models: what lives in a launch, and what is prefetched for the next."""
    early = []
    for model in (end_to_end.mlp(), end_to_end.attention()):
        module = compile_module(model, Target(load_device())).module
        kernels = [op for op in module.body.ops if op.name == "kernel"]
        early += [op for op in kernels if op.attrs["early"]]
        for op in kernels:
            taken: list[tuple[int, int]] = []
            names: set[str] = set()
            for name, at, slots in op.attrs["lx"]:  # type: ignore[union-attr,misc]
                assert name not in names
                names.add(name)
                size = _bytes(module, name)
                taken.append((at, at + slots * size))
            taken.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(taken))
            assert max(high for _, high in taken) <= op.attrs["lx_bytes"]  # type: ignore[operator]
    assert early


def _bytes(module: Module, name: str) -> int:
    from spyrec.passes.homes import buffer_bytes, home
    from spyrec.passes.scratchpad import kernel_buffers

    constants = {op.result for op in module.body.ops if op.name == "constant"}
    for op in module.body.ops:
        for i, v in enumerate(op.results):
            boxes = home(op, i)
            if v.name == name and boxes is not None:
                return buffer_bytes(v.type, boxes)
        if op.name == "kernel":
            for buffer in kernel_buffers(op, constants):
                if buffer.name == name:
                    return buffer.size
    raise AssertionError(f"nothing is called {name}")


LAID = """module "m" {
  input %x: tensor<1x64xdl16,
    [shape 1x64 bits 16 | 1:1*64 mem, 0:1*1 mem, 1:64*1 lane | pad undefined], hbm>
  %a = exp(%x) : tensor<1x64xdl16,
    [shape 1x64 bits 16 | 1:1*64 mem, 0:1*1 mem, 1:64*1 lane | pad undefined], hbm> @ "Exp_3"
  output "y" = %a
}"""


@pytest.mark.parametrize(
    ("room", "message"),
    [
        (100, "hbm: %x (1x64 dl16, from x) needs 128 bytes, the card has 100 bytes; split the "
              "tensor in the model\nhbm: %a (1x64 dl16, from Exp_3) needs 128 bytes, the card has "
              "100 bytes; split the tensor in the model"),
        (200, "hbm: the program needs 256 bytes, the card has 200 bytes; its largest tensor %x "
              "(1x64 dl16, from x) needs 128 bytes; make the batch smaller"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_card_is_named(room: int, message: str) -> None:
    with pytest.raises(CapacityError) as caught:
        place_tensors(parse_module(LAID), room)
    assert str(caught.value) == message


# Pieces ---------------------------------------------------------------------------------------


@st.composite
def clipped(draw: st.DrawFn) -> tuple[Piece, tuple[tuple[int, int], ...]]:
    """A piece that writes digits of a result's dimensions, and a box of the result."""
    counts = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    rank = draw(st.integers(1, 2))
    rows = []
    owner = [draw(st.integers(0, rank - 1)) for _ in counts]
    for t in range(rank):
        coefs, step = [0] * len(counts), 1
        for k in draw(st.permutations([k for k, o in enumerate(owner) if o == t])):
            coefs[k] = step = step * draw(st.sampled_from([1, 1, 2]))
            step *= counts[k]
        rows.append((draw(st.integers(0, 3)), tuple(coefs)))
    nowhere = AffineMap(((0, (0,) * len(counts)),))
    box = tuple((draw(st.integers(0, 8)), draw(st.integers(0, 12))) for _ in rows)
    return Piece(0, counts, nowhere, AffineMap(tuple(rows))), box


@given(clipped())
@settings(max_examples=400)
def test_clipping_keeps_what_lands_in_the_box(
    case: tuple[Piece, tuple[tuple[int, int], ...]]
) -> None:
    piece, box = case
    landing = {
        p
        for p in np.ndindex(*piece.counts)
        if all(s <= x < s + n for x, (s, n) in zip(piece.dst.at(p), box, strict=True))
    }
    kept = [
        tuple(s + i for (s, _), i in zip(ranges, p, strict=True))
        for ranges in clip_piece(piece, box)
        for p in np.ndindex(*(n for _, n in ranges))
    ]
    assert len(kept) == len(set(kept))
    assert set(kept) == landing


def test_a_cut_through_a_run_makes_several_parts() -> None:
    piece = Piece(0, (4, 6), AffineMap(((0, (6, 1)),)), AffineMap(((0, (6, 1)),)))
    assert clip_piece(piece, ((6, 12),)) == [((1, 2), (0, 6))]
    assert clip_piece(piece, ((4, 10),)) == [((1, 1), (0, 6)), ((0, 1), (4, 2)), ((2, 1), (0, 2))]


# Stages ---------------------------------------------------------------------------------------


NAMES = ("exp", "tanh", "neg", "add", "mul", "reduce_sum", "reduce_max")


@st.composite
def bodies(draw: st.DrawFn) -> Block:
    b = Builder()
    x = b.value("x", tensor((4, 8), "f32"))
    live: list[Value] = [x]
    for _ in range(draw(st.integers(1, 8))):
        some = st.sampled_from(live)
        name = draw(st.sampled_from(NAMES))
        if name.startswith("reduce"):
            op = b.op(name, [draw(some)], axes=(1,), keepdims=True)
        elif name in ("add", "mul"):
            op = b.op(name, [draw(some), draw(some)])
        else:
            op = b.op(name, [draw(some)])
        live.append(op.result)
    results = draw(st.lists(st.sampled_from(live[1:]), min_size=1, max_size=2, unique=True))
    return Block((x,), tuple(b.ops), tuple(results))


def reaching(block: Block) -> set[Op]:
    """Ops that a result needs."""
    made = {op.result: op for op in block.ops}
    found: set[Op] = set()
    todo = [v for v in block.results if v in made]
    while todo:
        op = made[todo.pop()]
        if op not in found:
            found.add(op)
            todo += [v for v in op.operands if v in made]
    return found


@given(bodies())
@settings(max_examples=300)
def test_stages_can_run_in_order_and_do_costly_work_once(block: Block) -> None:
    found = stages(block)
    known: set[Value] = set(block.args)
    for stage in found:
        assert set(stage.inputs) <= known
        inside = set(stage.inputs)
        for op in stage.ops:
            assert set(op.operands) <= inside
            inside.add(op.result)
        assert stage.ops[-1].result is stage.result
        heads = [op for op in stage.ops if op.name in REDUCTIONS]
        assert heads == ([stage.head] if stage.head is not None else [])
        known.add(stage.result)
    assert set(block.results) <= known
    done = [op for stage in found for op in stage.ops]
    needed = reaching(block)
    assert needed <= set(done)
    for op in needed:
        if op.name in COSTLY or op.name in REDUCTIONS:
            assert done.count(op) == 1, f"{op.name} is computed {done.count(op)} times"


def body_of(text: str) -> tuple[Stage, ...]:
    return stages(parse_module(f'module "m" {{\n{text}\n}}').body)


def test_a_softmax_has_four_stages() -> None:
    found = body_of("""
      input %x: tensor<4x8xf32>
      %m = reduce_max(%x) {axes = (1,), keepdims = true} : tensor<4x1xf32>
      %d = sub(%x, %m) : tensor<4x8xf32>
      %e = exp(%d) : tensor<4x8xf32>
      %s = reduce_sum(%e) {axes = (1,), keepdims = true} : tensor<4x1xf32>
      %y = div(%e, %s) : tensor<4x8xf32>
      output "y" = %y""")
    assert [[op.name for op in s.ops] for s in found] == [
        ["reduce_max"], ["sub", "exp"], ["reduce_sum"], ["div"],
    ]  # fmt: skip


def test_a_costly_value_that_two_shared_values_need_is_computed_once() -> None:
    found = body_of("""
      input %x: tensor<4x8xf32>
      %e = exp(%x) : tensor<4x8xf32>
      %a = neg(%e) : tensor<4x8xf32>
      %b = add(%e, %e) : tensor<4x8xf32>
      %s = reduce_sum(%a) {axes = (1,), keepdims = true} : tensor<4x1xf32>
      %t = reduce_max(%b) {axes = (1,), keepdims = true} : tensor<4x1xf32>
      %p = mul(%a, %s) : tensor<4x8xf32>
      %q = mul(%b, %t) : tensor<4x8xf32>
      %y = add(%p, %q) : tensor<4x8xf32>
      output "y" = %y""")
    assert [[op.name for op in s.ops] for s in found] == [
        ["exp"], ["neg"], ["add"], ["reduce_sum"], ["reduce_max"], ["mul", "mul", "add"],
    ]  # fmt: skip


def test_a_chain_of_shared_values_needs_one_buffer() -> None:
    found = body_of("""
      input %x: tensor<4x8xf32>
      %e = exp(%x) : tensor<4x8xf32>
      %a = neg(%e) : tensor<4x8xf32>
      %s = reduce_sum(%a) {axes = (1,), keepdims = true} : tensor<4x1xf32>
      %y = mul(%a, %s) : tensor<4x8xf32>
      output "y" = %y""")
    assert [[op.name for op in s.ops] for s in found] == [["exp", "neg"], ["reduce_sum"], ["mul"]]


def test_cheap_values_are_computed_again_where_they_are_needed() -> None:
    found = body_of("""
      input %x: tensor<4x8xf32>
      %a = neg(%x) : tensor<4x8xf32>
      %s = reduce_sum(%a) {axes = (1,), keepdims = true} : tensor<4x1xf32>
      %y = mul(%a, %s) : tensor<4x8xf32>
      output "y" = %y""")
    assert [[op.name for op in s.ops] for s in found] == [["neg", "reduce_sum"], ["neg", "mul"]]


# Grouping -----------------------------------------------------------------------------------


def anywhere(self: Grouper, a: Group, b: Group, skip_direct: bool = False) -> bool:
    """Does b depend on a? Looks at all that b depends on."""
    stack, seen = [g for g in b.before if not (skip_direct and g is a)], set()
    while stack:
        g = stack.pop()
        if g not in seen:
            seen.add(g)
            stack.extend(g.before)
    return a in seen


@given(modules(max_ops=25, widths=(1, 3, 64)))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_what_is_too_early_to_depend_on_a_group_is_not_searched(module: Module) -> None:
    until = [p.name for p in PIPELINE].index(Fuse.name)
    target = Target(load_device())
    legal = run_pipeline(module, PIPELINE[:until], target)
    fused = Fuse().run(legal, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grouper, "_reaches", anywhere)
        assert print_module(Fuse().run(legal, target)) == print_module(fused)
