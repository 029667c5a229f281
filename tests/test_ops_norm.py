"""Normalisations and softmax against onnxruntime, attention against a loop in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from ops_reference import Array, close, noise, one, onnx_run

from spyrec.ir.core import Loc
from spyrec.ir.errors import VerifyError
from spyrec.ir.ops import infer
from spyrec.ir.types import Sym, tensor


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis: int) -> None:
    x = noise(3, 4, 5) * 20
    close(one("softmax", x, axis=axis), onnx_run("Softmax", x, axis=axis)[0])
    close(one("log_softmax", x, axis=axis), onnx_run("LogSoftmax", x, axis=axis)[0])


def test_softmax_with_masked_elements() -> None:
    x = np.array([[0, -np.inf, 0, -np.inf]], np.float32)
    close(one("softmax", x, axis=1), np.float32([[0.5, 0, 0.5, 0]]))


@pytest.mark.parametrize("axis", [1, 2])
def test_layer_norm(axis: int) -> None:
    x = noise(2, 5, 16) * 3 + 2
    scale, bias = noise(*x.shape[axis:]), noise(*x.shape[axis:], seed=1)
    want = onnx_run("LayerNormalization", x, scale, bias, axis=axis, epsilon=1e-3)[0]
    close(one("layer_norm", x, scale, bias, axis=axis, epsilon=1e-3), want)
    want = onnx_run("LayerNormalization", x, scale, axis=axis, epsilon=1e-3)[0]
    close(one("layer_norm", x, scale, axis=axis, epsilon=1e-3), want)


def test_layer_norm_of_halves_takes_statistics_in_single() -> None:
    x = (noise(4, 4096) * 0.1 + 100).astype(np.float16)
    scale = np.ones(4096, np.float16)
    single = one("layer_norm", x.astype(np.float32), scale.astype(np.float32), axis=1, epsilon=1e-5)
    close(one("layer_norm", x, scale, axis=1, epsilon=1e-5), single.astype(np.float16), 1e-3)


def test_rms_norm() -> None:
    x, scale = noise(2, 5, 16), noise(16)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-3) * scale
    close(one("rms_norm", x, scale, axis=2, epsilon=1e-3), want.astype(np.float32))


def test_per_channel_norms() -> None:
    x, scale, bias = noise(2, 6, 4, 5), noise(6), noise(6, seed=1)
    mean, var = noise(6, seed=2), np.abs(noise(6, seed=3)) + np.float32(0.1)
    want = onnx_run("BatchNormalization", x, scale, bias, mean, var, epsilon=1e-3)[0]
    close(one("batch_norm", x, scale, bias, mean, var, epsilon=1e-3), want)
    want = onnx_run("InstanceNormalization", x, scale, bias, epsilon=1e-3)[0]
    close(one("instance_norm", x, scale, bias, epsilon=1e-3), want)
    want = onnx_run("GroupNormalization", x, scale, bias, num_groups=3, epsilon=1e-3)[0]
    close(one("group_norm", x, scale, bias, groups=3, epsilon=1e-3), want)
    flat = x[:, :, 0, 0]
    want = (flat - mean) / np.sqrt(var + np.float32(1e-3)) * scale + bias
    close(one("batch_norm", flat, scale, bias, mean, var, epsilon=1e-3), want)


def attention_by_hand(q: Array, k: Array, v: Array, bias: Array, scale: float) -> Array:
    result = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, s in np.ndindex(q.shape[:3]):
        g = h // (q.shape[1] // k.shape[1])
        scores = k[b, g].astype(np.float64) @ q[b, h, s] * scale + bias[b, h, s]
        weights = np.exp(scores - scores.max())
        result[b, h, s] = weights @ v[b, g] / weights.sum()
    return result.astype(np.float32)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", ["no", "float", "bool"])
def test_attention(groups: int, causal: bool, masked: str) -> None:
    q = noise(2, 6, 5, 8)
    k, v = noise(2, groups, 7, 8, seed=1), noise(2, groups, 7, 3, seed=2)
    bias = np.zeros((2, 6, 5, 7))
    if causal:
        bias += np.where(np.arange(7) > np.arange(5)[:, None], -np.inf, 0)
    mask: list[Array] = []
    if masked == "float":
        mask = [noise(5, 7, seed=3)]
        bias = bias + mask[0]
    elif masked == "bool":
        keep = noise(2, 1, 5, 7, seed=4) > 0
        keep[..., 0] = True
        mask = [keep]
        bias = np.where(keep, bias, -np.inf)
    want = attention_by_hand(q, k, v, bias, 8**-0.5)
    close(one("attention", q, k, v, *mask, causal=causal), want)
    want = attention_by_hand(q, k, v, bias, 0.3)
    close(one("attention", q, k, v, *mask, causal=causal, scale=0.3), want)


def test_norm_rules() -> None:
    n = Sym("N", 1, 4)
    x, scale = tensor((n, 8, 32), "f16"), tensor((32,), "f16")
    attrs = {"axis": 2, "epsilon": 1e-5}
    assert infer("layer_norm", [x, scale], attrs, Loc()) == (x,)
    with pytest.raises(VerifyError, match=r"expected shapes that broadcast, got \[32\] and \[31\]"):
        infer("rms_norm", [x, tensor((31,), "f16")], attrs, Loc())
    with pytest.raises(VerifyError, match=r"expected scale to broadcast to \[32\], got \[8, 32\]"):
        infer("rms_norm", [x, tensor((8, 32), "f16")], attrs, Loc())
    with pytest.raises(VerifyError, match=r"axis 3 is outside 0\.\.2 of an operand of rank 3"):
        infer("softmax", [x], {"axis": 3}, Loc())
    with pytest.raises(VerifyError, match="3 groups do not divide 8 channels"):
        group = {"groups": 3, "epsilon": 0.1}
        infer("group_norm", [x, tensor((8,), "f16"), tensor((8,), "f16")], group, Loc())
    q, k = tensor((n, 6, 5, 8), "f16"), tensor((n, 4, 7, 8), "f16")
    with pytest.raises(VerifyError, match="with H a multiple of G"):
        infer("attention", [q, k, k], {}, Loc())
    k = tensor((n, 2, 7, 8), "f16")
    assert infer("attention", [q, k, k], {}, Loc()) == (q,)
    with pytest.raises(VerifyError, match=r"expected a mask of bool or f16 type, got f32"):
        infer("attention", [q, k, k, tensor((5, 7), "f32")], {}, Loc())
