"""The machine with one thing better: the changes that ``explain`` simulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spyrec.sim.device import DeviceSpec


@dataclass(frozen=True)
class Change:
    """Parameters of a device file, as ``section.key``, and what each is multiplied by."""

    name: str
    factors: Mapping[str, int]

    def values(self, device: DeviceSpec) -> dict[str, int]:
        """The changed parameters of that device with their new values."""
        return {key: _read(device, key) * factor for key, factor in self.factors.items()}

    def device(self, device: DeviceSpec) -> DeviceSpec:
        """The device with these values; ``text`` stays that of the machine it was."""
        for key, value in self.values(device).items():
            section, name = key.split(".")
            part: Any = getattr(device, section)
            changed: Any = {section: replace(part, **{name: value})}
            device = replace(device, **changed)
        return device


def _read(device: DeviceSpec, key: str) -> int:
    section, name = key.split(".")
    value = getattr(getattr(device, section), name)
    assert isinstance(value, int)
    return value


CHANGES: tuple[Change, ...] = (
    Change("memory bandwidth x 2", {
        "hbm.bytes_per_cycle": 2, "hbm.write_bytes_per_cycle": 2, "hbm.again_bytes_per_cycle": 2,
        "hbm.side_bytes_per_cycle": 2, "hbm.window_bytes": 2,
    }),
    Change("memory overheads 0", {
        "hbm.request_cycles": 0, "hbm.side_request_cycles": 0, "hbm.shared_run_cycles": 0,
        "hbm.turnaround_cycles": 0, "hbm.side_turn_cycles": 0, "hbm.far_cycles": 0,
    }),
    Change("memory latency 0", {"hbm.latency_cycles": 0}),
    Change("matrix unit x 2", {"pt.macs_per_cycle": 2, "pt.ksplit_macs_per_cycle": 2}),
    Change("vector unit x 2", {"sfp.groups_per_cycle": 2, "sfp.shuffle_bytes_per_cycle": 2}),
    Change("vector program switch 0", {"sfp.switch_cycles": 0}),
    Change("scratchpad port x 2", {"lx.port_bytes_per_cycle": 2}),
    Change("ring bandwidth x 2", {"ring.bytes_per_cycle": 2, "ring.psum_bytes_per_cycle": 2}),
    Change("launch start-up 0", {"launch.start_cycles": 0}),
)  # fmt: skip
"""One thing each. With the bus its halves and what a core may have on its way grow alike: they are
one path. Overheads are what short runs, turning round and reading far apart cost. The program stays
as it was planned for the machine as it is."""
