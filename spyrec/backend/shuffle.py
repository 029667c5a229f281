"""Element-granular copies: a box of an affine piece becomes strided copies that never cross a group
of lanes in the middle of a stride."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spyrec.ir.errors import PassError
from spyrec.passes.kernel import GROUP

MAX_COPIES = 4096
MAX_DIMS = 6  # iteration dimensions of one instruction


@dataclass(frozen=True)
class Side:
    """One end of a copy: per tensor dimension the coordinate of the first element and the
    coefficients of the iteration dimensions; ``steps``: elements per coordinate step (per group
    along the stick dimension); ``origin``: element address of coordinate 0."""

    stick: int
    start: tuple[int, ...]
    coefs: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]
    origin: int = 0

    def moved(self, dim: int, by: int) -> Side:
        """The side after ``by`` steps along iteration dimension ``dim``."""
        start = (s + c[dim] * by for s, c in zip(self.start, self.coefs, strict=True))
        return replace(self, start=tuple(start))

    def split(self, dim: int, inner: int) -> Side:
        """The side with iteration dimension ``dim`` replaced by (quotient, remainder of
        ``inner``)."""
        coefs = ((*c[:dim], c[dim] * inner, c[dim], *c[dim + 1 :]) for c in self.coefs)
        return replace(self, coefs=tuple(coefs))

    def step(self, dim: int) -> tuple[int, ...]:
        """What a step of an iteration dimension adds to the coordinate."""
        return tuple(c[dim] for c in self.coefs)

    def base(self) -> int:
        """Element address of the first element."""
        total = self.origin
        for t, (s, step) in enumerate(zip(self.start, self.steps, strict=True)):
            total += s // GROUP * step + s % GROUP if t == self.stick else s * step
        return total

    def stride(self, dim: int) -> int:
        """Elements per step of an iteration dimension; along lanes it counts whole groups or stays
        within one."""
        total = 0
        for t, (c, step) in enumerate(zip(self.coefs, self.steps, strict=True)):
            if t == self.stick:
                total += c[dim] // GROUP * step if c[dim] % GROUP == 0 else c[dim]
            else:
                total += c[dim] * step
        return total


@dataclass(frozen=True)
class Part:
    """An iteration dimension: its count, and what a step adds to the coordinates at both ends."""

    count: int
    src: tuple[int, ...]
    dst: tuple[int, ...]


@dataclass(frozen=True)
class Copy:
    """``dst[dst_base + dst_strides . i] = src[src_base + src_strides . i]`` for i in the box
    ``counts``, in elements. ``parts``: the iteration dimensions that each of these was joined
    from."""

    counts: tuple[int, ...]
    src_base: int
    src_strides: tuple[int, ...]
    dst_base: int
    dst_strides: tuple[int, ...]
    parts: tuple[tuple[Part, ...], ...]
    src_start: tuple[int, ...]
    dst_start: tuple[int, ...]

    @property
    def flat(self) -> tuple[Part, ...]:
        """All iteration dimensions that were joined, in order."""
        return tuple(part for joined in self.parts for part in joined)


def copies(counts: Sequence[int], src: Side, dst: Side, where: str) -> list[Copy]:
    """All strided copies that carry out one piece, over ``counts`` steps (each at least 1) of its
    iteration dimensions. PassError beyond MAX_COPIES of them."""
    out = []
    for n, s, d in _linear(tuple(counts), src, dst):
        for copy in _fit(_canonical(n, s, d)):
            out.append(copy)
            if len(out) > MAX_COPIES:
                raise PassError(
                    f"codegen: {where} needs more than {MAX_COPIES} strided copies on one core; "
                    "pin a stick dimension that both its ends share"
                )
    return out


def _linear(
    counts: tuple[int, ...], src: Side, dst: Side
) -> Iterator[tuple[tuple[int, ...], Side, Side]]:
    """Split iteration dimensions until both addresses are linear in each."""
    for side in (src, dst):
        dim = _crossing(counts, side)
        if dim is None:
            continue
        for n, first, inner in _cut(counts, side, dim):
            here = (n, inner) if inner else (n,)
            s, d = src.moved(dim, first), dst.moved(dim, first)
            if inner:
                s, d = s.split(dim, inner), d.split(dim, inner)
            yield from _linear((*counts[:dim], *here, *counts[dim + 1 :]), s, d)
        return
    yield counts, src, dst


def _crossing(counts: tuple[int, ...], side: Side) -> int | None:
    """The iteration dimension of largest step along the lanes, of those whose steps leave a group
    unevenly; None when the address is linear, as it always is where groups lie side by side."""
    if side.steps[side.stick] == GROUP:
        return None
    coefs = side.coefs[side.stick]
    moving = [(abs(c), i) for i, c in enumerate(coefs) if c % GROUP and counts[i] > 1]
    low = high = side.start[side.stick] % GROUP
    for _, i in moving:
        reach = coefs[i] * (counts[i] - 1)
        low, high = low + min(0, reach), high + max(0, reach)
    return max(moving)[1] if moving and (low < 0 or high >= GROUP) else None


def _cut(counts: tuple[int, ...], side: Side, dim: int) -> list[tuple[int, int, int]]:
    """(count, first step, inner count or 0) parts of one iteration dimension: whole groups where
    its step divides a group and nothing smaller reaches over, else those that stay in one group
    together and those that reach over its end one at a time."""
    coefs, n = side.coefs[side.stick], counts[dim]
    c = coefs[dim]
    at = side.start[side.stick] % GROUP
    others = [(k, m) for i, (k, m) in enumerate(zip(coefs, counts, strict=True)) if i != dim]
    small = sum(abs(k) * (m - 1) for k, m in others if k % GROUP)
    parts: list[tuple[int, int, int]] = []
    first = 0
    if c < 0 or GROUP % c or at % c + small >= c:
        reach = [k * (m - 1) for k, m in others if k % GROUP]
        low, high = at + sum(r for r in reach if r < 0), at + sum(r for r in reach if r > 0)
        while first < n:
            group = (low + c * first) // GROUP
            end = first
            while end < n and group == (low + c * end) // GROUP == (high + c * end) // GROUP:
                end += 1
            end = max(end, first + 1)
            parts.append((end - first, first, 0))
            first = end
        return parts
    per = GROUP // c
    if at:
        first = min(n, (GROUP - at - 1) // c + 1)
        parts.append((first, 0, 0))
    whole = (n - first) // per
    if whole > 0:
        parts.append((whole, first, per))
        first += whole * per
    if first < n:
        parts.append((n - first, first, 0))
    return parts


def _canonical(counts: tuple[int, ...], src: Side, dst: Side) -> Copy:
    """Drop dimensions of one step, join those that continue each other, smallest destination stride
    innermost."""
    steps = [
        (dst.stride(i), src.stride(i), n, Part(n, src.step(i), dst.step(i)))
        for i, n in enumerate(counts) if n > 1
    ]  # fmt: skip
    out: list[tuple[int, int, int, tuple[Part, ...]]] = []
    for d, s, n, part in sorted(steps, key=lambda step: (-abs(step[0]), -abs(step[1]))):
        if out and out[-1][:2] == (d * n, s * n):
            out[-1] = (d, s, out[-1][2] * n, (*out[-1][3], part))
        else:
            out.append((d, s, n, (part,)))
    dst_strides, src_strides, sizes, parts = zip(*out, strict=True) if out else ((), (), (), ())
    return Copy(
        sizes, src.base(), src_strides, dst.base(), dst_strides, parts, src.start, dst.start
    )


def _fit(copy: Copy) -> Iterator[Copy]:
    """At most MAX_DIMS dimensions a copy: unroll the outermost of those beyond."""
    if len(copy.counts) <= MAX_DIMS:
        yield copy
        return
    for i in range(copy.counts[0]):
        src, dst, rest = copy.src_start, copy.dst_start, i
        for part in reversed(copy.parts[0]):
            rest, n = divmod(rest, part.count)
            src = tuple(a + n * step for a, step in zip(src, part.src, strict=True))
            dst = tuple(a + n * step for a, step in zip(dst, part.dst, strict=True))
        yield from _fit(Copy(
            copy.counts[1:],
            copy.src_base + i * copy.src_strides[0], copy.src_strides[1:],
            copy.dst_base + i * copy.dst_strides[0], copy.dst_strides[1:],
            copy.parts[1:], src, dst,
        ))  # fmt: skip
