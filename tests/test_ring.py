"""The ring: routes, occupied segments, multicast and partial sums as timelines computed by hand,
and what every link carries."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL, Recorder, acc, blank_memory, kernel, lx, op, program, written

from spyrec.sim.assembler import assemble
from spyrec.sim.device import DeviceSpec, load_device, parse_device
from spyrec.sim.engine import Engine
from spyrec.sim.errors import AsmError, DeviceError, ObjectError, SimulationError
from spyrec.sim.functional import Functional
from spyrec.sim.functional_pt import psum
from spyrec.sim.isa import Instr, Kernel, Limit, Loop, Program, Signal, Wait
from spyrec.sim.listing import disassemble
from spyrec.sim.ring import DOWN, UP, Ring
from spyrec.sim.run import run
from spyrec.sim.view import Moment
from spyrec.sim.wellformed import Limits, check_program

SPYRE = load_device("spyre")
CORES = SPYRE.cores.count
STOPS = CORES + 1


def timed(k: Kernel, device: DeviceSpec = SMALL) -> Recorder:
    recorder = Recorder()
    run(program(k), device, timing_only=True, observer=recorder)
    return recorder


def segments(ring: Ring, core: int, direction: int, hops: int) -> list[int]:
    return [s for low, high, _ in ring.rows(core, direction, hops) for s in range(low, high)]


# Routes and segments. SMALL: four cores and memory make five stops; 128 bytes a cycle and a hop of
# 2 cycles at the cores' own clock; 5 cycles to start a send.


def test_there_is_a_stop_for_each_core_and_one_for_memory() -> None:
    ring = Ring(SPYRE.ring, CORES, SPYRE.clock_mhz)
    assert ring.stops == 33
    assert [len(lane) for lane in (*ring.link_bytes, *ring.psum_bytes)] == [33] * 4


def test_routes_are_shortest() -> None:
    ring = Ring(SMALL.ring, 4, 1000)
    assert ring.reach(0, 0b0110) == (2, 0)
    assert ring.reach(0, 0b1000) == (0, 2)  # down past the memory stop
    assert ring.reach(2, 0b1011) == (1, 2)
    assert segments(ring, 3, UP, 2) == [3, 4]
    assert segments(ring, 0, DOWN, 2) == [3, 4]
    assert segments(ring, 3, UP, 3) == [3, 4, 0]  # past the memory stop: two rows
    assert segments(ring, 1, DOWN, 3) == [0, 3, 4]


def test_every_hop_takes_its_time() -> None:
    ring = Ring(SPYRE.ring, CORES, SPYRE.clock_mhz)
    # 16 hops up are as far as any core is: set-up 20 core cycles; 256 bytes take 2 ring cycles, 16
    # hops 32, together 34 * 1100 / 1300 = 28.8 core cycles: the last byte is there in 49. It left
    # after 2 * 1100 / 1300 = 1.7, so in 22.
    assert ring.send(0, 0, 256, 1 << 16) == (22, 49)
    # 17 stops up are 16 down: the other direction, which is free, and as long.
    assert ring.send(0, 0, 256, 1 << 17) == (22, 49)
    assert [sum(lane) for lane in ring.link_bytes] == [16 * 256, 16 * 256]


def test_sends_queue_on_shared_segments_only() -> None:
    ring = Ring(SMALL.ring, 4, 1000)
    assert ring.send(0, 0, 1024, 0b0100) == (13, 17)  # 5 + 8, two hops of 2
    assert ring.send(0, 1, 1024, 0b0100) == (23, 25)  # segment 1 is taken from 7 to 15
    assert ring.send(0, 2, 1024, 0b0001) == (13, 17)  # the other way round is free
    assert ring.send(0, 3, 1024, 0b1000) == (13, 13)  # to itself: no segment
    assert ring.link_bytes == [[1024, 2048, 0, 0, 0], [1024, 1024, 0, 0, 0]]


def test_a_multicast_takes_each_segment_once() -> None:
    ring = Ring(SMALL.ring, 4, 1000)
    # From core 1 up to 2 and 3 (two hops) and down to 0 (one): it starts at 5 both ways, leaves
    # after 8 cycles and has come to the farthest two hops later.
    assert ring.send(0, 1, 1024, 0b1101) == (13, 17)
    assert ring.link_bytes == [[0, 1024, 1024, 0, 0], [1024, 0, 0, 0, 0]]
    # The next is held up by the slower of its two ways: segment 2 is free at 5 + 2 + 8 = 15, so
    # it could enter segment 1 at 13; segment 0 (down) is free at 13 too.
    assert ring.send(0, 1, 1024, 0b1101) == (21, 25)


@given(st.data(), st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_each_segment_is_taken_by_one_payload_after_the_other(
    data: st.DataObject, cores: int, hop: int
) -> None:
    """Sends in any order, against a ring that keeps the cycle in which each segment is free."""
    ring = Ring(replace(SMALL.ring, hop_cycles=hop), cores, 1000)
    stops = cores + 1
    free, carried = [[0] * stops, [0] * stops], [[0] * stops, [0] * stops]
    now = 0
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.integers(0, 9))
        core, mask = data.draw(st.integers(0, cores - 1)), data.draw(st.integers(0, 2**cores - 1))
        length = data.draw(st.integers(0, 6))
        far = [0, 0]
        for to in range(cores):
            up = (to - core) % stops if mask >> to & 1 else 0
            way = DOWN if 2 * up > stops else UP
            far[way] = max(far[way], up if way == UP else stops - up)
        earliest = now + SMALL.ring.start_cycles
        left = arrived = earliest + length
        for way, hops in enumerate(far):
            path = [(core + i if way == UP else core - 1 - i) % stops for i in range(hops)]
            start = max([earliest, *(free[way][s] - i * hop for i, s in enumerate(path))])
            for i, s in enumerate(path):
                free[way][s] = start + i * hop + length
                carried[way][s] += 128 * length
            if hops:
                left = max(left, start + length)
                arrived = max(arrived, start + length + hops * hop)
        assert ring.send(now, core, 128 * length, mask) == (left, arrived)
        assert ring.link_bytes == carried
        late = tuple(tuple(max(0, t - now) for t in lane) for lane in free)
        assert tuple(tuple(t // 1000 for t in lane) for lane in ring.relative(now))[:2] == late
        if data.draw(st.booleans()):  # what is kept for shortcuts is all that matters
            ring.resume(now, ring.relative(now))


def test_ring_clock_is_converted_upwards() -> None:
    spec = replace(SMALL.ring, clock_mhz=1300, start_cycles=0)
    ring = Ring(spec, 4, 1100)
    # Payload 1 ends 0.85 core cycles after 1, so in 2; hop 2 after another 1.69, at 3.54, so in 4.
    assert ring.send(1, 0, 128, 0b0010) == (2, 4)
    # Issued 11 core cycles later, or any other number, it takes as long.
    assert [ring.send(now, 0, 128, 0b0010) for now in (12, 20)] == [(13, 15), (21, 23)]


def test_one_unit_sends_in_order_and_others_meet_it_on_the_way() -> None:
    sends = tuple(op("send", (8,), (lx(8, 1), lx(0, 1)), imm={"cores": 1 << to}) for to in (2, 3))
    own = (replace(sends[0], where=0b0001), replace(sends[1], where=0b0011))
    seen = timed(kernel(4, rs=own))
    # Core 0 -> 2 over segments 0 and 1: 5 to start, 8 on segment 0 from 5, on segment 1 from 7 to
    # 15. Core 1 -> 3 over segments 1 and 2 was issued at 0, after it: from 15 to 23.
    # Core 0 -> 3 goes down over the memory stop (2 hops, 3 up), issued when its unit is free at
    # 13: from 18 to 26.
    assert seen.slices == [
        (0, "rs", "send", 0, 13), (1, "rs", "send", 0, 23), (0, "rs", "send", 13, 26),
    ]
    assert seen.done[0].end_cycle == 30  # two hops of 2 after 26; core 1's was there at 27


@pytest.mark.parametrize(
    ("there", "here", "runs"),
    [((2, 1), (2, 1), 1), ((2, 1), (8, 1), 4), ((8, 1), (2, 1), 4), ((1, 4), (1, 4), 8)],
)
def test_a_sender_takes_time_for_every_run(
    there: tuple[int, int], here: tuple[int, int], runs: int
) -> None:
    device = replace(SMALL, ring=replace(SMALL.ring, run_cycles=7))
    send = op("send", (4, 2), (lx(64, *there), lx(0, *here)), imm={"cores": 0b10}, where=0b01)
    seen = timed(kernel(2, rs=(send,)), device)
    # 5 to start, 8 sticks of 128 bytes, 7 for each run that is contiguous at both ends
    assert seen.slices == [(0, "rs", "send", 0, 5 + 8 + 7 * runs)]
    assert seen.done[0].end_cycle == 5 + 8 + 7 * runs + 2


# Conservation

wanted_sends = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, CORES - 1), st.integers(1, 5000),
              st.integers(1, 2**CORES - 1)),
    max_size=25,
)  # fmt: skip


def links(core: int, mask: int) -> set[tuple[int, int]]:
    """(direction, segment) that a send passes, found by walking to each receiver by itself."""
    found = set()
    for target in range(CORES):
        if mask >> target & 1:
            up, at = (target - core) % STOPS, core
            while at != target:
                direction = UP if 2 * up <= STOPS else DOWN
                step = 1 if direction == UP else -1
                found.add((direction, at if direction == UP else (at - 1) % STOPS))
                at = (at + step) % STOPS
    return found


@given(wanted_sends)
@settings(deadline=None)
def test_each_link_carries_the_sends_that_pass_it(wanted: list[tuple[int, int, int, int]]) -> None:
    ring = Ring(SPYRE.ring, CORES, SPYRE.clock_mhz)
    now, last = 0, 0
    expected: Counter[tuple[int, int]] = Counter()
    for pause, core, nbytes, mask in wanted:
        now += pause
        passed = links(core, mask)
        expected.update(dict.fromkeys(passed, nbytes))
        left, arrived = ring.send(now, core, nbytes, mask)
        far = max(Counter(direction for direction, _ in passed).values(), default=0)
        assert left <= arrived
        assert arrived >= now + SPYRE.ring.send_cycles(nbytes, far, SPYRE.clock_mhz)
        last = max(last, arrived)
    carried = {(d, s): n for d in (UP, DOWN) for s, n in enumerate(ring.link_bytes[d]) if n}
    assert carried == dict(expected)
    width = SPYRE.ring.bytes_per_cycle  # no link carries more than that in the time it had
    cycles = -(-last * SPYRE.ring.clock_mhz // SPYRE.clock_mhz)
    assert all(n <= width * cycles for n in carried.values())


@st.composite
def exchanges(draw: st.DrawFn) -> Program:
    """Sends of all cores, each into a stretch of its own in the receivers' scratchpads."""
    at, sends = 0, []
    for _ in range(draw(st.integers(1, 6))):
        counts = draw(st.tuples(*[st.integers(0, 5)] * CORES))
        masks = draw(st.tuples(*[st.integers(0, 2**CORES - 1)] * CORES))
        places = tuple(at + int(sum(counts[:core])) for core in range(CORES))
        at += sum(counts)
        sends.append(op("send", (counts,), (lx(0, 1), lx(0, 1)), imm={"cores": masks}))  # type: ignore[arg-type]
        sends[-1] = replace(
            sends[-1], operands=(replace(sends[-1].operands[0], base=places), lx(9000, 1))
        )
    return program(kernel(CORES, rs=tuple(sends)))


