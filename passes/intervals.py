"""Placing buffers with lifetimes into one address range: first fit by size, ties by name order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A buffer of ``size`` bytes alive at every step from ``first`` to ``last`` (inclusive)."""

    name: str
    size: int
    first: int
    last: int


def place(spans: Sequence[Span], start: int, align: int = 128) -> tuple[dict[str, int], int]:
    """Addresses so that no two spans alive at one step overlap, and the highest address used.

    Those that live longer than one step are placed first, larger ones before smaller, each at the
    lowest free address; quadratic in the number of spans.
    """
    done: list[tuple[Span, int]] = []
    out: dict[str, int] = {}
    top = start
    for span in sorted(
        spans, key=lambda s: (-(s.last - s.first + 1 > 1), -s.size, s.first, s.name)
    ):
        size = -(-span.size // align) * align
        taken = sorted(
            (at, at + -(-o.size // align) * align)
            for o, at in done
            if o.first <= span.last and span.first <= o.last
        )
        at = start
        for lo, hi in taken:
            if at + size <= lo:
                break
            at = max(at, hi)
        out[span.name] = at
        done.append((span, at))
        top = max(top, at + size)
    return out, top


def peak(spans: Sequence[Span]) -> int:
    """Most bytes alive at one step: what no placement can go below."""
    steps: dict[int, int] = {}
    for s in spans:
        steps[s.first] = steps.get(s.first, 0) + s.size
        steps[s.last + 1] = steps.get(s.last + 1, 0) - s.size
    most = now = 0
    for step in sorted(steps):
        now += steps[step]
        most = max(most, now)
    return most
