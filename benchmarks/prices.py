"""How well the planner's price of a matrix kernel ranks its plans: random products, cuts, tiles,
loop orders and kept factors, each priced and simulated; and how far the tile that is priced lowest
is from the fastest of those tried. Run: python -m benchmarks.prices [--cases 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log, prod, sqrt
from typing import Any

from benchmarks.floors import product
from spyrec.driver import compile_module
from spyrec.ir.errors import SpyrecError
from spyrec.ir.tiles import Nest
from spyrec.passes.allocate import divisions, factorisations
from spyrec.passes.contract_price import options
from spyrec.passes.manager import Target
from spyrec.passes.tile_ways import tilings
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.run import run

SIZES = (64, 192, 512, 1024, 2048, 4096)
MOST_MACS, LEAST_MACS = 1 << 35, 1 << 26
PLANS = 6  # of each product
FULL = 0.9  # of the cores are in use
SLOW = 4.0  # times the least price; dearer plans are not tried


@dataclass(frozen=True)
class Try:
    """One plan of a product, in core cycles."""

    shape: tuple[int, int, int]
    plan: dict[str, Any]
    priced: float
    simulated: int

    @property
    def error(self) -> float:
        return log(self.priced / self.simulated)


def shapes(rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """(M, N, K) of products that are neither too small nor too large to tell anything."""
    while True:
        shape = (rng.choice((16, 100, *SIZES)), rng.choice(SIZES), rng.choice(SIZES))
        if LEAST_MACS <= prod(shape) <= MOST_MACS:
            yield shape


def tries(shape: tuple[int, int, int], rng: random.Random, device: DeviceSpec) -> Iterator[Try]:
    """Random plans of one product, simulated."""
    m, n, k = shape
    module = product("", f"{m}x{k}", f"{k}x{n}", f"{m}x{n}").module()
    target = Target(device)
    (op,) = (o for o in compile_module(module, target).module.body.ops if o.name == "kernel")
    free = {"parts", "core_order", "tile", "loops", "keep", "finish", "ahead"}
    nest = Nest(op.with_attrs(**{key: op.attrs[key] for key in op.attrs if key not in free}))
    units, grains = divisions(nest)
    cores = device.cores.count
    units = tuple(1 if d in nest.summed else u for d, u in enumerate(units))
    cuts = [c for c in factorisations(units, cores) if prod(c) >= FULL * cores]
    room = int(0.6 * device.lx.usable_bytes)
    found = []
    for cut in cuts:
        order = tuple(d for d, p in enumerate(cut) if p > 1)
        divided = Nest(op.with_attrs(parts=cut, core_order=order, grains=grains))
        ways, costs = options(tilings(divided, device).with_kept(room), device)
        found += [(cost, cut, order, ways, i) for i, cost in enumerate(costs.tolist())]
    least = min(cost for cost, *_ in found)
    found = [f for f in found if f[0] <= SLOW * least]
    for cost, cut, order, ways, i in rng.sample(found, min(PLANS, len(found))):
        names, tile, loops, keep = nest.dim_names, ways.tiles(i), ways.loops(i), ways.kept(i)
        finish, ahead = ways.finish(i), int(ways.ahead[i])
        plan = {
            "parts": dict(zip(names, cut, strict=True)), "core_order": [names[d] for d in order],
            "tile": dict(zip(names, tile, strict=True)), "loops": [names[d] for d in loops],
            "keep": list(keep),
            "finish": {names[d]: finish[d] for d in (nest.stick, nest.k)} if finish else {},
        }  # fmt: skip
        if ahead:
            plan["ahead"] = ahead
        try:
            made = compile_module(module, target, plan={"kernels": {nest.name: plan}})
        except SpyrecError:  # it does not fit the scratchpad
            continue
        cycles = run(made.program, device, timing_only=True).launches[0].cycles
        yield Try(shape, plan, cost, cycles)


def rms(errors: list[float]) -> float:
    return 100 * sqrt(sum(e * e for e in errors) / len(errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20, help="products, each with several plans")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="spyre", help="a name or a .toml file")
    parser.add_argument("--plans", action="store_true", help="a row for each plan too")
    options = parser.parse_args()
    device, rng = load_device(options.device), random.Random(options.seed)
    found, lost = [], []
    for shape, _ in zip(shapes(rng), range(options.cases), strict=False):
        mine = list(tries(shape, rng, device))
        if options.plans:
            for t in mine:
                print(f"{t.shape} {t.priced:>12,.0f} {t.simulated:>10,} {100 * t.error:>6.1f} % "
                      f"{t.plan}")  # fmt: skip
        if mine:
            found += mine
            chosen = min(mine, key=lambda t: t.priced)
            lost.append(chosen.simulated / min(t.simulated for t in mine))
    errors = [t.error for t in found]
    mean = sum(errors) / len(errors)
    print(f"plans {len(found)} of {options.cases} products")
    print(f"price over simulation: RMS {rms(errors):.1f} %, mean {100 * (exp(mean) - 1):.1f} %")
    print(f"without the mean: RMS {rms([e - mean for e in errors]):.1f} %")
    print(f"the lowest price is the fastest plan within 1 % in {sum(x <= 1.01 for x in lost)} of "
          f"{len(lost)}, slower than it by {100 * (max(lost) - 1):.1f} % at most, by "
          f"{100 * (sum(lost) / len(lost) - 1):.1f} % on the average")  # fmt: skip


if __name__ == "__main__":
    main()
