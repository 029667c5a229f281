"""Several programs of one model in one, and each of them out of it again: equal kernels and equal
constants are kept once, and what only one bucket uses shares card memory with the others'."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .errors import ObjectError
from .isa import STICK, Bucket, Buffer, Holding, Kernel, Launch, Program, Tensor


@dataclass(frozen=True)
class Part:
    """A program to be linked in. ``kept``: names of inputs that are the same memory in all parts
    where size and meta agree, as weights and state are; ``sizes`` and ``meta``: as in Bucket."""

    name: str
    sizes: Mapping[str, int]
    program: Program
    kept: Collection[str] = ()
    meta: Mapping[str, str] | None = None


Contents = tuple[str, int, tuple[tuple[str, str], ...], bytes]


def link(parts: Sequence[Part]) -> Program:
    """One program with a bucket for each part, in order. Shared buffers come first in card memory,
    then each bucket's own, which lie over those of the others. ObjectError: no part, or parts for
    different devices."""
    if not parts or len({p.program.device for p in parts}) != 1:
        raise ObjectError("buckets are linked from programs for one device; compile them again")
    kernels: list[Kernel] = []
    launches: list[Launch] = []
    buckets: list[Bucket] = []
    tensors: dict[Tensor, int] = {}
    holdings: list[Holding] = []
    shared: dict[Contents, Buffer] = {}
    own: list[list[Buffer]] = []
    names = [_names(part, shared) for part in parts]
    common = _placed(shared.values(), 0)
    base = _end(common)
    for part, called in zip(parts, names, strict=True):
        numbers = [_number(kernels, k, part.name) for k in part.program.kernels]
        first = len(launches)
        claimed = [
            tensors.setdefault(replace(t, name=called.get(t.name, t.name)), len(tensors))
            for t in part.program.tensors
        ]
        for x in part.program.launches:
            args = tuple((called[b], offset) for b, offset in x.args)
            after = tuple(first + i for i in x.after)
            named = tuple(claimed[i] for i in x.tensors)
            launches.append(
                replace(x, kernel=numbers[x.kernel], args=args, after=after, tensors=named)
            )
        holdings += [
            replace(h, tensor=claimed[h.tensor], launches=tuple(first + i for i in h.launches))
            for h in part.program.holdings
        ]
        known = {b.name for b in common}
        mine = [b for b in part.program.buffers if called[b.name] not in known]
        own.append([_renamed(b, called) for b in _settled(mine, base)])
        every = tuple(called[b.name] for b in part.program.buffers)
        count = len(part.program.launches)
        buckets.append(Bucket(part.name, dict(part.sizes), count, every, dict(part.meta or {})))
    buffers = (*common, *(b for each in own for b in each))
    whole = parts[0].program
    return Program(
        tuple(kernels), buffers, tuple(launches), whole.device, whole.meta, tuple(buckets),
        tuple(tensors), tuple(holdings),
    )


def bucket_program(program: Program, number: int) -> Program:
    """One bucket of a program as a program by itself, with the kernels it launches."""
    bucket = program.buckets[number]
    first = sum(b.launches for b in program.buckets[:number])
    taken = program.launches[first : first + bucket.launches]
    used = sorted({x.kernel for x in taken})
    held = [h for h in program.holdings if 0 <= h.launches[0] - first < bucket.launches]
    claimed = sorted({t for x in taken for t in x.tensors} | {h.tensor for h in held})
    place, named = ({k: i for i, k in enumerate(known)} for known in (used, claimed))
    launches = tuple(
        replace(
            x, kernel=place[x.kernel], after=tuple(i - first for i in x.after),
            tensors=tuple(named[t] for t in x.tensors),
        )
        for x in taken
    )  # fmt: skip
    holdings = (
        replace(h, tensor=named[h.tensor], launches=tuple(i - first for i in h.launches))
        for h in held
    )
    buffers = {b.name: b for b in program.buffers}
    return replace(
        program, kernels=tuple(program.kernels[k] for k in used), launches=launches,
        buffers=tuple(buffers[name] for name in bucket.buffers), buckets=(),
        tensors=tuple(program.tensors[t] for t in claimed), holdings=tuple(holdings),
    )


def _names(part: Part, shared: dict[Contents, Buffer]) -> dict[str, str]:
    """What each buffer of a part is called in the whole; those that are shared are added."""
    called: dict[str, str] = {}
    taken = {b.name for b in shared.values()}
    for buffer in part.program.buffers:
        name = f"{part.name}/{buffer.name}"
        if buffer.kind == "const" or buffer.name in part.kept:
            key = _contents(buffer)
            if key not in shared:
                plain = buffer.name if buffer.name not in taken else name
                shared[key] = replace(buffer, name=plain)
                taken.add(plain)
            name = shared[key].name
        called[buffer.name] = name
    for buffer in part.program.buffers:  # a constant that is a state's first value, by its new name
        first = buffer.meta.get("first")
        if buffer.name in part.kept and first in called:
            key = _contents(buffer)
            held = shared[key]
            shared[key] = replace(held, meta={**held.meta, "first": called[first]})
    return called


def _contents(buffer: Buffer) -> Contents:
    """What makes two shared buffers the same one."""
    meta = tuple(sorted((k, v) for k, v in buffer.meta.items() if k != "first"))
    if buffer.kind == "const":
        return "const", buffer.size, meta, hashlib.sha256(buffer.data or b"").digest()
    return buffer.kind, buffer.size, meta, buffer.name.encode()


def _renamed(buffer: Buffer, called: Mapping[str, str]) -> Buffer:
    meta = dict(buffer.meta)
    if "first" in meta:
        meta["first"] = called[meta["first"]]
    return replace(buffer, name=called[buffer.name], meta=meta)


def _number(kernels: list[Kernel], kernel: Kernel, bucket: str) -> int:
    """The place of a kernel among those of all buckets; equal ones are kept once, under the name
    of the first bucket that has it."""
    for i, known in enumerate(kernels):
        if replace(kernel, name=known.name) == known:
            return i
    kernels.append(replace(kernel, name=f"{bucket}/{kernel.name}"))
    return len(kernels) - 1


def _placed(buffers: Collection[Buffer], at: int) -> list[Buffer]:
    """One after the other, each on a stick boundary."""
    out = []
    for buffer in buffers:
        out.append(replace(buffer, address=at))
        at += -(-buffer.size // STICK) * STICK
    return out


def _settled(buffers: Sequence[Buffer], base: int) -> Iterator[Buffer]:
    """A bucket's own buffers from ``base`` on: inputs and outputs one after the other, then what
    is temporary, placed to each other as before, for it may share memory."""
    ports = _placed([b for b in buffers if b.kind != "temp"], base)
    lowest = min((b.address for b in buffers if b.kind == "temp"), default=0)
    shift = _end(ports, base) - lowest
    moved = {b.name: b for b in ports}
    for b in buffers:
        yield moved.get(b.name) or replace(b, address=b.address + shift)


def _end(buffers: Sequence[Buffer], least: int = 0) -> int:
    end = max((b.address + b.size for b in buffers), default=least)
    return -(-end // STICK) * STICK
