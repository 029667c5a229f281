"""Which ops share a kernel: greedy grouping in program order that never makes a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import networkx as nx

from spyrec.ir.core import Module, Op, Value, uses

from .kernel import GROUP, padded, rank1
from .primitives import ELEMENTWISE, REDUCTIONS
from .rules_reduce import ints

MELTS = ELEMENTWISE | {"broadcast_to"}  # runs lane by lane inside a vector program
PRODUCTS = frozenset(("matmul", "conv"))
WINDOWS = frozenset(("max_pool", "sum_pool"))
MAX_INPUTS = (
    6  # tensors a fused kernel reads: the vector unit takes 7 sources, one is the accumulator
)
MAX_RESULTS = 3
MAX_WHOLE = 5  # axes longer than 1 that a tile holds whole


@dataclass(eq=False)
class Group:
    """Ops of one kernel. ``full`` is the shape they all broadcast to; ``whole`` the axes of it that
    a reduction folds and later ops of the group use again, so a tile holds them whole. ``last`` is
    the place in the program of its last op, ``latest`` that of the last in it and all that it
    depends on.
    """

    kind: str  # contract, fold, vec, move, gather
    ops: list[Op]
    full: tuple[int, ...]
    whole: set[int] = field(default_factory=set)
    before: set[Group] = field(default_factory=set)  # groups whose results it reads
    after: set[Group] = field(default_factory=set)  # groups that read its results
    last: int = -1
    latest: int = -1

    def inputs(self) -> set[Value]:
        inside = {r for op in self.ops for r in op.results}
        return {v for op in self.ops for v in op.operands if v not in inside}


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The common shape of two right-aligned shapes, None when they do not broadcast."""
    n = max(len(a), len(b))
    out = []
    for x, y in zip([1] * (n - len(a)) + list(a), [1] * (n - len(b)) + list(b), strict=True):
        if x != y and 1 not in (x, y):
            return None
        out.append(max(x, y) if 0 not in (x, y) else 0)
    return tuple(out)


def is_depthwise(op: Op) -> bool:
    return op.name == "conv" and int(op.attrs.get("group", 1)) > 1  # type: ignore[arg-type]


