"""Convolutions of few channels in frames of columns: the same numbers, and what decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Graph, module, random_inputs, run_binary

from spyrec.driver import compile_module
from spyrec.ir.core import Module, Value
from spyrec.ir.interp import run
from spyrec.ir.verifier import verify
from spyrec.passes import frame_columns
from spyrec.passes.frame_columns import FrameColumns, frames
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.device import load_device
from spyrec.sim.run import run as run_card

TARGET = Target(load_device())


def convolution(
    channels: int, filters: int, size: tuple[int, int], kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1), dilations: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0), follow: bool = False,
) -> Module:
    """A 2-D convolution; ``follow``: what models put behind one, on two ways, and an output that
    reads the convolution itself."""

    def make(g: Graph, x: Value) -> list[Value]:
        w = g.weight(filters, channels, *kernel)
        y = g("conv", x, w, strides=strides, dilations=dilations, pads=pads)
        if not follow:
            return [y]
        z = g("add", y, g.weight(1, filters, 1, 1))
        return [g("mul", z, g("sigmoid", z)), g("add", y, g.weight(*y.type.static_shape))]

    return module(make, ("x", (1, channels, *size), "f32"))


@st.composite
def convolutions(draw: st.DrawFn) -> Module:
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 9)))
    dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = tuple(n + draw(st.integers(0, 20)) for n in reach)
    pads = draw(st.tuples(*(st.integers(0, n - 1) for n in (*reach, *reach))))
    return convolution(
        draw(st.integers(1, 4)), draw(st.integers(1, 5)), (size[0], size[1]), kernel,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 4))), dilations,
        (pads[0], pads[1], pads[2], pads[3]), draw(st.booleans()),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.integers(0, 30))
def test_frames_change_no_number(before: Module, which: int) -> None:
    """Every frame a convolution may be cut into, whatever it costs."""
    (conv,) = [op for op in before.body.ops if op.name == "conv"]
    every = list(frames(conv))
    if not every:
        return
    chosen = every[which % len(every)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_columns, "framed_cycles", lambda op, f, device: f != chosen)
        patch.setattr(frame_columns, "plain_cycles", lambda op, source, device: 2.0)
        after = FrameColumns().run(before, TARGET)
    verify(after)
    made = next(op for op in after.body.ops if op.name == "conv")
    channels = conv.operands[0].type.static_shape[1]
    assert made.operands[0].type.static_shape[1] == channels * chosen.columns
    inputs = random_inputs(before)
    wanted, made_now = run(before, inputs), run(after, inputs)
    for name, want in wanted.items():
        np.testing.assert_allclose(made_now[name], want, rtol=1e-4, atol=1e-4)


DECIMATOR = convolution(1, 1, (1, 8192), (1, 256), (1, 2))
IMAGE = convolution(3, 16, (640, 640), (3, 3), (2, 2), pads=(1, 1, 1, 1))


@pytest.mark.parametrize(("model", "least"), [(DECIMATOR, 6.0), (IMAGE, 3.0)])
def test_worth_it_on_the_card(model: Module, least: float) -> None:
    """A filter over a long row, and an image whose pixels would be a stick each."""
    without = [p for p in PIPELINE if p.name != "frame-columns"]
    plain, framed = (
        run_card(compile_module(model, TARGET, pipeline=p).program, TARGET.device, timing_only=True)
        for p in (without, PIPELINE)
    )
    assert plain.total_cycles > least * framed.total_cycles


@pytest.mark.parametrize("follow", [False, True])
def test_on_the_card(follow: bool) -> None:
    model = convolution(1, 3, (2, 700), (1, 64), (1, 2), pads=(0, 5, 0, 70), follow=follow)
    after = FrameColumns().run(model, TARGET)
    assert any(
        op.name == "conv" and op.operands[0].type.static_shape[1] > 1 for op in after.body.ops
    )
    assert run_binary(model).worst > 0.9999


@pytest.mark.parametrize(
    "model",
    [
        convolution(64, 64, (16, 16), (3, 3), pads=(1, 1, 1, 1)),
        convolution(3, 64, (14, 14), (1, 1)),
    ],
)
def test_left_alone(model: Module) -> None:
    """Enough channels fill the lanes, and a small image is not worth the moves."""
    after = FrameColumns().run(model, TARGET)
    assert [op.name for op in after.body.ops] == [op.name for op in model.body.ops]
