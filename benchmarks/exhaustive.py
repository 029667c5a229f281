"""How far the planner is from the best plan there is: random graphs of two to four kernels on a
reduced device, all cuts of all kernels times all memories of all tensors simulated.
Run: python -m benchmarks.exhaustive [--cases 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path

from spyrec.driver import compile_module, finished
from spyrec.ir.core import Block, Builder, Module, Op, Value, uses
from spyrec.ir.types import tensor
from spyrec.passes.allocate import divisions, factorisations
from spyrec.passes.improve import Improve
from spyrec.passes.kernel import Nest
from spyrec.passes.manager import Pipeline, Target, run_pipeline
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.residency import readable
from spyrec.settle import Trials
from spyrec.sim.device import DeviceSpec, load_device, parse_device
from spyrec.sim.run import run

CORES, SCRATCHPAD = 4, 256 * 1024
MOST_KERNELS = 4
MOST_PLANS = 300
"""Of a case: a graph with more is drawn anew."""
NEAR = 1.03
SIZES = (32, 64, 67, 96, 128, 192, 200, 256, 384, 512)
UNARY = ("relu", "exp", "tanh", "sigmoid", "gelu", "neg")
BINARY = ("add", "mul", "sub", "max")


@dataclass(frozen=True)
class Case:
    """Simulated cycles under the plan by price alone, under the default budget, and under the best
    of all ``plans``; ``best_plan`` says that one in words."""

    seed: int
    kernels: tuple[str, ...]
    plans: int
    greedy: int
    planned: int
    best: int
    best_plan: str
    own_plan: str

    @property
    def ratio(self) -> float:
        return self.planned / self.best

    @property
    def greedy_ratio(self) -> float:
        return self.greedy / self.best


def reduced(device: DeviceSpec) -> DeviceSpec:
    """The device with CORES cores and SCRATCHPAD bytes of scratchpad each."""
    text = re.sub(r"(?m)^count = \d+", f"count = {CORES}", device.text, count=1)
    text = re.sub(r"(?m)^(\[lx\].*\n)bytes = \d+", rf"\g<1>bytes = {SCRATCHPAD}", text, count=1)
    return parse_device(text)


# Random graphs ------------------------------------------------------------------------------------


def random_graph(seed: int) -> Module:
    """A few matmuls, elementwise ops, reductions and moves, in the device's float format."""
    rng = random.Random(seed)
    b = Builder()
    args: list[Value] = []

    def arg(*shape: int) -> Value:
        args.append(b.value("x", tensor(shape, "dl16")))
        return args[-1]

    values = [arg(rng.choice(SIZES), rng.choice(SIZES))]
    for _ in range(rng.randint(2, 6)):
        x = rng.choice(values[-2:])
        rows, columns = x.type.static_shape
        match rng.choice(("matmul", "matmul", "unary", "binary", "reduce", "softmax", "move")):
            case "matmul":
                made = b.op("matmul", [x, arg(columns, rng.choice(SIZES))])
            case "unary":
                made = b.op(rng.choice(UNARY), [x])
            case "binary":
                same = [v for v in values if v.type == x.type and v is not x]
                other = rng.choice(same) if same else arg(rows, columns)
                made = b.op(rng.choice(BINARY), [x, other])
            case "reduce":
                axis = rng.randint(0, 1)
                folded = b.op("reduce_max", [x], axes=(axis,), keepdims=True).result
                made = b.op("sub", [x, folded])
            case "softmax":
                made = b.op("softmax", [x], axis=rng.randint(0, 1))
            case _:
                made = b.op("transpose", [x], perm=(1, 0))
        values.append(made.result)
    read = {v for op in b.ops for v in op.operands}
    ends = tuple(op.result for op in b.ops if op.result not in read)
    body = Block(tuple(args), tuple(b.ops), ends)
    return Module(f"case{seed}", body, tuple(f"y{i}" for i in range(len(ends))))


# All plans ----------------------------------------------------------------------------------------

AT = next(i for i, p in enumerate(PIPELINE) if isinstance(p, Improve))
BEFORE: Pipeline = PIPELINE[:AT]
AFTER: Pipeline = PIPELINE[AT + 1 :]


def kernels_of(module: Module) -> list[Op]:
    return [op for op in module.body.ops if op.name == "kernel"]


def cuts_of(op: Op, cores: int) -> list[tuple[int, ...]]:
    """Every cut into as many parts as there are cores, or as the kernel can be cut into, K-splits
    included."""
    units, _ = divisions(Nest(op))
    return list(factorisations(units, cores))


