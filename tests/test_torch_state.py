"""Writes in place, through views and views of views: what each name reads afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pt2_files import Draft, Kind, Name, tensor_meta

from spyrec.frontend.torch_graph import read_graph
from spyrec.frontend.torch_import import import_exported
from spyrec.ir.core import Module
from spyrec.ir.errors import ImportError_
from spyrec.ir.interp import run
from spyrec.ir.types import DTYPES
from spyrec.ir.verifier import verify

Array = np.ndarray[Any, Any]
F32 = np.float32
X = np.arange(24, dtype=F32).reshape(4, 6)


class Pad:
    """Writes calls and does the same to numpy arrays, which have views of their own."""

    def __init__(self) -> None:
        self.draft = Draft()
        self.arrays: dict[Name, Array] = {}
        self.given: dict[str, Array] = {}

    def input(self, name: str, array: Array) -> Name:
        made = self.draft.input(name, str(array.dtype), *array.shape)
        self.given[name], self.arrays[made] = array, array.copy()
        return made

    def clone(self, x: Name) -> Name:
        return self.call("clone", lambda a: a.copy(), x)

    def call(self, target: str, made: Callable[[Array], Array], x: Name, **args: Any) -> Name:
        """A call and what numpy makes of the first argument, which may be a view of it."""
        array = made(self.arrays[x])
        trace = 'File "model.py", line 3, in forward\n    pass'
        name = self.draft.call(f"aten.{target}", str(array.dtype), array.shape, trace=trace,
                               self=x, **args)  # fmt: skip
        self.arrays[name] = array
        return name

    def write(self, target: str, put: Callable[[Array], None], x: Name, **args: Any) -> Name:
        def made(array: Array) -> Array:
            put(array)
            return array

        return self.call(target, made, x, **args)

    def module(self, *names: Name) -> Module:
        graph = read_graph(self.draft.returns(*names).data(), "the program")
        module = import_exported(graph, {}, "one")
        verify(module)
        return module

    def check(self, *names: Name) -> None:
        got = run(self.module(*names), self.given)
        for name, have in zip(names, got.values(), strict=True):
            np.testing.assert_array_equal(have, self.arrays[name])

    def refused(self, *names: Name) -> list[str]:
        with pytest.raises(ImportError_) as caught:
            self.module(*names)
        return caught.value.problems


def fill(value: float) -> Callable[[Array], None]:
    def put(array: Array) -> None:
        array[...] = value

    return put


View = tuple[str, Callable[[Array], Array], Mapping[str, Any]]

VIEWS: dict[str, View] = {
    "rows": ("slice.Tensor", lambda a: a[1:3], {"dim": 0, "start": 1, "end": 3}),
    "last columns": ("slice.Tensor", lambda a: a[:, -2:], {"dim": 1, "start": -2}),
    "all": ("slice.Tensor", lambda a: a[:], {}),
    "nothing": ("slice.Tensor", lambda a: a[2:2], {"start": 2, "end": 2}),
    "row": ("select.int", lambda a: a[2], {"dim": 0, "index": 2}),
    "column": ("select.int", lambda a: a[:, -1], {"dim": 1, "index": -1}),
    "turned": ("transpose.int", lambda a: a.T, {"dim0": 0, "dim1": -1}),
    "permuted": ("permute", lambda a: a.transpose(1, 0), {"dims": [-1, 0]}),
    "t": ("t", lambda a: a.T, {}),
    "flat": ("view", lambda a: a.reshape(-1), {"size": [-1]}),
    "blocks": ("view", lambda a: a.reshape(2, 2, 6), {"size": [2, 2, 6]}),
    "tall": ("unsqueeze", lambda a: a[:, None], {"dim": 1}),
    "narrow": ("narrow", lambda a: a[:, 1:4], {"dim": 1, "start": 1, "length": 3}),
    "every second": ("slice.Tensor", lambda a: a[:, 1::2], {"dim": 1, "start": 1, "step": 2}),
    "alias": ("alias", lambda a: a[:], {}),
    "diagonal": ("diagonal", lambda a: a.reshape(-1)[: 4 * 7 : 7], {}),
    "wide": ("expand", lambda a: np.broadcast_to(a, (2, 4, 6)), {"size": [2, 4, 6]}),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("diagonal", "wide")])
def test_a_write_through_a_view_reaches_the_whole(name: str) -> None:
    target, see, args = VIEWS[name]
    p = Pad()
    whole = p.clone(p.input("x", X))
    before = p.call("add.Tensor", lambda a: a + 1, whole, other=1)
    part = p.call(target, see, whole, **args)
    written = p.write("fill_.Scalar", fill(-5), part, value=-5)
    after = p.call("add.Tensor", lambda a: a + 1, whole, other=1)
    p.check(before, part, written, whole, after)


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("diagonal", "wide")])
def test_a_view_sees_what_is_written_into_the_whole(name: str) -> None:
    target, see, args = VIEWS[name]
    p = Pad()
    whole = p.clone(p.input("x", X))
    part = p.call(target, see, whole, **args)

    def double(a: Array) -> None:
        a *= 2

    p.write("mul_.Tensor", double, whole, other=2)
    p.check(part, whole)


@pytest.mark.parametrize("name", ["diagonal", "wide"])
def test_views_that_cannot_be_undone_are_refused(name: str) -> None:
    target, see, args = VIEWS[name]
    p = Pad()
    part = p.call(target, see, p.clone(p.input("x", X)), **args)
    p.arrays[part] = p.arrays[part].copy()
    written = p.write("fill_.Scalar", fill(-5), part, value=-5)
    assert p.refused(written) == [
        f"Operator aten.fill_ cannot be imported: it writes into a view made by aten.{target}, "
        "which cannot be undone (1 call: t3 (model.py:3))."
    ]


@pytest.mark.parametrize("name", ["diagonal", "wide"])
def test_such_a_view_still_sees_what_is_written(name: str) -> None:
    target, see, args = VIEWS[name]
    p = Pad()
    whole = p.clone(p.input("x", X))
    part = p.call(target, see, whole, **args)
    p.write("fill_.Scalar", fill(-5), whole, value=-5)
    p.check(part, whole)


PARTS: list[tuple[str, list[Callable[[Array], Array]], dict[str, Any]]] = [
    ("split.Tensor", [lambda a: a[:3], lambda a: a[3:]], {"split_size": 3}),
    ("split_with_sizes", [lambda a: a[:, :2], lambda a: a[:, 2:]],
     {"split_sizes": [2, 4], "dim": 1}),
    ("chunk", [lambda a: a[:, :3], lambda a: a[:, 3:]], {"chunks": 2, "dim": -1}),
    ("tensor_split.indices", [lambda a: a[:1], lambda a: a[1:]], {"indices": [1]}),
    ("unbind.int", [lambda a, i=i: a[i] for i in range(4)], {"dim": 0}),
]


@pytest.mark.parametrize(("target", "sees", "args"), PARTS, ids=[p[0] for p in PARTS])
def test_views_that_come_together(
    target: str, sees: list[Callable[[Array], Array]], args: dict[str, Any]
) -> None:
    p = Pad()
    whole = p.clone(p.input("x", X))
    arrays = [see(p.arrays[whole]) for see in sees]
    parts = p.draft.calls(f"aten.{target}", *((str(a.dtype), a.shape, "") for a in arrays),
                          listed=True, self=whole, **args)  # fmt: skip
    p.arrays |= zip(parts, arrays, strict=True)
    p.write("fill_.Scalar", fill(-5), parts[1], value=-5)
    p.write("mul_.Tensor", lambda a: np.multiply(a, 2, out=a), whole, other=2)
    p.check(*parts, whole)


def test_operators_in_place_that_only_change_the_shape() -> None:
    p = Pad()
    whole = p.clone(p.input("x", X))
    tall = p.call("unsqueeze_", lambda a: a[None], whole, dim=0)
    turned = p.call("transpose_", lambda a: a.swapaxes(0, 2), tall, dim0=0, dim1=2)
    same = p.call("detach_", lambda a: a[:], turned)
    p.write("fill_.Scalar", fill(-5), p.call("select.int", lambda a: a[1], same, dim=0, index=1),
            value=-5)  # fmt: skip
    p.check(whole, tall, turned)


def test_a_copy_is_no_view() -> None:
    """reshape of what does not lie in order, contiguous, and another type make copies."""
    p = Pad()
    whole = p.clone(p.input("x", X))
    turned = p.call("t", lambda a: a.T, whole)
    p.draft.tensors[turned] = tensor_meta("float32", (6, 4), (1, 6))
    for copy in (
        p.call("reshape", lambda a: a.reshape(-1), turned, shape=[24]),
        p.call("contiguous", lambda a: a.copy(), turned),
        p.call("to.dtype", lambda a: a.astype(np.float16), whole, dtype=Kind("float16")),
    ):
        p.write("fill_.Scalar", fill(-5), copy, value=-5)
    flat = p.call("reshape", lambda a: a.reshape(-1), whole, shape=[24])
    same = p.call("contiguous", lambda a: a[...], flat)
    first = p.call("slice.Tensor", lambda a: a[:1], p.call(
        "to.dtype", lambda a: a[...], same, dtype=Kind("float32")), end=1)  # fmt: skip
    p.write("fill_.Scalar", fill(-7), first, value=-7)
    p.check(whole, turned, flat)


AT = {"dim": 0, "index": "ids"}
KINDS: list[tuple[str, Callable[[Array], None], dict[str, Any]]] = [
    ("add_.Tensor", lambda a: np.add(a, 2, out=a), {"other": 2}),
    ("sub_.Tensor", lambda a: np.subtract(a, 2, out=a), {"other": 2}),
    ("div_.Tensor", lambda a: np.divide(a, 2, out=a), {"other": 2}),
    ("neg_", lambda a: np.negative(a, out=a), {}),
    ("relu_", lambda a: np.maximum(a, 0, out=a), {}),
    ("zero_", fill(0), {}),
    ("clamp_", lambda a: np.clip(a, 3, 9, out=a), {"min": 3, "max": 9}),
    ("masked_fill_.Scalar", lambda a: np.copyto(a, 7, where=MASK), {"mask": "mask", "value": 7}),
    ("copy_", lambda a: np.copyto(a, ROW), {"src": "row"}),
    ("index_copy_", lambda a: a.__setitem__([2, 0], PAIR), {**AT, "source": "pair"}),
    ("index_fill_.int_Scalar", lambda a: a.__setitem__([2, 0], 9), {**AT, "value": 9}),
    ("index_add_", lambda a: np.add.at(a, [2, 0], PAIR), {**AT, "source": "pair"}),
    ("index_put_", lambda a: a.__setitem__([2, 0], PAIR), {"indices": ["ids"], "values": "pair"}),
]  # fmt: skip
MASK = X % 3 == 0
ROW = np.full(6, 3.5, F32)
PAIR = -np.arange(12, dtype=F32).reshape(2, 6)
OTHERS: dict[str, Array] = {"mask": MASK, "row": ROW, "ids": np.array([2, 0]), "pair": PAIR}


@pytest.mark.parametrize(("target", "put", "args"), KINDS, ids=[k[0] for k in KINDS])
def test_kinds_of_writes(
    target: str, put: Callable[[Array], None], args: dict[str, Any]
) -> None:
    p = Pad()
    x = p.input("x", X)
    names = {n: p.input(n, a) for n, a in OTHERS.items()}

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(v) for v in value]
        return names.get(value, value) if isinstance(value, str) else value

    whole = p.clone(x)
    turned = p.call("transpose.int", lambda a: a.T, whole, dim0=0, dim1=1)
    back = p.call("t", lambda a: a.T, turned)
    p.write(target, put, back, **{k: named(v) for k, v in args.items()})
    p.check(x, whole, turned, back)


def test_a_write_rounds_to_the_type_of_what_is_written() -> None:
    p = Pad()
    whole = p.clone(p.input("n", np.array([1, 2, 3], np.int64)))
    p.write("copy_", lambda a: np.copyto(a, [1, -2, 0]), whole, src=p.input(
        "f", np.array([1.5, -2.5, 0.5], F32)))  # fmt: skip
    p.check(whole)


def test_a_chain_of_writes_and_views() -> None:
    p = Pad()
    whole = p.clone(p.input("x", X))
    rows = p.call("slice.Tensor", lambda a: a[1:3], whole, dim=0, start=1, end=3)
    column = p.call("select.int", lambda a: a[:, 2], rows, dim=1, index=2)
    p.write("fill_.Scalar", fill(-1), column, value=-1)
    p.write("mul_.Tensor", lambda a: np.multiply(a, 10, out=a), rows, other=10)
    other = p.call("select.int", lambda a: a[1], whole, dim=0, index=1)
    p.write("add_.Tensor", lambda a: np.add(a, 0.5, out=a), other, other=0.5)
    p.check(whole, rows, column, other)


def test_an_operand_that_is_a_view_of_what_is_written() -> None:
    """x[0] += x[1]; x[1] += x[0]"""
    p = Pad()
    whole = p.clone(p.input("x", X))
    first = p.call("select.int", lambda a: a[0], whole, dim=0, index=0)
    second = p.call("select.int", lambda a: a[1], whole, dim=0, index=1)
    p.write("add_.Tensor", lambda a: np.add(a, p.arrays[second], out=a), first, other=second)
    p.write("add_.Tensor", lambda a: np.add(a, p.arrays[first], out=a), second, other=first)
    p.check(whole, first, second)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_random_programs_of_views_and_writes(data: st.DataObject) -> None:
    """numpy's own views are the reference."""
    p = Pad()
    names: list[Name] = [p.clone(p.input("x", X))]
    for _ in range(data.draw(st.integers(1, 7))):
        x = data.draw(st.sampled_from(names))
        shape = p.arrays[x].shape
        match data.draw(st.sampled_from(("view", "view", "fill", "scale", "copy"))):
            case "view":
                names.append(_viewed(data, p, x, shape))
            case "fill":
                value = data.draw(st.integers(-9, 9))
                p.write("fill_.Scalar", fill(value), x, value=value)
            case "scale":
                p.write("mul_.Tensor", lambda a: np.multiply(a, 2, out=a), x, other=2)
            case _:
                y = data.draw(st.sampled_from([n for n in names if p.arrays[n].shape == shape]))
                array = p.arrays[y].copy()
                p.write("copy_", lambda a, b=array: np.copyto(a, b), x, src=y)
    p.check(*names)


