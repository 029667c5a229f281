"""A matrix product whose fp32 sums do not fit the scratchpads, as the card runs it: the inner
dimension outermost, in steps, with the sums of every core in card memory between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spyrec.driver import Compiled, compile_module
from spyrec.ir.core import Module, Op
from spyrec.ir.parser import parse_module
from spyrec.passes.fuse import Fuse
from spyrec.passes.manager import Pass, Target, run_pipeline
from spyrec.passes.merge_programs import MergePrograms
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.share_launches import ShareLaunches
from spyrec.passes.tiling import Tiling
from spyrec.sim.device import DeviceSpec
from spyrec.validate import LONE_SHARE
from spyrec.validate_plans import LANES

Shape = tuple[int, int, int]
"""(M, N, K)."""
Parts = tuple[int, int, int]
"""Along (m, n, k), each without a remainder."""

SUM_BYTES, ELEMENT_BYTES = 4, 2
PIECE_BYTES = 1 << 18
"""Of the second factor that a core holds during a step. Inferred: 8, 16 and 16 steps are what the
published times of 4096, 6144 and 8192 columns need (M 2048, K 8192, cut 1, 8, 4)."""


def overflows(shape: Shape, parts: Parts, device: DeviceSpec) -> bool:
    """Whether the fp32 sums of a core are more than its scratchpad. Published: those of 2048 x 2048
    cut 1, 8, 4 take 2 MiB and just fit."""
    rows, columns = shape[0] // parts[0], shape[1] // parts[1]
    return rows * columns * SUM_BYTES > device.lx.bytes


def steps_of(shape: Shape, parts: Parts) -> int:
    """Steps along K: so many that a core's piece of the second factor is PIECE_BYTES at most. They
    divide a core's K into whole sticks."""
    columns, inner = shape[1] // parts[1], shape[2] // parts[2]
    sticks = inner // LANES
    fitting = (
        steps for steps in range(1, sticks + 1)
        if sticks % steps == 0 and inner // steps * columns * ELEMENT_BYTES <= PIECE_BYTES
    )  # fmt: skip
    return next(fitting, sticks)


def compile_spilled(shape: Shape, parts: Parts, steps: int, device: DeviceSpec) -> Compiled:
    """The product in ``steps``: x[M, K] in 16 bits comes as x0, x1, ..., one for each step, w[K, N]
    as w0, w1, ...

    All steps but the last: the ``k`` terms of the K-split are a batch, [k, M, K/k/steps] times
    [k, K/k/steps, N]; the fp32 sums of the step before, [k, M, N], are read and added, and written.
    Then the terms are added up, to [M, N]. The last step, [M, K/steps] times [K/steps, N], is a
    K-split: its terms go over the ring of partial sums, and where they end up the sums of all steps
    before are added. Output y[M, N].
    """
    target = Target(device)
    at = next(i for i, step in enumerate(PIPELINE) if isinstance(step, Fuse))
    fused = run_pipeline(parse_module(_text(shape, parts[2], steps)), PIPELINE[at : at + 1], target)
    rest: list[Pass] = [
        replace(step, share=LONE_SHARE) if isinstance(step, Tiling) else step
        for step in PIPELINE[at + 1 :]
        if not isinstance(step, MergePrograms | ShareLaunches)  # as it was measured
    ]
    plan = _plan(fused, shape, parts, steps)
    return compile_module(fused, target, pipeline=rest, plan=plan)


def _text(shape: Shape, k: int, steps: int) -> str:
    return "\n".join(['module "spilled" {', *_lines(shape, k, steps), "}"])


def _lines(shape: Shape, k: int, steps: int) -> Iterator[str]:
    rows, columns, inner = shape
    step = inner // steps
    last = steps - 1
    for s in range(last):
        yield f"input %x{s}: tensor<{k}x{rows}x{step // k}xdl16>"
        yield f"input %w{s}: tensor<{k}x{step // k}x{columns}xdl16>"
    yield f"input %x{last}: tensor<{rows}x{step}xdl16>"
    yield f"input %w{last}: tensor<{step}x{columns}xdl16>"

    terms, whole = f"tensor<{k}x{rows}x{columns}xf32>", f"tensor<{rows}x{columns}xf32>"
    for s in range(last):
        made = f"terms{s}" if s else "sums0"
        yield f"%{made} = matmul(%x{s}, %w{s}) {{to = type f32}} : {terms}"
        if s:
            yield f"%sums{s} = add(%terms{s}, %sums{s - 1}) : {terms}"
    yield f"%rest = matmul(%x{last}, %w{last}) {{to = type f32}} : {whole}"
    total = "rest"
    if last:
        total = "total"
        yield f"%before = reduce_sum(%sums{last - 1}) {{axes = (0,), keepdims = false}} : {whole}"
        yield f"%{total} = add(%rest, %before) : {whole}"
    yield f"%y = cast(%{total}) {{to = type dl16}} : tensor<{rows}x{columns}xdl16>"
    yield 'output "y" = %y'


def _plan(fused: Module, shape: Shape, parts: Parts, steps: int) -> dict[str, Any]:
    """A core keeps its piece of the second factor for a step; rows, and sums, stream past it. Cores
    that hold terms of one sum are neighbours in all steps."""
    m, n, k = parts
    piece = {"n": shape[1] // n, "k": shape[2] // k // steps}
    kernels = [op for op in fused.body.ops if op.name == "kernel"]
    products = [op for op in kernels if op.attrs["kind"] == "contract"]

    def pins(op: Op) -> dict[str, Any]:
        term = "k" if op is products[-1] else "b0"
        cut = {"m": m, "n": n, term: k}
        order = [name for name, part in cut.items() if part > 1]
        return {"parts": cut, "core_order": order, "tile": piece}

    return {
        "kernels": {str(op.attrs["name"]): pins(op) for op in products},
        "tensors": {op.result.name: {"space": "hbm"} for op in kernels[:-1]},
    }
