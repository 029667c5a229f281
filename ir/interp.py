"""The reference interpreter: what a module means, op by op, in numpy."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .core import Block, Module, Op, Value
from .errors import SpyrecError
from .evaluate import conform, evaluator
from .ops.shapes import show
from .rounding import FORMATS, round_to
from .run_tiles import run_tiled
from .types import Sym, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Observer = Callable[[Op, tuple[Array, ...]], None]
Env = MutableMapping[Value, Array]


@dataclass(frozen=True)
class _Run:
    """What all blocks of one run share: sizes of symbolic dimensions, and who watches."""

    dims: Mapping[str, int]
    observe: Observer | None = None


def run(
    module: Module, inputs: Mapping[str, Array], *, observe: Observer | None = None
) -> dict[str, Array]:
    """Outputs by name for ``inputs`` by name.

    Arrays have the host type of their element format (``DType.numpy``) and hold only values of
    it. ``observe(op, results)`` is called after each op, those inside regions included.
    Raises SpyrecError when inputs do not fit the module or an op fails on its data.
    """
    dims = _check_inputs(module, inputs)
    args = [inputs[v.name] for v in module.body.args]
    results = _run_block(module.body, args, {}, _Run(dims, observe))
    # Copies, so that no output shares memory with an input or another output.
    return {n: np.array(r) for n, r in zip(module.output_names, results, strict=True)}


def run_op(
    op: Op, arrays: Sequence[Array], *, dims: Mapping[str, int] | None = None
) -> tuple[Array, ...]:
    """One op on its operands' arrays, results rounded to their types: for constant folding.

    ``dims`` gives sizes of symbolic dimensions. Regions may read only what they define.
    Raises SpyrecError, naming the op, when it fails on its data.
    """
    return _run_op(op, arrays, {}, _Run(dims or {}))


def _run_block(
    block: Block, args: Sequence[Array], outer: Env, shared: _Run
) -> list[Array]:
    local: Env = dict(zip(block.args, args, strict=True))
    env: Env = ChainMap(local, outer)
    dead = _dead_after(block)
    for number, op in enumerate(block.ops):
        arrays = [_read(v, env, f"{op.name} (from {op.loc})") for v in op.operands]
        results = _run_op(op, arrays, env, shared)
        if shared.observe is not None:
            shared.observe(op, results)
        local.update(zip(op.results, results, strict=True))
        for value in dead[number]:
            local.pop(value, None)
    return [_read(v, env, "the results of a block") for v in block.results]


def _read(value: Value, env: Env, reader: str) -> Array:
    if value not in env:
        raise SpyrecError(f"{value} is read by {reader}, but nothing before defines it")
    return env[value]


def _dead_after(block: Block) -> list[list[Value]]:
    """For each op the values that nothing reads after it."""
    last: dict[Value, int] = {}
    for number, op in enumerate(block.ops):
        last.update(dict.fromkeys(op.results, number))
        last.update(dict.fromkeys(_reads(op), number))
    kept = set(block.results)
    dead: list[list[Value]] = [[] for _ in block.ops]
    for value, number in last.items():
        if value not in kept:
            dead[number].append(value)
    return dead


def _reads(op: Op) -> Iterator[Value]:
    yield from op.operands
    for region in op.regions:
        yield from region.results
        for inner in region.ops:
            yield from _reads(inner)


def _run_op(op: Op, arrays: Sequence[Array], outer: Env, shared: _Run) -> tuple[Array, ...]:
    types = [_bind(v, shared.dims, op) for v in op.results]
    try:
        with np.errstate(all="ignore"):
            match op.name:
                case "kernel" if op.attrs.get("tiled") is True:
                    results: Sequence[Array] = run_tiled(op, arrays, shared.observe)
                case "kernel":
                    results = _run_block(op.regions[0], arrays, outer, shared)
                case "if":
                    region = op.regions[0 if arrays[0] else 1]
                    results = _run_block(region, (), outer, shared)
                case "loop":
                    results = _run_loop(op.regions[0], arrays, outer, shared)
                case _:
                    results = evaluator(op)(arrays, types)
        return tuple(conform(a, t) for a, t in zip(results, types, strict=True))
    except SpyrecError:
        raise
    except Exception as error:
        named = ", ".join(map(repr, op.results))
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays) or "nothing"
        raise SpyrecError(
            f"{op.name} {named}: {error} (evaluated on {shapes}; from {op.loc})"
        ) from error


def _run_loop(body: Block, arrays: Sequence[Array], outer: Env, shared: _Run) -> list[Array]:
    trip, condition, *carried = arrays
    for iteration in range(int(trip)):
        if not condition:
            break
        number = np.array(iteration, np.int64)
        condition, *carried = _run_block(body, [number, condition, *carried], outer, shared)
    return carried


def _bind(value: Value, dims: Mapping[str, int], op: Op) -> TensorType:
    """The type of ``value`` with its symbolic dimensions replaced by their sizes."""
    type_ = value.type
    for d in type_.shape:
        if isinstance(d, Sym) and d.name not in dims:
            raise SpyrecError(
                f"{op.name} {value}: the size of dimension {d} follows from no input "
                f"(from {op.loc})"
            )
    shape = tuple(dims[d.name] if isinstance(d, Sym) else d for d in type_.shape)
    return TensorType(shape, type_.dtype)


def _check_inputs(module: Module, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Sizes of the symbolic dimensions; SpyrecError lists all that is wrong with the inputs."""
    wanted = {v.name: v.type for v in module.body.args}
    problems = [f"input {name} is missing" for name in wanted if name not in inputs]
    known = ", ".join(wanted) or "none"
    problems += [f"{n} is not an input; inputs: {known}" for n in inputs if n not in wanted]
    dims: dict[str, int] = {}
    for name, type_ in wanted.items():
        if name in inputs:
            problems += [f"input {name}: {p}" for p in _misfits(inputs[name], type_, dims)]
    if problems:
        raise SpyrecError(f"model {module.name} cannot run: " + "; ".join(problems))
    return dims


def _misfits(array: Array, type_: TensorType, dims: dict[str, int]) -> Iterator[str]:
    """What is wrong with an input array, in words; binds symbolic dimensions in ``dims``."""
    if array.dtype != type_.dtype.np_dtype:
        yield (
            f"expected an array of {type_.dtype.np_dtype} for {type_.dtype}, got {array.dtype}; "
            f"convert it with .astype"
        )
    elif type_.dtype.name in (*FORMATS, "i4"):  # the host type holds more values than these
        off = np.count_nonzero(~_same(array, round_to(array, type_.dtype)))
        if off:
            yield f"{off} elements are not values of {type_.dtype}; round them with round_to"
    if array.ndim != type_.rank:
        yield f"expected shape {show(type_.shape)}, got {show(array.shape)}"
        return
    for dim, size in zip(type_.shape, array.shape, strict=True):
        if isinstance(dim, int) and dim != size:
            yield f"expected shape {show(type_.shape)}, got {show(array.shape)}"
        if not isinstance(dim, Sym):
            continue
        if not dim.lo <= size <= dim.hi:
            yield f"size {size} is outside the range of dimension {dim}"
        elif dims.setdefault(dim.name, size) != size:
            yield f"dimension {dim.name} is {size} here and {dims[dim.name]} elsewhere"


def _same(a: Array, b: Array) -> Array:
    return np.asarray((a == b) | ((a != a) & (b != b)))
