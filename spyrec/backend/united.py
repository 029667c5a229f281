"""One micro-program in the place of several. What differs between them in constants alone, each
instruction gives as scalars; of what is left, all is computed and a scalar says which is meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spyrec.sim.isa import MICRO_OPS, SCALARS, MicroOp, MicroProgram

Node = tuple[str | int | float, ...]
"""("in", index), ("const", value), ("scalar", index), or a micro-op with the numbers of nodes."""
Shape = tuple[int, tuple[tuple[str, tuple[tuple[str, int], ...]], ...]]
"""Inputs, and the steps; a constant is the number of its use."""


@dataclass(frozen=True)
class United:
    """``program`` computes what each of several does, with the ``scalars`` listed for that one in
    the place of its constants."""

    program: MicroProgram
    scalars: dict[MicroProgram, tuple[float, ...]]


def unite(programs: Sequence[MicroProgram]) -> United | None:
    """The programs, all of them different, as one; None when that takes more scalars than an
    instruction gives, or none of them has a step."""
    shapes: dict[Shape, list[MicroProgram]] = {}
    for program in programs:
        shapes.setdefault(shape_of(program)[0], []).append(program)
    first = len(shapes) > 1  # the first scalar says which shape is meant
    graph, roots = _Graph(), []
    scalars: dict[MicroProgram, tuple[float, ...]] = {}
    for number, (shape, members) in enumerate(shapes.items()):
        leaves, given = _lifted([shape_of(p)[1] for p in members], int(first))
        chosen = (float(number),) * first
        scalars |= {p: (*chosen, *values) for p, values in zip(members, given, strict=True)}
        roots.append(graph.add(shape, leaves))
    most = max(map(len, scalars.values()))
    if most > len(SCALARS):
        return None
    root = roots[0]
    for number, other in enumerate(roots[1:], 1):
        meant = graph.node("eq", graph.node("scalar", 0), graph.node("const", float(number)))
        root = graph.node("where", meant, other, root)
    inputs = max(inputs for inputs, _ in shapes)
    return United(graph.program(root, inputs, most), scalars)


def shape_of(program: MicroProgram) -> tuple[Shape, tuple[float, ...]]:
    """What is left of a program without the values of its constants; these, at each use."""
    values: list[float] = []
    known = program.n_inputs + len(program.constants)
    assert not program.n_scalars, "it was united before"

    def named(arg: int) -> tuple[str, int]:
        if arg < program.n_inputs:
            return "in", arg
        if arg >= known:
            return "step", arg - known
        values.append(program.constants[arg - program.n_inputs])
        return "const", len(values) - 1

    steps = tuple((step.op, tuple(map(named, step.args))) for step in program.steps)
    return (program.n_inputs, steps), tuple(values)


def _lifted(
    uses: Sequence[tuple[float, ...]], taken: int
) -> tuple[list[Node], list[tuple[float, ...]]]:
    """For each use of a constant its leaf: the constant if it is the same in all programs, else a
    scalar, ``taken`` being the number of those that mean something else. And the scalars of each
    program."""
    leaves: list[Node] = []
    columns: list[tuple[float, ...]] = []
    for column in zip(*uses, strict=True):
        if len(set(column)) == 1:
            leaves.append(("const", column[0]))
            continue
        if column not in columns:
            columns.append(column)
        leaves.append(("scalar", taken + columns.index(column)))
    return leaves, [tuple(column[i] for column in columns) for i in range(len(uses))]


@dataclass
class _Graph:
    """Expressions, equal ones once, arguments before what uses them."""

    nodes: list[Node] = field(default_factory=list)
    numbers: dict[Node, int] = field(default_factory=dict)

    def node(self, *node: str | int | float) -> int:
        if node not in self.numbers:
            self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self.numbers[node]

    def add(self, shape: Shape, leaves: Sequence[Node]) -> int:
        """The number of what a program with these constants computes."""
        made: list[int] = []
        for op, args in shape[1]:
            found = (
                self.node("in", i) if kind == "in" else
                made[i] if kind == "step" else self.node(*leaves[i])
                for kind, i in args
            )  # fmt: skip
            made.append(self.node(op, *found))
        return made[-1] if made else self.node("in", 0)

    def program(self, root: int, inputs: int, scalars: int) -> MicroProgram:
        """What ``root`` needs, as a program of so many inputs and scalars."""
        needed = sorted(self._below(root))
        constants = [n for n in needed if self.nodes[n][0] == "const"]
        places = {n: inputs + i for i, n in enumerate(constants)}
        first = inputs + len(constants)
        steps: list[MicroOp] = []
        for n in needed:
            kind, *args = self.nodes[n]
            if kind == "in":
                places[n] = int(args[0])
            elif kind == "scalar":
                places[n] = first + int(args[0])
            elif kind in MICRO_OPS:
                places[n] = first + scalars + len(steps)
                steps.append(MicroOp(str(kind), tuple(places[int(arg)] for arg in args)))
        values = tuple(float(self.nodes[n][1]) for n in constants)
        return MicroProgram(inputs, values, tuple(steps), scalars)

    def _below(self, root: int) -> set[int]:
        found, open_ = set[int](), [root]
        while open_:
            n = open_.pop()
            if n not in found:
                found.add(n)
                open_ += self._arguments(n)
        return found

    def _arguments(self, n: int) -> Iterator[int]:
        kind, *args = self.nodes[n]
        return map(int, args) if kind in MICRO_OPS else iter(())
