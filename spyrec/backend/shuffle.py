"""Element-granular copies: a box of an affine piece becomes strided copies that never cross a group of lanes
in the middle of a stride."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spyrec.ir.errors import PassError
from spyrec.passes.kernel import GROUP

MAX_STEPS = 4096


@dataclass(frozen=True)
class Side:
    """One end of a copy: per tensor dimension the coordinate of the first element and the coefficients of
    the iteration dimensions; ``steps``: elements per coordinate step (per group along the stick dimension)."""

    stick: int
    start: tuple[int, ...]
    coefs: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]
    origin: int = 0  # element address of coordinate 0

    def moved(self, dim: int, by: int) -> Side:
        """The side after ``by`` steps along iteration dimension ``dim``."""
        return replace(self, start=tuple(s + c[dim] * by for s, c in zip(self.start, self.coefs, strict=True)))

    def split(self, dim: int, inner: int) -> Side:
        """The side with iteration dimension ``dim`` replaced by (quotient, remainder of ``inner``)."""
        coefs = tuple((*c[:dim], c[dim] * inner, c[dim], *c[dim + 1:]) for c in self.coefs)
        return replace(self, coefs=coefs)

    def base(self) -> int:
        total = self.origin
        for t, s in enumerate(self.start):
            total += s // GROUP * self.steps[t] + s % GROUP if t == self.stick else s * self.steps[t]
        return total

    def stride(self, dim: int) -> int:
        total = 0
        for t, c in enumerate(self.coefs):
            if t == self.stick:
                total += c[dim] // GROUP * self.steps[t] if c[dim] % GROUP == 0 else c[dim]
            else:
                total += c[dim] * self.steps[t]
        return total


@dataclass(frozen=True)
class Copy:
    """``dst[dst_base + dst_strides . i] = src[src_base + src_strides . i]`` for i in the box ``counts``, in elements."""

    counts: tuple[int, ...]
    src_base: int
    src_strides: tuple[int, ...]
    dst_base: int
    dst_strides: tuple[int, ...]


def copies(counts: Sequence[int], src: Side, dst: Side, where: str) -> list[Copy]:
    """All strided copies that carry out one piece. PassError beyond MAX_STEPS of them."""
    out = []
    for n, s, d in _linear(tuple(counts), src, dst, 0, where):
        for copy in _fit(_canonical(n, s, d)):
            out.append(copy)
            if len(out) > MAX_STEPS:
                raise PassError(f"{where}: the move needs more than {MAX_STEPS} strided copies")
    return out


def _linear(counts: tuple[int, ...], src: Side, dst: Side, depth: int, where: str) -> Iterator[tuple[tuple[int, ...], Side, Side]]:
    """Split iteration dimensions until both addresses are linear in each."""
    if depth > 64:
        raise PassError(f"{where}: the move does not resolve into strided copies")
    for side in (src, dst):
        dim = _crossing(counts, side)
        if dim is None:
            continue
        for n, first, inner in _cut(counts[dim], side, dim, counts):
            new_counts = (*counts[:dim], *( (n,) if inner == 0 else (n, inner)), *counts[dim + 1:])
            s, d = src.moved(dim, first), dst.moved(dim, first)
            if inner:
                s, d = s.split(dim, inner), d.split(dim, inner)
            yield from _linear(new_counts, s, d, depth + 1, where)
        return
    yield counts, src, dst


def _crossing(counts: tuple[int, ...], side: Side) -> int | None:
    """The largest-step iteration dimension along the lanes whose steps leave a group unevenly; None when linear."""
    coefs = side.coefs[side.stick]
    moving = sorted(((abs(c), i) for i, c in enumerate(coefs) if c and counts[i] > 1 and c % GROUP), reverse=True)
    if not moving:
        return None
    lo = hi = side.start[side.stick] % GROUP
    for _, i in moving:
        reach = coefs[i] * (counts[i] - 1)
        lo, hi = lo + min(0, reach), hi + max(0, reach)
    return None if 0 <= lo and hi < GROUP else moving[0][1]


def _cut(n: int, side: Side, dim: int, counts: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(count, first step, inner count or 0) parts of one iteration dimension: whole groups where its step divides
    a group and nothing smaller reaches over, else one step at a time."""
    c = side.coefs[side.stick][dim]
    at = side.start[side.stick] % GROUP
    small = sum(
        abs(k) * (counts[i] - 1) for i, k in enumerate(side.coefs[side.stick]) if i != dim and k % GROUP and counts[i] > 1
    )
    if c < 0 or GROUP % c or at % c + small >= c:
        return [(1, i, 0) for i in range(n)]
    per = GROUP // c
    parts: list[tuple[int, int, int]] = []
    first = 0
    if at:
        head = min(n, (GROUP - at - 1) // c + 1)
        parts.append((head, 0, 0))
        first = head
    whole = (n - first) // per
    if whole > 0:
        parts.append((whole, first, per))
        first += whole * per
    if first < n:
        parts.append((n - first, first, 0))
    return parts


def _canonical(counts: tuple[int, ...], src: Side, dst: Side) -> Copy:
    """Drop dimensions of one step, join those that continue each other, smallest destination stride innermost."""
    dims = sorted(
        ((dst.stride(i), src.stride(i), n) for i, n in enumerate(counts) if n > 1), key=lambda d: (-abs(d[0]), -abs(d[1]))
    )
    out: list[tuple[int, int, int]] = []
    for d, s, n in dims:
        if out and out[-1][0] == d * n and out[-1][1] == s * n:
            out[-1] = (d, s, out[-1][2] * n)
        else:
            out.append((d, s, n))
    return Copy(tuple(n for _, _, n in out), src.base(), tuple(s for _, s, _ in out), dst.base(), tuple(d for d, _, _ in out))


def _fit(copy: Copy) -> Iterator[Copy]:
    """At most six dimensions a copy: unroll the outermost of those beyond."""
    if len(copy.counts) <= 6:
        yield copy
        return
    for i in range(copy.counts[0]):
        yield from _fit(Copy(copy.counts[1:], copy.src_base + i * copy.src_strides[0], copy.src_strides[1:],
                             copy.dst_base + i * copy.dst_strides[0], copy.dst_strides[1:]))