@given(exchanges())
@settings(max_examples=30, deadline=None)
def test_what_is_sent_to_receivers_is_what_they_receive(p: Program) -> None:
    memory = blank_memory(device=SPYRE)
    for core, image in enumerate(memory.lx):
        image.data[9000 * 128 :] = core + 1
        image.valid[9000:] = True
    engine = Engine(p, SPYRE, Functional(p, SPYRE, memory))
    engine.run()
    received: Counter[int] = Counter()
    for image in memory.lx:
        arrived = image.valid[:9000]
        received.update((image.data[: 9000 * 128].reshape(-1, 128)[arrived, 0] - 1).tolist())
    sent: Counter[int] = Counter()
    expected: Counter[tuple[int, int]] = Counter()
    for instr in p.kernels[0].streams["rs"]:
        assert isinstance(instr, Instr)
        for core, (n, mask) in enumerate(zip(instr.counts[0], instr.imm["cores"], strict=True)):  # type: ignore[arg-type]
            if n and mask:
                sent[core] += n * mask.bit_count()
                expected.update(dict.fromkeys(links(core, mask), n * 128))
    assert received == sent
    got = {(d, s): n for d in (UP, DOWN) for s, n in enumerate(engine.ring.link_bytes[d]) if n}
    assert got == dict(expected)


