"""Exchanges over the ring: what each core holds afterwards, how long it takes beside a bound that
knows nothing of the plan, and that no core is sent more at once than it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import run_program

from benchmarks.relayout_cases import (
    CORES,
    ELEMENT_BYTES,
    PATTERNS,
    Case,
    patterns,
    random_case,
)
from benchmarks.relayouts import Built, Line, build, faults, measure, spearman
from benchmarks.ring_bound import atoms_of, ring_bound
from benchmarks.ring_direct import ruled_out
from benchmarks.targets import RELAYOUT, compile_pinned
from spyrec.ir.layout import Layout
from spyrec.ir.parser import parse_module
from spyrec.passes.exchange_beside import common_pieces
from spyrec.passes.exchange_owners import rebalanced
from spyrec.passes.exchange_plan import plan_exchange
from spyrec.passes.exchange_price import memory_cycles, ring_cycles
from spyrec.passes.homes import local_layout
from spyrec.passes.kernel import Box, memory_order
from spyrec.passes.ring_order import Order, Timing, improved
from spyrec.passes.ring_schedule import schedule
from spyrec.passes.ring_ways import Fragment, away, evened, hops_of
from spyrec.passes.sends import Ends, plan_sends
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device, parse_device
from spyrec.sim.engine import Engine
from spyrec.sim.errors import ObjectError
from spyrec.sim.isa import Instr, Kernel, Program
from spyrec.sim.ring import Cores, Ring
from spyrec.sim.run import run

DEVICE = load_device()
STOPS = CORES + 1
KNOWN = {case.name: case for case in (*patterns(), *patterns(far=True))}
FAST, ALL = range(60), range(500)
SHARES_A_PORT = 332  # of its vector units' copies with a send, which a plan does not foresee
BOUND_MOST, LARGE_BYTES, SMALL_US = 1.3, 65536, 0.5


@cache
def measured(name: str, room: bool = True) -> Line:
    case = KNOWN[name] if name in KNOWN else random_case(int(name[1:]))
    return measure(case, DEVICE, room)


# The data


@pytest.mark.parametrize("name", KNOWN)
def test_a_pattern_leaves_each_core_with_its_part(name: str) -> None:
    assert [*faults(KNOWN[name], DEVICE)] == []


@pytest.mark.parametrize("seed", FAST)
def test_a_random_exchange_leaves_each_core_with_its_part(seed: int) -> None:
    assert [*faults(random_case(seed), DEVICE)] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", ALL)
def test_five_hundred_random_exchanges(seed: int) -> None:
    case = random_case(seed)
    assert [*faults(case, DEVICE)] == []
    line = measure(case, DEVICE)
    assert line.bound.floor_cycles <= line.cycles
    assert not ruled_out(
        case.source, case.dest, case.stick, ELEMENT_BYTES, DEVICE, line.cycles
    )
    if seed == SHARES_A_PORT:
        assert line.planned == pytest.approx(line.cycles, rel=0.01)
    else:
        assert line.planned == line.cycles


# The time


@pytest.mark.parametrize("name", [name for name, *_ in PATTERNS])
def test_a_pattern_is_near_the_bound(name: str) -> None:
    line = measured(name)
    assert line.bound.floor_cycles <= line.cycles
    if line.case.nbytes > LARGE_BYTES:
        assert line.ratio <= BOUND_MOST
    else:
        assert DEVICE.us(line.cycles) <= SMALL_US


def test_planned_is_simulated_time_and_the_price_is_near() -> None:
    """The price is that of exchanges whose sends land in place: there may be no other room."""
    lines = [measured(name, room=False) for name in (*KNOWN, *(f"#{seed}" for seed in FAST))]
    assert [x.planned for x in lines] == [x.cycles for x in lines]
    moving = [x for x in lines if x.bound.cycles]
    assert len(moving) > 80
    assert spearman([x.price for x in moving], [x.cycles for x in moving]) > 0.97
    assert all(0.4 < x.price / x.cycles < 2.5 for x in moving)
    told = [x.memory < x.price for x in moving]
    assert sum(t == (x.memory < x.cycles) for t, x in zip(told, moving, strict=True)) >= 0.95 * len(
        moving
    )


@given(st.integers(1000, 100000))
@settings(max_examples=10, deadline=None)
def test_any_pair_of_ownerships_leaves_each_core_with_its_part(seed: int) -> None:
    assert [*faults(random_case(seed), DEVICE)] == []


@given(st.integers(1000, 100000))
@settings(max_examples=15, deadline=None)
def test_nothing_beats_the_bound(seed: int) -> None:
    line = measure(random_case(seed), DEVICE)
    assert line.bound.cycles <= line.bound.floor_cycles <= line.cycles


# The bound, by hand


def row(*sizes: int) -> tuple[tuple[tuple[int, int]], ...]:
    """Cores that own so many elements of a row, one after the other."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(((s, n),) if n else ((0, 0),) for s, n in zip(starts, sizes, strict=True))


