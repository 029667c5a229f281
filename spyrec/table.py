"""The kernel table a terminal shows: a row per kernel, longest first, what starting them up takes,
and a totals line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from spyrec.report import KernelRow, Totals
from spyrec.runtime.jobs import HostTime

MAX_ROWS = 40  # rows shown; the report file holds them all
MIN_NAME = 16  # characters a name is not shortened below
GAP = 2  # blanks between columns
HEADINGS = (
    "kernel", "count", "cycles", "us", "share", "cores", "PT use", "HBM", "ring", "LX peak", "bound"
)

Cells = tuple[str, ...]


def kernel_table(kernels: Sequence[KernelRow], totals: Totals, columns: int) -> Table:
    """The rich table of ``kernels``; rows beyond MAX_ROWS are summed up in one.

    ``columns``: the width there is; names are shortened to fit it, numbers never are.
    """
    longest = sorted(kernels, key=lambda k: -k.cycles * k.count)
    rows = [_kernel(k, totals) for k in longest[:MAX_ROWS]]
    if rest := longest[MAX_ROWS:]:
        rows.append(_sum(f"{len(rest)} more", rest, totals))
    for name, count, cycles, us in (
        ("launch start-up", totals.launches, totals.launch_cycles, totals.launch_us),
        ("meeting of cores", totals.meetings, totals.meeting_cycles, totals.meeting_us),
    ):
        if cycles:
            rows.append(_between(name, count, cycles, us, totals))
    last = _total(kernels, totals)
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, last, strict=True)]
    room = max(columns - sum(widths[1:]) - GAP * len(widths[1:]), MIN_NAME)
    table = Table(pad_edge=False, box=None)
    for heading in HEADINGS:
        left = heading in ("kernel", "bound")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for name, *cells in rows:
        table.add_row(Text(shortened(name, room)), *cells)  # as it is: [0] is no markup
    table.add_row(*last, style="bold")
    return table


def host_line(host: HostTime) -> str:
    """``launched as 2 device jobs, graph: device 10.0 us, host 2,540.1 us, ...``"""
    jobs = "1 device job" if host.jobs == 1 else f"{host.jobs} device jobs"
    return (
        f"launched as {jobs}, {host.launch}: device {host.device_us:,.1f} us, host "
        f"{host.host_us:,.1f} us, copies {host.copy_us:,.1f} us, wall {host.wall_us:,.1f} us"
    )


def _kernel(k: KernelRow, totals: Totals) -> Cells:
    return (
        k.name, str(k.count), f"{k.cycles:,}", f"{k.us:,.1f}", _share(k.cycles * k.count, totals),
        str(k.cores), f"{k.pt_utilisation:.1%}" if k.macs else "-",
        size(k.hbm_read_bytes + k.hbm_write_bytes), size(k.ring_bytes), size(k.lx_peak_bytes),
        k.bound,
    )


def _sum(name: str, kernels: Sequence[KernelRow], totals: Totals) -> Cells:
    cycles = sum(k.cycles * k.count for k in kernels)
    us = sum(k.us * k.count for k in kernels)
    count, hbm, ring, lx = _bytes(kernels)
    share = _share(cycles, totals)
    return (name, count, f"{cycles:,}", f"{us:,.1f}", share, "", "", hbm, ring, lx, "")


def _between(name: str, count: int, cycles: int, us: float, totals: Totals) -> Cells:
    """What starting launches up, or meeting, takes in all, shown as that of one."""
    each = f"{cycles / count:,.0f}", f"{us / count:,.1f}"
    return (name, str(count), *each, _share(cycles, totals), *[""] * 6)


def _total(kernels: Sequence[KernelRow], totals: Totals) -> Cells:
    """The run's own time: the sum of the rows above, unless kernels overlap."""
    count, hbm, ring, lx = _bytes(kernels)
    cycles, us, use = f"{totals.cycles:,}", f"{totals.us:,.1f}", f"{totals.pt_utilisation:.1%}"
    return ("total", count, cycles, us, "", "", use, hbm, ring, lx, "")


def _bytes(kernels: Sequence[KernelRow]) -> tuple[str, str, str, str]:
    """Launches, HBM bytes and ring bytes of all together, and the highest scratchpad peak."""
    return (
        str(sum(k.count for k in kernels)),
        size(sum((k.hbm_read_bytes + k.hbm_write_bytes) * k.count for k in kernels)),
        size(sum(k.ring_bytes * k.count for k in kernels)),
        size(max((k.lx_peak_bytes for k in kernels), default=0)),
    )


def shortened(name: str, room: int) -> str:
    """The start and the end of a name that is too long: both tell kernels apart."""
    if len(name) <= room:
        return name
    head = room * 2 // 3
    return f"{name[:head]}…{name[len(name) - (room - head - 1):]}"


def _share(cycles: int, totals: Totals) -> str:
    return f"{cycles / totals.cycles:.1%}" if totals.cycles else "-"


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
