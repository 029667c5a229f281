"""What the planner chose for the kernels of a report, why, and the best of what it rejected: a full
plan (``compile --emit-plan``) as rows to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spyrec.emitted_plan import differs
from spyrec.ir.errors import SpyrecError
from spyrec.plain_json import AsJson
from spyrec.report import Report

Plain = Mapping[str, Any]


@dataclass(frozen=True)
class KernelDecisions:
    """Costs are the planner's prices in cycles, None where it told none; texts are empty there."""

    kernel: str
    cut: str
    cut_cost: float | None
    cut_rejected: str
    cut_rejected_cost: float | None
    tile: str
    tile_cost: float | None
    tile_rejected: str
    tile_rejected_cost: float | None
    notes: str


@dataclass(frozen=True)
class Places:
    """Tensors that went to one place for one reason. ``space``: scratchpads or card memory."""

    space: str
    why: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class DecisionLog(AsJson):
    """``kernels``: of each row of a report, as far as the plan knows it; ``searched``: what
    improving the plan by simulation brought, empty without."""

    kernels: tuple[KernelDecisions, ...]
    tensors: tuple[Places, ...]
    searched: str = ""


def decision_log(report: Report, plan: Plain) -> DecisionLog:
    """SpyrecError: ``plan`` is no full plan, or not that of the program which was run: it lacks a
    kernel, has more of them, or another cut or tile."""
    plans = _plans(report, plan)
    rows: list[KernelDecisions] = []
    runs: dict[str, int] = {}
    places: dict[tuple[str, str], list[str]] = {}
    for row in report.kernels:
        bucket, slash, name = row.name.partition("/")
        known = plans.get(bucket) if slash else None
        of, name = (plans[""], row.name) if known is None else (known, name)
        where = "" if known is None else bucket
        runs[where] = runs.get(where, 0) + row.count
        decided = of.get("kernels", {}).get(name)
        if decided is None:
            raise _foreign(report, f"it has no kernel {row.name}")
        rows.append(_kernel(row.name, _object(decided, f"kernels.{name}")))
        if odd := differs(name, decided, row):
            raise _foreign(report, odd)
    for where, ran in runs.items():
        planned = len(plans[where].get("kernels", {}))
        if planned != ran:
            raise _foreign(report, f"it has {planned} kernels, the program ran {ran}")
    for name, tensor in plans[""].get("tensors", {}).items():
        space, why = _place(_object(tensor, f"tensors.{name}"), f"tensors.{name}")
        places.setdefault((space, why), []).append(name)
    grouped = sorted(places.items(), key=lambda item: -len(item[1]))
    return DecisionLog(
        tuple(rows),
        tuple(Places(space, why, tuple(names)) for (space, why), names in grouped),
        _searched(plans[""]),
    )


def _foreign(report: Report, odd: str) -> SpyrecError:
    return SpyrecError(
        f"the plan is not that of the program {report.model or 'in the report'}: {odd}; give the "
        "plan that --emit-plan wrote when the program was compiled"
    )


def _plans(report: Report, plan: Plain) -> dict[str, Plain]:
    """The plan of each bucket by its name, that of the report's as ``""``."""
    found = {
        name: _object(each, f"buckets.{name}")
        for name, each in _object(plan.get("buckets", {}), "buckets").items()
    }
    own = found.get(report.bucket.name) if report.bucket is not None else None
    found[""] = plan if own is None else own
    for each in found.values():
        for what in ("kernels", "tensors"):
            _object(each.get(what, {}), what)
    return found


def _kernel(name: str, decided: Plain) -> KernelDecisions:
    where = f"kernels.{name}"
    why = _object(decided.get("why", {}), f"{where}.why")
    cut, tile = (_object(why.get(what, {}), f"{where}.why.{what}") for what in ("parts", "tile"))
    other_cut, other_tile = (_best(w, where) for w in (cut, tile))
    rejected_cut = _sizes(other_cut.get("parts", {}), where)
    if other_cut.get("ruled_out"):
        rejected_cut += f" ({other_cut['ruled_out']})"
    rejected_tile = _sizes(other_tile.get("tile", {}), where)
    if other_tile.get("loops") not in (None, decided.get("loops")):
        rejected_tile += f", loops {_names(other_tile['loops'], where)}"
    return KernelDecisions(
        name, _sizes(decided.get("parts", {}), where), _cost(cut), rejected_cut, _cost(other_cut),
        _sizes(decided.get("tile", {}), where), _cost(tile), rejected_tile, _cost(other_tile),
        "; ".join(_notes(decided, why, where)),
    )


def _notes(decided: Plain, why: Plain, where: str) -> Iterator[str]:
    if loops := decided.get("loops"):
        yield f"loops {_names(loops, where)}"
    if kept := decided.get("keep"):
        yield f"keeps factor {_names(kept, where)}"
    for what in ("parts", "tile"):
        pinned = _object(why.get(what, {}), where).get("pinned")
        if pinned:
            yield f"pinned {what}: {_names(pinned, where)}"
    improved = _object(why.get("improve", {}), f"{where}.why.improve")
    if improved:
        made = _list(improved.get("made", []), where)
        moves = (_object(move, where) for move in made)
        told = ", ".join(
            f"{m.get('move')}: {_number(m.get('cycles'))} to {_number(m.get('then'))} cycles"
            for m in moves
        )
        yield f"{improved.get('tried')} moves simulated" + (f", made {told}" if told else "")


def _place(tensor: Plain, where: str) -> tuple[str, str]:
    why = _object(tensor.get("why", {}), f"{where}.why")
    pinned = f"pinned {_names(why['pinned'], where)}" if why.get("pinned") else ""
    if tensor.get("space") == "lx":
        return "scratchpads", pinned or "there is room from its maker to its last reader"
    reason = str(why.get("card_memory", ""))
    return "card memory", f"{reason}; {pinned}" if pinned and reason else reason or pinned


def _searched(plan: Plain) -> str:
    found = _object(_object(plan.get("why", {}), "why").get("improve", {}), "why.improve")
    if not found:
        return ""
    first, last = found.get("first_cycles"), found.get("cycles")
    tried = f"{_number(found.get('tried'))} were tried."
    if first == last:
        return f"Simulating alternatives to {_number(last)} cycles found no better; {tried}"
    return (
        f"Simulating alternatives brought the run from {_number(first)} to {_number(last)} cycles; "
        f"{tried}"
    )


def _best(why: Plain, where: str) -> Plain:
    rejected = _list(why.get("rejected", []), f"{where}.rejected")
    return _object(rejected[0], f"{where}.rejected") if rejected else {}


def _cost(of: Plain) -> float | None:
    cost = of.get("cost_cycles")
    return float(cost) if isinstance(cost, int | float) else None


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _sizes(value: Any, where: str) -> str:
    return " ".join(f"{name}={n}" for name, n in _object(value, where).items())


def _names(value: Any, where: str) -> str:
    return ", ".join(map(str, _list(value, where)))


def _object(value: Any, where: str) -> Plain:
    if not isinstance(value, Mapping):
        raise SpyrecError(f"plan: {where} is {str(value)[:40]!r}, expected an object")
    return value


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise SpyrecError(f"plan: {where} is {str(value)[:40]!r}, expected a list")
    return value
