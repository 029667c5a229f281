"""The written decoder layers are those of the published model."""

from __future__ import annotations

from benchmarks.granite import HEAD, HEADS, HIDDEN, INNER, KV_HEADS, decoder
from spyrec import api

TOKENS = 64


def test_a_layer_multiplies_what_its_sizes_say() -> None:
    program = api.compile(decoder(1, TOKENS))
    rows = api.simulate(program, timing_only=True).kernels
    attention = 2 * HEADS * TOKENS * TOKENS * HEAD
    projections = HIDDEN * HEAD * (2 * HEADS + 2 * KV_HEADS) + 3 * HIDDEN * INNER
    done = sum(row.macs * row.count for row in rows if row.tiles)
    assert done == attention + TOKENS * projections


def test_layers_follow_each_other() -> None:
    model = decoder(3, TOKENS)
    assert len([n for n in model.graph.node if n.op_type == "Attention"]) == 3
    weights = [v.name for v in model.graph.input if v.name.endswith("_weight")]
    assert len(weights) == len({*weights}) == 3 * 7
