"""The one error family. Each message is a sentence: which object, expected, got, where from, what
would fix it."""

from __future__ import annotations

from collections.abc import Iterable


class SpyrecError(Exception):
    """Base of all errors that the input, the model or the data is at fault for (exit code 1)."""


class PluginWarning(UserWarning):
    """What an installed distribution offers cannot be used and is left out."""


class ImportError_(SpyrecError):
    """A model file cannot be read or holds something that cannot be imported.

    ``problems`` lists every fault found, one sentence each, so a user mends them all in one go.
    """

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class ParseError(SpyrecError):
    """IR text or an assembler listing is not in the grammar."""


class VerifyError(SpyrecError):
    """A module breaks a rule of its stage."""


class PassError(SpyrecError):
    """A pass met something it cannot handle, or its options are wrong."""


class CapacityError(SpyrecError):
    """Something does not fit the device: scratchpad, card memory, span, loop count.

    ``kernels``: names of those whose scratchpad it is that lacks ``lacking`` bytes (0: unknown).
    """

    def __init__(self, message: str, kernels: Iterable[str] = (), lacking: int = 0) -> None:
        self.kernels = tuple(kernels)
        self.lacking = lacking
        super().__init__(message)
