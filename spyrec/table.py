"""The kernel table a terminal shows: a row per kernel, longest first, and a totals line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from spyrec.report import KernelRow, Totals

OTHER_COLUMNS = 84  # what the columns beside the name take at most, in characters
MIN_NAME = 16
MIN_COLUMNS = OTHER_COLUMNS + MIN_NAME  # below that a terminal breaks lines; no number is cut
MAX_ROWS = 40  # rows shown; the report file holds them all


def kernel_table(kernels: Sequence[KernelRow], totals: Totals, columns: int) -> Table:
    """The rich table of ``kernels``; rows beyond MAX_ROWS are summed up in one.

    ``columns``: the width there is, MIN_COLUMNS or more; names are shortened to fit it.
    """
    table = Table(pad_edge=False, box=None)
    table.add_column("kernel", no_wrap=True)
    for heading in ("count", "cycles", "us", "share", "cores", "PT use", "HBM", "ring", "LX peak"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    longest = sorted(kernels, key=lambda k: -k.cycles * k.count)
    for kernel in longest[:MAX_ROWS]:
        table.add_row(_shortened(kernel.name, columns), *_cells(kernel, totals))
    rest = longest[MAX_ROWS:]
    if rest:
        table.add_row(
            f"{len(rest)} more",
            str(sum(k.count for k in rest)),
            f"{sum(k.cycles * k.count for k in rest):,}",
            f"{sum(k.us * k.count for k in rest):,.1f}",
            _share(sum(k.cycles * k.count for k in rest), totals),
            "",
            "",
            size(sum((k.hbm_read_bytes + k.hbm_write_bytes) * k.count for k in rest)),
            size(sum(k.ring_bytes * k.count for k in rest)),
            size(max(k.lx_peak_bytes for k in rest)),
            "",
        )
    table.add_section()
    table.add_row(
        "total",
        str(sum(k.count for k in kernels)),
        f"{totals.cycles:,}",
        f"{totals.us:,.1f}",
        "",
        "",
        f"{100 * totals.pt_utilisation:.1f}%",
        size(sum((k.hbm_read_bytes + k.hbm_write_bytes) * k.count for k in kernels)),
        size(sum(k.ring_bytes * k.count for k in kernels)),
        size(max((k.lx_peak_bytes for k in kernels), default=0)),
        "",
        style="bold",
    )
    return table


def _shortened(name: str, columns: int) -> str:
    """The start and the end of a name that is too long: both tell kernels apart."""
    room = max(columns - OTHER_COLUMNS, MIN_NAME)
    if len(name) <= room:
        return name
    head = room * 2 // 3
    return f"{name[:head]}…{name[len(name) - (room - head - 1):]}"


def _cells(kernel: KernelRow, totals: Totals) -> tuple[str, ...]:
    return (
        str(kernel.count),
        f"{kernel.cycles:,}",
        f"{kernel.us:,.1f}",
        _share(kernel.cycles * kernel.count, totals),
        str(kernel.cores),
        f"{100 * kernel.pt_utilisation:.1f}%" if kernel.macs else "-",
        size(kernel.hbm_read_bytes + kernel.hbm_write_bytes),
        size(kernel.ring_bytes),
        size(kernel.lx_peak_bytes),
        kernel.bound,
    )


def _share(cycles: int, totals: Totals) -> str:
    return f"{100 * cycles / totals.cycles:.1f}%" if totals.cycles else "-"


def size(n_bytes: int) -> str:
    """``1.5 MiB`` for 1572864; "-" for nothing."""
    if n_bytes == 0:
        return "-"
    amount = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
