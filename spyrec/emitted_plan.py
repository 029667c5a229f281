"""Whether a plan is one in full, as ``--emit-plan`` writes it: with every decision, why it was
taken and what was rejected; and whether it is that of a program. Pins, which the same format can
hold, tell too little of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spyrec.ir.errors import SpyrecError
from spyrec.passes.plan import parse_plan
from spyrec.report import KernelRow

Form = Mapping[str, type]

KERNEL: Form = {"parts": dict, "core_order": list, "tile": dict, "loops": list, "buffers": int,
                "overlap": str, "why": dict}  # fmt: skip
WHY: Form = {"parts": dict, "tile": dict}
REJECTED: Mapping[str, Form] = {
    "parts": {"parts": dict, "cost_cycles": object}, "tile": {"tile": dict, "loops": list},
}  # fmt: skip
NUMBERS = {"parts": ("cost_cycles",), "tile": ("cost_cycles", "bytes", "budget_bytes")}
"""What need not be there."""
TENSOR: Form = {"space": str, "why": dict}
KINDS: Mapping[type, tuple[type, ...]] = {
    dict: (Mapping,), list: (list, tuple), int: (int,), str: (str,), object: (object,),
}  # fmt: skip


def check_emitted(plan: Mapping[str, Any]) -> None:
    """SpyrecError that tells which decisions of a plan are of a wrong kind, else the first thing
    that it lacks."""
    parse_plan(dict(plan))
    lacking = next(_lacking(plan), None)
    if lacking is not None:
        raise SpyrecError(
            f"plan: {lacking} is missing or of another kind; a program is explained by the whole "
            "file that --emit-plan wrote beside it, not by pins"
        )


def differs(name: str, decided: Mapping[str, Any], row: KernelRow) -> str:
    """How the cut and the tile of a plan's kernel ``name`` are others than those of the kernel that
    ran, "" when they are not. A program that does not tell (its row has no ``dims``) differs in
    nothing."""
    dims = [part.partition("=")[0] for part in row.dims.split(",") if part]
    for verb, what, ran in (("cuts", "parts", row.parts), ("tiles", "tile", row.tile)):
        planned = decided.get(what, {})
        numbers = "x".join(map(str, planned.values()))
        if dims and ([*planned] != dims or numbers != ran):
            here = " ".join(f"{d}={n}" for d, n in planned.items())
            there = " ".join(f"{d}={n}" for d, n in zip(dims, ran.split("x"), strict=False))
            return f"it {verb} {name} into {here or 'nothing'}, the program {row.name} into {there}"
    return ""


def _lacking(plan: Mapping[str, Any]) -> Iterator[str]:
    yield from _parts("", plan, {"kernels": dict, "tensors": dict})
    for name, kernel in plan.get("kernels", {}).items():
        where = f"kernel {name}, "
        yield from _parts(where, kernel, KERNEL)
        yield from _parts(f"{where}why, ", kernel["why"], WHY)
        for what, numbers in NUMBERS.items():
            for key in numbers:
                if not _is_number(kernel["why"][what].get(key, 0)):
                    yield f"{where}why, {what}, {key}"
        for what, form in REJECTED.items():
            others = kernel["why"][what].get("rejected", ())
            if not isinstance(others, Sequence) or isinstance(others, str):
                yield f"{where}why, {what}, rejected"
            for i, other in enumerate(others):
                yield from _parts(f"{where}why, {what}, rejected {i}, ", other, form)
                if not _is_number(other.get("cost_cycles", 0)):
                    yield f"{where}why, {what}, rejected {i}, cost_cycles"
    for name, tensor in plan.get("tensors", {}).items():
        yield from _parts(f"tensor {name}, ", tensor, TENSOR)


def _parts(where: str, given: object, form: Form) -> Iterator[str]:
    if not isinstance(given, Mapping):
        yield where.removesuffix(", ")
        return
    for key, kind in form.items():
        if key not in given or not isinstance(given[key], KINDS[kind]):
            yield f"{where}{key}"


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
