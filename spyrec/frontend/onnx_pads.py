"""The padding of convolution and pooling windows, which ONNX states in four ways (auto_pad)."""

from __future__ import annotations

from .emit import Unsupported
from .onnx_node import Node


def window_pads(
    n: Node,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[int, ...]:
    """Padding as (low of each dimension..., high of each dimension...).

    With SAME_UPPER and SAME_LOWER the output has ceil(size / stride) positions; an odd row goes to
    the high or the low side.
    """
    match n.str_("auto_pad", "NOTSET"):
        case "NOTSET":
            pads = n.ints("pads", (0,) * (2 * len(kernel))) or ()
            if len(pads) != 2 * len(kernel):
                raise Unsupported(
                    f"its pads {list(pads)} do not fit a kernel of {len(kernel)} dimensions"
                )
            return pads
        case "VALID":
            return (0,) * (2 * len(kernel))
        case "SAME_UPPER" | "SAME_LOWER" as mode:
            total = [
                max((-(-i // s) - 1) * s + (k - 1) * d + 1 - i, 0)
                for i, k, s, d in zip(size, kernel, strides, dilations, strict=True)
            ]
            small, large = [t // 2 for t in total], [t - t // 2 for t in total]
            return (*small, *large) if mode == "SAME_UPPER" else (*large, *small)
        case other:
            raise Unsupported(f"its auto_pad is '{other}'")
