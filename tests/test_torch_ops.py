"""One-call programs: the interpreter on the imported module against numpy, with operands that are
known on import and with operands that come at run time; and against torch where there is torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pt2_files import Draft, Kind
from torch_cases import BINARY, UNARY, Case, Fixed, case, floats, ints, normal
from torch_cases_composed import CASES as COMPOSED
from torch_cases_experts import CASES as EXPERTS
from torch_cases_shape import CASES as OTHERS

from spyrec import cli
from spyrec.frontend.torch_graph import read_graph
from spyrec.frontend.torch_import import import_exported
from spyrec.frontend.torch_ops import CONVERTERS, REFUSED
from spyrec.frontend.torch_site import DTYPE_OF
from spyrec.ir.core import Module
from spyrec.ir.errors import ImportError_
from spyrec.ir.interp import run
from spyrec.ir.types import DTYPES
from spyrec.ir.verifier import verify

CASES = [*UNARY, *BINARY, *OTHERS, *COMPOSED, *EXPERTS]


def imported(c: Case, known: bool) -> tuple[Module, dict[str, Any]]:
    """A program of the one call, and its inputs; with ``known`` all tensors are constants."""
    d, inputs, weights = Draft(), dict[str, Any](), dict[str, Any]()

    def made(value: Any) -> Any:
        tensors = (np.ndarray, Fixed)
        if isinstance(value, list | tuple) and any(isinstance(v, tensors) for v in value):
            return tuple(None if v is None else made(v) for v in value)
        fixed = known or isinstance(value, Fixed)
        array = value.array if isinstance(value, Fixed) else value
        if not isinstance(array, np.ndarray | np.generic):
            return value
        name = f"x{len(inputs) + len(weights)}"
        element = str(array.dtype)
        if not fixed:
            inputs[name] = np.asarray(array)
            return d.input(name, element, *array.shape)
        weights[name] = lambda: (np.asarray(array), DTYPES[DTYPE_OF[element]])
        return d.weight(name, array)

    args = {name: made(value) for name, value in c.args.items()}
    results = [(str(r.dtype), r.shape, f"y{i}") for i, r in enumerate(c.results)]
    trace = 'File "model.py", line 3, in forward\n    pass'
    outs = d.calls(c.operator, *results, listed=c.listed, trace=trace, **args)
    graph = read_graph(d.returns(*outs).data(), "the program")
    return import_exported(graph, weights, "one"), inputs


def agrees(c: Case, results: Any) -> None:
    for want, have in zip(c.results, results, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, rtol=c.tolerance, atol=c.tolerance)
        else:
            np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("c", CASES, ids=str)
def test_one_call(c: Case) -> None:
    module, inputs = imported(c, known=False)
    verify(module)
    assert all(str(op.loc) for op in module.body.ops)
    agrees(c, run(module, inputs).values())


@pytest.mark.parametrize("c", CASES, ids=str)
def test_one_call_with_known_operands_is_computed_on_import(c: Case) -> None:
    module, inputs = imported(c, known=True)
    verify(module)
    assert not inputs
    assert {op.name for op in module.body.ops} == {"constant"}
    agrees(c, run(module, {}).values())


ELSEWHERE = {
    "float", "half", "item", "_local_scalar_dense", "native_dropout", "_tensor_constant", "empty",
    "empty_like", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided",
}  # fmt: skip
"""Not among torch's operators, without a tensor as result, or of any content."""


def test_the_list_of_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ops", "--torch"]) == 0
    shown = capsys.readouterr().out
    assert all(f"`{name.removeprefix('aten.')}`" in shown for name in CONVERTERS)
    assert "| refused: it draws random numbers; draw them outside and hand them in | `bern" in shown


def test_every_conversion_has_a_case() -> None:
    names = {name.removeprefix("aten.") for name in CONVERTERS}
    refused = {name.removeprefix("aten.") for name in REFUSED}
    assert names - {c.packet.removeprefix("aten.") for c in CASES} - refused == ELSEWHERE


@pytest.mark.parametrize("c", CASES, ids=str)
def test_torch_agrees_with_the_expectation(c: Case) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def given(value: Any) -> Any:
        match value:
            case Fixed():
                return given(value.array)
            case Kind():
                return getattr(torch, value)
            case np.ndarray() | np.generic():
                return torch.from_numpy(np.asarray(value).copy())
            case list() | tuple():
                return [given(v) for v in value]
        return value

    space, name, *rest = c.operator.split(".")
    if space == "transformers":
        pytest.importorskip("transformers.integrations.moe", reason="transformers is not installed")
    overload = rest[0] if rest else ""
    packet = getattr(getattr(torch.ops, space), name, None)
    if packet is None or (overload and overload not in packet.overloads()):
        pytest.fail(f"torch has no {c.target}")
    call = getattr(packet, overload or "default", packet)
    found = call(**{k: given(v) for k, v in c.args.items()})
    results = found if isinstance(found, tuple | list) else [found]
    agrees(c, [r.numpy() for r in results[: len(c.results)]])


# Forms that are refused --------------------------------------------------------------------------

