"""Where a call stands in the user's Python, and the sentences on calls that cannot be imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from .torch_graph import Call, Ref
from .torch_writes import flat

CALLS_NAMED = 3  # in a message about an operator that cannot be imported

_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (\S+)')
_LIBRARY = ("<", "/torch/nn/", "/torch/_", "/torch/fx/", "/torch/utils/", "/torch/export/")


def place_of(call: Call) -> str:
    """The call's name with the user's line that made it: "linear (model.py:7)"; the innermost
    frame that is neither torch's own nor of code that torch has made."""
    frames = list(_FRAME.findall(call.trace))
    own = [f for f in frames if not any(part in f[0] for part in _LIBRARY)] or frames
    if not own:
        return call.name
    file, line, _ = own[-1]
    return f"{call.name} ({file.replace(chr(92), '/').rpartition('/')[2]}:{line})"


def read_by(calls: Iterable[Call], name: str) -> str:
    """The end of a sentence on an input: " (first read by mul (model.py:7))"; nothing when no call
    reads it."""
    wanted = Ref(name)
    reads = (call for call in calls if any(arg == wanted for arg in flat(call.args.values())))
    first = next(reads, None)
    return f" (first read by {place_of(first)})" if first else ""


def sparse_input(name: str, read: str) -> str:
    return f"Input '{name}' is a sparse tensor; only dense tensors can be imported{read}."


def unsupported_sentences(unsupported: Mapping[tuple[str, str], Sequence[str]]) -> list[str]:
    sentences = []
    for (packet, reason), places in sorted(unsupported.items()):
        named = ", ".join(places[:CALLS_NAMED])
        calls = "1 call" if len(places) == 1 else f"{len(places)} calls"
        more = ", ..." if len(places) > CALLS_NAMED else ""
        sentences.append(
            f"Operator {packet} cannot be imported: {reason} ({calls}: {named}{more})."
        )
    return sentences
