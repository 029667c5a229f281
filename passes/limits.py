"""limits: a model that no plan can fit is refused before time and host memory are spent on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Loc, Module, Value
from spyrec.ir.errors import CapacityError

from .dce import remove_dead
from .hbm_plan import gib
from .manager import Target

LEAST_BITS = 16  # a wider element is kept in 16 bits at best


@dataclass(frozen=True)
class Limits:
    """Look at every input and every tensor that reaches an output. Changes nothing.

    CapacityError names the first that holds no element (inputs first: what they feed is empty too),
    and lists those that are larger than the card's memory even in the narrowest format the device
    could keep them in.

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> module = parse_module('''module "m" {
    ...   input %x: tensor<0x4xf32>
    ...   output "y" = %x
    ... }''')
    >>> Limits().run(module, Target(load_device()))
    Traceback (most recent call last):
    spyrec.ir.errors.CapacityError: limits: %x (0x4 f32, from x) holds no element, so there is \
nothing to compute; give each dimension a size of 1 or more
    """

    name: ClassVar[str] = "limits"
    summary: ClassVar[str] = "Refuses tensors that are empty or larger than the card."

    def run(self, module: Module, target: Target) -> Module:
        card = target.device.hbm.bytes
        problems: list[str] = []
        for value, loc in _values(remove_dead(module)):
            shape = "x".join(map(str, value.type.static_shape)) or "scalar"
            named = f"limits: %{value.name} ({shape} {value.type.dtype}, from {loc})"
            least = value.type.size * min(value.type.dtype.bits, LEAST_BITS) // 8
            if not value.type.size:
                raise CapacityError(
                    f"{named} holds no element, so there is nothing to compute; give each "
                    "dimension a size of 1 or more"
                )
            elif least > card:
                problems.append(
                    f"{named} needs at least {gib(least)}, the card has {gib(card)}; "
                    "make the batch smaller or split the tensor in the model"
                )
        if problems:
            raise CapacityError("\n".join(problems))
        return module


def _values(module: Module) -> Iterator[tuple[Value, Loc]]:
    """The inputs and the results of all ops, with where they come from."""
    for value in module.body.args:
        yield value, Loc((value.name,))
    for op in module.body.ops:
        for value in op.results:
            yield value, op.loc

