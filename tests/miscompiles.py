"""Defects of the compiler that were put in on purpose: one line of a pass, and a model that it
breaks. ``tests/test_miscompiles.py`` puts each into a copy and has ``spyrec bisect`` find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from examples.make_models import Graph, cnn, encoder


@dataclass(frozen=True)
class Seed:
    """``old`` stands once in ``file`` and becomes ``new``; then ``model`` is compiled wrongly by
    the pass ``guilty``."""

    file: str
    old: str
    new: str
    model: str
    guilty: str
    quick: bool = False
    """Is it among those of the fast tests?"""

    @property
    def name(self) -> str:
        return f"{self.guilty}-{self.model}"


def _text(*lines: str) -> str:
    """IR text of a module: inputs as ``x: 4x4xf32``, then ops; the last one's result is the
    output."""
    inputs = [f"  input %{line.replace(': ', ': tensor<')}>" for line in lines if line[0] != "%"]
    ops = [f"  {line}" for line in lines if line[0] == "%"]
    last = ops[-1].split()[0]
    body = "\n".join([*inputs, *ops, f'  output "y" = {last}'])
    return f'module "m" {{\n{body}\n}}\n'


def _products() -> Any:
    """Three products of one tensor, of three widths."""
    g = Graph(np.random.default_rng(0))
    ports = []
    for name, wide in (("a", 32), ("b", 64), ("c", 96)):
        g.node("MatMul", ["x", g.random(f"{name}_weight", 512, wide, fan_in=512)], name)
        ports.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, wide]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 512])
    return g.model("products", [x], ports)


def _long_signal() -> Any:
    """A narrow convolution along a long row."""
    g = Graph(np.random.default_rng(0))
    g.node("Conv", ["x", g.random("w", 1, 1, 1, 66, fan_in=66)], "y", strides=[1, 2])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 8256])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, 4096])
    return g.model("signal", [x], [y])


def _filtered(op: str, filters: tuple[int, ...], wide: int, **attrs: Any) -> Callable[[], Any]:
    """A convolution of 4 or 64 channels of 8 x 8 with constant filters; ``wide``: of its output."""

    def made() -> Any:
        g = Graph(np.random.default_rng(0))
        weight = g.random("w", *filters, fan_in=int(np.prod(filters[1:])))
        g.node(op, ["x", weight], "y", **attrs)
        channels = filters[1] if op == "Conv" and "group" not in attrs else 4
        outputs = filters[1] if op == "ConvTranspose" else filters[0]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 8, 8])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, outputs, wide, wide])
        return g.model("filtered", [x], [y])

    return made


MODELS: Mapping[str, str | Callable[[], Any]] = {
    "encoder": encoder,
    "cnn": cnn,
    "products": _products,
    "signal": _long_signal,
    "filters": _filtered("Conv", (64, 64, 3, 3), 8, pads=[1] * 4),
    "grouped-filters": _filtered("Conv", (8, 2, 3, 3), 8, pads=[1] * 4, group=2),
    "transposed-filters": _filtered(
        "ConvTranspose", (4, 4, 3, 3), 16, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]
    ),
    "two-transposes": _text(
        "x: 4x4x4xf32",
        "%e = exp(%x) : tensor<4x4x4xf32>",
        "%a = transpose(%e) {perm = (1, 2, 0)} : tensor<4x4x4xf32>",
        "%b = transpose(%a) {perm = (1, 0, 2)} : tensor<4x4x4xf32>",
        "%y = tanh(%b) : tensor<4x4x4xf32>",
    ),
    "two-slices": _text(
        "x: 40x8xf32",
        "%a = slice(%x) {starts = (1, 0), sizes = (15, 8), steps = (2, 1)} : tensor<15x8xf32>",
        "%b = slice(%a) {starts = (2, 0), sizes = (4, 8), steps = (3, 1)} : tensor<4x8xf32>",
        "%y = neg(%b) : tensor<4x8xf32>",
    ),
    "zero-less": _text(
        "x: 8x64xf32",
        "%e = exp(%x) : tensor<8x64xf32>",
        "%c = constant {value = dense<float32, [0.0]>} : tensor<f32>",
        "%d = sub(%c, %e) : tensor<8x64xf32>",
        "%y = tanh(%d) : tensor<8x64xf32>",
    ),
    "known-choice": _text(
        "x: 8x64xf32", "z: 8x64xf32",
        "%c = constant {value = dense<bool, [true]>} : tensor<bool>",
        "%e = exp(%x) : tensor<8x64xf32>",
        "%w = where(%c, %e, %z) : tensor<8x64xf32>",
        "%y = neg(%w) : tensor<8x64xf32>",
    ),
    "abs-of-neg": _text(
        "x: 8x64xf32",
        "%n = neg(%x) : tensor<8x64xf32>",
        "%a = abs(%n) : tensor<8x64xf32>",
        "%y = sqrt(%a) : tensor<8x64xf32>",
    ),
    "tanh-twice": _text(
        "x: 8x64xf32",
        "%a = tanh(%x) : tensor<8x64xf32>",
        "%b = tanh(%a) : tensor<8x64xf32>",
        "%y = neg(%b) : tensor<8x64xf32>",
    ),
    "joined-rows": _text(
        "x: 1x64xf32", "z: 1x64xf32",
        "%e = exp(%x) : tensor<1x64xf32>",
        "%c = concat(%e, %z) {axis = 0} : tensor<2x64xf32>",
        "%y = neg(%c) : tensor<2x64xf32>",
    ),
    "quantised": _text(
        "x: 4x4xf32",
        "%q = constant {value = dense<4x4xint8, "
        "[1, -2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4, 1, 2, 3, 4]>} : tensor<4x4xi8>",
        "%s = constant {value = dense<4xfloat32, [0.5, 0.25, 2.0, 1.0]>} : tensor<4xf32>",
        "%z = constant {value = dense<4xint8, splat 0>} : tensor<4xi8>",
        "%w = dequantize_linear(%q, %s, %z) {axis = 1} : tensor<4x4xf32>",
        "%m = matmul(%x, %w) : tensor<4x4xf32>",
        "%y = tanh(%m) : tensor<4x4xf32>",
    ),
    "zero-point": _text(
        "x: 4x4xf32",
        "%q = constant {value = dense<4x4xint8, "
        "[1, -2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4, 1, 2, 3, 4]>} : tensor<4x4xi8>",
        "%s = constant {value = dense<float32, [0.5]>} : tensor<f32>",
        "%z = constant {value = dense<int8, [3]>} : tensor<i8>",
        "%w = dequantize_linear(%q, %s, %z) {axis = 0} : tensor<4x4xf32>",
        "%m = matmul(%x, %w) : tensor<4x4xf32>",
        "%y = tanh(%m) : tensor<4x4xf32>",
    ),
    "halves": _text(
        "x: 4xf32",
        "%c = constant {value = dense<8xfloat32, "
        "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]>} : tensor<8xf32>",
        "%a, %b = split(%c) {axis = 0, sizes = (4, 4)} : tensor<4xf32>, tensor<4xf32>",
        "%m = mul(%x, %a) : tensor<4xf32>",
        "%y = add(%m, %b) : tensor<4xf32>",
    ),
    "two-slopes": _text(
        "x: 8x64xf32",
        "%a = leaky_relu(%x) {alpha = 0.1} : tensor<8x64xf32>",
        "%b = leaky_relu(%x) {alpha = 0.6} : tensor<8x64xf32>",
        "%y = mul(%a, %b) : tensor<8x64xf32>",
    ),
    "two-tables": _text(
        "x: 4xf32",
        "%a = constant {value = dense<4xfloat32, [1.0, 2.0, 3.0, 4.0]>} : tensor<4xf32>",
        "%b = constant {value = dense<4xfloat32, [5.0, 2.0, -3.0, 1.0]>} : tensor<4xf32>",
        "%m = mul(%x, %a) : tensor<4xf32>",
        "%y = add(%m, %b) : tensor<4xf32>",
    ),
    "scaled-keys": _text(
        "q: 1x2x8x8xf32", "k: 1x2x8x8xf32", "v: 1x2x8x8xf32",
        "%c = constant {value = dense<float32, [0.25]>} : tensor<f32>",
        "%s = mul(%k, %c) : tensor<1x2x8x8xf32>",
        "%a = matmul(%q, %s) : tensor<1x2x8x8xf32>",
        "%w = softmax(%a) {axis = 3} : tensor<1x2x8x8xf32>",
        "%y = matmul(%w, %v) : tensor<1x2x8x8xf32>",
    ),
    "chosen-scores": _text(
        "q: 1x2x8x8xf32", "k: 1x2x8x8xf32", "v: 1x2x8x8xf32", "seen: 8x8xbool",
        "%low = constant {value = dense<float32, [-100.0]>} : tensor<f32>",
        "%a = matmul(%q, %k) : tensor<1x2x8x8xf32>",
        "%m = where(%seen, %low, %a) : tensor<1x2x8x8xf32>",
        "%w = softmax(%m) {axis = 3} : tensor<1x2x8x8xf32>",
        "%y = matmul(%w, %v) : tensor<1x2x8x8xf32>",
    ),
    "causal": _text(
        "q: 1x4x2048x32xf32", "k: 1x4x2048x32xf32", "v: 1x4x2048x32xf32",
        "%a = attention(%q, %k, %v) {causal = true, scale = 0.5} : tensor<1x4x2048x32xf32>",
    ),
    "parts-of-keys": _text(
        "q: 1x2x64x32xf32", "k: 1x2x192x32xf32", "v: 1x2x192x32xf32",
        "%a = attention(%q, %k, %v) {rows = 32, keys = 64} : tensor<1x2x64x32xf32>",
    ),
    "one-key": _text(
        "q: 1x2x4x8xf32", "k: 1x2x4x8xf32", "v: 1x2x4x8xf32",
        "%c = constant {value = dense<4x4xbool, splat false>} : tensor<4x4xbool>",
        "%a = attention(%q, %k, %v, %c) {hidden = -1.0} : tensor<1x2x4x8xf32>",
    ),
    "attention": _text(
        "q: 1x4x16x32xf32", "k: 1x2x16x32xf32", "v: 1x2x16x32xf32",
        "%a = attention(%q, %k, %v) : tensor<1x4x16x32xf32>",
        "%y = neg(%a) : tensor<1x4x16x32xf32>",
    ),
    "log-softmax": _text(
        "x: 8x64xf32",
        "%e = exp(%x) : tensor<8x64xf32>",
        "%y = log_softmax(%e) {axis = 1} : tensor<8x64xf32>",
    ),
    "celu": _text(
        "x: 8x64xf32",
        "%a = celu(%x) {alpha = 0.5} : tensor<8x64xf32>",
        "%y = exp(%a) : tensor<8x64xf32>",
    ),
    "steep": _text(
        "x: 8x64xf32",
        "%a = leaky_relu(%x) {alpha = 2.0} : tensor<8x64xf32>",
        "%y = exp(%a) : tensor<8x64xf32>",
    ),
    "sums-before": _text(
        "x: 8x64xf32",
        "%a = cumsum(%x) {axis = 1, exclusive = true} : tensor<8x64xf32>",
        "%y = neg(%a) : tensor<8x64xf32>",
    ),
    "first-largest": _text(
        "x: 8x64xf32",
        "%e = exp(%x) : tensor<8x64xf32>",
        "%y = arg_max(%e) {axis = 1} : tensor<8x1xi64>",
    ),
    "average": _text(
        "x: 1x4x8x8xf32",
        "%e = exp(%x) : tensor<1x4x8x8xf32>",
        "%y = avg_pool(%e) {kernel = (3, 3), strides = (1, 1), pads = (1, 1, 1, 1)} "
        ": tensor<1x4x8x8xf32>",
    ),
    "pairs-of-indices": _text(
        "x: 4x4x8xf32", "i: 6x2xi64",
        "%e = exp(%x) : tensor<4x4x8xf32>",
        "%y = gather_nd(%e, %i) : tensor<6x8xf32>",
    ),
    "corners": _text(
        "x: 1x2x4x8xf32",
        "%e = exp(%x) : tensor<1x2x4x8xf32>",
        "%y = resize(%e) {sizes = (1, 2, 8, 8), scales = (1.0, 1.0, 2.0, 1.0), "
        'mode = "nearest", coordinate = "align_corners", rounding = "floor"} '
        ": tensor<1x2x8x8xf32>",
    ),
    "blocks-of-pixels": _text(
        "x: 1x8x4x4xf32",
        "%e = exp(%x) : tensor<1x8x4x4xf32>",
        '%y = depth_to_space(%e) {block = 2, mode = "CRD"} : tensor<1x2x8x8xf32>',
    ),
    "triangle": _text(
        "x: 16x16xf32",
        "%e = exp(%x) : tensor<16x16xf32>",
        "%y = trilu(%e) {upper = true, k = 0} : tensor<16x16xf32>",
    ),
    "rotated": _text(
        "x: 4x8x16xf32", "sines: 8x16xf32",
        "%e = exp(%x) : tensor<4x8x16xf32>",
        "%a = slice(%e) {starts = (0, 0, 8), sizes = (4, 8, 8), steps = (1, 1, 1)} "
        ": tensor<4x8x8xf32>",
        "%b = slice(%e) {starts = (0, 0, 0), sizes = (4, 8, 8), steps = (1, 1, 1)} "
        ": tensor<4x8x8xf32>",
        "%n = neg(%a) : tensor<4x8x8xf32>",
        "%c = concat(%n, %b) {axis = 2} : tensor<4x8x16xf32>",
        "%y = mul(%c, %sines) : tensor<4x8x16xf32>",
    ),
    "roots": _text(
        "x: 8x64xf32",
        "%e = exp(%x) : tensor<8x64xf32>",
        "%c = constant {value = dense<float32, [1.75]>} : tensor<f32>",
        "%y = pow(%e, %c) : tensor<8x64xf32>",
    ),
    "large-sums": _text(
        "x: 8x64xf32",
        "%c = constant {value = dense<64x64xfloat32, splat 3.0e10>} : tensor<64x64xf32>",
        "%d = constant {value = dense<float32, [1.0e-5]>} : tensor<f32>",
        "%m = matmul(%x, %c) : tensor<8x64xf32>",
        "%a = abs(%m) : tensor<8x64xf32>",
        "%r = sqrt(%a) : tensor<8x64xf32>",
        "%y = mul(%r, %d) : tensor<8x64xf32>",
    ),
    "saturating": _text(
        "x: 8x64xi32",
        "%c = constant {value = dense<float32, [200.0]>} : tensor<f32>",
        "%f = cast(%x) {to = type f32} : tensor<8x64xf32>",
        "%m = mul(%f, %c) : tensor<8x64xf32>",
        "%y = cast(%m) {to = type i8} : tensor<8x64xi8>",
    ),
    "wrapping": _text(
        "x: 8x64xi32",
        "%c = constant {value = dense<int32, [200]>} : tensor<i32>",
        "%m = mul(%x, %c) : tensor<8x64xi32>",
        "%y = cast(%m) {to = type i8} : tensor<8x64xi8>",
    ),
    "second-turned": _text(
        "x: 8x8xf32", "z: 8x8xf32",
        "%t = transpose(%z) {perm = (1, 0)} : tensor<8x8xf32>",
        "%c = concat(%x, %t) {axis = 0} : tensor<16x8xf32>",
        "%y = neg(%c) : tensor<16x8xf32>",
    ),
    "turned-back": _text(
        "x: 4x16xf32",
        "%a = reshape(%x) {shape = (4, 4, 4)} : tensor<4x4x4xf32>",
        "%b = transpose(%a) {perm = (0, 2, 1)} : tensor<4x4x4xf32>",
        "%c = reshape(%b) {shape = (4, 16)} : tensor<4x16xf32>",
        "%y = exp(%c) : tensor<4x16xf32>",
    ),
    "product": _text(
        "x: 64x64xf32", "z: 64x64xf32",
        "%m = matmul(%x, %z) : tensor<64x64xf32>",
        "%y = tanh(%m) : tensor<64x64xf32>",
    ),
    "residual": _text(
        "x: 64x64xf32", "z: 64x64xf32",
        "%m = matmul(%x, %z) : tensor<64x64xf32>",
        "%t = tanh(%m) : tensor<64x64xf32>",
        "%y = sub(%z, %t) : tensor<64x64xf32>",
    ),
    "large-sum": _text(
        "x: 64x32x64xf32",
        "%e = exp(%x) : tensor<64x32x64xf32>",
        "%y = reduce_max(%e) {axes = (0, 1, 2)} : tensor<1x1x1xf32>",
    ),
    "look-ups": _text(
        "x: 64x64xf32", "z: 64x64xf32", "i: 8xi64",
        "%a = exp(%x) : tensor<64x64xf32>",
        "%b = tanh(%z) : tensor<64x64xf32>",
        "%c = gather(%a, %i) {axis = 0} : tensor<8x64xf32>",
        "%d = gather(%b, %i) {axis = 0} : tensor<8x64xf32>",
        "%y = sub(%c, %d) : tensor<8x64xf32>",
    ),
    "border": _text(
        "x: 1x64x8x8xf32",
        "%a = abs(%x) : tensor<1x64x8x8xf32>",
        "%n = neg(%a) : tensor<1x64x8x8xf32>",
        "%y = max_pool(%n) {kernel = (3, 3), strides = (1, 1), pads = (1, 1, 1, 1), "
        "dilations = (1, 1)} : tensor<1x64x8x8xf32>",
    ),
    "layers": _text(
        "x: 64x512xf32", "v: 512x512xf32", "w: 512x512xf32", "u: 512x512xf32",
        "%a = matmul(%x, %v) : tensor<64x512xf32>",
        "%b = softmax(%a) {axis = 1} : tensor<64x512xf32>",
        "%c = matmul(%b, %w) : tensor<64x512xf32>",
        "%d = matmul(%a, %u) : tensor<64x512xf32>",
        "%y = add(%d, %c) : tensor<64x512xf32>",
    ),
}  # fmt: skip


def _canonical(old: str, new: str, model: str, quick: bool = False) -> Seed:
    return Seed("passes/rules_canonical.py", old, new, model, "canonicalize", quick)


def _decomposed(family: str, old: str, new: str, model: str, quick: bool = False) -> Seed:
    return Seed(f"passes/rules_{family}.py", old, new, model, "decompose", quick)


SEEDS: tuple[Seed, ...] = (
    _canonical("[first[p] for p in perm]", "[perm[p] for p in first]", "two-transposes", True),
    _canonical("tuple(f + s * p for f, s, p in", "tuple(f + s for f, s, p in", "two-slices"),
    _canonical('_exact("sub-zero", "sub", _neutral(None, 0.0)',
               '_exact("sub-zero", "sub", _neutral(0.0, 0.0)', "zero-less"),
    _canonical("x if chosen else y", "y if chosen else x", "known-choice"),
    _canonical('return e.op("abs", inner.operands[0])', "return inner.operands[0]", "abs-of-neg"),
    _canonical('"ceil", "round", "sign")', '"ceil", "round", "sign", "tanh")', "tanh-twice"),
    _canonical("if len(set(op.operands)) > 1 or x.type", "if x.type", "joined-rows"),
    Seed("passes/pull_scales.py", "if rows else scale", "if not rows else scale", "quantised",
         "pull-scales"),
    Seed("passes/pull_scales.py", "if narrow and along and e.splat(zero) == 0 else",
         "if narrow and along else", "zero-point", "pull-scales"),
    Seed("passes/fold.py", "emit.constant(np.asarray(v),", "emit.constant(np.asarray(values[0]),",
         "halves", "fold"),
    Seed("passes/cse.py", "tuple(map(id, op.operands)), attrs,", "tuple(map(id, op.operands)),",
         "two-slopes", "cse", True),
    Seed("passes/cse.py", "value.dtype.str, value.shape, digest", "value.dtype.str, value.shape",
         "two-tables", "cse"),
    Seed("passes/rules_explicit.py", "found.scale * by_q * by_k", "found.scale * by_q",
         "scaled-keys", "find-attention"),
    Seed("passes/rules_explicit.py", "self.cond if self.keeps else", "self.cond if True else",
         "chosen-scores", "find-attention"),
    Seed("passes/attention_blocks.py", "builder.add(op.with_attrs(rows=way.rows, keys=way.keys))",
         'builder.add(replace(op, attrs=MappingProxyType({"rows": way.rows})))', "causal",
         "attention-blocks"),
    Seed("passes/online_softmax.py", "e.add(e.mul(before, fade), more)", "e.add(before, more)",
         "parts-of-keys", "decompose"),
    Seed("passes/products.py", "start += p.width", "start += products[0].width", "products",
         "join-products"),
    _decomposed("norm", "e.mean(e.mul(centred, centred), axes)", "e.mean(e.mul(x, x), axes)",
                "encoder"),
    _decomposed("norm", "return a, bias - mean * a", "return a, bias - mean", "cnn"),
    _decomposed("norm", "e.sub(shifted, e.op", "e.sub(x, e.op", "log-softmax"),
    _decomposed("elementwise", "_exponential_tail(e, x, alpha, alpha)",
                "_exponential_tail(e, x, alpha, 1.0)", "celu", True),
    _decomposed("elementwise", "if 0.0 < alpha <= 1.0:", "if 0.0 < alpha:", "steep"),
    _decomposed("reduce", "k=-1 if exclusive else 0", "k=0", "sums-before"),
    _decomposed("reduce", "e.where(hit, numbers, n)", "e.where(hit, numbers, 0)", "first-largest"),
    _decomposed("window", "if include else (0, n)", "if not include else (0, n)", "average"),
    _decomposed("conv", 'filters = e.op("reverse", w, axes=tuple(range(2, 2 + rank)))',
                "filters = w", "transposed-filters"),
    _decomposed("conv", "e.slice_axis(w, 0, g * o, o)", "e.slice_axis(w, 0, g * c, o)",
                "grouped-filters"),
    _decomposed("index", "math.prod(sizes[j + 1 :])", "math.prod(sizes[:j])", "pairs-of-indices"),
    _decomposed("resize", "out % n == 0 and np.array_equal(source, np.arange(out) // (out // n))",
                "out % n == 0", "corners"),
    _decomposed("move", "(0, 1, 4, 2, 5, 3)", "(0, 1, 4, 3, 5, 2)", "blocks-of-pixels"),
    _decomposed("move", "k=k - 1 if", "k=k if", "triangle"),
    _decomposed("rotary", "turned = e.mul(table, e.constant(signs, table.type.dtype))",
                "turned = table", "rotated"),
    _decomposed("mask", 'and number == (mask.type.dtype.kind == "bool")', "and number == 0",
                "one-key"),
    _decomposed("attention", "1.0 / math.sqrt(depth)", "1.0 / depth", "attention"),
    _decomposed("pow", "if quarters % 4 >= 2", "if quarters % 4 == 2", "roots"),
    Seed("passes/frame_columns.py", "at = p * stride + dilation * np.arange(kernel)",
         "at = p + dilation * np.arange(kernel)", "signal", "frame-columns"),
    Seed("passes/scaling.py", 'POWERS = {"sqrt": 0.5,', 'POWERS = {"sqrt": 1.0,', "large-sums",
         "range-scale"),
    Seed("passes/legalize_dtypes.py", "e.min(e.max(x, float(low)), float(high))",
         "e.max(x, float(low))", "saturating", "legalize-dtypes"),
    Seed("passes/legalize_dtypes.py", "return e.add(kept, low) if low else kept", "return kept",
         "wrapping", "legalize-dtypes"),
    Seed("passes/merge_moves.py",
         "(*second.operands[:k], *first.operands, *second.operands[k + 1 :])",
         "(*first.operands, *second.operands[:k], *second.operands[k + 1 :])", "second-turned",
         "merge-moves", True),
    Seed("passes/merge_moves.py", "return all(p.src.rows == p.dst.rows for p in spec.pieces)",
         "return True", "turned-back", "merge-moves"),
    Seed("passes/fuse.py", "fixed = group.ops[0].operands if head else ()",
         "fixed = group.ops[0].operands[::-1] if head else ()", "product", "fuse"),
    Seed("passes/fuse.py", "axes=tuple(axes[:-1]),", "axes=tuple(axes[1:-1]),", "large-sum",
         "fuse"),
    Seed("passes/fuse.py", "(-pads[0], _coefs(7, d2=sh, d4=dh)),",
         "(pads[0], _coefs(7, d2=sh, d4=dh)),", "filters", "fuse"),
    Seed("passes/kernel_body.py", "dict(zip(shared, args[len(head) :], strict=True))",
         "dict(zip(shared, args[:len(shared)], strict=True))", "residual", "fuse"),
    Seed("passes/lower_tiles.py", '"max_pool": float("-inf"),', '"max_pool": 0.0,', "border",
         "lower-tiles"),
    Seed("passes/scratchpad.py", "last = max(at, lasts[v])", "last = at", "layers", "scratchpad"),
    Seed("passes/hbm_plan.py",
         "last = max([position[u] for u, _ in readers.get(v, [])], default=i)",
         "last = i", "look-ups", "hbm"),
    Seed("passes/residency.py", "need = self.parts.needed(reader, i)", "need = own", "layers",
         "ring-relayout"),
)  # fmt: skip
