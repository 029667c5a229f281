"""Each kind of hazard in a program written by hand, and the orders that keep programs free of
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from small_machine import SMALL, acc, hbm, kernel, lx, op, program

from spyrec.sim.check import SHOWN, Finding, find_hazards, refuse
from spyrec.sim.errors import HazardError
from spyrec.sim.isa import (
    Buffer,
    Instr,
    Kernel,
    Launch,
    Limit,
    Loop,
    Program,
    Rotate,
    Signal,
    Stream,
    Wait,
)
from spyrec.sim.run import run

GO = Wait(0, 0)
STICKS = 128  # of the buffers x and y


def load(to: int, **more: object) -> Instr:
    return op("load", (1,), (lx(to, 1), hbm("x", 0, 1)), **more)  # type: ignore[arg-type]


def double(to: int, source: int, **more: object) -> Instr:
    """A copy by the vector unit."""
    return op("vec", (1,), (lx(to, 1), lx(source, 1)), **more)  # type: ignore[arg-type]


def store(source: int, **more: object) -> Instr:
    return op("store", (1,), (hbm("y", 0, 1), lx(source, 1)), **more)  # type: ignore[arg-type]


def send(to: int, source: int, cores: int, **more: object) -> Instr:
    return op("send", (1,), (lx(to, 1), lx(source, 1)), imm={"cores": cores}, **more)  # type: ignore[arg-type]


def whole(kernels: Sequence[Kernel], launches: Sequence[Launch] | None = None) -> Program:
    """A program whose "y" is a temp, so that not all of it need be written."""
    made = program(*kernels)
    x, y = made.buffers
    made = replace(made, buffers=(x, replace(y, kind="temp")))
    return made if launches is None else replace(made, launches=tuple(launches))


def hazards(made: Program) -> list[Finding]:
    """But for results that nothing reads, which short programs are full of."""
    return [finding for finding in find_hazards(made, SMALL) if finding.kind != "lost"]


def kinds(made: Program) -> list[str]:
    return [finding.kind for finding in hazards(made)]


def found(*streams: Kernel) -> list[str]:
    return [str(finding) for finding in hazards(whole(streams))]


def pipe(
    load_waits: Sequence[int] = (), vec_waits: Sequence[int] = (1,), signals: Sequence[int] = (1,)
) -> dict[str, Stream]:
    """Load, copy, store; the tokens between load and copy may be left out."""
    return {
        "ml": (load(0, waits=load_waits, signals=signals, note=0),),
        "sfp": (double(1, 0, waits=vec_waits, signals=(2,), note=1),),
        "ms": (store(1, waits=(2,)),),
    }


def test_a_chain_of_tokens_is_free_of_hazards() -> None:
    assert found(kernel(**pipe())) == []


def test_a_read_that_does_not_wait_names_both_instructions_cores_ops_and_nodes() -> None:
    (text,) = found(kernel(**pipe(vec_waits=(), signals=())))
    assert text == (
        "race: launch 0, kernel k, core 0, unit sfp, `vec 1 lx[1], lx[0]` of %z = add (from Add_1, "
        "Add_2) reads 0 of the scratchpad of core 0; nothing keeps it apart from launch 0, kernel "
        "k, core 0, unit ml, `load 1 lx[0], hbm[x+0]` of %y = matmul (from MatMul_7), which writes "
        "it"
    )


def test_a_race_that_this_timing_wins_is_found() -> None:
    """The copy starts after 300 cycles of other work, long after the load has arrived."""
    late = Loop(20, (op("fill", (512,), (lx(8, 1),)),))
    streams = pipe(vec_waits=(), signals=())
    made = whole([kernel(**{**streams, "sfp": (late, *streams["sfp"])})])
    run(made, SMALL, {"x": bytes(STICKS * 128)})
    assert kinds(made) == ["race"]


def test_a_write_that_does_not_wait_for_the_reader_is_a_race() -> None:
    """One slot, filled twice: without credits from the reader, and with them."""
    streams: dict[str, Stream] = {
        "ml": (Loop(2, (load(0, signals=(1,)),)),),
        "sfp": (Loop(2, (double(1, 0, waits=(1,)),)),),
    }
    (text,) = found(kernel(**streams))
    assert text.startswith("race: ") and "unit ml" in text and "unit sfp" in text
    streams["ml"] = (Loop(2, (load(0, waits=(2,), signals=(1,)),)),)
    streams["sfp"] = (
        op("sync", signals=(2,)), Loop(2, (double(1, 0, waits=(1,), signals=(2,)),))
    )  # fmt: skip
    assert found(kernel(**streams)) == []


@pytest.mark.parametrize(("slots", "credits"), [(2, 2), (2, 3), (3, 3)])
def test_credits_beyond_the_slots_are_a_race(slots: int, credits: int) -> None:
    turn = Rotate((1,), slots, 1)
    fill = op("load", (1,), (lx(0, 1, rotate=turn), hbm("x", 0, 1)), (2,), (1,))
    use = op("vec", (1,), (lx(9, 1), lx(0, 1, rotate=turn)), (1,), (2,))
    made = kernel(
        ml=(Loop(7, (fill,)),),
        sfp=(replace(op("sync"), signals=(Signal(2, credits),)), Loop(7, (use,))),
    )
    kinds_found = {text.partition(":")[0] for text in found(made)}
    assert kinds_found == ({"race"} if credits > slots else set())


def test_an_own_load_has_not_arrived_when_the_next_begins() -> None:
    index = op(
        "gather", (1,), (lx(1, 1), hbm("x", 0, 0), lx(0)), imm={"stride": 1, "rows": 4},
    )  # fmt: skip
    assert [text.partition(":")[0] for text in found(kernel(ml=(load(0), index)))] == ["race"]
    waits = replace(index, waits=(Wait(1),))
    assert found(kernel(ml=(load(0, signals=(1,)), waits))) == []


def test_loads_arrive_in_order() -> None:
    """The signal of the second says that the first is there too; one unit may write twice."""
    streams: dict[str, Stream] = {
        "ml": (load(0), load(0), load(1, signals=(1,))),
        "sfp": (double(2, 0, waits=(1,)),),
    }
    assert found(kernel(**streams)) == []


def test_sends_to_different_cores_arrive_in_any_order() -> None:
    """Core 0 sends to core 1 and then to core 2; only a sync is told of both."""
    ahead = (load(0, signals=(1,), where=1),)
    reads = (double(1, 4, waits=(5,), where=2),)

    def made(last: tuple[Instr, ...]) -> Kernel:
        first = send(4, 0, 2, waits=(1,), where=1)
        return kernel(3, ml=ahead, rs=(first, *last), sfp=reads)

    told = (Signal(5, 1, 2),)
    to_another = replace(send(4, 0, 4, where=1), signals=told)
    assert [text.partition(":")[0] for text in found(made((to_another,)))] == ["race"]
    assert found(made((replace(send(5, 0, 2, where=1), signals=told),))) == []
    both = (send(4, 0, 4, where=1), replace(op("sync", where=1), signals=told))
    assert found(made(both)) == []


def pieces(first: Instr, *more: Instr | Loop, takes: int) -> Kernel:
    """Core 0 sends to cores 1 and 2; core 1 reads stick 4 after ``takes`` signals of token 5."""
    ahead = (load(0, signals=(1,), where=1),)
    taken = (replace(op("sync", where=2), waits=(Wait(5, takes),)), double(1, 4, where=2))
    return kernel(3, ml=ahead, rs=(replace(first, waits=(Wait(1),)), *more), sfp=taken)


def told(send: Instr) -> Instr:
    return replace(send, signals=(Signal(5, 1, 2),), where=1)


def test_a_step_that_has_nothing_to_send_stays_in_the_line_of_those_that_have() -> None:
    """Its signal is the second one. That there is a send to another core too once made it look as
    if it might be the first."""
    mine = told(replace(send(4, 0, 2), limits=(Limit(1, (1,)),)))
    made = pieces(send(6, 0, 4, where=1), Loop(2, (mine,)), takes=1)
    assert [text.partition(":")[0] for text in found(made)] == ["token"]  # the second is left over


def test_a_step_that_has_nothing_to_send_may_be_overtaken() -> None:
    """It says that all ahead of it have arrived, but it is not one of the first two that signal."""
    mine = told(send(6, 0, 4))
    empty = replace(mine, counts=(1,), limits=(Limit(0),))
    made = pieces(send(4, 0, 2, where=1), mine, empty, mine, takes=2)
    assert [text.partition(":")[0] for text in found(made)] == ["token", "race"]


def exchange(waits: int) -> Kernel:
    """Cores 1 and 2 each send a stick to core 0, which waits for ``waits`` arrivals."""
    mine = replace(send(0, 9, 1, waits=(1,)), where=6)
    mine = replace(
        mine, operands=(replace(mine.operands[0], base=(0, 0, 1)), mine.operands[1]),
        signals=(Signal(2, 1, 1),),
    )  # fmt: skip
    taken = replace(op("recv", imm={"fragments": waits}, where=1), waits=(Wait(2, waits),))
    rest = (replace(taken, waits=(Wait(2, 2 - waits),)),) if waits < 2 else ()
    return kernel(
        3, ml=(load(9, signals=(1,), where=6),), rs=(mine,),
        rr=(replace(taken, signals=(Signal(3),)), *rest), sfp=(double(4, 0, waits=(3,), where=1),),
    )  # fmt: skip


def test_the_first_of_two_arrivals_may_be_either() -> None:
    """One of two signals proves nothing of one sender; both prove all."""
    assert [text.partition(":")[0] for text in found(exchange(1))] == ["race"]
    assert found(exchange(2)) == []


def test_a_multicast_load_must_wait_for_every_member() -> None:
    """Core 0 loads for 0 and 1. Two credits in one counter may both be core 0's."""
    shared = replace(load(0, signals=(), where=1), imm={"cores": 3}, signals=(Signal(1, 1, 3),))
    use = double(1, 0, waits=(1,))

    def made(waits: tuple[Wait, ...], token: int | tuple[int, int]) -> Kernel:
        free = Signal(token, 1, 1)
        return kernel(
            2, ml=(Loop(2, (replace(shared, waits=waits),)),),
            sfp=(replace(op("sync"), signals=(free,)), Loop(2, (replace(use, signals=(free,)),))),
        )  # fmt: skip

    common = found(made((Wait(2, 2),), 2))
    assert common and all(text.startswith("race: ") for text in common)
    assert "core 1, unit sfp" in common[0] or "core 0, unit sfp" in common[0]
    assert found(made((Wait(2), Wait(3)), (2, 3))) == []


