"""fuse: ops become kernels. A matmul or conv takes the elementwise ops behind it along; elementwise
ops and reductions merge; data movement becomes `move` ops in kernels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import ClassVar

from spyrec.ir.affine import MoveSpec, as_move, reshape_via_flat
from spyrec.ir.core import Attr, Block, Builder, Loc, Module, Op, Value, names, rewrite, uses
from spyrec.ir.types import TensorType

from .groups import Group, Grouper, is_depthwise
from .kernel import GROUP, Map, identity_map, rank1
from .kernel_body import exact_scalars, region
from .manager import Target
from .primitives import REDUCTIONS
from .rules_reduce import ints

LARGE_REDUCTION = 1 << 14  # elements from which a second launch is worth more cores


@dataclass(frozen=True)
class Fuse:
    """Form kernels: the device stage begins here.

    Before -> after:

    >>> from spyrec.ir.parser import parse_module
    >>> from spyrec.ir.printer import print_module
    >>> from spyrec.sim.device import load_device
    >>> target = Target(load_device())
    >>> before = parse_module('''module "m" {
    ...   input %x: tensor<256x128xdl16>
    ...   input %w: tensor<128x64xdl16>
    ...   input %b: tensor<64xdl16>
    ...   %y = matmul(%x, %w) : tensor<256x64xdl16>
    ...   %z = add(%y, %b) : tensor<256x64xdl16>
    ...   output "z" = %z
    ... }''')
    >>> print(print_module(Fuse().run(before, target)))
    ... # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    module "m" {stage = "device"} {
      ...
      %z... = kernel(%x, %w, %b) {name = "k0_matmul_add", kind = "contract",
        dims = (("m", 256), ("n", 64), ("k", 128)), ..., ops = "matmul,add"}
        : tensor<256x64xdl16> {
        ...
        %y... = matmul(...
        %z... = add(...
        yield ...
      }
      output "z" = ...
    }
    """

    name: ClassVar[str] = "fuse"
    summary: ClassVar[str] = "Groups ops into matrix, vector and move kernels."
    lx_share: float = 0.4  # of the scratchpad a fused tile may plan with
    join: bool = True  # False: a kernel an op, to measure what fusing is worth

    def run(self, module: Module, target: Target) -> Module:
        module = own_outputs(exact_scalars(module))
        module = _split_reductions(module, target.device.cores.count)
        budget = int(target.device.lx.usable_bytes * self.lx_share)
        return kernels_of(module, Grouper(module, budget, self.join).run())


def kernels_of(module: Module, groups: Sequence[Group]) -> Module:
    """The module at the device stage, one kernel for each group."""
    build = _KernelBuilder(module)
    for group in groups:
        build.add(group)
    return build.module().with_attrs(stage="device")


def own_outputs(module: Module) -> Module:
    """Each output becomes a tensor of its own: an echoed input, a constant or a repeated result is
    copied.
    """
    builder = Builder(names(module))
    builder.ops.extend(module.body.ops)
    constants = {op.result for op in module.body.ops if op.name == "constant"}
    taken = {*module.body.args, *constants}
    results = []
    for v in module.body.results:
        if v in taken:
            v = builder.op(
                "reshape", [v], loc=Loc((v.name,)), hint=f"{v.name}_out", shape=v.type.shape
            ).result
        taken.add(v)
        results.append(v)
    return replace(module, body=Block(module.body.args, tuple(builder.ops), tuple(results)))


def _split_reductions(module: Module, cores: int) -> Module:
    """A large reduction over several axes with few results would run on few cores: fold the last
    axis first, in parallel over the others. The partial results are rounded to the tensor's format.
    """

    def split(op: Op, builder: Builder) -> Sequence[Value] | None:
        if op.name not in REDUCTIONS:
            return None
        shape = rank1(op.operands[0].type)
        axes = [a for a in ints(op, "axes") if shape[a] > 1]
        results = op.results[0].type.size
        if len(axes) < 2 or -(-results // GROUP) * 2 > cores or prod(shape) < LARGE_REDUCTION:
            return None
        first = builder.op(
            op.name,
            op.operands,
            loc=op.loc,
            hint=f"{op.results[0].name}_part",
            axes=(axes[-1],),
            keepdims=True,
        )
        return builder.op(
            op.name,
            first.results,
            loc=op.loc,
            hint=op.results[0].name,
            axes=tuple(axes[:-1]),
            keepdims=True,
        ).results

    return rewrite(module, split)


class _KernelBuilder:
    """Emits one kernel op for each group."""

    def __init__(self, source: Module) -> None:
        self.source = source
        self.builder = Builder(names(source))
        self.mapped: dict[Value, Value] = {}
        self.uses = uses(source.body)
        self.outputs = set(source.body.results)
        self.count = 0
        for op in source.body.ops:
            if op.name == "constant":
                self.builder.add(op)

    def module(self) -> Module:
        results = tuple(self.mapped.get(v, v) for v in self.source.body.results)
        return replace(
            self.source, body=Block(self.source.body.args, tuple(self.builder.ops), results)
        )

    def add(self, group: Group) -> None:
        match group.kind:
            case "move":
                self._move(group.ops[0])
            case "gather":
                self._emit(group, *_gather_nest(group.ops[0]))
            case "contract":
                self._emit(group, *_contract_nest(group.ops[0]))
            case "fold":
                self._emit(group, *_fold_nest(group))
            case _:
                n = len(group.full)
                dims = tuple((f"d{i}", e) for i, e in enumerate(group.full))
                self._emit(group, dims, (), self._whole(group), n)

    def _emit(
        self,
        group: Group,
        dims: tuple[tuple[str, int], ...],
        head: tuple[Map, ...],
        whole: tuple[int, ...],
        rank: int,
    ) -> None:
        """``head``: maps of the first op's operands when it walks them in its own way; what the
        other ops read broadcasts into the first ``rank`` dims, and is an operand of its own even if
        the head reads it too.
        """
        inside = {r for op in group.ops for r in op.results}
        others = group.ops[1:] if head else group.ops
        fixed = group.ops[0].operands if head else ()
        shared = tuple(dict.fromkeys(v for op in others for v in op.operands if v not in inside))
        results = tuple(r for op in group.ops for r in op.results if self._escapes(r, group))
        full = tuple(e for _, e in dims[:rank])
        maps = (*head, *(identity_map(rank1(v.type), full, len(dims)) for v in shared))
        out_maps = tuple(identity_map(rank1(r.type), full, len(dims)) for r in results)
        self._kernel(group.kind, group.ops, fixed, shared, results, dims, maps, out_maps, whole)

    def _whole(self, group: Group) -> tuple[int, ...]:
        """Axes that a tile holds whole: those it reduces over, unless the kernel reduces once and
        has no result along them. Such a kernel can fold tile by tile."""
        shapes = [
            (1,) * (len(group.full) - r.type.rank) + r.type.static_shape
            for op in group.ops for r in op.results if self._escapes(r, group)
        ]  # fmt: skip
        once = sum(op.name in REDUCTIONS for op in group.ops) == 1
        gone = all(shape[d] == 1 for shape in shapes for d in group.whole)
        return () if once and gone else tuple(sorted(group.whole))

    def _escapes(self, value: Value, group: Group) -> bool:
        return value in self.outputs or any(u not in group.ops for u, _ in self.uses.get(value, []))

    def _kernel(
        self,
        kind: str,
        ops: list[Op],
        head: tuple[Value, ...],
        shared: tuple[Value, ...],
        results: tuple[Value, ...],
        dims: tuple[tuple[str, int], ...],
        maps: tuple[Map, ...],
        out_maps: tuple[Map, ...],
        whole: tuple[int, ...] = (),
    ) -> None:
        """A kernel whose first operands are the ``head`` op's, in its order; the other ops read
        ``shared``.
        """
        operands = (*head, *shared)
        if kind in ("move", "gather"):
            block = self._plain_block(ops, operands, results)
        else:
            block = region(self.builder, ops, head, shared, results, kind == "contract")
        attrs: dict[str, Attr] = {
            "name": f"k{self.count}_{_title(ops)}",
            "kind": kind,
            "dims": dims,
            "maps": maps,
            "out_maps": out_maps,
            "ops": ",".join(dict.fromkeys(op.name for op in ops)),
        }
        if whole:
            attrs["whole"] = whole
        self.count += 1
        outer = tuple(self.builder.value(r.name, r.type) for r in results)
        self.builder.add(
            Op(
                "kernel",
                tuple(self.mapped.get(v, v) for v in operands),
                outer,
                MappingProxyType(attrs),
                (block,),
                Loc.merge(op.loc for op in ops),
            )
        )
        self.mapped.update(zip(results, outer, strict=True))

    def _plain_block(
        self, ops: list[Op], operands: tuple[Value, ...], results: tuple[Value, ...]
    ) -> Block:
        """The body of a kernel that only moves elements: they keep their type."""
        (op,) = ops
        args = tuple(self.builder.value(v.name, v.type) for v in operands)
        made = tuple(self.builder.value(r.name, r.type) for r in op.results)
        inner = dict(zip(op.results, made, strict=True))
        body = (replace(op, operands=args, results=made),)
        return Block(args, body, tuple(inner[r] for r in results))

    def _move(self, op: Op) -> None:
        spec = as_move(op)
        source = tuple(dict.fromkeys(op.operands))
        specs: tuple[MoveSpec, ...]
        if spec is None:
            specs = reshape_via_flat(
                op.operands[0].type.static_shape, op.results[0].type.static_shape
            )
        else:
            specs = (_read_once(spec, [source.index(v) for v in op.operands]),)
        for i, spec in enumerate(specs):
            last = i == len(specs) - 1
            type_ = op.results[0].type if last else TensorType(spec.shape, op.results[0].type.dtype)
            result = (
                op.results[0]
                if last
                else Value(self.builder.fresh(f"{op.results[0].name}_flat"), type_)
            )
            attrs: dict[str, Attr] = {
                "shape": spec.shape,
                "fill": float(spec.fill),
                "pieces": spec.attr(),
            }
            move = Op("move", source, (result,), MappingProxyType(attrs), (), op.loc)
            dims = tuple((f"d{j}", e) for j, e in enumerate(rank1(type_)))
            maps = tuple(() for _ in source)
            out_map = identity_map(rank1(type_), rank1(type_), len(dims))
            self._kernel("move", [move], source, (), (result,), dims, maps, (out_map,))
            source = (result,)


def _read_once(spec: MoveSpec, numbers: Sequence[int]) -> MoveSpec:
    """The move with operand k, which may be the same tensor as another, called ``numbers[k]``."""
    shapes = dict(zip(numbers, spec.operands, strict=True))
    named = tuple(replace(p, operand=numbers[p.operand]) for p in spec.pieces)
    return MoveSpec(spec.shape, spec.fill, named, tuple(shapes.values()))


def _title(ops: list[Op]) -> str:
    """A short readable name: the head and at most two more."""
    seen = list(dict.fromkeys(op.name for op in ops if op.name != "identity"))
    return "_".join(seen[:3]) if seen else "copy"


def _contract_nest(
    head: Op,
) -> tuple[tuple[tuple[str, int], ...], tuple[Map, ...], tuple[int, ...], int]:
    return _conv_nest(head) if head.name == "conv" else _matmul_nest(head)


def _matmul_nest(
    op: Op,
) -> tuple[tuple[tuple[str, int], ...], tuple[Map, ...], tuple[int, ...], int]:
    """out[b.., m, n] += a[b.., m, k] * b[b.., k, n]"""
    a, b = op.operands
    out = rank1(op.results[0].type)
    r = len(out)
    k_extent = a.type.static_shape[-1]
    dims = (
        *((f"b{i}", e) for i, e in enumerate(out[:-2])),
        ("m", out[-2]),
        ("n", out[-1]),
        ("k", k_extent),
    )
    n_dims = len(dims)
    m, n, k = r - 2, r - 1, r

    def operand_map(v: Value, row: int, col: int) -> Map:
        shape = v.type.static_shape
        lead = r - len(shape)
        rows = []
        for i, e in enumerate(shape[:-2]):
            rows.append(
                (0, _unit(n_dims, lead + i) if e != 1 or out[lead + i] == 1 else (0,) * n_dims)
            )
        return (*rows, (0, _unit(n_dims, row)), (0, _unit(n_dims, col)))

    return dims, (operand_map(a, m, k), operand_map(b, k, n)), (), r


def _unit(n: int, *at: int) -> tuple[int, ...]:
    return tuple(1 if i in at else 0 for i in range(n))


def _coefs(n: int, **at: int) -> tuple[int, ...]:
    out = [0] * n
    for key, c in at.items():
        out[int(key[1:])] = c
    return tuple(out)


def _conv_nest(op: Op) -> tuple[tuple[tuple[str, int], ...], tuple[Map, ...], tuple[int, ...], int]:
    """out[b, oc, oh, ow] += x[b, ic, oh*s + kh*d - p, ...] * w[oc, ic, kh, kw]"""
    w = op.operands[1]
    b, oc, oh, ow = op.results[0].type.static_shape
    _, ic, kh, kw = w.type.static_shape
    dims = (("b", b), ("oc", oc), ("oh", oh), ("ow", ow), ("kh", kh), ("kw", kw), ("ic", ic))
    (sh, sw), (dh, dw), pads = _window_attrs(op)
    x_map: Map = (
        (0, _unit(7, 0)),
        (0, _unit(7, 6)),
        (-pads[0], _coefs(7, d2=sh, d4=dh)),
        (-pads[1], _coefs(7, d3=sw, d5=dw)),
    )
    w_map: Map = ((0, _unit(7, 1)), (0, _unit(7, 6)), (0, _unit(7, 4)), (0, _unit(7, 5)))
    return dims, (x_map, w_map), (), 4


def _window_attrs(op: Op) -> tuple[tuple[int, int], tuple[int, int], tuple[int, ...]]:
    strides: tuple[int, int] = op.attrs.get("strides", (1, 1))  # type: ignore[assignment]
    dilations: tuple[int, int] = op.attrs.get("dilations", (1, 1))  # type: ignore[assignment]
    pads: tuple[int, ...] = op.attrs.get("pads", (0, 0, 0, 0))  # type: ignore[assignment]
    return strides, dilations, pads


def _fold_nest(
    group: Group,
) -> tuple[tuple[tuple[str, int], ...], tuple[Map, ...], tuple[int, ...], int]:
    """Windows and large reductions: result dimensions first, then what is folded."""
    head = group.ops[0]
    if head.name in REDUCTIONS:
        return _reduction_nest(head)
    b, c, oh, ow = head.results[0].type.static_shape
    if is_depthwise(head):
        kh, kw = head.operands[1].type.static_shape[2:]
    else:
        kh, kw = ints(head, "kernel")
    dims = (("b", b), ("c", c), ("oh", oh), ("ow", ow), ("kh", kh), ("kw", kw))
    (sh, sw), (dh, dw), pads = _window_attrs(head)
    x_map: Map = (
        (0, _unit(6, 0)),
        (0, _unit(6, 1)),
        (-pads[0], _coefs(6, d2=sh, d4=dh)),
        (-pads[1], _coefs(6, d3=sw, d5=dw)),
    )
    if not is_depthwise(head):
        return dims, (x_map,), (), 4
    w_map: Map = ((0, _unit(6, 1)), (0, (0,) * 6), (0, _unit(6, 4)), (0, _unit(6, 5)))
    return dims, (x_map, w_map), (), 4


def _reduction_nest(
    head: Op,
) -> tuple[tuple[tuple[str, int], ...], tuple[Map, ...], tuple[int, ...], int]:
    full = rank1(head.operands[0].type)
    axes: tuple[int, ...] = head.attrs["axes"]  # type: ignore[assignment]
    out = rank1(head.results[0].type)
    n = len(full) + len(axes)
    dims = (*((f"d{i}", e) for i, e in enumerate(out)), *((f"r{a}", full[a]) for a in axes))
    place = {a: len(full) + i for i, a in enumerate(axes)}
    x_map: Map = tuple((0, _unit(n, place.get(i, i))) for i in range(len(full)))
    return dims, (x_map,), (), len(full)


def _gather_nest(
    op: Op,
) -> tuple[tuple[tuple[str, int], ...], tuple[Map, ...], tuple[int, ...], int]:
    """out[i.., d] = table[index[i..], d]; the table's row is looked up, so its map holds only d."""
    index = op.operands[1]
    out = rank1(op.results[0].type)
    dims = (*tuple((f"i{j}", e) for j, e in enumerate(out[:-1])), ("d", out[-1]))
    n = len(dims)
    t_map: Map = ((0, (0,) * n), (0, _unit(n, n - 1)))
    i_map: Map = (
        tuple((0, _unit(n, j)) for j in range(len(rank1(index.type))))
        if index.type.rank
        else ((0, (0,) * n),)
    )
    return dims, (t_map, i_map), (), n
