"""Element shuffles, whole-stick transfers and ring exchanges against brute force."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyrec.backend.emit_move import side_of
from spyrec.backend.regions import Hop, Region, box_transfer
from spyrec.backend.shuffle import MAX_COPIES, Side, copies
from spyrec.backend.slots import Slots
from spyrec.ir.errors import PassError
from spyrec.ir.exchange import ring_distance
from spyrec.ir.layout import Layout, LayoutError
from spyrec.ir.moves import AffineMap
from spyrec.passes.kernel import Box
from spyrec.passes.sends import plan_sends
from spyrec.sim.extent import core_value
from spyrec.sim.isa import Operand

STEPS = (1, 1, 1, 2, 3, 5, 8, 63, 64, 65, 72, 128)
HOST = {16: np.uint16, 32: np.uint32}


@dataclass(frozen=True)
class Move:
    """``dst[dst_map(i)] = src[src_map(i)]`` for i in ``counts``; all coordinates lie inside."""

    counts: tuple[int, ...]
    src_map: AffineMap
    src_shape: tuple[int, ...]
    dst_map: AffineMap
    dst_shape: tuple[int, ...]


def fitting(
    draw: st.DrawFn, counts: tuple[int, ...], steps: list[list[int]], low: int = 0
) -> tuple[AffineMap, tuple[int, ...]]:
    """Offsets and extents so that coordinates with these steps (row, iteration dimension) lie
    inside."""
    rows, shape = [], []
    for row in steps:
        reach = [c * (n - 1) for c, n in zip(row, counts, strict=True)]
        offset = draw(st.integers(low, 70)) - sum(r for r in reach if r < 0)
        rows.append((offset, tuple(row)))
        shape.append(offset + sum(r for r in reach if r > 0) + draw(st.integers(1, 70)))
    return AffineMap(tuple(rows)), tuple(shape)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """Digits of a result dimension written at growing steps (so no element is written twice), read
    at any steps, backwards too."""
    counts = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    if draw(st.booleans()):
        counts = (*counts[:-1], draw(st.sampled_from([31, 64, 72, 100, 130])))
    while np.prod(counts) > MAX_COPIES:  # then even element by element is few enough
        counts = tuple(max(1, n // 2) for n in counts)
    rank = draw(st.integers(1, 3))
    dst = [[0] * len(counts) for _ in range(rank)]
    free = [1] * rank
    for k in draw(st.permutations(range(len(counts)))):
        row = draw(st.integers(0, rank - 1))
        dst[row][k] = free[row] = free[row] * draw(st.sampled_from([1, 1, 2, 3]))
        free[row] *= counts[k]
    src_rank = draw(st.integers(1, 3))
    src = [[0] * len(counts) for _ in range(src_rank)]
    for k in range(len(counts)):
        step = draw(st.sampled_from(STEPS)) * draw(st.sampled_from([1, 1, 1, -1]))
        src[draw(st.integers(0, src_rank - 1))][k] = step if draw(st.integers(0, 5)) else 0
    if np.prod([1 + sum(r) for r in dst]) > 20000 or sum(abs(c) for r in src for c in r) > 300:
        counts = tuple(min(n, 5) for n in counts)
    src_map, src_shape = fitting(draw, counts, src)
    dst_map, dst_shape = fitting(draw, counts, dst)
    return Move(counts, src_map, src_shape, dst_map, dst_shape)


def points(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(int(x) for x in p) for p in np.ndindex(*counts)]


@given(moves(), st.data())
@settings(max_examples=150, deadline=None)
def test_copies_carry_out_a_piece(move: Move, data: st.DataObject) -> None:
    if np.prod(move.src_shape) > 2e6 or np.prod(move.dst_shape) > 2e6:
        return
    bits = data.draw(st.sampled_from([16, 32]))
    src = Layout.stick(move.src_shape, bits, data.draw(st.integers(0, len(move.src_shape) - 1)))
    dst = Layout.stick(move.dst_shape, bits, data.draw(st.integers(0, len(move.dst_shape) - 1)))
    at = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    rng = np.random.default_rng(0)
    values = rng.integers(1, 1 << 15, move.src_shape).astype(HOST[bits])
    memory = np.zeros((at[0] + src.sticks) * src.lanes, HOST[bits])
    memory[at[0] * src.lanes :] = src.pack(values).ravel()
    result = np.zeros((at[1] + dst.sticks) * dst.lanes, HOST[bits])
    whole = tuple((0, n) for n in move.counts)
    made = copies(
        move.counts,
        side_of(move.src_map, Region("lx", src, "", (at[0],)), 0, whole),
        side_of(move.dst_map, Region("lx", dst, "", (at[1],)), 0, whole),
        "k",
    )
    written = 0
    for copy in made:
        assert len(copy.counts) <= 6
        for i in points(copy.counts):
            to = copy.dst_base + sum(a * b for a, b in zip(i, copy.dst_strides, strict=True))
            frm = copy.src_base + sum(a * b for a, b in zip(i, copy.src_strides, strict=True))
            assert result[to] == 0, "an element is written twice"
            result[to] = memory[frm]
            written += 1
    want = np.zeros(move.dst_shape, HOST[bits])
    for i in points(move.counts):
        want[move.dst_map.at(i)] = values[move.src_map.at(i)]
    assert written == np.prod(move.counts)
    got = result[at[1] * dst.lanes :].reshape(1, dst.sticks, dst.lanes)
    assert np.array_equal(dst.unpack(got), want)


@pytest.mark.parametrize(
    ("counts", "start", "step", "n"),
    [
        ((64,), 0, 1, 1),  # a whole group is one run
        ((640,), 0, 1, 1),  # whole groups are two dimensions of one copy
        ((128,), 32, 1, 3),  # a head, whole groups, a tail
        ((32,), 1, 2, 1),  # every second lane of one group
        ((10,), 0, 72, 10),  # steps that divide no group: one by one
        ((64,), 0, 3, 3),  # 22 steps of 3 lanes from 0 on, 21 from 2 on, 21 from 1 on
        ((10,), 0, 128, 1),  # steps of whole groups
    ],
)
def test_as_few_copies_as_lanes_allow(
    counts: tuple[int, ...], start: int, step: int, n: int
) -> None:
    src = Side(0, (start,), ((step,),), (128,))
    dst = Side(1, (0, 0), ((1,), (0,)), (64, 64))
    assert len(copies(counts, src, dst, "k")) == n
    beside = Side(0, (start,), ((step,),), (64,))  # groups that lie side by side are one line
    assert len(copies(counts, beside, dst, "k")) == 1


def test_too_many_copies_are_refused() -> None:
    src = Side(0, (0,), ((72,),), (128,))
    dst = Side(1, (0, 0), ((1,), (0,)), (64, 64))
    with pytest.raises(PassError) as caught:
        copies((5000,), src, dst, "k7_restickify")
    assert str(caught.value) == (
        "codegen: k7_restickify needs more than 4096 strided copies on one core; pin a stick "
        "dimension that both its ends share"
    )


# Exchanges ------------------------------------------------------------------------------------


@st.composite
def parts(draw: st.DrawFn, extent: int, cores: int) -> list[tuple[int, int]]:
    """Each core's range of a dimension: a partition, maybe of fewer cores, maybe with copies."""
    owners = draw(st.integers(1, cores))
    cuts = sorted(draw(st.integers(0, extent)) for _ in range(owners - 1))
    ends = [0, *cuts, extent]
    ranges = [(a, b - a) for a, b in pairwise(ends)]
    return [ranges[draw(st.integers(0, owners - 1))] if c >= owners else ranges[c]
            for c in range(cores)]  # fmt: skip


