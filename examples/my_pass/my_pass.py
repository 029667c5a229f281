"""early-slice: a model that needs only some rows of a result computes only those.

Exported language models often make logits for every token and then keep those of the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spyrec.ir.core import Module, Op, Value
from spyrec.ir.ops import OPS
from spyrec.passes.emit import Emit
from spyrec.passes.manager import Target
from spyrec.passes.rule import Rule, apply_rules


@dataclass(frozen=True)
class EarlySlice:
    """slice(f(x)) -> f(slice(x)), where each row of f(x) comes from that row of x alone: products
    with weights and elementwise ops. Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<8x4xf32>
    ...   input %w: tensor<4x2xf32>
    ...   %y = matmul(%x, %w) : tensor<8x2xf32>
    ...   %z = relu(%y) : tensor<8x2xf32>
    ...   %last = slice(%z) {starts = (7, 0), sizes = (1, 2), steps = (1, 1)} : tensor<1x2xf32>
    ...   output "last" = %last
    ... }''')
    >>> print(print_module(EarlySlice().run(before, Target(load_device()))), end="")
    module "m" {
      input %x: tensor<8x4xf32>
      input %w: tensor<4x2xf32>
      %slice_2 = slice(%x) {starts = (7, 0), sizes = (1, 4), steps = (1, 1)} : tensor<1x4xf32>
      %matmul = matmul(%slice_2, %w) : tensor<1x2xf32>
      %relu = relu(%matmul) : tensor<1x2xf32>
      output "last" = %relu
    }
    """

    name: ClassVar[str] = "early-slice"
    summary: ClassVar[str] = "Takes rows before products and elementwise ops, not after."

    def run(self, module: Module, target: Target) -> Module:
        return apply_rules(module, (EARLY_SLICE,))


def build(op: Op, e: Emit) -> Value | None:
    """The rule: what stands in for a slice, None where it does not apply."""
    (y,) = op.operands
    starts, sizes, steps = (tuple(op.attrs[k]) for k in ("starts", "sizes", "steps"))
    elementwise = [name for name, known in OPS.items() if known.family == "elementwise"]
    made = e.made_by(y, "matmul", *elementwise)
    if made is None or not e.read_once(y) or len(made.results) != 1:
        return None
    if made.name == "matmul":
        x, w = made.operands
        whole = (starts[-1], sizes[-1], steps[-1]) == (0, y.type.shape[-1], 1)
        if w.type.rank != 2 or not whole:
            return None
        starts, sizes = (*starts[:-1], 0), (*sizes[:-1], x.type.shape[-1])
        operands = [e.op("slice", x, starts=starts, sizes=sizes, steps=steps), w]
    else:
        if any(v.type.shape not in (y.type.shape, ()) for v in made.operands):
            return None
        operands = [
            e.op("slice", v, starts=starts, sizes=sizes, steps=steps) if v.type.shape else v
            for v in made.operands
        ]
    e.absorb(made)  # the new op carries out that one's model nodes too
    return e.op(made.name, *operands, **made.attrs)


EARLY_SLICE = Rule("early-slice", "slice", build, "exact", "Rows of f(x) are f of rows of x.")

EXAMPLES = {
    "early-slice": [
        """module "product" {
  input %x: tensor<2x4x3xf32>
  input %w: tensor<3x5xf32>
  %y = matmul(%x, %w) : tensor<2x4x5xf32>
  %last = slice(%y) {starts = (0, 3, 0), sizes = (2, 1, 5), steps = (1, 1, 1)} : tensor<2x1x5xf32>
  output "last" = %last
}""",
        """module "elementwise" {
  input %x: tensor<6x4xf32>
  input %scale: tensor<f32>
  %y = mul(%x, %scale) : tensor<6x4xf32>
  %even = slice(%y) {starts = (0, 1), sizes = (3, 2), steps = (2, 1)} : tensor<3x2xf32>
  output "even" = %even
}""",
    ]
}
"""Models with the rule's pattern: ``spyrec check-rule my_pass.py`` tries it on them."""