def free_tensors(module: Module) -> list[Value]:
    """Results of kernels that may live in either memory."""
    readers = uses(module.body)
    return [
        v for op in kernels_of(module) for v in op.results
        if v not in module.body.results and readers.get(v)
        and all(readable(u) for u, _ in readers[v])
    ]  # fmt: skip


def plans_of(module: Module, cores: int) -> Iterator[tuple[str, Module]]:
    """Every plan in words and as a module with pins."""
    kernels, tensors = kernels_of(module), free_tensors(module)
    for cuts in product(*(cuts_of(op, cores) for op in kernels)):
        chosen = dict(zip(kernels, cuts, strict=True))
        ops = tuple(
            op.with_attrs(pin_parts=chosen[op]) if op in chosen else op for op in module.body.ops
        )
        for spaces in product(("lx", "hbm"), repeat=len(tensors)):
            pins = tuple((v.name, s) for v, s in zip(tensors, spaces, strict=True))
            said = " ".join(["x".join(map(str, c)) for c in cuts] + list(spaces))
            made = Module(
                module.name, Block(module.body.args, ops, module.body.results),
                module.output_names, {**module.attrs, "pin_spaces": pins},
            )  # fmt: skip
            yield said, made


def counted(module: Module, cores: int) -> int:
    cuts = prod(len(cuts_of(op, cores)) for op in kernels_of(module))
    return cuts * 2 ** len(free_tensors(module))


def solve(seed: int, device: DeviceSpec, budget: float | None = None) -> Case | None:
    """The case of a seed; None when its graph has too few or too many kernels or plans."""
    target = Target(device)
    cores = device.cores.count
    source = random_graph(seed)
    laid = run_pipeline(source, BEFORE, target)
    names = tuple(str(op.attrs["name"]) for op in kernels_of(laid))
    if not 2 <= len(names) <= MOST_KERNELS or counted(laid, cores) > MOST_PLANS:
        return None
    trials = Trials(partial(finished, AFTER, target), target)
    best: tuple[int, str] | None = None
    plans = 0
    for said, module in plans_of(laid, cores):
        trial = trials(module)
        if trial is not None:
            plans += 1
            best = min(best or (trial.cycles, said), (trial.cycles, said))
    assert best is not None, f"no plan of case {seed} fits"
    greedy, _ = cycles_of(source, target, 0)
    planned, own = cycles_of(source, target, budget)
    return Case(seed, names, plans, greedy, planned, *best, own)


def cycles_of(source: Module, target: Target, budget: float | None) -> tuple[int, str]:
    """Simulated cycles of the planner's own program, and its cuts and memories."""
    done = compile_module(source, target, plan_budget=budget)
    cycles = run(done.program, target.device, timing_only=True).total_cycles
    cuts = ["x".join(map(str, Nest(op).parts)) for op in kernels_of(done.module)]
    spaces = [v.type.space or "" for op in kernels_of(done.module) for v in op.results]
    return cycles, " ".join(cuts + spaces)


def cases(count: int, device: DeviceSpec, first: int = 0) -> Iterator[Case]:
    """That many cases, by seeds from ``first`` on."""
    seed = first
    while count:
        case = solve(seed, device)
        seed += 1
        if case is not None:
            count -= 1
            yield case


def distribution(ratios: Sequence[float]) -> Mapping[str, float]:
    """Shares within 0.5, 1, 3, 5 and 10 % of the best, and the worst ratio."""
    shares = {
        f"<= {100 * (limit - 1):g} %": sum(r <= limit for r in ratios) / len(ratios)
        for limit in (1.005, 1.01, NEAR, 1.05, 1.1)
    }
    return {**shares, "worst": max(ratios)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--device", default="spyre", help="what is reduced: a name or .toml file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for case in cases(options.cases, reduced(load_device(options.device)), options.first):
        found.append(case)
        mark = "" if case.ratio <= NEAR else "  MISS"
        print(
            f"{case.seed:>5} {case.plans:>5} plans  greedy {case.greedy_ratio:.3f}  planned "
            f"{case.ratio:.3f}  {' '.join(case.kernels)}{mark}", flush=True,
        )  # fmt: skip
        if mark:
            print(f"      best {case.best_plan}\n      own  {case.own_plan}", flush=True)
    for name, ratios in (
        ("greedy", [c.greedy_ratio for c in found]), ("planned", [c.ratio for c in found]),
    ):  # fmt: skip
        print(f"{name:<8}", {k: round(v, 3) for k, v in distribution(ratios).items()})
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(c) for c in found], indent=1) + "\n", "utf-8")
    return 0 if distribution([c.ratio for c in found])["<= 3 %"] >= 0.95 else 1


if __name__ == "__main__":
    raise SystemExit(main())
