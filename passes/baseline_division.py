"""baseline-division: the published division of kernels over cores, by exact divisors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from spyrec.ir.core import Attr, Module, Op, Value

from .allocate import divisions, replace_parts, within_span
from .groups import is_depthwise
from .kernel import GROUP, Map, Nest, rank1, spans
from .manager import Target
from .pieces import pieces
from .pins import FREE, Counts, pinned
from .signature import signature
from .span import reaches
from .sticks import region_head

MACS_PER_NS = 1536.0
"""Of a core, as the published planner has it: 98.3 TFLOP/s over 32 cores."""
BYTES_PER_NS = 204.8
"""Nominal rate of card memory, which the published planner divides by."""
FULL_ROWS, FILL_POWER = 40, 0.25
"""Fewer rows a core take (40 / rows)^0.25 times as long; rows count in eights."""
ROWS = 8
SHARED, SHARED_POWER = 8, 0.75
"""Beyond 8 cores that read the same data it comes (cores / 8)^0.75 times as slowly."""
PSUM_NS, PSUM_BATCHED_NS = 1.0, 0.1
"""For each partial sum of a core and each further term."""
KSPLIT = 2.0
"""Times as long: a divided K runs on one corelet."""
TIE = 1.02
"""The published tie-breakers are fitted by hand and not told; times this near count as equal."""


@dataclass(frozen=True)
class BaselineDivision:
    """Set ``pin_parts`` and ``pin_order`` of every kernel as the published compiler divides it.

    Each part is an exact divisor of its dimension; dimensions along the lanes count in sticks.
    Where a core would reach over more than the span of a tensor, only cuts that avoid it are left.
    Matrix kernels: all cuts of (batch, rows, columns, K) are priced with the published formula; of
    equal prices the one that leaves K whole, uses most cores and cuts rows least. All others: the
    largest result dimension first, each by its largest divisor that fits. Cores are numbered first
    dimension fastest, but a divided K before all.

    Where no exact cut keeps the span, which is where the published compiler fails, the kernel is
    left to ``core-allocation``. What a plan pins stays. ``why_division`` tells the rule and, of a
    matrix kernel, the price in nanoseconds.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> from spyrec.passes.baseline_kernels import BaselineKernels
    >>> from spyrec.passes.stick_layout import StickLayout
    >>> target = Target(load_device())
    >>> before = StickLayout().run(BaselineKernels().run(parse_module('''module "m" {
    ...   input %x: tensor<512x4096xdl16>
    ...   input %w: tensor<4096x4096xdl16>
    ...   %y = matmul(%x, %w) : tensor<512x4096xdl16>
    ...   %z = exp(%y) : tensor<512x4096xdl16>
    ...   output "z" = %z
    ... }'''), target), target)
    >>> for op in BaselineDivision().run(before, target).body.ops:
    ...     print(op.attrs["name"], op.attrs["pin_parts"], op.attrs["pin_order"])
    k0_matmul (4, 8, 1) (1, 0)
    k1_exp (32, 1) (0,)
    """

    name: ClassVar[str] = "baseline-division"
    summary: ClassVar[str] = "Divides kernels by exact divisors, as the published compiler does."
    cores: int = 0  # 0: all the device has

    def run(self, module: Module, target: Target) -> Module:
        cores = min(self.cores or target.device.cores.count, target.device.cores.count)
        span = target.device.hbm.span_bytes
        memo: dict[Hashable, dict[str, Attr]] = {}
        ops = []
        for op in module.body.ops:
            if op.name == "kernel":
                key = signature(op)
                if key not in memo:
                    memo[key] = _divide(op, cores, span)
                op = op.with_attrs(**memo[key])
            ops.append(op)
        return replace(module, body=replace(module.body, ops=tuple(ops)))


def _divide(op: Op, cores: int, span: int) -> dict[str, Attr]:
    """The attributes of the cut; none but the reason where every exact one breaks the span."""
    nest = Nest(op)
    units, grains = _units(nest)
    cuts = list(exact_cuts(units, pinned(nest, "parts"), cores))
    legal = within_span(nest, cuts, grains, span)
    why: tuple[Attr, ...]
    if nest.kind == "contract":
        priced = sorted((matmul_ns(nest, c), c) for c in legal)
        least = priced[0][0]
        equal = [(ns, c) for ns, c in priced if ns <= TIE * least]
        ns, parts = min(equal, key=lambda found: _preferred(nest, found[1]))
        others = [found for found in priced if found[1] != parts]
        why = ("matmul cost model", ns, *((c, other) for other, c in others[:1]))
    else:
        parts = max(legal, key=lambda c: _by_size(units, c))
        why = ("largest first",)
    if not _keeps_span(nest, parts, grains, span):
        return {"why_division": ("no exact cut keeps the span",)}
    order: tuple[int, ...] = op.attrs.get("pin_order", ())  # type: ignore[assignment]
    fastest_first = [d for d, p in enumerate(parts) if p > 1 and d not in nest.summed]
    return {
        "pin_parts": parts,
        "pin_order": order or (*fastest_first[::-1], *(d for d in nest.summed if parts[d] > 1)),
        "why_division": why,
    }


def _keeps_span(nest: Nest, parts: Counts, grains: Counts, span: int) -> bool:
    """``within_span`` gives all cuts back when none is legal."""
    cut = replace_parts(nest, parts, grains).op
    return all(r.nbytes <= span for r in reaches(cut, span))


def exact_cuts(units: Counts, pins: Counts, cores: int) -> Iterator[Counts]:
    """All ways to cut each dimension into a divisor of its units, ``cores`` parts at most in all.

    >>> list(exact_cuts((67, 4), (0, 0), 32))
    [(1, 1), (1, 2), (1, 4)]
    """

    def extend(i: int, left: int) -> Iterator[Counts]:
        if i == len(units):
            yield ()
            return
        sizes = [p for p in range(1, min(units[i], left) + 1) if units[i] % p == 0]
        for p in sizes if pins[i] == FREE else [pins[i]]:
            for rest in extend(i + 1, left // p):
                yield (p, *rest)

    return extend(0, cores)


def _by_size(units: Counts, parts: Counts) -> tuple[int, ...]:
    """The parts in the order in which dimensions are cut: larger is better, the largest first."""
    order = sorted(range(len(units)), key=lambda d: (-units[d], d))
    return tuple(parts[d] for d in order)


def _units(nest: Nest) -> tuple[Counts, Counts]:
    """(units, grains) of each dimension under the published rules. What these leave on one core: of
    a strided depthwise window the rows and columns, of a look-up the data, and K and what runs
    along the lanes before or after data is moved, unless it is whole sticks."""
    units, grains = divisions(nest)
    found = list(units)
    whole: set[int] = set()
    head = region_head(nest.op)
    if nest.kind == "gather":
        whole = {len(nest.extents) - 1}
    elif nest.kind == "contract":
        whole = {nest.k} if nest.extents[nest.k] % GROUP else set()
    elif nest.kind == "fold" and is_depthwise(head):
        strides: tuple[int, ...] = head.attrs.get("strides", (1, 1))  # type: ignore[assignment]
        whole = {2, 3} if max(strides) > 1 else set()
    elif nest.kind == "move":
        lanes = _lanes_before(nest.op)
        whole = {d for d in lanes | {nest.stick} if nest.extents[d] % GROUP}
        for d in lanes - whole:
            found[d] = nest.extents[d] // GROUP
        if not lanes - {nest.stick}:  # lanes stay where they are
            whole = set()
    return tuple(1 if d in whole else u for d, u in enumerate(found)), grains


def _lanes_before(op: Op) -> set[int]:
    """Dimensions of a move's result along which its operands have their lanes."""
    found = set()
    for p in pieces(op):
        layout = op.operands[p.operand].type.layout
        assert layout is not None
        steps = p.src.rows[layout.stick_dim][1]
        for d, (_, coefs) in enumerate(p.dst.rows):
            if any(a == b == 1 and n > 1 for a, b, n in zip(steps, coefs, p.counts, strict=True)):
                found.add(d)
    return found


