"""Modules at several sizes, made right under padding and compared with the exact size in the
interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from small_models import module

from spyrec.ir import interp
from spyrec.ir.core import Module, Value
from spyrec.ir.rounding import round_to
from spyrec.passes.padding import Made, Padded, pad_safely, prepared
from spyrec.passes.padding_rules import RULES

Array = np.ndarray[Any, Any]
Make = Callable[..., Sequence[Value]]
"""Of a graph, the open size and the inputs, the outputs."""


def at(make: Make, size: int, *inputs: tuple[str, tuple[int, ...], str]) -> Module:
    """The module at a size; an extent of -1 stands for it."""
    shaped = [(n, tuple(size if d == -1 else d for d in s), k) for n, s, k in inputs]
    return prepared(module(lambda g, *args: make(g, size, *args), *shaped))


def padded(
    make: Make, bucket: int, *inputs: tuple[str, tuple[int, ...], str], least: int = 2
) -> Padded:
    sizes = dict.fromkeys((least, least + 1, (least + bucket) // 2, bucket - 1))
    probes = [({"n": s}, at(make, s, *inputs)) for s in sizes if s < bucket]
    return pad_safely(at(make, bucket, *inputs), {"n": bucket}, probes, RULES)


def run_padded(p: Padded, given: Mapping[str, Array], size: int) -> dict[str, Array]:
    """Outputs in the true range, of inputs of the true size."""
    made = {m.name: m for m in p.made}
    fed: dict[str, Array] = {}
    for v in p.module.body.args:
        shape, host = v.type.static_shape, v.type.dtype.np_dtype
        if v.name in made:
            fed[v.name] = filled(made[v.name], shape, size).astype(host)
            continue
        fed[v.name] = np.zeros(shape, host)
        fed[v.name][tuple(map(slice, given[v.name].shape))] = given[v.name]
    got = interp.run(p.module, fed)
    return {name: crop(array, p.outputs[name], size) for name, array in got.items()}


def filled(made: Made, shape: tuple[int, ...], size: int) -> Array:
    count, n = int(np.prod(shape)), size + made.add
    match made.kind:
        case "valid":
            flat: Array = np.arange(count) // made.inner % made.size < n
        case "size":
            flat = np.full(count, n)
        case "share":
            flat = np.full(count, 1 / n)
        case _:
            flat = np.arange(n, n + count)
    return flat.reshape(shape)


def crop(array: Array, axes: Any, size: int) -> Array:
    whole = [f.size for axis in axes for f in axis]
    cut = tuple(slice(0, f.true({"n": size})) for axis in axes for f in axis)
    real = [int(np.prod([f.true({"n": size}) for f in axis])) for axis in axes]
    return array.reshape(whole)[cut].reshape(real)


def random_inputs(m: Module, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    out = {}
    for v in m.body.args:
        kind = v.type.dtype
        values = rng.normal(size=v.type.static_shape)
        if kind.kind != "float":
            values = rng.integers(0, 2 if kind.kind == "bool" else 5, v.type.static_shape)
        out[v.name] = np.asarray(round_to(np.asarray(values), kind)).astype(kind.np_dtype)
    return out


def same_as_exact(
    make: Make, *inputs: tuple[str, tuple[int, ...], str], bucket: int = 8, least: int = 2
) -> Padded:
    """Checks every true size from ``least`` on against the module of that size."""
    p = padded(make, bucket, *inputs, least=least)
    for size in range(least, bucket + 1):
        exact = at(make, size, *inputs)
        given = random_inputs(exact, size)
        want = interp.run(exact, given)
        got = run_padded(p, given, size)
        for name, array in want.items():
            assert got[name].shape == array.shape
            np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-5, err_msg=name)
    return p