def test_a_neighbour_can_be_reached_both_ways_round() -> None:
    bound = ring_bound(row(6400), ((((0, 0)),), ((0, 6400),)), 0, 2, DEVICE)
    assert bound.port_bytes == 12800
    assert 6000 < bound.segment_bytes <= 6400  # half of it goes the long way: any w is a bound


def test_a_multicast_counts_once_a_segment() -> None:
    whole = ((0, 6400),)
    bound = ring_bound(row(6400), [whole] * CORES, 0, 2, DEVICE)
    # a tree to all other cores is 31 segments, divided over both directions at best
    assert 12800 * 31 / 66 * 0.98 < bound.segment_bytes <= 12800 * 31 / 60
    atoms, stays = atoms_of(row(6400), [whole] * 3, 0, 2)
    assert atoms == {(1, 0b110): 12800} and stays == {}  # the sender is one of its receivers


def test_the_floor_has_set_up_and_run_beside_the_bytes() -> None:
    """One core sends 12,800 bytes to the core across: at least half pass one of its segments."""
    nothing = (((0, 0),),) * 15
    bound = ring_bound(row(6400), (*nothing, ((0, 0),), ((0, 6400),)), 0, 2, DEVICE)
    payload = 12800 / 128 * 1100 / 1300
    assert bound.cycles == pytest.approx(payload)
    assert bound.floor_cycles == pytest.approx(20 + 9 + payload, rel=0.01)
    one = schedule([sent(0, 16, nbytes=12800)], DEVICE).cycles
    assert bound.floor_cycles <= one <= bound.floor_cycles + 16 * 2


def test_what_stays_takes_vector_unit_and_sender_of_its_core() -> None:
    """Core 0 keeps 640,000 bytes: 64 of them a cycle by one unit and 151 by the other."""
    kept, moved = ((0, 320000),), ((320000, 64),)
    bound = ring_bound((((0, 320064),), ((0, 0),)), (kept, moved), 0, 2, DEVICE)
    rate = 128 * 1300 / 1100
    assert bound.cycles < 2
    assert bound.floor_cycles == pytest.approx(29 + 640000 / (64 + rate), rel=0.02)


def test_another_holder_may_bring_what_stays() -> None:
    """Core 5 holds the same 640,000 bytes: its sender may bring some over a segment into core 0."""
    kept, moved = ((0, 320000),), ((320000, 64),)
    nothing = ((0, 0),)
    own = (((0, 320064),), *[nothing] * 4, kept)
    bound = ring_bound(own, (kept, moved), 0, 2, DEVICE)
    rate = 128 * 1300 / 1100
    assert 640000 / (64 + 2 * rate) * 0.98 < bound.floor_cycles < 29 + 640000 / (64 + 2 * rate) + 40


# Plans


def sent(core: int, *to: int, nbytes: int = 4096) -> Fragment:
    return Fragment(core, sum(1 << c for c in to), nbytes)


def test_ways_are_evened() -> None:
    crowd = [sent(c, 12) for c in range(12)]
    by_short, by_even = (
        [hops_of(f, STOPS) for f in some] for some in (crowd, evened(crowd, DEVICE)[0])
    )
    assert all(down == 0 for _, down in by_short)
    assert 4 <= sum(down > 0 for _, down in by_even) <= 8


def test_a_schedule_sends_each_fragment_once_and_waits_for_earlier_ones() -> None:
    fragments = [sent(c, (c + 5) % 32, (c + 9) % 32) for c in range(32)]
    made = schedule(fragments, DEVICE)
    assert sorted(s.index for s in made.sendings) == [*range(32)]
    assert all(n < i for i, s in enumerate(made.sendings) for n in (*s.after, *s.landed))
    assert schedule(fragments, DEVICE) == made
    assert schedule([], DEVICE).cycles == 0


