"""Passes of installed distributions, and what is said to names that nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from spyrec import cli
from spyrec.ir.near import listed

Capture = pytest.CaptureFixture[str]
MODEL = """module "m" {
  input %x: tensor<4x8xf32>
  %y = exp(%x) : tensor<4x8xf32>
  output "y" = %y
}
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that looks like one of site-packages: a distribution with a pass that is sound, and
    one with a pass whose module needs what is not there."""
    for name, module, text in (
        ("sound", "sound_pass", "class Sound:\n    name = 'sound'\n    summary = 'Does nothing.'\n"
         "    def run(self, module, target):\n        return module\n"),
        ("broken", "broken_pass", "import no_such_library\n"),
    ):  # fmt: skip
        (tmp_path / f"{module}.py").write_text(text, "utf-8")
        info = tmp_path / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        point = f"[spyrec.passes]\n{name} = {module}:{name.title()}\n"
        (info / "entry_points.txt").write_text(point, "utf-8")
    (tmp_path / "m.sir").write_text(MODEL, "utf-8")
    return tmp_path


WHY = (
    "the pass broken of broken 1.5 (entry point broken_pass:Broken) does not load: "
    "ModuleNotFoundError: No module named 'no_such_library'"
)
WARNING = f"spyrec: warning: {WHY}; spyrec goes on without it\n"


def test_a_pass_that_does_not_load_spoils_nothing_else(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(installed)
    monkeypatch.chdir(installed)

    def spyrec(*args: str) -> tuple[int, str, str]:
        return (cli.run(args), *capfd.readouterr())

    assert spyrec("opt", "m.sir", "--passes", "sound,cse") == (0, MODEL, WARNING)
    assert spyrec("opt", "m.sir", "--passes", "broken") == (1, "", f"{WARNING}spyrec: {WHY}\n")
    code, out, err = spyrec("passes")
    assert (code, err) == (0, WARNING) and f"broken\n    Not there: {WHY}\n" in out
    sweep = ["sweep", "m.sir", "cores=4,8", "--before", "cse", "sound", "-o", "o.csv", "-j", "2"]
    code, out, err = spyrec(*sweep)  # whose other processes say nothing
    assert (code, out) == (0, "o.csv: 2 points\n")
    assert err.startswith(f"{WARNING}note: 2 points with passes") and err.count("\n") == 2


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["biscet"], 2, "No such command 'biscet'; did you mean bisect? spyrec --help lists all"),
        (["opt", "m.sir", "--passes", "fuze"], 1,
         "no pass is called 'fuze'; did you mean fuse? spyrec passes lists all"),
        (["opt", "m.sir", "--passes", "tiling{kepd=1.0}"], 1,
         "pass tiling has no option kepd; did you mean kept? known: "),
        (["opt", "m.sir", "--before", "fues", "cse"], 1,
         "no pass of the pipeline is called fues; did you mean fuse? spyrec passes shows the"),
        (["opt", "m.sir", "--print-after", "fues"], 1,
         "--print-after: no pass is called 'fues'; did you mean fuse? spyrec passes lists all"),
        (["compile", "m.sir", "--print-after", "fues"], 1,
         "--print-after: no pass is called 'fues'; did you mean fuse? spyrec passes lists all"),
        (["passes", "fues"], 1,
         "no pass is called 'fues'; did you mean fuse? spyrec passes lists all"),
    ],
)  # fmt: skip
def test_what_was_meant_is_told(
    installed: Path, args: list[str], code: int, told: str, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(installed)
    assert cli.run(args) == code
    err = capsys.readouterr().err
    assert told in err and len(err) < 400


def test_few_names_are_listed_and_of_many_the_closest() -> None:
    many = [f"k{i}_matmul" for i in range(20)]
    assert listed("x", ["a", "b"]) == "known: a, b"
    assert listed("x", []) == "known: none"
    assert listed("axes", ["axis"]) == "did you mean axis? known: axis"
    assert listed("zzz", many, "there is a list") == "there is a list"
    assert listed("zzz", many) == "known, among 20: k0_matmul, k1_matmul, k2_matmul, k3_matmul, " \
        "k4_matmul"
