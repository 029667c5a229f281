"""What the command line tells shells, man and those who ask for help: that of the commands
themselves."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from spyrec import cli
from spyrec.manual import examples, pages

ROOT = click.Context(cli.cli, info_name="spyrec", **cli.cli.context_settings)
Capture = pytest.CaptureFixture[str]


def command_of(name: str) -> click.Command:
    command = cli.cli.get_command(ROOT, name)
    assert command is not None
    return command


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_an_example_of_options_that_it_has(name: str) -> None:
    lines = examples(command_of(name))
    assert any(line.startswith(f"spyrec {name}") for line in lines)
    for line in lines:
        words = shlex.split(re.split(r" [|>] ", line)[0])
        assert words[0] == "spyrec"
        command = command_of(words[1])
        context = click.Context(command, info_name=words[1], parent=ROOT)
        command.make_parser(context).parse_args(words[2:])  # NoSuchOption for one it has not


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script(shell: str, capsys: Capture) -> None:
    assert cli.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_SPYREC_COMPLETE={shell}_complete" in script
    assert "spyrec" in script


def completed(line: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> list[str]:
    """What the script of bash is answered for the last word of a line: ``kind,value``."""
    words = line.split(" ")
    monkeypatch.setenv("_SPYREC_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit) as left:
        cli.run([])
    assert left.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("spyrec comp", ["plain,compile", "plain,compare", "plain,completion"]),
        ("spyrec compile --numerics ", ["plain,dl16", "plain,ieee16", "plain,fp32"]),
        ("spyrec sweep --po", ["plain,--points"]),
        ("spyrec sweep ring.hop", ["plain,ring.hop_cycles="]),
        ("spyrec sweep demo/enc", ["file,demo/enc"]),
        ("spyrec compile mod", ["file,mod"]),
    ],
)
def test_completion_answers(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert completed(line, monkeypatch, capsys) == expected


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_can_read_its_script(capsys: Capture) -> None:
    assert cli.run(["completion", "bash"]) == 0
    script = capsys.readouterr().out + "\ncomplete -p spyrec\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True
    )
    assert "-F _spyrec_completion spyrec" in done.stdout


def test_man_writes_a_page_for_each_command(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "share" / "man1"
    assert cli.run(["man", "-o", str(folder)]) == 0
    names = {"spyrec.1", *(f"spyrec-{name}.1" for name in cli.COMMANDS)}
    assert {p.name for p in folder.iterdir()} == names
    assert capsys.readouterr().out == f"{folder}: {len(names)} pages\n"
    assert {p.name: p.read_text("utf-8") for p in folder.iterdir()} == pages(cli.cli, "spyrec")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_page_tells_of_each_option_and_example(name: str) -> None:
    page = pages(cli.cli, "spyrec")[f"spyrec-{name}.1"]
    said = page.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")
    command = command_of(name)
    for option in command.params:
        if isinstance(option, click.Option):
            assert all(f"\\fB{flag}\\fR" in page.replace("\\-", "-") for flag in option.opts)
    assert all(line in said for line in examples(command))
    assert "\\fB-h\\fR, \\fB--help\\fR" in page.replace("\\-", "-")
    assert page.count(".SH") == 7


def test_roff_takes_no_text_for_a_request() -> None:
    @click.command("odd", short_help="Odd.")
    @click.option("--way", help="'quoted' \\fB and - so")
    def odd(way: str) -> None:
        """.so etc/passwd

        \b
        .exec 'it'
        """

    group = click.Group("g", {"odd": odd}, help="'all")
    page = pages(group, "g")["g-odd.1"]
    known = {".TH", ".SH", ".B", ".PP", ".TP", ".nf", ".fi", ".BR"}
    requests = {line.split()[0] for line in page.splitlines() if line[:1] in (".", "'")}
    assert requests <= known
    assert "\\&.so etc/passwd" in page
    assert "\\&.exec \\(aqit\\(aq" in page
    assert "\\(aqquoted\\(aq \\efB and \\- so" in page


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
@pytest.mark.parametrize("name", ["spyrec.1", "spyrec-sweep.1", "spyrec-reduce.1"])
def test_groff_has_nothing_to_say_about_a_page(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(pages(cli.cli, "spyrec")[name], "utf-8")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", str(tmp_path / name)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert "EXIT STATUS" in re.sub(r".\x08|\x1b\[[\d;]*m", "", done.stdout)