def two_launches(early: bool, after: bool, wait: bool) -> Program:
    """Both load into stick 0 and copy it; what may the second begin while the first still runs?"""
    first, second = (
        kernel(
            ml=(replace(load(0, signals=(1,)), waits=(GO,) if wait else ()),),
            sfp=(double(1, 0, waits=(1,)),),
        )
        for _ in range(2)
    )
    args = (("x", 0), ("y", 0))
    launches = (Launch(0, args), Launch(1, args, (0,) if after else (), early))
    return whole((first, second), launches)


def test_an_early_launch_must_wait_for_go_before_it_overwrites() -> None:
    assert kinds(two_launches(early=True, after=True, wait=False)) == ["race"]
    assert kinds(two_launches(early=True, after=False, wait=True)) == ["race"]
    assert kinds(two_launches(early=True, after=True, wait=True)) == []
    assert kinds(two_launches(early=False, after=False, wait=False)) == []


def card_launches(early: bool) -> Program:
    """The first stores y, the second loads it."""
    first = kernel(sfp=(op("fill", (64,), (lx(0, 1),), signals=(1,)),), ms=(store(0, waits=(1,)),))
    again = kernel(ml=(op("load", (1,), (lx(5, 1), hbm("y", 0, 1))),))
    args = (("x", 0), ("y", 0))
    return whole((first, again), (Launch(0, args), Launch(1, args, (0,), early)))


