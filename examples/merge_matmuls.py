"""A pass in ten lines: two products with constants in a row become one.

Run it to see what it saves: python examples/merge_matmuls.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import spyrec
from spyrec.ir.core import Block, Builder, Module, Op, Value, rewrite
from spyrec.ir.types import dtype, tensor
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE


@dataclass(frozen=True)
class MergeMatmuls:
    """(x @ A) @ B -> x @ (A @ B). Rounds differently in the last places."""

    name: ClassVar[str] = "merge-matmuls"
    summary: ClassVar[str] = "Multiplies constant factors at compile time."

    def run(self, module: Module, target: Target) -> Module:
        by = {op.result: op for op in module.body.ops if len(op.results) == 1}
        known = {v: np.asarray(op.attrs["value"]) for v, op in by.items() if op.name == "constant"}

        def rule(op: Op, b: Builder) -> Sequence[Value] | None:
            first = by.get(op.operands[0]) if op.name == "matmul" else None
            if first is None or first.name != "matmul" or op.operands[1] not in known:
                return None
            if first.operands[1] not in known:
                return None
            both = known[first.operands[1]] @ known[op.operands[1]]
            c = b.constant(both, op.operands[1].type.dtype, loc=op.loc)
            return b.op("matmul", [first.operands[0], c], loc=op.loc).results

        return rewrite(module, rule)


def model() -> Module:
    """y = (x @ A) @ B for x[512, 1024]."""
    b, rng = Builder(), np.random.default_rng(0)
    x = b.value("x", tensor((512, 1024), "f32"))
    y = x
    for _ in range(2):
        weight = (rng.normal(size=(1024, 1024)) / 32).astype(np.float32)
        y = b.op("matmul", [y, b.constant(weight, dtype("f32"))]).result
    return Module("two_matmuls", Block((x,), tuple(b.ops), (y,)), ("y",))


if __name__ == "__main__":
    for passes in (PIPELINE, (MergeMatmuls(), *PIPELINE)):
        program = spyrec.compile(model(), passes=passes)
        result = spyrec.simulate(program, timing_only=True)
        print(f"{passes[0].name:14s} {result.total_cycles} cycles")
