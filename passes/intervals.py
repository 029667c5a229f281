"""Placing buffers with lifetimes into one address range: first fit in the best of a few orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A buffer of ``size`` bytes alive at every step from ``first`` to ``last`` (inclusive)."""

    name: str
    size: int
    first: int
    last: int

    @property
    def steps(self) -> int:
        """For how many steps it is alive."""
        return self.last - self.first + 1


ORDERS: tuple[Callable[[Span], tuple[int, ...]], ...] = (
    lambda s: (s.steps == 1, -s.size, s.first),  # what lives long, larger before smaller
    lambda s: (-s.size, s.first),
    lambda s: (-s.size * s.steps, s.first),
    lambda s: (-s.steps, -s.size, s.first),
    lambda s: (s.first, -s.size),
    lambda s: (-s.last, -s.size),
)


def place(spans: Sequence[Span], start: int, align: int = 128) -> tuple[dict[str, int], int]:
    """Addresses so that no two spans alive at one step overlap, and the highest address used.

    Each is placed at the lowest free address, in the order that needs least; quadratic in the
    number of spans.
    """
    whole = [Span(s.name, -(-s.size // align) * align, s.first, s.last) for s in spans]
    floor = start + peak(whole)
    best: tuple[dict[str, int], int] | None = None
    by_name = sorted(whole, key=lambda s: s.name)
    for order in ORDERS:
        found = _first_fit(sorted(by_name, key=order), start)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == floor:
            break
    assert best is not None
    return best


def _first_fit(spans: Sequence[Span], start: int) -> tuple[dict[str, int], int]:
    done: list[tuple[int, int, Span]] = []
    out: dict[str, int] = {}
    top = start
    for span in spans:
        at = start
        taken = [d[:2] for d in done if d[2].first <= span.last and span.first <= d[2].last]
        for low, high in sorted(taken):
            if at + span.size <= low:
                break
            at = max(at, high)
        out[span.name] = at
        done.append((at, at + span.size, span))
        top = max(top, at + span.size)
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
