"""PyTorch calls that move, index, reduce or contract, with what they give (see torch_cases)."""

from __future__ import annotations

import numpy as np
from pt2_files import Kind
from torch_cases import (
    B4,
    BOOL,
    C4,
    F32,
    I6,
    I64,
    INF,
    J6,
    Case,
    Fixed,
    R,
    X,
    Y,
    case,
    floats,
    ints,
    normal,
    softmax,
)

T = normal(2, 3, 4)
M, N = normal(3, 4), normal(4, 5)
IMAGE, KERNEL = normal(2, 4, 6, 6), normal(6, 2, 3, 3)
E = normal(4, 3)

REDUCE = [
    case("sum", T.sum(), self=T), case("sum.dim_IntList", T.sum(1), self=T, dim=[1]),
    case("sum.dim_IntList", T.sum((0, 2), keepdims=True), self=T, dim=[0, -1], keepdim=True),
    case("sum.dim_IntList", T.sum(), self=T, dim=[]), case("sum", np.array(2), self=B4),
    case("mean.dim", T.mean(-1), self=T, dim=[-1]), case("mean", T.mean(), self=T),
    case("amax", T.max((1, 2)), self=T, dim=[1, 2]), case("amin", T.min(0), self=T, dim=[0]),
    case("amax", np.array(True), self=B4, dim=[0]), case("amax", F32(3), self=F32(3), dim=[0]),
    case("prod", X.prod(), self=X), case("prod.dim_int", X.prod(1), self=X, dim=1),
    case("logsumexp", np.log(np.exp(T).sum(1)), self=T, dim=[1]),
    case("logsumexp", F32(3), self=F32(3), dim=[0]), case("max", X.max(), self=X),
    case("min", I6.min(), self=I6), case("max", np.array(True), self=B4),
    case("max.dim", (X.max(1), X.argmax(1)), self=X, dim=1),
    case("min.dim", (X.min(0, keepdims=True), X.argmin(0)[None]), self=X, dim=0, keepdim=True),
    case("max.other", np.maximum(X, Y), self=X, other=Y),
    case("min.other", B4 & C4, self=B4, other=C4),
    case("max.dim", (F32(3), I64(0)), self=F32(3), dim=0), case("argmax", I64(X.argmax()), self=X),
    case("argmax", X.argmax(0), self=X, dim=0),
    case("argmin", X.argmin(1)[:, None], self=X, dim=1, keepdim=True),
    case("argmin", I64(0), self=F32(3), dim=0), case("any", np.array(True), self=B4),
    case("any.dim", np.array([True, False]), self=floats(0, 2, 0, 0).reshape(2, 2), dim=1),
    case("all", np.array(False), self=B4),
    case("all.dim", np.array([True]), self=np.ones((1, 3), I64), dim=1),
    case("var.correction", X.var(1, ddof=1), self=X, dim=[1], correction=1),
    case("var.dim", X.var(0), self=X, dim=[0], unbiased=False),
    case("var", X.var(ddof=1), self=X, unbiased=True),
    case("std.correction", X.std(1, keepdims=True), self=X, dim=[1], correction=0, keepdim=True),
    case("var_mean.correction", (X.var(1, ddof=1), X.mean(1)), self=X, dim=[1]),
    case("cumsum", X.cumsum(1), self=X, dim=1), case("cumsum", B4.cumsum(), self=B4, dim=0),
    case("cumsum", F32(3), self=F32(3), dim=0),
    case("norm.ScalarOpt_dim", np.sqrt((X * X).sum(1)), self=X, p=2, dim=[1]),
    case("linalg_vector_norm", np.sqrt((X * X).sum()), self=X),
    case("linalg_vector_norm", abs(X).sum(0, keepdims=True), self=X, ord=1, dim=[0], keepdim=True),
    case("linalg_vector_norm", abs(X).max(1), self=X, ord=INF, dim=[1]),
    case("linalg_vector_norm", abs(X).min(1), self=X, ord=-INF, dim=[1]),
    case("linalg_vector_norm", F32(3), self=F32(-3)),
]  # fmt: skip