# Partial sums. SMALL: 32 bytes a cycle; a matrix unit in a K-split runs at half rate.


def adding(n: int, to: int, **more: object) -> Instr:
    """Adds ``n`` accumulator groups to those of core ``to``."""
    return op("psum", (n,), (acc(0, 1), acc(0, 1)), imm={"cores": 1 << to}, **more)  # type: ignore[arg-type]


def chain() -> Kernel:
    """Three cores multiply, the sum goes up to core 2, which stores it. Tokens: 1 the own sums are
    there, 2 the neighbour's are, 3 the neighbour's have been added."""
    mm = op("mm", (8, 1, 1, 1, 1, 1), (acc(0, 1), lx(0, 1), lx(200)), imm={"partial": 1})
    mm = replace(mm, signals=(Signal(1),))
    ready = replace(op("sync"), signals=(Signal(2, cores=(0, 1, 2)),), where=0b110)
    first = adding(8, 1, where=0b001, waits=[1, 2])
    second = adding(8, 2, where=0b010, waits=[1, 2, 3])
    tell = (Signal(3, cores=(0b010, 0b100, 0)),)
    vec = op("vec", (8,), (lx(100, 1), acc(0, 1)), [1, 3], where=0b100)
    sends = replace(first, signals=tell), replace(second, signals=tell)
    return kernel(3, pt=(mm, ready), rs=sends, sfp=(vec,))


