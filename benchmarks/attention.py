"""One causal attention of grouped heads at several lengths: what its products, its softmax and its
moves take, and the floors. Run: python -m benchmarks.attention [--tokens 512,1024] [--heads 32:8]
[--passes PIPELINE] [--device FILE]

Queries, keys and values come from card memory and the result goes there, so that each is moved once
at least; half of the products and of the vector unit's work are above the diagonal.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import Target
from spyrec.report import KernelRow, kernel_rows
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.run import run

DEPTH = 128
MIB = 2**20
SORTS = ("products", "softmax", "moves")


@dataclass(frozen=True)
class Case:
    """``heads`` query heads share ``groups`` heads of keys and values, ``tokens`` of each."""

    tokens: int
    heads: int
    groups: int

    def module(self) -> Module:
        q, k = (f"1x{n}x{self.tokens}x{DEPTH}xdl16" for n in (self.heads, self.groups))
        return parse_module(f"""module "attention" {{
          input %q: tensor<{q}>
          input %k: tensor<{k}>
          input %v: tensor<{k}>
          %y = attention(%q, %k, %v) {{causal = true}} : tensor<{q}>
          output "y" = %y
        }}""")

    def product_floor(self, device: DeviceSpec) -> float:
        """Cycles of the multiply-accumulates that the mask leaves, all cores at their peak."""
        seen = self.tokens * (self.tokens + 1) // 2
        return 2 * self.heads * seen * DEPTH / device.cores.count / device.pt.macs_per_cycle

    def floor_bytes(self) -> int:
        """Each tensor once."""
        return 2 * 2 * (self.heads + self.groups) * self.tokens * DEPTH


@dataclass(frozen=True)
class Outcome:
    """``cycles``: in all; the others by sort of kernel."""

    cycles: int
    launches: int
    hbm_bytes: int
    parts: dict[str, int]
    compile_s: float


def outcome(case: Case, target: Target, passes: str | None) -> Outcome:
    """The case compiled and run for time. SpyrecError when it cannot be compiled."""
    start = time.monotonic()
    program = compile_module(case.module(), target, pipeline=passes).program
    seconds = time.monotonic() - start
    result = run(program, target.device, timing_only=True)
    rows = kernel_rows(program, target.device, result.launches)
    parts = dict.fromkeys(SORTS, 0)
    for row in rows:
        parts[sort(row)] += row.count * row.cycles
    moved = sum(r.count * (r.hbm_read_bytes + r.hbm_write_bytes) for r in rows)
    return Outcome(result.total_cycles, len(result.launches), moved, parts, seconds)


def sort(row: KernelRow) -> str:
    if row.macs:
        return "products"
    return "moves" if row.ops == ("move",) else "softmax"


def lines(cases: Sequence[Case], target: Target, passes: str | None) -> list[str]:
    """The table."""
    out = [
        "tokens   launches     cycles   products    softmax      moves     floor"
        "      MiB    floor  compile"
    ]
    for case in cases:
        got = outcome(case, target, passes)
        sorts = "".join(f"{got.parts[s]:>11,}" for s in SORTS)
        out.append(
            f"{case.tokens:<8} {got.launches:>8} {got.cycles:>10,}{sorts}"
            f"{round(case.product_floor(target.device)):>10,}{got.hbm_bytes / MIB:>9.1f}"
            f"{case.floor_bytes() / MIB:>9.1f}{got.compile_s:>7.0f} s"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="512,1024,2048,4096", help="lengths")
    parser.add_argument("--heads", default="32:8", help="query heads : heads of keys and values")
    parser.add_argument("--passes", help="another pipeline, as spyrec compile takes it")
    parser.add_argument("--device", default="spyre")
    options = parser.parse_args()
    heads, groups = map(int, options.heads.split(":"))
    cases = [Case(int(n), heads, groups) for n in options.tokens.split(",")]
    for case in cases:
        table = lines([case], Target(load_device(options.device)), options.passes)
        print("\n".join(table if case is cases[0] else table[1:]), flush=True)


if __name__ == "__main__":
    main()