def test_of_two_that_pass_a_segment_the_later_waits_for_the_other_to_begin() -> None:
    """Core 0 sends over core 1, whose payload keeps the segments from there for 27 cycles."""
    fragments, hops = [sent(0, 3), sent(1, 4)], [(3, 0), (3, 0)]
    timing = Timing(fragments, DEVICE)
    later, first = timing.schedule(Order([1, 0], hops)).sendings[::-1]
    assert (first.index, first.after, first.landed) == (1, (), ())
    assert (later.index, later.after, later.landed) == (0, (0,), ())
    # the tail of the first leaves segment 1 when it has been there for its length, 2 hops before
    # it arrives; so the other's, one hop behind, arrives a payload and no hop later
    payload = 4096 / 128 * 1100 / 1300
    assert later.arrives - first.arrives == pytest.approx(payload - 2 * 1100 / 1300, abs=1)


def test_what_the_vector_units_copy_counts_from_one_to_the_next() -> None:
    twice = [replace(sent(c, 8), tails=((8, 500),)) for c in (2, 14)]  # from both sides
    timed = Timing(twice, DEVICE).run(Order([0, 1], [(6, 0), (0, 6)]))
    assert timed is not None
    assert timed.arrives[0] == timed.arrives[1]
    assert timed.ticks == timed.arrives[0] + 2 * 500 * DEVICE.ring.clock_mhz


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_search_finds_no_worse_order_of_the_same_fragments(seed: int) -> None:
    rng = Random(seed)
    fragments = [
        sent(c, *rng.sample([d for d in range(CORES) if d != c], 3), nbytes=128 << rng.randrange(7))
        for c in rng.choices(range(CORES), k=24)
    ]
    begun = Order([*range(24)], [hops_of(f, STOPS) for f in fragments])
    timing = Timing(fragments, DEVICE)
    found = improved(timing, begun, 3000, 0)
    assert sorted(found.numbers) == [*range(24)]
    assert timing.cycles(found) <= timing.cycles(begun)
    for f, (up, down) in zip(fragments, found.hops, strict=True):
        assert all(n <= up or STOPS - n <= down for n in away(f, STOPS))
    assert improved(timing, begun, 3000, 0) == found


def test_a_better_order_is_found() -> None:
    """R07's 32 payloads of 8 KiB took 356 cycles in the best list."""
    assert measured("R07").cycles < 340


def test_an_owner_that_is_idle_sends_instead_of_a_busy_one() -> None:
    """Cores 0 and 16 hold all; core 0 is the nearest of the four that want different parts."""
    whole, nothing = ((0, 65536),), ((0, 0),)
    own = tuple(whole if c in (0, 16) else nothing for c in range(CORES))
    need = tuple(((c * 16384 - 16384, 16384),) if 1 <= c <= 4 else nothing for c in range(CORES))
    like = Layout.stick((65536,), 16, 0)
    ends = Ends(local_layout(like, own), local_layout(like, need))
    nearest = plan_sends(own, need, STOPS)
    assert {s.core for s in nearest} == {0}
    shared = rebalanced(nearest, own, need, ends, DEVICE)
    assert shared is not None and sorted(s.box for s in shared) == sorted(s.box for s in nearest)
    assert sorted(s.core for s in shared) == [0, 0, 16, 16]
    alone = rebalanced(nearest, own[:16], need, ends, DEVICE)
    assert alone is None  # of one owner there is nothing to choose


def test_one_send_takes_what_the_device_says() -> None:
    want = DEVICE.ring.send_cycles(4096, 3, DEVICE.clock_mhz) + DEVICE.ring.run_cycles
    assert schedule([sent(2, 5)], DEVICE).cycles == want


def test_what_stays_is_copied_beside_the_ring() -> None:
    own = tuple(((c * 64, 64), (0, 512)) for c in range(8))
    need = tuple(((0, 512), (c * 64, 64)) for c in range(8))
    like = Layout.stick((512, 512), 16, 1)
    ends = Ends(local_layout(like, own), local_layout(like, need))
    plan = plan_exchange(own, need, ends, DEVICE)
    assert [s.core for s in plan.copies] == [*range(8)] and len(plan.sends) == 56
    whole = {s for s in plan_sends(own, need, STOPS) if s.stays}
    assert whole == set(plan.copies)


def test_of_several_owners_the_idle_one_may_send() -> None:
    whole = ((0, 640),)
    nothing = ((0, 0),)
    own, need = (whole, whole, nothing, nothing), (nothing, nothing, ((0, 320),), ((320, 320),))
    assert {s.core for s in plan_sends(own, need, STOPS)} == {1}
    assert {s.core for s in plan_sends(own, need, STOPS, spread=True)} == {0, 1}


SCATTERED = """module "scatter" {
  input %x: tensor<1x4096xdl16>
  %neg = neg(%x) : tensor<1x4096xdl16>
  %abs = abs(%neg) : tensor<1x4096xdl16>
  output "y" = %abs
}"""


