"""One causal attention of grouped heads at several lengths, as attention-blocks chooses and in each
of its ways: what products, softmax and moves take, and the floors.
Run: python -m benchmarks.attention [--tokens 512,1024] [--heads 32:8] [--ways chosen,plain,blocks,
online] [--budget SECONDS] [--device FILE]

Queries, keys and values come from card memory and the result goes there, so that each is moved once
at least; half of the products and of the vector unit's work are above the diagonal. Plain: all rows
and keys at once; blocks: the best height of blocks of rows by price; online: the best with keys in
parts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.attention_blocks import AttentionBlocks, PricedWays, Way, with_defaults
from spyrec.passes.manager import Pass, Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.report import KernelRow, kernel_rows
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.run import run

DEPTH = 128
MIB = 2**20
SORTS = ("products", "softmax", "moves")
WAYS = ("chosen", "plain", "blocks", "online")


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
    """``cycles``: in all; the others by sort of kernel. ``way``: what attention-blocks set."""

    way: Way
    cycles: int
    launches: int
    hbm_bytes: int
    parts: dict[str, int]
    compile_s: float


def outcome(case: Case, target: Target, asked: Way | None, budget: float | None) -> Outcome:
    """The case compiled and run for time, in a way that is ``asked`` for or the chosen one.
    SpyrecError when it cannot be compiled."""
    found = Way()

    def watch(step: Pass, before: Module, after: Module, seconds: float) -> None:
        nonlocal found
        if isinstance(step, AttentionBlocks):
            op = with_defaults(after.body.ops[-1])
            found = Way(int(str(op.attrs["rows"])), int(str(op.attrs["keys"])))

    own = None if asked is None else AttentionBlocks(asked.rows or case.tokens, asked.keys)
    passes = [own if own and isinstance(p, AttentionBlocks) else p for p in PIPELINE]
    start = time.monotonic()
    program = compile_module(
        case.module(), target, pipeline=passes, hook=watch, plan_budget=budget
    ).program
    seconds = time.monotonic() - start
    result = run(program, target.device, timing_only=True)
    rows = kernel_rows(program, target.device, result.launches)
    parts = dict.fromkeys(SORTS, 0)
    for row in rows:
        parts[sort(row)] += row.count * row.cycles
    moved = sum(r.count * (r.hbm_read_bytes + r.hbm_write_bytes) for r in rows)
    return Outcome(found, result.total_cycles, len(result.launches), moved, parts, seconds)


def sort(row: KernelRow) -> str:
    if row.macs:
        return "products"
    return "moves" if row.ops == ("move",) else "softmax"


def asked_ways(case: Case, device: DeviceSpec, names: Sequence[str]) -> dict[str, Way | None]:
    """The ways called so; a length that has only one of them has it once."""
    priced = PricedWays(with_defaults(case.module().body.ops[-1]), (), device)
    every = {"chosen": None, "plain": Way(), "blocks": priced.in_blocks(),
             "online": priced.online()}  # fmt: skip
    return {name: every[name] for name in names if name == "plain" or every[name] != Way()}


HEAD = (
    "tokens way     rows  keys  launches     cycles   products    softmax      moves"
    "      floor      MiB   floor  compile"
)


def line(case: Case, target: Target, name: str, asked: Way | None, budget: float | None) -> str:
    """A row of the table."""
    got = outcome(case, target, asked, budget)
    sorts = "".join(f"{got.parts[s]:>11,}" for s in SORTS)
    return (
        f"{case.tokens:<6} {name:<7}{got.way.rows or 'all':>5}{got.way.keys or 'all':>6}"
        f"{got.launches:>10}{got.cycles:>11,}{sorts}"
        f"{round(case.product_floor(target.device)):>11,}{got.hbm_bytes / MIB:>9.1f}"
        f"{case.floor_bytes() / MIB:>8.1f}{got.compile_s:>7.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="512,1024,2048,4096", help="lengths")
    parser.add_argument("--heads", default="32:8", help="query heads : heads of keys and values")
    parser.add_argument("--ways", default=",".join(WAYS), help="which to compile")
    parser.add_argument("--budget", type=float, help="as --plan-budget of spyrec compile")
    parser.add_argument("--device", default="spyre")
    options = parser.parse_args()
    heads, groups = map(int, options.heads.split(":"))
    target = Target(load_device(options.device))
    print(HEAD)
    for tokens in map(int, options.tokens.split(",")):
        case = Case(tokens, heads, groups)
        for name, way in asked_ways(case, target.device, options.ways.split(",")).items():
            print(line(case, target, name, way, options.budget), flush=True)


if __name__ == "__main__":
    main()
