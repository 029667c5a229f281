"""Buckets of PyTorch models: exported in memory, from a file, and with weights that are absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spyrec
from spyrec.sim.objfile import dump

torch = pytest.importorskip("torch", reason="torch is an extra; see docs/dependencies.md")

WIDTH, HEADS = 64, 2


class Causal(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Causal attention with a table of places; the last token's vector, and a cache of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Parameter(torch.randn(32, WIDTH))
        self.mix = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.register_buffer("keys", torch.zeros(1, 40, WIDTH))

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        x = x + self.places[:n]
        q, k, v = self.mix(self.norm(x)).split(WIDTH, dim=-1)
        self.keys[:, 2 : 2 + n] = k
        q, k, v = (t.view(1, n, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(1, n, WIDTH)
        return x + y, y[:, -1], y.mean(1)


def exported(device: str = "cpu") -> tuple[Any, Any]:
    torch.manual_seed(0)
    with torch.device(device):
        model = Causal().eval()
        example = torch.zeros(1, 8, WIDTH)
    shapes = {"x": {1: torch.export.Dim("n", min=2, max=32)}}
    return model, torch.export.export(model, (example,), dynamic_shapes=shapes)


def test_memory_and_file_give_the_same_and_agree_with_torch(tmp_path: Path) -> None:
    model, program = exported()
    torch.export.save(program, tmp_path / "model.pt2")
    made = spyrec.compile(program, buckets={"x:1": [8, 16]})
    read = spyrec.compile(tmp_path / "model.pt2", buckets={"x:1": [8, 16]})
    same = spyrec.api.named(read, made.code.meta["model"])
    assert dump(same.code) == dump(made.code)
    session = spyrec.Session(made)
    for length in (2, 5, 8, 11, 16):
        x = np.random.default_rng(length).standard_normal((1, length, WIDTH)).astype(np.float32)
        result = session.run(made, {"x": x})
        with torch.no_grad():
            want = [t.numpy() for t in model(torch.from_numpy(x))]
        for got, array in zip(result.outputs.values(), want, strict=False):
            assert got.shape == array.shape
            np.testing.assert_allclose(got, array, rtol=0.02, atol=0.03)
        np.testing.assert_allclose(session.state["keys"], model.keys.numpy(), rtol=0.02, atol=0.03)


def test_a_range_that_the_export_stated_is_kept() -> None:
    _, program = exported()
    with pytest.raises(spyrec.SpyrecError, match="the model takes 2 to 32 for this dimension"):
        spyrec.compile(program, buckets={"x:1": [16, 64]})
    made = spyrec.compile(program, buckets={"x:1": [8]})
    with pytest.raises(spyrec.SpyrecError, match="has x:1=1; the program takes 2 or more"):
        spyrec.simulate(made, {"x": np.zeros((1, 1, WIDTH), np.float32)})


def test_absent_weights_are_one_image() -> None:
    _, program = exported("meta")
    made = spyrec.compile(program, buckets={"x:1": [8, 16]}).code
    absent = [b for b in made.buffers if b.kind == "input" and "mix" in b.name]
    assert absent and all("/" not in b.name for b in absent)
