"""The site has every page, and builds without a warning where mkdocs is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_navigation_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"^ +- .*: (\S+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(p.name for p in (ROOT / "docs").glob("*.md"))


@pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("mkdocstrings")),
    reason="mkdocs is an extra, docs; make site builds the site",
)
def test_it_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))
    loads = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="https?://')
    fetched = [p.name for p in pages if loads.search(p.read_text("utf-8").replace(
        'rel="canonical"', ""))]
    assert fetched == []
