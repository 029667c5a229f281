"""improve: close calls of the planner are settled by simulation, under a budget."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

from spyrec.ir.core import Attr, Module, Op, Value

from .cut_out import Graph, Window
from .improve_moves import LIKELY, Attrs, Move, moves, retiled
from .manager import Target
from .trial import STEPS_A_SECOND, Trial

BY_SIZE = -1
"""The budget that fits the model: see ``fitting_steps``."""
LEAST_S, MOST_S = 0.8, 5.0
CYCLES_A_SECOND = 600_000
"""A second of search for so many cycles of kernels that differ: what takes long to run is worth
more search."""
WORTH = 0.002
"""Of a window's cycles: what a move must gain there."""
MOVES_A_VISIT = 5
"""Moves of one class that are tried before the next class has its turn."""
ACCEPTED_MOST = 4
"""Moves of a class that are made: neighbours could else undo each other's without end."""
FAILED_STEPS = 2_000
"""What a trial costs that does not fit the machine."""
SURE = 0.75
"""Of a kernel's floor: what no plan saves. Some bytes may come before it begins."""
WHOLE_MOST = 3
"""Times the budget by size that one more run of the whole module may take."""
REVISIONS = 3
"""Runs of the whole module that may be spent on finding which moves do not pay there."""
UNTOUCHED = ("pin_parts", "pin_order", "pin_tile", "pin_loops", "buffers", "overlap")
"""A kernel that has one of these is decided by a plan."""


@dataclass(frozen=True)
class Improve:
    """Plan as the passes after this one would, run that in the simulator, and look for what is
    better: other cuts, orders, tiles, memories, a kernel at a time.

    A move is tried on a cut-out, the kernel with its producers and readers, so that exchanges
    between them count. Equal kernels with equal neighbours are decided together, those first that
    lose most against what their arithmetic or bytes need. What gained in its cut-out is kept only
    if the whole module runs in fewer cycles with it: the result is never slower than the first
    plan. Needs a target that can try plans out; with another the module is returned as it is.

    ``steps``: what the trials may cost (STEPS_A_SECOND); 0 for none, -1 for what the size of the
    model suggests. The budget is counted in work, so the result is the same on every machine.

    Before -> after: kernels get the attributes ``parts``, ``tile`` and so on that the passes after
    this one would have set, or better ones, and ``improved`` = (moves tried, (what was changed,
    cycles of the cut-out before, after) of each move made); the module gets ``searched`` = (cycles
    by the first plan, by this one, moves tried, steps spent, steps allowed), and ``settled``, the
    tensors that were moved to the other memory.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> module = parse_module('module "m" {stage = "device"} {\\n  input %x: tensor<2xdl16>\\n'
    ...                       '  output "x" = %x\\n}')
    >>> Improve().run(module, Target(load_device())) is module  # nobody here can run a program
    True
    """

    name: ClassVar[str] = "improve"
    summary: ClassVar[str] = "Settles close calls of the planner by simulation, under a budget."
    steps: int = BY_SIZE

    def run(self, module: Module, target: Target) -> Module:
        if target.attempt is None or self.steps == 0:
            return module
        graph = Graph(module)
        fixed = frozenset(op for op in graph.kernels if not _open(op))
        if len(fixed) == len(graph.kernels):
            return module
        return _Search(graph, target, self.steps, fixed).run() or module


def _open(op: Op) -> bool:
    return not any(key in op.attrs for key in UNTOUCHED) and "parts" not in op.attrs


def fitting_steps(cycles: int) -> int:
    """The budget for a model whose different kernels take so many cycles."""
    seconds = min(MOST_S, max(LEAST_S, cycles / CYCLES_A_SECOND))
    return int(seconds * STEPS_A_SECOND)


@dataclass
class _Class:
    """Kernels that are decided together; the first stands for all. ``stake``: cycles of all that
    may be saved; ``pending``: moves that are left, the likeliest first, None when they are not
    known yet; ``odds``: of the first of them."""

    members: list[Op]
    stake: float
    accepted: list[tuple[Move, int, int]] = field(default_factory=list)
    tried: int = 0
    pending: list[Move] | None = None
    odds: float = LIKELY


