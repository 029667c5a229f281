"""Reading .pt2 files without torch: what the format holds, and symbolic sizes."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pt2_files import Draft, Expr, Held, Kind, leaf, symbol, tree

from spyrec.frontend import import_torch
from spyrec.frontend.torch_graph import output_names
from spyrec.ir.errors import ImportError_
from spyrec.ir.interp import run
from spyrec.ir.verifier import verify

Array = np.ndarray[Any, Any]
F32 = np.float32


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


W, B, X = normal(5, 4), normal(5), normal(2, 4)


def linear() -> Draft:
    """A linear layer, its weights a parameter and a buffer."""
    d = Draft()
    w, b = d.weight("fc.weight", W), d.weight("fc.bias", B, "buffer")
    x = d.input("x", "float32", 2, 4)
    trace = 'File "/home/a/model.py", line 7, in forward\n    return self.fc(x)'
    return d.returns(d.call(
        "aten.linear.default", "float32", (2, 5), input=x, weight=w, bias=b, trace=trace
    ))  # fmt: skip


def ran(d: Draft, path: Path, inputs: Mapping[str, Array], **options: Any) -> dict[str, Array]:
    module = import_torch(d.save(path / "m.pt2"), **options)
    verify(module)
    return run(module, inputs)


def problems(source: Any, **options: Any) -> list[str]:
    with pytest.raises(ImportError_) as caught:
        import_torch(source, **options)
    return caught.value.problems


# What the format holds --------------------------------------------------------------------------


def test_weights_and_the_users_line(tmp_path: Path) -> None:
    path = linear().save(tmp_path / "net.pt2")
    module = import_torch(path)
    assert module.name == "net"
    assert [str(op.loc) for op in module.body.ops if op.name == "matmul"] == ["t3 (model.py:7)"]
    np.testing.assert_allclose(run(module, {"x": X})["output"], X @ W.T + B, rtol=1e-5)


def test_tied_weights_share_a_storage(tmp_path: Path) -> None:
    d = Draft()
    table = d.weight("embed.weight", W)
    head = d.stored("head.weight", Held("float32", (5, 4), member="weight_0"))
    ids = d.input("ids", "int64", 3)
    h = d.call("aten.embedding.default", "float32", (3, 4), weight=table, indices=ids)
    d.returns(d.call("aten.linear.default", "float32", (3, 5), input=h, weight=head))
    got = ran(d, tmp_path, {"ids": np.array([4, 0, 4])})["output"]
    np.testing.assert_allclose(got, W[[4, 0, 4]] @ W.T, rtol=1e-5)


@pytest.mark.parametrize(
    ("held", "want"),
    [
        (Held("float32", (4, 3), (1, 4)), lambda a: a.reshape(3, 4).T),
        (Held("float32", (2, 3), (4, 1), 5), lambda a: a.reshape(3, 4)[1:, 1:]),
        (Held("float32", (2, 6), (0, 2)), lambda a: np.stack([a[::2]] * 2)),
        (Held("float32", (), (), 11), lambda a: a[11]),
        (Held("float32", (0, 7), (7, 1), 12), lambda a: np.zeros((0, 7), F32)),
        (Held("float32", (1, 3), (10**15, 1), 2), lambda a: a[None, 2:5]),
    ],
)  # fmt: skip
def test_strides_and_offsets(
    held: Held, want: Callable[[Array], Array], tmp_path: Path
) -> None:
    d, storage = Draft(), np.arange(12, dtype=F32)
    d.storages["s"] = storage.tobytes()
    w = d.stored("w", Held(held.element, held.sizes, held.strides, held.offset, "s"))
    x = d.input("x", "float32", *held.sizes)
    d.returns(d.call("aten.add.Tensor", "float32", held.sizes, self=x, other=w))
    got = ran(d, tmp_path, {"x": np.zeros(held.sizes, F32)})["output"]
    np.testing.assert_array_equal(got, want(storage))


STORED: list[tuple[str, bytes, list[float]]] = [
    ("bfloat16", np.array([0x3F80, 0xC020, 0x7F80], "<u2").tobytes(), [1, -2.5, math.inf]),
    ("float16", np.array([1, -2.5, 3], "<f2").tobytes(), [1, -2.5, 3]),
    ("float8_e4m3fn", bytes([0x38, 0xB8, 0x40]), [1, -1, 2]),
    ("bool", bytes([0, 1, 255]), [0, 1, 1]),
    ("uint8", bytes([0, 1, 255]), [0, 1, 255]),
    ("int8", bytes([0, 1, 255]), [0, 1, -1]),
    ("int16", np.array([0, 1, -9], "<i2").tobytes(), [0, 1, -9]),
    ("int64", np.array([0, 1, -9], "<i8").tobytes(), [0, 1, -9]),
    ("float64", np.array([0.5, 1, -9], "<f8").tobytes(), [0.5, 1, -9]),
]


@pytest.mark.parametrize(("element", "data", "want"), STORED, ids=[s[0] for s in STORED])
def test_element_types(element: str, data: bytes, want: list[float], tmp_path: Path) -> None:
    d = Draft()
    d.storages["s"] = data
    w = d.stored("w", Held(element, (3,), member="s"), "buffer")
    x = d.input("x", "float32", 3)
    cast = d.call("aten.to.dtype", "float32", (3,), self=w, dtype=Kind("float32"))
    d.returns(d.call("aten.mul.Tensor", "float32", (3,), self=x, other=cast))
    np.testing.assert_array_equal(ran(d, tmp_path, {"x": np.ones(3, F32)})["output"], want)


def test_constants_of_every_kind(tmp_path: Path) -> None:
    """A lifted tensor, an argument that was no tensor, and numbers JSON has no spelling for."""
    d = Draft()
    k = d.weight("k", np.array([1, 2], F32), "tensor_constant")
    x = d.input("x", "float32", 2)
    d.input_specs.append({"constant_input": {"name": "flag", "value": {"as_bool": True}}})
    d.input_specs.append({"user_input": {"arg": {"as_none": True}}})
    y = d.call("aten.mul.Tensor", "float32", (2,), self=x, other=k)
    d.returns(d.call("aten.clamp.default", "float32", (2,), self=y, min=-math.inf, max=1.5))
    got = ran(d, tmp_path, {"x": np.array([1, 7], F32)})["output"]
    np.testing.assert_array_equal(got, [1, 1.5])


def with_nested(target: str = "higher_order.wrap_with_set_grad_enabled") -> Draft:
    """x * 2 + (x + y) * 3, the second term in a graph of its own, in which x is y and y is x, and
    a name stands for something else than outside."""
    inner = Draft()
    a, b = inner.input("y", "float32", 2), inner.input("x", "float32", 2)
    both = inner.call("aten.sub.Tensor", "float32", (2,), self=b, other=a, out="twice")
    inner.returns(inner.call("aten.mul.Tensor", "float32", (2,), self=both, other=3, out="inside"))
    d = Draft()
    x, y = d.input("x", "float32", 2), d.input("y", "float32", 2)
    twice = d.call("aten.mul.Tensor", "float32", (2,), self=x, other=2, out="twice")
    term = d.call(target, "float32", (2,), _0=False, _1=inner, _2=x, _3=y, out="term")
    total = d.call("aten.add.Tensor", "float32", (2,), self=twice, other=term)
    return d.returns(d.call("aten.sub.Tensor", "float32", (2,), self=total, other=x))


def test_a_nested_graph_has_names_of_its_own(tmp_path: Path) -> None:
    x, y = np.array([1, 2], F32), np.array([10, 30], F32)
    got = ran(with_nested(), tmp_path, {"x": x, "y": y})["output"]
    np.testing.assert_array_equal(got, x * 2 + (y - x) * 3 - x)


def test_output_names_follow_the_returned_structure(tmp_path: Path) -> None:
    d = Draft()
    x = d.input("x", "float32", 2)
    made = [d.call("aten.mul.Tensor", "float32", (2,), self=x, other=i) for i in range(4)]
    spec = tree("dict", ["logits", "past"], leaf(),
                tree("tuple", None, tree("list", None, leaf(), leaf()), leaf()))  # fmt: skip
    got = ran(d.returns(*made, spec=spec), tmp_path, {"x": np.ones(2, F32)})
    assert {name: int(a[0]) for name, a in got.items()} == {
        "logits": 0, "past.0.0": 1, "past.0.1": 2, "past.1": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "count", "names"),
    [
        (leaf(), 1, ("output",)),
        (tree("tuple", None, leaf(), leaf()), 2, ("output_0", "output_1")),
        (tree("tuple", None, leaf()), 2, ()),  # says another number
        (tree("dict", ["a"], leaf(), leaf()), 2, ("output_0", "output_1")),
        (tree("dict", ["a", "a"], leaf(), leaf()), 2, ()),
        (tree("dict", [""], leaf()), 1, ("output",)),
        (tree("dict", [{}, 3], leaf(), leaf()), 2, ("{}", "output_3")),
        ({"type": 3}, 1, ()), ([], 1, ()), (None, 1, ()), ({"children_spec": 3, "type": 1}, 1, ()),
        ({"type": "x", "context": "{", "children_spec": [leaf()]}, 1, ()),
    ],
)  # fmt: skip
def test_output_names(spec: Any, count: int, names: tuple[str, ...]) -> None:
    assert output_names(spec, count) == names


def test_a_returned_structure_nested_without_end_is_left_aside() -> None:
    deep: Any = leaf()
    for _ in range(5000):
        deep = {"type": "builtins.tuple", "context": None, "children_spec": [deep]}
    assert output_names(deep, 1) == ()


def test_an_input_or_a_number_as_an_output(tmp_path: Path) -> None:
    d = Draft()
    x = d.input("x", "float32", 3, 2)
    n = d.number("aten.sym_size.int", "n", 3, self=x, dim=0)
    got = ran(d.returns(x, n), tmp_path, {"x": np.ones((3, 2), F32)})
    np.testing.assert_array_equal(got["output_0"], np.ones((3, 2)))
    assert got["output_1"] == 3


# Symbolic sizes ---------------------------------------------------------------------------------

N = symbol("s77")
TWICE = Expr("Mul(Integer(2), Symbol('s77', positive=True, integer=True))")


def symbolic() -> Draft:
    """[n, 4] and [2 n] -> [2 n, 2]: a reshape and a product."""
    d = Draft(ranges={"s77": {"min_val": 2, "max_val": 8}})
    x, v = d.input("x", "float32", N, 4), d.input("v", "float32", TWICE)
    n = d.number("aten.sym_size.int", "n", N, self=x, dim=0)
    m = d.number("_operator.mul", "m", TWICE, a=n, b=2)
    flat = d.call("aten.view.default", "float32", (TWICE, 2), self=x, size=(m, 2))
    tall = d.call("aten.unsqueeze.default", "float32", (TWICE, 1), self=v, dim=1)
    return d.returns(d.call("aten.mul.Tensor", "float32", (TWICE, 2), self=flat, other=tall))


@pytest.mark.parametrize("key", ["s77", "x:0"])
def test_a_symbol_is_bound(key: str, tmp_path: Path) -> None:
    x, v = normal(3, 4), normal(6)
    got = ran(symbolic(), tmp_path, {"x": x, "v": v}, bind={key: 3})["output"]
    np.testing.assert_array_equal(got, x.reshape(6, 2) * v[:, None])


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ({}, ["Input 'x' leaves the size of axis 0 ('s77') open; add --bind x:0=2, or the size you "
              "need."]),
        ({"s77": 9}, ["--bind s77=9: the model takes 2 to 8 for this dimension."]),
        ({"x:0": 1}, ["--bind x:0=1: the model takes 2 to 8 for this dimension."]),
        ({"s77": 3, "x:0": 4}, ["--bind x:0=4 contradicts --bind s77=3: both are one dimension."]),
        ({"s77": 3, "x:1": 5}, ["--bind x:1=5: the model fixes this dimension at 4."]),
        ({"s77": 3, "batch": 5}, ["--bind batch=5: no input has a dimension called 'batch'; those "
                                  "left open are s77."]),
    ],
)  # fmt: skip
def test_bindings_that_do_not_fit(bind: dict[str, int], said: list[str], tmp_path: Path) -> None:
    assert problems(symbolic().save(tmp_path / "m.pt2"), bind=bind) == said


def test_sizes_without_meaning(tmp_path: Path) -> None:
    d = Draft()
    x = d.input("x", "float32", Expr("__import__('os').getcwd()"))
    d.returns(d.call("aten.relu.default", "float32", (3,), self=x))
    [said] = problems(d.save(tmp_path / "m.pt2"))
    assert said.startswith("Input 'x' has a size that is not understood: ")


# Against torch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [linear, symbolic], ids=["linear", "symbolic"])
def test_torch_reads_what_these_tests_write(make: Callable[[], Draft], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    inputs = {"x": normal(3, 4), "v": normal(6)} if make is symbolic else {"x": X}
    example = io.BytesIO()
    torch.save((tuple(map(torch.from_numpy, inputs.values())), {}), example)
    with zipfile.ZipFile(make().save(tmp_path / "m.pt2"), "a") as archive:
        archive.writestr("m/data/sample_inputs/model.pt", example.getvalue())
    program = torch.export.load(str(tmp_path / "m.pt2"))
    module = import_torch(tmp_path / "m.pt2", {"s77": 3} if make is symbolic else {})
    want = program.module()(*map(torch.from_numpy, inputs.values())).detach().numpy()
    np.testing.assert_allclose(run(module, inputs)["output"], want, rtol=1e-5)


def test_a_file_that_torch_wrote(tmp_path: Path) -> None:
    """Tied, strided, bfloat16 and lifted tensors, a block without gradients, a dict as result; from
    the file and from the program in memory the same module."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("narrow_", torch.randn(4).bfloat16())
            self.register_buffer("turned", torch.arange(12.0).reshape(3, 4).t()[1:, :])

        def forward(self, ids: Any) -> Any:
            with torch.no_grad():
                h = self.embed(ids) * self.narrow_.float() + torch.tensor([1.0, 2.0, 3.0, 4.0])
            return {"logits": self.head(h), "past": ((h @ self.turned.new_ones(4, 1), h * 2),),
                    "shifted": self.turned + h.sum()}  # fmt: skip

    net, ids = Net().eval(), torch.tensor([[1, 9, 3], [0, 2, 2]])
    program = torch.export.export(
        net, (ids,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=8)},)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    [key] = import_names(tmp_path / "net.pt2")
    from_file = import_torch(tmp_path / "net.pt2", {key: 2})
    from_memory = import_torch(program, {key: 2})
    assert str(from_file.body) == str(from_memory.body)
    want = net(ids)
    got = run(from_file, {"ids": ids.numpy()})
    assert list(got) == ["logits", "past.0.0", "past.0.1", "shifted"]
    flat = [want["logits"], *want["past"][0], want["shifted"]]
    for a, b in zip(flat, got.values(), strict=True):
        np.testing.assert_allclose(b, a.detach().numpy(), rtol=1e-5)


def import_names(path: Path) -> list[str]:
    """The symbols that a file leaves open."""
    return [said.split("--bind ")[1].split("=")[0] for said in problems(path)]
