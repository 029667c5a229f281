"""Attention with its keys in parts: the same numbers, kernels that hold one part of the scores, and
the choice of ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Graph, module, run_program

from spyrec.driver import compile_module, lower_module
from spyrec.ir.core import Builder, Module, Op, Value
from spyrec.ir.interp import run as interpret
from spyrec.ir.ops import attributes
from spyrec.ir.types import dtype, tensor
from spyrec.passes.attention_blocks import AttentionBlocks, Way, best_way
from spyrec.passes.attention_parts import Block, blocks_of, parts_of
from spyrec.passes.attention_price import AttentionPrice
from spyrec.passes.decompose import decompose
from spyrec.passes.legalize_dtypes import legalize
from spyrec.passes.manager import Pass, Target, fitted, output_error
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.trial import Trial
from spyrec.sim.device import load_device

TARGET = Target(load_device())
MASKS = ("none", "causal", "window", "bool", "numbers", "bool input", "numbers input", "blind")
Array = np.ndarray[Any, Any]


def mask_array(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """``blind``: some rows see no key at all."""
    rows, columns = shape[-2:]
    place = np.arange(columns) - np.arange(rows)[:, None]
    if kind == "window":
        return np.broadcast_to((place <= 0) & (place > -37), shape)
    keep = rng.random(shape) < 0.4
    keep[..., 0] = True
    if kind == "blind":
        keep[..., ::7, :] = False
    if kind.startswith("numbers"):
        return np.where(keep, rng.normal(size=shape), -np.inf).astype(np.float32)
    return keep


def attention(
    heads: int, groups: int, rows: int, columns: int, mask: str, seed: int = 0, batch: int = 1,
    **attrs: Any,
) -> Module:
    """Keys and values 24 and 40 deep; the mask one of MASKS."""
    rng = np.random.default_rng(seed)
    shape = (heads if seed % 2 else 1, rows, columns)
    inputs = [("q", (batch, heads, rows, 24), "f32"), ("k", (batch, groups, columns, 24), "f32"),
              ("v", (batch, groups, columns, 40), "f32")]  # fmt: skip
    if mask.endswith("input"):
        inputs.append(("m", shape, "bool" if mask.startswith("bool") else "f32"))

    def make(g: Graph, q: Value, k: Value, v: Value, *given: Value) -> list[Value]:
        masks = list(given)
        if mask not in ("none", "causal") and not masks:
            array = mask_array(mask, shape, rng)
            masks = [g.constant(array, dtype("bool" if array.dtype == np.bool_ else "f32"))]
        return [g("attention", q, k, v, *masks, causal=mask == "causal", **attrs)]

    return module(make, *inputs)


def inputs_of(m: Module, mask: str, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed + 1)
    return {
        v.name: mask_array(mask, v.type.static_shape, rng) if v.name == "m"
        else rng.normal(0, 2, v.type.static_shape).astype(np.float32)
        for v in m.body.args
    }  # fmt: skip


def output(m: Module, inputs: dict[str, Array]) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return interpret(m, fitted(m, inputs))["o0"]


def cut(m: Module, rows: int, keys: int) -> Module:
    return AttentionBlocks(rows, keys).run(m, TARGET)


def no_number(a: Array) -> Array:
    return np.isnan(a).all(axis=-1)


# The same numbers ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_keys_in_parts_give_what_all_at_once_give(data: st.DataObject) -> None:
    """In single precision; in the device's format they are about as far from it as all at once."""
    draw = data.draw
    groups, share = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    rows, columns = (draw(st.sampled_from((2, 33, 64, 100))) for _ in range(2))
    mask, seed = draw(st.sampled_from(MASKS)), draw(st.integers(0, 99))
    hidden = draw(st.sampled_from((-np.inf, -1e9, float(np.finfo(np.float32).min))))
    m = attention(groups * share, groups, rows, columns, mask, seed, draw(st.integers(1, 2)),
                  hidden=hidden, scale=draw(st.sampled_from((None, 0.3))))  # fmt: skip
    way = cut(m, draw(st.sampled_from((0, 16, 64))), draw(st.sampled_from((16, 50, 64))))
    inputs = inputs_of(m, mask, seed)
    want = output(m, inputs)
    assert output_error(want, output(decompose(way), inputs)) <= 3e-6
    if np.isnan(want).any():  # a row without a key has no number; the device's format has
        return
    plain, parts = (output(legalize(decompose(x), "dl16"), inputs) for x in (m, way))
    assert output_error(want, parts) <= 2 * output_error(want, plain) + 1e-3


