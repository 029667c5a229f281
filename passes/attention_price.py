"""What an attention takes by how its queries and keys are cut: a formula that ranks the ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyrec.ir.core import Op
from spyrec.sim.device import DeviceSpec

from .attention_parts import Block
from .kernel import GROUP

RESIDENT_SHARE = 0.85
"""Of all scratchpads, for what stays there; the tiles of a kernel take the rest."""
BEGIN = 0.25
"""Of the start of a launch, for each kernel: most share one with the kernel before."""
KIND = "dl16"
SOFTMAX_TURNS, ONLINE_TURNS = 6, 5
"""Micro-programs that softmax turns to, and the first part of an online one; what fades has
``FADE_TURNS`` more, for one number a row each."""
FADE_TURNS = 4
NUMBERS = 5  # a row has at once, each in a stick: m and l before and after, f


@dataclass(frozen=True)
class AttentionPrice:
    """``op`` is an attention of static shape. All cores are busy, from queries, keys and values on
    chip to a result on chip, but for what the scratchpads do not hold."""

    op: Op
    device: DeviceSpec

    def blocks(self, blocks: Sequence[Block]) -> float:
        """Cycles with all keys of a block of rows at once, queries, keys and values whole on
        chip."""
        _, _, rows, depth = self.op.operands[0].type.static_shape
        columns = self.op.operands[1].type.static_shape[2]
        whole = self._core_rows(rows) * depth + self._core_keys(columns)
        total = self._brought(columns)
        for b in blocks:
            height, width = self._core_rows(b.last - b.first), b.stop - b.start
            points = height * -(-width // GROUP)
            work = self._vector(points, ("max",)) + 2 * self._vector(points, ("sub", "exp", "add"))
            work += 4 * self._turn(height) + SOFTMAX_TURNS * self.device.sfp.switch_cycles
            nbytes = points * self.device.lx.group_bytes(KIND)
            beside = 2 * (whole + height * depth) + max(0, 2 * self._copied(width) - nbytes)
            total += self._products(height, width) + work + self._begun(3)
            if len(blocks) > 1:  # queries, keys and values of a block are sent to where it is
                cut = height * depth + self._core_keys(width)
                beside += 2 * cut
                total += self._begun(3) + self._sent(cut)
            total += self._spilled((2 * nbytes, beside), nbytes)
        return total

    def online(self, blocks: Sequence[Sequence[Block]]) -> float:
        """Cycles with the keys of each block of rows in parts."""
        depth = self.op.operands[0].type.static_shape[3]
        different = {(b.start, b.stop) for parts in blocks for b in parts}
        total = self._brought(sum(stop - start for start, stop in different))
        for parts in blocks:
            height = self._core_rows(parts[0].last - parts[0].first)
            numbers = NUMBERS * height * GROUP
            if len(blocks) > 1:
                total += self._begun(1) + self._sent(height * depth)
            for i, b in enumerate(parts):
                width = b.stop - b.start
                points = height * -(-width // GROUP)
                work = self._vector(points, ("max",)) + self._vector(points, ("sub", "exp"))
                work += self._vector(points, ("sub", "exp", "add")) + 3 * self._turn(height)
                work += ONLINE_TURNS * self.device.sfp.switch_cycles
                if i:
                    work += FADE_TURNS * (self._turn(height) + self.device.sfp.switch_cycles)
                nbytes = points * self.device.lx.group_bytes(KIND)
                beside = 2 * (4 * height * depth + numbers + self._copied(width))
                total += self._products(height, width) + work
                total += self._spilled(((2 + (i > 0)) * nbytes, beside), nbytes)
                total += self._begun(3)
        return total

    def _core_rows(self, rows: int) -> int:
        """Rows of all heads that the fullest core has."""
        batch, heads = self.op.operands[0].type.static_shape[:2]
        return -(-batch * heads * rows // self.device.cores.count)

    def _core_keys(self, columns: int) -> int:
        """Elements of keys and values that a core has, each one once on the card."""
        batch, groups, _, depth = self.op.operands[1].type.static_shape
        n = self.op.result.type.static_shape[3]
        return -(-batch * groups * columns * (depth + n) // self.device.cores.count)

    def _copied(self, width: int) -> int:
        """Elements of the keys, or of the values, that a product of one head reads."""
        n = self.op.result.type.static_shape[3]
        return width * max(self.op.operands[0].type.static_shape[3], n)

    def _products(self, height: int, width: int) -> float:
        depth, n = self.op.operands[0].type.static_shape[3], self.op.result.type.static_shape[3]
        scores = self.device.mm_total_cycles(height, 1, depth, -(-width // GROUP))
        weighted = self.device.mm_total_cycles(height, 1, width, -(-n // GROUP))
        return float(scores + weighted)

    def _vector(self, points: int, steps: Sequence[str]) -> float:
        """An instruction on all scores, lanes apart."""
        port = 2 * points * self.device.lx.group_bytes(KIND)
        work = self.device.sfp.group_cycles(steps)
        return float(self.device.vec_total_cycles(points, work, port))

    def _turn(self, height: int) -> float:
        """An instruction on a number a row, which is spread over lanes or folded from them."""
        port = 2 * height * self.device.lx.group_bytes(KIND)
        return float(self.device.vec_total_cycles(height, 1, port, False, 1))

    def _brought(self, columns: int) -> float:
        """Cycles of reading keys and values; keys are turned, which takes as long again."""
        batch, groups, _, depth = self.op.operands[1].type.static_shape
        elements = batch * groups * columns * (2 * depth + self.op.result.type.static_shape[3])
        nbytes = elements // GROUP * self.device.lx.group_bytes(KIND)
        return nbytes / self.device.hbm.bytes_per_cycle

    def _begun(self, kernels: int) -> float:
        return BEGIN * kernels * self.device.launch.start_cycles

    def _sent(self, elements: int) -> float:
        return -(-elements // GROUP) * self.device.ring.run_cycles

    def _spilled(self, alive: tuple[int, int], each: int) -> float:
        """Cycles of scores, ``each`` so many bytes a core, that go to card memory and come back,
        where (bytes of scores, bytes of all else) are alive at once."""
        room = int(RESIDENT_SHARE * self.device.lx.usable_bytes) - alive[1]
        if alive[0] <= room:
            return 0.0
        away = -(-(alive[0] - max(0, room)) // each) * each * self.device.cores.count
        hbm = self.device.hbm
        there, back = hbm.bus_ticks(away, away, writes=True), hbm.bus_ticks(away, away)
        return float(there + back) / hbm.bytes_per_cycle
