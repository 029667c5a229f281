"""Transformer architectures of two layers and random weights, through every door; needs torch and
transformers. Slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spyrec

torch = pytest.importorskip("torch", reason="torch is an extra; see docs/dependencies.md")
transformers = pytest.importorskip(
    "transformers", reason="transformers is an extra; see docs/dependencies.md"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
from benchmarks.architectures import (  # noqa: E402
    KINDS,
    LEAST_COSINE,
    SIZES,
    cosine,
    made,
    measure,
)


@pytest.mark.parametrize("kind", KINDS)
def test_architecture_through_three_doors(kind: str) -> None:
    """Each output within what the device's 16 bits, or eager float16, can tell."""
    row = measure(kind)
    print(row)
    assert min(row.worst) >= min(LEAST_COSINE, row.half)
    assert row.outputs >= 1
    memory, file, dynamo = row.cycles
    assert memory == file == dynamo > 0


def experts(implementation: str) -> Any:
    """A mixture of experts whose routing shows: large weights, and no layer around it."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "qwen3_moe", **{**SIZES, **KINDS["qwen3_moe"]}, experts_implementation=implementation
    )
    config._experts_implementation = implementation
    block = Qwen3MoeSparseMoeBlock(config).eval()
    for weight in block.parameters():
        weight.data.normal_(0, 0.1)
    return block


@pytest.mark.parametrize("tokens", [1, 24])
@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_experts_as_transformers_spells_them(implementation: str, tokens: int) -> None:
    """One token looks up its experts' matrices, many share a product with all; in float32, as
    routing in 16 bits may choose otherwise where two experts are almost equal."""
    block, x = experts(implementation), torch.randn(1, tokens, SIZES["hidden_size"])
    with torch.no_grad():
        want = block(x)
        exported = torch.export.export(block, (x,), strict=False)
    want = want[0] if isinstance(want, tuple) else want
    program = spyrec.compile(exported, numerics="fp32")
    got = next(iter(spyrec.simulate(program, {program.inputs[0].name: x.numpy()}).outputs.values()))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-3, atol=1e-3)


def check_shared(session: Any) -> None:
    """Prefill and decode have one image of nearly all weights, and one room for each state."""
    [prefill], [decode] = (parts.values() for _, parts in session._loaded)
    assert len(decode.kept) >= 4 and all(k.in_place for k in (*prefill.kept, *decode.kept))
    assert [k.state.piece for k in prefill.kept] == [k.state.piece for k in decode.kept]
    weights = [p for p in session.card.memory.allocations if p.constant]
    shared = sum(p.size for p in weights if p.users > 1)
    assert shared >= 0.95 * sum(p.size for p in weights)


def test_greedy_generation_with_the_cache_on_the_device() -> None:
    """Prefill, then one token after the other, until a choice is closer than the device can tell:
    there the two best logits of eager must be almost equal."""
    from transformers.integrations.executorch import convert_and_export_with_cache

    model, prompt, length = made("llama"), torch.randint(3, 500, (1, 8)), 64
    for weight in model.parameters():
        weight.data *= 3 if weight.ndim > 1 else 1
    model.config.use_cache = True
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=length,
        cache_config={"batch_size": 1, "max_cache_len": length},
    )  # fmt: skip
    prefill, decode = (
        spyrec.compile(convert_and_export_with_cache(
            model, example_input_ids=prompt[:, :n], example_cache_position=torch.arange(n)
        ))
        for n in (8, 1)
    )  # fmt: skip
    session = spyrec.Session(prefill, decode)
    check_shared(session)
    tokens = prompt
    result = session.run(prefill, {"input_ids": prompt.numpy(), "cache_position": np.arange(8)})
    for position in range(8, 40):
        [logits] = (array[0, -1] for array in result.outputs.values())
        chosen = int(logits.argmax())
        with torch.no_grad():
            eager = model(tokens, use_cache=False).logits[0, -1]
        assert cosine(logits, eager) >= LEAST_COSINE
        if chosen != int(eager.argmax()):
            best = eager.topk(2).values
            margin = float(best[0] - best[1]) / float(eager.abs().max())
            print(f"differs after {position - 8} tokens, at a margin of {margin:.2%}")
            assert margin < 0.01
            break
        tokens = torch.cat([tokens, torch.tensor([[chosen]])], dim=1)
        feed = {"input_ids": np.array([[chosen]]), "cache_position": np.array([position])}
        result = session.run(decode, feed)
        if position > 8:  # the first launch of a program brings its addresses
            assert result.facts.host is not None and result.facts.host.copy_us == 0
    assert not session.card.notes  # no state was ever laid out anew
    assert tokens.shape[1] > 8 + 4
