"""All tiles of a matrix kernel are priced at once: each price is the one that a tile has alone, and
bytes and trips are those that the language's own rules give."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from examples.make_models import cnn
from spyrec.api import import_model
from spyrec.driver import lower_module
from spyrec.ir.arrange import resized, resized_sticks
from spyrec.ir.core import Attr, Module, Value
from spyrec.ir.parser import parse_module
from spyrec.ir.tiles import FACTORS, kept_trips, tile_shape, window
from spyrec.passes.allocate import divisions, factorisations, replace_parts
from spyrec.passes.contract_price import KEPT, contract_costs, least_costs, options
from spyrec.passes.held import found_there, held, offered
from spyrec.passes.kernel import Nest
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.stick_layout import StickLayout
from spyrec.passes.tile_ways import Floats, Tilings, tilings
from spyrec.passes.tiling import contract_bytes
from spyrec.sim.device import load_device
from tests.one_tile_price import Option, all_options, streamed_bytes

DEVICE = load_device()
TARGET = Target(DEVICE)
ROOM = int(KEPT * DEVICE.lx.usable_bytes)
MODELS = {
    "product with a residual": """module "m" {
  input %x: tensor<96x640xf32>
  input %w: tensor<640x1344xf32>
  input %r: tensor<96x1344xf32>
  %y = matmul(%x, %w) : tensor<96x1344xf32>
  %z = add(%y, %r) : tensor<96x1344xf32>
  output "z" = %z
}""",
    "products of a batch": """module "m" {
  input %x: tensor<6x80x192xf32>
  input %w: tensor<6x192x320xf32>
  %y = matmul(%x, %w) : tensor<6x80x320xf32>
  output "y" = %y
}""",
    "few rows": """module "m" {
  input %x: tensor<1x4096xf32>
  input %w: tensor<4096x512xf32>
  %y = matmul(%x, %w) : tensor<1x512xf32>
  output "y" = %y
}""",
}


def product(name: str) -> Nest:
    """The matrix kernel of a model, not cut yet; of the example the last one with taps."""
    after = next(i for i, step in enumerate(PIPELINE) if isinstance(step, StickLayout)) + 1
    model = parse_module(MODELS[name]) if name in MODELS else import_model(cnn(), {}, {})
    module: Module = lower_module(model, TARGET, pipeline=PIPELINE[:after])
    kernels = [Nest(op) for op in module.body.ops if op.name == "kernel"]
    taps = name == "convolution"
    found = [n for n in kernels if n.kind == "contract" and (len(n.summed) > 1) is taps]
    return found[-1]


def cut(nest: Nest, seed: int, splits: bool = False) -> Nest:
    units, grains = divisions(nest)
    free = tuple(u if splits or d not in nest.summed else 1 for d, u in enumerate(units))
    every = [
        c for c in factorisations(free, DEVICE.cores.count)
        if any(c[d] > 1 for d in nest.summed) is splits
    ]
    return replace_parts(nest, random.Random(seed).choice(every), grains)


def placed(nest: Nest, where: tuple[int, ...]) -> Nest:
    """With these of its operands, and results counted after them, on chip."""
    def there(v: Value, i: int) -> Value:
        return Value(v.name, v.type.with_(space="lx")) if i in where else v

    op, count = nest.op, len(nest.op.operands)
    operands = tuple(there(v, i) for i, v in enumerate(op.operands))
    results = tuple(there(v, i + count) for i, v in enumerate(op.results))
    return Nest(replace(op, operands=operands, results=results))


CASES = [
    (name, seed, splits, where)
    for name in (*MODELS, "convolution")
    for seed, where in enumerate([(), (0,), (2,), (0, 2)])
    for splits in ((False, True) if name in ("product with a residual", "few rows") else (False,))
]
PINS: list[dict[str, Attr]] = [
    {}, {"pin_finish": (320, 64)}, {"pin_finish": (0, 0), "pin_ahead": 2}, {"pin_ahead": 4},
    {"pin_finish": ()}, {"buffers": 1}, {"overlap": "loads"}, {"pin_keep": (1,)},
]  # fmt: skip


def option(ways: Tilings, costs: Floats, i: int) -> Option:
    end = ways.finish(i), int(ways.ahead[i])
    return float(costs[i]), ways.tiles(i), ways.loops(i), ways.kept(i), *end


def checked(nest: Nest, most: int, seed: int, coarse: bool) -> int:
    """Every option and its price against those worked out alone, and of some their bytes. How many
    are ended in pieces."""
    plain = tilings(nest, DEVICE, coarse).with_kept(ROOM)
    ways, costs = options(plain, DEVICE, most)
    found = [option(ways, costs, i) for i in range(len(ways))]
    tiles = ((plain.tiles(i), plain.loops(i), plain.kept(i)) for i in range(len(plain)))
    assert found == [*all_options(nest, tiles, DEVICE, most)]
    assert costs.tolist() == contract_costs(ways, DEVICE).tolist()
    counted = {lean: contract_bytes(ways, lean) for lean in (False, True)}
    for i in random.Random(seed).sample(range(len(ways)), min(40, len(ways))):
        _, tile, loops, keep, _, _ = found[i]
        assert set(loops) == {d for d, n in enumerate(tile) if n < nest.local[d]}
        assert contract_costs(ways.take(np.array([i])), DEVICE).tolist() == [costs[i]]
        stay = 0
        for factor in range(FACTORS):
            trips = [-(-nest.local[d] // tile[d]) for d in loops]
            layout = nest.op.operands[factor].type.layout
            assert layout is not None
            shape = tile_shape(nest.maps[factor], tile)
            assert shape == tuple(n for _, n in window(nest.maps[factor], [(0, n) for n in tile]))
            one = resized(layout, shape).sticks * 128
            assert one == resized_sticks(layout, shape) * 128
            size = one * kept_trips(nest.maps[factor], loops, trips)
            assert ways.kept_bytes(factor)[i] == size
            stay += size if factor in keep else 0
        for lean, (streamed, total) in counted.items():
            assert streamed[i] == streamed_bytes(nest, found[i], lean)
            assert total[i] == streamed[i] + stay
    return int(ways.ended.sum())


@pytest.mark.parametrize(("name", "seed", "splits", "where"), CASES)
def test_each_way_is_what_it_is_alone(
    name: str, seed: int, splits: bool, where: tuple[int, ...]
) -> None:
    nest = placed(cut(product(name), seed, splits), where)
    ended = checked(nest, (16, 8, 4, 0)[seed], seed, coarse=seed > 0)
    assert not (ended and (splits or seed == 3))


@pytest.mark.parametrize("pins", PINS)
def test_pins_leave_the_same_ways(pins: dict[str, Attr]) -> None:
    nest = cut(product("product with a residual"), 4)
    ended = checked(Nest(nest.op.with_attrs(**pins)), 16, 4, coarse=False)
    none = pins.keys() & {"buffers", "overlap"} or pins.get("pin_finish") == ()
    assert bool(ended) is not bool(none)


def test_of_several_cuts_each_has_the_least_price_of_its_own_tiles() -> None:
    whole = product("product with a residual")
    nests = [cut(whole, seed, splits) for seed in range(6) for splits in (False, True)]
    where = [(), (0,), (3,)] * 4
    found = least_costs(nests, DEVICE, where)
    for nest, resident, least in zip(nests, where, found, strict=True):
        ways = tilings(nest, DEVICE, coarse=True, resident=resident).with_kept(ROOM)
        assert least == min(options(ways, DEVICE)[1].tolist())


def test_kept_factors_are_found_where_the_tiles_of_both_kernels_say() -> None:
    """Of all tiles at once, as ``held`` finds them of one after the other."""
    nest = cut(product("product with a residual"), 4)
    ways = tilings(nest, DEVICE).with_kept(ROOM)
    staying = np.flatnonzero(ways.keep.any(axis=0)).tolist()
    some = random.Random(0).sample(staying, min(200, len(staying)))
    ops = {
        i: nest.op.with_attrs(tile=ways.tiles(i), loops=ways.loops(i), keep=ways.kept(i))
        for i in some
    }
    same = {0: 0, 1: 0}
    for op in [*ops.values()][:10]:
        there = offered(op)
        lies = {op.operands.index(v): lie for v, lie in there}
        found = {factor: found_there(ways, factor, lie) for factor, lie in lies.items()}
        for i, other in ops.items():
            told = tuple(factor for factor in sorted(found) if found[factor][i])
            assert told == held(other, there)
            for factor in told if other is not op else ():
                same[factor] += 1
    assert all(same.values())


def test_what_turning_the_bus_round_costs_is_told_of_arrays_too() -> None:
    hbm = DEVICE.hbm
    batches = [1, hbm.burst_bytes - 1, hbm.burst_bytes, hbm.batch_bytes, hbm.batch_bytes + 1]
    nbytes = np.array([4096, 100, 7, 65536, 12345])
    told = hbm.turnaround_ticks(nbytes, np.array(batches))
    one_by_one = [hbm.turnaround_ticks(n, b) for n, b in zip(nbytes.tolist(), batches, strict=True)]
    assert told.tolist() == one_by_one


def test_without_accumulators_there_is_no_way() -> None:
    none = replace(DEVICE, pt=replace(DEVICE.pt, acc_groups=0))
    nest = cut(product("few rows"), 0)
    ways, costs = options(tilings(nest, none), none)
    assert len(ways) == len(costs) == 0
    assert least_costs([nest], none, [()]) == [math.inf]