def test_card_memory_is_checked_across_launches() -> None:
    (text,) = [str(finding) for finding in hazards(card_launches(early=True))]
    assert "reads stick 128 of card memory; nothing keeps it apart from launch 0" in text
    assert kinds(card_launches(early=False)) == []


def test_card_memory_is_checked_between_cores_of_a_launch() -> None:
    fill = op("fill", (64,), (lx(0, 1),), signals=(1,))
    (text,) = found(kernel(2, sfp=(fill,), ms=(store(0, waits=(1,)),)))
    assert "core 1, unit ms" in text and "core 0, unit ms" in text and text.startswith("race: ")


def test_card_memory_is_checked_between_units_of_a_core() -> None:
    fill = op("fill", (64,), (lx(0, 1),), signals=(1,))
    back = op("load", (1,), (lx(5, 1), hbm("y", 0, 1)))

    def made(signals: tuple[int, ...]) -> Kernel:
        return kernel(sfp=(fill,), ms=(store(0, waits=(1,), signals=signals),),
                      ml=(replace(back, waits=tuple(map(Wait, signals))),))  # fmt: skip

    texts = found(made(()))
    assert any(text.startswith("race: ") and "unit ms" in text for text in texts)
    assert found(made((2,))) == []


def test_accumulators() -> None:
    product = op(
        "mm", (1, 1, 1, 1, 1, 1), (acc(0), lx(0), lx(1)), waits=(1,), imm={"k_valid": 1}
    )  # fmt: skip
    fills = (op("fill", (64,), (lx(0, 1),)), op("fill", (64,), (lx(64, 1),), signals=(1,)))
    drain = op("vec", (1,), (lx(2, 1), acc(0, 1)))
    texts = found(kernel(pt=(product,), sfp=(*fills, drain)))
    assert "writes 0 of the accumulators of core 0; nothing keeps it apart" in texts[-1]
    told = replace(product, signals=(Signal(2),))
    assert found(kernel(pt=(told,), sfp=(*fills, replace(drain, waits=(Wait(2),))))) == []


