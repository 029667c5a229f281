"""Shape and type rules that several families share. Each raises VerifyError through its Site."""

from __future__ import annotations

from collections.abc import Sequence

from spyrec.ir.types import Dim, Sym, TensorType

from .spec import Site, Types


def show(shape: Sequence[Dim]) -> str:
    """``[2, N[1..8], 3]``."""
    return "[" + ", ".join(str(d) for d in shape) + "]"


def show_type(type_: TensorType) -> str:
    """``[2, 3] f32``."""
    return f"{show(type_.shape)} {type_.dtype}"


def broadcast(shapes: Sequence[Sequence[Dim]], site: Site) -> tuple[Dim, ...]:
    """The numpy broadcast of shapes. A Sym meets itself or 1."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for i in range(-rank, 0):
        dims = list(dict.fromkeys(s[i] for s in shapes if len(s) >= -i and s[i] != 1))
        if len(dims) > 1:
            listed = " and ".join(show(s) for s in shapes)
            hint = "; bind the symbolic dimensions first" if _has_sym(dims) else ""
            raise site.error(f"expected shapes that broadcast, got {listed}{hint}")
        result.append(dims[0] if dims else 1)
    return tuple(result)


def _has_sym(dims: Sequence[Dim]) -> bool:
    return any(isinstance(d, Sym) for d in dims)


def static_dim(dim: Dim, what: str, site: Site) -> int:
    """``dim`` as an int; an error that says ``what`` it is when it is symbolic."""
    if isinstance(dim, Sym):
        raise site.error(f"{what} must be a number here, got the symbol {dim}; bind it first")
    return dim


def static_dims(dims: Sequence[Dim], what: str, site: Site) -> tuple[int, ...]:
    return tuple(static_dim(d, what, site) for d in dims)


def need_rank(type_: TensorType, low: int, what: str, site: Site, high: int | None = None) -> None:
    """``what`` must have rank ``low`` (to ``high``; -1: any rank from ``low`` up)."""
    top = low if high is None else high
    if type_.rank < low or (top >= 0 and type_.rank > top):
        want = f"{low} or more" if top < 0 else str(low) if top == low else f"{low} to {top}"
        raise site.error(f"expected {what} of rank {want}, got {show_type(type_)}")


def need_kind(type_: TensorType, kinds: Sequence[str], what: str, site: Site) -> None:
    if type_.dtype.kind not in kinds:
        raise site.error(f"expected {what} of {' or '.join(kinds)} type, got {show_type(type_)}")


def need_same_dtype(types: Types, site: Site) -> None:
    if len({t.dtype for t in types}) > 1:
        listed = " and ".join(str(t.dtype) for t in types)
        raise site.error(f"expected operands of one element type, got {listed}; cast them first")


def need_axis(axis: int, rank: int, site: Site) -> int:
    if not 0 <= axis < rank:
        raise site.error(f"axis {axis} is outside 0..{rank - 1} of an operand of rank {rank}")
    return axis


def need_axes(axes: Sequence[int], rank: int, site: Site) -> tuple[int, ...]:
    for axis in axes:
        need_axis(axis, rank, site)
    if len(set(axes)) != len(axes):
        raise site.error(f"axes {tuple(axes)} name a dimension twice")
    return tuple(axes)


def need_length(values: Sequence[object], length: int, what: str, site: Site) -> None:
    if len(values) != length:
        raise site.error(f"attribute {what} must have {length} entries, got {len(values)}")


def need_shape(type_: TensorType, shape: Sequence[Dim], what: str, site: Site) -> None:
    if type_.shape != tuple(shape):
        raise site.error(f"expected {what} of shape {show(shape)}, got {show(type_.shape)}")
