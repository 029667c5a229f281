"""How the card ran a measured kernel, where its row does not say: parts and tiles by the rules of
the published planner, as far as they are public or the times give them away.

The rules look at shapes, layouts and how operands relate, as a planner would. docs/validation.md
tells which are published and which are inferred from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd

LANES = 64  # 16-bit elements of a stick
STICK = 128  # bytes
BURST = 32  # sticks of the longest burst
SPAN = 1 << 28  # bytes of a tensor that a core reaches
OPEN_ROWS = 16  # streams a walk over column blocks keeps going at full speed
ROW_TILE = 4096  # sticks of whole rows that a reduction loads at a time
RESIDENT = 1 << 16  # elements of the output tile that stays in the matrix unit
SIDE = 512  # most rows, and most columns, of an output tile where several are needed
BLOCK_ROWS = 128  # rows after which an interleaved second factor is fetched again
CHUNK_BYTES = 32768  # of both factors, loaded together
INTERLEAVED_K = 128  # inner elements of a chunk of an interleaved first factor
TOGETHER = 4  # matrices of a batch that are taken as rows of one: their sticks are a granule
PAIR = 2  # of a larger batch
KEPT_BYTES = 1 << 20  # of a core's part of the second factor that a K-split keeps in the scratchpad


@dataclass(frozen=True)
class Division:
    """``parts`` and ``tile`` of a kernel by the names of its dimensions; what is not named is left
    to the compiler. ``overlap``: what goes on beside the work on a tile: "all", "loads", "none"."""

    parts: Mapping[str, int] = field(default_factory=dict)
    tile: Mapping[str, int] = field(default_factory=dict)
    overlap: str = "all"


def streamed(rows: int, cols: int, cores: int) -> Division:
    """One operand and a result of its shape: walked as they lie in memory, a burst at a time."""
    blocks = -(-cols // LANES)
    across = divisor(blocks, cores)
    down = divisor(rows, cores // across)
    tall = min(BURST, rows // down)
    return _division(down, across, tall, LANES * max(1, BURST // tall))


def by_rows(rows: int, cols: int, cores: int, sticks: int = 8 * BURST) -> Division:
    """A broadcast operand keeps rows and columns apart. Tiles of ``sticks``; the next is loaded
    during the work on one, but results are stored before the work on it begins."""
    blocks = -(-cols // LANES)
    down, across = _larger_first(rows, blocks, cores)
    tall = min(2 * BURST, rows // down)
    wide = min(blocks // across, max(1, sticks // tall))
    return replace(_division(down, across, tall, LANES * wide), overlap="loads")


def filled(rows: int, cols: int, cores: int) -> Division:
    """Nothing but broadcast operands: cut as ``by_rows``, walked 8 KiB at a time."""
    return replace(by_rows(rows, cols, cores, 2 * BURST), overlap="all")


def paired(rows: int, cols: int, cores: int) -> Division:
    """Several operands of one shape: cut as ``by_rows``, walked a burst at a time."""
    cut = by_rows(rows, cols, cores)
    tall = min(BURST, rows // cut.parts["d0"])
    wide = min(-(-cols // LANES) // cut.parts["d1"], BURST // tall)
    return Division(cut.parts, {"d0": tall, "d1": LANES * wide})


def by_column(rows: int, cols: int, cores: int, whole: int = BURST) -> Division:
    """An operand that is the same along each row: as ``by_rows``, but where a core has no more
    rows of a column block than a burst, tiles are smaller: a burst, or, of less than ``whole``
    rows, what memory moves before it turns."""
    cut = by_rows(rows, cols, cores)
    own = rows // cut.parts["d0"]
    if own > BURST:
        return cut
    return by_rows(rows, cols, cores, BURST if own >= whole else 2 * BURST)


def copied(rows: int, cols: int, cores: int) -> Division:
    """An operand of one element: as ``by_column``, a burst at a time from half a burst on."""
    return by_column(rows, cols, cores, BURST // 2)


def reduced(rows: int, cols: int, cores: int) -> Division:
    """A reduction along the rows: they are cut, and loaded whole."""
    down = divisor(rows, cores)
    tall = min(2 * BURST, rows // down, max(1, ROW_TILE // -(-cols // LANES)))
    return Division({"d0": down}, {"d0": tall}, "none")


def summed(rows: int, cols: int, cores: int) -> Division:
    """A sum over the rows: columns are cut, and a core's part is loaded whole before it is added
    up."""
    blocks = -(-cols // LANES)
    across = divisor(blocks, cores)
    return Division({"d1": across}, {"d1": LANES * (blocks // across), "r0": rows}, "none")


def appended(rows: int, cols: int, cores: int) -> Division:
    """Rows behind rows: a walk along each row over all blocks of columns. Where the blocks are more
    than memory keeps open, a visit takes as many sticks as make up for those that are not."""
    blocks = -(-cols // LANES)
    across = _for_span(rows * blocks)
    down = divisor(rows, cores // across)
    visit = BURST
    if blocks > OPEN_ROWS:
        visit = min(BURST, round(2 * blocks / (blocks - OPEN_ROWS)))
    return _division(down, across, visit, cols // across)


def beside(rows: int, cols: int, cores: int) -> Division:
    """Columns beside columns: each operand is walked a burst at a time."""
    down, across = _larger_first(rows, -(-cols // LANES), cores)
    tall = min(BURST, rows // down)
    return _division(down, across, tall, LANES * max(1, BURST // tall))


def turned(rows: int, cols: int, cores: int) -> Division:
    """A transpose to ``rows`` x ``cols``: cut along the columns, 64 x 64 elements at a time."""
    blocks = -(-cols // LANES)
    across = gcd(blocks, cores // _for_span(rows * blocks))
    down = divisor(rows, cores // across)
    return _division(down, across, min(rows // down, LANES), LANES)


@dataclass(frozen=True)
class Product:
    """A matrix product, ``batch`` of them when that is not 0. ``first``, ``second``: the matrices
    of that factor lie interleaved in memory, stick by stick; ``lone``: one second factor serves the
    whole batch. ``step``: inner elements of a stick."""

    m: int
    n: int
    k: int
    batch: int = 0
    first: bool = False
    second: bool = False
    lone: bool = False
    step: int = LANES

    def parts(self, cores: int) -> dict[str, int]:
        """What the published planner chose where a row does not tell, inferred from such rows: as
        square as the cores allow; with a batch two along the columns and the others along the
        rows."""
        blocks = -(-self.n // LANES)
        if not self.batch:
            m = min(1 << (cores.bit_length() - 1) // 2, self.m)
            return {"m": m, "n": min(cores // m, blocks), "k": 1}
        n = min(2, cores, blocks)
        return {"b0": 1, "m": min(cores // n, self.m), "n": n, "k": 1}

    def tile(self, parts: Mapping[str, int]) -> dict[str, int]:
        """The output tile that stays resident and the chunks of the inner dimension.

        An interleaved factor is fetched again for every block of columns (the first) or
        ``BLOCK_ROWS`` rows (the second). The columns are 64 or, where a core works on all of a
        small batch, as many as a granule holds for each matrix. With a lone second factor a batch
        of ``TOGETHER`` matrices at most, or ``PAIR`` of a larger one, is rows of one. Where the
        inner dimension is cut too and a core's part of the second factor takes half the scratchpad
        at most, it is fetched once and rows stream past it."""
        m = -(-self.m // parts["m"])
        n = -(-self.n // LANES // parts["n"]) * LANES
        k = -(-self.k // parts.get("k", 1))
        if parts.get("k", 1) > 1 and not self.batch and 2 * k * n <= KEPT_BYTES:
            tn = min(n, SIDE)
            return {"m": min(m, RESIDENT // max(tn, k)), "n": tn, "k": k}
        batch = -(-self.batch // parts.get("b0", 1))
        together = 1
        if self.lone:
            together = batch if batch <= TOGETHER else PAIR
        tm, tn = output_tile(m * together, n)
        if not self.lone:
            if self.first:
                sticks = TOGETHER // batch if batch == self.batch else 1
                tn = min(n, LANES * max(1, sticks))
            tm = min(m, BLOCK_ROWS) if self.second else tm
        chunk = max(1, CHUNK_BYTES // (2 * LANES * (tm + tn))) * self.step
        if self.first:
            chunk = INTERLEAVED_K
        tile = {"m": max(1, tm // together), "n": tn, "k": min(chunk, k)}
        return {"b0": together, **tile} if self.lone else tile


def output_tile(m: int, n: int) -> tuple[int, int]:
    """Rows and columns of the output tile of a core's part, ``m`` x ``n``: all of it when it can
    stay resident, else the tile of least operand traffic."""
    if m * n <= RESIDENT:
        return m, n
    blocks = n // LANES
    options = [
        (-(-m // tm) * n + -(-n // tn) * m, tm, tn)
        for tm in sorted({-(-m // p) for p in range(1, m + 1)})
        for tn in sorted({-(-blocks // p) * LANES for p in range(1, blocks + 1)})
        if max(tm, tn) <= SIDE and tm * tn <= RESIDENT
    ]
    _, tm, tn = min(options)
    return tm, tn


def divisor(extent: int, most: int) -> int:
    """The largest divisor of ``extent`` up to ``most``."""
    return next(p for p in range(min(extent, most), 0, -1) if extent % p == 0)


def _larger_first(rows: int, blocks: int, cores: int) -> tuple[int, int]:
    """Parts of rows and of column blocks: the larger extent, in sticks, is cut first, after what
    the span of a core asks for."""
    if rows < blocks:
        across = divisor(blocks, cores)
        return divisor(rows, cores // across), across
    down = divisor(rows, cores // _for_span(rows * blocks))
    return down, divisor(blocks, cores // down)


def _for_span(sticks: int) -> int:
    return -(-sticks * STICK // SPAN)


def _division(down: int, across: int, tall: int, wide: int) -> Division:
    return Division({"d0": down, "d1": across}, {"d0": tall, "d1": wide})
