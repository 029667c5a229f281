"""The parts of the documents that programs print. ``python -m tests.generated_docs`` writes them
anew; tests/test_generated_docs.py fails when one has drifted."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import onnx

from examples.make_models import encoder
from spyrec import api, cli
from spyrec.reference import (
    cli_reference,
    emit_reference,
    onnx_reference,
    op_reference,
    torch_reference,
)
from spyrec.sim.device import load_device

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(?<=^```text\n)kernel .*?(?=^```$)", re.DOTALL | re.MULTILINE)


def encoder_table() -> str:
    """The table that `make demo` shows for the encoder."""
    with tempfile.TemporaryDirectory() as folder:
        model, program = f"{folder}/encoder.onnx", f"{folder}/encoder.spx"
        onnx.save(encoder(), model)
        _output("compile", model, "-o", program)
        return _output("simulate", program, "--timing-only")


def _output(*args: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.run(args)
    assert code == 0, args
    return out.getvalue()


def readme() -> str:
    """README.md with the encoder's table as it is now."""
    text = (ROOT / "README.md").read_text("utf-8")
    table = encoder_table()
    fresh, found = TABLE.subn(lambda _: table, text)
    assert found == 1, "README.md holds no table of kernels"
    return fresh


def plan_page() -> str:
    """docs/plan.md, its kernels numbered as those of the encoder are now."""
    text = (ROOT / "docs" / "plan.md").read_text("utf-8")
    kernels = api.compile(encoder()).plan["kernels"]

    def numbered(found: re.Match[str]) -> str:
        [name] = [k for k in kernels if re.fullmatch(rf"k\d+{found[1]}", k)]
        return f'"{name}": {{'

    return re.sub(r'"k\d+(_\w+)": \{', numbered, text)


def explain_page() -> str:
    """docs/explain.md with what its second command prints now."""
    text = (ROOT / "docs" / "explain.md").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/encoder.onnx"
        onnx.save(encoder(), model)
        shown = _output("explain", model, "--kernel", "matmul", "--top", "1", "--try")
    fresh, found = re.subn(r"(?ms)(?<=^```text\n).*?(?=^```$)", lambda _: shown, text)
    assert found == 1, "docs/explain.md holds no printed text"
    return fresh


def machine_page() -> str:
    """docs/machine-model.md with the values of the device file."""
    text = (ROOT / "docs" / "machine-model.md").read_text("utf-8")
    device = tomllib.loads(load_device().text)

    def with_value(found: re.Match[str]) -> str:
        value: object = device
        for key in found[1].split("."):
            value = value[key] if isinstance(value, dict) else None
        return f"| `{found[1]}` | {value} |"

    return re.sub(r"^\| `([\w.]+)` \| \d+ \|", with_value, text, flags=re.MULTILINE)


def torch_page() -> str:
    """docs/torch.md with the table of operators as it is now."""
    text = (ROOT / "docs" / "torch.md").read_text("utf-8")
    table = torch_reference()
    fresh, found = re.subn(r"(?m)^\| family \|.*\n(?:\|.*\n)+", lambda _: table, text)
    assert found == 1, "docs/torch.md holds no table of operators"
    return fresh


PRINTS = re.compile(r"(?ms)(?<=^<!-- prints: )(spyrec [^\n]*?)( -->\n```text\n)(.*?)(?=^```$)")
STEPS = re.compile(r"(?ms)^```sh\n(.*?)^```$")


def first_pass_page() -> str:
    """docs/first-pass.md with what its commands print now, run in their order."""
    text = (ROOT / "docs" / "first-pass.md").read_text("utf-8")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            shutil.copytree(ROOT / "examples" / "my_pass", "my_pass")
            for steps in STEPS.findall(text):
                for line in steps.splitlines():
                    if line.startswith("spyrec compile "):
                        _output(*shlex.split(line)[1:])
            fresh = PRINTS.sub(
                lambda found: found[1] + found[2] + _output(*shlex.split(found[1])[1:]), text
            )
        finally:
            os.chdir(before)
    return fresh


PAGES: dict[str, Callable[[], str]] = {
    "README.md": readme,
    "docs/ops.md": op_reference,
    "docs/emit.md": emit_reference,
    "docs/cli.md": cli_reference,
    "docs/onnx.md": onnx_reference,
    "docs/plan.md": plan_page,
    "docs/explain.md": explain_page,
    "docs/first-pass.md": first_pass_page,
    "docs/torch.md": torch_page,
    "docs/machine-model.md": machine_page,
}
"""Document -> what it should hold."""


if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), "utf-8")
        print(name)
