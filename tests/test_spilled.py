"""A product whose sums live in card memory between steps: its values, and each byte it moves."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.spilled import Parts, Shape, compile_spilled, overflows, steps_of
from spyrec import runtime
from spyrec.driver import Compiled
from spyrec.ir.rounding import round_to
from spyrec.ir.types import dtype
from spyrec.sim.check import find_hazards
from spyrec.sim.device import DeviceSpec, load_device, parse_device
from spyrec.sim.run import run

Array = np.ndarray[Any, Any]

DEVICE = load_device()
DL16 = dtype("dl16")
ULP = 2.0**-9  # of a value in 16 bits, at most


def with_scratchpad(nbytes: int) -> DeviceSpec:
    text = re.sub(r"(?m)^bytes = 2097152\b", f"bytes = {nbytes}", DEVICE.text)
    assert text != DEVICE.text
    return parse_device(text)


SMALL = with_scratchpad(262144)

CASES: dict[str, tuple[Shape, Parts, int, DeviceSpec]] = {
    "three steps": ((32, 256, 768), (2, 2, 2), 3, DEVICE),
    "two steps": ((16, 128, 1024), (1, 2, 4), 2, DEVICE),
    "one step": ((16, 128, 512), (1, 2, 4), 1, DEVICE),
    "rows that do not go evenly into tiles": ((70, 1024, 256), (1, 1, 2), 2, DEVICE),
    "a small scratchpad": ((288, 512, 1024), (1, 2, 2), 4, SMALL),
}


@cache
def compiled(case: str) -> Compiled:
    return compile_spilled(*CASES[case])


def factors(shape: Shape) -> tuple[Array, Array]:
    rows, columns, inner = shape
    rng = np.random.default_rng(0)
    made = (rng.normal(size=size) for size in ((rows, inner), (inner, columns)))
    x, w = (np.asarray(round_to(a, DL16), np.float32) for a in made)
    return x, w


def by_step(x: Array, w: Array, k: int, steps: int) -> dict[str, Array]:
    """The factors as the program wants them: each of ``k`` parts of the inner dimension is cut into
    steps; the parts of a step are a batch, those of the last step stand side by side."""
    rows, columns = len(x), w.shape[1]
    firsts = x.reshape(rows, k, steps, -1).transpose(2, 1, 0, 3)
    seconds = w.reshape(k, steps, -1, columns).transpose(1, 0, 2, 3)
    made = {}
    for s, (a, b) in enumerate(zip(firsts, seconds, strict=True)):
        last = s == steps - 1
        made[f"x{s}"] = a.transpose(1, 0, 2).reshape(rows, -1) if last else a
        made[f"w{s}"] = b.reshape(-1, columns) if last else b
    return made


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_product(case: str) -> None:
    shape, parts, steps, device = CASES[case]
    program = compiled(case).program
    x, w = factors(shape)
    inputs = by_step(x, w, parts[2], steps)
    packed = {
        p.buffer.name: runtime.pack(p, inputs.pop(p.name), True)
        for p in runtime.ports(program, "input")
    }
    assert not inputs
    result = run(program, device, packed, poison=True)
    (port,) = runtime.ports(program, "output")
    got = runtime.unpack(port, result.outputs[port.buffer.name])
    want = x.astype(np.float64) @ w
    assert port.name == "y" and got.shape == want.shape
    # rounded to 16 bits once, after fp32 sums
    assert np.all(np.abs(got - want) <= ULP * np.abs(want) + 1e-6 * np.abs(want).max())


@pytest.mark.parametrize("case", CASES)
def test_no_timing_makes_a_race(case: str) -> None:
    assert find_hazards(compiled(case).program, CASES[case][3]) == ()


def traffic(case: str) -> list[tuple[int, int, int]]:
    """Bytes read from and written to card memory and sent over the ring, kernel by kernel."""
    result = run(compiled(case).program, CASES[case][3], timing_only=True)
    return [(s.hbm_read_bytes, s.hbm_write_bytes, s.ring_bytes) for s in result.launches]


def test_each_sum_is_written_and_read_once_a_step_and_factors_once() -> None:
    x, w = 32 * 256 * 2, 256 * 256 * 2  # of a step: a third of 768 inner elements
    terms = 2 * 32 * 256 * 4  # two for each result
    sums, y = 32 * 256 * 4, 32 * 256 * 2
    assert traffic("three steps") == [
        (x + w, terms, 0),
        (x + w + terms, terms, 0),
        (terms, sums, 0),
        (x + w + sums, y, sums),  # the first of two cores sends its terms to the second
    ]


def test_one_step_is_a_plain_k_split() -> None:
    x, w, y = 16 * 512 * 2, 512 * 128 * 2, 16 * 128 * 2
    assert traffic("one step") == [(x + w, y, 3 * 16 * 128 * 4)]


def test_a_small_scratchpad_changes_no_byte() -> None:
    x, w = 288 * 256 * 2, 256 * 512 * 2
    terms, sums, y = 2 * 288 * 512 * 4, 288 * 512 * 4, 288 * 512 * 2
    middle = (x + w + terms, terms, 0)
    assert traffic("a small scratchpad") == [
        (x + w, terms, 0), middle, middle, (terms, sums, 0), (x + w + sums, y, sums),
    ]  # fmt: skip


def test_a_core_keeps_its_terms_from_step_to_step() -> None:
    plan = compiled("three steps").plan["kernels"]
    orders = [pins["core_order"] for name, pins in plan.items() if "matmul" in name]
    assert orders == [["m", "n", "b0"], ["m", "n", "b0"], ["m", "n", "k"]]


def test_sums_of_2048_columns_just_fit_a_scratchpad() -> None:
    assert not overflows((2048, 2048, 8192), (1, 8, 4), DEVICE)  # 2048 x 256 x 4 B are 2 MiB
    assert overflows((2048, 2560, 8192), (1, 8, 4), DEVICE)
    assert not overflows((2048, 8192, 8192), (4, 8, 1), DEVICE)


def test_sums_are_set_against_the_scratchpad_of_the_device() -> None:
    shape, parts, _, device = CASES["a small scratchpad"]
    assert overflows(shape, parts, device)  # 288 x 256 x 4 B are 288 KiB
    assert not overflows(shape, parts, DEVICE)
    assert not overflows((256, 512, 1024), parts, device)


@pytest.mark.parametrize(("columns", "steps"), [(2048, 4), (4096, 8), (6144, 16), (8192, 16)])
def test_a_piece_of_the_second_factor_is_256_kib_at_most(columns: int, steps: int) -> None:
    assert steps_of((2048, columns, 8192), (1, 8, 4)) == steps


def test_steps_divide_the_inner_dimension_into_whole_sticks() -> None:
    assert steps_of((2048, 1024, 6 * 64), (1, 1, 1)) == 3  # 128 x 1024 x 2 B
    assert steps_of((2048, 65536, 2 * 64), (1, 1, 1)) == 2  # no fewer than a stick
