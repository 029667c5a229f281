"""The site has every page, and builds without a warning where mkdocs is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
    assert broken_links(tmp_path / "site") == []


def broken_links(site: Path) -> list[str]:
    """Links of a site's pages to files or places that are not in it; others are not asked for."""
    pages = {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            target, _, anchor = unquote(link).partition("#")
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            if path.name == "404.html":  # its links are from the site's root
                target = target.lstrip("/")
            other = (path.parent / target.partition("?")[0]).resolve() if target else path.resolve()
            other = other / "index.html" if other.is_dir() else other
            known = pages.get(other)
            if not other.exists() or (anchor and known and anchor not in known.places):
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


class Page(HTMLParser):
    """The links of a page, and the places in it that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {"", "__search", "__toc"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "a.html").write_text(
        '<a href="in/b.html#x">1</a><a href="in/b.html#y">2</a><a href="c.html">3</a>'
        '<a href="https://nowhere.invalid/">4</a><a href="in">5</a><a href="#z">6</a>', "utf-8"
    )
    (tmp_path / "in" / "b.html").write_text('<h2 id="x">x</h2><img src="../a.html">', "utf-8")
    (tmp_path / "in" / "index.html").write_text("", "utf-8")
    found = broken_links(tmp_path)
    assert found == ["a.html: in/b.html#y", "a.html: c.html", "a.html: #z"]
