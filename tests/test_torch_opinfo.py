"""The samples of torch's own operator tests: exported, imported, interpreted and, one an operator,
compiled and simulated, against eager. Needs torch; what does not pass is in torch_opinfo_table."""

from __future__ import annotations

import random
import re
import sys
import types
import unittest
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from small_models import cosine
from torch_opinfo_table import DEVICE, REFUSED, TORCH, UNDEFINED

from spyrec import api
from spyrec.frontend import import_torch
from spyrec.ir.core import Module
from spyrec.ir.errors import ImportError_, SpyrecError
from spyrec.ir.interp import run
from spyrec.ir.verifier import verify

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SAMPLES = 4  # of an operator and element type, evenly chosen
MAX_ELEMENTS = 200_000
KINDS, PASSED = 31, 300  # the least that must pass in float32


@dataclass
class Sample:
    op: str
    dtype: str
    module: Module | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    want: list[Any] = field(default_factory=list)
    problem: str = ""  # "", torch's own, or why it is refused
    kind: str = "passed"  # or torch, refused, wrong, crashed


def operators() -> list[Any]:
    """torch's table. Its test module wants the package expecttest, of which it needs a name."""
    try:
        import expecttest  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def samples_of(op: Any, dtype: Any) -> list[Any]:
    random.seed(0), torch.manual_seed(0), np.random.seed(0)
    found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    step = max(1.0, len(found) / SAMPLES)
    return [found[int(i * step)] for i in range(min(len(found), SAMPLES))]


def tried(op: Any, name: str, dtype: Any, sample: Any) -> Sample | None:
    """One sample all the way to the interpreter; None when it is too large."""
    from torch.utils._pytree import tree_flatten, tree_unflatten

    flat, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    tensors = [flat[i].detach() for i in places]
    if sum(t.numel() for t in tensors) > MAX_ELEMENTS:
        return None

    class One(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, *xs: Any) -> Any:
            leaves = list(flat)
            for i, x in zip(places, xs, strict=True):
                leaves[i] = x
            args, kwargs = tree_unflatten(leaves, spec)
            made = op.op(*args, **kwargs)
            return tuple(made) if isinstance(made, tuple | list) else made

    done = Sample(name, str(dtype).removeprefix("torch."))
    try:
        want = tree_flatten(One()(*(t.clone() for t in tensors)))[0]
        program = torch.export.export(One(), tuple(t.clone() for t in tensors), strict=False)
    except Exception as error:
        done.kind, done.problem = "torch", f"{type(error).__name__}: {error}"
        return done
    try:
        done.module = import_torch(program)
        verify(done.module)
    except ImportError_ as error:
        done.kind, done.problem = "refused", str(error)
        return done
    except Exception as error:
        done.kind, done.problem = "crashed", f"{type(error).__name__}: {error}"
        return done
    named = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"
             and hasattr(s.arg, "name")]  # fmt: skip
    given = dict(zip(named, map(as_numpy, tensors), strict=False))
    done.inputs = {a.name: given[a.name] for a in done.module.body.args if a.name in given}
    done.want = [as_numpy(w) for w in want if isinstance(w, torch.Tensor)]
    try:
        compare(done.want, list(run(done.module, done.inputs).values()))
    except AssertionError as error:
        done.kind, done.problem = "wrong", " ".join(str(error).split())
    except Exception as error:
        done.kind, done.problem = "crashed", f"{type(error).__name__}: {error}"
    return done


def as_numpy(tensor: Any) -> Any:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def compare(want: list[Any], have: list[Any]) -> None:
    for a, b in zip(want, have, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4)


def all_samples() -> Iterator[Sample]:
    for op in operators():
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        for dtype in (torch.float32, torch.int64, torch.bool):
            if dtype not in op.dtypes:
                continue
            for sample in samples_of(op, dtype):
                if (done := tried(op, name, dtype, sample)) is not None:
                    yield done


@pytest.fixture(scope="module")
def results() -> list[Sample]:
    torch.set_num_threads(1)
    return list(all_samples())


def reason_of(problem: str) -> str:
    """The first reason of the table that the sentences name, or the first sentence."""
    found = (r for r in REFUSED if re.search(r, problem))
    return next(found, problem.splitlines()[0])


def test_no_sample_is_wrong_or_crashes(results: list[Sample]) -> None:
    undefined = set(UNDEFINED.split())
    bad = [
        s for s in results
        if s.kind in ("wrong", "crashed") and not {s.op, f"{s.op}/{s.dtype}"} & undefined
    ]
    assert [(s.op, s.dtype, s.kind, s.problem[:200]) for s in bad] == []


def test_what_is_refused_is_listed_with_its_reason(results: list[Sample]) -> None:
    found = defaultdict(set)
    for s in results:
        if s.kind == "refused":
            found[reason_of(s.problem)].add(s.op)
    listed = {reason: set(names.split()) for reason, names in REFUSED.items()}
    assert not [s.problem for s in results if "has not the arguments it should" in s.problem]
    if torch.__version__.startswith(TORCH):
        assert dict(found) == listed


def test_enough_samples_pass(results: list[Sample]) -> None:
    passed = [s for s in results if s.kind == "passed" and s.dtype == "float32"]
    print(f"{len({s.op for s in passed})} operators, {len(passed)} samples in float32")
    assert len({s.op for s in passed}) >= KINDS
    assert len(passed) >= PASSED


def test_one_sample_of_each_operator_on_the_device(results: list[Sample]) -> None:
    """Compiled for fp32 and simulated: cosine against eager."""
    first: dict[str, Sample] = {}
    for s in results:
        fits = s.inputs and all(a.size for a in (*s.inputs.values(), *s.want)) and s.want
        if s.kind == "passed" and s.dtype == "float32" and fits and moderate(s):
            first.setdefault(s.op, s)
    told, passed = {}, 0
    for name, s in first.items():
        try:
            program = api.compile(s.module, numerics="fp32")
            got = api.simulate(program, {p.name: s.inputs[p.name] for p in program.inputs})
        except SpyrecError as error:
            told[name] = str(error)
            continue
        worst = min(
            cosine(a, b) for a, b in zip(s.want, got.outputs.values(), strict=True)
        )
        if worst < 0.9999:
            told[name] = f"cosine {worst}"
        else:
            passed += 1
    print(f"{passed} operators of {len(first)} on the device")
    assert {n: t for n, t in told.items() if n not in DEVICE.split()} == {}
    if torch.__version__.startswith(TORCH):
        assert set(told) == set(DEVICE.split())
    assert passed >= PASSED


def moderate(s: Sample) -> bool:
    """Finite everywhere."""
    return all(np.isfinite(a).all() for a in (*s.inputs.values(), *s.want))
