"""The interpreter: inputs, rounding, symbolic dimensions, regions, lifetimes, errors."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from ops_reference import Array, noise, same

from spyrec.ir.core import Block, Builder, Loc, Module, Op, Value
from spyrec.ir.errors import SpyrecError
from spyrec.ir.interp import run, run_op
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES, Sym, tensor

I64, BOOL = tensor((), "i64"), tensor((), "bool")


def module(args: list[Value], b: Builder, results: list[Value]) -> Module:
    names = tuple(f"out{i}" for i in range(len(results)))
    return Module("m", Block(tuple(args), tuple(b.ops), tuple(results)), names)


def chain(dtype: str) -> Module:
    """out0 = (x + x) * x"""
    x = Value("x", tensor((4, 8), dtype))
    b = Builder(["x"])
    doubled = b.op("add", [x, x]).result
    return module([x], b, [b.op("mul", [doubled, x]).result])


@pytest.mark.parametrize("name", ["f16", "bf16", "dl16", "f8e4m3"])
def test_each_result_is_rounded_to_its_type(name: str) -> None:
    kind = DTYPES[name]
    x = round_to(noise(4, 8), kind)
    wide = x.astype(np.float32)
    doubled = round_to(wide + wide, kind).astype(np.float32)
    same(run(chain(name), {"x": x})["out0"], round_to(doubled * wide, kind))


def test_single_precision_is_not_rounded() -> None:
    x = noise(4, 8)
    same(run(chain("f32"), {"x": x})["out0"], (x + x) * x)


def test_a_kernel_rounds_only_what_is_typed_short() -> None:
    """The accumulator inside a kernel is f32; only the yielded value is dl16."""
    a, w = Value("a", tensor((2, 64), "dl16")), Value("w", tensor((64, 3), "dl16"))
    b = Builder(["a", "w"])
    f32 = DTYPES["f32"]
    acc = b.op("matmul", [b.op("cast", [v], to=f32).result for v in (a, w)]).result
    scaled = b.op("mul", [acc, b.constant(np.array(1.001, np.float32), f32)]).result
    short = b.op("cast", [scaled], to=DTYPES["dl16"]).result
    body = Block((a, w), tuple(b.ops), (short,))
    outer = [Value(v.name + "_in", v.type) for v in (a, w)]
    attrs: dict[str, Any] = {"kind": "contract", "name": "k", "dims": (), "maps": ()}
    top = Builder()
    result = top.add(Op("kernel", tuple(outer), (Value("y", short.type),), attrs, (body,))).result
    inputs = {v.name: round_to(noise(*v.type.static_shape), DTYPES["dl16"]) for v in outer}
    exact = inputs["a_in"] @ inputs["w_in"] * np.float32(1.001)
    same(run(module(outer, top, [result]), inputs)["out0"], round_to(exact, DTYPES["dl16"]))
    twice = round_to(round_to(inputs["a_in"] @ inputs["w_in"], DTYPES["dl16"]) * 1.001,
                     DTYPES["dl16"])  # fmt: skip
    assert not np.array_equal(twice, round_to(exact, DTYPES["dl16"]))


def symbolic() -> Module:
    n, s = Sym("N", 1, 4), Sym("S", 2, 16)
    x, y = Value("x", tensor((n, s, 6), "f32")), Value("y", tensor((n, s, 6), "f32"))
    b = Builder(["x", "y"])
    total = b.op("add", [x, y]).result
    split = b.op("reshape", [total], shape=(n, s, 2, 3)).result
    taken = b.op("slice", [split], starts=(0, 0, 1, 0), sizes=(n, s, 1, 3), steps=(1,) * 4).result
    return module([x, y], b, [taken, b.op("shape_of", [total]).result])


def test_symbolic_dimensions_take_the_sizes_of_the_inputs() -> None:
    x = noise(3, 5, 6)
    got = run(symbolic(), {"x": x, "y": x})
    same(got["out0"], (x + x).reshape(3, 5, 2, 3)[:, :, 1:])
    same(got["out1"], np.array([3, 5, 6]))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": (3, 5, 6)}, "input y is missing"),
        ({"x": (3, 5, 6), "y": (3, 5, 6), "z": (1,)}, "z is not an input; inputs: x, y"),
        ({"x": (3, 5, 6), "y": (2, 5, 6)}, "input y: dimension N is 2 here and 3 elsewhere"),
        ({"x": (5, 5, 6), "y": (5, 5, 6)},
         "input x: size 5 is outside the range of dimension N[1..4]; "
         "input y: size 5 is outside the range of dimension N[1..4]"),
        ({"x": (3, 5, 7), "y": (3, 5, 6)},
         "input x: expected shape [N[1..4], S[2..16], 6], got [3, 5, 7]"),
        ({"x": (3, 5), "y": (3, 5, 6)},
         "input x: expected shape [N[1..4], S[2..16], 6], got [3, 5]"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(inputs: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(SpyrecError) as error:
        run(symbolic(), {name: noise(*shape) for name, shape in inputs.items()})
    assert str(error.value) == f"model m cannot run: {message}"


def test_inputs_of_the_wrong_type_or_precision() -> None:
    with pytest.raises(SpyrecError, match=r"expected an array of float16 for f16, got float32"):
        run(chain("f16"), {"x": noise(4, 8)})
    x = round_to(noise(4, 8), DTYPES["dl16"])
    x[0, 0], x[1, 1] = 1 + 2.0**-12, np.nan
    with pytest.raises(SpyrecError, match="input x: 1 elements are not values of dl16; round them"):
        run(chain("dl16"), {"x": x})
    x[0, 0] = 1
    assert np.isnan(run(chain("dl16"), {"x": x})["out0"][1, 1])


def branch(value: float) -> tuple[Value, Module]:
    """out0 = x + value if c else x * value, both regions reading the outer x."""
    x, c = Value("x", tensor((3,), "f32")), Value("c", BOOL)
    regions = []
    names = Builder(["x", "c"])
    for op in ("add", "mul"):
        b = Builder([names.fresh(op)])
        made = b.op(op, [x, b.constant(np.float32([value]), DTYPES["f32"])]).result
        regions.append(Block((), tuple(b.ops), (made,)))
    top = Builder(["x", "c"])
    result = top.op("if", [c], types=[x.type], regions=regions, loc=Loc(("If_0",))).result
    return x, module([x, c], top, [result])


def test_if_takes_one_branch() -> None:
    _, m = branch(3)
    x = noise(3)
    same(run(m, {"x": x, "c": np.array(True)})["out0"], x + 3)
    same(run(m, {"x": x, "c": np.array(False)})["out0"], x * 3)


def counting(limit: int) -> Module:
    """Adds x to a sum, trip times at most, while the sum's number of rounds is below ``limit``."""
    x, trip, go = Value("x", tensor((2,), "f32")), Value("trip", I64), Value("go", BOOL)
    i, c, acc = Value("i", I64), Value("c", BOOL), Value("acc", x.type)
    b = Builder(["x", "trip", "go", "i", "c", "acc"])
    total = b.op("add", [acc, x]).result
    step = b.op("add", [i, b.constant(np.array(1), DTYPES["i64"])]).result
    more = b.op("lt", [step, b.constant(np.array(limit), DTYPES["i64"])]).result
    body = Block((i, c, acc), tuple(b.ops), (more, total))
    top = Builder(["x", "trip", "go"])
    zero = top.constant(np.zeros(2, np.float32), DTYPES["f32"], hint="zero")
    result = top.op("loop", [trip, go, zero], types=[x.type], regions=[body]).result
    return module([x, trip, go], top, [result])