def test_what_nothing_has_written() -> None:
    (text,) = found(kernel(sfp=(double(1, 0, note=1),)))
    assert text == (
        "uninitialised: launch 0, kernel k, core 0, unit sfp, `vec 1 lx[1], lx[0]` of %z = add "
        "(from Add_1, Add_2) reads 0 of the scratchpad of core 0, which nothing has written"
    )
    (text,) = found(kernel(ml=(op("load", (1,), (lx(0, 1), hbm("y", 3, 1))),)))
    assert text.endswith("reads stick 3 of temp buffer y, which nothing has written")


def test_an_output_that_is_not_complete() -> None:
    texts = [str(f) for f in find_hazards(program(kernel(**pipe())), SMALL)]
    assert texts == [
        "uninitialised: output buffer y: nothing writes 127 of its 128 sticks, the first is 1"
    ]


def test_one_operand_reads_one_value() -> None:
    """The first launch writes sticks 0 and 1, the second stick 0 only, and reads both."""
    first = kernel(sfp=(op("fill", (128,), (lx(0, 1),)),))
    wide = op("vec", (2,), (lx(4, 1), lx(0, 1)), waits=(1,))
    second = kernel(ml=(load(0, signals=(1,)),), sfp=(wide,))
    (text,) = found(first, second)
    assert text == (
        "mixed: launch 1, kernel k1, core 0, unit sfp, `vec 2 lx[4], lx[0]` of %y = matmul (from "
        "MatMul_7) reads 1 of the scratchpad of core 0 and 0 with it; one was written by launch 0, "
        "kernel k, core 0, unit sfp, `fill 128 lx[0]` of %y = matmul (from MatMul_7), the other by "
        "launch 1, kernel k1, core 0, unit ml, `load 1 lx[0], hbm[x+0]` of %y = matmul (from "
        "MatMul_7)"
    )


def test_one_operand_reads_what_one_op_wrote() -> None:
    both = op("vec", (2,), (lx(4, 1), lx(0, 1)), waits=(1,))

    def made(note: int) -> Kernel:
        return kernel(ml=(load(0), load(1, note=note, signals=(1,))), sfp=(both,))

    assert [text.partition(":")[0] for text in found(made(1))] == ["mixed"]
    assert found(made(0)) == []


