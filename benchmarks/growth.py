"""How the work of planning grows with the layers of a model: lines of Python that the passes run,
which are the same on every machine but for a few in a million (sets of objects have no order).
Layers differ in their widths, or are all alike. Different layers are not all as much work, so a
model of them is compared with its two halves, each planned as a model of its own.
Run: python -m benchmarks.growth [--most 8]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from spyrec.driver import lower_module
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.device import load_device

TOKENS = 64
UNITS = (3, 10, 5, 8, 4, 9, 6, 7)  # widths in sticks
WIDEST = max(UNITS)
COUNTED = ("spyrec.passes.", "spyrec.ir.")


def layers(widths: Sequence[int]) -> str:
    """A model with a layer for each width, two products around a softmax over as much."""
    tokens, full = TOKENS, 64 * WIDEST
    lines = [f"  input %x0: tensor<{tokens}x{full}xf32>"]
    for i, w in enumerate(widths):
        lines += [
            f"  input %a{i}: tensor<{full}x{64 * w}xf32>",
            f"  input %b{i}: tensor<{64 * w}x{full}xf32>",
        ]
    for i, w in enumerate(widths):
        inner = f"tensor<{tokens}x{64 * w}xf32>"
        lines += [
            f"  %h{i} = matmul(%x{i}, %a{i}) : {inner}",
            f"  %s{i} = softmax(%h{i}) {{axis = 1}} : {inner}",
            f"  %p{i} = matmul(%s{i}, %b{i}) : tensor<{tokens}x{full}xf32>",
            f"  %x{i + 1} = add(%x{i}, %p{i}) : tensor<{tokens}x{full}xf32>",
        ]
    end = f'  output "y" = %x{len(widths)}'
    return "\n".join(['module "layers" {', *lines, end, "}"])


def different(count: int) -> list[int]:
    return [UNITS[i % len(UNITS)] + WIDEST * (i // len(UNITS)) for i in range(count)]


def alike(count: int) -> list[int]:
    return [UNITS[0]] * count


def lines_run(widths: Sequence[int]) -> int:
    """Lines of passes and IR that planning runs when nothing is remembered of other models."""
    forget()
    module, target, count = parse_module(layers(widths)), Target(load_device()), 0

    def line(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, _event: str, _arg: object) -> Any:
        return line if str(frame.f_globals.get("__name__")).startswith(COUNTED) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        lower_module(module, target, pipeline=PIPELINE, plan_budget=0.0)
    finally:
        sys.settrace(before)
    return count


def forget() -> None:
    """Empty what functions of spyrec remember."""
    for name, module in list(sys.modules.items()):
        if name.startswith("spyrec."):
            for function in vars(module).values():
                clear: Callable[[], None] | None = getattr(function, "cache_clear", None)
                if clear is not None and callable(clear):
                    clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=8, help="layers of the largest model")
    options = parser.parse_args()
    for make in (different, alike):
        count = 1
        while count <= options.most:
            widths = make(count)
            lines = lines_run(widths)
            halves = widths[: count // 2], widths[count // 2 :]
            alone = sum(lines_run(half) for half in halves if half)
            part = "" if count == 1 else f", {lines / alone:.2f} of its halves"
            print(f"{count:>3} layers, {make.__name__}: {lines:>10,} lines{part}", flush=True)
            count *= 2


if __name__ == "__main__":
    main()