@pytest.mark.parametrize(
    ("trip", "go", "limit", "rounds"),
    [(5, True, 99, 5), (5, True, 3, 3), (5, False, 99, 0), (0, True, 99, 0)],
)
def test_loop_runs_trip_times_or_while_its_condition_holds(
    trip: int, go: bool, limit: int, rounds: int
) -> None:
    x = np.float32([1, 2])
    inputs: dict[str, Array] = {"x": x, "trip": np.array(trip), "go": np.array(go)}
    seen: list[str] = []
    got = run(counting(limit), inputs, observe=lambda op, results: seen.append(op.name))
    same(got["out0"], x * rounds)
    assert seen == ["constant", *["add", "constant", "add", "constant", "lt"] * rounds, "loop"]


def test_dead_values_are_freed() -> None:
    x = Value("x", tensor((64,), "f32"))
    b = Builder(["x"])
    value = x
    for _ in range(6):
        value = b.op("add", [value, x]).result
    kept = b.op("neg", [b.ops[0].result]).result
    alive: list[weakref.ref[Array]] = []
    most = 0

    def watch(op: Op, results: tuple[Array, ...]) -> None:
        nonlocal most
        alive.append(weakref.ref(results[0]))
        most = max(most, sum(r() is not None for r in alive))

    run(module([x], b, [value, kept]), {"x": noise(64)}, observe=watch)
    assert len(alive) == 7
    assert most <= 4  # the first sum, read again at the end, the sum before, the new one


