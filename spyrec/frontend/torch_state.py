"""Tensors that a graph writes in place, and views of them.

The IR has values only. A tensor that some call writes is kept as a Storage: writing gives it a new
value, and views of it are computed again from that. A write through a view goes back along the way
the view was made, which must be one that can be inverted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .emit import BOOL, Handle, Unsupported, shape_of
from .torch_graph import TensorMeta
from .torch_site import Converter, Site


@dataclass(eq=False)
class Storage:
    """``value``: what it holds now. A view has a ``parent``, the ``site`` that made it from that,
    and which of its results it is; its value is as of the root's ``version``."""

    value: Handle
    name: str
    parent: Storage | None = None
    site: Site | None = None
    packet: str = ""
    convert: Converter | None = None
    number: int = 0
    version: int = 0

    def root(self) -> Storage:
        return self if self.parent is None else self.parent.root()

    def read(self) -> Handle:
        now = self.root().version
        if self.parent is not None and self.version != now:
            assert self.site is not None and self.convert is not None
            made = _made(self.convert, _of(self.site, self.parent.read()))
            self.value, self.version = made[self.number], now
        return self.value

    def views(self, site: Site, packet: str, convert: Converter) -> list[Storage]:
        """What ``site`` makes of it, as other ways to the same elements."""
        made, now = _made(convert, _of(site, self.read())), self.root().version
        return [
            Storage(value, self.name, self, site, packet, convert, number, now)
            for number, value in enumerate(made)
        ]

    def write(self, site: Site, new: Handle) -> None:
        """``site`` replaces all its elements. Unsupported when it is a view that cannot be
        inverted."""
        if self.parent is None:
            self.value, self.version = new, self.version + 1
            return
        assert self.site is not None
        whole = self.parent.read()
        back = _PARTS.get(self.packet)
        if back is not None:
            assert self.convert is not None
            others = _made(self.convert, _of(self.site, whole))
            others[self.number] = new
            self.parent.write(site, back(site, self.site, whole, others))
            return
        inverse = VIEWS[self.packet]
        if inverse is None:
            raise Unsupported(
                f"it writes into a view made by {self.packet}, which cannot be undone"
            )
        self.parent.write(site, inverse(site, self.site, whole, new))


def _made(convert: Converter, site: Site) -> list[Handle]:
    found = convert(site)
    return list(found) if isinstance(found, tuple | list) else [found]  # type: ignore[list-item]


def _of(site: Site, first: Handle) -> Site:
    """The call with its first argument replaced."""
    name = next(iter(site.args))
    return replace(site, args={**site.args, name: first})


RESHAPES = {
    f"aten.{name}_": f"aten.{name}" for name in (
        "detach", "unsqueeze", "squeeze", "transpose", "t", "swapaxes", "swapdims",
    )
}  # fmt: skip
"""Operators in place that write no element: their result is a view of what they are given."""


def base_target(packet: str) -> str | None:
    """The operator that an in-place one is a form of: "aten.add_" -> "aten.add"; None when it is
    none."""
    last = packet.rpartition(".")[2]
    in_place = packet.startswith("aten.") and last.endswith("_") and not last.startswith("__")
    return packet[:-1] if in_place else None


def write_in_place(
    site: Site, stored: Storage | None, converter: Converter | None
) -> Storage:
    """Compute as the operator that is not in place, and put the result back."""
    if converter is None:
        raise Unsupported("spyrec has no conversion for it")
    if stored is None:
        raise Unsupported("what it writes into is no tensor of this graph, or a view of its own")
    old = stored.read()
    new = converter(_of(site, old))
    assert not isinstance(new, tuple | list)
    result: Handle = new  # type: ignore[assignment]
    result = site.broadcast(site.cast(result, old.type.dtype), shape_of(old))
    stored.write(site, result)
    return stored


# How to put a view's elements back into the whole ------------------------------------------------


def _reshaped(at: Site, made: Site, whole: Handle, part: Handle) -> Handle:
    return at.reshape(part, shape_of(whole))


def _same(at: Site, made: Site, whole: Handle, part: Handle) -> Handle:
    return part


def _transposed(at: Site, made: Site, whole: Handle, part: Handle) -> Handle:
    rank = part.type.rank
    perm = list(range(rank))
    first, second = (
        next((n for n in names if made.has(n)), "")
        for names in (("dim0", "axis0"), ("dim1", "axis1"))
    )
    if made.has("dims"):
        order = [d % rank for d in made.ints("dims")]
        perm = sorted(range(rank), key=order.__getitem__)
    elif first and rank:
        a, b = made.dim(first, rank), made.dim(second, rank)
        perm[a], perm[b] = b, a
    elif not first:
        perm = perm[::-1]
    return at.transpose(part, perm)


def _last_two(at: Site, made: Site, whole: Handle, part: Handle) -> Handle:
    *outer, a, b = range(part.type.rank)
    return at.transpose(part, (*outer, b, a))