def test_partial_sums_go_up_a_chain_of_neighbours() -> None:
    seen = timed(chain())
    assert seen.slices == [
        # 32768 macs at 512 a cycle, and 10 to fill
        *((core, "pt", "mm", 0, 74) for core in (0, 2, 1)),
        # 8 groups of 256 bytes are 64 cycles at 32 bytes a cycle; 5 to start, a hop of 2
        (0, "rs", "psum", 74, 143),  # added on core 1 at 145
        (1, "rs", "psum", 145, 214),  # added on core 2 at 216
        (2, "sfp", "vec", 216, 224),
    ]
    assert seen.done[0].ring_bytes == 2 * 2048


def test_neighbouring_segments_carry_partial_sums_side_by_side() -> None:
    up = adding(8, 1, where=0b0001), adding(8, 3, where=0b0100)
    down = adding(4, 1, where=0b0100), adding(8, 1, where=0b0100)
    seen = timed(kernel(4, rs=(up[0], *up[1:], *down)))
    assert seen.slices == [
        (0, "rs", "psum", 0, 69), (2, "rs", "psum", 0, 69),
        # the same unit next: 5 to start and 32 down, then 5 and 64
        (2, "rs", "psum", 69, 106), (2, "rs", "psum", 106, 175),
    ]
    engine = Engine(program(kernel(4, rs=(up[0], *up[1:], *down))), SMALL)
    engine.run()
    assert engine.ring.psum_bytes == [[2048, 0, 2048, 0, 0], [0, 1024 + 2048, 0, 0, 0]]
    assert engine.ring.link_bytes == [[0] * 5, [0] * 5]


