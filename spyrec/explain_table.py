"""What ``spyrec explain`` prints: the model first, then its kernels. In a narrow terminal names are
shortened and sentences wrapped, numbers are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from spyrec.explanation import (
    Alternative,
    Choice,
    Explanation,
    KernelExplained,
    TensorPlace,
    WhatIf,
)
from spyrec.table import GAP, MIN_NAME, shortened, size

GAINS = 3  # what-ifs that a kernel is shown with
LEAST = 0.001  # of the time: gains below are not worth a row
NAME = 28  # characters of a tensor's name that are shown
LABEL = 10  # characters of the words before a kernel's lines
NARROWEST = 40  # columns that text is wrapped to at least

SPACES = {"hbm": "card memory", "lx": "scratchpad"}


def explained(told: Explanation, top: int | None, columns: int) -> Iterator[RenderableType]:
    """What is printed, piece by piece; ``columns``: the width there is, ``top``: kernels that are
    told of, None for all. Tables may be wider than ``columns``: no number is cut."""
    yield _text(
        f"{told.model} on {told.device}, {told.numerics}: {told.total_cycles:,} cycles "
        f"({told.total_us:,.1f} us), {_counted(told.runs, 'kernel', 'kernels')} "
        f"in {_counted(told.launches, 'launch', 'launches')}", columns
    )
    shares = ", ".join(f"{bound} {share:.1%}" for bound, share in told.bounds.items() if share)
    yield _text(f"bound by: {shares}", columns)
    yield Text()
    yield _overview(told.kernels[:top], columns)
    if rest := told.kernels[len(told.kernels[:top]):]:
        share = sum(k.share for k in rest)
        yield _text(f"and {len(rest)} more with {share:.1%}; see --top and --kernel", columns)
    yield Text()
    yield _what_ifs(told.what_ifs, columns)
    yield from (_text(line, columns) for line in _faster(told))
    for kernel in told.kernels[:top]:
        yield Text("\n")
        yield from _kernel(kernel, columns)


def _text(text: str, columns: int) -> Text:
    """Wrapped, what follows the first line further in."""
    return Text("\n".join(wrap(text, max(columns, NARROWEST), subsequent_indent="  ")))


def _overview(kernels: Sequence[KernelExplained], columns: int) -> Table:
    headings = ("kernel", "count", "cycles", "share", "bound", "x floor", "helps most")
    rows = [
        (
            k.name, str(k.count), f"{k.cycles:,}", f"{k.share:.1%}", k.bound, _times(k.over_floor),
            _best(k),
        )
        for k in kernels
    ]  # fmt: skip
    return _table(headings, rows, columns, left=(0, 4, 6), wraps=6)


def _best(kernel: KernelExplained) -> str:
    """What a kernel gains most by: another machine, or a decision that was tried."""
    helps = [(g.gain, g.name) for g in kernel.what_ifs[:1]]
    tried = [(a.trial.gain_cycles / kernel.cycles, _decision(a, kernel.choice))
             for a in kernel.alternatives
             if a.trial is not None and not a.trial.refused and kernel.cycles]  # fmt: skip
    gain, name = max([*helps, *tried], default=(0.0, ""))
    return f"{name} ({_change(gain)})" if gain >= LEAST else "nothing that was tried"


def _what_ifs(gains: Sequence[WhatIf], columns: int) -> Table:
    rows = [(g.name, f"{g.cycles:,}", _change(g.gain)) for g in gains]
    return _table(("what if (whole run)", "cycles", "change"), rows, columns, left=(0,))


def _faster(told: Explanation) -> Iterator[str]:
    """The tried decisions that make the run faster, the best first."""
    tried = [
        (a.trial.gain_cycles, f"{k.name}, {_decision(a, k.choice)}")
        for k in told.kernels for a in k.alternatives if a.trial is not None
    ]  # fmt: skip
    better = sorted((t for t in tried if t[0] > 0), key=lambda t: -t[0])
    if better:
        yield ""
    for gain, what in better[:GAINS]:
        yield f"faster when pinned: {what}: {-gain:+,} cycles ({_change(gain / told.total_cycles)})"


def _kernel(k: KernelExplained, columns: int) -> Iterator[RenderableType]:
    yield Text(k.name, style="bold")
    for label, text in _facts(k):
        line = f"{label:{LABEL}}{text}"
        indent = " " * LABEL
        yield Text("\n".join(wrap(line, max(columns, NARROWEST), subsequent_indent=indent)))
    if k.tensors:
        yield Text()
        headings = ("tensor", "shape", "lanes", "lives in", "bytes")
        rows = [_tensor_row(t) for t in k.tensors]
        yield _table(headings, rows, columns, left=(0, 3), wraps=3)
    if k.alternatives:
        yield Text()
        yield _alternatives(k, columns)
    for a in k.alternatives:
        refused = a.trial.refused if a.trial is not None else ""
        for said in filter(None, (a.ruled_out, refused)):
            yield _text(f"{_decision(a, k.choice)}: {said}", columns)


def _facts(k: KernelExplained) -> Iterator[tuple[str, str]]:
    choice, each = k.choice, f"{k.each_cycles:,.0f}"
    launches = _counted(k.count, "launch", "launches")
    alone = f"alone and with start-up {k.alone_cycles:,}"
    yield "time", f"{launches} of {each} cycles ({alone}), {k.us:,.1f} us in all, {k.share:.1%}"
    if k.dims:
        yield "space", k.dims.replace(",", " ")
    if k.source:
        shown = ", ".join(k.source[:GAINS])
        more = f" and {len(k.source) - GAINS} more" if len(k.source) > GAINS else ""
        yield "from", shown + more
    floors = ", ".join(f"{name} {n / k.count:,.0f}" for name, n in k.floors.items())
    yield "bound", f"{k.bound}: {_times(k.over_floor)} its floor; floors: {floors}"
    yield "cut", ", ".join(_cut(choice))
    yield "tile", ", ".join(_tile(choice))
    if choice.pinned:
        yield "pinned", ", ".join(choice.pinned)
    helps = [f"{g.name} {_change(g.gain)}" for g in k.what_ifs[:GAINS] if g.gain >= LEAST]
    yield "what if", ", ".join(helps) or "none of the changes makes it faster"


def _cut(choice: Choice) -> Iterator[str]:
    yield f"{_by_dim(choice.parts, 1) or 'whole'} on {_counted(choice.cores, 'core', 'cores')}"
    if len(choice.core_order) > 1:
        yield f"slowest first {' '.join(choice.core_order)}"
    if choice.predicted_cut_cycles is not None:
        yield f"predicted {choice.predicted_cut_cycles:,.0f} cycles"


def _tile(choice: Choice) -> Iterator[str]:
    yield _by_dim(choice.tile) or "unknown"
    if choice.buffers is not None:
        yield f"loops {' '.join(choice.loops)}" if choice.loops else "no loops"
        yield _counted(choice.buffers, "slot", "slots")
        yield f"overlapping {choice.overlap}"
    if choice.tile_bytes is not None and choice.budget_bytes is not None:
        used = f"{size(choice.tile_bytes)} of" if choice.tile_bytes else "nothing of"
        yield f"{used} {size(choice.budget_bytes)} of scratchpad"
    if choice.predicted_tile_cycles is not None:
        yield f"predicted {choice.predicted_tile_cycles:,.0f} cycles"


def _tensor_row(t: TensorPlace) -> tuple[str, ...]:
    shape = "x".join(map(str, t.shape))
    if t.space == "lx":
        moved = ", comes over the ring" if t.relayout else ""
        place, amount = f"scratchpad{moved}", f"{size(t.core_bytes)} a core"
    else:
        place, amount = f"{SPACES[t.space]}: {t.why}", size(t.bytes)
    name = shortened(t.name, NAME)
    return name if t.role == "operand" else f"-> {name}", f"{shape} {t.dtype}", f"d{t.stick}", \
        place, amount


def _alternatives(k: KernelExplained, columns: int) -> Table:
    tried = any(a.trial is not None for a in k.alternatives)
    headings = ("instead", "predicted", *(("simulated", "kernel", "run") if tried else ()))
    chosen = {"cut": k.choice.predicted_cut_cycles, "tile": k.choice.predicted_tile_cycles}
    rows = []
    for a in k.alternatives:
        best, price = chosen[a.kind], a.predicted_cycles
        over = f" ({_change(1 - price / best)})" if best and price is not None else ""
        row = [_decision(a, k.choice), "-" if price is None else f"{price:,.0f}{over}"]
        if tried:
            row += _trial_cells(k, a)
        rows.append(tuple(row))
    return _table(headings, rows, columns, left=(0,))


def _trial_cells(k: KernelExplained, a: Alternative) -> tuple[str, str, str]:
    """Simulated cycles of one launch, their change, and that of the run in cycles."""
    if a.trial is None:
        return "-", "-", "-"
    if a.trial.refused:
        return "refused", "-", "-"
    each = a.trial.kernel_cycles / k.count
    return (
        f"{each:,.0f}", _change(1 - a.trial.kernel_cycles / k.cycles) if k.cycles else "-",
        f"{-a.trial.gain_cycles:+,}",
    )  # fmt: skip


def _decision(a: Alternative, choice: Choice) -> str:
    """A cut, or what differs of a tile and its loops."""
    if a.kind == "cut":
        return f"cut {_by_dim(a.decision, 1) or 'whole'}"
    other = {name: n for name, n in a.decision.items() if n != choice.tile.get(name)}
    loops = f"loops {' '.join(a.loops) or 'none'}" if a.loops != choice.loops else ""
    return "tile " + ", ".join(filter(None, (_by_dim(other), loops)))


def _by_dim(values: Mapping[str, int], but: int = 0) -> str:
    """``m=4 n=8``; dimensions whose value is ``but`` are left out."""
    return " ".join(f"{name}={n}" for name, n in values.items() if n != but)


def _change(gain: float) -> str:
    """``-12.0%`` for a gain of 0.12: what becomes of the time."""
    return f"{-gain:+.1%}" if abs(gain) >= LEAST / 2 else "0.0%"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


def _counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int, left: Sequence[int],
    wraps: int | None = None,
) -> Table:
    """Without borders; in too few ``columns`` the first is shortened, then column ``wraps``
    wrapped."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    over = sum(widths) + GAP * (len(widths) - 1) - columns
    room = max(widths[0] - max(0, over), min(widths[0], MIN_NAME))
    over -= widths[0] - room
    table = Table(pad_edge=False, box=None)
    for i, heading in enumerate(headings):
        width = max(widths[i] - max(0, over), min(widths[i], MIN_NAME)) if i == wraps else None
        table.add_column(
            heading, justify="left" if i in left else "right", no_wrap=i != wraps, width=width
        )
    for first, *cells in rows:
        table.add_row(Text(shortened(first, room)), *map(Text, cells))
    return table
