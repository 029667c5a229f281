"""What an exported model may hold that the device cannot do: one sentence each, which names the
user's line. Needs torch to export; the same refusals without it are in test_torch_ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spyrec import api
from spyrec.frontend import import_torch
from spyrec.ir.errors import ImportError_, PassError, SpyrecError
from spyrec.ir.interp import run

torch = pytest.importorskip("torch", reason="torch is not installed")

X = torch.arange(24.0).reshape(4, 6) - 7


def program(forward: Callable[..., Any], *inputs: Any) -> Any:
    """The export of a module with this function as its forward: torch records lines of functions
    of that name only."""
    forward.__code__ = forward.__code__.replace(co_name="forward")
    model = type("Model", (torch.nn.Module,), {"forward": forward})()
    return torch.export.export(model, inputs or (X,), strict=False)


def cond(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))


def while_loop(self: Any, x: Any) -> Any:
    from torch._higher_order_ops import while_loop

    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x))[1]


def item(self: Any, x: Any) -> Any:
    return x * x.sum().item()


def nonzero(self: Any, x: Any) -> Any:
    return torch.nonzero(x)


def mask_index(self: Any, x: Any) -> Any:
    return x[x > 0]


def mask_write(self: Any, x: Any) -> Any:
    y = x.clone()
    y[y > 0] = torch.ones(3)
    return y


def unique(self: Any, x: Any) -> Any:
    return torch.unique(x)


def complex_(self: Any, x: Any) -> Any:
    return torch.view_as_real(torch.view_as_complex(x.reshape(12, 2)) * 2)


def float64(self: Any, x: Any) -> Any:
    return x.double() * 2


def sparse(self: Any, x: Any) -> Any:
    return x.to_sparse().to_dense()


def expanded(self: Any, x: Any) -> Any:
    y = x[:1].clone().expand(1, 6)
    y.diagonal().fill_(3)
    return y


def strided(self: Any, x: Any) -> Any:
    return torch.as_strided(x, (3, 3), (1, 2))


def random(self: Any, x: Any) -> Any:
    return x + torch.randn(4, 6)


RUN_TIME = "is only known at run time"
REFUSED = [
    (cond, "higher_order.cond", f"which of its branches runs {RUN_TIME}", 0),
    (while_loop, "higher_order.while_loop", f"how often it runs {RUN_TIME}", 2),
    (item, "aten.item", "a number that steers the model is computed at run time", 0),
    (nonzero, "aten.nonzero", f"the size of its result {RUN_TIME}", 0),
    (mask_index, "aten.index", f"the size of its result {RUN_TIME}", 0),
    (mask_write, "aten.index_put_", f"how many elements its mask keeps {RUN_TIME}", 1),
    (unique, "aten._unique2", f"the size of its result {RUN_TIME}", 0),
    (complex_, "aten.view_as_complex", "it works on complex64 tensors", 0),
    (float64, "aten.to", "it computes in float64, which the device has not; use float32", 0),
    (sparse, "aten.to_sparse", "it makes a sparse tensor", 0),
    (expanded, "aten.fill_",
     "it writes into a view made by aten.diagonal, which cannot be undone", 1),
    (strided, "aten.as_strided", "it picks elements by where they lie in memory", 0),
    (random, "aten.randn", "it draws random numbers; draw them outside and hand them in", 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("forward", "packet", "reason", "line"), REFUSED, ids=[r[0].__name__ for r in REFUSED]
)
def test_one_sentence_that_names_the_line(
    forward: Callable[..., Any], packet: str, reason: str, line: int
) -> None:
    with pytest.raises(ImportError_) as caught:
        import_torch(program(forward))
    [said] = caught.value.problems
    at = forward.__code__.co_firstlineno + 1 + line
    assert said.startswith(f"Operator {packet} cannot be imported: {reason} (1 call: ")
    assert said.endswith(f" (test_torch_errors.py:{at})).")


BREAKING = (item, nonzero, mask_index, unique, sparse)
"""What torch.compile keeps out of its graphs: it runs in eager."""


@pytest.mark.parametrize(
    ("forward", "packet", "reason", "line"), REFUSED, ids=[r[0].__name__ for r in REFUSED]
)
def test_the_same_sentence_through_torch_compile(
    forward: Callable[..., Any], packet: str, reason: str, line: int
) -> None:
    torch._dynamo.reset()
    model = type("Model", (torch.nn.Module,), {"forward": forward})()
    compiled = torch.compile(model, backend="spyrec")
    with torch.no_grad():
        if forward in BREAKING:
            torch.testing.assert_close(compiled(X), model(X), rtol=0.01, atol=0.01)
            return
        with pytest.raises(ImportError_) as caught:
            compiled(X)
    [said] = caught.value.problems
    at = forward.__code__.co_firstlineno + 1 + line
    assert said.startswith(f"Operator {packet} cannot be imported: {reason} (1 call: ")
    assert said.endswith(f" (test_torch_errors.py:{at})).")


INPUTS = {
    "float64": (X.double(), "has element type float64, which cannot be imported; use float32"),
    "complex64": (X.to(torch.complex64), "has element type complex64, which cannot be imported"),
    "sparse": (X.to_sparse(), "is a sparse tensor; only dense tensors can be imported"),
    "csr": (X.to_sparse_csr(), "is a sparse tensor; only dense tensors can be imported"),
}


@pytest.mark.parametrize("door", ["export", "compile"])
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_that_cannot_be(kind: str, door: str) -> None:
    """torch.compile keeps sparse tensors out of its graphs."""

    def forward(self: Any, x: Any) -> Any:
        return x * 2

    torch._dynamo.reset()
    x, what = INPUTS[kind]
    model = type("Model", (torch.nn.Module,), {"forward": forward})()
    if door == "compile" and x.layout is not torch.strided:
        got = torch.compile(model, backend="spyrec")(x)
        torch.testing.assert_close(got.to_dense(), 2 * x.to_dense())
        return
    with torch.no_grad(), pytest.raises(ImportError_) as caught:
        if door == "export":
            import_torch(program(forward, x))
        else:
            torch.compile(model, backend="spyrec")(x)
    line = forward.__code__.co_firstlineno + 1
    assert caught.value.problems == [
        f"Input 'x' {what} (first read by mul (test_torch_errors.py:{line}))."
    ]


def test_whole_numbers_that_the_device_does_not_hold() -> None:
    def forward(self: Any, x: Any) -> Any:
        return torch.nn.functional.pad(x, (1, 1), value=2**40)

    with pytest.raises(PassError, match=r"padding of %pad \(i64\) holds 1099511627776.0, which"):
        api.compile(program(forward, torch.arange(4)))
    small = api.compile(program(lambda self, x: x + 1, torch.arange(4)))
    with pytest.raises(SpyrecError, match="input 'x' holds whole numbers from 0 to 1099511627776"):
        api.simulate(small, {"x": np.array([0, 1, 2, 2**40])})


def test_a_condition_that_is_known_is_resolved() -> None:
    """On a size that --bind gives: the branch taken becomes part of the graph."""

    def forward(self: Any, x: Any) -> Any:
        return torch.cond(x.shape[0] > 4, lambda v: v + 1, lambda v: v - 1, (x,))

    model = type("Model", (torch.nn.Module,), {"forward": forward})()
    exported = torch.export.export(
        model, (X,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=9)},), strict=False
    )
    for n, step in ((3, -1), (7, 1)):
        x = np.ones((n, 6), np.float32)
        module = import_torch(exported, {"x:0": n})
        np.testing.assert_array_equal(run(module, {"x": x})["output"], x + step)


def test_float64_that_is_known_is_computed_on_import() -> None:
    """Tables of angles are often made in float64 and cast."""

    def forward(self: Any, x: Any) -> Any:
        angles = 10000.0 ** -(torch.arange(0, 6, 2, dtype=torch.float64) / 6)
        return x[:, :3] * angles.float() * torch.tensor(0.5, dtype=torch.float64)

    module = import_torch(program(forward))
    want = X[:, :3].numpy() * 10000.0 ** -(np.arange(0, 6, 2) / 6) / 2
    np.testing.assert_allclose(run(module, {"x": X.numpy()})["output"], want, rtol=1e-6)


def test_lines_survive_to_the_report() -> None:
    def forward(self: Any, x: Any) -> Any:
        return torch.relu(x @ x.T) + 1

    compiled = api.compile(program(forward))
    assert f"(test_torch_errors.py:{forward.__code__.co_firstlineno + 1})" in str(compiled.module)