def test_a_segment_passes_partial_sums_one_after_the_other() -> None:
    ring = Ring(SMALL.ring, 4, 1000)
    assert ring.pass_on(0, 1, 2048, 0b0100) == (69, 71)
    assert ring.pass_on(0, 1, 2048, 0b0100) == (133, 135)  # the segment is free at 69
    assert ring.pass_on(0, 1, 2048, 0b0001) == (69, 71)  # the other direction's is
    assert ring.send(0, 1, 1024, 0b0100) == (13, 15)  # and the ring for scratchpads is another


def test_partial_sums_keep_the_rings_clock() -> None:
    ring = Ring(SPYRE.ring, CORES, SPYRE.clock_mhz)
    # After 20 core cycles 4096 bytes take 128 ring cycles, 108.3 core cycles, so they left in 129;
    # with a hop of 2 they are 130 * 1100 / 1300 = 110 core cycles.
    assert ring.pass_on(0, 7, 4096, 1 << 8) == (129, 130)
    assert SPYRE.ring.psum_cycles(4096, SPYRE.clock_mhz) == 20 + 110


def test_partial_sums_leave_the_scratchpad_port_alone() -> None:
    # 512 groups take 260 cycles but need the port for 512; a send beside it would slow it down.
    vec = op("vec", (512,), (lx(0, 1), lx(0, 1)))
    seen = timed(kernel(2, sfp=(replace(vec, where=0b01),), rs=(adding(60, 1, where=0b01),)))
    assert (0, "sfp", "vec", 0, 512) in seen.slices


def test_tails_of_partial_sums() -> None:
    tail = replace(adding(8, 1), limits=(Limit(12, (8,)),), where=0b01, signals=(Signal(1),))
    seen = timed(kernel(2, rs=(Loop(3, (tail,)),)))
    # 8 groups, then 4, then none, which takes no time
    assert [s[3:] for s in seen.slices] == [(0, 69), (69, 106)]


def test_psum_adds_to_what_the_neighbour_holds() -> None:
    memory = blank_memory()
    values = [written(memory, core, core)[:32, :64] for core in range(2)]
    for image, data in zip(memory.acc, values, strict=False):
        image.data[: data.size * 4].view(np.float32)[:] = data.reshape(-1)
        image.valid[:32] = True
    instr = replace(
        adding(3, 1), operands=(acc(4, 2), acc(10, 1)), imm={"cores": (0b10, 0, 0, 0)}
    )
    before = values[1].copy()
    psum(instr, memory, Moment(0, ()))
    got = memory.acc[1].data[: values[1].size * 4].view(np.float32).reshape(before.shape)
    before[4:10:2] += values[0][10:13]
    assert np.array_equal(got, before)
    assert np.array_equal(memory.acc[0].data[: values[0].size * 4].view(np.float32).reshape(
        values[0].shape), values[0])  # fmt: skip
    psum(instr, memory, Moment(1, ()))  # to nobody
    assert np.array_equal(got, before)


def test_terms_that_were_never_computed_are_not_added() -> None:
    with pytest.raises(SimulationError, match=r"core 0, unit rs, `psum 8 acc\[0\], acc\[0\]`"):
        run(program(kernel(2, rs=(adding(8, 1, where=0b01),))), SMALL, {"x": bytes(16384)})


@given(st.lists(st.tuples(st.integers(0, CORES - 1), st.integers(1, 9), st.booleans()), max_size=9))
@settings(max_examples=40, deadline=None)
def test_each_segment_carries_the_partial_sums_of_its_core(
    wanted: list[tuple[int, int, bool]]
) -> None:
    stream, expected = [], Counter[tuple[int, int]]()
    for core, n, up in wanted:
        to = core + 1 if up else core - 1
        if 0 <= to < CORES:
            stream.append(adding(n, to, where=1 << core))
            expected[UP if up else DOWN, core if up else core - 1] += n * 256
    p = program(kernel(CORES, rs=tuple(stream)))
    check_program(p, Limits())
    engine = Engine(p, SPYRE)
    engine.run()
    got = {(d, s): n for d in (UP, DOWN) for s, n in enumerate(engine.ring.psum_bytes[d]) if n}
    assert got == dict(expected)
    assert engine.stats[0] is not None
    assert sum(expected.values()) == engine.stats[0].ring_bytes


