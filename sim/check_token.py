"""Misuse of tokens in one launch: waits that nothing satisfies, counters that two units take from,
signals nobody takes, counters that could overflow, and exchanges with too many fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .check_order import SEND, Counters, Thread
from .device import DeviceSpec
from .isa import GO, UNITS, Instr
from .wellformed import MAX_TOKEN_COUNT

RECEIVE = UNITS.index("rr")
Name = Callable[[Thread, Instr], str]
Problem = tuple[tuple[object, ...], str]  # what makes it the same on another core, and a sentence


@dataclass(frozen=True)
class Tokens:
    """What a launch left behind. ``stuck``: threads that could not finish; ``name`` puts an
    instruction of a thread into words."""

    counters: Counters
    active: list[Thread]
    device: DeviceSpec
    name: Name

    @property
    def stuck(self) -> list[Thread]:
        return [thread for thread in self.active if thread.step < len(thread.steps)]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Kind and sentence of each finding, told for the first core on which it is so."""
        for kind, found in (
            ("token", self._misused()), ("deadlock", self._deadlock()), ("fan-in", self._fan_in())
        ):  # fmt: skip
            seen: set[tuple[object, ...]] = set()
            for key, text in found:
                if key not in seen:
                    seen.add(key)
                    yield kind, text

    def _misused(self) -> Iterator[Problem]:
        finished = not self.stuck
        for (core, token), counter in self.counters.items():
            what = f"token {token} of core {core}"
            takers = [(t, _waiting(t, token)) for t in counter.takers]
            givers = [(t, _signalling(t, core, token)) for t in counter.signallers]
            takes, gives = ([self.name(*who) for who in some] for some in (takers, givers))
            sites = tuple(id(instr) for _, instr in (*takers, *givers))
            if len(takers) > 1:
                yield ("takers", *sites), (
                    f"{what} is waited for by {takes[0]} and by {takes[1]}; which of them a signal "
                    "goes to depends on timing, so give each a token of its own"
                )
            if takers and not givers:
                yield ("source", *sites), (
                    f"{what} is signalled by no instruction; {takes[0]} waits for it"
                )
            if finished and counter.held > counter.credits:
                fewer = f"{takes[0]} takes fewer" if takers else "no instruction waits for it"
                yield ("left", *sites), (
                    f"{what} holds {counter.held} in the end, {counter.credits} were handed out at "
                    f"the start: {gives[0]} signals it, {fewer}"
                )
            if counter.most > MAX_TOKEN_COUNT:
                yield ("most", *sites), (
                    f"{what} can reach {counter.most}, a counter holds {MAX_TOKEN_COUNT}: "
                    f"{gives[0]} may signal it faster than it is taken"
                )

    def _deadlock(self) -> list[Problem]:
        """The units that nothing could help, or if there are none those that wait in a circle."""
        hopeless: list[Problem] = []
        circle: list[Problem] = []
        for thread in self.stuck:
            token, need = _lacking(thread, self.counters)
            counter = self.counters[thread.core, token]
            total, required = sum(counter.totals.values()), counter.taken[-1] + need
            instr = thread.at(thread.step)[0].instr
            givers = [
                self.name(t, _signalling(t, thread.core, token)) for t in counter.signallers
            ]
            by = f" by {givers[0]}" if givers else ""
            text = f"{self.name(thread, instr)} waits for signal {required} of token {token}"
            if total < required:
                text += f"; there will never be more than {total}{by}"
                hopeless.append(((id(instr),), text))
            else:
                circle.append(((id(instr),), f"{text}, which comes{by}, and that waits in turn"))
        return hopeless or circle

    def _fan_in(self) -> Iterator[Problem]:
        """A core takes no more sends at once than it has room for."""
        most = self.device.ring.fragments_max
        for thread in self.active:
            for number, (waits, *_) in enumerate(thread.steps if thread.unit == RECEIVE else ()):
                sends = sum(n for token, _, n in waits if self._is_sent(thread.core, token))
                if sends > most:
                    instr = thread.at(number)[0].instr
                    yield (id(instr),), (
                        f"{self.name(thread, instr)} waits for {sends} sends at once; a core takes "
                        f"at most {most} fragments in one exchange, so split it"
                    )

    def _is_sent(self, core: int, token: int) -> bool:
        return token != GO and any(
            t.unit == SEND for t in self.counters[core, token].signallers
        )


def _lacking(thread: Thread, counters: Counters) -> tuple[int, int]:
    """The token a stuck thread waits for, and how many of it."""
    return next(
        (token, need) for token, need, _ in thread.steps[thread.step][0]
        if token != GO and counters[thread.core, token].held < need
    )


def _waiting(thread: Thread, token: int) -> Instr:
    """The thread's first instruction that waits for a token."""
    return next(
        thread.at(number)[0].instr for number, (waits, *_) in enumerate(thread.steps)
        if any(t == token for t, *_ in waits)
    )


def _signalling(thread: Thread, core: int, token: int) -> Instr:
    """The thread's last instruction that signals a token of ``core``."""
    return next(
        thread.at(number)[0].instr for number in reversed(range(len(thread.steps)))
        if any(
            t == token and (thread.core == core if cores is None else core in cores)
            for t, _, cores in thread.steps[number][1]
        )
    )
