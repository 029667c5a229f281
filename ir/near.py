"""What an error says of a name that nobody knows: the one that was meant, and which there are."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

EVERY_OP, EVERY_PASS = "spyrec ops lists all", "spyrec passes lists all"
FEW = 12
"""Names that an error lists in full."""
MEANT, ALIKE = 0.7, 0.3
"""From which likeness on, by difflib's ratio, a name may have been meant, and from which on it is
shown in the place of a long list."""


def listed(name: str, known: Collection[str], where: str = "") -> str:
    """``did you mean fuse? spyrec passes lists all``: the closest of ``known`` where one is close,
    then all of them if they are few, else ``where`` they are listed; without that, some.

    >>> listed("fuze", ["fuse", "fold"])
    'did you mean fuse? known: fuse, fold'
    >>> listed("tilling", ["tiling", *map(str, range(20))], "spyrec passes lists all")
    'did you mean tiling? spyrec passes lists all'
    """
    close = get_close_matches(name, known, n=1, cutoff=MEANT)
    meant = f"did you mean {close[0]}? " if close else ""
    if len(known) <= FEW:
        return f"{meant}known: {', '.join(known) or 'none'}"
    if where:
        return meant + where
    like = get_close_matches(name, known, n=5, cutoff=ALIKE) or list(known)[:5]
    return f"{meant}known, among {len(known)}: {', '.join(like)}"
