"""The joint planner against the published heuristics (docs/baseline.md): cycles of both on every
model, and bytes that cross the memory bus against the fewest there can be.
Run: python -m benchmarks.planners [--json FILE] [MODEL ...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import exp, log, prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.granite import decoder
from spyrec import api
from spyrec.ir.core import Module, Value, uses
from spyrec.passes.manager import Pass
from tests.real_models import MODELS, model_path

GRANITE = "granite"
"""One decoder layer of Granite 3.3 8B, 512 tokens, from benchmarks.granite; only timed."""
TOKENS = 512
NAMES = (*MODELS, GRANITE)
TRANSFORMERS = ("C01", "C02", GRANITE)
LEAST_MEAN, MOST_BYTES = 1.5, 1.2
"""Aims: the geometric mean of the ratios, and bytes on the transformer models over the bound."""


@dataclass(frozen=True)
class Planned:
    """A model under one planner: cycles, launches, and bytes read and written in card memory."""

    cycles: int
    launches: int
    read_bytes: int
    write_bytes: int

    @property
    def off_chip_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True)
class Measure:
    """A model under both. ``bound_bytes``: see ``bound_bytes``."""

    model: str
    baseline: Planned
    joint: Planned
    bound_bytes: int

    @property
    def ratio(self) -> float:
        """How many times as fast the joint planner's program is."""
        return self.baseline.cycles / self.joint.cycles

    @property
    def excess(self) -> float:
        """Bytes that cross the bus under the joint planner, over the bound."""
        return self.joint.off_chip_bytes / self.bound_bytes


def measure(name: str) -> Measure:
    """Compile the model twice and simulate it for time. SpyrecError when either cannot be done."""
    seen: list[Module] = []

    def watch(step: Pass, before: Module, after: Module, seconds: float) -> None:
        if step.name == "dce":  # the last before kernels: in the device's formats, by tensors
            seen.append(after)

    model: Any = decoder(1, TOKENS) if name == GRANITE else onnx.load(str(model_path(name)))
    bind = {} if name == GRANITE else dict(MODELS[name].bind)
    found = []
    for planner in ("baseline", "joint"):
        program = api.compile(model, bind=bind, planner=planner, hook=watch)
        rows = api.simulate(program, timing_only=True)
        found.append(Planned(
            rows.total_cycles,
            sum(k.count for k in rows.kernels),
            sum(k.hbm_read_bytes * k.count for k in rows.kernels),
            sum(k.hbm_write_bytes * k.count for k in rows.kernels),
        ))  # fmt: skip
    return Measure(name, *found, bound_bytes(seen[0]))


def bound_bytes(module: Module) -> int:
    """The fewest bytes that have to cross the memory bus: each weight once, equal ones together,
    each input and output once, without padding; of a table that is only looked up, what is."""
    readers = uses(module.body)
    constants: dict[Any, Value] = {}
    for op in module.body.ops:
        if op.name == "constant" and op.result.type.size > 1:
            array = np.asarray(op.attrs["value"])
            constants.setdefault((op.result.type, array.tobytes()), op.result)
    total = sum(_bytes(v) for v in module.body.results)
    for v in (*module.body.args, *constants.values()):
        looked_up = [op for op, i in readers.get(v, []) if op.name == "gather" and i == 0]
        if looked_up and len(looked_up) == len(readers[v]):
            total += min(_bytes(v), sum(_bytes(op.result) for op in looked_up))
        elif v in readers:
            total += _bytes(v)
    return total


def _bytes(v: Value) -> int:
    return -(-prod(v.type.static_shape) * v.type.dtype.bits // 8)


def geometric_mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def table(found: Iterable[Measure]) -> str:
    """A markdown table, a row a model."""
    lines = [
        "| model | baseline cycles | joint cycles | ratio | launches | baseline MB | joint MB "
        "| least MB | joint / least |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {m.model} | {m.baseline.cycles:,} | {m.joint.cycles:,} | {m.ratio:.2f} "
        f"| {m.baseline.launches} / {m.joint.launches} | {m.baseline.off_chip_bytes / 1e6:.2f} "
        f"| {m.joint.off_chip_bytes / 1e6:.2f} | {m.bound_bytes / 1e6:.2f} | {m.excess:.2f} |"
        for m in found
    ]
    return "\n".join(lines)


def verdict(found: Sequence[Measure]) -> tuple[list[str], bool]:
    """Sentences on the aims, and whether all are met."""
    mean = geometric_mean([m.ratio for m in found])
    slower = [m.model for m in found if m.ratio < 1]
    heavy = [m.model for m in found if m.model in TRANSFORMERS and m.excess > MOST_BYTES]
    said = [f"geometric mean {mean:.2f} (aim {LEAST_MEAN})"]
    said.append(f"slower than the baseline: {', '.join(slower) or 'none'}")
    if any(m.model in TRANSFORMERS for m in found):
        said.append(f"transformers above {MOST_BYTES} x the bytes: {', '.join(heavy) or 'none'}")
    return said, mean >= LEAST_MEAN and not slower and not heavy


def as_dict(m: Measure) -> dict[str, Any]:
    return {**asdict(m), "ratio": round(m.ratio, 4), "excess": round(m.excess, 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    options = parser.parse_args()
    found = []
    for name in options.models or NAMES:
        found.append(measure(name))
        lines = table(found[-1:]).splitlines()
        print("\n".join(lines if len(found) == 1 else lines[-1:]), flush=True)
    said, met = verdict(found)
    print("\n" + "\n".join(said))
    if options.json is not None:
        figures = {"models": [as_dict(m) for m in found], "verdict": said, "met": met}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    return int(not met)


if __name__ == "__main__":
    raise SystemExit(main())