@pytest.mark.parametrize("kind", ["bool", "f32"])
def test_a_row_that_sees_no_key_gives_what_it_gave(kind: str) -> None:
    """No number where hidden scores are -inf; on the device, whose lowest number is finite, and
    where the score is finite, the mean of all values: as all keys at once do."""
    seen = np.ones((100, 130), bool)
    seen[5], seen[70, :64] = False, False
    array = seen if kind == "bool" else np.where(seen, 0, -np.inf).astype(np.float32)

    def make(hidden: float, g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        return [g("attention", q, k, v, g.constant(array, dtype(kind)), hidden=hidden)]

    shapes = [(n, (1, 2, rows, 24), "f32") for n, rows in (("q", 100), ("k", 130), ("v", 130))]
    m = module(partial(make, -np.inf), *shapes)
    way = cut(m, 64, 64)
    inputs = inputs_of(m, "none", 0)
    want, got = output(m, inputs), output(decompose(way), inputs)
    assert no_number(want).nonzero()[2].tolist() == [5, 5]
    assert output_error(want, got) <= 3e-6
    mean = inputs["v"].mean(axis=2)
    got = output(legalize(decompose(way), "dl16"), inputs)
    assert np.abs(got[:, :, 5] - mean).max() < 0.01
    if kind == "bool":
        low = module(partial(make, -1e9), *shapes)
        assert np.abs(output(decompose(cut(low, 64, 64)), inputs)[:, :, 5] - mean).max() < 1e-5


@pytest.mark.parametrize("groups, mask", [(2, "causal"), (1, "window")])
def test_parts_of_keys_on_the_device(groups: int, mask: str) -> None:
    m = attention(2, groups, 150, 150, mask)
    program = compile_module(m, TARGET, pipeline=in_parts(64, 64), plan_budget=0).program
    assert run_program(m, program).worst >= 0.9999
    macs = sum(int(program.kernels[n.kernel].info.get("macs", 0)) for n in program.launches)
    seen = {  # of 150 keys by 64, 64 and 22 rows
        "causal": 64 * 64 + 64 * 128 + 22 * 150, "window": 64 * 64 + 64 * 128 + 22 * 86,
    }[mask]  # fmt: skip
    assert macs == 2 * seen * (24 + 40)


def in_parts(rows: int, keys: int) -> Sequence[Pass]:
    return [AttentionBlocks(rows, keys) if p.name == "attention-blocks" else p for p in PIPELINE]


# Parts and kernels --------------------------------------------------------------------------------


def test_parts_that_a_mask_hides_from_all_rows_are_left_out() -> None:
    place = np.arange(256) - np.arange(256)[:, None]
    ends = (place <= 0) & ((place > -20) | (np.arange(256) < 10))
    *_, last = blocks_of(256, 256, 64, ends)
    assert last == Block(192, 256, 0, 256, False, True)
    assert parts_of(last, 64, 256, 256, ends) == (
        Block(192, 256, 0, 64, False, True), Block(192, 256, 128, 192, False, False),
        Block(192, 256, 192, 256, False, True),
    )  # fmt: skip
    assert [(p.start, p.all) for p in parts_of(last, 64, 256, 256, None)] == [
        (0, False), (64, False), (128, False), (192, False)
    ]  # fmt: skip


def test_a_row_without_keys_keeps_all_parts() -> None:
    seen = np.zeros((64, 192), bool)
    seen[1:, 64:128] = True
    (block,) = blocks_of(64, 192, 64, seen)
    assert [(p.start, p.stop) for p in parts_of(block, 64, 64, 192, seen)] == [
        (0, 64), (64, 128), (128, 192)
    ]  # fmt: skip


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_each_part_has_kernels_of_its_own(parts: int) -> None:
    """Two products and one vector kernel a part, each of which reads the scores of one part: none
    waits for scores of the next."""
    m = cut(attention(4, 2, 128, 64 * parts, "none"), 0, 64)
    last = next(i for i, p in enumerate(PIPELINE) if p.name == "fuse")
    done = lower_module(m, TARGET, pipeline=PIPELINE[: last + 1])
    kernels = [op for op in done.body.ops if op.name == "kernel"]
    kinds = [op.attrs["kind"] for op in kernels]
    assert (kinds.count("contract"), kinds.count("vec")) == (2 * parts, parts)
    for op in kernels:
        if op.attrs["kind"] == "vec":
            assert sum(v.type.static_shape[-1] == 64 for v in op.operands) == 1
            numbers = [v for v in op.results if v.type.static_shape[-1] == 1]
            assert (len(op.results), len(numbers)) in ((3, 2), (4, 3))


# The choice ---------------------------------------------------------------------------------------


def causal(tokens: int, heads: int = 32, groups: int = 8) -> Op:
    b = Builder()
    q, k, v = (b.value(n, tensor((1, h, tokens, 128), "dl16"))
               for n, h in (("q", heads), ("k", groups), ("v", groups)))  # fmt: skip
    op = b.op("attention", [q, k, v], causal=True)
    return replace(op, attrs=attributes(op))


class Tried:
    """A target's simulator that gives these cycles, one after the other."""

    def __init__(self, *cycles: int | None) -> None:
        self.left = list(cycles)
        self.seen: list[Module] = []

    def __call__(self, m: Module) -> Trial | None:
        self.seen.append(m)
        found = self.left.pop(0)
        return None if found is None else Trial(found, (), 0)


@pytest.mark.parametrize(
    "tokens, way", [(128, Way()), (512, Way()), (2048, Way(256, 512)), (4096, Way(256, 512))]
)
def test_many_keys_come_in_parts(tokens: int, way: Way) -> None:
    """Scores of all keys by 256 rows go to card memory from 2048 tokens on; those of 512 do not."""
    assert best_way(causal(tokens), [], TARGET) == way


@pytest.mark.parametrize(
    "cycles, way",
    [
        ((1000, 949), Way(256, 512)), ((1000, 951), Way(256)), ((None, 10), Way(256, 512)),
        ((1000, None), Way(256)), ((None, None), Way(256)),
    ],
)  # fmt: skip
def test_close_ways_are_tried_out(cycles: tuple[int | None, ...], way: Way) -> None:
    tried = Tried(*cycles)
    assert best_way(causal(1024), [], replace(TARGET, attempt=tried)) == way
    assert not tried.left
    names = [{op.attrs["ops"] for op in m.body.ops if op.name == "kernel"} for m in tried.seen]
    assert all("neg" in found and "matmul,mul,where" in found for found in names)


def test_ways_that_are_far_apart_are_not_tried() -> None:
    assert best_way(causal(2048), [], replace(TARGET, attempt=Tried())) == Way(256, 512)
    assert best_way(causal(256), [], replace(TARGET, attempt=Tried())) == Way()


def test_equal_layers_are_decided_once() -> None:
    def make(g: Graph, q: Value, k: Value, v: Value) -> list[Value]:
        for _ in range(3):
            q = g("attention", q, k, v, causal=True)
        return [q]

    shapes = [(n, (1, h, 1024, 128), "f16") for n, h in (("q", 32), ("k", 8), ("v", 8))]
    tried = Tried(1000, 900)
    done = AttentionBlocks().run(module(make, *shapes), replace(TARGET, attempt=tried))
    ways = [(op.attrs["rows"], op.attrs["keys"]) for op in done.body.ops]
    assert ways == [(256, 512)] * 3


def test_scores_that_leave_the_card_cost_the_bus() -> None:
    """16 MiB of scores there and back, at the rates of the bus."""
    price = AttentionPrice(causal(2048), TARGET.device)
    hbm, nbytes = TARGET.device.hbm, 1 << 19
    away = price._spilled((2 * nbytes, 1 << 20), nbytes)
    want = 32 * nbytes * (1 / hbm.write_bytes_per_cycle + 1 / hbm.bytes_per_cycle)
    assert away == pytest.approx(want, rel=0.02)
    assert price._spilled((nbytes, 1 << 19), nbytes) == 0