def test_outputs_are_copies() -> None:
    x = Value("x", tensor((3,), "f32"))
    b = Builder(["x"])
    same_ = b.op("identity", [x]).result
    data = noise(3)
    got = run(module([x], b, [same_, x, same_]), {"x": data})
    before = data.copy()
    for name in got:
        got[name][:] = 0
    same(data, before)


def test_errors_name_the_op_and_where_it_came_from() -> None:
    x, i = Value("x", tensor((3,), "f32")), Value("i", tensor((1,), "i64"))
    b = Builder(["x", "i"])
    taken = b.op("gather", [x, i], axis=0, hint="row", loc=Loc(("Gather_9", "Cast_2"))).result
    with pytest.raises(SpyrecError) as error:
        run(module([x, i], b, [taken]), {"x": noise(3), "i": np.array([7])})
    assert str(error.value) == (
        "gather %row: index 7 is outside 0..2 along axis 0 "
        "(evaluated on float32[3], int64[1]; from Gather_9, Cast_2)"
    )


def test_a_value_that_nothing_defines() -> None:
    x, stray = Value("x", tensor((3,), "f32")), Value("stray", tensor((3,), "f32"))
    b = Builder(["x", "stray"])
    total = b.op("add", [x, stray], loc=Loc(("Add_1",))).result
    with pytest.raises(SpyrecError, match=r"%stray is read by add \(from Add_1\), but nothing"):
        run(module([x], b, [total]), {"x": noise(3)})


def test_a_size_that_no_input_gives() -> None:
    n = Sym("N", 1, 4)
    b = Builder()
    made = b.op("iota", [], shape=(n,), axis=0, to=DTYPES["i32"], loc=Loc(("Range_0",))).result
    with pytest.raises(SpyrecError, match=r"size of dimension N\[1..4\] follows from no input"):
        run(module([], b, [made]), {})
    same(run_op(b.ops[0], [], dims={"N": 3})[0], np.arange(3, dtype=np.int32))


def test_run_op_runs_closed_regions() -> None:
    attrs: dict[str, Any] = {"kind": "vec", "name": "k", "dims": (), "maps": ()}
    a = Value("a", tensor((3,), "f16"))
    b = Builder(["a"])
    body = Block((a,), (b.op("square", [a]),), (b.ops[0].result,))
    op = Op("kernel", (Value("x", a.type),), (Value("y", a.type),), attrs, (body,))
    x = noise(3).astype(np.float16)
    same(run_op(op, [x])[0], np.square(x.astype(np.float32)).astype(np.float16))


def test_four_bit_integers_wrap() -> None:
    x = Value("x", tensor((3,), "i4"))
    b = Builder(["x"])
    m = module([x], b, [b.op("add", [x, x]).result])
    same(run(m, {"x": np.array([7, -8, 3], np.int8)})["out0"], np.array([-2, 0, 6], np.int8))
    with pytest.raises(SpyrecError, match="1 elements are not values of i4"):
        run(m, {"x": np.array([8, -8, 3], np.int8)})
