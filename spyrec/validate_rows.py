"""Measured kernels: the rows of a measurements file, and each as a small program with its forced
decisions.

The columns are those of ``device_kernels.csv``: one kernel on the real card a row, with shapes in
elements and device time in microseconds.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from spyrec.ir.arrange import arrangement_of
from spyrec.ir.core import Block, Builder, Module, Value, remap
from spyrec.ir.errors import PassError, SpyrecError
from spyrec.ir.types import dtype, tensor
from spyrec.passes.manager import Target
from spyrec.passes.sticks import laid
from spyrec.validate_plans import (
    LANES,
    Division,
    Product,
    appended,
    beside,
    by_column,
    by_rows,
    copied,
    filled,
    paired,
    reduced,
    streamed,
    summed,
    turned,
)

COLUMNS = (
    "id", "op", "variant", "B", "M", "N", "K", "rows", "cols", "row_tiles", "dtype", "cores",
    "split_b_m_n_k", "device_layout", "time_us", "stack", "note",
)  # fmt: skip
NUMBERS = ("B", "M", "N", "K", "rows", "cols", "row_tiles", "cores")
FREE = ("", "?", "planner", "sendnn auto")
"""Splits that leave the choice to the published planner, see validate_plans."""
FLOATS = {"fp16": "dl16", "fp8": "f8e4m3"}
ROW_GROUPS = 32  # of a column sum, so that 32 cores may share its rows
ROW_OUTER = (1, 2, 0)
"""[X, Y/64, B, 64]: dimensions of a batched matrix, outermost first; batch outermost is ours."""


class CannotBuild(SpyrecError):
    """A row that does not say enough, or asks for what cannot be expressed."""


@dataclass(frozen=True)
class Row:
    """One measured kernel. ``sizes``: the whole-number columns that are filled in; ``split``: parts
    along (b, m, n, k), None when a planner chose them."""

    id: str
    op: str
    variant: str
    stack: str
    dtype: str
    sizes: Mapping[str, int]
    split: tuple[int, int, int, int] | None
    device_layout: str
    note: str
    measured_us: float

    def size(self, column: str) -> int:
        """CannotBuild when the row leaves that column empty."""
        if column not in self.sizes:
            raise CannotBuild(f"the row gives no {column}")
        return self.sizes[column]

    @property
    def shape(self) -> tuple[int, int]:
        return self.size("rows"), self.size("cols")


def read_rows(path: str | Path) -> tuple[Row, ...]:
    """The rows of a measurements file in their order; columns it has beyond COLUMNS are ignored.

    Raises SpyrecError with every missing column or malformed cell, OSError when the file cannot be
    opened.
    """
    problems: list[str] = []
    rows: list[Row] = []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            missing = [c for c in COLUMNS if c not in (table.fieldnames or ())]
            if missing:
                raise SpyrecError(f"{path} has no column {', '.join(missing)}")
            for cells in table:
                rows += _row(cells, f"{path}, line {table.line_num}", problems)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpyrecError(f"{path} cannot be read as a table of measurements: {error}") from None
    names = [row.id for row in rows]
    problems += [f"{path}: two rows are called {n}" for n in sorted({*names}) if names.count(n) > 1]
    if problems:
        raise SpyrecError("\n".join(problems))
    return tuple(rows)


def _row(cells: Mapping[str, str | None], where: str, problems: list[str]) -> list[Row]:
    before = len(problems)
    text = {c: (cells[c] or "").strip() for c in COLUMNS}
    sizes = {}
    for column in NUMBERS:
        if not text[column]:
            continue
        if text[column].isascii() and text[column].isdigit() and int(text[column]) > 0:
            sizes[column] = int(text[column])
        else:
            problems.append(
                f"{where}, {column}: expected a whole number, 1 or more, got {text[column]!r}"
            )
    split = None
    if text["split_b_m_n_k"] not in FREE:
        parts = text["split_b_m_n_k"].split("_")
        if len(parts) == 4 and all(p.isascii() and p.isdigit() and int(p) for p in parts):
            b, m, n, k = map(int, parts)
            split = b, m, n, k
        else:
            problems.append(
                f"{where}, split_b_m_n_k: expected four numbers as in 1_4_8_1 or one of "
                f"{', '.join(f for f in FREE if f)}, got {text['split_b_m_n_k']!r}"
            )
    try:
        time = float(text["time_us"])
    except ValueError:
        time = 0.0
    if not 0 < time < float("inf"):
        problems.append(f"{where}, time_us: expected a time above 0, got {text['time_us']!r}")
    if len(problems) > before:
        return []
    return [
        Row(
            text["id"], text["op"], text["variant"], text["stack"], text["dtype"], sizes, split,
            text["device_layout"], text["note"], time,
        )
    ]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A row as a program to be.

    ``module``: tensor stage, operands and results in card memory. ``parts``: of the matrix kernel,
    or of all in a chain, by dimension, empty when the planner chooses; ``cores``: the most it may
    use. ``row_tiles``:
    loop trips over the rows of one core, 0 when free. ``orders``: model input or output -> its
    dimensions in card memory, outermost first, where that is not the standard. ``between``: "" to
    fuse as usual; "hbm" or "lx": one kernel an op, and where the tensors between them live.
    """

    module: Module
    cores: int
    parts: Mapping[str, int] = field(default_factory=dict)
    tile: Mapping[str, int] = field(default_factory=dict)
    overlap: str = "all"
    row_tiles: int = 0
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    between: str = ""


