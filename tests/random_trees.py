"""Random statement trees for the stream builder, with real instructions, and their meaning: every
statement carried out in the order of the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from hypothesis import strategies as st
from small_machine import SMALL

from spyrec.backend.slots import Slots
from spyrec.backend.streams import Streams, group_members
from spyrec.backend.tree import Body, Buffer, LoopStmt, Stmt, statements
from spyrec.sim.functional_move import load, store
from spyrec.sim.functional_vec import vec
from spyrec.sim.isa import (
    Buffer as CardBuffer,
)
from spyrec.sim.isa import (
    Instr,
    Kernel,
    Launch,
    MicroOp,
    MicroProgram,
    Num,
    Operand,
    Program,
    Rotate,
)
from spyrec.sim.memory import Memory
from spyrec.sim.view import Grid, Moment

X_STICKS = 96
PROGRAMS = (
    MicroProgram(1, (0.5,), (MicroOp("mul", (0, 1)),)),
    MicroProgram(2, (), (MicroOp("sub", (0, 1)),)),
    MicroProgram(1),
)
COPY = 2
KINDS = ("load", "one", "two", "fold", "store", "loop")


@dataclass
class Held:
    """A buffer that holds a value at this point of the tree, under the loops ``path`` (trips)."""

    buffer: Buffer
    address: int
    path: tuple[int, ...]


@dataclass
class Maker:
    """Draws statements and keeps count of scratchpad and output sticks used."""

    draw: st.DrawFn
    cores: int
    where: int
    lx: int = 0
    out: int = 0
    made: list[Buffer] = field(default_factory=list)

    def buffer(self, body: Body, path: tuple[int, ...]) -> Held:
        b = Buffer(f"b{len(self.made)}", self.draw(st.integers(1, 3)))
        self.made.append(b)
        body.scoped.append(b)
        held = Held(b, self.lx, path)
        self.lx += b.slots
        return held

    def place(self, held: Held, path: tuple[int, ...], dims: int = 0) -> Operand:
        rotate = None
        if held.buffer.slots > 1:
            inner = (0,) * (len(path) - len(held.path))
            rotate = Rotate((*running(held.path), *inner), held.buffer.slots, 1)
        return Operand("lx", held.address, (0,) * dims, rotate=rotate)

    def load(self, body: Body, path: tuple[int, ...]) -> Held:
        held = self.buffer(body, path)
        groups = self.draw(st.sampled_from(self.groups()))
        base: Num = self.draw(st.integers(0, 20))
        if not groups:
            base = tuple(self.draw(st.integers(0, 20)) for _ in range(self.cores))
        steps = tuple(self.draw(st.integers(0, 4)) for _ in path)
        held.buffer.groups = groups
        held.buffer.leaders = self.draw(st.sampled_from([(), tuple(map(_highest, groups))]))
        imm = {"cores": group_members(held.buffer, self.cores)} if groups else {}
        source = Operand("hbm", base, (), symbol="x", loops=steps if any(steps) else ())
        instr = Instr("load", (), (), (self.place(held, path), source), imm, where=self.where)
        early = self.draw(st.booleans())
        body.items.append(Stmt("ml", instr, (), (held.buffer,), early))
        return held

    def groups(self) -> list[tuple[int, ...]]:
        """No sharing, or the active cores in groups of up to three."""
        active = [c for c in range(self.cores) if not self.where or self.where >> c & 1]
        out: list[tuple[int, ...]] = [()]
        for size in (2, 3):
            parts = [active[i : i + size] for i in range(0, len(active), size)]
            if len(active) > 1:
                out.append(tuple(sum(1 << c for c in part) for part in parts))
        return out

    def vec(self, body: Body, path: tuple[int, ...], sources: list[Held]) -> Held:
        held = self.buffer(body, path)
        self._vec(body, path, sources, held, {"program": len(sources) - 1})
        return held

    def fold(self, body: Body, path: tuple[int, ...], live: list[Held]) -> Held:
        """A sum over the trips of a loop, kept in a buffer of the body around it."""
        held = self.buffer(body, path)
        inner, trips = Body(), self.draw(st.integers(2, 4))
        added = [self.draw(st.sampled_from([*live, self.load(inner, (*path, trips))]))]
        imm = {"program": COPY, "reduce": 1, "acc_levels": 1 << len(path)}
        self._vec(inner, (*path, trips), added, held, imm)
        body.items.append(LoopStmt(trips, inner))
        return held

    def _vec(
        self, body: Body, path: tuple[int, ...], sources: list[Held], target: Held,
        imm: dict[str, Num],
    ) -> None:
        operands = [self.place(h, path, 1) for h in (target, *sources)]
        instr = Instr("vec", (1,), (None,), tuple(operands), imm, where=self.where)
        reads = tuple(dict.fromkeys(h.buffer for h in sources))
        body.items.append(Stmt("sfp", instr, reads, (target.buffer,)))

    def store(self, body: Body, path: tuple[int, ...], held: Held) -> None:
        trips = prod(path)
        base = tuple(self.out + c * trips for c in range(self.cores))
        self.out += self.cores * trips
        target = Operand("hbm", base, (), symbol="y", loops=running(path) if trips > 1 else ())
        operands = (target, self.place(held, path))
        instr = Instr("store", (), (), operands, where=self.where)
        body.items.append(Stmt("ms", instr, (held.buffer,)))

    def body(self, path: tuple[int, ...], live: list[Held]) -> Body:
        body, here = Body(), list(live)
        here.append(self.load(body, path))
        for _ in range(self.draw(st.integers(1, 4))):
            some = st.sampled_from(here)
            match self.draw(st.sampled_from(KINDS)):
                case "load":
                    here.append(self.load(body, path))
                case "one":
                    here.append(self.vec(body, path, [self.draw(some)]))
                case "two":
                    here.append(self.vec(body, path, [self.draw(some), self.draw(some)]))
                case "fold":
                    here.append(self.fold(body, path, here))
                case "store":
                    self.store(body, path, self.draw(some))
                case "loop" if len(path) < 2:
                    trips = self.draw(st.integers(1, 4))
                    inner = (*path, trips) if trips > 1 else path
                    body.items.append(LoopStmt(trips, self.body(inner, here)))
        self.store(body, path, here[-1])
        return body

    def unrolled(self, root: Body) -> None:
        """Steps in each of which only some cores have a tile to load, halve and store."""
        a, b = (Slots(name, self.lx + 2 * i, 1, self.cores, 2) for i, name in enumerate("ab"))
        self.lx += 4
        for _ in range(self.draw(st.integers(2, 6))):
            users = sorted(self.draw(st.sets(st.integers(0, self.cores - 1), min_size=1)))
            where = sum(1 << c for c in users)
            near, far = a.take(users), b.take(users)
            body = Body(scoped=[a.buffer, b.buffer])
            there = tuple(self.draw(st.integers(0, 20)) for _ in near)
            source = Operand("hbm", there, (), symbol="x")
            first = Instr("load", (), (), (Operand("lx", near, ()), source), where=where)
            operands = (Operand("lx", far, (0,)), Operand("lx", near, (0,)))
            half = Instr("vec", (1,), (None,), operands, {"program": 0}, where=where)
            base = tuple(self.out + c for c in range(self.cores))
            self.out += self.cores
            last = Instr(
                "store", (), (), (Operand("hbm", base, (), symbol="y"), Operand("lx", far, ())),
                where=where,
            )  # fmt: skip
            body.items += [
                Stmt("ml", first, (), (a.buffer,)),
                Stmt("sfp", half, (a.buffer,), (b.buffer,)),
                Stmt("ms", last, (b.buffer,)),
            ]
            root.items.append(LoopStmt(1, body))


def running(path: tuple[int, ...]) -> tuple[int, ...]:
    """Coefficients that turn trip numbers into a running number."""
    return tuple(prod(path[i + 1 :]) for i in range(len(path)))


@dataclass(frozen=True)
class Case:
    """``out``: sticks of the output; not all of them need be written."""

    root: Body
    cores: int
    out: int

    def streams(self) -> Streams:
        return Streams(self.root, self.cores)

    def program(self) -> Program:
        kernel = Kernel("k", self.streams().build(), ("x", "y"), PROGRAMS, cores=self.cores)
        x = CardBuffer("x", "input", X_STICKS * 128, 0)
        y = CardBuffer("y", "temp", self.out * 128, X_STICKS * 128)
        return Program((kernel,), (x, y), (Launch(0, (("x", 0), ("y", 0))),))

    def in_order(self, memory: Memory) -> None:
        """Carry out every statement on every core in the order of the tree."""
        kernel = Kernel("k", {}, ("x", "y"), PROGRAMS, cores=self.cores)

        def walk(body: Body, trip: tuple[int, ...]) -> None:
            for item in body.items:
                if isinstance(item, LoopStmt):
                    for i in range(item.count):
                        walk(item.body, trip if item.count == 1 else (*trip, i))
                    continue
                for core in range(self.cores):
                    if not item.instr.where or item.instr.where >> core & 1:
                        execute(item.instr, kernel, memory, Moment(core, trip))

        walk(self.root, ())


def execute(instr: Instr, kernel: Kernel, memory: Memory, moment: Moment) -> None:
    """One execution of a load, store or vec."""
    if instr.op == "vec":
        return vec(instr, kernel, memory, moment)

    def bound(number: int, at: Grid):  # type: ignore[no-untyped-def]
        return memory.hbm[instr.operands[number].symbol], at

    return {"load": load, "store": store}[instr.op](instr, memory, moment, bound)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    cores = draw(st.integers(1, SMALL.cores.count))
    where = draw(st.sampled_from([0, *range(1, (1 << cores) - 1)]))
    maker = Maker(draw, cores, where)
    root = maker.body((), [])
    if draw(st.booleans()):
        maker.unrolled(root)
    assert maker.lx * 128 <= SMALL.lx.bytes
    assert all(s.instr.operands for s in statements(root))
    return Case(root, cores, maker.out)


def _highest(mask: int) -> int:
    return mask.bit_length() - 1
