"""Rules 19 and 20 of the verifier: addresses that planning gave may not meet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from spyrec.driver import lower_module
from spyrec.ir.core import Attr, Module
from spyrec.ir.parser import parse_module
from spyrec.ir.printer import print_module
from spyrec.ir.verifier import problems, verify
from spyrec.passes.manager import Target
from spyrec.passes.pipeline import PLANNERS
from spyrec.sim.device import load_device
from tests.graphs import modules

TARGET = Target(load_device())
CHAIN = """module "m" {
  input %x: tensor<64x512xf32>
  input %v: tensor<512x512xf32>
  input %w: tensor<512x512xf32>
  %a = matmul(%x, %v) : tensor<64x512xf32>
  %b = softmax(%a) {axis = 1} : tensor<64x512xf32>
  %c = matmul(%b, %w) : tensor<64x512xf32>
  %y = add(%a, %c) : tensor<64x512xf32>
  output "y" = %y
}"""


def planned(planner: str = "joint") -> Module:
    return lower_module(parse_module(CHAIN), TARGET, planner=planner)


def sentences(module: Module) -> list[str]:
    return [f"rule {p.rule}: {p.sentence}" for p in problems(module)]


def with_places(module: Module, places: Sequence[tuple[str, int, int]]) -> Module:
    return module.with_attrs(hbm=tuple(places))


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_planned_addresses_obey(planner: str) -> None:
    module = planned(planner)
    verify(module)
    verify(parse_module(print_module(module)))


def places_of(module: Module) -> dict[str, tuple[int, int]]:
    found = module.attrs["hbm"]
    assert isinstance(found, tuple)
    return {name: (address, size) for name, address, size in found}


def test_rule_19_two_tensors_in_one_place_of_card_memory() -> None:
    module = planned()
    places = places_of(module)
    (x, size), (y, _) = places["x"], places["v"]
    assert size == 64 * 512 * 2 and y == x + size
    there = [(n, x + size - 128 if n == "v" else a, s) for n, (a, s) in places.items()]
    (sentence,) = sentences(with_places(module, there))
    assert sentence == (
        f"rule 19: %v and %x are needed at the same time, but both lie at byte {x + size - 128} "
        "of card memory"
    )


def test_rule_19_a_place_that_is_missing_or_too_small() -> None:
    module = planned()
    places = places_of(module)
    less = [(n, a, s - 128 if n == "w" else s) for n, (a, s) in places.items() if n != "v"]
    assert sorted(sentences(with_places(module, less))) == [
        "rule 19: %v has no place in card memory",
        f"rule 19: %w takes {512 * 512 * 2} bytes of card memory, its place has "
        f"{512 * 512 * 2 - 128}",
    ]


def moved(module: Module, name: str, to: int) -> Module:
    """The module with a scratchpad address changed wherever it is said."""
    ops = []
    for op in module.body.ops:
        attrs: dict[str, Attr] = {}
        if op.name == "relayout" and op.result.name == name:
            attrs["lx"] = to
        elif op.name == "kernel" and "lx" in op.attrs:
            attrs["lx"] = tuple(
                (n, to if n == name else a, s)
                for n, a, s in op.attrs["lx"]  # type: ignore[union-attr, misc]
            )
        ops.append(op.with_attrs(**attrs) if attrs else op)
    return replace(module, body=replace(module.body, ops=tuple(ops)))


def test_rule_20_every_pair_of_a_kernels_buffers_is_kept_apart() -> None:
    """Each buffer moved onto each other one of its kernel, and onto each tensor alive then."""
    module = planned()
    met = 0
    for op in module.body.ops:
        if op.name != "kernel":
            continue
        places = op.attrs["lx"]
        assert isinstance(places, tuple) and places
        for name, address, _ in places:
            for other, there, _ in places:
                if there == address:
                    continue
                found = sentences(moved(module, name, there))
                assert any(
                    re.match(f"rule 20: %({name}|{other}) and %.* are needed at the same time", s)
                    for s in found
                ), (name, other, found)
                met += 1
    assert met > 10


@given(modules(max_ops=8, widths=(1, 3, 64)))
@settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_random_graphs_obey(module: Module) -> None:
    for planner in PLANNERS:
        verify(lower_module(module, TARGET, planner=planner))