class Grouper:
    """Grows the groups. ``budget_bytes``: scratchpad a tile of a vec group may take. ``join``
    False: every op starts a group of its own."""

    def __init__(self, module: Module, budget_bytes: int, join: bool = True) -> None:
        self.module = module
        self.budget = budget_bytes
        self.join = join
        self.groups: dict[Group, int] = {}  # numbered as they began
        self.begun = 0
        self.places = {op: place for place, op in enumerate(module.body.ops)}
        self.home: dict[Value, Group] = {}
        self.uses = uses(module.body)
        self.outputs = set(module.body.results)
        self.constants = {op.result: op for op in module.body.ops if op.name == "constant"}

    def run(self) -> list[Group]:
        """All groups in an order in which they can run."""
        for op, place in self.places.items():
            if op.name == "constant":
                continue
            group = (self._join(op) if self.join else None) or self._start(op)
            group.ops.append(op)
            group.last = place
            for r in op.results:
                self.home[r] = group
            for g in self._producers(op):
                if g is not group:
                    group.before.add(g)
                    g.after.add(group)
            _postpone(group, place)
        return self._ordered()

    def _producers(self, op: Op) -> list[Group]:
        return list(dict.fromkeys(self.home[v] for v in op.operands if v in self.home))

    def _start(self, op: Op) -> Group:
        shape = rank1(op.results[0].type)
        if op.name in WINDOWS or is_depthwise(op):
            group = Group("fold", [], shape)
        elif op.name in PRODUCTS:
            group = Group("contract", [], shape)
        elif op.name in REDUCTIONS:
            group = self._start_reduction(op)
        elif op.name in MELTS:
            group = Group("vec", [], shape)
        else:
            group = Group("gather" if op.name == "gather" else "move", [], shape)
        self.groups[group] = self.begun
        self.begun += 1
        return group

    def _start_reduction(self, op: Op) -> Group:
        full = rank1(op.operands[0].type)
        axes = set(ints(op, "axes"))
        if self._fits(full, axes):
            return Group("vec", [], full, axes)
        return Group("fold", [], rank1(op.results[0].type))

    def _fits(self, full: tuple[int, ...], whole: set[int]) -> bool:
        """Does a smallest tile leave room to work? The lanes run along the last axis if that alone
        is whole, else presumably along one that is not. An instruction has six dimensions, of which
        one may be the lanes' and one the sticks of a group of wide elements.
        """
        if sum(full[d] > 1 for d in whole) > MAX_WHOLE:
            return False
        last = len(full) - 1
        rows = prod(full[d] for d in whole if d != last)
        lanes = (
            padded(full[last], GROUP)
            if whole == {last}
            else GROUP * (full[last] if last in whole else 1)
        )
        return rows * lanes * 2 * 8 <= self.budget

    def _join(self, op: Op) -> Group | None:
        if op.name not in MELTS and op.name not in REDUCTIONS:
            return None
        producers = self._producers(op)
        heads = [g for g in producers if g.kind in ("contract", "fold")]
        vecs = [g for g in producers if g.kind == "vec"]
        for group in sorted(heads, key=self.groups.__getitem__, reverse=True) + vecs:
            if group.kind == "vec":
                if self._join_vec(op, group, [g for g in vecs if g is not group]):
                    return group
            elif self._join_head(op, group):
                return group
        return None

    def _join_head(self, op: Op, group: Group) -> bool:
        """An elementwise op on a matmul's, conv's or fold's whole result."""
        if op.name in REDUCTIONS or rank1(op.results[0].type) != group.full:
            return False
        return self._room(op, group) and self._acyclic(op, group)

    def _join_vec(self, op: Op, group: Group, others: list[Group]) -> bool:
        shape = rank1(op.operands[0].type) if op.name in REDUCTIONS else rank1(op.results[0].type)
        full = broadcast(group.full, shape)
        if full is None or len(shape) != len(group.full):
            return False  # of two ranks one has no place for the other's lanes
        lead = len(full) - len(group.full)
        whole = {d + lead for d in group.whole}
        if op.name in REDUCTIONS:
            whole |= {a + len(full) - len(shape) for a in ints(op, "axes")}
        if full != group.full and not self._widening_pays(group, full, whole):
            return False
        if whole and not self._fits(full, whole):
            return False
        if not self._room(op, group) or not self._acyclic(op, group):
            return False
        if self._holds_up(group, [g for g in self._producers(op) if g is not group]):
            return False
        group.full, group.whole = full, whole
        for other in others:
            self._merge(group, other)
        return True

    def _widening_pays(self, group: Group, full: tuple[int, ...], whole: set[int]) -> bool:
        """Small values recomputed for a larger shape: fine when the group did no whole-axis work
        yet, or only its own rows are reused.
        """
        return (
            not group.whole
            or (all(
                full[d + len(full) - len(group.full)] == e or e == 1
                for d, e in enumerate(group.full)
            )
            and prod(full) <= prod(group.full))
        )

    def _merge(self, group: Group, other: Group) -> None:
        """Take in another vec group that feeds the same op, when that is legal; else it stays an
        input.
        """
        full = broadcast(group.full, other.full)
        if full != group.full or other.kind != "vec" or len(other.full) != len(full):
            return
        lead = len(full) - len(other.full)
        whole = group.whole | {d + lead for d in other.whole}
        if any(full[d + lead] != e for d, e in enumerate(other.full) if d in other.whole):
            return
        if whole and not self._fits(full, whole):
            return
        if len(group.inputs() | other.inputs()) > MAX_INPUTS:
            return
        if self._reaches(group, other, skip_direct=True) or self._reaches(
            other, group, skip_direct=True
        ):
            return
        if self._holds_up(other, [group]):
            return
        group.ops = sorted(group.ops + other.ops, key=self.places.__getitem__)
        group.whole = whole
        group.last = max(group.last, other.last)
        del self.groups[other]
        self.home.update((r, group) for op in other.ops for r in op.results)
        for g in other.before:
            g.after = (g.after - {other}) | {group}
        for g in other.after:
            g.before = (g.before - {other}) | {group}
        group.before = (group.before | other.before) - {group, other}
        group.after = (group.after | other.after) - {group, other}
        latest, group.latest = max(group.latest, other.latest), -1
        _postpone(group, latest)

    def _room(self, op: Op, group: Group) -> bool:
        extra = {v for v in op.operands if self.home.get(v) is not group and not self._scalar(v)}
        known = {v for v in group.inputs() if not self._scalar(v)}
        return len(known | extra) <= MAX_INPUTS and self._results(group) < MAX_RESULTS

    def _scalar(self, v: Value) -> bool:
        return v in self.constants and v.type.size == 1

    def _results(self, group: Group) -> int:
        """Values of the group that something outside it reads, not counting the last. Those that
        are smaller than the group, like a number a row, take little room and are not counted."""
        inside = set(group.ops)
        outs = 0
        for op in group.ops[:-1]:
            for r in op.results:
                outs += r.type.size == prod(group.full) and (r in self.outputs or any(
                    u not in inside and self.home.get(u.results[0], group) is not group
                    for u, _ in self.uses.get(r, [])
                ))
        return outs

    def _acyclic(self, op: Op, group: Group) -> bool:
        """May op's other operands all be ready before the group runs?"""
        return not any(self._reaches(group, g) for g in self._producers(op) if g is not group)

    def _holds_up(self, group: Group, others: Sequence[Group]) -> bool:
        """Would a product that reads a result of the group wait for another product, which began
        after the group had ended, if the group waited for the ``others``?"""
        inside = set(group.ops)
        readers = (u for op in group.ops for r in op.results for u, _ in self.uses.get(r, []))
        if not any(u.name in PRODUCTS and u not in inside for u in readers):
            return False
        stack, seen = list(others), set[Group]()
        while stack:
            g = stack.pop()
            if g in seen or g.latest <= group.last:
                continue
            if g.kind == "contract" and self.places[g.ops[0]] > group.last:
                return True
            seen.add(g)
            stack.extend(g.before)
        return False

    def _reaches(self, a: Group, b: Group, skip_direct: bool = False) -> bool:
        """Does b read, directly or not, a result of a? What does is later than all of a."""
        stack, seen = [g for g in b.before if not (skip_direct and g is a)], set()
        while stack:
            g = stack.pop()
            if g is a:
                return True
            if g not in seen and g.latest >= a.last:
                seen.add(g)
                stack.extend(g.before)
        return False

    def _ordered(self) -> list[Group]:
        graph = nx.DiGraph()
        graph.add_nodes_from(self.groups)
        graph.add_edges_from((b, g) for g in self.groups for b in g.before)
        return list(nx.lexicographical_topological_sort(graph, self.groups.__getitem__))


def _postpone(group: Group, place: int) -> None:
    """Something at ``place`` joined the group: it and what depends on it is as late as that."""
    stack = [group]
    while stack:
        g = stack.pop()
        if g.latest < place:
            g.latest = place
            stack.extend(g.after)
