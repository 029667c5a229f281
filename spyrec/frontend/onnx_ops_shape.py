"""Shape queries and data movement. Shapes are numbers by now, so Shape and Size are constants."""

from __future__ import annotations

import numpy as np

from .emit import I64, Handle, Known, Results, Unsupported, axes_of, axis_of, elements, shape_of
from .onnx_node import Node, Table

_FAR = 2**62  # beyond any dimension: what exporters write for "to the end"


def _shape(n: Node) -> Handle:
    shape = shape_of(n.arg(0))
    start, end, _ = slice(n.int_("start", 0), n.int_("end", _FAR)).indices(len(shape))
    return n.const(shape[start:end], I64)


def _size(n: Node) -> Handle:
    return n.const(elements(shape_of(n.arg(0))), I64)


def _reshape(n: Node) -> Handle:
    """0 keeps a dimension (unless allowzero), -1 takes what is left."""
    x = n.arg(0)
    wanted = n.ints("shape") if n.opset < 5 else n.known_ints(1, "shape")
    if wanted is None:
        raise Unsupported("its shape is missing")
    old = shape_of(x)
    zeros_copy = not n.int_("allowzero", 0)
    if zeros_copy and any(d == 0 and i >= len(old) for i, d in enumerate(wanted)):
        raise Unsupported(f"its shape {list(wanted)} copies a dimension that {list(old)} lacks")
    shape = [old[i] if d == 0 and zeros_copy else d for i, d in enumerate(wanted)]
    if shape.count(-1) == 1:
        rest = elements([d for d in shape if d != -1])
        shape[shape.index(-1)] = elements(old) // rest if rest else 0
    if min(shape, default=0) < 0 or elements(shape) != elements(old):
        raise Unsupported(
            f"its shape {list(wanted)} does not hold the {elements(old)} elements of {list(old)}"
        )
    return n.reshape(x, shape)


def _flatten(n: Node) -> Handle:
    shape = shape_of(n.arg(0))
    axis = n.axis("axis", 1, len(shape), end=True)
    return n.reshape(n.arg(0), (elements(shape[:axis]), elements(shape[axis:])))


def _axes(n: Node) -> tuple[int, ...] | None:
    """The axes of Squeeze and Unsqueeze: an attribute before opset 13, an input since."""
    return n.ints("axes") if n.opset < 13 else n.known_ints(1, "axes")


def _squeeze(n: Node) -> Handle:
    shape, axes = shape_of(n.arg(0)), _axes(n)
    if axes is None:
        return n.reshape(n.arg(0), [d for d in shape if d != 1])
    gone = axes_of(axes, len(shape))
    if any(shape[a] != 1 for a in gone):
        raise Unsupported(f"it removes the axes {list(gone)} of {list(shape)}, which are not all 1")
    return n.reshape(n.arg(0), [d for a, d in enumerate(shape) if a not in gone])


def _unsqueeze(n: Node) -> Handle:
    shape, axes = list(shape_of(n.arg(0))), _axes(n)
    if axes is None:
        raise Unsupported("its axes are missing")
    for axis in axes_of(axes, len(shape) + len(axes)):
        shape.insert(axis, 1)
    return n.reshape(n.arg(0), shape)


def _transpose(n: Node) -> Handle:
    rank = len(shape_of(n.arg(0)))
    return n.transpose(n.arg(0), n.ints("perm") or tuple(reversed(range(rank))))


def _concat(n: Node) -> Handle:
    """Operands without elements are left out: an empty cache adds nothing."""
    n.need("axis")
    parts = n.args()
    axis = n.axis("axis", 0, len(shape_of(parts[0])))
    full = [p for p in parts if p.type.size] or parts[:1]
    return full[0] if len(full) == 1 else n.emit("concat", *full, axis=axis)


