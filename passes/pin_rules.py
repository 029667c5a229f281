"""The rules a pinned decision must keep: each function yields a sentence for every pin that breaks
one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from spyrec.ir.core import Module, Op, Value, uses
from spyrec.ir.near import listed
from spyrec.sim.device import DeviceSpec

from .allocate import divisions
from .groups import is_depthwise
from .homes import readable
from .kernel import GROUP, Nest, rank1, spans
from .pins import FREE, Counts, pinned, pinned_keep
from .plan import KernelPins, TensorPins
from .sticks import contract_sticks, region_head, result_stick, usable_stick
from .tiling import beyond_rank, move_bytes, tile_bytes


def makers(module: Module) -> dict[Value, Op]:
    """The kernel that makes each tensor between kernels."""
    return {r: op for op in module.body.ops if op.name == "kernel" for r in op.results}


def possible_sticks(v: Value, maker: Op | None) -> tuple[int, ...]:
    """Dimensions that may run along the lanes of a model input (``maker`` None) or of a kernel's
    result."""
    every = tuple(range(len(rank1(v.type))))
    if maker is None:
        return every
    nest, head = Nest(maker), region_head(maker)
    m = nest.out_maps[maker.results.index(v)]
    if nest.kind == "move":
        return every
    if nest.kind == "contract":
        choices = [contract_sticks(nest)[0]]
    elif nest.kind == "gather":
        choices = [len(nest.extents) - 1]
    elif nest.kind == "fold" and (head.name in ("max_pool", "sum_pool") or is_depthwise(head)):
        choices = [1]
    else:
        most = max(len(other) for other in nest.out_maps + nest.maps)
        choices = [d for d in range(min(most, len(nest.extents))) if usable_stick(nest, d)]
    return tuple(sorted({result_stick(m, d, maker) for d in choices}))


def tensor_problems(module: Module, pins: Mapping[str, TensorPins]) -> Iterator[str]:
    """Of a module that is laid out: unknown tensors, sticks not taken, spaces that cannot be."""
    made = makers(module)
    known = {v.name: v for v in (*module.body.args, *made)}
    constants = {op.result.name for op in module.body.ops if op.name == "constant"}
    readers = uses(module.body)
    for name, pin in pins.items():
        if name in constants:
            yield f"tensor {name} is a constant, which is stored as each of its readers wants it"
        elif name not in known:
            yield f"there is no tensor {name}; {listed(name, known)}"
        else:
            v = known[name]
            yield from _stick_problems(v, made.get(v), pin.stick)
            if pin.space == "lx":
                who = [op for op, _ in readers.get(v, [])]
                yield from _lx_problems(module, v, made.get(v), who)


def _stick_problems(v: Value, maker: Op | None, stick: int | None) -> Iterator[str]:
    assert v.type.layout is not None
    if stick is None or stick == v.type.layout.stick_dim:
        return
    possible = possible_sticks(v, maker)
    by = "the model" if maker is None else str(maker.attrs["name"])
    if stick in possible:
        yield f"tensor {v.name}: stick {stick} contradicts the pin of another result of {by}"
    else:
        yield (
            f"tensor {v.name}: {by} cannot have its dimension {stick} along the lanes; "
            f"possible: {', '.join(map(str, possible))}"
        )


def _lx_problems(
    module: Module, v: Value, maker: Op | None, readers: Sequence[Op]
) -> Iterator[str]:
    look_ups = ", ".join(str(op.attrs["name"]) for op in readers if not readable(op))
    where = f"tensor {v.name} cannot be pinned to the scratchpads"
    if maker is None:
        yield f"{where}: it is a model input, which lies in card memory"
    elif v in module.body.results:
        yield f"{where}: it is a model output, which lies in card memory"
    elif not readers:
        yield f"{where}: nothing reads it"
    elif look_ups:
        yield f"{where}: {look_ups} looks it up, which works in card memory only"


def kernel_problems(op: Op, pins: KernelPins, cores: int) -> Iterator[str]:
    """Of a kernel before it is divided: unknown dimensions, cuts and loops it cannot have."""
    nest = Nest(op)
    where = f"kernel {nest.name}"
    named = {
        "parts": pins.parts, "core_order": pins.core_order or (),
        "tile": pins.tile, "loops": pins.loops or (),
    }  # fmt: skip
    for what, dims in named.items():
        for dim in dims:
            if dim not in nest.dim_names:
                yield f"{where}, {what}: there is no dimension {dim}; {listed(dim, nest.dim_names)}"
    yield from (f"{where}, parts: {p}" for p in _parts_problems(nest, pins.parts, cores))
    late = [n for n in (pins.core_order or ())[:-1] if n in nest.dim_names]
    if any(nest.dim_names.index(n) in nest.summed and pins.parts.get(n, 1) > 1 for n in late):
        yield (
            f"{where}, core_order: {nest.dim_names[nest.k]} is summed over, so the cores that "
            "divide it are neighbours; put it last"
        )
    yield from (f"{where}, loops: {p}" for p in _loop_problems(nest, pins.loops or ()))
    if pins.keep and nest.kind != "contract":
        yield f"{where}, keep: only matrix kernels have factors to keep, this is a {nest.kind}"
    yield from (f"{where}, finish: {p}" for p in _finish_problems(nest, pins.finish or {}))


def _finish_problems(nest: Nest, finish: Mapping[str, int]) -> Iterator[str]:
    if finish and nest.kind != "contract":
        yield f"only matrix kernels end their tiles in pieces, this is a {nest.kind}"
        return
    names = [nest.dim_names[d] for d in sorted((nest.stick, nest.k))] if finish else []
    for name in finish:
        if name not in names:
            yield f"expected elements of {' and '.join(names)}, got {name}"


def _parts_problems(nest: Nest, parts: Mapping[str, int], cores: int) -> Iterator[str]:
    total = prod(parts.values())
    if total > cores:
        cuts = " x ".join(f"{d}={n}" for d, n in parts.items())
        yield f"{cuts} are {total} parts, there are {cores} cores"
    units, grains = divisions(nest)
    movable = nest.kind in ("move", "gather")
    for d, name in enumerate(nest.dim_names):
        n = parts.get(name, 1)
        if n == 1:
            continue
        if d in nest.whole:
            yield f"{name} is folded and used again in one tile, so it stays whole; got {n} parts"
        elif d not in nest.parallel and d != nest.k and not movable:
            yield f"{name} is summed over, so it is not divided among cores; got {n} parts"
        elif n > units[d]:
            unit = f" in steps of {grains[d]}" if grains[d] > 1 else ""
            yield f"{name} = {nest.extents[d]} is cut{unit} into {units[d]} parts at most, got {n}"


def _loop_problems(nest: Nest, loops: Sequence[str]) -> Iterator[str]:
    if loops and nest.kind in ("move", "gather"):
        yield f"tiles of a {nest.kind} kernel come in the order of its dimensions; leave loops out"
        return
    dims = [nest.dim_names.index(n) for n in loops if n in nest.dim_names]
    still = [nest.dim_names[d] for d in dims if d in nest.whole | taps(nest)]
    if still:
        yield f"{', '.join(still)} is whole in each tile and has no loop"
    inside = [d in nest.summed for d in dims]
    if inside != sorted(inside):
        names = ", ".join(nest.dim_names[d] for d in dims if d in nest.summed)
        yield f"{names} is summed over, so its loop stands inside the others; put it last"


def taps(nest: Nest) -> frozenset[int]:
    """Positions of a window, which one tile always holds all of."""
    if nest.kind == "contract":
        return nest.summed - {nest.k}
    return nest.summed if region_head(nest.op).attrs.get("strides") else frozenset()


def tile_problems(op: Op, device: DeviceSpec, budget: int) -> Iterator[str]:
    """Of a divided kernel: pinned tile sizes that its parts, the accumulators or ``budget`` bytes
    of scratchpad do not allow."""
    nest = Nest(op)
    pins = pinned(nest, "tile")
    broken = False
    for d, size in enumerate(pins):
        problem = _size_problem(nest, d, size) if size != FREE else None
        if problem is not None:
            broken = True
            yield f"kernel {nest.name}, tile: {nest.dim_names[d]} = {size} {problem}"
    if broken or not any(pins):
        return
    least = _least_tile(nest, pins)
    if nest.kind == "contract":
        rows = prod(least[d] for d in nest.parallel - {nest.stick})
        groups, most = -(-least[nest.stick] // GROUP) * rows, device.pt.acc_groups
        if groups > most:
            yield (
                f"kernel {nest.name}, tile: {rows} rows of {least[nest.stick]} columns take "
                f"{groups} accumulator groups, the device has {most}"
            )
    if nest.kind == "gather":
        return
    lean = nest.kind == "contract"  # tiling too counts once, where it must, what no loop changes
    stay = pinned_keep(nest) or ()  # what they take is known with the loops
    size = move_bytes(nest, least) if nest.kind == "move" else tile_bytes(nest, least, lean, stay)
    if size > budget:
        yield (
            f"kernel {nest.name}, tile: its buffers take {size / 2**20:.2f} MiB of scratchpad at "
            f"least, the budget of one kernel is {budget / 2**20:.2f} MiB"
        )


def _least_tile(nest: Nest, pins: Counts) -> Counts:
    """The smallest tile with the pinned sizes."""
    still = nest.whole | taps(nest)
    return tuple(
        p if p != FREE else n if d in still else min(n, nest.grain(d))
        for d, (p, n) in enumerate(zip(pins, nest.local, strict=True))
    )


def _size_problem(nest: Nest, d: int, size: int) -> str | None:
    """What is wrong with that tile size along one dimension of a kernel whose parts are known."""
    part, grain = nest.local[d], nest.grain(d)
    if size > part:
        return f"is larger than the part of a core, {part}"
    if d in one_by_one(nest):
        return None if size == 1 else "must be 1: an instruction has no dimension left for it"
    if nest.kind == "gather" and d == len(nest.extents) - 2 and size > GROUP:
        return f"is more rows than one instruction looks up, {GROUP}"
    if size == part:
        return None
    if d in nest.whole | taps(nest):
        return f"cuts a dimension that stays whole, {part}"
    if nest.kind == "gather" and d == len(nest.extents) - 1:
        return f"cuts the rows that are looked up, {part}, which stay whole"
    if size % grain:
        return f"is no multiple of {grain}"
    return None


def one_by_one(nest: Nest) -> frozenset[int]:
    """Dimensions that tiles hold one of: of a matrix kernel those shared by both factors and rows
    beyond two, of a look-up all but the last of the indices', of others those beyond six."""
    if nest.kind == "move":
        return frozenset()
    if nest.kind == "gather":
        return frozenset(range(len(nest.extents) - 2))
    if nest.kind != "contract":
        return frozenset(beyond_rank(nest))
    shared = {d for d in nest.parallel if spans(nest.maps[1], d) and d != nest.stick}
    rows = sorted(nest.parallel - {nest.stick} - shared)
    return frozenset(shared) | frozenset(rows[:-2])
