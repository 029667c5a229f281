"""What an entry of the OPS table is made of, and the checks that all entries share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from spyrec.ir.core import Attr, Block, Loc
from spyrec.ir.errors import VerifyError
from spyrec.ir.near import listed
from spyrec.ir.types import DType, Sym, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Attrs = Mapping[str, Any]  # complete and of checked kinds
Types = Sequence[TensorType]
Arrays = Sequence[Array]

AttrKind = Literal[
    "bool", "int", "float", "str", "dtype", "array", "ints", "floats", "dims", "tuple"
]
How = Literal["one", "optional", "variadic"]


class _Required:
    """The default of an attribute that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


@dataclass(frozen=True)
class AttrSpec:
    """``kind`` of value, ``default`` (REQUIRED if none; a default of None makes None a legal
    value), ``doc`` in a few words, ``choices`` for strings. ``dims`` are ints or Syms."""

    kind: AttrKind
    default: Attr | _Required = REQUIRED
    doc: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operand:
    """One operand. ``optional`` ones may be left out from the end; ``variadic``, only as the
    last, stands for any number."""

    name: str
    how: How = "one"


@dataclass(frozen=True)
class Site:
    """Where a rule is being applied: who asks, and what only some ops look at."""

    op: str
    loc: Loc
    regions: tuple[Block, ...] = ()
    declared: tuple[TensorType, ...] | None = None  # result types that an existing op states

    def error(self, sentence: str) -> VerifyError:
        return VerifyError(f"{self.op}: {sentence} (from {self.loc})")


Infer = Callable[[Types, Attrs, Site], Types]
Eval = Callable[[Arrays, Attrs, Types], Arrays]


@dataclass(frozen=True)
class OpDef:
    """The rule of one op.

    ``stages``: where it may stand at the top level of a module; tensor-stage ops also stand
    inside the regions of kernels. ``infer`` takes operand types, complete attributes and a Site
    and gives the result types. ``eval`` takes operand arrays (the 16- and 8-bit float formats
    as float32), complete attributes and result types without Syms, and gives result arrays
    before rounding; it is None for ops whose meaning is their regions, which the interpreter
    runs. ``regions``: how many it has. ``open_attrs``: attributes beyond ``attrs`` are allowed.
    """

    name: str
    family: str
    operands: tuple[Operand, ...]
    attrs: Mapping[str, AttrSpec]
    stages: frozenset[str]
    summary: str
    infer: Infer
    eval: Eval | None
    regions: int = 0
    open_attrs: bool = False
    results: tuple[str, ...] = field(default=("result",))  # names; a trailing * may repeat


TENSOR = frozenset({"tensor"})
NO_ATTRS: Mapping[str, AttrSpec] = {}


def operands(text: str) -> tuple[Operand, ...]:
    """``operands("x w bias? more*")``: ``?`` marks optional, ``*`` variadic."""
    how: dict[str, How] = {"?": "optional", "*": "variadic"}
    return tuple(
        Operand(word.rstrip("?*"), how.get(word[-1], "one")) for word in text.split()
    )


def complete_attrs(op: OpDef, attrs: Mapping[str, Attr], site: Site) -> dict[str, Attr]:
    """``attrs`` with defaults filled in; VerifyError if one is unknown, missing or of the wrong
    kind."""
    full: dict[str, Attr] = {}
    extra = {name: value for name, value in attrs.items() if name not in op.attrs}
    if extra and not op.open_attrs:
        told = listed(next(iter(extra)), op.attrs)
        raise site.error(f"attribute {', '.join(extra)} is unknown; {told}")
    for name, spec in op.attrs.items():
        if name in attrs:
            full[name] = attrs[name]
            _check_kind(name, attrs[name], spec, site)
        elif isinstance(spec.default, _Required):
            raise site.error(f"attribute {name} ({spec.kind}) is required but missing")
        else:
            full[name] = spec.default
    return full | extra


def check_count(op: OpDef, count: int, site: Site) -> None:
    """VerifyError unless ``count`` operands are what ``op`` takes."""
    least = sum(o.how == "one" for o in op.operands)
    variadic = any(o.how == "variadic" for o in op.operands)
    if least <= count and (variadic or count <= len(op.operands)):
        return
    want = f"{least} or more" if variadic else str(least)
    if not variadic and len(op.operands) > least:
        want = f"{least} to {len(op.operands)}"
    listed = ", ".join(o.name for o in op.operands) or "none"
    raise site.error(f"expected {want} operands ({listed}), got {count}")


def _check_kind(name: str, value: Attr, spec: AttrSpec, site: Site) -> None:
    if value is None and spec.default is None:
        return
    if not _KINDS[spec.kind](value):
        got = f"{value!r} ({type(value).__name__})"
        raise site.error(f"attribute {name} must be of kind {spec.kind}, got {got}")
    if spec.choices and value not in spec.choices:
        raise site.error(
            f"attribute {name} must be one of {', '.join(spec.choices)}, got {value!r}"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _all(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(check(v) for v in value)


_KINDS: Mapping[AttrKind, Callable[[object], bool]] = {
    "bool": lambda v: isinstance(v, bool),
    "int": _is_int,
    "float": _is_number,
    "str": lambda v: isinstance(v, str),
    "dtype": lambda v: isinstance(v, DType),
    "array": lambda v: isinstance(v, np.ndarray),
    "ints": _all(_is_int),
    "floats": _all(_is_number),
    "dims": _all(lambda v: _is_int(v) or isinstance(v, Sym)),
    "tuple": lambda v: isinstance(v, tuple),
}
