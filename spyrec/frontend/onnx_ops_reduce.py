"""Reductions: axes are an attribute in older opsets and an input in newer ones."""

from __future__ import annotations

from .emit import I64, Handle, Unsupported, axes_of, axis_of, shape_of
from .onnx_node import Converter, Node, Table

_REDUCE = {
    "ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod", "ReduceL1": "reduce_l1",
    "ReduceL2": "reduce_l2", "ReduceSumSquare": "reduce_sum_square",
    "ReduceLogSumExp": "reduce_log_sum_exp",
}  # fmt: skip

# Reductions that leave a single element as it is.
_PLAIN = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")


def _axes(n: Node) -> tuple[int, ...]:
    """The axes to reduce; () only when the node asks for no reduction."""
    rank = len(shape_of(n.arg(0)))
    axes = n.ints("axes")
    if len(n.operands) > 1:
        axes = n.known_ints(1, "axes")
    if axes:
        return axes_of(axes, rank)
    return () if n.int_("noop_with_empty_axes", 0) else tuple(range(rank))


def _reduced(n: Node, op: str) -> Handle:
    axes = _axes(n)
    if not axes and op in _PLAIN:
        return n.arg(0)
    return n.emit(op, n.arg(0), axes=axes, keepdims=bool(n.int_("keepdims", 1)))


def _reduce(op: str) -> Converter:
    return lambda n: _reduced(n, op)


def _log_sum(n: Node) -> Handle:
    return n.emit("log", _reduced(n, "reduce_sum"))


def _arg(op: str) -> Converter:
    """The first extreme; the last one is the first of the reversed tensor."""

    def convert(n: Node) -> Handle:
        x = n.arg(0)
        axis, keep = n.axis("axis", 0, len(shape_of(x))), bool(n.int_("keepdims", 1))
        if not n.int_("select_last_index", 0):
            return n.emit(op, x, axis=axis, keepdims=keep)
        found = n.emit(op, n.emit("reverse", x, axes=(axis,)), axis=axis, keepdims=keep)
        return n.emit("sub", n.const(shape_of(x)[axis] - 1, I64), found)

    return convert


def _cumsum(n: Node) -> Handle:
    axis = n.known_ints(1, "axis")
    if axis is None or len(axis) != 1:
        raise Unsupported("its axis is not one number")
    return n.emit(
        "cumsum",
        n.arg(0),
        axis=axis_of(axis[0], len(shape_of(n.arg(0)))),
        exclusive=bool(n.int_("exclusive", 0)),
        reverse=bool(n.int_("reverse", 0)),
    )


def _global(op: str) -> Converter:
    def convert(n: Node) -> Handle:
        return n.emit(op, n.arg(0), axes=tuple(range(2, len(shape_of(n.arg(0))))), keepdims=True)

    return convert


REDUCE: Table = {
    **{name: _reduce(op) for name, op in _REDUCE.items()},
    "ReduceLogSum": _log_sum,
    "ArgMax": _arg("arg_max"),
    "ArgMin": _arg("arg_min"),
    "CumSum": _cumsum,
    "GlobalAveragePool": _global("reduce_mean"),
    "GlobalMaxPool": _global("reduce_max"),
}
