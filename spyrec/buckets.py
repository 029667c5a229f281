"""Running a program with buckets: which bucket takes the inputs, what they are padded with, and
what of the outputs is true."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spyrec import runtime
from spyrec.ir.errors import SpyrecError
from spyrec.passes.extents import Axis, Factor, fixed, size_of, true_size
from spyrec.report import BucketUse
from spyrec.runtime import Array, Described, Port
from spyrec.sim.errors import ObjectError
from spyrec.sim.isa import Bucket, Program
from spyrec.sim.link import bucket_program

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Chosen:
    """A bucket as a program by itself, and how a run uses it."""

    code: Program
    use: BucketUse


def largest(program: Program) -> int:
    """The bucket that takes most."""
    sizes = [math.prod(b.sizes.values()) for b in program.buckets]
    return sizes.index(max(sizes))


def ports(program: Program, kind: str, number: int | None = None) -> tuple[Port, ...]:
    """Inputs or outputs of the model at a bucket's sizes, the largest unless told."""
    chosen = bucket_program(program, largest(program) if number is None else number)
    return tuple(p for p in runtime.ports(chosen, kind) if "made" not in p.buffer.meta)


def weight_bytes(program: Program) -> tuple[int, int]:
    """Bytes of constants that every bucket reads, and of those that only some do: a weight that
    buckets want in different layouts is among these once for each."""
    sizes = {b.name: b.size for b in program.buffers if b.kind == "const"}
    every = set(sizes).intersection(*(b.buffers for b in program.buckets))
    return sum(sizes[n] for n in every), sum(n for name, n in sizes.items() if name not in every)


def chosen(
    program: Program, given: Mapping[str, Described] | None, wanted: Sizes | None = None
) -> Chosen | None:
    """As ``choose``; None of a program without buckets, of which nobody may ask for one."""
    if program.buckets:
        return choose(program, given, wanted)
    if wanted:
        raise SpyrecError("the program has no buckets; compile it with buckets to choose one")
    return None


def choose(
    program: Program, given: Mapping[str, Described] | None, wanted: Sizes | None = None,
    origin: str = "inputs",
) -> Chosen:
    """The smallest bucket that takes inputs of these shapes, or the largest when there are none;
    ``wanted`` asks for a size of some dimensions. SpyrecError lists what does not fit."""
    buckets = program.buckets
    numbers = [i for i, b in enumerate(buckets) if _matches(b, wanted or {})]
    if not numbers:
        raise SpyrecError(
            f"no bucket has {_shown(wanted or {})}; there are {', '.join(b.name for b in buckets)}"
        )
    if given is None:
        number = max(numbers, key=lambda i: (math.prod(buckets[i].sizes.values()), -i))
        return _chosen(program, number, buckets[number].sizes)
    true = _true_sizes(program, given, origin)
    fits = [i for i in numbers if _takes(buckets[i], true)]
    if not fits:
        among = ", ".join(buckets[i].name for i in numbers)
        raise SpyrecError(f"{origin}: {_shown(true)} fits into no bucket of {among}")
    number = min(fits, key=lambda i: (math.prod(buckets[i].sizes.values()), i))
    return _chosen(program, number, true)


def _matches(bucket: Bucket, wanted: Sizes) -> bool:
    return all(bucket.sizes.get(dim) == size for dim, size in wanted.items())


def _takes(bucket: Bucket, true: Sizes) -> bool:
    with _told(bucket.name, "sizes"):
        return all(true[dim] <= size for dim, size in bucket.sizes.items())


def _shown(sizes: Sizes) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items())


def _chosen(program: Program, number: int, true: Sizes) -> Chosen:
    bucket = program.buckets[number]
    macs, padded = (_macs(bucket, sizes) for sizes in (true, bucket.sizes))
    share = math.prod(true[d] / n for d, n in bucket.sizes.items())
    use = BucketUse(
        bucket.name, {d: true[d] for d in bucket.sizes}, dict(bucket.sizes), 1 - share, macs,
        padded, 1 - macs / padded if padded else 0.0,
    )
    return Chosen(bucket_program(program, number), use)


def _macs(bucket: Bucket, sizes: Sizes) -> int:
    """Multiply-accumulates at these sizes: a sum of products, [number, [[dim, add], ...]] each."""
    with _told(bucket.name, "macs"):
        return sum(
            int(n) * math.prod(sizes[dim] + int(add) for dim, add in dims)
            for n, dims in json.loads(bucket.meta["macs"])
        )


def _least(bucket: Bucket) -> dict[str, int]:
    with _told(bucket.name, "least"):
        least = json.loads(bucket.meta["least"])
        return {dim: int(least[dim]) for dim in bucket.sizes}


