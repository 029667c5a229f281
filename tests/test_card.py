"""A card: memory with addresses, programs bound once and launched again, state in place, streams
and events on one clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_machine import SMALL
from test_session import Reference, cached, close

import spyrec
from spyrec import driver, runtime
from spyrec.ir.errors import CapacityError, SpyrecError
from spyrec.ir.layout import Layout
from spyrec.runtime.binding import corrections, patched
from spyrec.runtime.memory import data_segments
from spyrec.runtime.state import Form
from spyrec.sim import engine
from spyrec.sim import run as sim_run
from spyrec.sim.device import load_device
from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import Buffer, Kernel, Launch, Program

Array = np.ndarray[Any, Any]
WIDTH = 64
SPYRE = load_device()


def inputs(at: list[int], seed: int = 0) -> dict[str, Array]:
    x = np.random.default_rng(seed).standard_normal((1, len(at), WIDTH)).astype(np.float32)
    return {"x": x, "at": np.array(at)}


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> spyrec.Program:
    return spyrec.compile(cached(tmp_path_factory.mktemp("model") / "decode.pt2", 1))


@pytest.fixture(scope="module")
def prefill(tmp_path_factory: pytest.TempPathFactory) -> spyrec.Program:
    return spyrec.compile(cached(tmp_path_factory.mktemp("model") / "prefill.pt2", 3))


def feed(card: runtime.Card, loaded: runtime.Loaded, given: dict[str, Array],
         stream: str = "main") -> runtime.Fetched:  # fmt: skip
    queue = card.stream(stream)
    for name, array in given.items():
        card.put(queue, loaded, name, array)
    card.launch(queue, loaded)
    return card.get(queue, loaded, "output")


# Memory ------------------------------------------------------------------------------------------


def small_memory() -> runtime.CardMemory:
    return runtime.CardMemory("card memory", data_segments(SMALL))


def test_the_lowest_address_that_fits_in_whole_sticks() -> None:
    memory = small_memory()
    one, two, three = (memory.allocate(n, f"t{n}") for n in (100, 129, 1))
    assert [(p.address, p.size) for p in (one, two, three)] == [(0, 128), (128, 256), (384, 128)]
    memory.free(two)
    assert [memory.allocate(n, "t").address for n in (300, 256)] == [512, 128]


def test_a_piece_lies_in_one_segment_and_not_on_another() -> None:
    memory = small_memory()
    memory.allocate(400_000, "a")
    assert memory.allocate(200_000, "b").address == 524288
    assert memory.allocate(100_000, "c").address == 400_000


def test_no_room_is_a_sentence() -> None:
    memory = small_memory()
    with pytest.raises(CapacityError) as caught:
        memory.allocate(524289, "input x of big.onnx")
    assert str(caught.value) == (
        "card memory: input x of big.onnx needs 524416 bytes; a piece lies in one segment, and the "
        "largest has 524288"
    )
    memory.allocate(524288, "a")
    memory.allocate(400_000, "b")
    with pytest.raises(CapacityError) as caught:
        memory.allocate(200_000, "temp pool of other.onnx")
    assert str(caught.value) == (
        "card memory: temp pool of other.onnx needs 200064 bytes; 924288 of 1048576 are taken and "
        "the largest free piece has 124288; unload a program that is not needed"
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200_000)), max_size=40))
def test_pieces_never_overlap(steps: list[tuple[bool, int]]) -> None:
    memory, live = small_memory(), []
    for frees, size in steps:
        if frees and live:
            memory.free(live.pop(size % len(live)))
            continue
        try:
            live.append(memory.allocate(size, "t"))
        except CapacityError:
            assert all(end - low < size + 128 or size > end - low
                       for low, end in memory._holes())  # fmt: skip
    taken = sorted((p.address, p.end) for p in live)
    assert [(p.address, p.end) for p in memory.allocations] == taken
    assert all(end <= low for (_, end), (low, _) in pairwise(taken))
    assert all(low // 524288 == (end - 1) // 524288 and low % 128 == 0 for low, end in taken)
    assert memory.used_bytes == sum(p.size for p in live)


def test_equal_constants_are_one_piece_until_the_last_user_goes() -> None:
    memory = small_memory()
    one, two = memory.share(b"w" * 256, "w1"), memory.share(b"w" * 256, "w2")
    assert one is two and memory.used_bytes == 256
    assert memory.share(b"v" * 256, "v") is not one
    memory.free(one)
    assert not two.freed
    memory.free(two)
    assert two.freed and memory.used_bytes == 256
    with pytest.raises(SpyrecError, match=r"^w1 was already freed$"):
        memory.free(two)
    with pytest.raises(SpyrecError, match=r"^nothing is allocated at 0x0\.\.0x80$"):
        memory.at(0, 128)


# Binding -----------------------------------------------------------------------------------------


def linked() -> Program:
    kernel = Kernel("k", {}, ("p", "q"), cores=1)
    buffers = (Buffer("a", "input", 128), Buffer("b", "output", 256, 128))
    launches = (Launch(0, (("a", 0), ("b", 128))), Launch(0, (("b", 0), ("a", 0)), (0,)))
    return Program((kernel,), buffers, launches)


def test_corrections_are_one_word_a_relocation_and_patch_back() -> None:
    words = corrections(linked(), {"a": 0x1000, "b": 0x4000})
    assert words.tolist() == [0x1000, 0x4080, 0x4000, 0x1000]
    assert patched(linked(), words).addresses == {"a": 0x1000, "b": 0x4000}


def test_wrong_corrections_are_noticed() -> None:
    words = corrections(linked(), {"a": 0x1000, "b": 0x4000})
    with pytest.raises(SimulationError, match="4 relocations, but 3 corrections were copied"):
        patched(linked(), words[:3])
    words[3] = 0x2000
    with pytest.raises(SimulationError) as caught:
        patched(linked(), words)
    assert str(caught.value) == (
        "buffer a is at 0x1000 by one correction and at 0x2000 by another"
    )


# Programs on a card ------------------------------------------------------------------------------


def test_a_bound_program_is_launched_again_with_nothing_rebuilt(
    decode: spyrec.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second launch neither compiles nor checks nor unrolls nor patches anything."""
    counted: dict[str, int] = {}

    def count(module: Any, name: str) -> None:
        original = getattr(module, name)

        def wrapped(*args: Any, **more: Any) -> Any:
            counted[name] = counted.get(name, 0) + 1
            return original(*args, **more)

        monkeypatch.setattr(module, name, wrapped)

    count(engine, "expand")
    count(sim_run, "check_program")
    count(runtime.loaded, "bind")
    count(driver, "compile_module")
    card = runtime.Card()
    loaded = card.load(decode)
    feed(card, loaded, inputs([3]))
    card.synchronize()
    kernels = len({launch.kernel for launch in decode.code.launches})
    assert counted == {"check_program": 1, "expand": kernels, "bind": 1}
    before, spans = dict(counted), len(card.timeline)
    result = feed(card, loaded, inputs([4], 1))
    card.synchronize()
    assert counted == before
    assert result.value.shape == (1, WIDTH)
    host = SPYRE.host
    assert [(s.lane, s.what) for s in card.timeline[spans:]] == [
        ("up", f"x of {loaded.name}"), ("up", f"at of {loaded.name}"), ("host", loaded.name),
        ("device", loaded.name), ("down", f"output of {loaded.name}"),
    ]
    [step] = [s for s in card.timeline[spans:] if s.lane == "host"]
    assert step.cycles == SPYRE.host_cycles(1000 * host.submit_us)


