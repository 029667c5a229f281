"""Addresses for buffers with lifetimes: legal, the lowest there are for a few buffers, near what is
alive at once for many."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.memory import cut_up
from spyrec.ir.errors import CapacityError
from spyrec.ir.parser import parse_module
from spyrec.passes.intervals import Span, apart, first_fit, peak
from spyrec.passes.packing import ORDERS, place
from spyrec.passes.scratchpad import place_buffers

ALIGN = 128


@st.composite
def spans(draw: st.DrawFn, most: int) -> list[Span]:
    """Sizes and lifetimes of few different values, so that they nearly fit one another."""
    made = []
    for i in range(draw(st.integers(1, most))):
        first = draw(st.integers(0, 6))
        size = draw(st.integers(1, 5)) * ALIGN
        made.append(Span(f"s{i}", size, first, first + draw(st.integers(0, 4))))
    return made


def check(made: list[Span], where: dict[str, int], top: int) -> None:
    assert set(where) == {s.name for s in made}
    for i, a in enumerate(made):
        assert where[a.name] >= 0 and where[a.name] % ALIGN == 0
        assert where[a.name] + a.size <= top
        for b in made[:i]:
            if a.first <= b.last and b.first <= a.last:
                low, high = sorted((a, b), key=lambda s: where[s.name])
                assert where[low.name] + low.size <= where[high.name], (a, b)


def lowest(made: list[Span]) -> int:
    """By trying everything: each set of buffers that lie below, and how high they reach at every
    step; the next one lies on them."""
    steps = range(min(s.first for s in made), max(s.last for s in made) + 1)

    @cache
    def rest(todo: frozenset[int], heights: tuple[int, ...]) -> int:
        found = [max(heights)] if not todo else []
        for i in todo:
            s = made[i]
            lives = range(s.first - steps[0], s.last - steps[0] + 1)
            end = max(heights[t] for t in lives) + s.size
            higher = tuple(end if t in lives else h for t, h in enumerate(heights))
            found.append(rest(todo - {i}, higher))
        return min(found)

    return rest(frozenset(range(len(made))), (0,) * len(steps))


@given(spans(5))
@settings(max_examples=40, deadline=None)
def test_the_exhaustive_search_is_one(made: list[Span]) -> None:
    """Two that differ: heights by step, and first fit in every order."""
    assert lowest(made) == min(first_fit(order, 0).top for order in permutations(made))


@given(spans(8))
@settings(max_examples=60, deadline=None)
def test_few_buffers_are_placed_as_low_as_can_be(made: list[Span]) -> None:
    where, top = place(made, 0)
    check(made, where, top)
    assert top == lowest(made)
    assert place(made[::-1], 0) == (where, top)


def by_orders(made: list[Span]) -> int:
    """The best of the orders alone."""
    by_name = sorted(made, key=lambda s: s.name)
    return min(first_fit(sorted(by_name, key=order), 0).top for order in ORDERS)


def test_pieces_of_a_rectangle_are_put_together_again() -> None:
    """What first fit in any of the orders leaves in pieces, the search finds."""
    orders = missed = 0
    for seed in range(16):
        made = cut_up(seed, 24, 80, 50)
        where, top = place(made, 0)
        check(made, where, top)
        assert 80 * ALIGN == peak(made) <= top <= 1.02 * peak(made)
        orders += by_orders(made) > peak(made)
        missed += top > peak(made)
    assert orders >= 4 and missed <= 1


def test_many_pieces_end_near_what_is_alive() -> None:
    ratios = []
    for seed in range(6):
        made = cut_up(seed, 60, 200, 150)
        where, top = place(made, 0)
        check(made, where, top)
        assert top <= by_orders(made)
        ratios.append(top / peak(made))
    assert max(ratios) <= 1.1
    assert sum(ratios) / len(ratios) <= 1.04


def test_where_room_is_given_the_search_goes_on_until_it_fits() -> None:
    """Of placements for which the usual effort does not do, more is found than without room."""
    made = cut_up(4, 24, 80, 50)
    tops = [place(made, 0, room=room).top for room in (None, 80 * ALIGN)]
    assert tops[1] <= tops[0]


@given(spans(12))
def test_groups_share_no_step(made: list[Span]) -> None:
    groups = apart(made)
    assert sorted((s for g in groups for s in g), key=lambda s: s.name) == sorted(
        made, key=lambda s: s.name
    )
    ends = [(min(s.first for s in g), max(s.last for s in g)) for g in groups]
    assert all(a[1] < b[0] for a, b in pairwise(ends))
    for group in groups:
        alive = {t for s in group for t in range(s.first, s.last + 1)}
        assert alive == set(range(min(alive), max(alive) + 1))


TIGHT = """module "m" {{stage = "tile"}} {{
  input %x: tensor<8x64xdl16,
    [shape 8x64 bits 16 | 1:1*64 mem, 0:8*1 mem, 1:64*1 lane | pad undefined], hbm>
{kernels}
  output "y" = %y
}}"""


def test_what_does_not_fit_is_told_with_the_kernels_that_lack_it() -> None:
    text = TIGHT.format(kernels="""
  %y = kernel(%x) {name = "k0", kind = "vec", ops = "exp", stick = 1, tiled = true,
    dims = (("d0", 8), ("d1", 64)), tile = (4, 64), loops = (0,),
    maps = (((0, (1, 0)), (0, (0, 1))),), out_maps = (((0, (1, 0)), (0, (0, 1))),)} :
    tensor<8x64xdl16,
      [shape 8x64 bits 16 | 1:1*64 mem, 0:8*1 mem, 1:64*1 lane | pad undefined], hbm> {
    (%a: tensor<8x64xdl16>):
    for {dim = 0} {
      ():
      %in = load(%a) {operand = 0, fill = 0.0} : tensor<4x64xdl16,
        [shape 4x64 bits 16 | 1:1*64 mem, 0:4*1 mem, 1:64*1 lane | pad undefined], lx>
      %out = compute(%in) {unit = "sfp"} : tensor<4x64xdl16,
        [shape 4x64 bits 16 | 1:1*64 mem, 0:4*1 mem, 1:64*1 lane | pad undefined], lx> {
        (%e: tensor<4x64xf32>):
        %f = exp(%e) : tensor<4x64xf32>
        yield %f
      }
      store(%out) {result = 0}
      yield
    }
    yield
  }""")
    module = parse_module(text)
    assert place_buffers(module, 2048, prefetch=True).body.ops[0].attrs["lx_bytes"] == 2048
    with pytest.raises(CapacityError) as caught:
        place_buffers(module, 2047, prefetch=True)
    assert caught.value.kernels == ("k0",)
    assert caught.value.lacking == 1