def conv2d(x: np.ndarray, w: np.ndarray, stride: int, pad: int, groups: int) -> np.ndarray:
    """As the definition has it."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    n, _, h, _ = x.shape
    out, per, k, _ = w.shape
    size = (h - k) // stride + 1
    y = np.zeros((n, out, size, size), F32)
    for o in range(out):
        first = o // (out // groups) * per
        for i in range(size):
            for j in range(size):
                rows, cols = (slice(at * stride, at * stride + k) for at in (i, j))
                part = x[:, first : first + per, rows, cols]
                y[:, o, i, j] = (part * w[o]).sum((1, 2, 3))
    return y


def windows(x: np.ndarray, k: int, how: str) -> np.ndarray:
    """Windows side by side over the last two dimensions."""
    *outer, h, w = x.shape
    cut = x.reshape(*outer, h // k, k, w // k, k)
    return np.asarray(getattr(cut, how)((-3, -1)))


SEEN = np.tril(np.ones((3, 3), BOOL))
Q, K, V = normal(2, 4, 3, 8), normal(2, 2, 3, 8), normal(2, 2, 3, 8) * 2
WIDE = [np.repeat(t, 2, 1) for t in (K, V)]


def attend(scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    return softmax(scores) @ v


S8 = F32(8**-0.5)
CONTRACT = [
    case("matmul", T @ N, self=T, other=N), case("matmul", M @ N[:, 0], self=M, other=N[:, 0]),
    case("matmul", M[0] @ N, self=M[0], other=N),
    case("matmul", M[0] @ N[:, 0], self=M[0], other=N[:, 0]),
    case("matmul", normal(5, 4) @ normal(2, 3, 4, 5), self=normal(5, 4), other=normal(2, 3, 4, 5)),
    case("matmul", N[:, 0] @ normal(2, 4, 5), self=N[:, 0], other=normal(2, 4, 5)),
    case("mm", M @ N, self=M, mat2=N),
    case("bmm", T @ normal(2, 4, 5), self=T, mat2=normal(2, 4, 5)),
    case("mv", M @ N[:, 0], self=M, vec=N[:, 0]), case("dot", M[0] @ M[1], self=M[0], tensor=M[1]),
    case("linear", T @ M.T, input=T, weight=M),
    case("linear", T @ M.T + Y, input=T, weight=M, bias=Y),
    case("linear", T @ M[0], input=T, weight=M[0]),
    case("linear", M[0] @ M.T, input=M[0], weight=M),
    case("addmm", normal(5) + M @ N, self=normal(5), mat1=M, mat2=N),
    case("addmm", 2 * normal(5) + F32(0.5) * (M @ N), self=normal(5), mat1=M, mat2=N, beta=2,
         alpha=0.5),
    case("addmm", M @ N, self=normal(5) * F32(INF), mat1=M, mat2=N, beta=0),
    case("addmv", Y + M @ N[:, 0], self=Y, mat=M, vec=N[:, 0]),
    case("baddbmm", T @ normal(2, 4, 5) + 1, self=np.ones((1, 3, 5), F32), batch1=T,
         batch2=normal(2, 4, 5)),

    case("einsum", np.einsum("bij,jk->bki", T, N), equation="b i j, j k -> b k i", tensors=[T, N]),
    case("outer", np.outer(Y, M[0]), self=Y, vec2=M[0]),
    case("outer", np.outer(B4, C4), self=B4, vec2=C4),
    case("conv2d", conv2d(IMAGE, KERNEL, 1, 1, 2), tol=1e-4, input=IMAGE, weight=KERNEL,
         padding=[1, 1], groups=2),
    case("conv2d.padding", conv2d(IMAGE, normal(6, 4, 3, 3), 1, 1, 1), tol=1e-4, input=IMAGE,
         weight=normal(6, 4, 3, 3), padding="same"),
    case("conv2d", conv2d(IMAGE[:1], KERNEL, 2, 0, 2)[0], tol=1e-4, input=IMAGE[0], weight=KERNEL,
         stride=[2, 2], groups=2),
    case("convolution", conv2d(IMAGE, KERNEL, 1, 0, 2) + normal(6)[:, None, None], tol=1e-4,
         input=IMAGE, weight=KERNEL, bias=normal(6), stride=[1, 1], padding=[0, 0],
         dilation=[1, 1], transposed=False, output_padding=[0, 0], groups=2),
    case("conv1d", np.stack([np.convolve(Y, floats(2, 1), "valid")])[None], input=Y[None, None],
         weight=floats(1, 2).reshape(1, 1, 2)),
    case("conv1d.padding", np.stack([np.convolve(Y, floats(2, 1), "full")[1:]])[None],
         input=Y[None, None], weight=floats(1, 2).reshape(1, 1, 2), padding="same"),

    case("conv3d", T[None, None] * 2, input=T[None, None], weight=np.full((1, 1, 1, 1, 1), 2, F32)),
    case("conv_transpose1d", np.convolve(Y, floats(1, 2))[None, None], input=Y[None, None],
         weight=floats(1, 2).reshape(1, 1, 2)),
    case("conv_transpose2d.input", np.kron(M, floats(1, 2, 3, 4).reshape(2, 2))[None, None],
         input=M[None, None], weight=floats(1, 2, 3, 4).reshape(1, 1, 2, 2), stride=[2, 2]),
    case("conv_transpose3d.input", T[None, None] * 2, input=T[None, None],
         weight=np.full((1, 1, 1, 1, 1), 2, F32)),
    case("scaled_dot_product_attention", attend(Q @ Q.swapaxes(2, 3) * S8, Q), query=Q, key=Q,
         value=Q),
    case("scaled_dot_product_attention",
         attend(np.where(SEEN, Q @ Q.swapaxes(2, 3) * S8, -INF), Q), query=Q, key=Q, value=Q,
         is_causal=True),
    case("scaled_dot_product_attention",
         attend(np.where(SEEN, Q @ Q.swapaxes(2, 3) * S8, -INF), Q), query=Q, key=Q, value=Q,
         attn_mask=SEEN),
    case("scaled_dot_product_attention", attend(Q @ Q.swapaxes(2, 3) * F32(0.3) + E[:3], Q),
         query=Q, key=Q, value=Q, attn_mask=E[:3], scale=0.3),
    case("scaled_dot_product_attention", attend(Q @ WIDE[0].swapaxes(2, 3) * S8, WIDE[1]), query=Q,
         key=K, value=V, enable_gqa=True),
    case("scaled_dot_product_attention", attend(Q[0] @ Q[0].swapaxes(1, 2) * S8, Q[0]), query=Q[0],
         key=Q[0], value=Q[0]),
    case("scaled_dot_product_attention", attend(Q @ Q[:1].swapaxes(2, 3) * S8, Q), query=Q,
         key=Q[:1], value=Q),
    case("_scaled_dot_product_flash_attention_for_cpu", attend(Q @ Q.swapaxes(2, 3) * S8, Q),
         query=Q, key=Q, value=Q),
]  # fmt: skip

RAMP = np.arange(16, dtype=F32).reshape(1, 1, 4, 4)
FRAMED = np.pad(RAMP[0, 0], 1).reshape(3, 2, 3, 2)
WINDOW = [
    case("max_pool2d", windows(IMAGE, 2, "max"), self=IMAGE, kernel_size=[2, 2]),
    case("max_pool2d", RAMP[:, :, 1::2, 1::2][..., :2, :2], self=RAMP, kernel_size=[3], stride=[2],
         padding=[1]),
    case("max_pool1d", X.max(1, keepdims=True), self=X, kernel_size=[3]),
    case("max_pool3d", T.max((0, 1, 2), keepdims=True)[None], self=T[None], kernel_size=[2, 3, 4]),
    case("max_pool2d_with_indices", windows(IMAGE, 3, "max"), self=IMAGE, kernel_size=[3, 3]),
    case("max_pool3d_with_indices", T.max((0, 1, 2), keepdims=True)[None], self=T[None],
         kernel_size=[2, 3, 4]),
    case("avg_pool1d", X.mean(1, keepdims=True), self=X, kernel_size=[3]),
    case("avg_pool2d", windows(IMAGE, 2, "mean"), self=IMAGE, kernel_size=[2, 2]),
    case("avg_pool2d",
         FRAMED.mean((1, 3))[None, None],
         self=RAMP, kernel_size=[2], padding=[1]),
    case("avg_pool2d",
         FRAMED.sum((1, 3))[None, None] / np.outer([1, 2, 1], [1, 2, 1]).astype(F32),
         self=RAMP, kernel_size=[2], padding=[1], count_include_pad=False),
    case("avg_pool3d", T.mean(keepdims=True)[None], self=T[None], kernel_size=[2, 3, 4]),
    case("adaptive_avg_pool1d", X.mean(1, keepdims=True), self=X, output_size=[1]),
    case("adaptive_avg_pool2d", windows(IMAGE, 3, "mean"), self=IMAGE, output_size=[2, 2]),
    case("_adaptive_avg_pool2d", windows(IMAGE, 6, "mean"), self=IMAGE, output_size=[1, 1]),
    case("adaptive_avg_pool3d", T.mean(keepdims=True)[None], self=T[None], output_size=[1, 1, 1]),
    case("_adaptive_avg_pool3d", T.mean(keepdims=True)[None], self=T[None], output_size=[1, 1, 1]),
    case("adaptive_max_pool1d", X.max(1, keepdims=True), self=X, output_size=[1]),
    case("adaptive_max_pool2d", windows(IMAGE, 2, "max"), self=IMAGE, output_size=[3, 3]),
    case("adaptive_max_pool3d", T.max(keepdims=True)[None], self=T[None], output_size=[1, 1, 1]),
    case("upsample_nearest1d", np.repeat(T, 2, 2), self=T, output_size=[8]),
    case("upsample_nearest2d.vec", np.repeat(np.repeat(IMAGE, 2, 2), 3, 3), input=IMAGE,
         output_size=None, scale_factors=[2.0, 3.0]),
    case("upsample_nearest2d", np.repeat(np.repeat(IMAGE, 2, 2), 2, 3), self=IMAGE,
         output_size=[12, 12]),
    case("upsample_nearest3d", np.repeat(T[None, None], 2, 3), self=T[None, None],
         output_size=[2, 6, 4]),
    case("upsample_linear1d", floats(0, 0.25, 0.75, 1)[None, None], self=floats(0, 1)[None, None],
         output_size=[4], align_corners=False),
    case("upsample_bilinear2d",
         (RAMP[:, :, :1, :] * np.ones((4, 1), F32) + np.linspace(0, 12, 4, dtype=F32)[:, None]),
         self=RAMP, output_size=[4, 4], align_corners=False),
    case("upsample_bilinear2d",
         (np.linspace(0, 3, 7) + np.linspace(0, 12, 7)[:, None])[None, None].astype(F32),
         self=RAMP, output_size=[7, 7], align_corners=True),
    case("upsample_trilinear3d", T[None, None], self=T[None, None], output_size=[2, 3, 4],
         align_corners=False),
    case("upsample_bicubic2d", RAMP, self=RAMP, output_size=[4, 4], align_corners=False),
]  # fmt: skip


def normed(x: np.ndarray, axes: tuple[int, ...], eps: float = 1e-5) -> np.ndarray:
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt(x.var(axes, keepdims=True) + F32(eps)))


GROUPS = normed(IMAGE.reshape(2, 2, -1), (2,)).reshape(IMAGE.shape)
G, H = normal(4), normal(4) + 1
STATS = {"running_mean": G, "running_var": H * H, "momentum": 0.1, "eps": 1e-5}
BATCH = (IMAGE - G[:, None, None]) / np.sqrt(H * H + F32(1e-5))[:, None, None]
RMS = T / np.sqrt((T * T).mean(-1, keepdims=True) + F32(1e-6))
NORM = [
    case("softmax.int", softmax(T, 1), self=T, dim=1),
    case("_softmax", softmax(T), self=T, dim=-1, half_to_float=False),
    case("softmax.int", F32(1), self=F32(3), dim=0),
    case("softmax.int", softmax(I6.astype(F32)), self=I6, dim=0, dtype=Kind("float32")),
    case("_safe_softmax", np.stack([softmax(Y), np.zeros(3, F32)]),
         self=np.stack([Y, np.full(3, -INF, F32)]), dim=1),
    case("log_softmax.int", np.log(softmax(T)), self=T, dim=2),
    case("_log_softmax", np.log(softmax(T)), self=T, dim=2, half_to_float=False),
    case("layer_norm", normed(T, (2,)) * G + H, input=T, normalized_shape=[4], weight=G, bias=H),
    case("layer_norm", normed(T, (1, 2), 0.1), input=T, normalized_shape=[3, 4], eps=0.1),
    case("native_layer_norm", normed(T, (2,)) * G, input=T, normalized_shape=[4], weight=G,
         bias=None, eps=1e-5),
    case("rms_norm", RMS * G, input=T, normalized_shape=[4], weight=G, eps=1e-6),
    case("rms_norm", T / np.sqrt((T * T).mean(-1, keepdims=True)), input=T, normalized_shape=[4]),
    case("_fused_rms_norm", RMS, input=T, normalized_shape=[4], weight=None, eps=1e-6),
    case("batch_norm", BATCH * G[:, None, None] + H[:, None, None], input=IMAGE, weight=G, bias=H,
         training=False, cudnn_enabled=False, **STATS),
    case("_native_batch_norm_legit_no_training", BATCH, input=IMAGE, weight=None, bias=None,
         **STATS),
    case("group_norm", GROUPS * G[:, None, None] + H[:, None, None], input=IMAGE, num_groups=2,
         weight=G, bias=H, tol=1e-4),
    case("native_group_norm", GROUPS, input=IMAGE, weight=None, bias=None, N=2, C=4, HxW=36,
         group=2, eps=1e-5, tol=1e-4),
    case("instance_norm", normed(IMAGE, (2, 3)), input=IMAGE, weight=None, bias=None,
         running_mean=None, running_var=None, use_input_stats=True, momentum=0.1, eps=1e-5,
         cudnn_enabled=False, tol=1e-4),
    case("cosine_similarity", (X * Y).sum(1) / np.sqrt((X * X).sum(1) * (Y * Y).sum()), x1=X,
         x2=Y[None]),
]  # fmt: skip

SHAPE = [
    case("view", T.reshape(6, 4), self=T, size=[6, -1]),
    case("reshape", T.reshape(-1), self=T, shape=[24]),
    case("_unsafe_view", T.reshape(4, 6), self=T, size=[4, 6]),
    case("view_as", T.reshape(4, 6), self=T, other=np.ones((4, 6), F32)),
    case("reshape_as", T.reshape(4, 6), self=T, other=np.ones((4, 6), F32)),
    case("ravel", T.ravel(), self=T), case("unsqueeze", T[:, None], self=T, dim=1),
    case("squeeze.dim", T, self=T[:, None], dim=1), case("squeeze", T, self=T[:, None]),
    case("flatten.using_ints", T.reshape(2, 12), self=T, start_dim=1),
    case("unflatten.int", T.reshape(2, 3, 2, 2), self=T, dim=2, sizes=[2, 2]),
    case("atleast_1d", F32([3]), self=F32(3)), case("atleast_2d", Y[None], self=Y),
    case("expand", np.broadcast_to(Y, (4, 2, 3)), self=Y, size=[4, 2, -1]),
    case("expand_as", np.broadcast_to(Y, (2, 3)), self=Y, other=X),
    case("broadcast_to", np.broadcast_to(Y, (2, 3)), self=Y, size=[2, 3]),
    case("permute", T.transpose(2, 0, 1), self=T, dims=[2, 0, -2]), case("t", X.T, self=X),
    case("t", Y, self=Y), case("numpy_T", T.T, self=T), case("mT", T.swapaxes(1, 2), self=T),
    case("matrix_H", X.T, self=X), case("adjoint", T.swapaxes(1, 2), self=T),
    case("transpose.int", T.swapaxes(0, 2), self=T, dim0=0, dim1=-1),
    case("swapaxes", T.swapaxes(0, 1), self=T, axis0=0, axis1=1),
    case("swapdims", T.swapaxes(0, 1), self=T, dim0=0, dim1=1),
    case("movedim.int", np.moveaxis(T, 0, 2), self=T, source=0, destination=2),
    case("moveaxis.intlist", np.moveaxis(T, (0, 1), (2, 0)), self=T, source=[0, 1],
         destination=[2, 0]),
    case("slice.Tensor", T[:, 1:3], self=T, dim=1, start=1, end=9),
    case("slice.Tensor", T[:, :, ::2], self=T, dim=2, step=2),
    case("slice.Tensor", T[-1:], self=T, start=-1),
    case("slice.Tensor", T[2:1], self=T, start=2, end=1),
    case("select.int", T[:, -1], self=T, dim=1, index=-1),
    case("narrow", T[..., 1:3], self=T, dim=2, start=1, length=2),
    case("cat", np.concatenate([X, X * 2], 1), tensors=[X, X * 2], dim=1),
    case("cat", np.concatenate([X, I6.reshape(2, 3)]).astype(F32), tensors=[X, I6.reshape(2, 3)]),
    case("cat", X, tensors=[np.zeros(0, F32), X]),
    case("concat", np.concatenate([X, X]), tensors=[X, X]),
    case("concatenate", np.concatenate([X, X]), tensors=[X, X]),
    case("stack", np.stack([X, X * 2], 2), tensors=[X, X * 2], dim=-1),
    case("split.Tensor", [T[..., :3], T[..., 3:]], self=T, split_size=3, dim=-1),
    case("unsafe_split.Tensor", [X[:1], X[1:]], self=X, split_size=1),
    case("split_with_sizes", [T[..., :1], T[..., 1:]], self=T, split_sizes=[1, 3], dim=2),
    case("split.sizes", [X[:, :1], X[:, 1:]], self=X, split_size=[1, 2], dim=1),
    case("chunk", [Y[:2], Y[2:]], self=Y, chunks=2),
    case("unsafe_chunk", [Y[:2], Y[2:]], self=Y, chunks=2),
    case("tensor_split.sections", [I6[:2], I6[2:4], I6[4:]], self=I6, sections=3),
    case("tensor_split.indices", [I6[:1], I6[1:4], I6[4:]], self=I6, indices=[1, 4]),
    case("unbind.int", [X[:, 0], X[:, 1], X[:, 2]], self=X, dim=1),
    case("repeat", np.tile(X, (2, 1, 2)), self=X, repeats=[2, 1, 2]),
    case("tile", np.tile(T, (2, 1)), self=T, dims=[2, 1]),
    case("repeat_interleave.self_int", np.repeat(X, 2, 1), self=X, repeats=2, dim=1),
    case("repeat_interleave.self_int", np.repeat(X, 2), self=X, repeats=2),
    case("flip", T[::-1, :, ::-1], self=T, dims=[2, 0]),
    case("roll", np.roll(X, 2), self=X, shifts=[2]),
    case("roll", np.roll(X, (1, -1), (0, 1)), self=X, shifts=[1, -1], dims=[0, 1]),
    case("constant_pad_nd", np.pad(X, ((0, 0), (1, 2)), constant_values=7), self=X, pad=[1, 2],
         value=7),
    case("constant_pad_nd", np.pad(X, ((1, 0), (0, 0)))[:, 1:], self=X, pad=[-1, 0, 1, 0]),
    case("pad", np.pad(T, ((0, 0), (0, 0), (2, 1)), "reflect"), self=T, pad=[2, 1], mode="reflect"),
    case("pad", np.pad(T, ((0, 0), (0, 0), (2, 1)), "wrap"), self=T, pad=[2, 1], mode="circular"),
    *(case(f"reflection_pad{n}d", np.pad(x, [(0, 0)] + [(1, 1)] * n, "reflect"), self=x,
           padding=[1, 1] * n) for n, x in ((1, X), (2, normal(1, 3, 3)),
           (3, normal(1, 3, 3, 3)))),
    *(case(f"replication_pad{n}d", np.pad(x, [(0, 0)] + [(1, 1)] * n, "edge"), self=x,
           padding=[1, 1] * n) for n, x in ((1, X), (2, normal(1, 3, 3)),
           (3, normal(1, 3, 3, 3)))),
    case("pixel_shuffle",
         IMAGE.reshape(2, 1, 2, 2, 6, 6).transpose(0, 1, 4, 2, 5, 3).reshape(2, 1, 12, 12),
         self=IMAGE, upscale_factor=2),
    case("pixel_unshuffle",
         IMAGE.reshape(2, 4, 3, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 16, 3, 3),
         self=IMAGE, downscale_factor=2),
    case("triu", np.triu(M, 1), self=M, diagonal=1), case("tril", np.tril(T), self=T),
    case("diff", np.diff(X), self=X), case("diff", B4[1:] != B4[:-1], self=B4),
    case("diff", np.diff(np.concatenate([X, X[:1]]), 2, 0), self=X, n=2, dim=0, append=X[:1]),
    case("diagonal", M.diagonal(), self=M), case("diagonal", M.diagonal(-1), self=M, offset=-1),
    case("diagonal", T.diagonal(1, 1, 2), self=T, offset=1, dim1=1, dim2=2),
    case("unfold", np.stack([R[0:3], R[2:5], R[4:7]]), self=R, dimension=0, size=3, step=2),
]  # fmt: skip


def put(x: np.ndarray, where: object, value: object) -> np.ndarray:
    y = x.copy()
    y[where] = value  # type: ignore[index]
    return y


def added(x: np.ndarray, where: object, value: object) -> np.ndarray:
    y = x.copy()
    np.add.at(y, where, value)  # type: ignore[arg-type]
    return y


IDS, PICK = ints(3, 0, 3), np.array([[0, 2], [1, 1]], I64)
INDEX = [
    case("embedding", E[IDS], weight=E, indices=IDS),
    case("index_select", E[:, IDS[1:2]], self=E, dim=1, index=IDS[1:2]),
    case("gather", np.take_along_axis(X, PICK, 1), self=X, dim=1, index=PICK),
    case("gather", np.take_along_axis(T[:, :2, 0], PICK[:1] % 2, 0), self=T[..., 0], dim=0,
         index=PICK[:1] % 2),
    case("take_along_dim", np.take_along_axis(X, PICK, 1), self=X, indices=PICK, dim=1),
    case("take_along_dim", X.ravel()[[5, 0]], self=X, indices=ints(5, 0)),
    case("index.Tensor", E[IDS - 4], self=E, indices=[IDS - 4]),
    case("index.Tensor", T[:, IDS[:2] % 3], self=T, indices=[None, IDS[:2] % 3]),
    case("index.Tensor", T[PICK[0] % 2, :, PICK[1]], self=T, indices=[PICK[0] % 2, None, PICK[1]]),
    case("index.Tensor", T[:, PICK, PICK], self=T, indices=[None, PICK, PICK]),
    case("index.Tensor", E[B4], self=E, indices=[Fixed(B4)]),
    case("index.Tensor", X[X > 0], self=X, indices=[Fixed(X > 0)]),
    case("_unsafe_index.Tensor", E[IDS], self=E, indices=[IDS]),
    case("index_put", put(E, IDS[:2], Y), self=E, indices=[IDS[:2]], values=Y),
    case("index_put", added(E, IDS, Y), self=E, indices=[IDS], values=Y, accumulate=True),
    case("index_put", put(T, (slice(None), ints(2, 0)), normal(2, 2, 4)), self=T,
         indices=[None, ints(2, 0)], values=normal(2, 2, 4)),
    case("index_put", put(T, (ints(0, 1), slice(None), ints(2, 3)), F32(9)), self=T,
         indices=[ints(0, 1), None, ints(2, 3)], values=F32(9)),
    case("_unsafe_index_put", put(E, IDS[:2], Y), self=E, indices=[IDS[:2]], values=Y),
    case("_index_put_impl", put(E, IDS[:2], Y), self=E, indices=[IDS[:2]], values=Y),
    case("index_copy", put(E, (slice(None), ints(2, 0)), E[:, :2]), self=E, dim=1,
         index=ints(2, 0), source=E[:, :2]),
    case("index_copy", put(E, ints(2), Y), self=E, dim=0, index=ints(2), source=Y[None]),
    case("index_copy", put(B4, ints(3, 0), C4[:2]), self=B4, dim=0, index=ints(3, 0),
         source=C4[:2]),
    case("index_copy", F32(2), self=F32(3), dim=0, index=ints(0), source=F32(2)),
    case("index_fill.int_Scalar", put(E, IDS, -INF), self=E, dim=0, index=IDS, value=-INF),
    case("index_add", added(E, IDS, F32(2) * normal(3, 3)), self=E, dim=0, index=IDS,
         source=normal(3, 3), alpha=2),
    case("index_add", added(I6, ints(1, 1), ints(5, 6)), self=I6, dim=0, index=ints(1, 1),
         source=ints(5, 6)),
    case("scatter.src", put(X, (slice(0, 1), ints(2, 0)), X[1:, :2]), self=X, dim=1,
         index=ints(2, 0)[None], src=X[1:]),
    case("scatter.value", put(X, (0, ints(2, 0)), 7), self=X, dim=1, index=ints(2, 0)[None],
         value=7),
    case("scatter_add", added(Y, ints(1, 1), Y[:2]), self=Y, dim=0, index=ints(1, 1), src=Y),
    case("scatter_reduce.two", floats(3, 5), self=floats(1, 5), dim=0, index=ints(0, 1),
         src=floats(3, 2), reduce="amax"),
    case("slice_scatter", put(X, (slice(None), slice(1, 3)), 7), self=X,
         src=np.full((2, 2), 7, F32), dim=1, start=1),
    case("slice_scatter", put(I6, slice(0, 6, 2), 1), self=I6, src=np.ones(3, I64), step=2),
    case("select_scatter", put(X, (slice(None), -1), 7), self=X, src=np.full(2, 7, F32), dim=1,
         index=-1),
    case("topk", (np.sort(X)[:, ::-1][:, :2], np.argsort(X)[:, ::-1][:, :2]), self=X, k=2),
    case("topk", (np.sort(X, 0)[:1], np.argsort(X, 0)[:1]), self=X, k=1, dim=0, largest=False),
    case("sort", (np.sort(X), np.argsort(X)), self=X),
    case("sort.stable", (np.sort(X, 0)[::-1], np.argsort(X, 0)[::-1]), self=X, stable=True, dim=0,
         descending=True),
    case("topk", (F32(3), np.array(0)), self=F32(3), k=1),
    case("sort", (np.sort(B4[1:3]), np.array([1, 0])), self=B4[1:3]),
    case("one_hot", np.eye(4, dtype=I64)[IDS], self=IDS, num_classes=4),
    case("isin.Tensor_Tensor", np.isin(I6, [0, 5]), elements=I6, test_elements=ints(0, 5)),
    case("isin.Tensor_Scalar", I6 != 5, elements=I6, test_element=5, invert=True),
    case("bucketize.Tensor", np.searchsorted(floats(-1, 0, 1), R), self=R,
         boundaries=floats(-1, 0, 1)),
    case("bucketize.Tensor", np.searchsorted(floats(-0.5, 2.5), I6, "right"), self=I6,
         boundaries=floats(-0.5, 2.5), right=True),
]  # fmt: skip

MAKE = [
    case("full", np.full((2, 3), 1.5, F32), size=[2, 3], fill_value=1.5),
    case("full_like", np.full((2, 3), 2, F32), self=X, fill_value=2),
    case("new_full", np.full(2, True), self=B4, size=[2], fill_value=True),
    case("scalar_tensor", F32(2.5), s=2.5), case("zeros", np.zeros(3, F32), size=[3]),
    case("zeros_like", np.zeros((2, 3), F32), self=X),
    case("new_zeros", np.zeros(2, F32), self=X, size=[2]),
    case("ones", np.ones(3, I64), size=[3], dtype=Kind("int64")),
    case("ones_like", np.ones((2, 3), F32), self=X),
    case("new_ones", np.ones(2, F32), self=X, size=[2]), case("arange", np.arange(5), end=5),
    case("arange.start_step", np.arange(7, 1, -2), start=7, end=1, step=-2),
    case("arange.start", np.arange(0.5, 3, dtype=F32), start=0.5, end=3),
    case("linspace", np.linspace(-1, 2, 7, dtype=F32), start=-1, end=2, steps=7),
    case("eye", np.eye(3, dtype=F32), n=3), case("eye.m", np.eye(2, 3, dtype=F32), n=2, m=3),
    case("meshgrid", list(np.meshgrid(Y, I6[:2].astype(F32), indexing="ij")),
         tensors=[Y, I6[:2].astype(F32)]),
    case("meshgrid.indexing", list(np.meshgrid(Y, J6[:2].astype(F32))),
         tensors=[Y, J6[:2].astype(F32)], indexing="xy"),
]  # fmt: skip

CASES: list[Case] = [*REDUCE, *CONTRACT, *WINDOW, *NORM, *SHAPE, *INDEX, *MAKE]
