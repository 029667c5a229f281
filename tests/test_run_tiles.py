"""Tiled kernels in the interpreter: cores, loops, tails, borders, and what is not defined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spyrec.ir.core import Op
from spyrec.ir.errors import SpyrecError
from spyrec.ir.interp import run
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.rounding import round_to
from spyrec.ir.same import difference
from spyrec.ir.types import dtype

Array = np.ndarray[Any, Any]

MATMUL = """
module "matmul" {stage = "tile"} {
  input %x: tensor<5x10xf32>
  input %w: tensor<10x7xf32>
  %y = kernel(%x, %w) {
    kind = "contract", name = "k0", tiled = true, dims = (("m", 5), ("n", 7), ("k", 10)),
    maps = (((0, (1, 0, 0)), (0, (0, 0, 1))), ((0, (0, 0, 1)), (0, (0, 1, 0)))),
    out_maps = (((0, (1, 0, 0)), (0, (0, 1, 0))),),
    parts = (2, 2, 1), core_order = (1, 0), grains = (1, 4, 1), tile = (2, 4, 4), loops = (0, 2)
  } : tensor<5x7xf32> @ "MatMul_3" {
    (%a: tensor<5x10xf32>, %b: tensor<10x7xf32>):
    for {dim = 0} {
      ():
      %zero = init {value = 0.0} : tensor<2x4xf32>
      %sum = for(%zero) {dim = 2} : tensor<2x4xf32> {
        (%acc: tensor<2x4xf32>):
        %at = load(%a) {operand = 0} : tensor<2x4xf32>
        %bt = load(%b) {operand = 1} : tensor<4x4xf32>
        %next = compute(%at, %bt, %acc) {unit = "pt", head = "matmul"} : tensor<2x4xf32> {
          (%p: tensor<2x4xf32>, %q: tensor<4x4xf32>, %r: tensor<2x4xf32>):
          %pq = matmul(%p, %q) : tensor<2x4xf32>
          %all = add(%r, %pq) : tensor<2x4xf32>
          yield %all
        }
        yield %next
      }
      store(%sum) {result = 0}
      yield
    }
    yield
  }
  output "y" = %y
}
"""

WINDOW = """
module "window" {stage = "tile"} {
  input %x: tensor<1x2x6xf32>
  %y = kernel(%x) {
    kind = "fold", name = "k0", tiled = true,
    dims = (("b", 1), ("c", 2), ("o", 3), ("t", 3)),
    maps = (((0, (1, 0, 0, 0)), (0, (0, 1, 0, 0)), (-1, (0, 0, 2, 1))),),
    out_maps = (((0, (1, 0, 0, 0)), (0, (0, 1, 0, 0)), (0, (0, 0, 1, 0))),),
    parts = (1, 2, 1, 1), core_order = (1,), tile = (1, 1, 2, 3), loops = (2,)
  } : tensor<1x2x3xf32> {
    (%a: tensor<1x2x6xf32>):
    for {dim = 2} {
      ():
      %at = load(%a) {operand = 0, fill = -inf} : tensor<1x1x5xf32>
      %m = compute(%at) {unit = "sfp", head = "max_pool"} : tensor<1x1x2xf32> {
        (%p: tensor<1x1x5xf32>):
        %q = max_pool(%p) {kernel = (3,), strides = (2,), pads = (0, 0), dilations = (1,)}
          : tensor<1x1x2xf32>
        yield %q
      }
      store(%m) {result = 0}
      yield
    }
    yield
  }
  output "y" = %y
}
"""

VECTOR = """
module "vector" {stage = "tile"} {
  input %x: tensor<5xdl16>
  %y = kernel(%x) {
    kind = "vec", name = "k0", tiled = true, dims = (("d0", 5),), maps = (((0, (1,)),),),
    out_maps = (((0, (1,)),),), tile = (2,), loops = (0,)
  } : tensor<5xdl16> {
    (%a: tensor<5xdl16>):
    for {dim = 0} {
      ():
      %at = load(%a) {operand = 0} : tensor<2xdl16>
      %m = compute(%at) {unit = "sfp"} : tensor<2xdl16> {
        (%p: tensor<2xf32>):
        %q = mul(%p, %p) : tensor<2xf32>
        %r = sub(%q, %p) : tensor<2xf32>
        yield %r
      }
      store(%m) {result = 0}
      yield
    }
    yield
  }
  output "y" = %y
}
"""


def result(text: str, **inputs: Array) -> Array:
    return run(parse_module(text), inputs)["y"]


def whole(*shape: int) -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32)


@pytest.mark.parametrize("text", [MATMUL, WINDOW, VECTOR], ids=["matmul", "window", "vector"])
def test_text_round_trip(text: str) -> None:
    module = parse_module(text)
    printed = print_module(module)
    assert difference(module, parse_module(printed)) is None
    assert print_module(parse_module(printed)) == printed


def test_uneven_parts_tails_and_accumulation() -> None:
    x, w = whole(5, 10), whole(10, 7)
    assert np.array_equal(result(MATMUL, x=x, w=w), x @ w)


@pytest.mark.parametrize("order", ["(0, 1)", "(1, 0)"])
@pytest.mark.parametrize("parts", ["(1, 2, 1)", "(5, 2, 1)", "(3, 2, 1)", "(7, 3, 1)"])
def test_any_division_gives_the_same(parts: str, order: str) -> None:
    x, w = whole(5, 10), whole(10, 7)
    text = MATMUL.replace("parts = (2, 2, 1), core_order = (1, 0)",
                          f"parts = {parts}, core_order = {order}")  # fmt: skip
    assert np.array_equal(result(text, x=x, w=w), x @ w)


def test_borders_hold_the_fill() -> None:
    x = np.array([[[-5, -6, -7, -8, -9, -1], [1, 2, 3, 4, 5, 6]]], np.float32)
    assert result(WINDOW, x=x).tolist() == [[[-5, -6, -1], [2, 4, 6]]]
    assert result(WINDOW.replace("-inf", "0.0"), x=x).tolist() == [[[0, -6, -1], [2, 4, 6]]]


def test_a_computation_rounds_once() -> None:
    x = round_to(np.array([1.01, 3.14159, 300.7, -0.003, 77.77]), dtype("dl16"))
    once = round_to(x * x - x, dtype("dl16"))
    twice = round_to(round_to(x * x, dtype("dl16")) - x, dtype("dl16"))
    assert np.array_equal(result(VECTOR, x=x), once)
    assert not np.array_equal(once, twice)


def test_what_no_core_stores_is_not_a_number() -> None:
    text = WINDOW.replace("tile = (1, 1, 2, 3), loops = (2,)", "tile = (1, 1, 2, 3), loops = ()")
    start, end = text.index("    for {dim = 2}"), text.index("      %at")
    text = text[:start] + text[end:].replace("      yield\n    }\n", "", 1)
    cut = text.replace('("o", 3)', '("o", 2)')  # the nest makes two of the three
    assert np.isnan(result(cut, x=whole(1, 2, 6))).tolist() == [[[False, False, True]] * 2]


def test_what_lies_beyond_a_tail_is_not_a_number() -> None:
    """The last tile of five elements in tiles of two: a sum over it would show the other one."""
    text = VECTOR.replace("%r = sub(%q, %p) : tensor<2xf32>", """
        %s = reduce_sum(%p) {axes = (0,)} : tensor<1xf32>
        %r = add(%q, %s) : tensor<2xf32>""")
    x = np.arange(5, dtype=np.float32)
    found = result(text, x=x)
    assert found[:4].tolist() == [1, 2, 9, 14] and np.isnan(found[4])


def test_integers_and_truth_values() -> None:
    text = VECTOR.replace("dl16", "i32").replace("tensor<2xf32>", "tensor<2xi32>")
    assert result(text, x=np.arange(5, dtype=np.int32)).tolist() == [0, 0, 2, 6, 12]
    text = WINDOW.replace("f32", "i32")
    x = np.array([[[-5, -6, -7, -8, -9, -1], [1, 2, 3, 4, 5, 6]]], np.int32)
    assert result(text, x=x).tolist() == [[[-5, -6, -1], [2, 4, 6]]]


def test_a_load_outside_its_loop_is_told() -> None:
    load = "%at = load(%a) {operand = 0} : tensor<2x4xf32>"
    text = MATMUL.replace(load, "").replace("%zero = init", f"{load} %zero = init")
    with pytest.raises(SpyrecError) as error:
        result(text, x=whole(5, 10), w=whole(10, 7))
    assert str(error.value) == (
        "load: the window of operand 0 is [2, 10] here, its tile is [2, 4]; load it inside the "
        "loops it varies with (from MatMul_3)"
    )


def test_every_op_is_observed() -> None:
    seen: dict[str, int] = {}

    def observe(op: Op, results: tuple[Array, ...]) -> None:
        seen[op.name] = seen.get(op.name, 0) + 1
        assert len(results) == len(op.results)

    x, w = whole(5, 10), whole(10, 7)
    run(parse_module(MATMUL), {"x": x, "w": w}, observe=observe)
    # rows: 3 and 2 in tiles of 2; columns in 2 parts: 2 * (2 + 1) tiles of 3 steps each
    assert seen == {
        "kernel": 1, "init": 6, "for": 4 + 6, "load": 36, "compute": 18, "matmul": 18, "add": 18,
        "store": 6,
    }
