"""Changes of ownership to measure exchanges on: twenty of published programs, and random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from random import Random

from spyrec.passes.kernel import GROUP, Box

ELEMENT_BYTES = 2
CORES = 32
ROOM_BYTES = 1_900_000  # of a scratchpad, for what a core has before and after


@dataclass(frozen=True)
class Case:
    """What each core holds of a tensor of 16-bit elements, and what it should hold; empty boxes
    for nothing. ``stick``: the dimension along the lanes."""

    name: str
    shape: tuple[int, ...]
    stick: int
    source: tuple[Box, ...]
    dest: tuple[Box, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES


def regions(ends: Sequence[Sequence[int]]) -> list[Box]:
    """The boxes between the cut points of each dimension (first 0, last its extent), in order."""
    sides = [[(a, b - a) for a, b in pairwise(e)] for e in ends]
    return [tuple(box) for box in product(*sides)]


def even(shape: Sequence[int], parts: Sequence[int]) -> list[Box]:
    """Regions of equal size; the last of a dimension may be smaller."""
    ends = []
    for n, p in zip(shape, parts, strict=True):
        assert n % p == 0, "the patterns are cut evenly"
        ends.append([n // p * i for i in range(p + 1)])
    return regions(ends)


def owned(boxes: Sequence[Box], owners: Sequence[Sequence[int]]) -> tuple[Box, ...]:
    """Each core's box: ``owners[r]`` are the cores that hold region r."""
    nothing = tuple((0, 0) for _ in boxes[0])
    held = [nothing] * CORES
    for box, cores in zip(boxes, owners, strict=True):
        for core in cores:
            held[core] = box
    return tuple(held)


# The patterns of a published compiler's Granite runs: phase, extents, pieces of the sources and of
# the destinations, copies, and how many sources a destination takes from. Which dimensions are cut
# is not published; the cuts here have those numbers and fit the meaning.

