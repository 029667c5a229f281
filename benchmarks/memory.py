"""How near the placement of buffers comes to what is alive at once, in real models and on buffers
that were cut out of a rectangle, and what stays on chip.
Run: python -m benchmarks.memory [MODEL ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from spyrec.api import import_model
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.passes import hbm_plan, scratchpad
from spyrec.passes.attrs import entries
from spyrec.passes.intervals import Span, first_fit, peak
from spyrec.passes.manager import Target
from spyrec.passes.packing import ORDERS, place
from spyrec.sim.device import load_device
from spyrec.sim.run import run

MODELS = (
    "C02", "C12", "C13", "light_resnet50", "light_squeezenet", "light_densenet121",
    "light_inception_v1", "light_bvlc_alexnet", "light_zfnet512", "granite1_512", "granite1_1024",
)  # fmt: skip
GRANITE = "granite"  # and layers, and tokens: see benchmarks.granite
SHAPES = ((24, 80, 50), (60, 200, 150), (200, 400, 500))
"""(steps, height, cuts) of the rectangles."""
ALIGN = 128


@dataclass(frozen=True)
class Placed:
    """Bytes: alive at once at most, the top of the best of the orders alone, and of ``place``."""

    buffers: int
    live: int
    orders: int
    top: int

    def __str__(self) -> str:
        over = [100 * (n / self.live - 1) if n else 0.0 for n in (self.orders, self.top)]
        return f"{self.buffers:>5} {self.live / 1024:>10,.0f} {over[0]:>8.2f} {over[1]:>8.2f}"


def placed(spans: Sequence[Span]) -> Placed:
    whole = [Span(s.name, -(-s.size // ALIGN) * ALIGN, s.first, s.last) for s in spans]
    by_name = sorted(whole, key=lambda s: s.name)
    orders = min(first_fit(sorted(by_name, key=order), 0).top for order in ORDERS)
    return Placed(len(whole), peak(whole), orders, place(whole, 0).top)


def cut_up(seed: int, steps: int, height: int, cuts: int) -> list[Span]:
    """Pieces of a rectangle, which fill it: their best placement ends at what is alive."""
    rng = Random(seed)
    pieces = [(0, steps, 0, height)]
    for _ in range(cuts):
        first, end, low, high = piece = rng.choice(
            [p for p in pieces if p[1] - p[0] > 1 or p[3] - p[2] > 1]
        )
        pieces.remove(piece)
        if end - first > 1 and (high - low == 1 or rng.random() < 0.5):
            at = rng.randrange(first + 1, end)
            pieces += [(first, at, low, high), (at, end, low, high)]
        else:
            at = rng.randrange(low + 1, high)
            pieces += [(first, end, low, at), (first, end, at, high)]
    rng.shuffle(pieces)
    return [
        Span(f"s{i:03}", (high - low) * ALIGN, first, end - 1)
        for i, (first, end, low, high) in enumerate(pieces)
    ]


def imported(name: str) -> Module:
    if name.startswith(GRANITE):
        from benchmarks.granite import decoder

        layers, tokens = map(int, name.removeprefix(GRANITE).split("_"))
        return import_model(decoder(layers, tokens), {}, {})
    from tests.real_models import MODELS as KNOWN
    from tests.real_models import model_path

    return import_model(str(model_path(name)), KNOWN[name].bind, {})


def print_model(name: str) -> None:
    target = Target(load_device())
    made = compile_module(imported(name), target)
    module = made.module
    kernels = [op for op in module.body.ops if op.name == "kernel"]
    early = [str(buffer) for op in kernels for buffer in entries(op, "early")]
    end = len(module.body.ops)
    pool = [s for s in hbm_plan.lifetimes(module) if (s.first, s.last) != (0, end)]
    results = [v for op in kernels for v in op.results]
    on_chip = sum(v.type.space == "lx" for v in results)
    cycles = run(made.program, target.device, timing_only=True).total_cycles
    print(f"{name:<20} {placed(scratchpad.lifetimes(module, early))}   {placed(pool)}   "
          f"{on_chip:>4} of {len(results):<4} {cycles:>12,}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help="names in tests/real_models.py")
    columns = f"{'n':>5} {'KiB alive':>10} {'orders %':>8} {'placed %':>8}"
    print("over what is alive at once, in %, by the orders alone and as placed")
    print(f"{'rectangles':<20} {columns}")
    for shape in SHAPES:
        for seed in range(3):
            print(f"{'x'.join(map(str, shape)):<20} {placed(cut_up(seed, *shape))}", flush=True)
    print(f"{'model':<20} {'scratchpad':<34}   {'card memory':<34}   tensors on chip")
    print(f"{'':<20} {columns}   {columns}   {'':<12} {'cycles':>12}")
    for name in parser.parse_args().models:
        print_model(name)


if __name__ == "__main__":
    main()