@dataclass(frozen=True)
class _State:
    """``plan``: what is decided of each kernel; ``flips``: tensors that were moved to the other
    memory; ``spaces``: where all results live, as far as known."""

    plan: Mapping[Op, Attrs]
    flips: Mapping[Value, str]
    spaces: Mapping[Value, str]


@dataclass(frozen=True)
class _Found:
    """A plan, the classes whose moves are in it, and what the whole module takes."""

    state: _State
    classes: Sequence[_Class]
    cycles: int


class _Search:
    """One search: its trials, and what of the budget is spent."""

    def __init__(self, graph: Graph, target: Target, steps: int, fixed: frozenset[Op]) -> None:
        assert target.attempt is not None
        self.graph, self.attempt, self.fixed = graph, target.attempt, fixed
        self.cores = target.device.cores.count
        self.budget, self.spent = steps, 0
        self.known: dict[Hashable, Trial | None] = {}
        pins: Any = graph.module.attrs.get("pin_spaces", ())
        self.pins = dict[str, str](pins)

    def run(self) -> Module | None:
        """The module with the best plan found, the first one at least; None when it has none."""
        first = self._whole(self.graph.module)
        if first is None:
            return None
        start = self._start(first)
        classes = self._classes(first)
        state, fitting = start, 0
        if self.budget == BY_SIZE:
            heads = {self.graph.position[c.members[0]] for c in classes}
            fitting = fitting_steps(sum(first.kernels[i].cycles for i in heads))
        if max(WHOLE_MOST * fitting, self.budget / 2) > first.steps:
            state = self._tiled_anew(start, classes, first)
        if self.budget == BY_SIZE:
            self.budget = self.spent + fitting
        state = self._search(state, classes)
        return self._reported(self._settled(start, state, classes, first), classes, first)

    def _whole(self, module: Module) -> Trial | None:
        """A trial of the whole module, which the budget pays for but does not prevent."""
        trial = self.attempt(module)
        self.spent += 0 if trial is None else trial.steps
        return trial

    def _start(self, first: Trial) -> _State:
        plan = {
            op: k.decided for op, k in zip(self.graph.kernels, first.kernels, strict=True)
        }
        spaces = {
            v: space for op, k in zip(self.graph.kernels, first.kernels, strict=True)
            for v, space in zip(op.results, k.spaces, strict=True)
        }
        return _State(plan, {}, spaces)

    def _classes(self, first: Trial) -> list[_Class]:
        """Open kernels by class, those first with most at stake."""
        graph = self.graph
        facts = {
            op: (tuple(k.decided.items()), k.spaces)
            for op, k in zip(graph.kernels, first.kernels, strict=True)
        }
        found = []
        for members in graph.alike(facts).values():
            if members[0] not in self.fixed:
                k = first.kernels[graph.position[members[0]]]
                stake = max(0.0, k.cycles - SURE * k.floor_cycles)
                found.append(_Class(members, len(members) * stake))
        return sorted(found, key=lambda c: -c.stake)

    def _tiled_anew(self, start: _State, classes: Sequence[_Class], first: Trial) -> _State:
        """All classes with a tile whose price is close at once, the smallest of these: of two that
        promise the same, it waits less for what did not come early. Kept where launches and those
        after them are faster."""
        chosen: list[tuple[_Class, Move]] = []
        state = start
        for c in classes:
            op = c.members[0]
            tiles = [m for m in retiled(op, start.plan[op]) if m.odds == LIKELY]
            if tiles:
                chosen.append((c, min(tiles, key=_tile_size)))
                plan = {**state.plan, **dict.fromkeys(c.members, chosen[-1][1].changes[0])}
                state = replace(state, plan=plan)
        trial = self._whole(self._module(state)) if chosen else None
        if trial is None:
            return start
        plan = dict(start.plan)
        for c, move in chosen:
            c.tried += 1
            before, after = (self._following(c, ran) for ran in (first, trial))
            if after < before:
                c.accepted.append((move, before, after))
                plan.update((op, trial.kernels[self.graph.position[op]].decided)
                            for op in c.members)  # fmt: skip
        return replace(start, plan=plan)

    def _following(self, c: _Class, ran: Trial) -> int:
        """Cycles of the launches of a class, each with the next."""
        places = [self.graph.position[op] for op in c.members]
        return sum(k.cycles for at in places for k in ran.kernels[at : at + 2])

    # Cut-outs -------------------------------------------------------------------------------------

    def _search(self, state: _State, classes: Sequence[_Class]) -> _State:
        """A few moves of a class at a time, of that where they promise most, until the budget is
        spent."""
        active = [c for c in classes if c.stake > 0]
        while active and self._more():
            c = max(active, key=lambda c: c.stake * c.odds)
            state, more = self._visit(state, c)
            if not more:
                active.remove(c)
        return state

    def _more(self) -> bool:
        return self.spent < self.budget

    def _visit(self, state: _State, c: _Class) -> tuple[_State, bool]:
        """Try the next moves of a class that are alike likely, and make the one that gains most;
        whether there are more."""
        window = self.graph.window(c.members[0])
        if c.pending is None:
            plan = [state.plan[op] for op in window.ops]
            found = moves(window, plan, state.spaces, self.cores, self.fixed)
            c.pending = [m for m in found if not any(v.name in self.pins for v in m.spaces)]
        if not c.pending:
            return state, False
        if c.pending[0].odds < c.odds:  # others may promise more
            c.odds = c.pending[0].odds
            return state, True
        now = self._try(state, window, Move("as it is"))
        if now is None:
            return state, False
        gains: list[tuple[int, int, Move, Trial]] = []
        for number in range(MOVES_A_VISIT):
            if not self._more() or not c.pending or c.pending[0].odds < c.odds:
                break
            move = c.pending.pop(0)
            c.tried += 1
            after = self._try(state, window, move)
            if after is not None and after.cycles < now.cycles * (1 - WORTH):
                gains.append((after.cycles, number, move, after))
        for cycles, _, move, after in sorted(gains, key=lambda g: g[:2]):
            if self._confirmed(state, window, move):
                c.accepted.append((move, now.cycles, cycles))
                c.pending, c.odds = None, LIKELY  # what can be changed now is something else
                more = len(c.accepted) < ACCEPTED_MOST
                return self._accepted(state, c, window, move, after), more
        return state, True

    def _confirmed(self, state: _State, window: Window, move: Move) -> bool:
        """Does the move gain among the launches around what it changes as well?"""
        made = {self.graph.maker[v] for v in move.spaces}
        ops = self.graph.stretch([*{window.ops[i] for i in move.changes} | made])
        if set(ops) <= set(window.ops):
            return True
        place = {op: i for i, op in enumerate(ops)}
        changes = {
            place[window.ops[i]]: attrs for i, attrs in move.changes.items()
            if window.ops[i] in place
        }  # fmt: skip
        if len(changes) < len(move.changes):
            return True  # they lie too far apart; the whole module will tell
        now = self._run(state, ops, Move("as it is"))
        after = self._run(state, ops, replace(move, changes=changes))
        return now is not None and after is not None and after.cycles < now.cycles

    def _try(self, state: _State, window: Window, move: Move) -> Trial | None:
        return self._run(state, window.ops, move)

    def _run(self, state: _State, ops: Sequence[Op], move: Move) -> Trial | None:
        """A trial of these kernels with the move made, each one once."""
        attrs = [move.changes.get(i, state.plan[op]) for i, op in enumerate(ops)]
        touched = {v for i in move.changes for v in ops[i].results}
        spaces = {
            v: s for op in ops for v, s in ((v, state.spaces[v]) for v in op.results)
            if v in state.flips or v.name in self.pins or (s == "hbm" and v not in touched)
        }
        spaces.update(move.spaces)
        key = (
            tuple(ops), tuple(tuple(a.items()) for a in attrs),
            tuple((v, spaces[v]) for op in ops for v in op.results if v in spaces),
        )
        if key not in self.known:
            trial = self.attempt(self.graph.cut_out(ops, attrs, spaces))
            self.spent += trial.steps if trial is not None else FAILED_STEPS
            self.known[key] = trial
        return self.known[key]

    def _accepted(
        self, state: _State, c: _Class, window: Window, move: Move, after: Trial
    ) -> _State:
        """The state with the move made at every member of the class."""
        plan, flips, spaces = dict(state.plan), dict(state.flips), dict(state.spaces)
        for member in c.members:
            theirs = self.graph.window(member)
            if [o.attrs["dims"] for o in theirs.ops] != [o.attrs["dims"] for o in window.ops]:
                continue
            for i in move.changes:
                op = theirs.ops[i]
                before = state.plan[op]
                plan[op] = _explained(after.kernels[i].decided, before)
                spaces.update(zip(op.results, after.kernels[i].spaces, strict=True))
            for v, space in move.spaces.items():
                twin = _twin(v, window, theirs)
                flips[twin] = spaces[twin] = space
        return _State(plan, flips, spaces)

    # The whole ------------------------------------------------------------------------------------

    def _settled(
        self, start: _State, state: _State, classes: Sequence[_Class], first: Trial
    ) -> _Found:
        """The state, without the moves that cost the whole module something; ``start`` when nothing
        is left."""
        best = _Found(start, (), first.cycles)
        kept = [c for c in classes if c.accepted]
        for _ in range(REVISIONS):
            if not kept:
                break
            state = self._only(start, state, kept)
            trial = self._whole(self._module(state))
            if trial is not None and trial.cycles < best.cycles:
                best = _Found(state, tuple(kept), trial.cycles)
            bad = [c for c in kept if trial is not None and self._worse(c, first, trial)]
            if not bad and trial is not None and trial.cycles <= best.cycles:
                break
            if not bad:
                kept.sort(key=_gain, reverse=True)
                bad = kept[len(kept) // 2 :]
            kept = [c for c in kept if c not in bad]
        return best

    def _only(self, start: _State, state: _State, kept: Sequence[_Class]) -> _State:
        """``state`` where the windows of ``kept`` are, ``start`` elsewhere."""
        near = {op for c in kept for m in c.members for op in self.graph.window(m).ops}
        plan = {op: (state if op in near else start).plan[op] for op in self.graph.kernels}
        flips = {v: s for v, s in state.flips.items() if self.graph.maker[v] in near}
        return _State(plan, flips, state.spaces)

    def _worse(self, c: _Class, first: Trial, trial: Trial) -> bool:
        """Do the windows of the class take longer than at first?"""
        near = {self.graph.position[op] for m in c.members for op in self.graph.window(m).ops}
        return sum(trial.kernels[i].cycles - first.kernels[i].cycles for i in near) > 0

    def _module(self, state: _State, said: Mapping[Op, Attrs] = MappingProxyType({})) -> Module:
        """The module with the state's plan; ``said``: further attributes of kernels."""
        module = self.graph.module
        ops = tuple(
            op.with_attrs(**state.plan[op], **said.get(op, {})) if op in state.plan else op
            for op in module.body.ops
        )  # fmt: skip
        made = replace(module, body=replace(module.body, ops=ops))
        if not state.flips:
            return made
        flips = {v.name: s for v, s in state.flips.items()}
        return made.with_attrs(
            pin_spaces=tuple({**self.pins, **flips}.items()), settled=tuple(flips)
        )

    def _reported(self, found: _Found, classes: Sequence[_Class], first: Trial) -> Module:
        """The module with the best plan and its reasons."""
        said: dict[Op, Attrs] = {}
        for c in classes:
            made = tuple((m.what, a, b) for m, a, b in c.accepted if c in found.classes)
            for member in c.members if c.tried else ():
                said[member] = {"improved": (c.tried, made)}
        tried = sum(c.tried for c in classes)
        return self._module(found.state, said).with_attrs(
            searched=(first.cycles, found.cycles, tried, self.spent, self.budget)
        )


def _twin(v: Value, window: Window, other: Window) -> Value:
    """What a result or an operand of a window's target is at the target of another."""
    if v in window.op.results:
        return other.op.results[window.op.results.index(v)]
    return other.op.operands[window.op.operands.index(v)]


def _tile_size(move: Move) -> int:
    tile: Any = move.changes[0]["pin_tile"]
    return prod(tile)


def _gain(c: _Class) -> float:
    return len(c.members) * sum(before - after for _, before, after in c.accepted)


def _explained(now: Attrs, before: Attrs) -> Mapping[str, Attr]:
    """What is decided now, with the price of the cut that it takes the place of."""
    why: Any = now.get("why_parts", ())
    old: Any = before.get("why_parts", ())
    if now.get("parts") == before.get("parts") or not why or not old:
        return now
    return {**now, "why_parts": (why[0], ((before["parts"], old[0]), *old[1]))}
