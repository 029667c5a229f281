"""Where a trace goes, and which part of the run it shows in full."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from pathlib import Path

from spyrec import files
from spyrec.ir.errors import SpyrecError
from spyrec.sim.device import DeviceSpec
from spyrec.sim.trace import MOST_BYTES, ChromeTrace, Window

TIME = re.compile(r"(\d+(?:\.\d+)?)(us|cycles)?")


@dataclass(frozen=True)
class Time:
    """A time since the run began; ``unit`` is "us" or "cycles"."""

    number: Fraction
    unit: str

    def cycles(self, device: DeviceSpec) -> Fraction:
        return self.number * device.clock_mhz if self.unit == "us" else self.number


@dataclass(frozen=True)
class TraceWindow:
    """``since`` to ``until``, None: the end of the run."""

    since: Time
    until: Time | None

    def cycles(self, device: DeviceSpec) -> Window:
        """Whole cycles that hold all of it. SpyrecError when they are none."""
        since = self.since.cycles(device)
        until = None if self.until is None else self.until.cycles(device)
        if until is not None and until <= since:
            raise SpyrecError(
                f"the trace's window ends in cycle {float(until):g}, which is not after cycle "
                f"{float(since):g}, in which it begins; give a later end"
            )
        return int(since), inf if until is None else -int(-until // 1)


def parse_window(text: str) -> TraceWindow:
    """``FROM:TO``, each a number with ``us`` or ``cycles`` after it, ``us`` if nothing is; left out
    they are the run's start and end. SpyrecError for anything else."""
    since, colon, until = text.partition(":")
    times = [_time(part) if part else None for part in (since, until)]
    if not colon or (since and not times[0]) or (until and not times[1]):
        raise SpyrecError(
            f"trace window {text!r} is not FROM:TO in us or cycles; say 20us:35us, "
            "1000cycles:2500cycles or 20: for all from 20 us on"
        )
    return TraceWindow(times[0] or Time(Fraction(0), "cycles"), times[1])


def _time(text: str) -> Time | None:
    found = TIME.fullmatch(text)
    return None if found is None else Time(Fraction(found[1]), found[2] or "us")


@contextmanager
def tracing(
    path: str | Path | None, device: DeviceSpec, window: str | None = None
) -> Iterator[ChromeTrace | None]:
    """An observer that writes to ``path``, which appears once the run has succeeded; None without a
    path. ``window``: what ``parse_window`` reads. SpyrecError for a window that is none or that
    has no trace."""
    span = None if window is None else parse_window(window).cycles(device)
    if path is None:
        if window is not None:
            raise SpyrecError("a trace window says what of a trace is shown: say where it goes too")
        yield None
        return
    with files.atomic_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        try:
            observer = ChromeTrace(text, device, span)
            yield observer
            observer.close()
        finally:
            text.detach()  # flushes, and leaves the file to whoever opened it


def left_out(trace: ChromeTrace | None) -> tuple[str, ...]:
    """A sentence on launches of which a trace shows no instructions, not even those of one that was
    the same, if there are any."""
    if trace is None or not trace.left_out:
        return ()
    launches = "1 launch" if trace.left_out == 1 else f"{trace.left_out:,} launches"
    return (
        f"the trace leaves out the instructions of {launches}, beyond {MOST_BYTES // 10**6} MB of "
        "them; --trace-window FROM:TO shows those of a part of the run",
    )