def test_results_that_nothing_reads() -> None:
    (text,) = [str(f) for f in find_hazards(whole([kernel(ml=(load(0, note=1),))]), SMALL)]
    assert text == (
        "lost: launch 0, kernel k, core 0, unit ml, `load 1 lx[0], hbm[x+0]` of %z = add (from "
        "Add_1, Add_2) writes what nothing ever reads, on no core and trip"
    )
    over = op("vec", (1,), (lx(0, 1), lx(1, 1)), waits=(1,))
    again = kernel(ml=(load(0), load(1, signals=(1,))), sfp=(over,))
    lost = [f.text.partition("`")[2][:11] for f in find_hazards(whole([again]), SMALL)]
    assert lost == ["load 1 lx[0", "vec 1 lx[0]"]


@pytest.mark.parametrize("note", [0, 1])
def test_a_send_into_a_gap_of_an_exchange_is_not_lost(note: int) -> None:
    """Each core gets the box around what it reads: a piece of it may be for nobody."""
    first = send(4, 0, 2, where=1)
    gap = replace(told(send(6, 0, 2)), note=note)
    findings = find_hazards(whole([pieces(first, gap, takes=1)]), SMALL)
    assert [f.kind for f in findings if "unit rs" in f.text] == ["lost"] * note


def test_a_wait_nothing_signals() -> None:
    texts = found(kernel(sfp=(op("sync", waits=(3,)),)))
    assert texts == [
        "token: token 3 of core 0 is signalled by no instruction; launch 0, kernel k, core 0, unit "
        "sfp, `sync` of %y = matmul (from MatMul_7) waits for it",
        "deadlock: launch 0, kernel k, core 0, unit sfp, `sync` of %y = matmul (from MatMul_7) "
        "waits for signal 1 of token 3; there will never be more than 0",
    ]


def test_a_wait_for_more_than_there_will_be() -> None:
    made = kernel(ml=(op("sync", signals=(3,)),), sfp=(Loop(2, (op("sync", waits=(3,)),)),))
    (text,) = found(made)
    assert "waits for signal 2 of token 3; there will never be more than 1 by launch 0" in text


def test_waits_in_a_circle() -> None:
    made = kernel(
        ml=(op("sync", waits=(1,), signals=(2,)),), sfp=(op("sync", waits=(2,), signals=(1,)),)
    )  # fmt: skip
    texts = found(made)
    assert [text.partition(":")[0] for text in texts] == ["deadlock"] * 2
    assert "unit ml" in texts[0]
    assert "which comes by launch 0, kernel k, core 0, unit sfp" in texts[0]


def test_signals_left_over() -> None:
    """One signal more than is taken; slots handed out by an opening sync may stay."""
    extra = kernel(ml=(Loop(2, (load(0, signals=(1,)),)),), sfp=(op("sync", waits=(1,)),))
    (text,) = found(extra)
    assert text.startswith("token: token 1 of core 0 holds 1 in the end, 0 were handed out")
    assert "unit ml" in text and "unit sfp" in text
    opening = kernel(sfp=(op("sync", signals=(1,)),))
    assert found(opening) == []
    after = (op("sync", waits=(2,)), op("sync", signals=(1,)))
    (text,) = found(kernel(ml=(load(0, signals=(2,)),), sfp=after))
    assert text.startswith("token: token 1 of core 0 holds 1 in the end")


def test_two_units_that_take_from_one_counter() -> None:
    takes = (op("sync", waits=(1,)),)
    made = kernel(ml=(op("sync", signals=(1, 1)),), sfp=takes, pt=takes)
    (text,) = found(made)
    assert "token 1 of core 0 is waited for by" in text and "unit sfp" in text and "unit pt" in text


def test_a_counter_that_overflows_if_its_taker_is_slow() -> None:
    many = Signal(1, 20000)
    twice = (replace(op("sync"), signals=(many,)), replace(op("sync"), signals=(many,)))
    takes = (replace(op("sync"), waits=(Wait(1, 20000),)),) * 2
    (text,) = found(kernel(ml=twice, sfp=takes))
    assert "token 1 of core 0 can reach 40000, a counter holds 32767" in text
    back = (twice[0], replace(twice[1], waits=(Wait(2),)))
    answered = (replace(takes[0], signals=(Signal(2),)), takes[1])
    assert found(kernel(ml=back, sfp=answered)) == []


