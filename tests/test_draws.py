"""How cores draw the weights of a product of few rows, and that its price is what a run takes."""

from __future__ import annotations

import pytest

from benchmarks.floors import product
from spyrec.driver import compile_module
from spyrec.passes.draws import Draw, draw
from spyrec.passes.kernel import Nest
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.run import run

DEVICE = load_device()
NARROW = 136 / 70  # rate of the bus over that of a half's link


def cut(rows: int, columns: int, inner: int, parts: tuple[int, int, int]) -> tuple[Nest, int]:
    """The kernel of a product cut so, and the cycles it takes."""
    case = product("", f"{rows}x{inner}", f"{inner}x{columns}", f"{rows}x{columns}")
    names = ("m", "n", "k")
    order = [d for d, p in zip(names, parts, strict=True) if p > 1]
    kernel = {"parts": dict(zip(names, parts, strict=True)), "core_order": order}
    made = compile_module(case.module(), Target(DEVICE), plan={"kernels": {"k0_matmul": kernel}})
    (op,) = (op for op in made.module.body.ops if op.name == "kernel")
    return Nest(op), run(made.program, DEVICE, timing_only=True).launches[0].cycles


@pytest.mark.parametrize(
    ("columns", "inner", "parts", "expected"),
    [
        (40 * 64, 512, (1, 32, 1), Draw(40 / 64, 40 / 64, 0.0)),  # 2, 1, 1, 1 eight times
        (33 * 64, 512, (1, 32, 1), Draw(33 / 64, (32 + NARROW) / 64, 0.0)),  # one part of two
        (24 * 64, 512, (1, 24, 1), Draw(1.0, 16 * NARROW / 24, 0.0)),  # 16 cores and 8
        (16 * 64, 4096, (1, 16, 2), Draw(1.0, 1.0, 0.0)),  # each part is one piece
        (16 * 64, 4096, (1, 4, 8), Draw(1.0, 1.0, 0.75 * 10 * 136 / 4096)),  # 64 KiB apart
    ],
)
def test_weights_that_each_core_loads(
    columns: int, inner: int, parts: tuple[int, int, int], expected: Draw
) -> None:
    nest, _ = cut(1, columns, inner, parts)
    found = draw(nest, 1, DEVICE.hbm, DEVICE.cores.count)
    assert (found.bus, found.link) == pytest.approx((expected.bus, expected.link), rel=1e-12)
    assert found.lost == pytest.approx(expected.lost, rel=1e-3)


def test_what_cores_share_counts_as_if_all_parts_were_the_largest() -> None:
    nest, _ = cut(64, 40 * 64, 512, (8, 4, 1))
    assert draw(nest, 0, DEVICE.hbm, 32) == draw(nest, 1, DEVICE.hbm, 32) == Draw(1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [(40 * 64, (1, 32, 1)), (33 * 64, (1, 32, 1)), (1024, (1, 16, 2)), (1024, (1, 4, 8))],
)
def test_price_of_a_cut_is_what_it_takes(columns: int, parts: tuple[int, int, int]) -> None:
    nest, cycles = cut(1, columns, 4096, parts)
    why = nest.op.attrs["why_parts"]
    assert isinstance(why, tuple)
    assert why[0] == pytest.approx(cycles, rel=0.05)