def test_a_launch_on_the_card_is_a_cold_run_in_cycles_and_numbers(decode: spyrec.Program) -> None:
    card = runtime.Card()
    loaded, given = card.load(decode), inputs([3])
    got = feed(card, loaded, given)
    card.synchronize()
    cold = spyrec.simulate(decode, given)
    np.testing.assert_array_equal(got.value, cold.outputs["output"])
    assert loaded.ran is not None and loaded.ran.total_cycles == cold.total_cycles
    one = loaded.ran
    card.launch(card.stream(), loaded, timing_only=True)
    card.synchronize()
    assert loaded.ran is one  # time does not depend on data: known


def test_prefill_and_decode_share_state_in_place_and_equal_weights(
    prefill: spyrec.Program, decode: spyrec.Program
) -> None:
    card, reference = runtime.Card(), Reference()
    first, second = card.load(prefill, "model"), card.load(decode, "model")
    rooms = [[k.state.piece for k in loaded.kept] for loaded in (first, second)]
    assert rooms[0] == rooms[1] and all(k.in_place for k in (*first.kept, *second.kept))
    addresses = [p.address for p in rooms[0]]
    for loaded, at in ((first, [0, 1, 5]), (second, [6]), (second, [2])):
        given = inputs(at, len(at))
        got = feed(card, loaded, given)
        card.synchronize()
        close(got.value, reference.run(given["x"], given["at"]))
        assert [k.state.piece.address for k in loaded.kept] == addresses
    close(card.state(first)["cache"][0], reference.cache)
    assert not card.notes
    again = card.load(decode, "model")
    assert [again.pieces[b.name] for b in decode.code.buffers if b.kind == "const"
            and b.name in again.pieces] == [
        second.pieces[b.name] for b in decode.code.buffers if b.kind == "const"
        and b.name in second.pieces
    ]  # fmt: skip


