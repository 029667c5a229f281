"""Language models from their configuration: the cards, the options, and the models themselves where
torch and transformers are installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import spyrec
from spyrec import cli
from spyrec.frontend.torch_config import INSTALL, exported_model, known_cards, read_card

needs_both = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")),
    reason="torch and transformers are extras; see docs/dependencies.md",
)
TINY = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512,
}  # fmt: skip


def test_cards_hold_the_sizes_of_the_published_models() -> None:
    found = {name: read_card(name) for name in known_cards()}
    sizes = {
        name: (c["num_hidden_layers"], c["hidden_size"], c["intermediate_size"], c["vocab_size"])
        for name, c in found.items()
    }
    assert sizes == {
        "all-minilm-l6": (6, 384, 1536, 30522),
        "gemma-3-1b": (26, 1152, 6912, 262144),
        "granite-3.3-8b": (40, 4096, 12800, 49159),
        "llama-3.1-8b": (32, 4096, 14336, 128256),
        "ministral-8b": (36, 4096, 12288, 131072),
        "qwen3-0.6b": (28, 1024, 3072, 151936),
        "qwen3-8b": (36, 4096, 12288, 151936),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not valid JSON"), ("[1]", "does not say its model_type"),
     ('{"hidden_size": 1}', "does not say its model_type")],
)  # fmt: skip
def test_files_that_are_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(spyrec.SpyrecError, match=message):
        read_card(tmp_path / "config.json")


def test_an_unknown_card_names_the_known_ones() -> None:
    with pytest.raises(spyrec.SpyrecError, match="nor one of all-minilm-l6, gemma-3-1b, granite"):
        read_card("granite")


@pytest.mark.parametrize(
    ("args", "message"),
    [((), "expected either MODEL or --from-config"),
     (("a.onnx", "--from-config", "x"), "expected either MODEL or --from-config"),
     (("a.onnx", "--layers", "2"), "are for --from-config"),
     (("--from-config", "x"), "needs either --prompt or --decode"),
     (("--from-config", "x", "--prompt", "1", "--decode", "1"), "needs either")],
)  # fmt: skip
def test_options_that_do_not_go_together(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["compile", *args]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compile", "--from-config", "qwen3-0.6b", "--prompt", "8"]) == 1
    assert INSTALL in capsys.readouterr().err


@needs_both
def test_prompt_and_decode_of_a_model_without_weights(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    runs = {}
    for phase in ("prompt", "decode"):
        path = tmp_path / f"{phase}.spx"
        args = ["--from-config", str(tmp_path / "tiny.json"), "--layers", "2", "-o", str(path)]
        assert cli.run(["compile", *args, f"--{phase}", "64"]) == 0
        program = spyrec.load(path)
        runs[phase] = spyrec.simulate(program, timing_only=True)
        names = {p.name for p in program.inputs}
        assert any(name.endswith("layers.1.mlp.up_proj.weight") for name in names)
        assert not any("layers.2." in name for name in names)
    assert all(run.total_cycles > 0 for run in runs.values())
    assert sum(k.macs for k in runs["prompt"].kernels) > 0


@needs_both
def test_an_unknown_model_type_is_refused() -> None:
    with pytest.raises(spyrec.SpyrecError, match="transformers cannot make a lama configuration"):
        exported_model({**TINY, "model_type": "lama"}, prompt=8)


PUBLISHED = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 1, "decoder_sparse_step": 1, "eos_token_id": 2, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 128, "initializer_range": 0.02, "intermediate_size": 256,
    "max_position_embeddings": 128, "max_window_layers": 2, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 64, "norm_topk_prob": True,
    "num_attention_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 1, "output_router_logits": False, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 512,
}  # fmt: skip
"""The keys of a published file, with small sizes."""


@needs_both
def test_a_file_from_a_model_hub_may_hold_keys_of_another_version() -> None:
    held = exported_model(PUBLISHED, prompt=8).state_dict
    shapes = {name.partition("layers.0.")[2]: list(w.shape) for name, w in held.items()}
    assert shapes["mlp.experts.gate_up_proj"] == [4, 128, 128]
    assert shapes["self_attn.q_proj.weight"] == [4 * 64, 128]


@needs_both
def test_a_key_written_by_hand_is_one_that_is_known() -> None:
    with pytest.raises(spyrec.SpyrecError, match="a llama configuration has no num_layers; use th"):
        exported_model({**TINY, "num_layers": 1}, prompt=8)
    moe = {key: value for key, value in PUBLISHED.items() if key != "transformers_version"}
    with pytest.raises(spyrec.SpyrecError, match="configuration has no max_window_layers; use the"):
        exported_model(moe, prompt=8)


@needs_both
def test_a_model_without_fused_attention_and_one_that_is_not_made(tmp_path: Path) -> None:
    gemma2 = {**TINY, "model_type": "gemma2", "head_dim": 64, "num_hidden_layers": 1}
    calls = {str(n.target) for n in exported_model(gemma2, prompt=8).graph.nodes}
    assert "aten.softmax.int" in calls
    card = tmp_path / "t5.json"
    card.write_text('{"model_type": "t5", "d_model": 64, "num_layers": 1, "vocab_size": 64}')
    with pytest.raises(spyrec.SpyrecError, match="cannot make and export this t5 model: You must"):
        exported_model(read_card(card), prompt=8)
