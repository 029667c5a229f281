"""The instruction set as data: what a kernel is made of. One OPCODES table feeds encoder, decoder,
assembler, disassembler and unit timing.

A kernel holds one stream of instructions and counted loops per unit. Each unit works its stream in
order; an instruction fires when the tokens it waits for are there and its unit is free. All cores
run the same streams; a number that differs from core to core is a tuple with one entry per core
(``PerCore``), which the object file stores as patches on core 0's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

Num = int | tuple[int, ...]  # one value for all cores, or one for each
Space = Literal["hbm", "lx", "acc"]

UNITS = ("ml", "ms", "rs", "rr", "pt", "sfp")
"""Memory load, memory store, ring send, ring receive, matrix unit, vector unit."""

MAX_DIMS = 6  # iteration dimensions of one instruction
MAX_LOOPS = 6  # nesting depth of counted loops
MAX_OPERANDS = 8
SCALARS = ("k0", "k1", "k2", "k3")  # immediates of a vec that its micro-program reads
GO = 0  # token 0 of every launch: the launches it depends on have finished; a level, never consumed
Joint = Literal["", "meet"]
JOINTS: tuple[Joint, ...] = get_args(Joint)
STICK = 128  # bytes
LANES = 64  # elements the vector unit handles as one group: 1 stick of 16-bit, 2 of 32-bit elements


@dataclass(frozen=True)
class Wait:
    """Block until the core's token counter ``token`` holds ``n``, then take ``n`` away.

    ``n == 0`` waits for the counter to be at least 1 and takes nothing (a level).
    """

    token: int
    n: int = 1


@dataclass(frozen=True)
class Signal:
    """On completion add ``n`` to ``token`` on this core, or on each core of the bit mask ``cores``.

    A transfer is complete when its last byte has arrived; an instruction that moves nothing, when
    the transfers ahead of it in its unit are.

    The token may differ from core to core, so that each core of a group has a counter of its own
    on the core it reports to: credits of several cores in one counter could not be told apart.
    """

    token: Num
    n: int = 1
    cores: Num = 0  # 0: this core


@dataclass(frozen=True)
class Limit:
    """A tail: the effective count of a dimension is
    ``clamp(start - sum(loops[l] * trip[l]), 0, count)``."""

    start: Num
    loops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Guard:
    """A bounds test on an operand: element i is inside when
    ``0 <= origin + sum(strides[d] * i[d]) + sum(loops[l] * trip[l]) < extent``.

    What lies outside is not transferred by a load or store, and reads as the instruction's ``fill``
    in a compute instruction.
    """

    origin: Num
    extent: Num
    strides: tuple[int, ...]
    loops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rotate:
    """Multiple buffering: adds ``(sum(loops[l] * trip[l]) mod depth) * stride`` to the address."""

    loops: tuple[int, ...]
    depth: int
    stride: int


@dataclass(frozen=True)
class Operand:
    """A strided view of a memory.

    Address of element i = ``base + sum(strides[d] * i[d]) + sum(loops[l] * trip[l]) + rotate``, in
    units of: sticks (128 B) for ``hbm`` and ``lx``; 64-lane fp32 groups for ``acc``; for both
    operands of ``shuf`` elements of the operand's dtype.

    ``symbol`` names the formal HBM parameter the address is relative to (bound at launch); ""
    otherwise. ``dtype`` is what compute instructions decode ("dl16", "f16", "f32", "i32", ...).
    ``splat`` (vector sources): lane 0 of each group is used for all lanes.
    """

    space: Space
    base: Num
    strides: tuple[int, ...]
    dtype: str = "dl16"
    symbol: str = ""
    loops: tuple[int, ...] = ()
    rotate: Rotate | None = None
    guards: tuple[Guard, ...] = ()
    splat: bool = False


@dataclass(frozen=True)
class MicroOp:
    """One step of a vector micro-program in SSA: ``args`` index inputs, then constants, then
    scalars, then earlier steps."""

    op: str
    args: tuple[int, ...]


@dataclass(frozen=True)
class MicroProgram:
    """What the vector unit computes per lane: ``n_inputs`` source operands, constants,
    ``n_scalars`` that each instruction gives, steps; the last step (or, with no steps, input 0) is
    the result. Registers are fp32, or int32 for i32 operands."""

    n_inputs: int
    constants: tuple[float, ...] = ()
    steps: tuple[MicroOp, ...] = ()
    n_scalars: int = 0


@dataclass(frozen=True)
class Tensor:
    """A value of the compiler, for claims: which stick holds which elements when all of it lies in
    order. Its stick is the sum over ``digits``, each (dimension, size, stride, sticks), of
    ``coordinate // stride % size * sticks``; ``lanes`` gives the lane likewise. ``shape``: its
    elements along each dimension. ``stick_dim``: whole sticks are moved along it, so that what lies
    beyond the end of it is padding. ``name``: of the buffer it is kept in if it is in card memory;
    "" for what only one launch knows."""

    name: str
    shape: tuple[int, ...]
    stick_dim: int
    digits: tuple[tuple[int, int, int, int], ...]
    lanes: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Holding:
    """A value that lies in the scratchpads, for reports: the machine does not look at it.

    ``tensor``: its index in the program. ``dtype``: name of its element type. ``address``,
    ``size``: of the piece, in bytes, that each core's scratchpad keeps for it. ``launches``: the
    one that makes it, then those that read it, ascending; it lies there from the first to the last.
    ``boxes``: for each core, along each dimension, (first element, elements) of the part it holds;
    no elements on cores that hold nothing."""

    tensor: int
    dtype: str
    address: int
    size: int
    launches: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class Affine:
    """``start + sum(steps[d] * i[d]) + sum(loops[l] * trip[l])``."""

    start: Num = 0
    steps: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claim:
    """What an operand stands for: at iteration point i, in a trip, the element of ``tensor`` at the
    coordinates ``at`` and those that move with it.

    ``tensor`` counts what the launch binds, or is -1, -2, ... for the kernel's own ``tiles``.
    ``turn`` tells different contents of one tile apart, ``made`` is the turn of what a destination
    holds once it is written; they have no steps.
    """

    tensor: int
    at: tuple[Affine, ...]
    turn: Affine = Affine()
    made: Affine = Affine()


@dataclass(frozen=True)
class Extent:
    """How far an iteration dimension goes: of the elements ``left - sum(loops[l] * trip[l])``, but
    at most ``most`` and at least none, it takes ``step`` with each point, the last maybe fewer."""

    left: Num
    step: int
    most: int
    loops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Intent:
    """What the compiler means an instruction to do, said without addresses, for the checker. The
    machine does not look at it.

    ``where``: the cores it is said of (0: all). ``extents``: the iteration dimensions, outermost
    first; more than the instruction has when some of those run over several of these, or when it
    is to do nothing once one is over. Empty: the instruction's own, unchecked. ``claims``: one per
    operand.
    """

    claims: tuple[Claim, ...]
    extents: tuple[Extent, ...] = ()
    where: int = 0


@dataclass(frozen=True)
class Instr:
    """One instruction.

    ``counts`` are the iteration dimensions, outermost first. ``operands[0]`` is the destination.
    ``imm`` holds the opcode's immediates (see OPCODES). ``note`` indexes the kernel's provenance
    list. ``where`` is a predicate: a bit mask of the cores that execute it (0: all); the others
    skip it entirely, its waits and signals included (so one core of a group can issue a multicast
    load for all of it). ``intents``: what it is meant to do, each for some of the cores; () when
    nobody says.
    """

    op: str
    counts: tuple[Num, ...] = ()
    limits: tuple[Limit | None, ...] = ()
    operands: tuple[Operand, ...] = ()
    imm: Mapping[str, Num] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    signals: tuple[Signal, ...] = ()
    note: int = 0
    where: int = 0
    intents: tuple[Intent, ...] = ()


@dataclass(frozen=True)
class Loop:
    """A counted loop; the trip number of the loop at depth l is ``trip[l]`` in the formulas
    above."""

    count: int
    body: tuple[Instr | Loop, ...]


Stream = tuple[Instr | Loop, ...]


@dataclass(frozen=True)
class OpcodeDef:
    """``unit`` runs it; ``operands`` names its operands (a trailing * may repeat); ``imms`` its
    immediates with their defaults; ``dims`` what the iteration dimensions mean, None for any up to
    MAX_DIMS."""

    code: int
    unit: tuple[str, ...]
    operands: tuple[str, ...]
    imms: Mapping[str, int]
    dims: tuple[str, ...] | None
    summary: str


OPCODES: dict[str, OpcodeDef] = {
    "sync": OpcodeDef(1, UNITS, (), {}, (), "only waits and signals; takes no time"),
    "load": OpcodeDef(
        2, ("ml",), ("dst", "src"), {"cores": 0}, None,
        "copy sticks from HBM to scratchpad; with a core mask the sticks arrive at the same "
        "address on every core of the mask (multicast)",
    ),
    "gather": OpcodeDef(
        3, ("ml",), ("dst", "table", "index"), {"stride": 1, "rows": 0}, None,
        "load in which HBM address gains index[i0] * stride sticks, i0 the first dimension; index "
        "is a packed int32 list in scratchpad (one element per i0, its base in sticks); an index "
        "outside 0..rows-1 is an error",
    ),
    "store": OpcodeDef(4, ("ms",), ("dst", "src"), {}, None, "copy sticks from scratchpad to HBM"),
    "send": OpcodeDef(
        5, ("rs",), ("dst", "src"), {"cores": 0, "far": 0}, None,
        "copy sticks from this core's scratchpad to the scratchpads of the cores in the mask, over "
        "the ring: to those in the mask far the longer way round, to the others the shorter "
        "(upwards when both are equal); signals fire when the last byte has arrived",
    ),
    "recv": OpcodeDef(
        6, ("rr",), (), {"fragments": 1}, (),
        "take delivery: waits for the tokens of `fragments` incoming sends, then signals local "
        "units",
    ),
    "mm": OpcodeDef(
        7, ("pt",), ("acc", "a", "b"), {"k_valid": 64, "acc_levels": 0, "init": 1, "partial": 0},
        ("r0", "r1", "t0", "t1", "kc", "n"),
        "acc[r0,r1,n,:] += sum over t0,t1,kc,k<K of a[r0,r1,t0,t1,kc,lane k] * b[t0,t1,kc,row "
        "k,n,:]; K is 64 and row k of b lies k sticks after its base, 2k when b is 32 bits wide (a "
        "group of a is then 2 sticks too). In 8 and 4 bits a stick is a block of its factor, its "
        "lanes as in sim/arrange.py: K is 128 (i4: of two rows, r1 and r1 + 1, and the stride of "
        "r1 that of such a pair), and a stick of b is 2 rows (i4: 4) of 64 columns. k_valid: "
        "elements that exist along kc, counted through the loops as the limit of kc counts steps: "
        "with L = sum(loops[l] * trip[l]) of that limit (0 without one) lanes of a with (L + kc)*K "
        "+ k >= k_valid count as zero and their b rows are not read; with init=1 acc is "
        "overwritten instead of added to when the trip of every loop in the bit set acc_levels is "
        "0; acc holds fp32 or, of whole numbers, i32 that saturates; a guarded-out a reads 0; "
        "partial=1: "
        "what it computes goes on by psum, so only the corelets work that reach that ring",
    ),
    "vec": OpcodeDef(
        8, ("sfp",), ("dst", "src*"),
        {"program": 0, "reduce": 0, "axes": 0, "lanes": 0, "lane_dim": -1, "lane_valid": 0,
         "fill": 0, "acc_levels": 0, "init": 1, **dict.fromkeys(SCALARS, 0)},
        None,
        "dst = program(src..., k0...) for every lane of every iteration point. reduce (0 none, "
        "1 sum, 2 max, 3 min, 4 prod) folds over the dimensions in the bit set axes and, with "
        "lanes=1, over the 64 lanes (result in lane 0, other lanes undefined). lane_valid: "
        "elements that exist along dimension lane_dim (64 a step), counted through the loops of "
        "that dimension's limit as k_valid of mm is; lanes beyond are left out of a lane "
        "reduction; 0: all exist. fill: "
        "float32 bit pattern a guarded-out source reads as. k0 to k3: float32 bit patterns of "
        "the program's scalars; inputs that no source is given for are 0. With init=0 or a "
        "non-zero trip in "
        "acc_levels a reduction is folded into what dst holds. Operands of 8 bits count half "
        "sticks, whose lanes are interleaved in groups of eight",
    ),
    "shuf": OpcodeDef(
        9, ("sfp",), ("dst", "src"), {"bits": 16}, None,
        "element-granular copy inside the scratchpad; iteration dimensions, bases and strides "
        "count elements of `bits` bits; guarded-out source elements read as 0 bits; guarded-out "
        "destination elements are not written",
    ),
    "fill": OpcodeDef(
        10, ("sfp",), ("dst",), {"bits": 16, "value": 0}, None,
        "write the bit pattern `value` to elements of the scratchpad; dimensions, base and strides "
        "count elements",
    ),
    "prog": OpcodeDef(
        12, ("sfp",), (), {"program": 0, "reduce": 0}, (),
        "take up a micro-program and kind of reduction ahead of the vec that runs them; touches no "
        "data, and takes no time when the unit ran them last",
    ),
    "psum": OpcodeDef(
        11, ("rs",), ("dst", "src"), {"cores": 0}, None,
        "add fp32 groups of this core's accumulators to those of the one neighbouring core in the "
        "mask (the core numbered one higher or lower), over the partial-sum ring of that "
        "direction; signals fire when the last group has been added",
    ),
}

# Micro-op -> arity. Costs (cycles per 64-lane group and corelet) stand in the device file.
MICRO_OPS: dict[str, int] = {
    "copy": 1, "neg": 1, "abs": 1, "recip": 1, "sqrt": 1, "rsqrt": 1, "exp": 1, "log": 1, "tanh": 1,
    "sigmoid": 1, "erf": 1, "sin": 1, "cos": 1, "floor": 1, "ceil": 1, "round": 1, "sign": 1,
    "isnan": 1, "isinf": 1, "not": 1, "i2f": 1, "f2i": 1,
    "add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "min": 2, "mod": 2,
    "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2, "and": 2, "or": 2, "xor": 2, "where": 3,
}


@dataclass(frozen=True)
class Note:
    """Provenance of an instruction: the IR op it carries out and the model nodes that came from."""

    op: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """``streams``: unit -> instructions. ``params``: formal HBM symbols in order. ``cores``: how
    many cores (numbered from 0) run it. ``lx_bytes``: scratchpad high-water mark per core, planned.
    ``info``: facts for the report (``macs``, ``tiles``, ``ops`` text, ...), never used by the
    engine. ``tiles``: values that only its own claims name."""

    name: str
    streams: Mapping[str, Stream]
    params: tuple[str, ...] = ()
    programs: tuple[MicroProgram, ...] = ()
    notes: tuple[Note, ...] = ()
    cores: int = 32
    lx_bytes: int = 0
    info: Mapping[str, int | str] = field(default_factory=dict)
    tiles: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Buffer:
    """A named piece of HBM. ``kind``: "input", "output", "const" or "temp". ``address``: byte
    address, 128-aligned.

    ``meta`` is what the host needs to pack or unpack it (dtype, shape, layout text, device dtype,
    model name); the simulator never reads it. ``data``: the bytes of a constant, exactly ``size``
    long.
    """

    name: str
    kind: str
    size: int
    address: int = 0
    data: bytes | memoryview | None = None
    meta: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """One run of ``kernel`` (index). ``args``: for each formal parameter (buffer name, byte
    offset). ``after``: indices of earlier launches whose completion raises GO. ``early``: units may
    start instructions that do not wait for GO while the previous launch still runs (the planner
    proved the scratchpads disjoint). ``notes``: provenance of this launch in place of the kernel's,
    note by note; empty when the kernel's own hold. ``tensors``: for each tensor that the kernel's
    claims number, its index in the program.

    ``joint``: "" for a launch that the device starts. "meet": its program came with that of the
    launch before, whose cores meet when all have finished and go on by themselves; it has
    counters of its own, as any launch, and depends on the one before alone."""

    kernel: int
    args: tuple[tuple[str, int], ...] = ()
    after: tuple[int, ...] = ()
    early: bool = False
    notes: tuple[Note, ...] = ()
    tensors: tuple[int, ...] = ()
    joint: Joint = ""


@dataclass(frozen=True)
class Bucket:
    """One of the sizes a program is compiled for: ``launches`` of its launches, the next after
    those of the bucket before, and the buffers (by name) that belong to it. ``sizes``: open
    dimension -> its size. ``meta`` is for the host; the simulator never reads it."""

    name: str
    sizes: Mapping[str, int]
    launches: int
    buffers: tuple[str, ...]
    meta: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A whole compiled model. ``meta``: model name, device name, numerics, versions, options.

    With ``buckets`` it holds several programs that share kernels, constants and card memory; one of
    them runs at a time (see ``link.bucket_program``). ``tensors``: the values that claims name, if
    there are any; ``holdings``: those of them that lie in the scratchpads."""

    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    device: str = ""  # the device description, as TOML text
    meta: Mapping[str, str] = field(default_factory=dict)
    buckets: tuple[Bucket, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    holdings: tuple[Holding, ...] = ()


def launched(kernel: Kernel, launch: Launch) -> Kernel:
    """The kernel as the launch runs it: with the launch's provenance."""
    return replace(kernel, notes=launch.notes) if launch.notes else kernel


def instructions(
    stream: Stream, loops: tuple[int, ...] = ()
) -> Iterator[tuple[Instr, tuple[int, ...]]]:
    """Each instruction of a stream once, with the trip counts of the loops around it."""
    for item in stream:
        if isinstance(item, Loop):
            yield from instructions(item.body, (*loops, item.count))
        else:
            yield item, loops
