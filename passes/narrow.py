"""Which factors of the matrix unit are kept in 8 or 4 bits."""

from __future__ import annotations

import numpy as np

from spyrec.ir.core import Module, Op, Value, uses
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES, DType

from .emit import Array
from .primitives import ELEMENTWISE

F8 = DTYPES["f8e4m3"]
WEIGHT_FORMATS = (DTYPES["i4"], DTYPES["i8"], F8)  # the narrowest that holds all values is taken
WINDOWS = frozenset(("conv", "max_pool", "sum_pool"))
SAMPLE = 64  # elements that tell of most weights that they are not narrow

Seat = tuple[Op, int]


def narrow_factors(module: Module) -> dict[Value, DType]:
    """Values that only matmuls read, always as the same factor, and the format each is kept in.

    Tensors of fp8 stay fp8, read directly or by way of a cast to a wider float; float constants
    that are second factors take the narrowest format that holds them exactly. A first factor is
    narrow only beside a narrow second. All other tensors are kept in 16 bits or more, as no unit
    but the matrix unit works on the narrow arrangements.
    """
    readers, outputs = uses(module.body), set(module.body.results)
    made = {r: op for op in module.body.ops for r in op.results}
    kinds: dict[Value, DType] = {}
    seats: dict[Value, list[Seat]] = {}
    for v in (*module.body.args, *made):
        if v.type.dtype.kind != "float" or v in outputs:
            continue
        taken = _seats(v, readers, outputs)
        kind = _kind(v, taken, made) if len({number for _, number in taken}) == 1 else None
        if kind is not None:
            kinds[v], seats[v] = kind, taken
    second = {op for v in kinds for op, number in seats[v] if number == 1}
    return {
        v: kind
        for v, kind in kinds.items()
        if all(number == 1 or op in second for op, number in seats[v])
    }


def exact_format(array: Array) -> DType | None:
    """The narrowest format of WEIGHT_FORMATS that holds all of the values exactly; None when none
    does, and for a single number."""
    flat = array.reshape(-1)
    if flat.size < 2:
        return None
    for kind in WEIGHT_FORMATS:
        if all(np.array_equal(round_to(part, kind), part) for part in (flat[:SAMPLE], flat)):
            return kind
    return None


def _kind(v: Value, seats: list[Seat], made: dict[Value, Op]) -> DType | None:
    """What ``v`` could be kept in. Inputs and constants come from the host in any arrangement; the
    vector unit writes a first factor, but not from results of windows, whose lanes run along
    channels."""
    maker, number = made.get(v), seats[0][1]
    if maker is None:
        return F8 if v.type.dtype == F8 else None
    if maker.name == "constant":
        array = maker.attrs["value"]
        assert isinstance(array, np.ndarray)
        if v.type.dtype == F8:
            return F8
        return exact_format(array) if number == 1 else None
    packs = maker.name == "cast" and v.type.dtype == F8 and number == 0
    return F8 if packs and v.type.shape[-1] != 1 and not _from_window(maker, made) else None


def _from_window(op: Op, made: dict[Value, Op]) -> bool:
    """Is it computed elementwise from what a window gives?"""
    ahead, seen = [op], {op}
    while ahead:
        op = ahead.pop()
        if op.name in WINDOWS:
            return True
        if op.name in ELEMENTWISE:
            more = {made[x] for x in op.operands if x in made} - seen
            seen |= more
            ahead += more
    return False


def _seats(
    v: Value, readers: dict[Value, list[Seat]], outputs: set[Value]
) -> list[Seat]:
    """The matmuls of floats that multiply ``v`` and as which factor; empty when something else
    reads it."""
    seats = []
    for op, number in readers.get(v, []):
        widens = op.name == "cast" and v.type.dtype == F8 and op.result.type.dtype.kind == "float"
        if op.name == "matmul":
            seats.append((op, number))
        elif widens and op.result not in outputs:
            through = readers.get(op.result, [])
            if any(reader.name != "matmul" for reader, _ in through):
                return []
            seats += through
        else:
            return []
    return seats