def _split(n: Node) -> Results:
    x = n.arg(0)
    axis = n.axis("axis", 0, len(shape_of(x)))
    sizes = n.ints("split") if n.opset < 13 else n.known_ints(1, "split")
    if sizes is None:
        parts = n.int_("num_outputs", n.outputs)
        step = -(-shape_of(x)[axis] // max(parts, 1))
        sizes = (*((step,) * (parts - 1)), shape_of(x)[axis] - step * (parts - 1))
    return x if len(sizes) == 1 else n.emit_all("split", x, axis=axis, sizes=sizes)


def _slice(n: Node) -> Handle:
    shape = shape_of(n.arg(0))
    if n.opset < 10:
        starts, ends, axes, steps = n.ints("starts"), n.ints("ends"), n.ints("axes"), None
    else:
        starts, ends = n.known_ints(1, "starts"), n.known_ints(2, "ends")
        axes, steps = n.known_ints(3, "axes"), n.known_ints(4, "steps")
    if starts is None or ends is None:
        raise Unsupported("its starts or ends are missing")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Unsupported("its starts, ends, axes and steps do not fit each other")
    axes_of(axes, len(shape))
    first, count, step = [0] * len(shape), list(shape), [1] * len(shape)
    for a, s, e, by in zip(axes, starts, ends, steps, strict=True):
        axis = axis_of(a, len(shape))
        taken = range(*slice(s, e, by).indices(shape[axis])) if shape[axis] else range(0)
        first[axis], count[axis], step[axis] = (
            taken.start if taken else 0,
            len(taken),
            by if taken else 1,
        )
    if count == list(shape) and all(b == 1 for b in step):
        return n.arg(0)
    return n.emit("slice", n.arg(0), starts=tuple(first), sizes=tuple(count), steps=tuple(step))


def _expand(n: Node) -> Handle:
    x, wanted = n.arg(0), n.known_ints(1, "shape")
    if wanted is None:
        raise Unsupported("its shape is missing")
    try:
        shape = np.broadcast_shapes(shape_of(x), wanted)
    except ValueError:
        raise Unsupported(
            f"its shape {list(wanted)} does not broadcast with {list(shape_of(x))}"
        ) from None
    return n.broadcast(x, shape)


def _tile(n: Node) -> Handle:
    repeats = n.known_ints(1, "repeats")
    if repeats is None or len(repeats) != len(shape_of(n.arg(0))):
        raise Unsupported("its repeats are not one number a dimension")
    return n.arg(0) if set(repeats) <= {1} else n.emit("tile", n.arg(0), repeats=repeats)


def _pad(n: Node) -> Handle:
    """Amounts, value and axes are attributes before opset 11, inputs since."""
    x, mode = n.arg(0), n.str_("mode", "constant")
    rank, value = len(shape_of(x)), 0.0
    if n.opset < 11:
        pads, axes, value = n.ints("pads"), None, n.float_("value", 0.0)
    else:
        pads, axes = n.known_ints(1, "pads"), n.known_ints(3, "axes")
        fill = n.known(2, "value")
        value = float(fill.reshape(())) if fill is not None and fill.size == 1 else 0.0
    axes = tuple(range(rank)) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes):
        raise Unsupported(f"its pads do not fit a tensor of rank {rank}")
    lo, hi = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        lo[axis_of(axis, rank)], hi[axis_of(axis, rank)] = pads[i], pads[i + len(axes)]
    if not any(lo) and not any(hi):
        return x
    return n.emit("pad", x, lo=tuple(lo), hi=tuple(hi), mode=mode, value=value)


def _depth_to_space(n: Node) -> Handle:
    n.need("blocksize")
    return n.emit(
        "depth_to_space", n.arg(0), block=n.int_("blocksize", 1), mode=n.str_("mode", "DCR")
    )


def _space_to_depth(n: Node) -> Handle:
    n.need("blocksize")
    return n.emit("space_to_depth", n.arg(0), block=n.int_("blocksize", 1))


def _trilu(n: Node) -> Handle:
    k = n.known_ints(1, "k") or (0,)
    return n.emit("trilu", n.arg(0), upper=bool(n.int_("upper", 1)), k=k[0])


def _non_zero(n: Node) -> Handle:
    """Only of a known tensor: otherwise the size of the result depends on the data."""
    x = n.arg(0)
    if not isinstance(x, Known):
        raise Unsupported("the size of its result depends on the data")
    return n.const(np.stack(np.atleast_1d(x.array).nonzero()), I64)


SHAPE: Table = {
    "Shape": _shape,
    "Size": _size,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "NonZero": _non_zero,
}
