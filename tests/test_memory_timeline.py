"""What slows memory, units and the scratchpad port, one mechanism at a time: timelines on the small
machine, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_machine import COPY, SMALL, Recorder, acc, hbm, kernel, lx, op, program

from spyrec.sim.bus import Bus
from spyrec.sim.device import SPREAD_STEPS, DeviceSpec
from spyrec.sim.isa import Instr, Kernel, Loop, MicroProgram
from spyrec.sim.run import run

# 8 sticks: 1024 bytes hold the bus 8 cycles and their unit 8 more.
LOAD = op("load", (8,), (lx(0, 1), hbm("x", 0, 1)))
STORE = op("store", (8,), (hbm("y", 0, 1), lx(100, 1)))
# 8 rows x 64 x 64 = 32768 macs = 32 cycles, and 10 to fill; 9216 bytes are 878 shares of the port.
MM = op("mm", (8, 1, 1, 1, 1, 1), (acc(0, 1), lx(0, 1), lx(200)))


def with_hbm(**changes: int) -> DeviceSpec:
    return replace(SMALL, hbm=replace(SMALL.hbm, **changes))


def timed(k: Kernel, device: DeviceSpec = SMALL) -> Recorder:
    recorder = Recorder()
    run(program(k), device, timing_only=True, observer=recorder)
    return recorder


def spans(k: Kernel, device: DeviceSpec = SMALL) -> list[tuple[int, int]]:
    return [s[3:] for s in timed(k, device).slices]


def test_writing_has_a_rate_of_its_own() -> None:
    slower = with_hbm(write_bytes_per_cycle=64)
    assert spans(kernel(ms=(STORE,)), slower) == [(0, 16 + 8)]
    assert spans(kernel(ml=(LOAD,)), slower) == [(0, 8 + 8)]


@pytest.mark.parametrize(("stride", "bus_cycles"), [(0, 16), (8, 8)])
def test_what_the_loops_read_again_comes_slower(stride: int, bus_cycles: int) -> None:
    again = op("load", (8,), (lx(0, 1), hbm("x", 0, 1, loops=(stride,))))
    seen = timed(kernel(ml=(Loop(2, (again,)),)), with_hbm(again_bytes_per_cycle=64))
    held = 8
    first = 8 + held
    assert [s[3:] for s in seen.slices] == [(0, first), (first, first + bus_cycles + held)]
    assert seen.done[0].bus_busy_cycles == 8 + bus_cycles


def test_a_single_trip_reads_nothing_again() -> None:
    assert spans(kernel(ml=(Loop(1, (LOAD,)),)), with_hbm(again_bytes_per_cycle=64)) == [(0, 16)]


def test_the_cores_of_a_half_share_a_link() -> None:
    # 8 cycles of bus each, for cores 0, 2, 1 and 3. The links pass 64 bytes a cycle: the first
    # half's is taken from 0 to 16 and to 32; the other's from 8 to 24 and to 40. Then 8 held.
    half = with_hbm(side_bytes_per_cycle=64)
    assert spans(kernel(4, ml=(LOAD,)), half) == [(0, 24), (0, 32), (0, 40), (0, 48)]
    # The bus itself is free after 32, for a core of the first half as for writes.
    assert spans(kernel(4, ms=(STORE,)), half) == [(0, 16), (0, 24), (0, 32), (0, 40)]


def test_what_goes_to_several_cores_goes_both_ways_round() -> None:
    several = replace(LOAD, imm={"cores": 0b1110}, where=0b0010)
    assert spans(kernel(4, ml=(several,)), with_hbm(side_bytes_per_cycle=64)) == [(0, 16)]


def test_the_link_of_a_half_that_waits_alone_turns_too() -> None:
    # 2048 bytes are being read when 1024 are to be written: a batch, two turns of 10 cycles. With
    # reads on one half only its link adds 6; the reads of the other half would pass meanwhile.
    turning = replace(SMALL.hbm, side_turn_cycles=6)
    for other, turns in ((0, 26), (2, 20)):
        bus = Bus(turning, 4)
        assert bus.transfer(0, 0, 1024, 1024, False) == 8
        assert bus.transfer(0, other, 1024, 1024, False) == 16
        assert bus.transfer(0, 0, 1024, 1024, True) == 16 + 8 + turns


def test_short_writes_are_gathered_to_a_burst() -> None:
    # 256 bytes are a quarter of a burst and of its two turns of 10 cycles.
    bus = Bus(SMALL.hbm, 4)
    assert bus.transfer(0, 0, 1024, 1024, False) == 8
    assert bus.transfer(0, 2, 256, 256, True) == 8 + 2 + 20 // 4


def test_no_batch_is_longer_than_the_controller_makes_it() -> None:
    bus = Bus(SMALL.hbm, 4)
    assert bus.transfer(0, 0, 2048, 2048, False) == 16
    assert bus.transfer(0, 2, 2048, 2048, True) == 16 + 16 + 2 * 20  # two batches of 1024


def test_a_core_has_a_window_of_bytes_on_their_way() -> None:
    # 1024 bytes of 100 cycles each, 3200 at a time: held 32 after 8 of bus. Each arrives 100 after
    # it left the bus, at 8 and 48; the other core's lie between them.
    narrow = with_hbm(window_bytes=3200)
    seen = timed(kernel(2, ml=(Loop(2, (LOAD,)),)), narrow)
    assert [(s[0], *s[3:]) for s in seen.slices] == [
        (0, 0, 40), (1, 0, 48), (0, 40, 80), (1, 48, 88),
    ]
    assert seen.done[0].end_cycle == 56 + 100
    assert spans(kernel(ms=(STORE,)), narrow) == [(0, 40)]


@pytest.mark.parametrize("unit", ["ml", "ms"])
def test_the_requests_of_a_half_pass_one_by_one(unit: str) -> None:
    # 8 runs of 128 bytes, 20 cycles each for the request: 160 for the first core of a half, 320 for
    # the second; the bus, with 8 of payload and 21 for short runs, is done long before. 8 held.
    asking = with_hbm(side_request_cycles=20)
    there, here = hbm("x", 0, 9), lx(0, 1)
    operands = (here, there) if unit == "ml" else (there, here)
    step = op("load" if unit == "ml" else "store", (8,), operands)
    assert spans(kernel(4, **{unit: (step,)}), asking) == [(0, 168), (0, 168), (0, 328), (0, 328)]


def test_runs_that_are_near_are_asked_for_together() -> None:
    # 8 cycles of payload and half of 21 for short runs, twice; 8 held.
    load = op("load", (8,), (lx(0, 1), hbm("x", 0, 2)))
    assert spans(kernel(2, ml=(load,)), with_hbm(side_request_cycles=20)) == [(0, 27), (0, 45)]


def test_what_several_cores_take_is_asked_for_once() -> None:
    several = op("load", (8,), (lx(0, 1), hbm("x", 0, 9)), imm={"cores": 0b1110}, where=0b0010)
    asking = with_hbm(side_request_cycles=20)
    assert spans(kernel(4, ml=(several,)), asking) == [(0, 8 + 21 + 8)]


def test_after_a_latency_all_bytes_have_come() -> None:
    # 4096 bytes of 100 cycles each, 1024 at a time: the last have come 100 after 32 of bus, and not
    # after 400; the next transfer of the core starts then.
    large = op("load", (32,), (lx(0, 1), hbm("x", 0, 1)))
    assert spans(kernel(ml=(large,)), with_hbm(window_bytes=1024)) == [(0, 32 + 100)]


@pytest.mark.parametrize(
    ("gap", "requests", "waits"),
    [(1, 0, 0), (2, 5.25, 40), (4, 10.5, 80), (7, 10.5, 80), (8, 21, 80)],
)
def test_cores_that_share_a_load_wait_for_one_another_at_each_short_run(
    gap: int, requests: float, waits: int
) -> None:
    # 8 runs of 128 bytes, 1/8 of a burst, cost the bus 7/8 of 3 cycles each, half when the next
    # begins in the same burst of 1024, and hold cores that share the load for 10 each; both half
    # again when two of them begin in the same granule of 512. One of 1024 is a burst. 8 of payload,
    # 8 held behind the bus.
    waiting = with_hbm(shared_run_cycles=10, granule_bytes=512)
    load = op("load", (8,), (lx(0, 1), hbm("x", 0, gap)), where=0b0010)
    bus = 8 + ceil(requests)
    assert spans(kernel(4, ml=(load,)), waiting) == [(0, bus + 8)]
    several = replace(load, imm={"cores": 0b1110})
    assert spans(kernel(4, ml=(several,)), waiting) == [(0, max(bus + 8, waits))]


@pytest.mark.parametrize(("most", "turns"), [(3, 1), (2, 2), (1, 3)])
def test_more_cores_than_take_a_load_at_once_take_it_in_turns(most: int, turns: int) -> None:
    # Three cores take 8 runs of 128 bytes, at each of which a turn waits 10, or a burst of 1024,
    # which each turn takes 8 cycles of bus; 8 held behind it.
    waiting = with_hbm(shared_run_cycles=10, together_max=most)
    load = op("load", (8,), (lx(0, 1), hbm("x", 0, 8)), imm={"cores": 0b1110}, where=0b0010)
    burst = replace(load, operands=(lx(0, 1), hbm("x", 0, 1)))
    seen = timed(kernel(4, ml=(load,)), waiting)
    assert [s[3:] for s in seen.slices] == [(0, max(turns * 29 + 8, turns * 80))]
    assert seen.done[0].bus_busy_cycles == turns * 29
    assert spans(kernel(4, ml=(burst,)), waiting) == [(0, turns * 8 + 8)]


@pytest.mark.parametrize(("others", "after"), [(0b1100, 0), (0b0110, 80)])
def test_a_core_waits_for_others_in_one_load_at_a_time(others: int, after: int) -> None:
    # Two loads of 8 short runs, 29 cycles of bus each, at whose runs their cores wait 80. Core 1
    # takes both or one. Bursts, of 8 cycles behind the loads of the cores before, wait for nobody.
    waiting = with_hbm(shared_run_cycles=10)
    load = op("load", (8,), (lx(0, 1), hbm("x", 0, 8)), imm={"cores": 0b0011}, where=0b0001)
    other = replace(load, imm={"cores": others}, where=0b0100)
    burst = op("load", (8,), (lx(0, 1), hbm("x", 0, 1)), imm={"cores": 0b1010}, where=0b1010)
    seen = timed(kernel(4, ml=(load, other, burst)), waiting)
    ends = {s[0]: s[4] for s in seen.slices}
    assert ends == {0: 80, 1: 29 + 29 + 8 + 8, 2: after + 80, 3: 29 + 29 + 8 + 8 + 8}


@pytest.mark.parametrize(
    ("apart", "opened", "waits"), [(0, 1, 0), (1, 4, 800), (2, 2, 800), (4, 1, 0)]
)
def test_cores_that_read_parts_of_a_granule_wait_for_each_part(
    apart: int, opened: int, waits: int
) -> None:
    # 8 runs of 128 bytes, each in another burst, cost the bus 21 cycles: twice that when two
    # cores read from each granule of 512, four times when four do, and a latency of 100 each before
    # the next is asked for.
    load = op("load", (8,), (lx(0, 1), hbm("x", (0, apart), 8)))
    ends = spans(kernel(2, ml=(load,)), with_hbm(granule_bytes=512))
    bus = 8 + opened * 21
    assert ends == [(0, max(bus + 8, waits)), (0, max(2 * bus + 8, waits))]


def test_runs_that_come_from_behind_are_as_near() -> None:
    turned = op("load", (8,), (lx(7, -1), hbm("x", 14, -2)))
    assert spans(kernel(ml=(turned,))) == [(0, 8 + ceil(21 / 2) + 8)]


# Every second stick of 16, which are not one piece.
SCATTERED = op("load", (8,), (lx(0, 1), hbm("x", 0, 2)))
# On each of the four cores 12 cycles a burst of 1024 bytes far apart; short runs cost nothing here.
FAR = with_hbm(far_cycles=12, request_cycles=0)


def read_from(load: Instr, *places: int) -> Instr:
    source = replace(load.operands[1], base=places if len(places) > 1 else places[0])
    return replace(load, operands=(load.operands[0], source))


@pytest.mark.parametrize(
    ("sticks", "lost"), [(0, 0), (4, 0), (8, 0), (16, 3), (32, 6), (64, 6)]
)
def test_cores_that_read_far_apart_open_more_rows(sticks: int, lost: int) -> None:
    # Two of four cores: a burst loses 6 cycles when they are 4096 bytes apart, nothing at 1024 and
    # half of it at 2048.
    seen = timed(kernel(2, ml=(read_from(SCATTERED, 0, sticks),)), FAR)
    assert seen.done[0].bus_busy_cycles == 2 * (8 + lost)
    assert [s[3:] for s in seen.slices] == [(0, 8 + lost + 8), (0, 2 * (8 + lost) + 8)]


@pytest.mark.parametrize(("readers", "lost"), [(2, 6), (3, 9), (4, 12)])
def test_the_fewer_cores_read_the_fewer_rows_they_close(readers: int, lost: int) -> None:
    load = read_from(SCATTERED, *range(0, 32 * readers, 32))
    seen = timed(kernel(readers, ml=(load,)), FAR)
    assert seen.done[0].bus_busy_cycles == readers * (8 + lost)


@pytest.mark.parametrize(
    ("counts", "near", "strides", "loop", "lost"),
    [
        ((8,), (1,), (1,), 8, 0),  # 8 sticks and the next 8
        ((2, 4), (4, 1), (8, 1), 4, 0),  # half of two rows and the other half
        ((8,), (1,), (1,), 16, 6),  # 8 are left out in between
        ((8,), (1,), (2,), 16, 6),  # every second stick
        ((2, 4), (4, 1), (2, 2), 8, 6),  # which reach as far as they are many, some twice
        ((8,), (1,), (1,), 4, 0),  # the last 4 again with the next 4
        ((8,), (1,), (1,), 0, 0),  # and all 8 again
    ],
)
def test_a_core_that_reads_one_piece_goes_on_in_the_rows_it_opened(
    counts: tuple[int, ...], near: tuple[int, ...], strides: tuple[int, ...], loop: int, lost: int
) -> None:
    load = op("load", counts, (lx(0, *near), hbm("x", 0, *strides, loops=(loop,))))
    seen = timed(kernel(2, ml=(Loop(2, (read_from(load, 0, 64),)),)), FAR)
    assert seen.done[0].bus_busy_cycles == 2 * 2 * (8 + lost)


def test_loads_of_one_tensor_are_one_piece_or_not_together() -> None:
    near, next_, far = (read_from(LOAD, at, at + 64) for at in (0, 8, 16))
    for loads, lost in (((near, next_), 0), ((next_, near), 0), ((near, far), 6)):
        seen = timed(kernel(2, ml=loads), FAR)
        assert seen.done[0].bus_busy_cycles == 2 * 2 * (8 + lost)


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_farther_never_costs_less(one: int, other: int) -> None:
    near, far = sorted((one, other))
    spread = SMALL.hbm.spread
    assert 0 <= spread(near) <= spread(far) <= SPREAD_STEPS
    assert (spread(SMALL.hbm.near_bytes), spread(SMALL.hbm.far_bytes)) == (0, SPREAD_STEPS)


def test_every_block_of_weights_fills_the_array() -> None:
    two = replace(MM, counts=(8, 1, 1, 1, 2, 1), imm={"k_valid": 128})
    # 8 rows x 128 x 64 = 64 cycles and twice 10; the port needs (8 * 2 + 128) * 128 / 256 = 72.
    assert spans(kernel(pt=(two,))) == [(0, 64 + 2 * 10)]


def reduction(**imm: int) -> Instr:
    return op("vec", (8,), (lx(100), lx(0, 1)), imm={"reduce": 1, "axes": 1, **imm})


def test_lanes_are_folded_for_every_group_that_is_read() -> None:
    # 8 groups of one cycle, 2 at a time, and 4 to start; 12 more a group when lanes are folded.
    assert spans(kernel(sfp=(reduction(lanes=1),))) == [(0, 8 * (1 + 12) // 2 + 4)]


@pytest.mark.parametrize(("sums", "cycles"), [(1, 16), (2, 16), (4, 16), (8, 32)])
def test_an_addition_waits_for_the_one_before_in_its_sum(sums: int, cycles: int) -> None:
    # 8 groups go into each sum: one takes 4 cycles of pipeline a group, 2 corelets share them.
    # Up to four sums run side by side; more are work enough, a cycle a group.
    groups = op("vec", (8, sums), (lx(100, 0, 1), lx(0, sums, 1)), imm={"reduce": 1, "axes": 1})
    assert spans(kernel(sfp=(groups,))) == [(0, cycles + 4)]


def test_what_finishes_a_fold_is_no_other_program() -> None:
    switching = replace(SMALL, sfp=replace(SMALL.sfp, switch_cycles=30))
    finish = op("vec", (8,), (lx(100, 1), lx(0, 1, splat=True)), imm={"program": 1})
    fold = reduction(lanes=1)
    k = replace(kernel(sfp=(fold, finish, fold, reduction(reduce=2))),
                programs=(COPY, MicroProgram(1)))  # fmt: skip
    took = [end - start for start, end in spans(k, switching)]
    assert took == [56, took[1], 56, 30 + 20]  # only the last fold is another
    assert took[1] < 30


@pytest.mark.parametrize(
    ("distance", "run", "cycles"),
    [
        (32, 8, 4 * (8 + 100)),  # four bursts in one bank: each waits for the one before
        (64, 8, 4 * (8 + 100)),
        (48, 8, 4 * 8 + 32),
        (32, 4, 4 * 4 + 4 * 3 // 2 + 16),  # half bursts have requests of their own, half of 3 each
    ],
)
def test_runs_in_one_bank_come_one_after_the_other(distance: int, run: int, cycles: int) -> None:
    load = op("load", (4, run), (lx(0, run, 1), hbm("x", 0, distance, 1)))
    assert spans(kernel(ml=(load,)), with_hbm(bank_bytes=4096)) == [(0, cycles)]


@pytest.mark.parametrize("splats", [0, 1, 2])
def test_a_lane_is_spread_for_every_group_that_uses_it(splats: int) -> None:
    spreading = replace(SMALL, sfp=replace(SMALL.sfp, lane_spread_cycles=8))
    sources = [lx(16 * i, 1, splat=i < splats) for i in range(2)]
    vec = op("vec", (8,), (lx(100, 1), *sources))
    both = replace(kernel(sfp=(vec,)), programs=(MicroProgram(2),))
    # Three operands of 8 groups are 3072 bytes, 12 cycles of the port.
    assert spans(both, spreading) == [(0, max(8 * (1 + 8 * splats) // 2 + 4, 12))]


def test_another_program_is_taken_up_first() -> None:
    switching = replace(SMALL, sfp=replace(SMALL.sfp, switch_cycles=30))
    same = op("vec", (8,), (lx(100, 1), lx(0, 1)))  # 8 groups, 2 a cycle, and 4 to start
    other = replace(same, imm={"program": 1})
    k = replace(kernel(sfp=(Loop(2, (same, other, other)),)), programs=(COPY, MicroProgram(1)))
    assert spans(k, switching) == [
        (0, 8), (8, 46), (46, 54),
        (54, 92), (92, 130), (130, 138),
    ]  # fmt: skip


def test_a_crowded_port_is_free_again_as_each_unit_ends() -> None:
    # 512 groups: 260 cycles of work, but 131072 bytes, so that it asks for all 1024 shares.
    vec = op("vec", (512,), (lx(300, 1), lx(300, 1)))
    assert spans(kernel(ml=(LOAD,), pt=(MM,), sfp=(vec,))) == [
        (0, 16),  # 1024 bytes in 16 cycles are 256 shares
        # floor(16 * 1024 / (256 + 878)) = 14 of its 42 beside the load, 28 by itself
        (0, 44),
        # floor(16 * 1024 / 2158) = 7 beside both, floor(28 * 1024 / 1902) = 15 beside mm, then 490
        (0, 44 + 512 - 7 - 15),
    ]
