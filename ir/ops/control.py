"""Control flow, and the shape as a value. Regions may read values defined around them; the
interpreter runs them, so these ops have no ``eval``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spyrec.ir.core import Value
from spyrec.ir.types import DTYPES, TensorType

from .shapes import need_rank, show_type
from .spec import NO_ATTRS, TENSOR, Arrays, Attrs, OpDef, Site, Types, operands

I64 = DTYPES["i64"]


def plain(type_: TensorType) -> TensorType:
    """The type without layout and space."""
    return TensorType(type_.shape, type_.dtype)


def check_values(values: Sequence[Value], types: Types, what: str, site: Site) -> None:
    """``values`` have these types, whatever their layouts."""
    got = [plain(v.type) for v in values]
    want = [plain(t) for t in types]
    if got != want:
        listed = [", ".join(show_type(t) for t in ts) or "none" for ts in (want, got)]
        raise site.error(f"expected {what} of types {listed[0]}; got {listed[1]}")


def _need_scalar(type_: TensorType, dtype: str, what: str, site: Site) -> None:
    need_rank(type_, 0, what, site)
    if type_.dtype.name != dtype:
        raise site.error(f"expected {what} of type {dtype}, got {show_type(type_)}")


def _infer_if(types: Types, attrs: Attrs, site: Site) -> Types:
    _need_scalar(types[0], "bool", "a condition", site)
    then, other = site.regions
    for region, what in ((then, "the then region"), (other, "the else region")):
        check_values(region.args, (), f"arguments of {what}", site)
    results = tuple(plain(v.type) for v in then.results)
    check_values(other.results, results, "results of the else region, as of the then region,", site)
    return results


def _infer_loop(types: Types, attrs: Attrs, site: Site) -> Types:
    _need_scalar(types[0], "i64", "a trip count", site)
    _need_scalar(types[1], "bool", "a condition", site)
    body = site.regions[0]
    carried = tuple(plain(t) for t in types[2:])
    check_values(body.args, (types[0], types[1], *carried), "arguments of the body", site)
    check_values(body.results, (types[1], *carried), "results of the body", site)
    return carried


def _infer_shape_of(types: Types, attrs: Attrs, site: Site) -> Types:
    return (TensorType((types[0].rank,), I64),)


def _eval_shape_of(arrays: Arrays, attrs: Attrs, types: Types) -> Arrays:
    return (np.array(arrays[0].shape, np.int64),)


DEFS: tuple[OpDef, ...] = (
    OpDef(
        "shape_of", "control", operands("x"), NO_ATTRS, TENSOR,
        "The sizes of the dimensions of x.", _infer_shape_of, _eval_shape_of,
    ),
    OpDef(
        "if", "control", operands("cond"), NO_ATTRS, TENSOR,
        "The results of the first region if cond holds, else of the second; neither has "
        "arguments.",
        _infer_if, None, regions=2, results=("result*",),
    ),
    OpDef(
        "loop", "control", operands("trip cond carried*"), NO_ATTRS, TENSOR,
        "Runs the region (iteration, cond, carried...) -> (cond, carried...) at most trip times "
        "and while cond holds; gives what was carried last.",
        _infer_loop, None, regions=1, results=("carried*",),
    ),
)  # fmt: skip
