"""Hand-computed timelines on the small machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_machine import SMALL, Recorder, acc, hbm, kernel, lx, op, padded, program

from spyrec.sim.engine import Engine
from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import (
    UNITS,
    Instr,
    Kernel,
    Launch,
    Limit,
    Loop,
    Program,
    Rotate,
    Signal,
    Wait,
)
from spyrec.sim.run import run
from spyrec.sim.stats import bound

# 8 sticks: 1024 bytes hold the bus 8 cycles and arrive 100 later; their unit is held for 8 more
# (1024 bytes of 100 cycles in a window of 12800), 16 in all.
LOAD = op("load", (8,), (lx(0, 1), hbm("x", 0, 1)))
STORE = op("store", (8,), (hbm("y", 0, 1), lx(100, 1)))
# 8 rows x 64 x 64 = 32768 macs = 32 cycles, and 10 to fill; 9216 bytes of port need 36.
MM = op("mm", (8, 1, 1, 1, 1, 1), (acc(0, 1), lx(0, 1), lx(200)))
VEC = op("vec", (8,), (lx(100, 1), acc(0, 1)))  # 8 groups, 2 a cycle, and 4 to start


def timed(*kernels: Kernel, early: bool = False, chained: bool = True) -> Recorder:
    recorder = Recorder()
    run(program(*kernels, early=early, chained=chained), SMALL, timing_only=True, observer=recorder)
    return recorder


def with_tokens(instr: Instr, waits: list[int], signals: list[int]) -> Instr:
    return replace(
        instr, waits=tuple(Wait(t) for t in waits), signals=tuple(Signal(t) for t in signals)
    )


def chain() -> Kernel:
    return kernel(
        ml=(with_tokens(LOAD, [0], [1]),),
        pt=(with_tokens(MM, [1], [2]),),
        sfp=(with_tokens(VEC, [2], [3]),),
        ms=(with_tokens(STORE, [3], []),),
    )


def test_chain_of_units() -> None:
    seen = timed(chain())
    assert seen.slices == [
        (0, "ml", "load", 50, 66),  # GO at 50; off the bus at 58, here at 158
        (0, "pt", "mm", 158, 200),
        (0, "sfp", "vec", 200, 208),
        (0, "ms", "store", 208, 224),  # off the bus at 216, there at 316
    ]
    (stats,) = seen.done
    assert (stats.start_cycle, stats.go_cycle, stats.end_cycle) == (50, 50, 316)
    assert stats.busy_cycles == {"ml": 16, "ms": 16, "rs": 0, "rr": 0, "pt": 42, "sfp": 8}
    assert (stats.padded_macs, stats.hbm_read_bytes, stats.hbm_write_bytes) == (32768, 1024, 1024)
    assert (stats.bus_busy_cycles, stats.bound, stats.instructions) == (16, "latency", 4)


def test_dependent_launches_pay_their_start() -> None:
    seen = timed(chain(), chain())
    assert seen.opened == [(0, 0), (1, 316)]
    assert [(s.start_cycle, s.end_cycle) for s in seen.done] == [(50, 316), (366, 632)]


def test_loads_are_pipelined_behind_the_latency() -> None:
    seen = timed(kernel(ml=(Loop(3, (LOAD,)),)))
    assert [s[3:] for s in seen.slices] == [(0, 16), (16, 32), (32, 48)]
    assert seen.done[0].end_cycle == 140  # the third leaves the bus at 40


def test_double_buffering_hides_loads() -> None:
    rotate = Rotate((1,), 2, 8)
    load = op("load", (8,), (lx(0, 1, rotate=rotate), hbm("x", 0, 1, loops=(8,))), [1], [2])
    mm = op("mm", (8, 1, 1, 1, 1, 1), (acc(0, 1), lx(0, 1, rotate=rotate), lx(200)), [2], [1])
    free = op("sync", signals=[])
    both = replace(free, signals=(Signal(1, 2),))
    seen = timed(kernel(ml=(Loop(4, (load,)),), pt=(both, Loop(4, (mm,)))))
    assert [s[3:] for s in seen.slices if s[1] == "pt"] == [
        # The second begins beside a load that takes 256 of the port's 1024 shares until 166: in
        # those 16 cycles it does floor(16 * 1024 / (878 + 256)) = 14 of its 42, then the other 28.
        (108, 150), (150, 194), (258, 300), (302, 344),
    ]
    assert [s[3:] for s in seen.slices if s[1] == "ml"] == [
        (0, 16), (16, 32), (150, 166), (194, 210),  # here at 108, 124, 258, 302
    ]


def test_port_is_shared_in_proportion_until_the_other_ends() -> None:
    # 512 groups, one cycle each: 256 + 4 cycles for 131072 bytes, so the port (512 cycles) decides.
    vec = op("vec", (512,), (lx(0, 1), lx(0, 1)))
    seen = timed(kernel(sfp=(vec,), pt=(MM,)))
    assert seen.slices == [
        (0, "pt", "mm", 0, 42),  # takes 36 / 42 of the port
        # mm holds ceil(9216 * 1024 / (42 * 256)) = 878 shares, so that vec does no more than
        # floor(42 * 1024 / (878 + 1024)) = 22 of its cycles until 42; the other 490 are its own.
        (0, "sfp", "vec", 0, 532),
    ]


def test_shared_bus_is_first_come_first_served() -> None:
    seen = timed(kernel(4, ml=(replace(LOAD, counts=(16,)),)))
    # 16 cycles of bus each, one after the other, and each unit is held 16 more.
    assert [s[3:] for s in seen.slices] == [(0, 32), (0, 48), (0, 64), (0, 80)]
    assert seen.done[0].end_cycle == 164  # the last leaves the bus at 64
    assert seen.done[0].bus_busy_cycles == 64


def test_short_runs_cost_bus_time() -> None:
    # 8 single sticks, close together, each 1/8 of a burst: 8 requests of half of 7/8 of 3 cycles on
    # top of 8 cycles of payload, and held for 8.
    seen = timed(kernel(ml=(op("load", (8,), (lx(0, 1), hbm("x", 0, 2))),)))
    assert seen.slices[0][3:] == (0, 27)
    assert seen.done[0].bus_busy_cycles == 19


def test_reads_and_writes_alternate() -> None:
    seen = timed(kernel(ml=(LOAD,), ms=(STORE,)))
    # The store pairs all its 1024 bytes with the waiting load: one batch, two turns of 10 cycles.
    # It leaves the bus at 8 + 8 + 20 and is held for 8.
    assert seen.done[0].bus_busy_cycles == 16 + 20
    assert seen.slices == [(0, "ml", "load", 0, 16), (0, "ms", "store", 0, 44)]


def test_multicast_load_reaches_every_core() -> None:
    load = replace(
        LOAD, imm={"cores": 0b1110}, where=0b0010, signals=(Signal(1, cores=0b1110),)
    )
    vec = op("vec", (8,), (lx(100, 1), lx(0, 1)), [1])
    seen = timed(kernel(4, ml=(load,), sfp=(replace(vec, where=0b1110),)))
    assert seen.slices == [
        (1, "ml", "load", 0, 16),
        *((core, "sfp", "vec", 108, 116) for core in (1, 2, 3)),
    ]
    assert seen.done[0].hbm_read_bytes == 1024


def test_empty_tail_takes_no_time_and_signals_after_the_transfers_ahead() -> None:
    tail = replace(LOAD, limits=(Limit(12, (8,)),), signals=(Signal(1),))
    vec = op("vec", (8,), (lx(100, 1), lx(0, 1)), [1])
    seen = timed(kernel(ml=(Loop(3, (tail,)),), sfp=(Loop(3, (vec,)),)))
    # 8 sticks, then 4 (half a burst: 1.5 cycles more, off the bus at 16 + 4 + 2, held for 4), then
    # none: its signal comes with the last byte of the second, at 122, not before the bytes that are
    # still on their way.
    assert [s[3:] for s in seen.slices if s[1] == "ml"] == [(0, 16), (16, 26)]
    assert [s[3:] for s in seen.slices if s[1] == "sfp"] == [(108, 116), (122, 130), (130, 138)]


def test_sync_behind_a_load_signals_when_the_load_has_arrived() -> None:
    flag = replace(op("sync"), signals=(Signal(1),))
    vec = op("vec", (8,), (lx(100, 1), lx(0, 1)), [1])
    seen = timed(kernel(ml=(LOAD, flag), sfp=(vec,)))
    assert [s[3:] for s in seen.slices if s[1] == "sfp"] == [(108, 116)]


def test_early_launch_is_complete_no_sooner_than_what_it_depends_on() -> None:
    slow = kernel(ml=(LOAD,))
    nothing = kernel(ml=(op("sync"),))
    seen = timed(slow, nothing, early=True)
    first, second = seen.done
    assert (first.end_cycle, second.end_cycle, second.go_cycle) == (108, 108, 108)


@pytest.mark.parametrize("strides", [((64, 1), (1, 64)), ((1, 64), (64, 1))])
def test_a_block_is_turned_stick_by_stick(strides: tuple[tuple[int, int], tuple[int, int]]) -> None:
    to, source = (lx(64 * 64 * i, *s) for i, s in enumerate(strides))
    seen = timed(kernel(sfp=(op("shuf", (64, 64), (to, source), imm={"bits": 16}),)))
    # 8192 bytes at 64 a cycle; 4096 runs of 2 cycles are dearer than 64 sticks of 32; 4 to start.
    assert seen.slices[0][3:] == (0, 128 + 64 * 32 + 4)


def test_scattered_elements_cost_their_runs() -> None:
    to, source = lx(0, 64), lx(64 * 64, 1)
    seen = timed(kernel(sfp=(op("shuf", (64,), (to, source), imm={"bits": 16}),)))
    assert seen.slices[0][3:] == (0, 2 + 64 * 2 + 4)  # each in a stick of its own


def test_send_and_receive() -> None:
    send = op("send", (8,), (lx(8, 1), lx(0, 1)), where=0b0001, imm={"cores": 0b0110},
              signals=())
    send = replace(send, signals=(Signal(1, cores=0b0110),))
    recv = op("recv", waits=[1], signals=[2], where=0b0110)
    vec = op("vec", (8,), (lx(16, 1), lx(8, 1)), [2], where=0b0110)
    seen = timed(kernel(4, rs=(send,), rr=(recv,), sfp=(vec,)))
    # 5 to start, 8 for the payload, two hops of 2 to the farther core.
    assert seen.slices == [
        (0, "rs", "send", 0, 13), (1, "sfp", "vec", 17, 25), (2, "sfp", "vec", 17, 25),
    ]
    assert seen.done[0].ring_bytes == 1024


def test_per_core_counts() -> None:
    load = replace(LOAD, counts=((8, 4, 0, 2),))
    seen = timed(kernel(4, ml=(load,)))
    # Bus: 8, then 4 + 1.5, then nothing for core 2, then 2 + 2.25; held for 8, 4 and 2 more.
    assert [(s[0], s[3], s[4]) for s in seen.slices] == [(0, 0, 16), (1, 0, 18), (3, 0, 20)]


def test_early_launch_overlaps_the_one_before() -> None:
    prefetch = kernel(ml=(op("load", (8,), (lx(300, 1), hbm("x", 0, 1))),), pt=(
        with_tokens(MM, [0], []),))
    seen = timed(chain(), prefetch, early=True)
    assert seen.opened == [(0, 0), (1, 0)]
    slices = [s[1:] for s in seen.slices]
    assert ("ml", "load", 66, 82) in slices  # right behind the first launch's load
    assert ("pt", "mm", 366, 408) in slices  # GO: 50 after the first launch ends at 316
    first, second = seen.done
    assert (second.start_cycle, second.go_cycle, second.end_cycle) == (66, 366, 408)
    assert first.end_cycle == 316


def test_at_most_two_launches_are_in_flight() -> None:
    idle = kernel(sfp=(VEC,))
    seen = timed(chain(), idle, idle, early=True, chained=False)
    assert seen.opened == [(0, 0), (1, 0), (2, 316)]


def test_late_launch_waits_for_the_one_before_even_without_dependency() -> None:
    seen = timed(chain(), kernel(sfp=(VEC,)), chained=False)
    assert [s[3:] for s in seen.slices if s[1] == "sfp"] == [(200, 208), (316, 324)]


def test_launches_without_work_pass_through() -> None:
    seen = timed(kernel(), kernel(), kernel(sfp=(VEC,)), kernel())
    assert [(s.index, s.start_cycle, s.end_cycle) for s in seen.done] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 8), (3, 8, 8),
    ]


def test_level_wait_takes_nothing() -> None:
    level = replace(VEC, waits=(Wait(1, 0),))
    seen = timed(kernel(ml=(with_tokens(LOAD, [], [1]),), sfp=(level, level)))
    assert [s[3:] for s in seen.slices if s[1] == "sfp"] == [(108, 116), (116, 124)]


def test_fewer_cores_leave_the_others_to_the_next_launch() -> None:
    seen = timed(kernel(1, pt=(MM,)), kernel(4, pt=(MM,)), early=True)
    assert [(s[0], s[3]) for s in seen.slices] == [(0, 0), (2, 0), (1, 0), (3, 0), (0, 42)]


def test_kernels_are_unrolled_once_and_dropped_after_their_last_launch() -> None:
    k = chain()
    p = Program((k,), program(k).buffers, tuple(
        Launch(0, (("x", 0), ("y", 0)), (i - 1,) if i else ()) for i in range(3)
    ))
    engine = Engine(p, SMALL)
    engine.run()
    assert not engine.in_flight and not engine.plans
    cycles = [s.cycles for s in engine.stats if s is not None]
    assert cycles == [266, 266, 266]


def test_progress_counts_launches() -> None:
    calls: list[tuple[int, int]] = []
    run(program(chain(), chain()), SMALL, timing_only=True,
        progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2)]


def test_deadlock_names_the_stuck_and_who_would_help() -> None:
    stuck = kernel(
        pt=(op("mm", (8, 1, 1, 1, 1, 1), (acc(0, 1), lx(0, 1), lx(200)), [1], [2]),),
        sfp=(
            op("vec", (8,), (lx(100, 1), acc(0, 1)), [2], [1], note=1),
            op("vec", (8,), (lx(100, 1), acc(0, 1)), [3], note=1),
        ),
        ms=(op("store", (8,), (hbm("y", 0, 1), lx(100, 1)), [7]),),
    )
    with pytest.raises(SimulationError) as error:
        run(program(stuck), SMALL, timing_only=True)
    mm = "launch 0, kernel k, core 0, unit pt, `mm 8x1x1x1x1x1 acc[0], lx[0], lx[200]`"
    vec = "launch 0, kernel k, core 0, unit sfp, `vec 8 lx[100], acc[0]`"
    store = "launch 0, kernel k, core 0, unit ms, `store 8 hbm[y+0], lx[100]`"
    matmul, add = "of %y = matmul (from MatMul_7)", "of %z = add (from Add_1, Add_2)"
    assert str(error.value) == (
        "deadlock at cycle 50: 3 units wait for tokens that nobody will signal\n"
        f"  {store} {matmul}: waits for 1 of token 7, has 0; "
        "no instruction that is left signals it\n"
        f"  {mm} {matmul}: waits for 1 of token 1, has 0; would come from {vec} {add}\n"
        f"  {vec} {add}: waits for 1 of token 2, has 0; would come from {mm} {matmul}"
    )


def test_deadlock_counts_what_it_does_not_show() -> None:
    stuck = kernel(4, ml=(replace(LOAD, waits=(Wait(1, 2),)),), sfp=(op("sync", waits=[2]),))
    with pytest.raises(SimulationError, match=r"8 units wait(.|\n)*and 4 more units$"):
        run(program(stuck), SMALL, timing_only=True)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (kernel(4, ml=(replace(LOAD, imm={"cores": 15}),)),
         "it delivers to 4 cores; one load reaches at most 3"),
        (kernel(rr=(op("recv", imm={"fragments": 3}),)),
         "it takes 3 fragments; a core takes at most 2 in one exchange, so split it"),
        (kernel(pt=(padded(replace(MM, operands=(acc(0, 1), lx(0, 1, dtype="i32"), lx(200)))),)),
         "operand a is i32; the matrix unit multiplies f32, dl16, f16, bf16, f8e4m3, i8, i4"),
        (kernel(pt=(padded(replace(MM, operands=(acc(0, 1), lx(0, 1), lx(200, 1)))),)),
         "operand b has a stride along dimension 0, which it lacks"),
        (kernel(ml=(replace(LOAD, signals=(Signal(0),)),)),
         "it signals token 0, which only the launch itself raises; use another token"),
        (kernel(sfp=(replace(VEC, operands=(lx(100, 1), acc(0, 1, dtype="dl16"))),)),
         "an acc operand is of format dl16; the accumulator holds f32 or i32"),
        (kernel(ml=(replace(LOAD, operands=(lx(0, 1), hbm("", 0, 1))),)),
         "an hbm operand has symbol ''; hbm needs one"),
        (kernel(sfp=(op("vec", (8,), (lx(1, 1), lx(0, 1)), imm={"reduce": 5}),)),
         "reduce is 5; 0 to 4 exist"),
        (kernel(2, sfp=(op("vec", (8,), (lx(1, 1), lx(0, 1)), imm={"axes": (0, 1)}),)),
         "axes differs from core to core; it must be the same on all"),
    ],
)
def test_rules_of_the_machine(bad: Kernel, message: str) -> None:
    with pytest.raises(SimulationError) as error:
        run(program(bad), SMALL, timing_only=True)
    assert str(error.value).endswith(": " + message)
    assert "kernel k, unit" in str(error.value) and "MatMul_7" in str(error.value)


def test_what_bounds_a_launch_is_what_worked_longest_for_it() -> None:
    idle = dict.fromkeys(UNITS, 0)
    assert bound(100, idle | {"pt": 60, "sfp": 59}, 10) == "compute"
    assert bound(100, idle | {"pt": 60}, 61) == "memory"
    assert bound(100, idle | {"rs": 50}, 0) == "ring"
    assert bound(100, idle | {"sfp": 49}, 49) == "latency"
    assert bound(10, idle | {"pt": 9}, 90) == "memory"  # brought while the launch before ran
    assert bound(0, idle, 0) == "latency"
