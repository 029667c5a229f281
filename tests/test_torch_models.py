"""Transformer architectures of two layers and random weights, through every door; needs torch and
transformers. Slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spyrec

torch = pytest.importorskip("torch", reason="torch is an extra; see docs/dependencies.md")
transformers = pytest.importorskip(
    "transformers", reason="transformers is an extra; see docs/dependencies.md"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COSINE = 0.9999
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "granite": {}, "llama": {}, "qwen2": {}, "qwen3": {"head_dim": 64}, "mistral": {},
    "phi3": {"pad_token_id": 0}, "gemma2": {"head_dim": 64}, "gemma3_text": {"head_dim": 64},
    "olmo2": {}, "smollm3": {"pad_token_id": 0}, "gpt_neox": {}, "starcoder2": {},
    "gpt2": {"n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "granitemoehybrid": {
        "num_local_experts": 0, "shared_intermediate_size": 512,
        "layer_types": ["attention", "attention"], "position_embedding_type": "rope",
    },
    "bert": {}, "modernbert": {"pad_token_id": 0}, "mpnet": {},
}  # fmt: skip
"""Model type -> what its configuration says beside SIZES."""
ENCODERS = ("bert", "modernbert", "mpnet")
NO_SDPA = ("mpnet", "gemma2")


def made(kind: str) -> Any:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **MORE[kind]})
    config._attn_implementation = "eager" if kind in NO_SDPA else "sdpa"
    config.use_cache = False
    auto = transformers.AutoModel if kind in ENCODERS else transformers.AutoModelForCausalLM
    return auto.from_config(config).eval()


def cosine(a: Any, b: Any) -> float:
    x, y = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


@pytest.mark.parametrize("kind", MORE)
def test_architecture_through_both_doors(kind: str, tmp_path: Path) -> None:
    model, ids = made(kind), torch.randint(3, 500, (1, 32))
    with torch.no_grad():
        want = model(ids)
        exported = torch.export.export(model, (ids,), strict=False)
    torch.export.save(exported, tmp_path / "model.pt2")
    runs = [
        spyrec.simulate(spyrec.compile(source), {"input_ids": ids.numpy()})
        for source in (exported, tmp_path / "model.pt2")
    ]
    for name, array in runs[0].outputs.items():
        assert cosine(array, want[name].numpy()) >= COSINE, name
        np.testing.assert_array_equal(array, runs[1].outputs[name])
    assert runs[0].outputs and runs[0].total_cycles == runs[1].total_cycles


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_architecture_through_torch_compile(kind: str) -> None:
    from spyrec.torch import last_report

    torch._dynamo.reset()
    model, ids = made(kind), torch.randint(3, 500, (1, 32))
    with torch.no_grad():
        want = model(ids)[0]
        got = torch.compile(model, backend="spyrec")(ids)[0]
    assert cosine(got, want) >= COSINE
    assert last_report()["total_cycles"] > 0


def check_shared(session: Any) -> None:
    """Prefill and decode have one image of nearly all weights, and one room for each state."""
    (_, prefill), (_, decode) = session._loaded
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
        assert cosine(logits, eager) >= COSINE
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
