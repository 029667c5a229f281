"""frame-columns: convolutions of few channels read several columns as channels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Block, Builder, Loc, Module, Op, Value, names, remap
from spyrec.ir.ops import attributes
from spyrec.sim.device import DeviceSpec

from .emit import Array, Emit, Facts
from .kernel import GROUP
from .manager import Target
from .primitives import ELEMENTWISE
from .rules_reduce import int_attr, ints

NARROW = 8  # input channels; more fill the steps of the matrix unit well enough
WIDEST = 256  # columns of a frame
WIN = 0.8  # of the time without frames: the prices are rough


@dataclass(frozen=True)
class FrameColumns:
    """A stick along few channels is mostly padding, and a product of few channels and few filters
    leaves most of the matrix unit idle. So ``columns`` neighbours in a row become channels, and the
    outputs that lie within one such frame become filters: a convolution along rows is a banded
    matrix. With y = w * x, stride s and frames of S = r s columns::

        y[o, h, r t + p] = sum of w'[(p, o), (c, j), kh, f] x[c, h + kh, S (t + f) + j]
        w'[(p, o), (c, j), kh, f] = w[o, c, kh, f S + j - s p], zero outside of the window

    The sums are the same, in another order. Frames of all lengths are priced by the device's
    formulas: matrix cycles, lanes that are brought together, bytes that are loaded. Elementwise ops
    with constants per channel follow on framed outputs, before these become columns again.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<1x1x1x8256xf32>
    ...   %w = constant {value = dense<1x1x1x66xfloat32, splat 0.5>} : tensor<1x1x1x66xf32>
    ...   %y = conv(%x, %w) {strides = (1, 2), dilations = (1, 1),
    ...     pads = (0, 0, 0, 0), group = 1} : tensor<1x1x1x4096xf32>
    ...   output "y" = %y
    ... }''')
    >>> after = FrameColumns().run(before, Target(load_device()))
    >>> (conv,) = [op for op in after.body.ops if op.name == "conv"]
    >>> [v.type.static_shape for v in (*conv.operands, conv.result)]
    [(1, 32, 1, 258), (16, 32, 1, 3), (1, 16, 1, 256)]
    """

    name: ClassVar[str] = "frame-columns"
    summary: ClassVar[str] = "Lets convolutions of few channels read several columns as channels."

    def run(self, module: Module, target: Target) -> Module:
        known = {
            op.result: np.asarray(op.attrs["value"])
            for op in module.body.ops if op.name == "constant"
        }  # fmt: skip
        return _Framing(module, known, target.device).run()


@dataclass(frozen=True)
class Framed:
    """A convolution's geometry along a row. ``outputs`` of a frame of ``columns`` columns; the
    window of a frame reaches over ``taps`` frames; there are ``count`` frames of outputs, and
    ``lo`` columns of padding before the first."""

    outputs: int
    columns: int
    taps: int
    count: int
    lo: int


def frames(op: Op) -> Iterator[Framed]:
    """The frames a 2-D convolution may be cut into, the plain convolution not among them."""
    kernel = op.operands[1].type.static_shape[3]
    stride, dilation, lo = (ints(op, key)[1] for key in ("strides", "dilations", "pads"))
    wide = op.result.type.static_shape[3]
    reach = dilation * (kernel - 1) + 1
    outputs = 1
    while outputs * stride <= WIDEST and outputs < 2 * wide:
        columns = outputs * stride
        if columns > 1:
            taps = -(-((outputs - 1) * stride + reach) // columns)
            yield Framed(outputs, columns, taps, -(-wide // outputs), lo)
        outputs *= 2


def framed_filters(op: Op, w: Array, f: Framed) -> Array:
    """w': [outputs * O, C * columns, KH, taps] of w: [O, C, KH, KW]."""
    o, c, high, kernel = w.shape
    stride, dilation = ints(op, "strides")[1], ints(op, "dilations")[1]
    made = np.zeros((f.outputs, o, c, high, f.taps * f.columns), w.dtype)
    for p in range(f.outputs):
        at = p * stride + dilation * np.arange(kernel)
        made[p][..., at] = w
    made = made.reshape(f.outputs, o, c, high, f.taps, f.columns).transpose(0, 1, 2, 5, 3, 4)
    return np.ascontiguousarray(made.reshape(f.outputs * o, c * f.columns, high, f.taps))


# What it takes ------------------------------------------------------------------------------------


def plain_cycles(op: Op, source: str, device: DeviceSpec) -> float:
    """About what a narrow convolution takes as it is. ``source``: what makes its input's lanes;
    an ``input`` of the model that does not fit on chip comes with a stick for each pixel."""
    n, c, high, wide = op.operands[0].type.static_shape
    o, _, *kernel = op.operands[1].type.static_shape
    sticks = n * high * wide
    rows = math.prod(op.result.type.static_shape) // o
    ready = _turned_cycles(sticks, c, 1, device) if source != "channels" else 0.0
    if source == "input" and sticks * GROUP * 2 > 0.2 * device.lx.usable_bytes * device.cores.count:
        ready = device.hbm.bus_ticks(sticks * GROUP * 2, 4096) / device.hbm.bytes_per_cycle
    return ready + _product_cycles(rows, math.prod(kernel), c, o, device)


def framed_cycles(op: Op, f: Framed, device: DeviceSpec) -> float:
    """About what it takes in frames, all cores busy."""
    n, c, high, _ = op.operands[0].type.static_shape
    o, _, tall, _ = op.operands[1].type.static_shape
    out_high, out_wide = op.result.type.static_shape[2:]
    start = device.launch.start_cycles
    groups = -(-c * f.columns // GROUP)
    ready = _turned_cycles(n * high * (f.count + f.taps - 1) * groups, c, f.columns, device) + start
    product = _product_cycles(
        n * out_high * f.count, tall * f.taps, c * f.columns, f.outputs * o, device
    )
    after = 0.0
    if f.outputs > 1:
        sticks = n * out_high * (-(-out_wide // GROUP) if o == 1 else out_wide * -(-o // GROUP))
        after = _turned_cycles(sticks, 1, f.outputs if o == 1 else o, device) + start
    return ready + product + after


def _turned_cycles(sticks: int, runs: int, lanes: int, device: DeviceSpec) -> float:
    """Of a core, when sticks are put together from runs of so many lanes."""
    mine = -(-sticks // device.cores.count)
    if lanes % GROUP == 0:
        return float(mine * device.ring.start_cycles)
    return float(device.sfp.shuffle_cycles(mine * min(GROUP, runs * lanes) * 2, lanes * 2, mine))


def _product_cycles(rows: int, taps: int, k: int, columns: int, device: DeviceSpec) -> float:
    groups = -(-columns // GROUP)
    cut = max(1, device.cores.count // groups) if rows < GROUP * device.cores.count else (
        device.cores.count
    )
    one = device.mm_total_cycles(-(-rows // cut), taps, k, 1)
    return float(one) * -(-groups * cut // device.cores.count)


# The rewrite --------------------------------------------------------------------------------------


class _Framing:
    """Rebuilds a module: values of the old one as they are in the new, and, of those that exist in
    frames, how."""

    def __init__(self, module: Module, known: Mapping[Value, Array], device: DeviceSpec) -> None:
        self.module, self.known, self.device = module, known, device
        self.facts = Facts(constants=dict(known))
        self.made = {op.result: op for op in module.body.ops if len(op.results) == 1}
        self.builder = Builder(names(module))
        self.mapped: dict[Value, Value] = {}
        self.framed: dict[Value, tuple[Value, Framed]] = {}

    def run(self) -> Module:
        for op in self.module.body.ops:
            e = Emit(self.builder, self.facts, op.loc)
            f = self._best(op)
            if f is not None:
                y = self._convolved(op, f, e)
                if f.outputs == 1:
                    self.mapped[op.result] = y
                else:
                    self.framed[op.result] = y, f
            elif not self._follows(op, e):
                for v in op.operands:
                    self._plain(v, e)
                self.builder.add(remap(op, self.mapped))
        for v in self.module.body.results:
            self._plain(v, Emit(self.builder, self.facts, Loc()))
        results = tuple(self.mapped.get(v, v) for v in self.module.body.results)
        body = Block(self.module.body.args, tuple(self.builder.ops), results)
        return replace(self.module, body=body)

    def _best(self, op: Op) -> Framed | None:
        """The frames a convolution is to be cut into, None for none."""
        if op.name != "conv" or op.operands[1] not in self.known:
            return None
        full = replace(op, attrs=MappingProxyType(attributes(op)))
        if int_attr(full, "group") != 1 or op.operands[0].type.static_shape[1] > NARROW:
            return None
        source = self._source(op.operands[0])
        plain = plain_cycles(full, source, self.device)
        priced = [(framed_cycles(full, f, self.device), f.outputs, f) for f in frames(full)]
        cycles, _, best = min(priced, default=(math.inf, 0, None))
        return best if cycles < WIN * plain else None

    def _source(self, v: Value) -> str:
        """What makes the lanes of a value: ``input``, ``channels`` when they are a convolution's,
        else ``other``."""
        while v in self.made and self.made[v].name in (*ELEMENTWISE, "pad", "slice", "max_pool"):
            v = self.made[v].operands[0]
        if v not in self.made:
            return "input"
        return "channels" if self.made[v].name == "conv" else "other"

    def _convolved(self, op: Op, f: Framed, e: Emit) -> Value:
        op = replace(op, attrs=MappingProxyType(attributes(op)))
        x = self._plain(op.operands[0], e)
        n, c, high, wide = x.type.static_shape
        total = (f.count + f.taps - 1) * f.columns
        x = e.slice_axis(x, 3, 0, min(wide, total - f.lo))
        x = e.pad(x, (0, 0, 0, f.lo), (0, 0, 0, total - f.lo - x.type.static_shape[3]))
        x = e.reshape(x, (n, c, high, total // f.columns, f.columns))
        x = e.reshape(e.transpose(x, (0, 1, 4, 2, 3)), (n, c * f.columns, high, total // f.columns))
        filters = e.constant(framed_filters(op, self.known[op.operands[1]], f), x.type.dtype)
        (stride, _), (dilation, _) = (ints(op, key) for key in ("strides", "dilations"))
        top, _, bottom, _ = ints(op, "pads")
        return e.op(
            "conv", x, filters, strides=(stride, 1), dilations=(dilation, 1),
            pads=(top, 0, bottom, 0), group=1,
        )  # fmt: skip

    def _plain(self, v: Value, e: Emit) -> Value:
        """The value in columns."""
        if v in self.framed and v not in self.mapped:
            y, f = self.framed[v]
            n, o, high, wide = v.type.static_shape
            y = e.reshape(y, (n, f.outputs, o, high, f.count))
            y = e.reshape(e.transpose(y, (0, 2, 3, 4, 1)), (n, o, high, f.count * f.outputs))
            self.mapped[v] = e.slice_axis(y, 3, 0, wide)
        return self.mapped.get(v, v)

    def _follows(self, op: Op, e: Emit) -> bool:
        """Carry an elementwise op out on frames, where all it reads is in such frames or a constant
        per channel."""
        found = {self.framed[v][1] for v in op.operands if v in self.framed}
        if op.name not in ELEMENTWISE or len(found) != 1:
            return False
        (f,) = found
        shape = next(v.type.static_shape for v in op.operands if v in self.framed)
        operands = []
        for v in op.operands:
            if v in self.framed:
                operands.append(self.framed[v][0])
                continue
            array = self.known.get(v)
            if array is None or any(n > 1 for n in array.shape[-2:]) or array.ndim > 4:
                return False
            if array.size > 1:
                if array.size != shape[1]:
                    return False
                array = np.tile(array.reshape(1, -1, 1, 1), (1, f.outputs, 1, 1))
            operands.append(e.constant(array, v.type.dtype))
        self.framed[op.result] = e.op(op.name, *operands, **op.attrs), f
        return True
