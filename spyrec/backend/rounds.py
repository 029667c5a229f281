"""Exchanges in rounds: a core takes a limited number of incoming fragments at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar


class Sent(Protocol):
    """What goes from one core to the cores of a mask."""

    @property
    def core(self) -> int: ...

    @property
    def cores(self) -> int: ...


S = TypeVar("S", bound=Sent)


@dataclass(frozen=True)
class Rounds(Generic[S]):
    """Sends in the order given, each in the first round in which none of its receivers gets more
    than ``most`` fragments.

    A core that sends in some round first waits until each receiver has taken the last round before
    that brought it something.
    """

    every: Sequence[S]
    most: int

    @cached_property
    def sends(self) -> tuple[tuple[S, ...], ...]:
        """The sends of each round."""
        found: list[tuple[list[S], Counter[int]]] = []
        for send in self.every:
            to = bits(send.cores)
            free = (r for r in found if all(r[1][c] < self.most for c in to))
            chosen = next(free, None)
            if chosen is None:
                chosen = [], Counter()
                found.append(chosen)
            chosen[0].append(send)
            chosen[1].update(to)
        return tuple(tuple(sends) for sends, _ in found)

    @cached_property
    def fragments(self) -> tuple[Mapping[int, int], ...]:
        """For each round how many fragments come to each core that gets any."""
        return tuple(Counter(c for s in sends for c in bits(s.cores)) for sends in self.sends)

    def following(self, core: int, number: int) -> int:
        """The next round that brings the core something, 0 when none does."""
        later = range(number + 1, len(self.sends))
        return next((n for n in later if core in self.fragments[n]), 0)

    def senders(self, core: int, number: int) -> int:
        """Mask of the cores that send something to the core in a round."""
        return sum(1 << c for c in {s.core for s in self.sends[number] if s.cores >> core & 1})

    def waits(self, number: int) -> dict[int, int]:
        """For each core that sends in a round how many receivers tell it that they are ready, those
        left out that no round before brings anything."""
        found = Counter[int]()
        for core in self.fragments[number]:
            if any(core in self.fragments[n] for n in range(number)):
                found.update(bits(self.senders(core, number)))
        return dict(found)


def bits(mask: int) -> list[int]:
    """The cores of a mask."""
    return [c for c in range(mask.bit_length()) if mask >> c & 1]