def _viewed(data: st.DataObject, p: Pad, x: Name, shape: Sequence[int]) -> Name:
    kinds = ["tall"] if len(shape) < 5 else []
    kinds += ["slice", "select", "turn"] if shape else []
    match data.draw(st.sampled_from(kinds)):
        case "tall":
            dim = data.draw(st.integers(0, len(shape)))
            return p.call("unsqueeze", lambda a: np.expand_dims(a, dim), x, dim=dim)
        case "slice":
            dim = data.draw(st.integers(0, len(shape) - 1))
            low, high = sorted(data.draw(st.tuples(*[st.integers(0, shape[dim])] * 2)))
            step = data.draw(st.integers(1, 2))
            cut = (slice(None),) * dim + (slice(low, high, step),)
            return p.call("slice.Tensor", lambda a: a[cut], x, dim=dim, start=low, end=high,
                          step=step)  # fmt: skip
        case "select" if min(shape):
            dim = data.draw(st.integers(0, len(shape) - 1))
            index = data.draw(st.integers(-shape[dim], shape[dim] - 1))
            return p.call("select.int", lambda a: a[(slice(None),) * dim + (index, ...)], x,
                          dim=dim, index=index)  # fmt: skip
    a, b = data.draw(st.tuples(*[st.integers(0, len(shape) - 1)] * 2))
    return p.call("transpose.int", lambda v: v.swapaxes(a, b), x, dim0=a, dim1=b)


