"""What the pass must do: the right IR, the same results, fewer cycles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from my_pass import EarlySlice

import spyrec
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import (
    Target,
    hooks,
    insert_before,
    oracle,
    random_inputs,
    run_pipeline,
    verify_each,
)
from spyrec.passes.pipeline import PIPELINE
from spyrec.sim.device import load_device

TARGET = Target(load_device())
HEAD = parse_module((Path(__file__).parent / "head.sir").read_text("utf-8"))


def product_rows(module: Module) -> int:
    (product,) = [op for op in module.body.ops if op.name == "matmul"]
    return product.result.type.static_shape[1]


def test_only_the_last_row_is_computed_and_it_is_the_same() -> None:
    watch = hooks(verify_each(), oracle(random_inputs(HEAD), tolerance=1e-4))
    after = run_pipeline(HEAD, (EarlySlice(),), TARGET, watch)
    assert (product_rows(HEAD), product_rows(after)) == (512, 1)
    assert after.body.ops[-1].loc.nodes == ("cap", "last_token")


def test_what_is_read_elsewhere_stays() -> None:
    capped = HEAD.body.ops[1].result
    results = (*HEAD.body.results, capped)
    both = replace(HEAD, body=replace(HEAD.body, results=results), output_names=("last", "all"))
    assert product_rows(run_pipeline(both, (EarlySlice(),), TARGET)) == 512


def test_it_saves_cycles() -> None:
    mine = insert_before(PIPELINE, "canonicalize", EarlySlice())
    programs = [spyrec.compile(HEAD, passes=p) for p in (PIPELINE, mine)]
    plain, better = (spyrec.simulate(p, timing_only=True).total_cycles for p in programs)
    print(f"{plain} -> {better} cycles")
    assert better < 0.7 * plain
