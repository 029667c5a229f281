"""Pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .emit import Handle, Unsupported, shape_of
from .torch_ops_contract import spread
from .torch_site import Converter, Site, Table


def _batched(s: Site, n: int, make: Callable[[Handle], Handle]) -> Handle:
    """``make`` on [N, C, *S]; one image without a batch gets one and loses it."""
    x = s.operand("self", s.dtype)
    if x.type.rank == n + 1:
        return s.reshape(make(s.reshape(x, (1, *shape_of(x)))), s.shape)
    return make(x)


def _window(s: Site, n: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(kernel, strides, pads); the stride is the kernel when left out."""
    kernel = spread(s.ints("kernel_size"), n)
    asked = s.ints("stride", ())
    low = spread(s.ints("padding", (0,)), n)
    return kernel, spread(asked, n) if asked else kernel, (*low, *low)


def _max_pool(n: int) -> Converter:
    def convert(s: Site) -> Handle:
        kernel, strides, pads = _window(s, n)
        dilations = spread(s.ints("dilation", (1,)), n)
        ceil = s.bool_("ceil_mode")
        return _batched(s, n, lambda x: s.emit(
            "max_pool", x, kernel=kernel, strides=strides, pads=pads, dilations=dilations,
            ceil_mode=ceil,
        ))  # fmt: skip

    return convert


def _first(convert: Converter) -> Converter:
    """Of an operator that also gives indices: only the values."""

    def values(s: Site) -> tuple[Handle, ...]:
        found = convert(s)
        return (found,)  # type: ignore[return-value]

    return values


def _avg_pool(n: int) -> Converter:
    def convert(s: Site) -> Handle:
        if s.has("divisor_override"):
            raise Unsupported("its divisor_override is set")
        kernel, strides, pads = _window(s, n)
        ceil, counted = s.bool_("ceil_mode"), s.bool_("count_include_pad", True)
        return _batched(s, n, lambda x: s.emit(
            "avg_pool", x, kernel=kernel, strides=strides, pads=pads, ceil_mode=ceil,
            count_include_pad=counted,
        ))  # fmt: skip

    return convert


def _adaptive(op: str, n: int) -> Converter:
    """Windows that tile the input exactly."""

    def convert(s: Site) -> Handle:
        size = shape_of(s.tensor("self"))[-n:]
        wanted = s.shape[-n:]
        if any(a % b for a, b in zip(size, wanted, strict=True)):
            raise Unsupported(f"its windows from {list(size)} to {list(wanted)} are uneven")
        kernel = tuple(a // b for a, b in zip(size, wanted, strict=True))
        common = {"kernel": kernel, "strides": kernel, "pads": (0,) * (2 * n)}
        if op == "max_pool":
            return _batched(s, n, lambda x: s.emit(op, x, **common, dilations=(1,) * n))
        return _batched(s, n, lambda x: s.emit(op, x, **common))

    return convert


def _resize(mode: str) -> Converter:
    """upsample_nearest..., upsample_bilinear...: by size, or by factors."""

    def convert(s: Site) -> Handle:
        x = s.operand("input" if s.has("input") else "self", s.dtype)
        shape, aligned = shape_of(x), s.bool_("align_corners")
        coordinate = "align_corners" if aligned else (
            "asymmetric" if mode == "nearest" else "half_pixel"
        )
        return s.emit(
            "resize", x, sizes=s.shape, scales=_scales(s, shape), mode=mode,
            coordinate=coordinate, rounding="floor",
        )  # fmt: skip

    return convert


def _scales(s: Site, shape: Sequence[int]) -> tuple[float, ...]:
    """Of every dimension: the factors that were given, else the ratio of sizes."""
    n = len(shape) - 2
    given = s.args.get("scale_factors")
    if given is None:
        named = [s.args.get(f"scales_{d}") for d in "dhw"[3 - n:]]
        given = tuple(named) if all(v is not None for v in named) else None
        if given is None and n == 1:
            given = (s.args["scales"],) if s.args.get("scales") is not None else None
    if isinstance(given, tuple) and len(given) == n:
        return (1.0, 1.0, *(float(v) for v in given))
    return tuple(new / old for new, old in zip(s.shape, shape, strict=True))


WINDOW: Table = {
    **{f"max_pool{n}d": _max_pool(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": _first(_max_pool(n)) for n in (2, 3)},
    **{f"avg_pool{n}d": _avg_pool(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _adaptive("avg_pool", n) for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": _adaptive("avg_pool", n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": _first(_adaptive("max_pool", n)) for n in (1, 2, 3)},
    **{f"upsample_nearest{n}d": _resize("nearest") for n in (1, 2, 3)},
    "upsample_linear1d": _resize("linear"), "upsample_bilinear2d": _resize("linear"),
    "upsample_trilinear3d": _resize("linear"), "upsample_bicubic2d": _resize("cubic"),
}  # fmt: skip
