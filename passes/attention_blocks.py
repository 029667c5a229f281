"""attention-blocks: how many rows of an attention are computed at a time, and how many keys."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from spyrec.ir.core import Builder, Module, Op, Value, rewrite
from spyrec.ir.ops import attributes
from spyrec.sim.device import DeviceSpec

from .attention_parts import blocks_of, parts_of, seen_by
from .attention_price import AttentionPrice
from .attention_trial import trial_cycles
from .emit import Array
from .kernel import GROUP
from .manager import Target
from .rules_reduce import int_attr

WIN = 0.95
"""Of what another way takes: what cutting rows, and then keys, must promise, as prices are
estimates."""
CLOSE = 0.6
"""Of the price without: keys in parts that promise less are tried out."""
WORTH_CYCLES = 100_000
"""An attention of less has its keys in one part: little is to be gained."""
LEAST_KEYS, MOST_KEYS = 256, 2048


@dataclass(frozen=True)
class Way:
    """Rows and keys that are computed at a time, 0: all. With ``keys`` the softmax is an online
    one."""

    rows: int = 0
    keys: int = 0


@dataclass(frozen=True)
class AttentionBlocks:
    """Set ``rows`` and ``keys`` of attention ops: queries in blocks, each with the keys its rows
    see, and those keys in parts.

    What a constant mask (causal, sliding window) hides from a whole block is not computed, and the
    scores of a block fit the scratchpads where those of all rows do not. Against that stand more
    launches and the cutting of queries, keys and values. In parts of the keys
    (``online_softmax.py``) no row's scores are ever there at once, so blocks stay low enough for
    the scratchpads however many keys there are. What was added up is scaled anew with each part.

    Blocks of 64 rows, 128, 256 and so on, with keys whole or by 256, 512 and so on, are priced with
    the device's formulas. Where the best with keys in parts and the best without are close, both
    are run in the simulator, if the target can. ``rows`` and ``keys`` set one way for all
    attentions that are larger.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.sim.device import load_device
    >>> before = parse_module('''module "m" {
    ...   input %q: tensor<1x32x2048x128xf16>
    ...   input %k: tensor<1x8x2048x128xf16>
    ...   input %v: tensor<1x8x2048x128xf16>
    ...   %y = attention(%q, %k, %v) {causal = true} : tensor<1x32x2048x128xf16>
    ...   output "y" = %y
    ... }''')
    >>> after = AttentionBlocks().run(before, Target(load_device()))
    >>> [(op.attrs["rows"], op.attrs["keys"]) for op in after.body.ops]
    [(256, 512)]
    """

    name: ClassVar[str] = "attention-blocks"
    summary: ClassVar[str] = (
        "Cuts attention into blocks of rows and of keys where that is faster or saves memory."
    )
    rows: int = 0
    keys: int = 0

    def run(self, module: Module, target: Target) -> Module:
        known = {
            op.result: np.asarray(op.attrs["value"])
            for op in module.body.ops if op.name == "constant"
        }  # fmt: skip
        ways: dict[Hashable, Way] = {}  # layers are alike

        def cut(op: Op, builder: Builder) -> Sequence[Value] | None:
            full = with_defaults(op)
            if op.name != "attention" or int_attr(full, "rows") or int_attr(full, "keys"):
                return None
            key = (
                tuple(v.type for v in op.operands[:3]), op.operands[3:],
                *(full.attrs[name] for name in ("causal", "scale", "hidden")),
            )  # fmt: skip
            if key not in ways:
                masks = [known.get(m) for m in op.operands[3:]]
                ways[key] = self._asked(op) or best_way(op, masks, target)
            way = ways[key]
            if way == Way():
                return None
            builder.add(op.with_attrs(rows=way.rows, keys=way.keys))
            return op.results

        return rewrite(module, cut)

    def _asked(self, op: Op) -> Way | None:
        """The way that the options say, as far as there are as many rows and keys."""
        if not self.rows and not self.keys:
            return None
        rows, columns = _size(op)
        return Way(self.rows if self.rows < rows else 0, self.keys if self.keys < columns else 0)


def with_defaults(op: Op) -> Op:
    """An attention with all its attributes; other ops as they are."""
    return replace(op, attrs=MappingProxyType(attributes(op))) if op.name == "attention" else op


def _size(op: Op) -> tuple[int, int]:
    """Rows of queries, and keys."""
    return op.operands[0].type.static_shape[2], op.operands[1].type.static_shape[2]


def best_way(op: Op, masks: Sequence[Array | None], target: Target) -> Way:
    """The way that takes the least time. ``masks``: the arrays of the op's mask operands, None for
    what is not known when compiled."""
    priced = PricedWays(with_defaults(op), masks, target.device)
    plain, online = priced.in_blocks(), priced.online()
    if WIN * priced.cycles(Way()) <= priced.cycles(plain):
        plain = Way()
    if priced.cycles(plain) < WORTH_CYCLES:
        return plain
    share = priced.cycles(online) / priced.cycles(plain)
    if share < CLOSE:
        return online
    if share > 1 / CLOSE:
        return plain
    tried = [trial_cycles(op, masks, way.rows, way.keys, target) for way in (plain, online)]
    if tried[1] is not None:
        return online if tried[0] is None or tried[1] < WIN * tried[0] else plain
    return online if tried[0] is None and share < WIN else plain


@dataclass
class PricedWays:
    """The ways of one attention with all its attributes, and what they are expected to take."""

    op: Op
    masks: Sequence[Array | None]
    device: DeviceSpec
    known: dict[Way, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows, self.columns = _size(self.op)
        self.seen = seen_by(self.op, self.masks)

    def in_blocks(self) -> Way:
        """The best in blocks of rows; the plain way where there is one block."""
        ways = [Way(height) for height in _doubled(GROUP, self.rows)]
        return min(ways, key=self.cycles, default=Way())

    def online(self) -> Way:
        """The best with keys in parts; the plain way where there is one part."""
        widths = _doubled(LEAST_KEYS, min(self.columns, MOST_KEYS + 1))
        ways = [Way(rows, keys) for rows in (0, *_doubled(GROUP, self.rows)) for keys in widths]
        return min(ways, key=self.cycles, default=Way())

    def cycles(self, way: Way) -> float:
        if way not in self.known:
            price, size = AttentionPrice(self.op, self.device), (self.rows, self.columns)
            blocks = blocks_of(*size, way.rows, self.seen)
            parts = [parts_of(b, way.keys, *size, self.seen) for b in blocks if way.keys]
            self.known[way] = price.online(parts) if way.keys else price.blocks(blocks)
        return self.known[way]


def _doubled(first: int, end: int) -> list[int]:
    """``first``, twice as much and so on, below ``end``."""
    return [first << i for i in range(end.bit_length()) if first << i < end]