def _true_sizes(program: Program, given: Mapping[str, Described], origin: str) -> dict[str, int]:
    """Size of each open dimension by the inputs' shapes. SpyrecError lists each input that is
    missing, unknown, of another type or shape, or at odds with another."""
    top = program.buckets[largest(program)]
    least = _least(top)
    wanted = ports(program, "input")
    sizes: dict[str, tuple[int, str]] = {}
    problems: list[str] = []
    as_given: list[Port] = []
    for port in wanted:
        array = given.get(port.name)
        shape = list(port.shape)
        if array is not None and len(array.shape) == len(shape):
            for a, axis in enumerate(extents(port)):
                for f in (f for f in axis if f.dim):
                    shape[a] = int(array.shape[a])
                    size = shape[a] - f.add
                    known, where = sizes.setdefault(f.dim, (size, port.name))
                    if known != size:
                        problems.append(
                            f"{origin}: input {port.name!r} has {f.dim}={size}, {where!r} has "
                            f"{f.dim}={known}"
                        )
        as_given.append(replace(port, shape=tuple(shape)))
    try:
        runtime.check(as_given, given, origin)
    except SpyrecError as error:
        problems.insert(0, str(error))
    for dim, (size, name) in sizes.items():
        if size < least.get(dim, 0):
            problems.append(
                f"{origin}: input {name!r} has {dim}={size}; the program takes {least[dim]} or more"
            )
    if problems:
        raise SpyrecError("\n".join(problems))
    with _told(top.name, "sizes"):
        return {dim: sizes[dim][0] for dim in top.sizes}


def asked(chosen: Chosen) -> tuple[Port, ...]:
    """The inputs of a bucket that its user gives."""
    return tuple(
        p for p in runtime.ports(chosen.code, "input") if "made" not in p.buffer.meta
    )


def filled(chosen: Chosen, given: Mapping[str, Array]) -> dict[str, Array]:
    """All inputs of the bucket's program: those given with zeros behind them, and those that tell
    how long they truly are."""
    out = {}
    for port in runtime.ports(chosen.code, "input"):
        if "made" in port.buffer.meta:
            out[port.name] = _made(port, chosen.use.true)
        elif port.name in given:
            out[port.name] = _padded(port, given[port.name])
    return out


def _padded(port: Port, array: Array) -> Array:
    if array.shape == port.shape:
        return array
    whole = np.zeros(port.shape, array.dtype)
    whole[tuple(slice(0, n) for n in array.shape)] = array
    return whole


def _made(port: Port, true: Sizes) -> Array:
    """An input that follows from the true sizes (see passes.padding.Made)."""
    with _told(port.buffer.name, "made"):
        kind, dim, add, size, inner = json.loads(port.buffer.meta["made"])
        number, count = true[dim] + int(add), math.prod(port.shape)
        elements: Mapping[str, Callable[[], Any]] = {
            "valid": lambda: np.arange(count) // max(inner, 1) % max(size, 1) < number,
            "size": lambda: np.full(count, number),
            "share": lambda: np.full(count, 1 / number),
            "index": lambda: np.arange(number, number + count),
        }
        return np.asarray(elements[kind](), port.dtype.np_dtype).reshape(port.shape)


def cropped(port: Port, array: Array, use: BucketUse | None) -> Array:
    """What of an output is true; all of it in a program without buckets."""
    if use is None:
        return array
    axes, true = extents(port), use.true
    if not any(f.dim for axis in axes for f in axis):
        return array
    with _told(port.buffer.name, "extents"):
        whole = [f.size for axis in axes for f in axis]
        cut = tuple(slice(0, f.true(true)) for axis in axes for f in axis)
        return array.reshape(whole)[cut].reshape([true_size(axis, true) for axis in axes])


def extents(port: Port) -> tuple[Axis, ...]:
    """The axes of a port: which of their factors follow an open dimension."""
    if "extents" not in port.buffer.meta:
        return tuple(fixed(n) for n in port.shape)
    with _told(port.buffer.name, "extents"):
        told = json.loads(port.buffer.meta["extents"])
        axes = tuple(tuple(Factor(int(n), str(dim), int(add)) for n, dim, add in axis)
                     for axis in told)  # fmt: skip
        if tuple(map(size_of, axes)) != port.shape:
            raise ValueError(f"they are not those of {list(port.shape)}")
        return axes


def extents_text(axes: Sequence[Axis]) -> str:
    """The axes as a buffer's meta holds them, which ``extents`` reads."""
    return json.dumps([[[f.size, f.dim, f.add] for f in axis] for axis in axes])


@contextmanager
def _told(name: str, what: str) -> Iterator[None]:
    """ObjectError when what a bucket or buffer says of itself is not as it should be."""
    try:
        yield
    except (LookupError, ValueError, TypeError, ArithmeticError, RecursionError):
        raise ObjectError(
            f"{name} does not say its {what} as a program with buckets must; compile the model "
            "again"
        ) from None
