"""Faults seeded into valid programs: a token lost, moved or miscounted, a loop one trip off. Those
of addresses are in mutants_address.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from spyrec.sim.isa import Instr, Loop, Num, Program, Signal, Stream, Wait

Path = tuple[int, ...]
Tokens = tuple[Wait, ...] | tuple[Signal, ...]


@dataclass(frozen=True)
class Place:
    """An element of a stream: ``path`` leads to it through the loops."""

    kernel: int
    unit: str
    path: Path
    item: Instr | Loop


@dataclass(frozen=True)
class Mutant:
    program: Program
    fault: str


def places(program: Program) -> list[Place]:
    return [
        Place(k, unit, path, item)
        for k, kernel in enumerate(program.kernels)
        for unit, stream in kernel.streams.items()
        for path, item in _walk(stream, ())
    ]


def _walk(stream: Stream, path: Path) -> Iterator[tuple[Path, Instr | Loop]]:
    for i, item in enumerate(stream):
        yield (*path, i), item
        if isinstance(item, Loop):
            yield from _walk(item.body, (*path, i))


def put(program: Program, place: Place, item: Instr | Loop) -> Program:
    """The program with ``item`` at a place."""
    streams = program.kernels[place.kernel].streams
    stream = _put(streams[place.unit], place.path, item)
    return _with_streams(program, place.kernel, {**streams, place.unit: stream})


def _put(stream: Stream, path: Path, item: Instr | Loop) -> Stream:
    first, *rest = path
    old = stream[first]
    if rest:
        assert isinstance(old, Loop)
        item = replace(old, body=_put(old.body, tuple(rest), item))
    return (*stream[:first], item, *stream[first + 1 :])


def _with_streams(program: Program, number: int, streams: dict[str, Stream]) -> Program:
    kernel = replace(program.kernels[number], streams=streams)
    return replace(
        program, kernels=(*program.kernels[:number], kernel, *program.kernels[number + 1 :])
    )


def _tokens(item: Instr, side: str) -> Tokens:
    return item.waits if side == "waits" else item.signals


def _with_token(
    program: Program, side: Literal["waits", "signals"], rng: random.Random,
    change: Callable[[Wait | Signal], tuple[Wait | Signal, ...]],
) -> Mutant | None:
    found = [
        (place, place.item, i)
        for place in places(program) if isinstance(place.item, Instr)
        for i in range(len(_tokens(place.item, side)))
    ]  # fmt: skip
    if not found:
        return None
    place, instr, i = rng.choice(found)
    old = _tokens(instr, side)
    made = replace(instr, **{side: (*old[:i], *change(old[i]), *old[i + 1 :])})
    return Mutant(put(program, place, made), f"{old[i]} of {place.unit} {place.path} {instr.op}")


def drop_wait(program: Program, rng: random.Random) -> Mutant | None:
    return _with_token(program, "waits", rng, lambda token: ())


def drop_signal(program: Program, rng: random.Random) -> Mutant | None:
    return _with_token(program, "signals", rng, lambda token: ())


def miscount_wait(program: Program, rng: random.Random) -> Mutant | None:
    return _with_token(program, "waits", rng, lambda token: (_one_off(token, 0, rng),))


def miscount_signal(program: Program, rng: random.Random) -> Mutant | None:
    return _with_token(program, "signals", rng, lambda token: (_one_off(token, 1, rng),))


def _one_off(token: Wait | Signal, least: int, rng: random.Random) -> Wait | Signal:
    n = token.n + rng.choice((-1, 1))
    return replace(token, n=n if n >= least else token.n + 1)


def drop_token(program: Program, rng: random.Random) -> Mutant | None:
    """Every wait for and signal of one token of a kernel."""
    found = sorted({
        (place.kernel, wait.token)
        for place in places(program) if isinstance(place.item, Instr)
        for wait in place.item.waits if wait.token
    })  # fmt: skip
    if not found:
        return None
    number, token = rng.choice(found)
    streams = program.kernels[number].streams
    without = {unit: _without(stream, token) for unit, stream in streams.items()}
    return Mutant(_with_streams(program, number, without), f"token {token} of kernel {number}")


def _without(stream: Stream, token: int) -> Stream:
    return tuple(
        replace(item, body=_without(item.body, token))
        if isinstance(item, Loop)
        else replace(
            item, waits=tuple(w for w in item.waits if w.token != token),
            signals=tuple(s for s in item.signals if token not in _each(s.token)),
        )
        for item in stream
    )


def _each(value: Num) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else value


def swap_tokens(program: Program, rng: random.Random) -> Mutant | None:
    """Two instructions of a kernel wait for, or signal, each other's token."""
    side: Literal["waits", "signals"] = rng.choice(("waits", "signals"))
    found = [
        (place, place.item, i, token.token)
        for place in places(program) if isinstance(place.item, Instr)
        for i, token in enumerate(_tokens(place.item, side)) if token.token
    ]  # fmt: skip
    pairs = [
        (one, two) for one in found for two in found
        if one[0].kernel == two[0].kernel and one[0] != two[0] and one[3] != two[3]
    ]  # fmt: skip
    if not pairs:
        return None
    (place, instr, i, token), (other, partner, j, swapped) = rng.choice(pairs)
    made = put(program, place, _retold(instr, side, i, swapped))
    made = put(made, other, _retold(partner, side, j, token))
    return Mutant(made, f"{side} {token} of {place.unit} and {swapped} of {other.unit}")


def _retold(instr: Instr, side: str, i: int, token: Num) -> Instr:
    old = list(_tokens(instr, side))
    old[i] = replace(old[i], token=token)  # type: ignore[arg-type]
    return replace(instr, **{side: tuple(old)})


def miscount_trips(program: Program, rng: random.Random) -> Mutant | None:
    found = [(p, p.item) for p in places(program) if isinstance(p.item, Loop)]
    if not found:
        return None
    place, loop = rng.choice(found)
    count = loop.count + rng.choice((-1, 1)) or 2
    made = put(program, place, replace(loop, count=count))
    return Mutant(made, f"{loop.count} trips of {place.unit} {place.path} are {count}")


TOKEN_KINDS: dict[str, Callable[[Program, random.Random], Mutant | None]] = {
    "drop wait": drop_wait,
    "drop signal": drop_signal,
    "drop token": drop_token,
    "miscount wait": miscount_wait,
    "miscount signal": miscount_signal,
    "swap tokens": swap_tokens,
    "miscount trips": miscount_trips,
}