def test_a_constant_that_shares_its_place_is_refused() -> None:
    p = linked()
    const = Buffer("c", "const", 128, 256, bytes(128))
    card = runtime.Card()
    with pytest.raises(SimulationError, match="constant buffer c shares card memory with b; give"):
        card.load(spyrec.Program(replace(p, buffers=(*p.buffers, const), launches=(
            Launch(0, (("c", 0), ("b", 0))),))))  # fmt: skip
    assert not card.memory.used_bytes


def test_models_apart_have_state_apart(decode: spyrec.Program) -> None:
    card = runtime.Card()
    one, other = card.load(decode, "a"), card.load(decode, "b")
    feed(card, one, inputs([3]))
    card.synchronize()
    assert card.state(one)["cache"].any() and not card.state(other)["cache"].any()


def test_a_state_that_is_not_surely_read_before_it_is_written_has_two_rooms(
    decode: spyrec.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rooms change places; each is bound once."""
    monkeypatch.setattr(runtime.card, "overwritable", lambda *_: frozenset())
    card, reference = runtime.Card(), Reference()
    loaded = card.load(decode)
    seen = []
    for step, at in enumerate(([0], [3], [3], [7], [1])):
        given = inputs(at, step)
        got = feed(card, loaded, given)
        card.synchronize()
        close(got.value, reference.run(given["x"], given["at"]))
        seen.append([k.state.piece.address for k in loaded.kept])
    assert seen[0] == seen[2] == seen[4] != seen[1] == seen[3]
    assert len(loaded.bindings) == 2
    close(card.state(loaded)["cache"][0], reference.cache)


def test_a_state_that_programs_lay_out_differently_is_converted_at_a_stated_cost(
    prefill: spyrec.Program, decode: spyrec.Program
) -> None:
    """Decode with a cache whose sticks are of another order."""
    old = next(b for b in decode.code.buffers if b.meta.get("name") == "cache")
    layout = Layout.stick((1, 8, WIDTH), 16, 1)
    card, reference = runtime.Card(), Reference()
    loaded = card.load(decode)
    [kept] = [k for k in loaded.kept if k.state.name == "cache"]
    given = inputs([2])
    feed(card, loaded, given)
    card.synchronize()
    reference.run(given["x"], given["at"])
    strange = Form("dl16", layout, layout.sticks * 128)
    assert not Form.of(kept.reads).reads(strange)
    port = replace(kept.reads, layout=layout, buffer=replace(old, size=strange.size))
    held = kept.state.get(kept.reads)
    kept.state.claim(card.memory, strange, 1)
    kept.state.put(port, held, kept.state.other(strange))  # as another program would leave it
    given = inputs([5], 1)
    spans = len(card.timeline)
    got = feed(card, loaded, given)
    card.synchronize()
    close(got.value, reference.run(given["x"], given["at"]))
    moved = strange.size + old.size
    us = sum(SPYRE.us(SPYRE.host_cycles(SPYRE.host.link_ns(n))) for n in (strange.size, old.size))
    assert card.notes == [
        f"state 'cache' lies as dl16 {layout}, {loaded.name} reads it as dl16 "
        f"{kept.reads.layout}: laid out anew by the host, {moved} bytes over the link, {us:.1f} us"
    ]
    assert [s.what for s in card.timeline[spans:]].count(f"cache for {loaded.name}") == 2


def test_reset_puts_the_first_state_back(decode: spyrec.Program) -> None:
    card = runtime.Card()
    loaded = card.load(decode)
    first = card.state(loaded)
    feed(card, loaded, inputs([1]))
    assert card.state(loaded)["cache"].any()
    card.reset(loaded)
    for name, array in card.state(loaded).items():
        np.testing.assert_array_equal(array, first[name])


def test_state_can_be_put_from_the_host(decode: spyrec.Program) -> None:
    card = runtime.Card()
    loaded = card.load(decode)
    cache = np.full((1, 8, WIDTH), 2, np.float32)
    got = feed(card, loaded, {**inputs([0]), "cache": cache})
    card.synchronize()
    want = (inputs([0])["x"][0] + 14) * (np.linspace(1, 2, WIDTH, dtype=np.float32) + 1)
    close(got.value, want)


# What is refused ---------------------------------------------------------------------------------


def test_wrong_arrays_missing_inputs_and_unloaded_programs(decode: spyrec.Program) -> None:
    card = runtime.Card()
    loaded, stream = card.load(decode), card.stream()
    with pytest.raises(SpyrecError) as caught:
        card.put(stream, loaded, "x", np.zeros((1, 2, WIDTH), np.float32))
    assert str(caught.value) == (
        f"{loaded.name}: input 'x': expected float32[1, 1, 64], got float32[1, 2, 64]"
    )
    with pytest.raises(SpyrecError, match=r"'y' is no input of .*; it has x, at, cache, counter"):
        card.put(stream, loaded, "y", np.zeros(1))
    card.put(stream, loaded, "x", inputs([0])["x"])
    card.launch(stream, loaded)
    with pytest.raises(SpyrecError, match="launched before anything was put into its input 'at'"):
        card.synchronize()
    with pytest.raises(SpyrecError, match="has not arrived yet; call synchronize"):
        _ = card.get(stream, loaded, "output").value
    used = card.memory.used_bytes
    card.unload(loaded)
    assert used and not card.memory.used_bytes and not card.program_memory.used_bytes
    for attempt in (lambda: card.launch(stream, loaded), lambda: card.unload(loaded)):
        with pytest.raises(SpyrecError, match="was unloaded and its card memory freed; load"):
            attempt()
    with pytest.raises(SpyrecError, match="was unloaded"):
        card.synchronize()  # the output was still to be fetched
    with pytest.raises(SpyrecError, match="stream main is none of this card"):
        card.launch(runtime.Card().stream(), card.load(decode))


def test_a_program_that_does_not_fit_leaves_nothing_behind(decode: spyrec.Program) -> None:
    hbm = replace(SPYRE.hbm, bytes=8192, segment_bytes=8192)
    card = runtime.Card(replace(SPYRE, hbm=hbm))
    one = card.load(decode, "a")
    before = card.memory.used_bytes
    with pytest.raises(CapacityError, match=r"^card memory: .* needs \d+ bytes; \d+ of 8192 are"):
        for name in "bcdefg":
            one = card.load(decode, name)
    card.unload(one)
    used = card.memory.used_bytes
    assert used % 128 == 0 and used >= before
    card.load(decode, "z")
    assert card.memory.used_bytes > used


# Streams and events ------------------------------------------------------------------------------


def test_streams_are_in_order_and_events_order_them(decode: spyrec.Program) -> None:
    card = runtime.Card()
    loaded = card.load(decode)
    one, two = card.stream("one"), card.stream("two")
    ready = runtime.Event("inputs are there")
    card.wait(two, ready)
    card.launch(two, loaded)
    for name, array in inputs([1]).items():
        card.put(one, loaded, name, array)
    card.record_event(one, ready)
    done = card.record(two)
    card.wait(one, done)
    got = card.get(one, loaded, "output")
    end = card.synchronize()
    assert got.value.any()
    spans = {(s.stream, s.lane): s for s in card.timeline}
    assert ready.cycle is not None and done.cycle is not None
    assert spans["one", "up"].end_cycle <= ready.cycle <= spans["two", "device"].start_cycle
    assert spans["two", "device"].end_cycle == done.cycle <= spans["one", "down"].start_cycle
    assert spans["one", "down"].end_cycle == end


def test_lanes_are_never_taken_twice_and_copies_overlap_work(decode: spyrec.Program) -> None:
    card = runtime.Card()
    loaded, other = card.load(decode, "a"), card.load(decode, "b")
    for turn in range(3):
        feed(card, loaded, inputs([turn], turn), "one")
        feed(card, other, inputs([turn], turn), "two")
    card.synchronize()
    for lane in ("host", "up", "down", "device"):
        spans = sorted((s.start_cycle, s.end_cycle) for s in card.timeline if s.lane == lane)
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), lane
    for name in ("one", "two"):
        mine = [s for s in card.timeline if s.stream == name and s.lane != "host"]
        assert all(a.end_cycle <= b.start_cycle for a, b in pairwise(mine))
    work = [s for s in card.timeline if s.lane in ("host", "device") and s.stream == "one"]
    copies = [s for s in card.timeline if s.lane == "up" and s.stream == "two"]
    assert any(c.start_cycle < w.end_cycle and w.start_cycle < c.end_cycle
               for c in copies for w in work)  # fmt: skip


def test_two_runs_give_one_timeline(decode: spyrec.Program) -> None:
    def timeline() -> list[runtime.Span]:
        card = runtime.Card()
        loaded = card.load(decode)
        for turn in range(3):
            feed(card, loaded, inputs([turn]), ("one", "two")[turn % 2])
        card.synchronize()
        return card.timeline

    assert timeline() == timeline()


def test_circles_of_waits_and_waits_for_nothing_are_told() -> None:
    card = runtime.Card()
    a, b, c = (card.stream(name) for name in "abc")
    x, y = runtime.Event("x"), runtime.Event("y")
    card.wait(a, x)
    card.record_event(a, y)
    card.wait(b, y)
    card.record_event(b, x)
    card.wait(c, runtime.Event("z"))
    with pytest.raises(SpyrecError) as caught:
        card.synchronize()
    assert str(caught.value) == (
        "streams wait for one another: stream a for event x, which stream b records only later; "
        "stream b for event y, which stream a records only later\n"
        "stream c waits for event z, which no stream records"
    )
    own = runtime.Card()
    w = runtime.Event("w")
    own.wait(own.stream(), w)
    own.record_event(own.stream(), w)
    with pytest.raises(SpyrecError) as caught:
        own.synchronize()
    assert str(caught.value) == (
        "streams wait for one another: stream main for event w, which itself records only later"
    )
    with pytest.raises(SpyrecError, match="event w is already recorded by stream main"):
        own.record_event(own.stream("other"), w)
