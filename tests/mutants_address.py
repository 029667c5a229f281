"""Faults in what instructions address and how far they go: bases, strides, loops, slots, limits,
patches of one core, symbols, receivers. Each kind changes one number of one instruction."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mutants import Mutant, Place, places, put

from spyrec.sim.isa import STICK, Instr, Launch, Num, Operand, Program

Found = tuple[Place, Instr]
Change = Callable[[Instr, random.Random], Instr | None]
"""The instruction with a fault, None when it has no place for it."""


def seed(program: Program, rng: random.Random, change: Change) -> Mutant | None:
    """``change`` of one instruction that has a place for it, each as likely as the others."""
    found = [(p, p.item) for p in places(program) if isinstance(p.item, Instr)]
    rng.shuffle(found)
    for place, instr in found:
        made = change(instr, rng)
        if made is not None and made != instr:
            return Mutant(put(program, place, made), f"{place.unit} {place.path} {instr.op}")
    return None


def moved(value: Num, by: int) -> Num:
    return value + by if isinstance(value, int) else tuple(v + by for v in value)


def at_one_core(value: Num, by: int, core: int, cores: int) -> Num:
    every = [value] * cores if isinstance(value, int) else list(value)
    return tuple(v + by if c == core else v for c, v in enumerate(every))


def with_operand(instr: Instr, i: int, operand: Operand) -> Instr:
    return replace(instr, operands=(*instr.operands[:i], operand, *instr.operands[i + 1 :]))


def _unit(instr: Instr) -> int:
    """Addresses in one stick."""
    elements = instr.op in ("shuf", "fill")
    return STICK * 8 // int(instr.imm.get("bits", 16)) if elements else 1  # type: ignore[call-overload]


def _operands(
    instr: Instr, rng: random.Random, space: str, target: bool | None
) -> Iterator[tuple[int, Operand]]:
    """``target``: only the destination, or only sources."""
    found = [
        (i, o) for i, o in enumerate(instr.operands)
        if o.space == space and target in (None, i == 0)
    ]  # fmt: skip
    rng.shuffle(found)
    yield from found


def shift(space: str, target: bool, far: Callable[[Operand, int], Sequence[int]]) -> Change:
    """A base is off, to either side, by one of the distances ``far`` gives for an operand."""

    def change(instr: Instr, rng: random.Random) -> Instr | None:
        for i, operand in _operands(instr, rng, space, target):
            steps = [n for n in far(operand, _unit(instr)) if n]
            if steps:
                by = rng.choice(steps) * rng.choice((-1, 1))
                return with_operand(instr, i, replace(operand, base=moved(operand.base, by)))
        return None

    return change


def one(operand: Operand, unit: int) -> Sequence[int]:
    return (unit,)


def row(operand: Operand, unit: int) -> Sequence[int]:
    return [abs(s) for s in operand.strides if abs(s) > unit]


def slot(operand: Operand, unit: int) -> Sequence[int]:
    return (operand.rotate.stride,) if operand.rotate is not None else ()


def stride(instr: Instr, rng: random.Random) -> Instr | None:
    options = [
        (i, o, d) for i, o in enumerate(instr.operands) for d in range(len(o.strides))
        if d < len(instr.counts) and instr.counts[d] != 1
    ]  # fmt: skip
    if not options:
        return None
    i, o, d = rng.choice(options)
    by = rng.choice((-1, 1))
    strides = tuple(s + by if e == d else s for e, s in enumerate(o.strides))
    return with_operand(instr, i, replace(o, strides=strides))


def loop_stride(instr: Instr, rng: random.Random) -> Instr | None:
    options = [(i, o, n) for i, o in enumerate(instr.operands) for n in range(len(o.loops))]
    if not options:
        return None
    i, o, n = rng.choice(options)
    by = rng.choice((-1, 1))
    loops = tuple(s + by if e == n else s for e, s in enumerate(o.loops))
    return with_operand(instr, i, replace(o, loops=loops))


def rotation(instr: Instr, rng: random.Random) -> Instr | None:
    options = [(i, o) for i, o in enumerate(instr.operands) if o.rotate is not None]
    if not options:
        return None
    i, o = rng.choice(options)
    assert o.rotate is not None
    turned = rng.choice((
        replace(o.rotate, depth=o.rotate.depth + rng.choice((-1, 1))),
        replace(o.rotate, stride=o.rotate.stride + rng.choice((-1, 1))),
        replace(o.rotate, loops=tuple(n + 1 for n in o.rotate.loops)),
    ))
    return with_operand(instr, i, replace(o, rotate=turned)) if turned.depth > 0 else None


def count(instr: Instr, rng: random.Random) -> Instr | None:
    options = list(range(len(instr.counts)))
    if not options:
        return None
    d = rng.choice(options)
    value = moved(instr.counts[d], rng.choice((-1, 1)))
    if min(value if isinstance(value, tuple) else (value,)) < 0:
        return None
    return replace(instr, counts=(*instr.counts[:d], value, *instr.counts[d + 1 :]))


def limit(instr: Instr, rng: random.Random) -> Instr | None:
    options = [(d, x) for d, x in enumerate(instr.limits) if x is not None]
    if not options:
        return None
    d, old = rng.choice(options)
    made = replace(old, start=moved(old.start, rng.choice((-1, 1))))
    if old.loops and rng.random() < 0.5:
        n = rng.randrange(len(old.loops))
        by = rng.choice((-1, 1))
        loops = tuple(s + by if e == n else s for e, s in enumerate(old.loops))
        made = replace(old, loops=loops)
    return replace(instr, limits=(*instr.limits[:d], made, *instr.limits[d + 1 :]))


def elements(instr: Instr, rng: random.Random) -> Instr | None:
    """How many elements of a folded lane dimension exist."""
    names = [n for n in ("k_valid", "lane_valid") if instr.imm.get(n)]
    if not names:
        return None
    name = rng.choice(names)
    return replace(instr, imm={**instr.imm, name: moved(instr.imm[name], rng.choice((-1, 1)))})


def guard(instr: Instr, rng: random.Random) -> Instr | None:
    options = [(i, o, g) for i, o in enumerate(instr.operands) for g in range(len(o.guards))]
    if not options:
        return None
    i, o, g = rng.choice(options)
    old, by = o.guards[g], rng.choice((-1, 1))
    name = rng.choice(("origin", "extent"))
    made = replace(old, **{name: moved(getattr(old, name), by)})
    return with_operand(instr, i, replace(o, guards=(*o.guards[:g], made, *o.guards[g + 1 :])))


def patch(cores: int) -> Change:
    """A base, a count or a limit is one off on one core that executes the instruction."""

    def change(instr: Instr, rng: random.Random) -> Instr | None:
        busy = [c for c in range(cores) if not instr.where or instr.where >> c & 1]
        core, by = rng.choice(busy), rng.choice((-1, 1))
        options: list[Callable[[], Instr]] = []
        for i, o in enumerate(instr.operands):
            off = at_one_core(o.base, by * _unit(instr), core, cores)
            options.append(lambda i=i, o=o, off=off: with_operand(instr, i, replace(o, base=off)))
        for d, n in enumerate(instr.counts):
            off = at_one_core(n, by, core, cores)
            if isinstance(off, tuple) and min(off) >= 0:
                options.append(lambda d=d, off=off: replace(
                    instr, counts=(*instr.counts[:d], off, *instr.counts[d + 1 :])
                ))  # fmt: skip
        return rng.choice(options)() if options else None

    return change


def receivers(cores: int) -> Change:
    """A transfer goes to the next core, or to one core less, on one of the cores that send."""

    def change(instr: Instr, rng: random.Random) -> Instr | None:
        if instr.op not in ("load", "send", "psum") or not instr.imm.get("cores"):
            return None
        masks = instr.imm["cores"]
        every = [masks] * cores if isinstance(masks, int) else list(masks)
        busy = [c for c in range(cores) if every[c] and (not instr.where or instr.where >> c & 1)]
        if not busy:
            return None
        core = rng.choice(busy)
        mask = every[core]
        if instr.op == "psum":
            other = mask >> 2
        elif mask & mask - 1 and rng.random() < 0.5:
            other = mask & mask - 1
        else:
            other = mask << 1 if mask < 1 << cores - 1 else mask >> 1
        if not other:
            return None
        every[core] = other
        return replace(instr, imm={**instr.imm, "cores": tuple(every)})

    return change


def symbol(params: Sequence[str]) -> Change:
    def change(instr: Instr, rng: random.Random) -> Instr | None:
        for i, o in _operands(instr, rng, "hbm", None):
            others = [p for p in params if p != o.symbol]
            if others:
                return with_operand(instr, i, replace(o, symbol=rng.choice(others)))
        return None

    return change


def table(instr: Instr, rng: random.Random) -> Instr | None:
    if instr.op != "gather":
        return None
    name = rng.choice(("stride", "rows"))
    return replace(instr, imm={**instr.imm, name: moved(instr.imm[name], rng.choice((-1, 1)))})


@dataclass(frozen=True)
class Seeded:
    """A kind of fault whose ``change`` depends on the kernel it is seeded into."""

    change: Callable[[Program, int], Change]

    def __call__(self, program: Program, rng: random.Random) -> Mutant | None:
        order = list(range(len(program.kernels)))
        rng.shuffle(order)
        for number in order:
            only = replace(program, kernels=(program.kernels[number],), launches=())
            found = seed(only, rng, self.change(program, number))
            if found is not None:
                kernels = list(program.kernels)
                (kernels[number],) = found.program.kernels
                made = replace(program, kernels=tuple(kernels))
                return Mutant(made, f"kernel {number} {found.fault}")
        return None


def swap_arguments(program: Program, rng: random.Random) -> Mutant | None:
    """A launch gets one of its buffers for another."""
    found = [i for i, launch in enumerate(program.launches) if len(launch.args) > 1]
    if not found:
        return None
    i = rng.choice(found)
    launch: Launch = program.launches[i]
    a, b = rng.sample(range(len(launch.args)), 2)
    args = list(launch.args)
    args[a], args[b] = args[b], args[a]
    launches = list(program.launches)
    launches[i] = replace(launch, args=tuple(args))
    return Mutant(replace(program, launches=tuple(launches)), f"launch {i}: {a} for {b}")


def always(change: Change) -> Seeded:
    return Seeded(lambda program, number: change)


_SPACES = {"scratchpad": "lx", "card memory": "hbm", "accumulators": "acc"}
_FAR = {"a stick": one, "a row": row, "a slot": slot}

ADDRESS_KINDS: dict[str, Callable[[Program, random.Random], Mutant | None]] = {
    **{
        f"{end} of {where} off by {far}": always(shift(space, target, by))
        for where, space in _SPACES.items()
        for end, target in (("source", False), ("destination", True))
        for far, by in _FAR.items()
    },
    "stride": always(stride),
    "loop stride": always(loop_stride),
    "rotation": always(rotation),
    "count": always(count),
    "limit": always(limit),
    "valid elements": always(elements),
    "guard": always(guard),
    "gathered table": always(table),
    "patch of one core": Seeded(lambda p, n: patch(p.kernels[n].cores)),
    "receivers": Seeded(lambda p, n: receivers(p.kernels[n].cores)),
    "symbol": Seeded(lambda p, n: symbol(p.kernels[n].params)),
    "swapped arguments": swap_arguments,
}