CUTS = ({"parts": {"d1": 1}}, {"parts": {"d1": 32}})


def test_what_a_slow_ring_would_bring_piece_by_piece_goes_through_memory() -> None:
    """A set-up takes as long as store and load of all."""
    text = DEVICE.text.replace("start_cycles = 20 ", "start_cycles = 2000 ")
    slow = parse_device(text)
    assert slow.ring.start_cycles == 2000
    done = compile_pinned(SCATTERED, CORES, {}, CUTS, slow)
    (made,) = (t for name, t in done.plan["tensors"].items() if name.startswith("neg"))
    assert "cycles over the ring" in made["why"]["card_memory"] and made["space"] == "hbm"
    kept = compile_pinned(SCATTERED, CORES, {"neg": "lx"}, CUTS, slow)
    there, here = (run(p.program, slow, timing_only=True).total_cycles for p in (done, kept))
    assert there < here


def test_what_one_core_would_send_piece_by_piece_lands_beside_the_buffers() -> None:
    """32 fragments from one core, 20 cycles of set-up each, would take longer than store and load;
    few that are multicast do not."""
    done = compile_pinned(SCATTERED, CORES, {}, CUTS, DEVICE)
    (there,) = (op for op in done.module.body.ops if op.name == "relayout")
    assert "beside" in there.attrs
    stored = compile_pinned(SCATTERED, CORES, {"neg": "hbm"}, CUTS, DEVICE)
    ours, other = (run(p.program, DEVICE, timing_only=True).total_cycles for p in (done, stored))
    assert ours < other
    outcome = run_program(parse_module(SCATTERED), done.program)  # no hazard, poisoned
    assert outcome.relative <= 0.01


def test_buffers_are_ordered_for_long_runs() -> None:
    """2 MiB among 8 cores, cut along the outer and then along two dimensions."""
    cuts = ({"parts": {"d0": 8}}, {"parts": {"d0": 2, "d1": 4}})
    plain, ordered = (
        compile_pinned(RELAYOUT, 8, {"neg": "lx"}, cuts, DEVICE, reorder)
        for reorder in (False, True)
    )
    (there,) = (op for op in ordered.module.body.ops if op.name == "relayout")
    assert there.attrs["order"] != memory_order(Layout.stick((128, 2, 512), 16, 2))
    slow, fast = (run(p.program, DEVICE, timing_only=True).total_cycles for p in (plain, ordered))
    assert fast < slow - 3000
    outcome = run_program(parse_module(RELAYOUT), ordered.program)  # no hazard, poisoned
    assert outcome.relative <= 0.01


def test_nothing_to_move_is_free() -> None:
    like = Layout.stick((64, 64), 16, 1)
    own = (((0, 64), (0, 64)),)
    assert ring_cycles(like, own, own, DEVICE) == 0
    assert memory_cycles(like, own, [own], DEVICE) > 0


# Beside the buffers


@pytest.mark.parametrize("name", ["#46", "#225", "#263", "#303", "#489"])
def test_room_beside_the_buffers_makes_it_faster(name: str) -> None:
    """Set-up of many fragments, parts that overlap on neighbours, short runs."""
    with_room, without = measured(name), measured(name, room=False)
    assert with_room.cycles < 0.95 * without.cycles
    assert with_room.planned == pytest.approx(with_room.cycles, rel=0.01)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_common_pieces_are_all_points_once_with_all_that_want_them(data: st.DataObject) -> None:
    side = st.tuples(st.integers(0, 5), st.integers(1, 4))
    boxes = data.draw(st.lists(st.tuples(side, side), min_size=1, max_size=5))
    found: dict[tuple[int, int], list[int]] = {}
    for box, cores in common_pieces([*enumerate(boxes)]) or []:
        for point in points(box):
            assert point not in found
            found[point] = cores
    want: dict[tuple[int, int], list[int]] = {}
    for core, box in enumerate(boxes):
        for point in points(box):
            want.setdefault(point, []).append(core)
    assert found == want


def points(box: Box) -> list[tuple[int, int]]:
    (a, n), (b, m) = box
    return [(x, y) for x in range(a, a + n) for y in range(b, b + m)]