RUN_TIME = "is only known at run time"
UNSUPPORTED = [
    (case("bitwise_and.Tensor", ints(1), self=ints(3), other=ints(5)),
     "it works on the bits of i64 numbers"),
    (case("dropout", floats(1), input=floats(1), p=0.5, train=True),
     "it is in training mode; call model.eval() before the export"),
    (case("batch_norm", normal(2, 3), input=normal(2, 3), weight=None, bias=None, running_mean=None,
          running_var=None, training=True, momentum=0.1, eps=1e-5, cudnn_enabled=False),
     "it is in training mode; call model.eval() before the export"),
    (case("scaled_dot_product_attention", normal(2, 3, 4), query=normal(2, 3, 4),
          key=normal(2, 3, 4), value=normal(2, 3, 4), dropout_p=0.1),
     "it drops elements at random; call model.eval() before the export"),
    (case("scaled_dot_product_attention", normal(1, 3, 2, 4), query=normal(1, 3, 2, 4),
          key=normal(1, 2, 2, 4), value=normal(1, 2, 2, 4)), "its numbers of heads are [3, 2, 2]"),
    (case("adaptive_avg_pool1d", normal(1, 2), self=normal(1, 3), output_size=[2]),
     "its windows from [3] to [2] are uneven"),
    (case("avg_pool1d", normal(1, 1), self=normal(1, 3), kernel_size=[3], divisor_override=2),
     "its divisor_override is set"),
    (case("elu", floats(1), self=floats(1), input_scale=2), "its input_scale is set"),
    (case("linalg_vector_norm", floats(1), self=normal(1, 3), ord=3), "it takes the 3.0-norm"),
    (case("index.Tensor", floats(1), self=floats(1, 2), indices=[np.array([True, False])]),
     f"how many elements its mask keeps {RUN_TIME}"),
    (case("masked_select", floats(1), self=floats(1, 2), mask=np.array([True, False])),
     f"how many elements it keeps {RUN_TIME}"),
    (case("rand", floats(1), size=[1]),
     "it draws random numbers; draw them outside and hand them in"),
    (case("scatter_reduce.two", floats(1), self=floats(1), dim=0, index=ints(0), src=floats(2),
          reduce="mean"), "it combines what it writes by 'mean'"),
    (case("scatter_reduce.two", floats(1), self=floats(1), dim=0, index=ints(0), src=floats(2),
          reduce="sum", include_self=False),
     "it combines what it writes by 'sum' without what was there"),
    (case("view.dtype", ints(1).astype(np.int32), self=floats(1), dtype=Kind("int32")),
     "it takes the bits of f32 numbers for i32"),
    (case("repeat_interleave.self_Tensor", floats(1, 1), self=floats(1), repeats=ints(2)),
     "how often it repeats each element is a tensor"),
    (case("pad", normal(1, 3), self=normal(1, 2), pad=[0, 1], mode="odd"), "its mode is odd"),
    (case("conv1d.padding", normal(1, 1, 3), input=normal(1, 1, 3), weight=normal(1, 1, 1),
          padding="same", stride=[2]), "its padding is 'same' with strides [2]"),
    (case("var", floats(1)[0], self=floats(1)), "it takes the variance of 1 elements"),
    (case("softmax.int", normal(2, 3), self=normal(2, 3), dim=5),
     "its axis 5 is outside a tensor of rank 2"),
    (case("narrow.Tensor", floats(1), self=floats(1, 2), dim=0, start=ints(0)[0], length=1),
     "its argument 'start' is computed at run time"),
    (case("item", floats(1), self=floats(1)),
     "a number that steers the model is computed at run time"),
    (case("full", normal(2, 2), size=[1], fill_value="x"),
     "its argument 'fill_value' is no tensor"),
    (case("fft_fft", floats(1), self=floats(1)), "spyrec has no conversion for it"),
]  # fmt: skip


@pytest.mark.parametrize(("c", "said"), UNSUPPORTED, ids=lambda x: x if isinstance(x, str) else "")
def test_a_form_that_is_refused(c: Case, said: str) -> None:
    with pytest.raises(ImportError_) as caught:
        imported(c, known=False)
    assert caught.value.problems == [
        f"Operator {c.packet} cannot be imported: {said} (1 call: y0 (model.py:3))."
    ]


def test_a_result_that_serves_only_training() -> None:
    """The statistics of a normalisation: refused when something asks for them."""
    c = case("native_layer_norm", (normal(2, 3), normal(2, 1)), input=normal(2, 3),
             normalized_shape=[3], weight=None, bias=None, eps=1e-5)  # fmt: skip
    with pytest.raises(ImportError_) as caught:
        imported(c, known=False)
    assert caught.value.problems == [
        "The output 'output_1' cannot be given: of aten.native_layer_norm only the first result "
        "can be used."
    ]


def test_a_number_that_is_known(tmp_path: Any) -> None:
    d = Draft()
    n, x = d.weight("n", np.array(3, np.int64), "tensor_constant"), d.input("x", "float32", 4)
    three = d.number("aten.item.default", "three", 3, self=n)
    y = d.call("aten.mul.Scalar", "float32", (4,), self=x, other=three)
    graph = read_graph(d.returns(y).data(), "the program")
    held = {"n": lambda: (np.array(3), DTYPES["i64"])}
    got = run(import_exported(graph, held, "one"), {"x": floats(1, 2, 3, 4)})
    np.testing.assert_array_equal(got["output"], [3, 6, 9, 12])
