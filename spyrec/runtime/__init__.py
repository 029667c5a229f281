"""The host's side of a card: arrays to device bytes and back, memory, programs, streams."""

from spyrec.sim.host import HOST_LAUNCHES, HostLaunch

from .card import Card
from .jobs import (
    HostTime,
    Job,
    Lanes,
    Span,
    checked_mode,
    cut,
    host_time,
    jobs_of,
    launch_steps,
    summed,
)
from .loaded import Loaded
from .memory import Allocation, CardMemory
from .ports import (
    RANGES,
    Array,
    Described,
    Port,
    check,
    first_state,
    nan_warnings,
    overflow_warnings,
    pack,
    port_of,
    ports,
    random_inputs,
    state_of,
    stored_bytes,
    unpack,
)
from .stream import Event, Fetched, Stream

__all__ = [
    "Allocation", "Array", "Card", "CardMemory", "Described", "Event", "Fetched", "HOST_LAUNCHES",
    "HostLaunch", "HostTime", "Job", "Lanes", "Loaded", "Port", "RANGES", "Span", "Stream", "check",
    "checked_mode", "cut", "first_state", "host_time", "jobs_of", "launch_steps", "nan_warnings",
    "overflow_warnings", "pack", "port_of", "ports", "random_inputs", "state_of", "stored_bytes",
    "summed", "unpack",
]  # fmt: skip
