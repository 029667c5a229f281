"""Granite 3.3 8B under the published heuristics, against what is published of stack A: the parts of
a decoder layer, and prefill and decode of the whole model. Run:
python -m benchmarks.stack_a [--layers 40] [--parts-only]

The parts are of the layer that benchmarks.granite writes. The whole model is compiled from its
configuration, which needs torch and transformers; with fewer than 40 layers, two at least, the
others are taken to be as long as the last.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.child import run
from benchmarks.granite import decoder
from spyrec import api
from spyrec.passes.baseline_order import BaselineOrder
from spyrec.passes.pipeline import BASELINE
from spyrec.passes.pipeline_text import print_pipeline
from spyrec.report import KernelRow

TOKENS, LAYERS = 512, 40
ORDERS = ("largest", "first")
"""Next to the lanes: as the published compiler has it since mid-2026, and before."""
PARTS_MS: Mapping[str, float] = {
    "projections, norm": 0.533, "QK": 1.434, "AV": 1.056, "SwiGLU": 4.225, "residual": 0.069,
}  # fmt: skip
"""Of a layer of stack A. What each holds is not told: see ``part``."""
TOTAL_MS: Mapping[str, float] = {"prompt": 301.4, "decode": 153.6}
WITHIN = 0.2


def pipeline(order: str) -> str:
    """The baseline's passes as text, with that order of dimensions."""
    steps = (replace(p, beside=order) if isinstance(p, BaselineOrder) else p for p in BASELINE)
    return print_pipeline(tuple(steps))


def parts(order: str) -> dict[str, float]:
    """Milliseconds of the parts of one layer, by kernel."""
    program = api.compile(decoder(1, TOKENS), passes=pipeline(order))
    rows = api.simulate(program, timing_only=True).kernels
    found = dict.fromkeys(PARTS_MS, 0.0)
    products = 0  # of attention so far
    for row in sorted(rows, key=lambda r: r.start_cycle):
        if row.source[0].endswith("_attention"):
            products += "matmul" in row.ops
        for node in nodes(row):
            found[part(node, products)] += row.us / 1000
    return found


def nodes(row: KernelRow) -> tuple[str, ...]:
    """The model's node that each launch of a row mainly is."""
    return row.source if len(row.source) == row.count else row.source[:1] * row.count


def part(node: str, products: int) -> str:
    """Which part a kernel counts for: projections without the last, norms and rotation; scores and
    softmax; weighted values and the last projection; all of the gated part; what is added.
    ``products``: how many of attention have begun."""
    if node.endswith("_attention"):
        return "QK" if products < 2 else "AV"
    if node.endswith("_project_out"):
        return "AV"
    if "residual" in node or "scaled" in node:
        return "residual"
    swiglu = ("_gate_out", "_up_out", "_down_out", "_silu", "_sigmoid", "_inner")
    return "SwiGLU" if node.endswith(swiglu) else "projections, norm"


def total_ms(phase: str, order: str, layers: int) -> float:
    """Device time of one pass through the model."""
    if layers < LAYERS:
        less, more = _timed_ms(phase, order, layers - 1), _timed_ms(phase, order, layers)
        return more + (LAYERS - layers) * (more - less)
    return _timed_ms(phase, order, layers)


def _timed_ms(phase: str, order: str, layers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        program, report = Path(folder, "model.spx"), Path(folder, "report.json")
        run(["-m", "spyrec", "compile", "--from-config", "granite-3.3-8b", f"--{phase}",
             str(TOKENS), "--layers", str(layers), "--passes", pipeline(order), "-o",
             str(program)])  # fmt: skip
        run(["-m", "spyrec", "simulate", str(program), "--timing-only", "--report", str(report)])
        return float(json.loads(report.read_text("utf-8"))["total_us"]) / 1000


def lines(
    published: Mapping[str, float], found: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    """A markdown table: ``found`` by order."""
    yield "| ms | stack A | " + " | ".join(f"{order} | to A" for order in found) + " |"
    yield "|---|---|" + "---|---|" * len(found)
    for name, ms in published.items():
        cells = (f"{of[name]:.3f} | {of[name] / ms - 1:+.0%}" for of in found.values())
        yield f"| {name} | {ms:.3f} | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--parts-only", action="store_true", help="without torch")
    options = parser.parse_args()
    by_part = {order: parts(order) for order in ORDERS}
    whole = {"layer": sum(PARTS_MS.values()), **PARTS_MS}
    sums = {order: {"layer": sum(of.values()), **of} for order, of in by_part.items()}
    print("\n".join(lines(whole, sums)))
    if options.parts_only:
        return 0
    totals = {
        order: {phase: total_ms(phase, order, options.layers) for phase in TOTAL_MS}
        for order in ORDERS
    }
    print("\n" + "\n".join(lines(TOTAL_MS, totals)))
    near = [
        order for order, of in totals.items()
        if all(abs(of[phase] / ms - 1) <= WITHIN for phase, ms in TOTAL_MS.items())
    ]  # fmt: skip
    print(f"\nboth phases within {WITHIN:.0%} of stack A: {', '.join(near) or 'none'}")
    return int(not near)


if __name__ == "__main__":
    raise SystemExit(main())