@st.composite
def ownerships(draw: st.DrawFn) -> tuple[list[Box], list[Box]]:
    cores, shape = draw(st.integers(1, 6)), (draw(st.integers(1, 9)), draw(st.integers(1, 5)))
    rows = draw(parts(shape[0], cores))
    own: list[Box] = [(r, (0, shape[1])) for r in rows]
    need = []
    for _ in range(cores):
        box = []
        for extent in shape:
            start = draw(st.integers(0, extent))
            box.append((start, draw(st.integers(0, extent - start))))
        need.append(tuple(box))
    return own, need


def elements(box: Box) -> set[tuple[int, ...]]:
    return {
        tuple(s + i for (s, _), i in zip(box, p, strict=True))
        for p in points(tuple(n for _, n in box))
    }


@given(ownerships())
@settings(max_examples=200)
def test_sends_give_each_core_each_element_once(case: tuple[list[Box], list[Box]]) -> None:
    own, need = case
    stops = len(own) + 1
    sends = plan_sends(own, need, stops)
    assert len({(s.core, s.box, s.offset) for s in sends}) == len(sends), "a multicast was missed"
    for core, box in enumerate(need):
        got: dict[tuple[int, ...], int] = {}
        for send in sends:
            if not send.cores >> core & 1:
                continue
            assert elements(send.box) <= elements(own[send.core])
            assert send.offset == tuple(p - b for (p, _), (b, _) in zip(send.box, box, strict=True))
            for e in elements(send.box):
                assert e not in got, f"core {core} gets {e} twice"
                got[e] = send.core
        assert set(got) == elements(box)
        for e, source in got.items():
            nearest = min(
                ring_distance(c, core, stops) for c, b in enumerate(own) if e in elements(b)
            )
            assert ring_distance(source, core, stops) == nearest