# What cannot be written --------------------------------------------------------------------------


def test_an_operator_without_conversion() -> None:
    p = Pad()
    whole = p.clone(p.input("x", X))
    y = p.write("erfinv_", lambda a: None, whole)
    z = p.write("digamma_", lambda a: None, whole)
    assert p.refused(y, z) == [
        "Operator aten.digamma_ cannot be imported: spyrec has no conversion for it "
        "(1 call: t3 (model.py:3)).",
        "Operator aten.erfinv_ cannot be imported: spyrec has no conversion for it "
        "(1 call: t2 (model.py:3)).",
    ]


def test_an_input_that_is_written() -> None:
    p = Pad()
    y = p.write("add_.Tensor", lambda a: np.add(a, 1, out=a), p.input("x", X), other=1)
    assert p.refused(y) == [
        "The model writes into its input 'x'; return the changed tensor instead."
    ]


def test_a_buffer_is_state_whose_next_value_is_an_output() -> None:
    """A cache of four rows, of which one is written a run; a nested graph writes it too."""
    inner = Draft()
    cache, row = inner.input("c", "float32", 4, 6), inner.input("r", "float32", 6)
    last = inner.call("aten.select.int", "float32", (6,), self=cache, dim=0, index=3)
    inner.call("aten.copy_.default", "float32", (6,), self=last, src=row)
    inner.returns(inner.call("aten.sum.default", "float32", (), self=cache))
    d = Draft()
    cache, row = d.weight("cache", X, "buffer"), d.input("row", "float32", 6)
    first = d.call("aten.select.int", "float32", (6,), self=cache, dim=0, index=0)
    d.call("aten.copy_.default", "float32", (6,), self=first, src=row)
    total = d.call("higher_order.wrap_with_set_grad_enabled", "float32", (), _0=False, _1=inner,
                   _2=cache, _3=row)  # fmt: skip
    graph = read_graph(d.returns(total).data(), "the program")
    module = import_exported(graph, {"cache": lambda: (X, DTYPES["f32"])}, "one")
    verify(module)
    want = X.copy()
    want[[0, 3]] = ROW
    got = run(module, {"row": ROW, "cache": X})
    np.testing.assert_array_equal(got["cache.next"], want)
    assert got["output"] == want.sum()
