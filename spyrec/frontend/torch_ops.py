"""Every PyTorch operator that can be imported, by its name without the overload."""

from __future__ import annotations

from .emit import Handle, Unsupported
from .torch_ops_composed import COMPOSED
from .torch_ops_contract import CONTRACT
from .torch_ops_elementwise import ELEMENTWISE
from .torch_ops_index import INDEX
from .torch_ops_make import MAKE
from .torch_ops_norm import NORM
from .torch_ops_reduce import REDUCE
from .torch_ops_shape import SHAPE
from .torch_ops_window import WINDOW
from .torch_site import Converter, Site, Table


def _never(reason: str) -> Converter:
    def convert(s: Site) -> Handle:
        raise Unsupported(reason)

    return convert


FAMILIES: dict[str, Table] = {
    "elementwise": ELEMENTWISE, "reductions": REDUCE, "products": CONTRACT, "windows": WINDOW,
    "normalisations": NORM, "shapes": SHAPE, "indices": INDEX, "made from nothing": MAKE,
    "made of others": COMPOSED,
}  # fmt: skip
"""Name, of torch's own operators without "aten.", -> how it is converted."""

_KEEPS = "how many elements it keeps is only known at run time"
_DRAWS = "it draws random numbers; draw them outside and hand them in"

REFUSED: dict[str, str] = {
    "higher_order.while_loop": "how often it runs is only known at run time",
    "aten.as_strided": "it picks elements by where they lie in memory",
    **dict.fromkeys((f"aten.{name}" for name in (
        "masked_select", "nonzero", "argwhere", "unique", "_unique2", "unique_consecutive",
        "unique_dim",
    )), _KEEPS),
    **dict.fromkeys((f"aten.{name}" for name in (
        "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli",
        "multinomial", "normal", "randperm", "uniform", "exponential", "geometric", "cauchy",
        "log_normal", "random", "poisson",
    )), _DRAWS),
}  # fmt: skip
"""Operators that are known and never converted, and why."""

CONVERTERS: Table = {
    **{name: _never(reason) for name, reason in REFUSED.items()},
    **{
        name if "." in name else f"aten.{name}": convert
        for table in FAMILIES.values()
        for name, convert in table.items()
    },
}