def _sliced(at: Site, made: Site, whole: Handle, part: Handle) -> Handle:
    rank, shape = whole.type.rank, shape_of(whole)
    dim, step = made.dim("dim", rank, 0), made.int_("step", 1)
    start, count = clamped(made.int_("start", 0), shape[dim]), shape_of(part)[dim]
    if step == 1 or not count:
        return at.splice(whole, part, dim, start)
    end = start + (count - 1) * step + 1
    lo, hi, between = (
        tuple(n if d == dim else 0 for d in range(rank))
        for n in (start, shape[dim] - end, step - 1)
    )
    spread = at.emit("pad", part, lo=lo, hi=hi, interior=between, mode="constant", value=0.0)
    column = [-1 if d == dim else 1 for d in range(rank)]
    here = np.isin(np.arange(shape[dim]), np.arange(start, end, step)).reshape(column)
    return at.emit("where", at.const(here, BOOL), spread, whole)


def _narrowed(at: Site, made: Site, whole: Handle, part: Handle) -> Handle:
    shape = shape_of(whole)
    dim = made.dim("dim", len(shape))
    return at.splice(whole, part, dim, clamped(made.int_("start"), shape[dim]))


def _selected(at: Site, made: Site, whole: Handle, part: Handle) -> Handle:
    shape = shape_of(whole)
    dim = made.dim("dim", len(shape))
    row = at.reshape(part, (*shape[:dim], 1, *shape[dim + 1:]))
    return at.splice(whole, row, dim, made.int_("index") % shape[dim])


def clamped(bound: int, size: int) -> int:
    """A start or end of a slice, which may be negative or beyond the end."""
    return min(max(bound + size if bound < 0 else bound, 0), size)


def _joined(at: Site, made: Site, whole: Handle, parts: Sequence[Handle]) -> Handle:
    """The whole of which ``parts`` were cut."""
    dim = made.dim("dim", whole.type.rank, 0)
    kept = [p for p in parts if shape_of(p)[dim]]
    if not kept:
        return whole
    return kept[0] if len(kept) == 1 else at.emit("concat", *kept, axis=dim)


def _stacked(at: Site, made: Site, whole: Handle, parts: Sequence[Handle]) -> Handle:
    shape = shape_of(whole)
    dim = made.dim("dim", len(shape), 0)
    row = (*shape[:dim], 1, *shape[dim + 1:])
    return _joined(at, made, whole, [at.reshape(p, row) for p in parts])


Inverse = Callable[[Site, Site, Handle, Handle], Handle]

_PARTS: Mapping[str, Callable[[Site, Site, Handle, Sequence[Handle]], Handle]] = {
    **{f"aten.{name}": _joined for name in ("split", "split_with_sizes", "chunk", "tensor_split")},
    "aten.unbind": _stacked,
}
"""Operators that give several views, and how these make up the whole."""

VIEWS: Mapping[str, Inverse | None] = {
    **{f"aten.{name}": _reshaped for name in (
        "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten",
        "view_as", "reshape_as", "ravel", "atleast_1d", "atleast_2d",
    )},
    **{f"aten.{name}": _same for name in ("alias", "detach", "lift_fresh", "contiguous", "to")},
    **{f"aten.{name}": _transposed for name in (
        "transpose", "permute", "t", "numpy_T", "swapaxes", "swapdims",
    )},
    **{f"aten.{name}": _last_two for name in ("mT", "matrix_H", "adjoint")},
    "aten.slice": _sliced, "aten.narrow": _narrowed, "aten.select": _selected,
    **dict.fromkeys(_PARTS),
    **dict.fromkeys(f"aten.{name}" for name in (
        "expand", "expand_as", "broadcast_to", "diagonal", "unfold", "movedim", "moveaxis",
    )),
}  # fmt: skip
"""Operators whose result is a view, and how a write through it reaches the whole: None when that is
not known."""

_MAY_COPY = ("aten.reshape", "aten.reshape_as", "aten.flatten", "aten.ravel", "aten.contiguous",
             "aten.to")  # fmt: skip


def is_view(packet: str, source: TensorMeta | None, made: TensorMeta | None) -> bool:
    """Whether the result is a view of the first argument. Some operators give one only when the
    elements lie so that it is possible, which their strides tell."""
    if packet not in VIEWS:
        return False
    if packet not in _MAY_COPY or source is None or made is None:
        return True
    if packet in ("aten.contiguous", "aten.to"):
        return (source.element, source.strides) == (made.element, made.strides)
    return _dense(source) or not _dense(made)


def _dense(meta: TensorMeta) -> bool:
    """Whether elements lie in the order of the shape, without gaps. Open sizes count as one that
    is as large as its neighbours say."""
    expected: int | str = 1
    for size, stride in zip(reversed(meta.sizes), reversed(meta.strides), strict=False):
        if size == 1:
            continue
        if isinstance(expected, int) and isinstance(stride, int) and stride != expected:
            return False
        known = isinstance(expected, int) and isinstance(size, int)
        expected = expected * size if known else "open"  # type: ignore[operator]
    return True
