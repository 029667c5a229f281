"""Random well-formed kernels and programs, for the tests of encoding, object file and listing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from spyrec.sim.formats import FORMATS
from spyrec.sim.isa import (
    JOINTS,
    MAX_DIMS,
    MAX_LOOPS,
    MICRO_OPS,
    OPCODES,
    UNITS,
    Bucket,
    Buffer,
    Guard,
    Instr,
    Joint,
    Kernel,
    Launch,
    Limit,
    Loop,
    MicroOp,
    MicroProgram,
    Note,
    Num,
    Operand,
    Program,
    Rotate,
    Signal,
    Stream,
    Wait,
)
from spyrec.sim.wellformed import INT32, INT64, SPACES

# Text that names things: no NUL, no surrogates, everything else goes.
NAMES = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=6
)
TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
NOTES = st.builds(Note, TEXTS, st.lists(TEXTS, max_size=2).map(tuple))
METAS = st.dictionaries(TEXTS, TEXTS, max_size=2)
SMALL = st.one_of(st.integers(-9, 9), st.integers(*INT32))


@st.composite
def nums(draw: st.DrawFn, cores: int, low: int = INT32[0], high: int = INT32[1]) -> Num:
    """A number, or one for each core, not all of them equal; now and then affine in the core."""
    value = st.one_of(st.integers(max(low, -9), min(high, 9)), st.integers(low, high))
    match draw(st.sampled_from(["plain", "plain", "each", "affine", "grid"])):
        case "each" if cores > 1:
            each = draw(st.lists(value, min_size=cores, max_size=cores).map(tuple))
            return each if len(set(each)) > 1 else each[0]
        case "affine" if cores > 1:
            start, step = draw(value), draw(st.integers(-5, 5).filter(bool))
            each = tuple(start + step * c for c in range(cores))
            return each if low <= min(each) and max(each) <= high else start
        case "grid" if cores > 2:
            start, step, fold = (
                draw(value),
                draw(st.integers(-5, 5)),
                draw(st.integers(2, cores - 1)),
            )
            each = tuple(start + 9 * (c % fold) + step * (c // fold) for c in range(cores))
            return each if low <= min(each) and max(each) <= high else start
        case _:
            return draw(value)


def ints(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(SMALL, min_size=size, max_size=size).map(tuple)


def loop_strides(depth: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.integers(0, depth).flatmap(ints)


@st.composite
def guards(draw: st.DrawFn, cores: int, dims: int, depth: int) -> Guard:
    return Guard(draw(nums(cores)), draw(nums(cores)), draw(ints(dims)), draw(loop_strides(depth)))


@st.composite
def operands(
    draw: st.DrawFn,
    spaces: tuple[str, ...],
    cores: int,
    dims: int,
    depth: int,
    params: tuple[str, ...],
) -> Operand:
    space = draw(st.sampled_from(spaces))
    symbols = ("", *params) if space == "hbm" else ("",)
    rotate = st.builds(Rotate, loop_strides(depth), st.integers(1, INT32[1]), SMALL)
    return Operand(
        space=space,  # type: ignore[arg-type]
        base=draw(nums(cores)),
        strides=draw(ints(dims)),
        dtype=draw(st.sampled_from(list(FORMATS))),
        symbol=draw(st.sampled_from(symbols)),
        loops=draw(loop_strides(depth)),
        rotate=draw(st.none() | rotate),
        guards=tuple(draw(st.lists(guards(cores, dims, depth), max_size=2))),
        splat=draw(st.booleans()),
    )


@st.composite
def instrs(draw: st.DrawFn, unit: str, kernel: Kernel, depth: int) -> Instr:
    able = [op for op, rule in OPCODES.items() if unit in rule.unit]
    if not kernel.programs and "vec" in able:
        able = [op for op in able if op not in ("vec", "prog")]
    op = draw(st.sampled_from(able))
    rule, cores = OPCODES[op], kernel.cores
    least = 1 if op == "gather" else 0
    dims = draw(st.integers(least, MAX_DIMS)) if rule.dims is None else len(rule.dims)
    limit = st.builds(Limit, nums(cores), loop_strides(depth))
    limits = tuple(draw(st.lists(st.none() | limit, min_size=dims, max_size=dims)))
    imm: dict[str, Num] = {}
    for name in rule.imms:
        if name not in ("program", "cores", "far") and draw(st.booleans()):
            imm[name] = draw(nums(cores, *INT64))
    if "cores" in rule.imms and draw(st.booleans()):
        upwards = tuple(1 << core + 1 if core + 1 < cores else 0 for core in range(cores))
        chain: Num = upwards if cores > 1 else upwards[0]
        imm["cores"] = chain if op == "psum" else draw(nums(cores, 0, 2**cores - 1))
        if "far" in rule.imms and draw(st.booleans()):  # some of those it goes to
            imm["far"] = imm["cores"]
    spaces = list(SPACES.get(op, ()))
    if op in ("vec", "prog"):
        imm["program"] = draw(st.integers(0, len(kernel.programs) - 1))
    if op == "vec":
        given = draw(st.integers(0, kernel.programs[imm["program"]].n_inputs))
        spaces = spaces[:1] + spaces[1:] * given
    tokens = st.integers(0, 9) | st.integers(0, 0xFFFF)
    times = st.integers(1, 3) | st.integers(1, 0x7FFF)
    return Instr(
        op=op,
        counts=tuple(draw(nums(cores, 0)) for _ in range(dims)),
        limits=limits if any(limits) else (),
        operands=tuple(draw(operands(s, cores, dims, depth, kernel.params)) for s in spaces),
        imm=imm,
        waits=tuple(draw(st.lists(st.builds(Wait, tokens, times | st.just(0)), max_size=2))),
        signals=tuple(
            draw(
                st.lists(
                    st.builds(
                        Signal, tokens | nums(cores, 0, 0xFFFF), times, nums(cores, 0, 2**cores - 1)
                    ),
                    max_size=2,
                )
            )
        ),
        note=draw(st.integers(0, max(len(kernel.notes) - 1, 0))),
        where=draw(st.integers(0, 2**cores - 1)),
    )


@st.composite
def streams(draw: st.DrawFn, unit: str, kernel: Kernel, depth: int = 0) -> Stream:
    items: list[Instr | Loop] = []
    for _ in range(draw(st.integers(1 if depth else 0, 2))):
        if depth < MAX_LOOPS and draw(st.integers(0, 3)) == 0:
            trips = draw(st.integers(1, 9) | st.just(65535))
            items.append(Loop(trips, draw(streams(unit, kernel, depth + 1))))
        else:
            items.append(draw(instrs(unit, kernel, depth)))
    return tuple(items)


@st.composite
def micro_programs(draw: st.DrawFn) -> MicroProgram:
    n_inputs = draw(st.integers(0, 3))
    constants = tuple(draw(st.lists(st.floats(allow_nan=False) | st.integers(-3, 3), max_size=2)))
    n_scalars = draw(st.integers(0, 2))
    steps: list[MicroOp] = []
    for _ in range(draw(st.integers(0, 3))):
        known = n_inputs + len(constants) + n_scalars + len(steps)
        if known:
            op = draw(st.sampled_from(list(MICRO_OPS)))
            args = st.lists(
                st.integers(0, known - 1), min_size=MICRO_OPS[op], max_size=MICRO_OPS[op]
            )
            steps.append(MicroOp(op, tuple(draw(args))))
    if not steps and not n_inputs:
        return MicroProgram(1, constants, (), n_scalars)
    return MicroProgram(n_inputs, constants, tuple(steps), n_scalars)


@st.composite
def kernels(draw: st.DrawFn, name: str = "k") -> Kernel:
    shell = Kernel(
        name=name,
        streams={},
        params=tuple(draw(st.lists(NAMES, max_size=3, unique=True))),
        programs=tuple(draw(st.lists(micro_programs(), max_size=2))),
        notes=tuple(draw(st.lists(NOTES, max_size=2))),
        cores=draw(st.sampled_from([1, 2, 3, 3, 4, 4, 32, 63])),
        lx_bytes=draw(st.integers(0, 2**31 - 1)),
        info=draw(st.dictionaries(TEXTS, TEXTS | st.integers(*INT64), max_size=2)),
    )
    units = draw(st.lists(st.sampled_from(UNITS), max_size=2, unique=True))
    return Kernel(**{**vars(shell), "streams": {u: draw(streams(u, shell)) for u in units}})


@st.composite
def buffers(draw: st.DrawFn, name: str) -> Buffer:
    kind = draw(st.sampled_from(["input", "output", "const", "const", "temp"]))
    data = draw(st.binary(max_size=300) | st.binary(min_size=1, max_size=2).map(lambda b: b * 200))
    size = len(data) if kind == "const" else draw(st.integers(0, 1 << 30))
    return Buffer(
        name=name,
        kind=kind,
        size=size,
        address=128 * draw(st.integers(0, 1 << 20)),
        data=data if kind == "const" else None,
        meta=draw(METAS),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    kernel_names = draw(st.lists(NAMES, max_size=2, unique=True))
    buffer_names = draw(st.lists(NAMES, max_size=3, unique=True))
    own_kernels = tuple(draw(kernels(name)) for name in kernel_names)
    own_buffers = tuple(draw(buffers(name)) for name in buffer_names)
    launches: list[Launch] = []
    for _ in range(draw(st.integers(0, 3)) if own_kernels else 0):
        kernel = draw(st.integers(0, len(own_kernels) - 1))
        if own_kernels[kernel].params and not own_buffers:
            continue
        args = []
        for _ in own_kernels[kernel].params:
            buffer = draw(st.sampled_from(own_buffers))
            args.append((buffer.name, 128 * draw(st.integers(0, buffer.size // 128))))
        earlier = st.integers(0, max(len(launches) - 1, 0))
        after = tuple(draw(st.lists(earlier, max_size=2 if launches else 0)))
        count = len(own_kernels[kernel].notes) * draw(st.integers(0, 1))
        notes = tuple(draw(st.lists(NOTES, min_size=count, max_size=count)))
        joint: Joint = draw(st.sampled_from(JOINTS)) if after == (len(launches) - 1,) else ""
        launches.append(Launch(kernel, tuple(args), after, draw(st.booleans()), notes, joint=joint))
    return Program(own_kernels, own_buffers, tuple(launches), "", draw(METAS))


@st.composite
def bucketed(draw: st.DrawFn) -> Program:
    """A program whose launches, each waiting for none before it, are dealt out to buckets."""
    whole = draw(programs())
    launches = tuple(replace(x, after=(), joint="") for x in whole.launches)
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    cuts = sorted(draw(st.lists(
        st.integers(0, len(launches)), min_size=len(names) - 1, max_size=len(names) - 1)))
    counts = [b - a for a, b in pairwise([0, *cuts, len(launches)])]
    holds = tuple(b.name for b in whole.buffers)
    sizes = st.dictionaries(TEXTS, st.integers(1, 2**31 - 1), max_size=2)
    buckets = tuple(
        Bucket(name, draw(sizes), count, holds, draw(METAS))
        for name, count in zip(names, counts, strict=True)
    )
    return replace(whole, launches=launches, buckets=buckets)