def test_parts_that_overlap_go_as_their_common_pieces() -> None:
    own = (((0, 65536),), *[((0, 0),)] * 31)
    need = (((0, 0),), ((0, 40960),), ((24576, 40960),), *[((0, 0),)] * 29)
    like = Layout.stick((65536,), 16, 0)
    ends = Ends(local_layout(like, own), local_layout(like, need))
    plan = plan_exchange(own, need, ends, DEVICE, beside=True)
    both = [s for s in plan.sends if s.cores == 0b110]
    assert sum(s.sizes[0] for s in both) == 16384 and all(s.beside is not None for s in both)
    assert sum(s.sizes[0] for s in plan.sends) == 65536
    assert plan.cycles < plan_exchange(own, need, ends, DEVICE).cycles


def altered(built: Built, change: Callable[[str, Instr], Instr]) -> Program:
    """The program with other instructions in its exchange."""
    before, kernel, after = built.program.kernels
    streams = {
        unit: tuple(change(unit, i) if isinstance(i, Instr) else i for i in stream)
        for unit, stream in kernel.streams.items()
    }
    return replace(built.program, kernels=(before, replace(kernel, streams=streams), after))


@pytest.mark.parametrize("name", ["#46", "#303"])
def test_copies_that_do_not_wait_are_found(name: str) -> None:
    built = built_of(name)

    def hasty(unit: str, instr: Instr) -> Instr:
        turns = tuple(w for w in instr.waits if w.token == 0)
        return replace(instr, waits=turns) if unit == "sfp" else instr

    hazards = find_hazards(altered(built, hasty), DEVICE)
    assert any("race" in str(h) for h in hazards)


def test_copies_from_elsewhere_are_found() -> None:
    def astray(unit: str, instr: Instr) -> Instr:
        if instr.op != "shuf":
            return instr
        there, here = instr.operands
        base = here.base
        moved = base + 64 if isinstance(base, int) else tuple(b + 64 for b in base)
        return replace(instr, operands=(there, replace(here, base=moved)))

    assert find_hazards(altered(built_of("#46"), astray), DEVICE)


# The machine


def test_the_longer_way_is_taken_when_asked_for() -> None:
    ring = Ring(DEVICE.ring, CORES, DEVICE.clock_mhz)
    assert ring.reach(0, 1 << 3) == (3, 0)
    assert ring.reach(0, 1 << 3, (3,)) == (0, 30)
    assert ring.reach(0, 1 << 3 | 1 << 30, (30,)) == (30, 0)
    near, far = ring.send(0, 0, 128, 1 << 3), ring.send(100, 0, 128, 1 << 3, (3,))
    assert far[1] - 100 - near[1] == -(-27 * 2 * 1100 // 1300)
    assert ring.link_bytes[0][:4] == [128, 128, 128, 0] and sum(ring.link_bytes[1]) == 128 * 30


def test_only_receivers_are_reached_the_longer_way() -> None:
    built = build(KNOWN["R11"], DEVICE)
    sends = [i for i in built.program.kernels[1].streams["rs"] if isinstance(i, Instr)]
    turned = next(i for i in sends if "far" in i.imm)
    everywhere = Instr(**{**vars(turned), "imm": {**turned.imm, "far": (1 << CORES) - 1}})
    kernel = Kernel("k", {"rs": (everywhere,)}, cores=CORES)
    program = built.program
    wrong = type(program)(**{**vars(program), "kernels": (program.kernels[0], kernel)})
    with pytest.raises(ObjectError, match="to be reached the longer way, the send goes to"):
        run(wrong, DEVICE, timing_only=True)


@pytest.mark.parametrize("name", ["R01", "R13", "R18", "#3", "#36"])
def test_no_core_is_sent_more_at_once_than_it_takes(name: str) -> None:
    """And what the segments carried is what was sent, times its hops."""
    built = built_of(name)
    engine = Engine(built.program, DEVICE)
    send, flights, carried = engine.ring.send, [], 0

    def watched(
        now: int, core: int, nbytes: int, mask: int, far: Cores | None = None
    ) -> tuple[int, int]:
        nonlocal carried
        left, arrived = send(now, core, nbytes, mask, far)
        flights.append((now, arrived, mask))
        carried += nbytes * sum(engine.ring.reach(core, mask, far or ()))
        return left, arrived

    engine.ring.send = watched  # type: ignore[method-assign]
    engine.run()
    assert sum(map(sum, engine.ring.link_bytes)) == carried > 0
    for core in range(CORES):
        mine = [(a, b) for a, b, mask in flights if mask >> core & 1]
        for at, _ in mine:
            assert sum(a <= at < b for a, b in mine) <= DEVICE.ring.fragments_max


def built_of(name: str) -> Built:
    case: Case = KNOWN[name] if name in KNOWN else random_case(int(name[1:]))
    return build(case, DEVICE)