def _preferred(nest: Nest, parts: Counts) -> tuple[int, ...]:
    terms = prod(parts[d] for d in nest.summed)
    rows = prod(parts[d] for d in _rows(nest))
    return terms, -prod(parts), rows, *(-p for p in parts)


def _rows(nest: Nest) -> list[int]:
    """Dimensions of the first factor's rows."""
    free = nest.parallel - {nest.stick}
    return [d for d in sorted(free) if not spans(nest.maps[1], d)]


def matmul_ns(nest: Nest, parts: Counts) -> float:
    """What the published cost model expects of a matrix kernel cut so, in nanoseconds: the larger
    of compute and memory, and the handing on of partial sums."""
    local = [-(-e // p) for e, p in zip(nest.extents, parts, strict=True)]
    rows = prod(local[d] for d in _rows(nest))
    rows = -(-rows // ROWS) * ROWS
    terms = prod(parts[d] for d in nest.summed)
    compute = prod(local) / MACS_PER_NS
    if rows < FULL_ROWS:
        compute *= (FULL_ROWS / rows) ** FILL_POWER
    if terms > 1:
        compute *= KSPLIT
    result = nest.op.results[0], nest.out_maps[0]
    factors = zip(nest.op.operands[:2], nest.maps[:2], strict=True)
    memory = sum(_memory_ns(v, m, parts) for v, m in (*factors, result))
    outputs = prod(local[d] for d in nest.parallel)
    batched = any(
        spans(nest.maps[1], d) and nest.extents[d] > 1 for d in nest.parallel - {nest.stick}
    )
    return max(compute, memory) + (terms - 1) * outputs * (PSUM_BATCHED_NS if batched else PSUM_NS)


def _memory_ns(v: Value, m: Map, parts: Sequence[int]) -> float:
    sharing = prod(p for d, p in enumerate(parts) if not spans(m, d))
    ns = prod(rank1(v.type)) * v.type.dtype.bits / 8 / BYTES_PER_NS
    return ns * (sharing / SHARED) ** SHARED_POWER if sharing > SHARED else ns
