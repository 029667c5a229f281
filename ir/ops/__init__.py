"""The OPS table: one entry an op, which drives verifier, shape inference, printer, interpreter and
the op reference. This is the only list of ops there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spyrec.ir.core import Attr, Block, Loc, Op
from spyrec.ir.errors import VerifyError
from spyrec.ir.near import EVERY_OP, listed
from spyrec.ir.types import TensorType

from . import (
    contract,
    control,
    device,
    elementwise,
    index,
    move,
    norm,
    quant,
    reduce,
    tile,
    window,
)
from .spec import REQUIRED, AttrSpec, OpDef, Operand, Site, check_count, complete_attrs

__all__ = [
    "OPS",
    "REQUIRED",
    "AttrSpec",
    "OpDef",
    "Operand",
    "attributes",
    "infer",
]

OPS: Mapping[str, OpDef] = {
    op.name: op
    for family in (
        elementwise, reduce, contract, window, norm, move, index, quant, control, device,
        tile,
    )
    for op in family.DEFS
}  # fmt: skip


def infer(
    name: str,
    types: Sequence[TensorType],
    attrs: Mapping[str, Attr],
    loc: Loc,
    *,
    regions: Sequence[Block] = (),
    declared: Sequence[TensorType] | None = None,
) -> tuple[TensorType, ...]:
    """Result types of an op on operands of ``types``; layouts and spaces are not inferred.

    ``declared``: the result types an existing op states; only ops whose rule cannot tell
    everything (constants, kernels) look at them. VerifyError says which rule is broken.
    """
    op = _find(name, loc)
    site = Site(name, loc, tuple(regions), None if declared is None else tuple(declared))
    check_count(op, len(types), site)
    full = complete_attrs(op, attrs, site)
    if len(regions) != op.regions:
        raise site.error(f"expected {op.regions} regions, got {len(regions)}")
    return tuple(op.infer(types, full, site))


def attributes(op: Op) -> dict[str, Attr]:
    """All attributes of an op, defaults filled in; VerifyError if they break its rule."""
    return complete_attrs(_find(op.name, op.loc), op.attrs, Site(op.name, op.loc))


def _find(name: str, loc: Loc) -> OpDef:
    if name not in OPS:
        raise VerifyError(f"no op is called {name!r}; {listed(name, OPS, EVERY_OP)} (from {loc})")
    return OPS[name]