class _Graph(Builder):
    """A builder whose inputs are module inputs and whose calls give values."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Value] = []

    def input(self, *shape: int, kind: str = "dl16") -> Value:
        self.inputs.append(self.value("xyzuvw"[len(self.inputs)], tensor(shape, kind)))
        return self.inputs[-1]

    def number(self, value: float) -> Value:
        return self.constant(np.array(value, np.float32), dtype("dl16"))

    def __call__(self, name: str, *operands: Value, **attrs: Any) -> Value:
        return self.op(name, operands, **attrs).result

    def module(self, name: str, *results: Value) -> Module:
        names = tuple(f"o{i}" for i in range(len(results)))
        return Module(name, Block(tuple(self.inputs), tuple(self.ops), results), names)


def case_of(row: Row) -> Case:
    """The program of a row. CannotBuild with the reason when there is none."""
    if row.dtype not in FLOATS:
        raise CannotBuild(f"the element type {row.dtype!r} is unknown")
    match row.op:
        case "matmul" | "bmm":
            return _matrix(row)
        case "softmax":
            g = _Graph()
            y = g("softmax", g.input(*row.shape), axis=1)
            return Case(
                g.module(row.id, y), row.size("cores"), row_tiles=row.sizes.get("row_tiles", 0)
            )
        case "reduction" if row.variant == "ctsum":
            return _column_sum(row)
        case "fused" if "add" in row.note[:3]:
            return _chain(row)
        case "fused" if row.dtype == "fp8":
            return _packed_matmul(row)
        case "fused":
            raise CannotBuild("the row names a hand-off between ops but not what they compute")
    simple = SIMPLE.get((row.op, row.variant))
    if simple is None:
        raise CannotBuild(f"nothing here computes {row.op} {row.variant!r}")
    make, divide = simple
    g = _Graph()
    module = g.module(row.id, make(g, *row.shape))
    division = divide(*row.shape, row.size("cores"))
    return Case(module, row.size("cores"), division.parts, division.tile, division.overlap)


def _reduce(name: str) -> Callable[[_Graph, int, int], Value]:
    return lambda g, r, c: g(name, g.input(r, c), axes=(1,), keepdims=True)


def _concat(axis: int) -> Callable[[_Graph, int, int], Value]:
    def make(g: _Graph, r: int, c: int) -> Value:
        x = g.input(r, c)
        return g("concat", x, x, axis=axis)

    return make


Make = Callable[[_Graph, int, int], Value]
Divide = Callable[[int, int, int], Division]

SIMPLE: Mapping[tuple[str, str], tuple[Make, Divide]] = {
    ("pointwise", "add"): (lambda g, r, c: g("add", g.input(r, c), g.input(r, c)), paired),
    ("pointwise", "neg"): (lambda g, r, c: g("neg", g.input(r, c)), streamed),
    ("pointwise", "gelu"): (lambda g, r, c: g("gelu", g.input(r, c)), streamed),
    ("pointwise", "copy"): (lambda g, r, c: g("add", g.input(r, c), g.input(1, 1)), copied),
    ("pointwise", "bcast"): (lambda g, r, c: g("add", g.input(r, c), g.input(1, c)), by_rows),
    ("pointwise", "bcastcol"): (lambda g, r, c: g("add", g.input(r, c), g.input(r, 1)), by_column),
    ("pointwise", "mulbcast"): (lambda g, r, c: g("mul", g.input(r, c), g.input(1, c)), by_rows),
    ("pointwise", "write"): (lambda g, r, c: g("add", g.input(1, c), g.input(r, 1)), filled),
    ("reduction", "amax"): (_reduce("reduce_max"), reduced),
    ("reduction", "mean"): (_reduce("reduce_mean"), reduced),
    ("reduction", "sumrow"): (_reduce("reduce_sum"), reduced),
    ("reduction", "read"): (_reduce("reduce_sum"), reduced),
    ("copy", "cat0"): (_concat(0), lambda r, c, n: appended(2 * r, c, n)),
    ("copy", "cat1"): (_concat(1), lambda r, c, n: beside(r, 2 * c, n)),
    ("restickify", "transpose2d"): (
        lambda g, r, c: g("transpose", g.input(r, c), perm=(1, 0)),
        lambda r, c, n: turned(c, r, n),
    ),
}
"""(op, variant) -> the op on ``rows`` x ``cols``, and how the card divided it among ``cores``. A
row reduction keeps its dimension: each row's result is one stick. The constant of ``copy`` is a
tensor of one element, as the published compiler makes it."""


def _column_sum(row: Row) -> Case:
    """Where there are columns for all cores, each loads all of its part and adds it up then (the
    rows' note: untiled). Else in two steps, so that the first can be cut along rows too: groups of
    neighbouring rows, then the sums of the groups. The input lies in memory as rows x columns."""
    r, c = row.shape
    cores = row.size("cores")
    g = _Graph()
    if c >= LANES * cores:
        y = g("reduce_sum", g.input(r, c), axes=(0,), keepdims=True)
        cut = summed(r, c, cores)
        return Case(g.module(row.id, y), cores, cut.parts, cut.tile, cut.overlap)
    groups = gcd(r, ROW_GROUPS)
    sums = g("reduce_sum", g.input(groups, r // groups, c), axes=(1,), keepdims=True)
    y = g("reduce_sum", sums, axes=(0,), keepdims=True)
    return Case(g.module(row.id, y), cores, orders={"x": (2, 0, 1)})


def _matrix(row: Row) -> Case:
    m, n, k = row.size("M"), row.size("N"), row.size("K")
    kind = FLOATS[row.dtype]
    batch = (row.size("B"),) if row.op == "bmm" else ()
    shared = "shared" in row.device_layout
    g = _Graph()
    y = g("matmul", g.input(*batch, m, k, kind=kind),
          g.input(*(() if shared else batch), k, n, kind=kind))  # fmt: skip
    if kind != "dl16":
        y = g("cast", y, to=dtype("dl16"))
    orders, cores = _orders(row), row.size("cores")
    first, second = (orders.get(name) == ROW_OUTER for name in ("x", "y"))
    step = 16 * LANES // dtype(kind).bits
    product = Product(m, n, k, sum(batch), first, second, shared, step)
    parts = _parts(row) or product.parts(cores)
    overlap = "none" if orders else "all"  # nothing overlaps while a matrix lies interleaved
    return Case(
        g.module(row.id, y), cores, parts, product.tile(parts), overlap=overlap, orders=orders,
    )


def _parts(row: Row) -> dict[str, int]:
    if row.split is None:
        return {}
    parts = dict(zip(("b0", "m", "n", "k"), row.split, strict=True))
    if row.op == "matmul" or row.op == "fused":
        if parts["b0"] != 1:
            raise CannotBuild(f"the split cuts a batch into {parts['b0']} parts, there is none")
        del parts["b0"]
    return parts


def _orders(row: Row) -> dict[str, tuple[int, ...]]:
    """Card-memory orders of a batched matmul's tensors; a result the row is silent about is
    row-outer, the card's own default."""
    if row.op != "bmm" or not row.device_layout:
        return {}
    stated = {"C": "row-outer"}
    for text in row.device_layout.split("/"):
        tensor_, _, order = text.strip().partition(" ")
        stated[tensor_] = order
    unknown = {*stated.values()} - {"row-outer", "batch-outer", "shared 2-D"}
    if unknown or {*stated} != {"A", "B", "C"}:
        raise CannotBuild(f"the layout {row.device_layout!r} is not understood")
    names = {"A": "x", "B": "y", "C": "o0"}
    return {names[t]: ROW_OUTER for t, order in stated.items() if order == "row-outer"}


def _chain(row: Row) -> Case:
    """``addN``: a + b + c ..., a kernel an addition; ``add_indep2``: two additions side by side."""
    kind = row.note.split(":")[0]
    stem, _, place = kind.partition("_")
    cores = row.size("cores")
    cut = paired(*row.shape, cores)
    g = _Graph()
    if kind == "add_indep2":
        sums = [g("add", g.input(*row.shape), g.input(*row.shape)) for _ in range(2)]
        return Case(g.module(row.id, *sums), cores, cut.parts, cut.tile, between="hbm")
    terms = stem.removeprefix("add")
    if terms not in ("3", "4", "5", "6") or place not in ("", "lx"):
        raise CannotBuild(f"the chain {kind!r} is not understood")
    y = g.input(*row.shape)
    for _ in range(int(terms) - 1):
        y = g("add", y, g.input(*row.shape))
    return Case(g.module(row.id, y), cores, cut.parts, cut.tile, between=place or "hbm")


def _packed_matmul(row: Row) -> Case:
    """x in 16 bits is scaled and packed to fp8, multiplied by fp8 weights, and scaled back."""
    m, n, k = row.size("M"), row.size("N"), row.size("K")
    f8 = dtype("f8e4m3")
    g = _Graph()
    packed = g("cast", g("mul", g.input(m, k), g.number(0.5)), to=f8)
    y = g("cast", g("matmul", packed, g.input(k, n, kind="f8e4m3")), to=dtype("dl16"))
    y = g("mul", y, g.number(2.0))
    return Case(g.module(row.id, y), row.size("cores"), _parts(row))


@dataclass(frozen=True)
class CardLayout:
    """Give model inputs and outputs other orders of dimensions in card memory than the standard's.

    ``orders``: ((input or output name, dimensions outermost first), ...). It stands behind
    stick-layout, whose stick dimensions it keeps. PassError for a name that is not there, and for
    a narrow factor of a product.
    """

    name: ClassVar[str] = "card-layout"
    summary: ClassVar[str] = "lays tensors out in card memory in a given order of dimensions"
    orders: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def run(self, module: Module, target: Target) -> Module:
        body = module.body
        ports = {v.name: v for v in body.args}
        ports |= dict(zip(module.output_names, body.results, strict=True))
        new: dict[Value, Value] = {}
        for name, order in self.orders:
            if name not in ports:
                raise PassError(f"card-layout: the model has no input or output {name}")
            v = ports[name]
            assert v.type.layout is not None
            if arrangement_of(v.type.layout):
                raise PassError(f"card-layout: %{v.name} is a narrow factor; its layout is fixed")
            new[v] = Value(v.name, laid(v.type, v.type.layout.stick_dim, order))
        ops = tuple(replace(remap(op, new), results=_mapped(op.results, new)) for op in body.ops)
        return replace(module, body=Block(_mapped(body.args, new), ops, _mapped(body.results, new)))


def _mapped(values: Sequence[Value], new: Mapping[Value, Value]) -> tuple[Value, ...]:
    return tuple(new.get(v, v) for v in values)
