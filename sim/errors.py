"""Errors of the machine side. Same manners as the compiler's: which object, expected, got, what
would fix it."""

from __future__ import annotations


class SimError(Exception):
    """Base of all errors an object file, a listing, a device file or a run is at fault for (exit
    code 1)."""


class DeviceError(SimError):
    """A device description is missing something or contradicts itself."""


class ObjectError(SimError):
    """An object file is truncated, damaged or not ours."""


class AsmError(SimError):
    """An assembler listing is not in the grammar. ``line`` counts from 1."""

    def __init__(self, message: str, line: int = 0) -> None:
        self.line = line
        super().__init__(f"line {line}: {message}" if line else message)


class SimulationError(SimError):
    """A run broke a rule of the machine: out of bounds, uninitialised read, span, deadlock."""


class HazardError(SimError):
    """The checker found hazards in a program; ``findings`` has a sentence for each."""

    def __init__(self, message: str, findings: tuple[str, ...]) -> None:
        self.findings = findings
        super().__init__(message)
