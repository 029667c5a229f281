"""Tile ops: what their rules refuse, and that they stand only inside kernels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spyrec.ir.core import Attr, Block, Loc, Op, Value
from spyrec.ir.errors import VerifyError
from spyrec.ir.layout import Layout
from spyrec.ir.ops import OPS, infer
from spyrec.ir.ops.tile import working
from spyrec.ir.parser import parse_module
from spyrec.ir.types import TensorType, tensor
from spyrec.ir.verifier import problems

TILE = tensor((2, 4), "dl16")
WIDE = tensor((2, 4), "f32")


def body(args: Sequence[TensorType], results: Sequence[TensorType], *ops: str) -> Block:
    """A region whose results are made by ops without operands, which only their types matter of."""
    given = tuple(Value(f"a{i}", t) for i, t in enumerate(args))
    made = tuple(Value(f"r{i}", t) for i, t in enumerate(results))
    return Block(given, tuple(Op(n, (), made[i : i + 1]) for i, n in enumerate(ops)), made)


def refused(
    name: str, types: Sequence[TensorType], attrs: dict[str, Attr], *regions: Block,
    declared: Sequence[TensorType] | None = None,
) -> str:
    with pytest.raises(VerifyError) as error:
        infer(name, types, attrs, Loc(("n",)), regions=regions, declared=declared)
    return str(error.value)


def test_floats_are_worked_on_in_f32() -> None:
    assert working(TILE) == WIDE
    assert working(tensor((3,), "f16")) == tensor((3,), "f32")
    assert working(tensor((3,), "i32")) == tensor((3,), "i32")
    assert working(tensor((3,), "bool")) == tensor((3,), "bool")


def test_what_fits_is_taken() -> None:
    loc = Loc()
    assert infer("init", [], {"value": 0.0}, loc, declared=[WIDE]) == (WIDE,)
    assert infer("load", [tensor((9, 9), "dl16")], {"operand": 1}, loc, declared=[TILE]) == (TILE,)
    scalar, one = tensor((), "dl16"), tensor((1,), "dl16")
    assert infer("load", [scalar], {"operand": 0}, loc, declared=[one]) == (one,)
    assert infer("store", [TILE], {"result": 0}, loc) == ()
    loop = body([WIDE], [WIDE], "neg")
    assert infer("for", [WIDE], {"dim": 0}, loc, regions=[loop]) == (WIDE,)
    region = body([WIDE], [WIDE], "neg")
    attrs: dict[str, Attr] = {"unit": "sfp"}
    assert infer("compute", [TILE], attrs, loc, regions=[region], declared=[TILE]) == (TILE,)


def test_loads() -> None:
    source = tensor((9, 9), "dl16")
    assert refused("load", [source], {"operand": 0}) == (
        "load: its result type follows from the kernel around it; state one (from n)"
    )
    assert refused("load", [source], {"operand": -1}, declared=[TILE]) == (
        "load: expected the number of a kernel operand, got -1 (from n)"
    )
    assert refused("load", [source], {"operand": 0}, declared=[WIDE]) == (
        "load: expected a tile of dl16 and rank 2, as its source has, got [2, 4] f32 (from n)"
    )
    assert refused("load", [source], {"operand": 0}, declared=[tensor((4,), "dl16")]) == (
        "load: expected a tile of dl16 and rank 2, as its source has, got [4] dl16 (from n)"
    )


def test_terms_are_summed_to_a_plain_tile() -> None:
    layout = Layout.stick((2, 4), 32, 1)
    terms = WIDE.with_(layout=layout.summed(3), space="lx")
    assert infer("psum", [terms], {}, Loc()) == (WIDE,)
    whole = WIDE.with_(layout=layout, space="lx")
    assert refused("psum", [whole], {}).startswith(
        "psum: expected a tile of which cores hold terms, got [2, 4] f32"
    )


def test_stores() -> None:
    assert refused("store", [TILE], {"result": -1}) == (
        "store: expected the number of a kernel result, got -1 (from n)"
    )


def test_loops_carry_one_set_of_types() -> None:
    assert refused("for", [WIDE], {"dim": 0}, body([TILE], [WIDE], "neg")) == (
        "for: expected arguments of the body, as what is carried, of types [2, 4] f32; got "
        "[2, 4] dl16 (from n)"
    )
    assert refused("for", [WIDE], {"dim": 0}, body([WIDE], [], )) == (
        "for: expected results of the body, as what is carried, of types [2, 4] f32; got none "
        "(from n)"
    )
    assert refused("for", [], {"dim": -1}, body([], [])) == (
        "for: expected a kernel dimension, got dim = -1 (from n)"
    )


def test_computations_read_and_give_f32() -> None:
    attrs: dict[str, Attr] = {"unit": "sfp"}
    narrow = body([TILE], [WIDE], "neg")
    assert refused("compute", [TILE], attrs, narrow, declared=[TILE]) == (
        "compute: expected region arguments, as the tiles with floats in f32, of types [2, 4] f32; "
        "got [2, 4] dl16 (from n)"
    )
    other = body([WIDE], [tensor((2, 5), "f32")], "neg")
    assert refused("compute", [TILE], attrs, other, declared=[TILE]) == (
        "compute: expected a region result, as the tile with floats in f32, of types [2, 4] f32; "
        "got [2, 5] f32 (from n)"
    )
    region = body([WIDE], [WIDE], "neg")
    assert refused("compute", [TILE], {**attrs, "head": "conv"}, region, declared=[TILE]) == (
        "compute: its head is conv, which its region does not hold (from n)"
    )
    assert refused("compute", [TILE], {"unit": "gpu"}, region, declared=[TILE]) == (
        "compute: attribute unit must be one of pt, sfp, got 'gpu' (from n)"
    )


def test_a_tiled_kernel_yields_nothing() -> None:
    attrs: dict[str, Attr] = {"kind": "vec", "name": "k", "dims": (), "maps": (), "tiled": True}
    assert infer("kernel", [], attrs, Loc(), regions=[body([], [])], declared=[TILE]) == (TILE,)
    assert refused("kernel", [], attrs, body([], [])) == (
        "kernel: the result types of a tiled kernel follow from no yield; state them (from n)"
    )
    assert refused("kernel", [], attrs, body([], [TILE], "neg"), declared=[TILE]) == (
        "kernel: expected region results of a tiled kernel of types none; got [2, 4] dl16 (from n)"
    )


@pytest.mark.parametrize("stage", ["tensor", "device", "tile"])
def test_tile_ops_stand_only_inside_kernels(stage: str) -> None:
    module = parse_module(
        f'module "m" {{stage = "{stage}"}} {{ %t = init {{value = 0.0}} : tensor<2xf32> }}'
    )
    assert [(p.rule, p.sentence) for p in problems(module)] == [
        (9, "init may stand only inside a kernel (from unknown)")
    ]


def test_the_device_stage_has_no_tiles_yet() -> None:
    text = """module "m" {stage = "device"} {
      %y = kernel {kind = "vec", name = "k", dims = (), maps = (), out_maps = (((0, ()),),)}
        : tensor<2xf32> {
        ():
        %t = init {value = 0.0} : tensor<2xf32>
        yield %t
      }
    }"""
    assert [(p.rule, p.sentence) for p in problems(parse_module(text))] == [
        (9, "init may not stand in a region at the device stage (from unknown)")
    ]


def test_the_family() -> None:
    family = [op.name for op in OPS.values() if op.family == "tile" ]
    assert family == ["for", "finish", "load", "init", "compute", "psum", "store"]
    assert all(OPS[name].stages == {"tile"} and OPS[name].eval is None for name in family)