Pattern = tuple[
    str, tuple[int, ...], int, tuple[int, ...], Sequence[int], tuple[int, ...], int, int
]
ALL = range(CORES)
TURNED = [i % 4 * 8 + i // 4 for i in ALL]  # 8 x 4 regions on cores numbered the other way

PATTERNS: tuple[tuple[str, str, Pattern], ...] = (
    # id, meaning, (phase, shape, stick dimension, source parts, source cores, dest parts, copies,
    # cores of the destination)
    ("R01", "gather all of K, to every core",
     ("prefill", (8, 512, 128), 2, (8, 4, 1), ALL, (1, 1, 1), 32, 32)),
    ("R02", "gather all of V, to every core",
     ("prefill", (8, 128, 512), 1, (8, 1, 4), ALL, (1, 1, 1), 32, 32)),
    ("R03", "gather columns into 8 regions, 4 copies",
     ("prefill", (512, 4096), 1, (1, 32), ALL, (1, 8), 4, 32)),
    ("R04", "gather rows into 8 regions, 4 copies",
     ("prefill", (512, 4096), 1, (32, 1), ALL, (8, 1), 4, 32)),
    ("R05", "gather into 8 regions, one owner each",
     ("prefill", (512, 4096), 1, (8, 4), ALL, (8, 1), 1, 8)),
    ("R06", "token 8 x head 4 to token 32",
     ("prefill", (512, 8, 4, 128), 3, (8, 1, 4, 1), ALL, (32, 1, 1, 1), 1, 32)),
    ("R07", "16 owners to 8 regions, 4 copies",
     ("prefill", (2, 512, 64), 2, (1, 16, 1), range(16), (1, 8, 1), 4, 32)),
    ("R08", "permutation of owners",
     ("prefill", (8, 512, 128), 2, (8, 4, 1), ALL, (8, 4, 1), 0, 32)),
    ("R09", "16 even cores to 8 regions, 4 copies",
     ("prefill", (512, 4096), 1, (16, 1), range(0, 32, 2), (8, 1), 4, 32)),
    ("R10", "broadcast each of 8 pieces to 4 cores",
     ("prefill", (512, 64), 1, (8, 1), range(8), (8, 1), 4, 32)),
    ("R11", "16 row pieces re-cut into 8 x 4 tiles",
     ("prefill", (512, 4096), 1, (16, 1), range(16), (8, 4), 1, 32)),
    ("R12", "gather one row, to 28 cores",
     ("prefill", (1, 4096), 1, (1, 32), ALL, (1, 1), 28, 28)),
    ("R13", "gather one row, to every core",
     ("decode", (1, 4096), 1, (1, 32), ALL, (1, 1), 32, 32)),
    ("R14", "gather one row, to 25 cores",
     ("decode", (1, 4096), 1, (1, 32), ALL, (1, 1), 25, 25)),
    ("R15", "25 owners to one row on 32 cores",
     ("decode", (1, 12800), 1, (1, 25), range(25), (1, 1), 32, 32)),
    ("R16", "32 owners to 8 regions, 4 copies",
     ("decode", (1, 8, 4, 128), 3, (1, 8, 4, 1), ALL, (1, 8, 1, 1), 4, 32)),
    ("R17", "32 owners to 16 regions, 2 copies",
     ("decode", (1, 8, 4, 768), 3, (1, 8, 1, 4), ALL, (1, 8, 2, 1), 2, 32)),
    ("R18", "every destination takes from every source",
     ("decode", (8, 768, 128), 2, (1, 32, 1), ALL, (8, 1, 2), 2, 32)),
    ("R19", "gather into 8 regions",
     ("decode", (32, 768), 1, (8, 4), ALL, (8, 1), 1, 8)),
    ("R20", "scatter one row over 32 cores",
     ("decode", (1, 4096), 1, (1, 1), [0], (1, 32), 1, 32)),
)  # fmt: skip


def patterns(far: bool = False) -> Iterator[Case]:
    """The twenty. Copies of a region lie on neighbouring cores or, ``far``, as far apart as they
    can (only the patterns that differ then)."""
    for name, _, (_, shape, stick, parts, cores, dest_parts, copies, dest_cores) in PATTERNS:
        source = owned(even(shape, parts), [[c] for c in cores])
        wanted = even(shape, dest_parts)
        count = len(wanted)
        near: list[Sequence[int]] = [range(r * copies, (r + 1) * copies) for r in range(count)]
        if copies == 0:
            near = [[c] for c in TURNED]
        spread = [range(r, dest_cores, count) for r in range(count)]
        if not far:
            yield Case(name, shape, stick, source, owned(wanted, near))
        elif copies > 1 and spread != near:
            yield Case(name + "f", shape, stick, source, owned(wanted, spread))


# Random pairs ---------------------------------------------------------------------------------


def random_case(seed: int) -> Case:
    """A random tensor and two random ownerships: cut along any dimensions, evenly or not, on any
    cores in any order; with copies, overlaps, or only part of it wanted."""
    rng = Random(seed)
    while True:
        case = _drawn(rng, seed)
        room = [max(_box_bytes(b, case.stick) for b in side) for side in (case.source, case.dest)]
        if room[1] and sum(room) <= ROOM_BYTES:
            return case


def _box_bytes(box: Box, stick: int) -> int:
    return ELEMENT_BYTES * prod(
        -(-n // GROUP) * GROUP if d == stick else n for d, (_, n) in enumerate(box)
    )


def _drawn(rng: Random, seed: int) -> Case:
    rank = rng.choice((1, 2, 2, 2, 3, 3, 4))
    stick = rng.choice((rank - 1, rank - 1, rng.randrange(rank)))
    groups = 2 ** rng.uniform(5, 15)  # 4 KiB to 4 MiB
    shares = [rng.random() for _ in range(rank)]
    sizes = [max(1, round(groups ** (s / sum(shares)))) for s in shares]
    tail = rng.choice((0, 0, 0, rng.randrange(GROUP)))  # lanes that hold nothing
    shape = tuple(n * GROUP - tail if d == stick else n for d, n in enumerate(sizes))
    source = _ownership(rng, shape, stick, copies=0.2)
    dest = _ownership(rng, shape, stick, copies=0.5)
    if rng.random() < 0.15:
        dest = tuple(_grown(box, shape, stick, rng.choice((1, 2))) for box in dest)
    if rng.random() < 0.1:
        dest = tuple(b if rng.random() < 0.5 else tuple((0, 0) for _ in b) for b in dest)
    return Case(f"#{seed}", shape, stick, source, dest)


def _ownership(rng: Random, shape: tuple[int, ...], stick: int, copies: float) -> tuple[Box, ...]:
    units = [-(-n // GROUP) if d == stick else n for d, n in enumerate(shape)]
    budget = rng.choice((1, 2, 4, 7, 8, 13, 16, 25, 28, *[32] * 8))
    parts = [1] * len(shape)
    for d in rng.sample(range(len(shape)), len(shape)):
        most = min(units[d], budget // prod(parts))
        parts[d] = most if rng.random() < 0.5 else rng.randint(1, most)
    uneven = rng.random() < 0.5
    ends = []
    for d, (n, p) in enumerate(zip(units, parts, strict=True)):
        inner = (
            sorted(rng.sample(range(1, n), p - 1)) if uneven
            else [n * i // p for i in range(1, p)]
        )  # fmt: skip
        grain = GROUP if d == stick else 1
        ends.append([min(e * grain, shape[d]) for e in (0, *inner, n)])
    boxes = regions(ends)
    cores = list(ALL)
    match rng.randrange(4):
        case 0:
            rng.shuffle(cores)
        case 1:
            cores = [c for i in range(4) for c in range(i, CORES, 4)]
    several = max(1, CORES // len(boxes)) if rng.random() < copies else 1
    if rng.random() < 0.5:  # the copies of a region together in the order of cores, or apart
        return owned(boxes, [cores[r * several : (r + 1) * several] for r in range(len(boxes))])
    return owned(boxes, [cores[r :: len(boxes)][:several] for r in range(len(boxes))])


def _grown(box: Box, shape: tuple[int, ...], stick: int, by: int) -> Box:
    """The box with a border of ``by`` along all dimensions but the stick's: a halo."""
    if not all(n for _, n in box):
        return box
    out = []
    for d, (start, n) in enumerate(box):
        low, high = max(0, start - by), min(shape[d], start + n + by)
        out.append((start, n) if d == stick else (low, high - low))
    return tuple(out)
