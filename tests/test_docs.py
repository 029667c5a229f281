"""The documents tell the truth: every command in them runs, every link leads somewhere."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from spyrec import cli

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_TORCH = "pytorch.md"  # its snippets need torch and transformers
BLOCK = re.compile(r"^(?:<!-- file: (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Snippet:
    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def snippets() -> list[Snippet]:
    """Each shell line and each Python block of the documents, in reading order."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 2
            name, language, body = block.groups()
            if name is not None:  # what the reader is told to put into a file
                found.append(Snippet(path.name, line, f"file {name}", body))
            elif language == "sh":
                joined = body.replace("\\\n", " ")
                found += [
                    Snippet(path.name, line, language, command)
                    for command in joined.splitlines()
                    if command.strip() and not command.startswith("#")
                ]
            elif language == "python":
                found.append(Snippet(path.name, line, language, body))
    return found


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as a reader has it after `make demo` made the models."""
    folder = tmp_path_factory.mktemp("desk")
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "make_models.py"), str(folder / "demo")],
        check=True, stdout=subprocess.DEVNULL,
    )
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.mark.xdist_group("documents")
def test_every_command_in_the_documents_runs(desk: Path) -> None:
    ran: Counter[str] = Counter()
    names: dict[str, dict[str, object]] = {}  # what the Python blocks of a document have defined
    for snippet in snippets():
        if snippet.document == WITH_TORCH:
            continue
        run_snippet(snippet, names.setdefault(snippet.document, {"__name__": "snippet"}))
        ran[snippet.language] += 1
    assert ran["sh"] >= 4
    assert ran["python"] >= 1


@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")),
    reason="torch and transformers are extras; see docs/dependencies.md",
)
def test_every_command_of_the_torch_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    mine = [snippet for snippet in snippets() if snippet.document == WITH_TORCH]
    for snippet in mine:
        run_snippet(snippet, names)
    assert len(mine) >= 8


def run_snippet(snippet: Snippet, names: dict[str, object]) -> None:
    if snippet.language == "python":
        with contextlib.redirect_stdout(io.StringIO()):
            exec(builtin_compile(snippet), names)
        return
    kind, _, name = snippet.language.partition(" ")
    if kind == "file":
        Path(name).write_text(snippet.text, "utf-8")
        return
    words = shlex.split(snippet.text)
    if words[0] == "make":
        plan = subprocess.run(
            ["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert plan.returncode == 0, f"{snippet}: {snippet.text}: {plan.stderr}"
    elif words[0] == ".":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        assert f"VENV ?= {words[1].removesuffix('/bin/activate')}\n" in makefile, str(snippet)
    elif words[0] == "cp":
        *options, source, to = words[1:]
        subprocess.run(["cp", *options, str(ROOT / source), to], check=True)
    elif words[0] == "pytest":
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words[1:]],
            check=True, stdout=subprocess.DEVNULL,
        )
    elif words[0] == "spyrec":
        assert cli.run(words[1:]) == 0, f"{snippet}: {snippet.text}"
    else:
        raise AssertionError(f"{snippet}: nothing here knows how to run {words[0]!r}")


def builtin_compile(snippet: Snippet) -> object:
    return compile(snippet.text, str(snippet), "exec", dont_inherit=True)


def test_every_link_of_the_documents_leads_somewhere() -> None:
    """Files and headings; what lies in the network is not asked for."""
    broken = [
        f"{path.name}: {target}"
        for path in DOCUMENTS
        for target in LINK.findall(path.read_text("utf-8"))
        if "://" not in target and not leads_somewhere(path, target)
    ]
    assert broken == []


def leads_somewhere(document: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = document.parent / name if name else document
    return path.exists() and (not anchor or anchor in anchors(path))


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are made where the pages are read: lower case, without marks,
    spaces as hyphens, numbered where there are several alike."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text("utf-8"))
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def test_anchors_are_those_of_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `spyrec opt`: IR, in [and](x.md) out\n```sh\n# no heading\n```\n## Two\n"
                    "## Two\n", "utf-8")  # fmt: skip
    assert anchors(page) == {"spyrec-opt-ir-in-and-out", "two", "two-1"}
    assert leads_somewhere(page, "#two-1") and leads_somewhere(page, "page.md#two")
    assert not leads_somewhere(page, "#three") and not leads_somewhere(page, "other.md")


def test_help_of_make_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    listed = set(re.findall(r"make (\S+) ", makefile))
    assert set(phony.split()) - {"help", "venv"} <= listed


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    explained = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    names = re.findall(r'"([a-z-]+)>=', text)
    assert [n for n in names if n not in ("setuptools", "torch") and n not in explained] == []
    assert "numpy" in names
