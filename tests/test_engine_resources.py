"""The memory bus by itself: rates, fairness, turnarounds, conservation; and prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL

from spyrec.sim.bus import Bus
from spyrec.sim.device import load_device

SPYRE = load_device("spyre")

transfers = st.lists(
    st.tuples(
        st.integers(0, 500), st.integers(0, 3), st.integers(1, 40), st.integers(1, 64),
        st.booleans(),
    ),
    min_size=1, max_size=40,
)


# Writing at half the rate of reading, and either half of the ring takes no more than three eighths
# and a request in 5 cycles.
SLOWER = replace(
    SMALL.hbm, write_bytes_per_cycle=64, side_bytes_per_cycle=48, side_request_cycles=5
)


@given(st.integers(1, 64), st.integers(1, 1 << 13), st.integers(1, 1 << 13))
def test_longer_runs_never_cost_more(bursts: int, one: int, other: int) -> None:
    hbm, nbytes = SLOWER, bursts * SLOWER.burst_bytes
    short, long = sorted((one, other))
    assert hbm.bus_ticks(nbytes, short) >= hbm.bus_ticks(nbytes, long) >= nbytes
    assert hbm.bus_ticks(nbytes, max(long, hbm.burst_bytes)) == nbytes


@given(transfers)
@settings(deadline=None)
def test_bus_conserves_bytes_and_never_exceeds_its_rates(
    wanted: list[tuple[int, int, int, int, bool]],
) -> None:
    hbm = SLOWER
    bus = Bus(hbm, 4)
    now, ends, ticks_sum = 0, [], 0
    moved = {False: 0, True: 0}  # bytes written?
    read_by_half, asked_by_half = [0, 0], [0, 0]
    for pause, core, sticks, run, writes in wanted:
        now += pause
        nbytes = sticks * 128
        ticks = hbm.bus_ticks(nbytes, run * 128, writes)
        asks = hbm.asking_cycles(nbytes, run * 128)
        end = bus.transfer(now, core, nbytes, ticks, writes, asks)
        assert (end - now) * hbm.bytes_per_cycle >= ticks
        assert end - now >= asks
        asked_by_half[core // 2] += asks
        ticks_sum += ticks
        moved[writes] += nbytes
        read_by_half[core // 2] += nbytes * (not writes)
        ends.append(end)
    assert (bus.read_bytes, bus.write_bytes) == (moved[False], moved[True])
    lost = bus.busy_ticks - ticks_sum
    # Turnarounds: never more than all writes pay one by one, nothing when nothing is read.
    written = [128 * sticks for _, _, sticks, _, writes in wanted if writes]
    most = sum(hbm.turnaround_ticks(nbytes, nbytes) for nbytes in written)
    assert 0 <= lost <= most * bool(moved[False])
    last = max(ends)
    assert last * hbm.bytes_per_cycle >= bus.busy_ticks
    assert last * hbm.write_bytes_per_cycle >= moved[True]
    assert all(last * hbm.side_bytes_per_cycle >= nbytes for nbytes in read_by_half)
    assert last >= max(asked_by_half)


@given(transfers)
@settings(deadline=None)
def test_an_idle_bus_turns_for_free(wanted: list[tuple[int, int, int, int, bool]]) -> None:
    bus = Bus(SMALL.hbm, 4)
    now = 0
    for _, core, sticks, _, writes in wanted:
        end = bus.transfer(now, core, sticks * 128, sticks * 128, writes)
        assert end == now + sticks  # 128 bytes a cycle
        now = end
    assert bus.busy_ticks == bus.read_bytes + bus.write_bytes


@pytest.mark.parametrize(("reads", "writes"), [(1, 1), (2, 1), (1, 3), (1, 0), (0, 1)])
def test_mixed_traffic_pays_its_rates_and_its_turns(reads: int, writes: int) -> None:
    """On the full machine: a rate for each direction, and turning there and back for each batch
    that is written while reads wait; within 2 %."""
    hbm, size, cores = SPYRE.hbm, 16384, SPYRE.cores.count
    bus, end = Bus(hbm, cores), 0
    for _ in range(50):
        for core in range(cores):
            for of_kind, kind in ((reads, False), (writes, True)):
                for _ in range(of_kind):
                    ticks = hbm.bus_ticks(size, size, kind)
                    end = max(end, bus.transfer(0, core, size, ticks, kind))
    r, w = bus.read_bytes, bus.write_bytes
    assert (r, w) == (50 * cores * size * reads, 50 * cores * size * writes)
    law = r / hbm.bytes_per_cycle + w / hbm.write_bytes_per_cycle
    turned = min(w, r)  # reads come between as much as they read
    law += turned * 2 * hbm.turnaround_cycles / min(size, hbm.batch_bytes)
    if not w:  # nothing but reads of lone cores: the links to the halves may be slower
        law = max(law, r / 2 / hbm.side_bytes_per_cycle)
    assert abs(end / law - 1) < 0.02


def test_what_has_passed_waits_no_longer() -> None:
    turns = SMALL.hbm.turnaround_ticks(2048)
    for now, lost in ((31, turns), (32, 0)):
        bus = Bus(SMALL.hbm, 4)
        bus.transfer(0, 0, 4096, 4096, False)  # on the bus until cycle 32
        bus.transfer(now, 1, 2048, 2048, True)
        assert bus.busy_ticks == 4096 + 2048 + lost


def test_prices_of_instructions() -> None:
    pt, sfp, hbm = SMALL.pt, SMALL.sfp, SMALL.hbm
    # 9 rows are two passes of 8, 10 inner elements two steps of 8: 16 * 16 * 64 macs; one block of
    # weights, 10 to fill.
    assert pt.mm_cycles(9, 1, 10, 1) == 16 + 10
    assert pt.mm_cycles(9, 1, 10, 1, "f32", "f32") == 32 + 10
    assert pt.mm_cycles(9, 1, 10, 1, "f8e4m3", "f8e4m3") == 8 + 10
    assert pt.mm_cycles(9, 1, 10, 1, "i8", "i8") == 4 + 10  # four times the rate of 16 bits
    assert pt.mm_cycles(9, 1, 10, 1, "i4", "i4") == 2 + 10  # eight times
    assert pt.mm_cycles(9, 1, 10, 1, "i8", "i4") == 4 + 10  # the dearer factor sets the rate
    assert pt.mm_cycles(9, 0, 10, 1) == pt.mm_cycles(0, 1, 10, 1) == 0
    # 70 inner elements are nine steps and two blocks, for each of 2 taps and 3 groups of columns.
    assert pt.mm_cycles(8, 2, 70, 3) == 8 * 2 * 72 * 3 * 64 // 1024 + 2 * 2 * 3 * 10
    assert pt.mm_port_bytes(9, 2, 70, 3) == 9 * 2 * 2 * 3 * 128 + 2 * 70 * 3 * 128
    assert sfp.group_cycles(["exp", "add"], reduces=True) == 6 + 1 + 1
    assert sfp.group_cycles([]) == 1
    assert sfp.vec_cycles(10, 3) == 15 + 4
    assert sfp.vec_cycles(10, 3, folds=True) == 10 * (3 + 12) // 2 + 4
    spreading = replace(sfp, lane_spread_cycles=8)
    assert spreading.vec_cycles(10, 3, spreads=2) == 10 * (3 + 2 * 8) // 2 + 4
    assert spreading.vec_cycles(0, 3, folds=True, spreads=2) == 0
    assert pt.mm_port_bytes(9, 2, 70, 3, "f32", "i8") == 9 * 2 * 2 * 3 * 256 + 2 * 70 * 3 * 64
    assert sfp.shuffle_cycles(1024, 128, 8) == 16 + 4
    assert sfp.shuffle_cycles(1024, 32, 8) == 16 + 32 * 2 + 4
    assert sfp.shuffle_cycles(1024, 2, 8) == 16 + 8 * 32 + 4  # 512 runs, but a block is turned
    assert sfp.shuffle_cycles(1024, 2, 512) == 16 + 512 * 2 + 4  # scattered over many sticks
    half = 8 * 3 * 128 // 2  # runs of half a burst
    assert hbm.bus_ticks(4096, 512) == hbm.bus_ticks(4096, 512, False, 1024) == 4096 + half
    assert hbm.bus_ticks(4096, 512, False, 1023) == 4096 + half // 2  # in the same burst
    wide = replace(hbm, granule_bytes=512, shared_run_cycles=7, together_max=2)
    sticks = 32 * 3 * 128 * 7 // 8  # an eighth of a burst each
    assert wide.bus_ticks(4096, 128, False, 512) == 4096 + sticks // 2
    assert wide.bus_ticks(4096, 128, False, 256) == 4096 + sticks // 4  # two in a granule
    # Other cores take what lies 128 bytes on, so each granule is opened four times.
    assert wide.bus_ticks(4096, 128, False, 1024, 128) == 4096 + 4 * sticks
    assert wide.bus_ticks(4096, 128, False, 1024, 512) == 4096 + sticks
    assert wide.bus_ticks(4096, 128, False, 1023, 128) == 4096 + sticks // 2
    assert wide.split_cycles(4096, 128, 1024, 128) == 32 * 100
    assert wide.split_cycles(4096, 128, 1023, 128) == wide.split_cycles(4096, 128, 1024, 0) == 0
    assert wide.split_cycles(4096, 128, None, 128) == wide.split_cycles(4096, 1024, 1024, 128) == 0
    assert SLOWER.bus_ticks(4096, 512, writes=True) == 4096 * 2 + half
    assert hbm.bus_cycles(4096, 2048) == 32 + 16 + 2 * 2 * 10
    twice = replace(hbm, burst_bytes=512)
    assert twice.turnaround_ticks(2048, 512) == 4 * 2 * 10 * 128  # no more than 512 wait
    assert twice.turnaround_ticks(2048, 256) == 4 * 2 * 10 * 128  # short ones are gathered
    turning = replace(twice, side_turn_cycles=5)
    assert turning.turnaround_ticks(2048, 512) == 4 * 2 * 10 * 128
    assert turning.turnaround_ticks(2048, 512, lone_side=True) == 4 * (2 * 10 + 5) * 128
    assert hbm.turnaround_ticks(2048, 4096) == 2 * 2 * 10 * 128  # no more than a batch is taken
    again = replace(hbm, again_bytes_per_cycle=96)
    assert again.again_ticks(960, 1024) == 320  # 10 cycles, not 7.5
    assert again.again_ticks(960, 1023) == 0  # requested one by one anyway
    assert replace(hbm, again_bytes_per_cycle=200).again_ticks(960, 1024) == 0
    assert hbm.held_cycles(4096) == 4096 * 100 // 12800
    assert hbm.held_cycles(12800) == hbm.held_cycles(1 << 20) == 100
    assert wide.shared_cycles(4096, 128, 2) == wide.shared_cycles(4096, 128, 2, 512) == 32 * 7
    assert wide.shared_cycles(4096, 128, 3) == 2 * 32 * 7  # two at a time
    assert [wide.turns(n) for n in (0, 1, 2, 3, 5)] == [0, 1, 1, 2, 3]
    assert wide.shared_cycles(4096, 128, 2, 256) == 16 * 7
    assert wide.shared_cycles(4096, 1024, 2) == wide.shared_cycles(4096, 128, 0) == 0
    assert SLOWER.asking_cycles(4096, 512) == SLOWER.asking_cycles(4096, 512, 1024) == 8 * 5
    assert SLOWER.asking_cycles(4096, 512, 1023) == SLOWER.asking_cycles(4096, 1024) == 0
    assert hbm.core_bytes_per_cycle == 128
    assert replace(hbm, multicast_max=16, together_max=8).takers_max == 8
    assert replace(hbm, multicast_max=4, together_max=8).takers_max == 4
    assert replace(hbm, window_bytes=6400).core_bytes_per_cycle == 64
    assert SMALL.lx.port_cycles(257) == 2
    # 1 row of 64 x 64: 8 rows' worth of cycles and 10 to fill; the weights alone need 32 of port.
    assert SMALL.mm_total_cycles(1, 1, 64, 1) == max(32 + 10, 33)
    # As little arithmetic for 8 x 64 columns of 8 bits, of which there are four times as many:
    # 8 * 64 * 256 * 2 / 8 / 1024 = 32 and 4 blocks to fill; 64 * 4 and 64 * 256 bytes of port.
    assert SMALL.mm_total_cycles(1, 1, 64, 4, "i8", "i8") == max(32 + 4 * 10, 65)
    unfilled = replace(SMALL, pt=replace(pt, fill_cycles=0))
    assert unfilled.mm_total_cycles(1, 1, 64, 4, "i8", "i8") == max(32, 65)
    assert SMALL.mm_total_cycles(1, 0, 64, 1) == 0
    assert SMALL.vec_total_cycles(64, 1, 3 * 64 * SMALL.lx.group_bytes("f32")) == 192
    assert SMALL.vec_total_cycles(64, 8, 3 * 64 * SMALL.lx.group_bytes("f32")) == 256 + 4


@given(
    st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=8),
    st.sampled_from(list(SPYRE.pt.mac_eighths)), st.sampled_from(list(SPYRE.pt.mac_eighths)),
)
@settings(deadline=None)
def test_prices_of_arrays_are_prices_of_their_elements(
    sizes: list[tuple[int, int, int, int]], a: str, b: str
) -> None:
    rows, taps, k, n = np.array(sizes, np.int64).T
    sfp, hbm, run = SPYRE.sfp, SPYRE.hbm, k + 1
    assert SPYRE.mm_total_cycles(rows, taps, k, n, a, b).tolist() == [
        SPYRE.mm_total_cycles(*size, a, b) for size in sizes
    ]
    assert sfp.vec_cycles(rows, 3, True, 2).tolist() == [
        sfp.vec_cycles(r, 3, True, 2) for r, _, _, _ in sizes
    ]
    assert sfp.shuffle_cycles(rows, run, n).tolist() == [
        sfp.shuffle_cycles(r, k + 1, s) for r, _, k, s in sizes
    ]
    assert hbm.bus_ticks(rows * 128, run * 128, True).tolist() == [
        hbm.bus_ticks(r * 128, k * 128 + 128, True) for r, _, k, _ in sizes
    ]
    assert hbm.shared_cycles(rows * 128, run * 128, n, 256).tolist() == [
        hbm.shared_cycles(r * 128, k * 128 + 128, c, 256) for r, _, k, c in sizes
    ]
    assert hbm.split_cycles(rows * 128, run * 128, 8192, 128).tolist() == [
        hbm.split_cycles(r * 128, k * 128 + 128, 8192, 128) for r, _, k, _ in sizes
    ]
    assert hbm.bank_cycles(rows * 128, run * 128, 1 << 20).tolist() == [
        hbm.bank_cycles(r * 128, k * 128 + 128, 1 << 20) for r, _, k, _ in sizes
    ]
    assert sfp.vec_cycles(rows, 3, chain=n).tolist() == [
        sfp.vec_cycles(r, 3, chain=s) for r, _, _, s in sizes
    ]
    assert hbm.again_ticks(rows * 128, run * 128).tolist() == [
        hbm.again_ticks(r * 128, k * 128 + 128) for r, _, k, _ in sizes
    ]
    assert hbm.asking_cycles(rows * 128, run * 128).tolist() == [
        hbm.asking_cycles(r * 128, k * 128 + 128) for r, _, k, _ in sizes
    ]
    apart = hbm.near_bytes * 3
    assert hbm.spread_ticks(rows * 128, apart, 3, 4).tolist() == [
        hbm.spread_ticks(r * 128, apart, 3, 4) for r, *_ in sizes
    ]
    assert hbm.held_cycles(rows * 128).tolist() == [hbm.held_cycles(r * 128) for r, *_ in sizes]
