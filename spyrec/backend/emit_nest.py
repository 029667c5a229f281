"""Code for matrix, vector and window kernels: walk the tile body, one statement per load,
computation or store."""

from __future__ import annotations

from dataclasses import replace

from spyrec.ir.core import Block, Op, Value
from spyrec.ir.errors import PassError
from spyrec.passes.attrs import whole_number
from spyrec.passes.kernel import Map
from spyrec.passes.scratchpad import uses_matrix

from .finish import Pieces, without_loads
from .matrix import matrix_step
from .places import Path, Places
from .psum import psum_step
from .transfers import load, store
from .tree import Body, LoopStmt, restrain
from .vector import temporary_map, vector_step


class NestEmitter:
    """Builds the statement tree of one kernel."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.factors: list[Op] = []  # loads in the loop over the inner dimension

    def run(self) -> Body:
        root = Body()
        self._block(self.places.op.regions[0], root, ())
        nest = self.places.nest
        restrain(root, nest.buffers, nest.overlap)
        return root

    def _block(self, block: Block, body: Body, path: Path) -> None:
        stored = {
            op.operands[0]: whole_number(op, "result") for op in block.ops if op.name == "store"
        }
        frame = self.places.frame
        for op in block.ops:
            match op.name:
                case "load":
                    load(self.places, op, body, path)
                case "init":
                    pass  # the first trip overwrites
                case "for":
                    self._for(op, body, path)
                case "compute" if op.attrs["unit"] == "pt":
                    matrix_step(self.places, op, body, path)
                case "compute":
                    vector_step(self.places, op, body, path, stored.get(op.result))
                case "psum":
                    psum_step(self.places, op, body, path)
                    self.places.frame = replace(frame, finishing=True)
                case "finish":
                    self._finish(op, body, path)
                case "store":
                    store(self.places, op, body, path)
                case _:
                    raise PassError(
                        f"codegen: {op.name} cannot stand in a tile body (from {op.loc})"
                    )
        self.places.frame = frame

    def _for(self, op: Op, body: Body, path: Path) -> None:
        dim = whole_number(op, "dim")
        inner = Body()
        region = op.regions[0]
        if op.results:
            self._carry(op, region, body, path)
        self._block(region, inner, (*path, dim))
        nest = self.places.nest
        count = nest.trips(dim)
        if nest.finish and dim == nest.k:
            self.factors = [o for o in region.ops if o.name == "load"]
            count -= nest.ending
        body.items.append(LoopStmt(count, inner))

    def _finish(self, op: Op, body: Body, path: Path) -> None:
        """The columns of a tile of sums, piece by piece."""
        pieces = Pieces(self.places, op, body, path, self.factors)
        pieces.load_last()
        for number in range(len(self.places.nest.pieces)):
            inner = Body()
            emitter = NestEmitter(pieces.opened(number, inner))
            emitter._block(without_loads(op.regions[0]), inner, path)
            pieces.close(number, inner)
        pieces.end()

    def _carry(self, op: Op, region: Block, body: Body, path: Path) -> None:
        """The accumulator a loop carries has one place from the outermost carried loop on."""
        place = self.places.of.get(op.operands[0])
        if place is None:
            make = self.places.accumulator if uses_matrix(region) else self.places.tile
            nest = self.places.nest
            inside = nest.loops[nest.loops.index(whole_number(op, "dim")) :]
            place = make(
                op.results[0], self._carried_map(op.results[0]), path, body,
                steps=self.places.trips(inside),
            )  # fmt: skip
        self.places.of[region.args[0]] = place
        self.places.of[op.results[0]] = place
        for inner in region.ops:
            if region.args[0] in inner.operands:
                self.places.of.update((r, place) for r in inner.results)

    def _carried_map(self, v: Value) -> Map:
        """A vector kernel's results may vary along more dimensions than its reduction's does."""
        nest = self.places.nest
        return temporary_map(self.places, v) if nest.kind == "vec" else nest.out_maps[0]
