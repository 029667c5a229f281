"""What the computer the card is in does for a launch, as data: section ``[host]`` of a device
file. Prices in nanoseconds, since the host has no core clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from .device_file import Whole

HostLaunch = Literal["graph", "patched", "bound"]
HOST_LAUNCHES: tuple[HostLaunch, ...] = ("graph", "patched", "bound")
"""What the host does anew on each launch: constructs the job graph, for data transfer and for
compute; only the compute side of it; nothing."""

CORRECTION_BYTES = 8  # one address

Micros = Annotated[int, Whole("microseconds", least=0)]


@dataclass(frozen=True)
class Host:
    """A program is launched as ``jobs`` device jobs, one after the other; a job goes through three
    ordered steps: the host computes its corrections, they are copied to the card's program region,
    the device's prologue patches the program and runs it.

    ``ahead_jobs``: how many jobs may be waiting or running on the device while the host prepares
    the next. 0: the host's work and the device's never overlap.
    """

    jobs: Annotated[int, Whole("device jobs of a program")]
    ahead_jobs: Annotated[int, Whole("jobs", least=0)]
    transfer_graph_us: Micros
    compute_graph_us: Micros
    submit_us: Micros
    correction_ns: Annotated[int, Whole("nanoseconds an address", least=0)]
    patch_cycles: Annotated[int, Whole("core cycles an address", least=0)]
    link_us: Micros
    link_bytes_per_us: Annotated[int, Whole("bytes a microsecond")]

    def job_ns(self, mode: HostLaunch, corrections: int) -> int:
        """Host time of one job with that many ``corrections`` to compute, before they are copied.
        A bound job has none: its addresses are in place."""
        graph_us = {
            "graph": self.transfer_graph_us + self.compute_graph_us,
            "patched": self.compute_graph_us,
            "bound": 0,
        }[mode]
        return 1000 * (graph_us + self.submit_us) + self.correction_ns * corrections

    def link_ns(self, nbytes: int) -> int:
        """Time of one copy of ``nbytes`` between host and card; nothing to copy takes none."""
        return -(-nbytes * 1000 // self.link_bytes_per_us) + 1000 * self.link_us * (nbytes > 0)