def test_what_nobody_owns_cannot_be_sent() -> None:
    with pytest.raises(LayoutError, match="core 1 needs elements"):
        plan_sends([((0, 4),), ((0, 0),)], [((0, 0),), ((2, 4),)], 3)


def test_equal_pieces_for_several_cores_are_one_multicast() -> None:
    own: list[Box] = [((0, 4),), ((4, 4),), ((0, 0),)]
    sends = plan_sends(own, [((0, 8),)] * 3, 4)
    assert [(s.core, s.box, s.offset, s.cores) for s in sends] == [
        (0, ((0, 4),), (0,), 0b111), (1, ((4, 4),), (4,), 0b111),
    ]  # fmt: skip


# Whole sticks ---------------------------------------------------------------------------------


def sticks_of(operand: Operand, counts: tuple[int, ...], core: int) -> list[int]:
    base = core_value(operand.base, core)
    return [
        base + sum(i * s for i, s in zip(p, operand.strides, strict=True)) for p in points(counts)
    ]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_transfer_moves_each_stick_of_each_box(data: st.DataObject) -> None:
    """Between the whole tensor and one buffer a core, boxes of different sizes, 16 and 32 bits."""
    bits = data.draw(st.sampled_from([16, 32]))
    rank = data.draw(st.integers(1, 3))
    stick = data.draw(st.integers(0, rank - 1))
    shape = tuple(data.draw(st.integers(1, 200 if t == stick else 5)) for t in range(rank))
    boxes: dict[int, Box] = {}
    cores = data.draw(st.integers(1, 4))
    for core in data.draw(st.sets(st.integers(0, cores - 1), min_size=1)):
        box = []
        for t, extent in enumerate(shape):
            grain = 64 if t == stick else 1
            start = data.draw(st.integers(0, (extent - 1) // grain)) * grain
            size = data.draw(st.integers(1, -(-(extent - start) // grain))) * grain
            box.append((start, min(size, extent - start)))
        boxes[core] = tuple(box)
    near = tuple(max(b[t][1] for b in boxes.values()) for t in range(rank))
    far_region = Region("hbm", Layout.stick(shape, bits, stick), "f16", symbol="p0")
    empty = tuple((0, 0) for _ in shape)
    near_region = Region(
        "lx", Layout.stick(near, bits, stick), "f16", tuple(7 + 100 * c for c in range(cores)),
        tuple(boxes.get(c, empty) for c in range(cores)),
    )  # fmt: skip
    hops = {}
    for c, box in boxes.items():
        start = tuple(s for s, _ in box)
        sizes = tuple(n for _, n in box)
        hops[c] = Hop(start, sizes, far_region.at(c, start), near_region.at(c, start))
    (instr,) = box_transfer("load", hops, far_region, near_region, cores)
    assert instr.where == (0 if len(boxes) == cores else sum(1 << c for c in boxes))
    for c, box in boxes.items():
        counts = tuple(core_value(n, c) for n in instr.counts)
        to, frm = (sticks_of(o, counts, c) for o in instr.operands)
        want = set()
        for e in elements(box):
            _, _, (s,), _ = far_region.layout.locate([e])
            inside = tuple(a - b for a, (b, _) in zip(e, box, strict=True))
            _, _, (d,), _ = near_region.layout.locate([inside])
            want.add((int(d) + 7 + 100 * c, int(s)))
        pairs = list(zip(to, frm, strict=True))
        assert len(set(pairs)) == len(pairs)
        assert want <= set(pairs)
        # wide elements move both sticks of a group, of which the tail may hold none
        assert len(pairs) <= len(want) * (bits // 16)


def test_each_core_changes_slots_with_its_own_tiles_only() -> None:
    slots = Slots("src0", 10, 3, 3, 2)
    assert slots.take([0, 1]) == (10, 10, 10)
    assert slots.take([0]) == (13, 13, 10)
    assert slots.take([0, 1, 2]) == (10, 13, 10)
    assert slots.take([]) == (13, 10, 13)