# What is refused


def test_some_corelets_are_no_faster_than_all() -> None:
    text = SPYRE.text.replace("ksplit_macs_per_cycle = 512 ", "ksplit_macs_per_cycle = 2048 ")
    with pytest.raises(DeviceError, match=r"ksplit_macs_per_cycle is 2048, more than the 1024 of"):
        parse_device(text)


@pytest.mark.parametrize("fragments", [8, 9])
def test_a_core_takes_eight_fragments_in_one_exchange(fragments: int) -> None:
    receive = op("recv", imm={"fragments": fragments})
    if fragments <= SPYRE.ring.fragments_max:
        run(program(kernel(1, rr=(receive,))), SPYRE, timing_only=True)
        return
    with pytest.raises(SimulationError, match="takes 9 fragments; a core takes at most 8 in one"):
        run(program(kernel(1, rr=(receive,))), SPYRE, timing_only=True)


def beyond(to: int, core: int = 1) -> str:
    p = program(kernel(4, rs=(adding(8, to, where=1 << core),)))
    with pytest.raises(ObjectError) as error:
        check_program(p, Limits())
    return str(error.value)


@pytest.mark.parametrize(("to", "core"), [(3, 1), (1, 1), (3, 0), (0, 3)])
def test_only_neighbours_take_partial_sums(to: int, core: int) -> None:
    assert beyond(to, core) == (
        f"kernel @k, stream rs, instruction 0 (psum): core {core} sends partial sums to the cores "
        f"of mask {1 << to:#x}; they go to one neighbour, core {core - 1} or {core + 1} "
        "(from MatMul_7)"
    )


def test_one_neighbour_takes_partial_sums() -> None:
    both = replace(adding(8, 0, where=0b0010), imm={"cores": 0b0101})
    with pytest.raises(ObjectError, match="of mask 0x5; they go to one neighbour"):
        check_program(program(kernel(4, rs=(both,))), Limits())


def test_partial_sums_are_added_in_accumulators_without_borders() -> None:
    other = replace(adding(8, 1, where=0b01), operands=(acc(0, 1), lx(0, 1)))
    with pytest.raises(ObjectError, match=r"operand 1 \(src\) is in 'lx', expected acc"):
        check_program(program(kernel(2, rs=(other,))), Limits())


def test_the_listing_of_partial_sums_is_read_back() -> None:
    p = program(chain())
    text = disassemble(p)
    assert "psum" in text and "partial=1" in text
    assert assemble(text) == p
    far = text.replace("psum on <0> i(8) dst", "psum on <1> i(8) dst")
    assert far != text
    with pytest.raises(AsmError, match="they go to one neighbour"):
        assemble(far)


def test_tokens_of_partial_sums_wait_for_their_own_chain() -> None:
    """A neighbour that multiplies late is not added to before it has."""
    k = chain()
    late = op("vec", (512,), (lx(0, 1), lx(0, 1)), signals=[4], where=0b010)
    mm, ready = k.streams["pt"]
    assert isinstance(mm, Instr)
    first = replace(mm, where=0b101)
    then = replace(mm, where=0b010, waits=(Wait(4),))
    seen = timed(replace(k, streams={**k.streams, "pt": (first, then, ready),
                                     "sfp": (late, *k.streams["sfp"])}))  # fmt: skip
    slices = [s[1:] for s in seen.slices if s[1] == "rs"]
    # core 1 multiplies from 512 to 586
    assert slices == [("rs", "psum", 586, 655), ("rs", "psum", 657, 726)]
