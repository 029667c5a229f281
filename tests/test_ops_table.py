"""The OPS table as a whole: what every entry promises, and the errors all ops share."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from spyrec.ir.core import Builder, Loc, Op, Value
from spyrec.ir.errors import VerifyError
from spyrec.ir.ops import OPS, REQUIRED, attributes, infer
from spyrec.ir.types import DTYPES, tensor

PLAN = (
    "neg abs sign exp log sqrt rsqrt reciprocal sin cos tanh sigmoid erf relu softplus "
    "softsign selu floor ceil round not isnan isinf identity square mish silu hard_swish gelu "
    "leaky_relu elu hard_sigmoid clip cast celu thresholded_relu add sub mul div pow mod min "
    "max and or xor eq ne lt le gt ge prelu where reduce_sum reduce_mean reduce_max "
    "reduce_min reduce_prod reduce_l1 reduce_l2 reduce_sum_square reduce_log_sum_exp arg_max "
    "arg_min cumsum matmul conv conv_transpose einsum max_pool avg_pool sum_pool lrn resize "
    "softmax log_softmax layer_norm rms_norm batch_norm instance_norm group_norm attention "
    "reshape transpose broadcast_to concat slice pad reverse space_to_depth depth_to_space "
    "split tile gather gather_nd gather_elements scatter_nd scatter_elements top_k one_hot "
    "iota constant trilu quantize_linear dequantize_linear shape_of if loop kernel move "
    "relayout restickify "
)


def test_every_planned_op_is_there() -> None:
    assert set(PLAN.split()) <= set(OPS)


@pytest.mark.parametrize("name", OPS)
def test_an_entry_is_whole(name: str) -> None:
    op = OPS[name]
    assert op.name == name
    assert op.summary.endswith(".") and "\n" not in op.summary
    assert op.stages and op.stages <= {"tensor", "device", "tile"}
    hows = [o.how for o in op.operands]
    assert hows == sorted(hows, key=["one", "optional", "variadic"].index)
    assert "variadic" not in hows[:-1] and not {"optional", "variadic"} <= set(hows)
    for attr in op.attrs.values():
        if attr.choices and attr.default is not REQUIRED:
            assert attr.default in attr.choices


def test_names_are_unique_over_families() -> None:
    families = {d.family for d in OPS.values()}
    modules = [import_module(f"spyrec.ir.ops.{family}") for family in families]
    assert sum(len(m.DEFS) for m in modules) == len(OPS)


@pytest.mark.parametrize(
    ("name", "count", "attrs", "message"),
    [
        ("add", 1, {}, "add: expected 2 operands (x, y), got 1 (from n)"),
        ("layer_norm", 4, {},
         "layer_norm: expected 2 to 3 operands (x, scale, bias), got 4 (from n)"),
        ("loop", 1, {}, "loop: expected 2 or more operands (trip, cond, carried), got 1 (from n)"),
        ("iota", 1, {}, "iota: expected 0 operands (none), got 1 (from n)"),
        ("exp", 1, {"base": 2.0}, "exp: attribute base is unknown; known: none (from n)"),
        ("softmax", 1, {}, "softmax: attribute axis (int) is required but missing (from n)"),
        ("softmax", 1, {"axis": 1.0},
         "softmax: attribute axis must be of kind int, got 1.0 (float) (from n)"),
        ("softmax", 1, {"axis": True},
         "softmax: attribute axis must be of kind int, got True (bool) (from n)"),
        ("gelu", 1, {"approximate": "fast"},
         "gelu: attribute approximate must be one of none, tanh, got 'fast' (from n)"),
        ("softmax", 1, {"axis": -1},
         "softmax: axis -1 is outside 0..1 of an operand of rank 2 (from n)"),
        ("frobnicate", 1, {}, "no op is called 'frobnicate'; spyrec ops lists all (from n)"),
    ],
)  # fmt: skip
def test_shared_errors(name: str, count: int, attrs: dict[str, object], message: str) -> None:
    with pytest.raises(VerifyError) as error:
        infer(name, [tensor((2, 3), "f32")] * count, attrs, Loc(("n",)))  # type: ignore[arg-type]
    assert str(error.value) == message


def test_attributes_fills_in_defaults() -> None:
    x = Value("x", tensor((2, 3), "f32"))
    op = Builder(["x"]).op("leaky_relu", [x])
    assert attributes(op) == {"alpha": 0.01}
    assert attributes(op.with_attrs(alpha=1)) == {"alpha": 1}
    with pytest.raises(VerifyError, match="attribute beta is unknown"):
        attributes(op.with_attrs(beta=1.0))


def test_a_none_default_makes_none_legal() -> None:
    x = tensor((2,), "f32")
    assert infer("clip", [x], {"min": None, "max": 3}, Loc()) == (x,)
    with pytest.raises(VerifyError, match="attribute to must be of kind dtype, got None"):
        infer("cast", [x], {"to": None}, Loc())


def test_kernels_may_carry_attributes_of_any_pass() -> None:
    attrs = {"kind": "vec", "name": "k", "dims": (), "maps": (), "tile": (1, 2), "why": "because"}
    op = Op("kernel", (), (), attrs)
    assert attributes(op) == attrs
    assert [name for name, d in OPS.items() if d.open_attrs and d.regions] == ["kernel"]


def test_arrays_are_attributes_only_where_asked_for() -> None:
    with pytest.raises(VerifyError, match=r"attribute value must be of kind array, got 1\.0"):
        infer("constant", [], {"value": 1.0}, Loc())
    assert infer("constant", [], {"value": np.zeros(3, np.int64)}, Loc()) == (tensor((3,), "i64"),)
    assert infer("constant", [], {"value": np.zeros((), bool)}, Loc())[0].dtype == DTYPES["bool"]
