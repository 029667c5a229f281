"""A comparison as a terminal shows it and as a pull request does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spyrec.compare import Comparison, Pair
from spyrec.table import size

MEANINGFUL = re.compile(r"[\\`*|<\[\]#~&@]|(?<!\w)_|_(?!\w)")
"""Characters that markdown may take for more than themselves; "_" inside a word is none."""
HEADINGS = ("kernel", "before", "after", "change", "", "what changed")


def markdown(c: Comparison, threshold: float | None, least_cycles: int, every: bool) -> str:
    """Tables for a pull request: totals first, then the kernels that changed, the most cycles first
    (``every``: also those that did not). Slower than the threshold is bold."""
    before, after = c.cycles
    lines = [
        f"**{before:,} -> {after:,} cycles ({share(before, after)})**, "
        f"{' -> '.join(map(plain, dict.fromkeys(c.models)))}",
        "",
        *(f"> {plain(w)}" for w in c.warnings),
        *([""] if c.warnings else []),
        "| | before | after | change |", "|---|--:|--:|--:|",
        *(f"| {' | '.join(cells)} |" for cells in totals(c)),
        "",
    ]
    shown = rows(c, every)
    if shown:
        lines += [f"| {' | '.join(HEADINGS)} |", "|---|--:|--:|--:|--:|---|"]
        slow = set() if threshold is None else set(c.slower(threshold, least_cycles))
        for pair in shown:
            cells = list(cells_of(pair))
            if pair in slow:
                cells = [f"**{cell}**" if cell else "" for cell in cells]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    same = len(c.pairs) - len(shown)
    if same:
        lines.append(f"{same} {'kernel' if same == 1 else 'kernels'} unchanged.")
    return "\n".join(lines).rstrip() + "\n"


def rows(c: Comparison, every: bool) -> list[Pair]:
    """The pairs to show, those with the largest difference first."""
    shown = [p for p in c.pairs if every or p.more or p.changed]
    return sorted(shown, key=lambda p: -abs(p.more))


def cells_of(pair: Pair) -> tuple[str, ...]:
    a, b = (plain(name.replace("+", " + ")) for name in pair.names)
    name = a if a == b else f"{a} -> {b}"
    return (
        name, f"{pair.before:,}", f"{pair.after:,}", f"{pair.more:+,}" if pair.more else "0",
        share(pair.before, pair.after), plain("; ".join(pair.changed)),
    )


def plain(text: str) -> str:
    """A text of a stranger's report as markdown that shows it on one line and means nothing else:
    neither markup, a cell of a table, a link, nor an escape of the terminal."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return MEANINGFUL.sub(r"\\\g<0>", line)


def totals(c: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """Of the whole run: name, both numbers, change."""
    counts = (
        ("cycles", c.cycles), ("kernels run", c.runs), ("start-up and meeting", c.idle_cycles),
    )
    for name, (a, b) in counts:
        yield name, f"{a:,}", f"{b:,}", share(a, b)
    sizes = (
        ("card memory", c.hbm_bytes), ("ring", c.ring_bytes), ("scratchpad peak", c.lx_peak_bytes),
    )
    for name, (a, b) in sizes:
        yield name, size(a), size(b), share(a, b)


def share(before: int, after: int) -> str:
    """``+3.2 %``; "" where nothing was before, "0 %" where nothing changed."""
    if before == after:
        return "0 %"
    return f"{(after / before - 1) * 100:+.1f} %" if before else ""
