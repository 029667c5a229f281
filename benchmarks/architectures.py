"""Transformer architectures of two layers and random weights through the three doors: cycles, and
the cosine of what the binary gives against eager float32, beside that of eager float16. Needs torch
and transformers. Run: python -m benchmarks.architectures [KIND ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import spyrec
from spyrec.torch import last_report

TOKENS = 32
LEAST_COSINE = 0.9999
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "granite": {}, "llama": {}, "qwen2": {}, "qwen3": {"head_dim": 64}, "mistral": {},
    "phi3": {"pad_token_id": 0}, "gemma2": {"head_dim": 64}, "gemma3_text": {"head_dim": 64},
    "olmo2": {}, "smollm3": {"pad_token_id": 0}, "gpt_neox": {}, "starcoder2": {},
    "gpt2": {"n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "granitemoehybrid": {
        "num_local_experts": 0, "shared_intermediate_size": 512,
        "layer_types": ["attention", "attention"], "position_embedding_type": "rope",
    },
    "qwen3_moe": {
        "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    },
    "bert": {}, "modernbert": {"pad_token_id": 0}, "mpnet": {},
}  # fmt: skip
"""Model type -> what its configuration says beside SIZES."""
ENCODERS = ("bert", "modernbert", "mpnet")
NO_SDPA = ("mpnet", "gemma2")


def made(kind: str) -> Any:
    """The model, seeded."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **KINDS[kind]})
    config._attn_implementation = "eager" if kind in NO_SDPA else "sdpa"
    config.use_cache = False
    auto = transformers.AutoModel if kind in ENCODERS else transformers.AutoModelForCausalLM
    return auto.from_config(config).eval()


def cosine(a: Any, b: Any) -> float:
    x, y = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


@dataclass(frozen=True)
class Row:
    """``cycles``: of an ExportedProgram, of its .pt2 file read where there is no torch, and of all
    graphs of torch.compile; ``worst``: the least cosine of an output, of the same three;
    ``half``: that of eager float16; ``outputs``: how many."""

    kind: str
    outputs: int
    cycles: tuple[int, int, int]
    worst: tuple[float, float, float]
    half: float

    def __str__(self) -> str:
        cycles = " | ".join(f"{n:,}" for n in self.cycles)
        return f"| {self.kind} | {cycles} | {min(self.worst):.6f} | {self.half:.6f} |"


HEADING = """\
| model | cycles, ExportedProgram | `.pt2` | torch.compile | least cosine | of eager float16 |
|---|---|---|---|---|---|"""

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
import spyrec
result = spyrec.simulate(spyrec.compile(sys.argv[1]), dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **result.outputs)
print(result.total_cycles)
"""


def from_file(exported: Any, inputs: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Cycles and outputs of a program's .pt2 file, in a process that cannot import torch."""
    with tempfile.TemporaryDirectory() as folder:
        model, given, got = (str(Path(folder) / n) for n in ("m.pt2", "in.npz", "out.npz"))
        torch.export.save(exported, model)
        np.savez(given, **inputs)
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, model, given, got],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(done.stdout), dict(np.load(got))


def compiled(model: Any, ids: Any) -> tuple[int, Any]:
    """Cycles of all graphs that torch.compile captured, and what the model returned."""
    torch._dynamo.reset()
    cycles = []

    def counted(module: Any, examples: Any) -> Any:
        from spyrec.torch import backend

        run = backend(module, examples)

        def wrapped(*args: Any) -> Any:
            results = run(*args)
            cycles.append(int(last_report()["total_cycles"]))
            return results

        return torch.compiler.disable(wrapped)

    results = torch.compile(model, backend=counted)(ids)
    return sum(cycles), results


def measure(kind: str) -> Row:
    model, ids = made(kind), torch.randint(3, 500, (1, TOKENS))
    inputs = {"input_ids": ids.numpy()}
    with torch.no_grad():
        want = model(ids)
        exported = torch.export.export(model, (ids,), strict=False)
        memory = spyrec.simulate(spyrec.compile(exported), inputs)
        file_cycles, file_outputs = from_file(exported, inputs)
        dynamo_cycles, dynamo_outputs = compiled(model, ids)
        half = model.half()(ids)

    def worst(outputs: Any) -> float:
        return min(cosine(outputs[n], want[n]) for n in memory.outputs)

    return Row(
        kind, len(memory.outputs), (memory.total_cycles, file_cycles, dynamo_cycles),
        (worst(memory.outputs), worst(file_outputs), worst(dynamo_outputs)), worst(half),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="all when left out")
    kinds = parser.parse_args().kinds or list(KINDS)
    unknown = [k for k in kinds if k not in KINDS]
    if unknown:
        parser.error(f"no model is called {', '.join(unknown)}; there are {', '.join(KINDS)}")
    print(HEADING)
    for kind in kinds:
        print(measure(kind), flush=True)


if __name__ == "__main__":
    main()