def test_scratchpad_and_accumulators_have_an_end() -> None:
    last = SMALL.lx.usable_bytes // 128
    (text,) = found(kernel(ml=(load(last),)))
    assert text.endswith(f"writes stick {last} of the scratchpad of core 0, which has {last}")
    wide = op("vec", (2,), (acc(63, 1), lx(0, 1)), waits=(1,))
    first = op("fill", (128,), (lx(0, 1),), signals=(1,))
    texts = found(kernel(sfp=(first, wide)))
    assert texts[0].endswith("writes groups 63..64 of the accumulators of core 0, which has 64")


def test_a_kernel_that_plans_more_scratchpad_than_there_is() -> None:
    made = replace(kernel(**pipe()), lx_bytes=65664)
    assert found(made) == [
        "capacity: kernel k plans 65664 bytes of scratchpad a core, there are 65536"
    ]


def test_card_buffers_have_an_end() -> None:
    (text,) = found(kernel(ml=(op("load", (2,), (lx(0, 1), hbm("x", 127, 1))),)))
    assert text.endswith("reads sticks 127..128 of the input buffer x, which has 128")


def test_constants_are_not_written() -> None:
    made = whole([kernel(**pipe())])
    x, y = made.buffers
    const = Buffer("y", "const", y.size, y.address, bytes(y.size))
    assert kinds(replace(made, buffers=(x, const))) == ["constant"]


def test_the_span_of_a_core() -> None:
    """512 sticks in a launch; two cores may share a larger buffer."""
    size = 1024 * 128

    def made(*bases: int) -> Program:
        streams = tuple(op("load", (1,), (lx(0, 1), hbm("x", b, 1))) for b in bases)
        buffers = (Buffer("x", "input", size, 0), Buffer("y", "temp", 128, size))
        return replace(whole([kernel(ml=streams)]), buffers=buffers)

    assert kinds(made(0, 511)) == []
    (finding,) = hazards(made(0, 512))
    assert finding.kind == "span"
    assert finding.text.endswith(
        "reaches over sticks 0..512 of buffer x, 65664 bytes; the span of a core is 65536"
    )


def test_fragments_of_one_exchange() -> None:
    """The machine takes two; saying two and waiting for three is one too many."""
    sends = tuple(
        replace(send(4, 0, 1, waits=(1,), where=2), signals=(Signal(5, 1, 1),)) for _ in range(3)
    )  # fmt: skip
    taken = replace(op("recv", imm={"fragments": 2}, where=1), waits=(Wait(5, 3),))
    ahead = replace(load(0, where=2), signals=(Signal(1, 3),))
    (text,) = found(kernel(2, ml=(ahead,), rs=sends, rr=(taken,)))
    assert text.startswith("fan-in: ") and "waits for 3 sends at once" in text
    more = replace(taken, imm={"fragments": 3})
    (text,) = found(kernel(2, ml=(ahead,), rs=sends, rr=(more,)))
    assert text.startswith("rule: ") and "it takes 3 fragments" in text


def test_one_finding_for_all_cores_and_trips() -> None:
    streams = pipe(vec_waits=(), signals=())
    looped = {unit: (Loop(5, items),) for unit, items in streams.items() if unit != "ms"}
    made = kernel(4, **looped)
    assert sorted(text.partition(":")[0] for text in found(made)) == ["race", "token"]


def test_the_message_tells_the_first_and_counts_the_rest() -> None:
    syncs = tuple(op("sync", signals=(token,), waits=()) for token in range(1, SHOWN + 5))
    late = (op("fill", (64,), (lx(0, 1),)), *syncs)
    findings = tuple(hazards(whole([kernel(sfp=late)])))
    assert len(findings) == SHOWN + 4
    with pytest.raises(HazardError) as caught:
        refuse(findings)
    lines = str(caught.value).splitlines()
    assert len(lines) == SHOWN + 1 and lines[-1] == "and 4 more findings"
    assert caught.value.findings == tuple(map(str, findings))
    refuse(())
