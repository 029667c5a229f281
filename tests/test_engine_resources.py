"""Bus and ring by themselves: rates, fairness, turnarounds, routes, conservation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL

from spyrec.sim.bus import Bus
from spyrec.sim.device import load_device
from spyrec.sim.ring import DOWN, UP, Ring

SPYRE = load_device("spyre")

transfers = st.lists(
    st.tuples(
        st.integers(0, 500), st.integers(0, 3), st.integers(1, 40), st.integers(1, 64),
        st.booleans(),
    ),
    min_size=1, max_size=40,
)


@given(transfers)
@settings(deadline=None)
def test_bus_conserves_bytes_and_never_exceeds_its_rates(
    wanted: list[tuple[int, int, int, int, bool]],
) -> None:
    hbm = SMALL.hbm
    bus = Bus(hbm, 4)
    now, ends, ticks_sum = 0, [], 0
    per_core = [0] * 4
    for pause, core, sticks, run, writes in wanted:
        now += pause
        ticks = hbm.bus_ticks(sticks * 128, run * 128)
        end = bus.transfer(now, core, sticks * 128, ticks, writes)
        assert end >= now + hbm.core_cycles(sticks * 128)
        ticks_sum += ticks
        per_core[core] += sticks * 128
        ends.append(end)
    total = sum(w[2] for w in wanted) * 128
    assert bus.read_bytes + bus.write_bytes == total
    reads = sum(w[2] for w in wanted if not w[4]) * 128
    assert bus.read_bytes == reads
    lost = bus.busy_ticks - ticks_sum
    # Turnarounds: never more than the smaller direction pays in full, each pairing rounded up.
    most = hbm.turnaround_ticks(min(reads, total - reads)) + len(wanted)
    assert 0 <= lost <= most
    assert max(ends) * hbm.bytes_per_cycle >= bus.busy_ticks
    assert all(max(ends) * hbm.core_bytes_per_cycle >= moved for moved in per_core)


@given(transfers)
@settings(deadline=None)
def test_an_idle_bus_turns_for_free(wanted: list[tuple[int, int, int, int, bool]]) -> None:
    bus = Bus(SMALL.hbm, 4)
    now = 0
    for _, core, sticks, _, writes in wanted:
        end = bus.transfer(now, core, sticks * 128, sticks * 128, writes)
        assert end == now + 2 * sticks  # the link: 64 bytes a cycle
        now = end
    assert bus.busy_ticks == bus.read_bytes + bus.write_bytes


def test_mixed_traffic_follows_the_published_law() -> None:
    """time = (R + W) / rate + 0.00574 ns/B * min(R, W), within 2 %, for loads and stores side by
    side on all cores of the full machine."""
    for reads, writes in ((1, 1), (2, 1), (1, 3), (1, 0)):
        bus, end = Bus(SPYRE.hbm, 32), 0
        for _ in range(50):
            for core in range(32):
                for _ in range(reads):
                    end = max(end, bus.transfer(0, core, 16384, 16384, False))
                for _ in range(writes):
                    end = max(end, bus.transfer(0, core, 16384, 16384, True))
        r, w = bus.read_bytes, bus.write_bytes
        ns = (r + w) / (SPYRE.hbm.bytes_per_cycle * 1.1) + 0.00574 * min(r, w)
        assert abs(end / 1.1 / ns - 1) < 0.02


def test_what_has_passed_waits_no_longer() -> None:
    bus = Bus(SMALL.hbm, 4)
    bus.transfer(0, 0, 4096, 4096, False)  # on the bus until cycle 32
    bus.transfer(24, 1, 4096, 4096, True)  # 1024 of its bytes alternate with the rest
    assert bus.busy_ticks == 8192 + SMALL.hbm.turnaround_ticks(1024)


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 31), st.integers(1, 5000),
                  st.integers(1, 2**32 - 1)),
        max_size=25,
    )
)
@settings(deadline=None)
def test_ring_conserves_bytes_on_every_link(wanted: list[tuple[int, int, int, int]]) -> None:
    ring = Ring(SPYRE.ring, 32, SPYRE.clock_mhz)
    now, expected, last = 0, 0, 0
    for pause, core, nbytes, mask in wanted:
        now += pause
        up, down = ring.reach(core, mask)
        for target in range(32):
            if mask >> target & 1:
                distance = (target - core) % 33
                assert min(distance, 33 - distance) <= (up if distance <= 16 else down)
        expected += nbytes * (up + down)
        left, arrived = ring.send(now, core, nbytes, mask)
        ideal = SPYRE.ring.send_cycles(nbytes, max(up, down), SPYRE.clock_mhz)
        assert left <= arrived and arrived >= now + ideal - 1
        last = max(last, arrived)
    assert sum(map(sum, ring.link_bytes)) == expected
    # No link carries more than its width in the time it had.
    for lane in ring.link_bytes:
        for nbytes in lane:
            assert nbytes <= 128 * SPYRE.ring.to_ring(last, SPYRE.clock_mhz)


def test_routes_are_shortest() -> None:
    ring = Ring(SMALL.ring, 4, 1000)  # five stops
    assert ring.reach(0, 0b0110) == (2, 0)
    assert ring.reach(0, 0b1000) == (0, 2)  # down past the memory stop
    assert ring.reach(2, 0b1011) == (1, 2)
    assert ring.path(3, UP, 2) == [3, 4]
    assert ring.path(0, DOWN, 2) == [4, 3]


def test_sends_queue_on_shared_segments_only() -> None:
    ring = Ring(SMALL.ring, 4, 1000)
    assert ring.send(0, 0, 1024, 0b0100) == (13, 17)  # 5 + 8, two hops of 2
    assert ring.send(0, 1, 1024, 0b0100) == (23, 25)  # segment 1 is taken from 7 to 15
    assert ring.send(0, 2, 1024, 0b0001) == (13, 17)  # the other way round is free
    assert ring.send(0, 3, 1024, 0b1000) == (13, 13)  # to itself: no segment
    assert ring.link_bytes == [[1024, 2048, 0, 0, 0], [1024, 1024, 0, 0, 0]]


def test_ring_clock_is_converted_upwards() -> None:
    spec = replace(SMALL.ring, clock_mhz=1300, start_cycles=0)
    ring = Ring(spec, 4, 1100)
    # Core cycle 1 is ring cycle 1.18, so 2; payload 1 and hop 2 end at 5, core cycle 4.23, so 5.
    assert ring.send(1, 0, 128, 0b0010) == (3, 5)


def test_prices_of_instructions() -> None:
    pt, sfp, hbm = SMALL.pt, SMALL.sfp, SMALL.hbm
    # 9 rows are two passes of 8, 10 inner elements two steps of 8: 16 * 16 * 64 macs, 10 to fill.
    assert pt.mm_cycles(9, 1, 10, 1) == 16 + 10
    assert pt.mm_cycles(9, 1, 10, 1, "f32", "f32") == 32 + 10
    assert pt.mm_cycles(9, 1, 10, 1, "f8e4m3", "f8e4m3") == 8 + 10
    assert pt.mm_cycles(9, 1, 10, 1, "i8", "i8") == 4 + 10  # four times the rate of 16 bits
    assert pt.mm_cycles(9, 1, 10, 1, "i4", "i4") == 2 + 10  # eight times
    assert pt.mm_cycles(9, 1, 10, 1, "i8", "i4") == 4 + 10  # the dearer factor sets the rate
    assert pt.mm_cycles(9, 0, 10, 1) == 0
    assert pt.mm_port_bytes(9, 2, 70, 3) == 9 * 2 * 2 * 3 * 128 + 2 * 70 * 3 * 128
    assert sfp.group_cycles(["exp", "add"], reduces=True) == 6 + 1 + 1
    assert sfp.group_cycles([]) == 1
    assert sfp.vec_cycles(10, 3) == 15 + 4
    assert sfp.vec_cycles(10, 3, results=2) == (30 + 24) // 2 + 4
    assert pt.mm_port_bytes(9, 2, 70, 3, "f32", "i8") == 9 * 2 * 2 * 3 * 256 + 2 * 70 * 3 * 64
    assert sfp.shuffle_cycles(1024, 128, 8) == 16 + 4
    assert sfp.shuffle_cycles(1024, 32, 8) == 16 + 32 * 2 + 4
    assert sfp.shuffle_cycles(1024, 2, 8) == 16 + 8 * 32 + 4  # 512 runs, but a block is turned
    assert sfp.shuffle_cycles(1024, 2, 512) == 16 + 512 * 2 + 4  # scattered over many sticks
    assert hbm.bus_ticks(4096, 512) == 4096 + 8 * 3 * 128
    assert hbm.bus_cycles(4096, 2048) == 32 + 16 + 2 * 2 * 10
    assert SMALL.lx.port_cycles(257) == 2
    # 1 row of 64 x 64: 8 rows' worth of cycles and 10 to fill; the weights alone need 32 of port.
    assert SMALL.mm_total_cycles(1, 1, 64, 1) == max(32 + 10, 33)
    assert SMALL.mm_total_cycles(1, 4, 64, 1, "i8", "i8") == max(32 + 10, 65)
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
    assert sfp.vec_cycles(rows, 3, taps).tolist() == [
        sfp.vec_cycles(r, 3, t) for r, t, _, _ in sizes
    ]
    assert sfp.shuffle_cycles(rows, run, n).tolist() == [
        sfp.shuffle_cycles(r, k + 1, s) for r, _, k, s in sizes
    ]
    assert hbm.bus_ticks(rows * 128, run * 128).tolist() == [
        hbm.bus_ticks(r * 128, k * 128 + 128) for r, _, k, _ in sizes
    ]
