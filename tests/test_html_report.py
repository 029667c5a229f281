"""``spyrec report``: one page that loads nothing, whatever is in the report, and its views in a
browser."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import combinations
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spyrec
from examples.make_models import encoder
from spyrec import cli
from spyrec.compare import Comparison, compare
from spyrec.decision_log import decision_log
from spyrec.html_report import html_report
from spyrec.ir.layout import Layout
from spyrec.ir.types import dtype
from spyrec.report import Report
from spyrec.report_file import read_report

HOSTILE = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--<script>", "@DATA@",
    "a & b \"'`", "\u2028\u2029\x00\ud800", "__proto__", "javascript:alert(1)",
)
Array = np.ndarray[Any, Any]
BOUNDS = ("compute", "vector", "memory", "ring", "latency")
BARE = "<svg onload=alert(1)>.onnx"


@pytest.fixture(scope="module")
def program() -> spyrec.Program:
    return spyrec.compile(encoder())


@pytest.fixture(scope="module")
def report(program: spyrec.Program) -> Report:
    facts = spyrec.simulate(program, timing_only=True, detail=True).facts
    return replace(facts, model="encoder.onnx", wall_s=0.5)


class Page(HTMLParser):
    """What of a page a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.style = self.heading = ""
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open == "style":
            self.style += data
        elif self._open == "h1":
            self.heading += data

    def all(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.tags if name in attrs]

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def test_the_page_loads_nothing(report: Report) -> None:
    text = html_report(report)
    page = Page(text)
    assert page.all("src") == []
    assert [h for h in page.all("href") if not h.startswith("#")] == ["data:,"]
    assert set(re.findall(r"\w+://[^\s\"'`)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", text)
    assert len(page.scripts) == 2
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]


def test_the_policy_lets_in_this_style_and_this_script_alone(report: Report) -> None:
    page = Page(html_report(report))
    [policy] = [p for p in page.all("content") if "default-src" in p]
    hashes = [
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (page.style, page.scripts[1])
    ]
    assert "default-src 'none'" in policy
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "unsafe" not in policy


def test_every_view_has_a_heading_and_a_way_to_it(report: Report) -> None:
    page = Page(html_report(report))
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    links = [h[1:] for h in page.all("href") if h.startswith("#")]
    sections = [a for tag, a in page.tags if tag == "section"]
    assert links == ["main", *(str(a["id"]) for a in sections)]
    assert {str(a["aria-labelledby"]) for a in sections} <= set(ids)
    assert page.tags[0] == ("html", {"lang": "en"})


SEEN_BY = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                 [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
"""Linear RGB as readers without one kind of cone see it (Machado, Oliveira and Fernandes, 2009)."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> Array:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: Array) -> Array:
    """CIELAB under D65, in which equal distances look about equally different."""
    xyz = XYZ @ np.clip(rgb, 0, 1) / (0.9505, 1, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_stand_out_and_apart_for_every_reader(report: Report, scheme: int) -> None:
    style = Page(html_report(report)).style
    paper = re.findall(r"--paper: (#\w{6})", style)[scheme]
    found = [re.findall(rf"--{bound}: (#\w{{6}})", style)[scheme] for bound in BOUNDS]
    ink = [re.findall(rf"--{name}: (#\w{{6}})", style)[scheme] for name in ("ink", "soft", "link")]

    def contrast(colour: str) -> float:
        low, high = sorted(XYZ[1] @ linear(c) + 0.05 for c in (colour, paper))
        return float(high / low)

    assert min(map(contrast, found)) >= 3  # WCAG 2.2, 1.4.11
    assert min(map(contrast, ink)) >= 4.5  # 1.4.3
    for eyes, seen in SEEN_BY.items():
        for a, b in combinations(found, 2):
            apart = np.linalg.norm(lab(seen @ linear(a)) - lab(seen @ linear(b)))
            assert apart > 20, (eyes, a, b)


def test_names_of_strangers_stay_text(report: Report) -> None:
    row = replace(report.kernels[0], name=HOSTILE[0], ops=HOSTILE, source=HOSTILE, bound=HOSTILE[1])
    forged = replace(report, model=BARE, device=HOSTILE[1], kernels=(row, *report.kernels[1:]))
    page = Page(html_report(forged))
    assert page.heading == BARE
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not {"img", "svg"} & {tag for tag, _ in page.tags}
    assert page.data["report"]["kernels"][0]["source"] == list(HOSTILE)
    assert page.data["report"]["model"] == BARE
    assert "<" not in page.scripts[0]


def test_a_name_that_utf_8_cannot_say(report: Report, tmp_path: Path) -> None:
    given, page = tmp_path / "r.json", tmp_path / "r.html"
    given.write_text(json.dumps(replace(report, model="a\ud800b").as_dict()), "utf-8")
    assert cli.run(["report", str(given), "-o", str(page)]) == 0
    assert Page(page.read_text("utf-8")).heading == "a?b"


def test_a_forged_infinity_is_no_broken_page(report: Report) -> None:
    page = Page(html_report(replace(report, total_us=float("inf"), wall_s=float("nan"))))
    assert page.data["report"]["total_us"] == page.data["report"]["wall_s"] == 0


def test_the_page_is_little_more_than_its_data(report: Report) -> None:
    text = html_report(report)
    assert len(text) < len(json.dumps(report.as_dict())) * 1.1 + 90_000


def test_same_report_same_bytes(report: Report, tmp_path: Path) -> None:
    given, plan = tmp_path / "r.json", tmp_path / "plan.json"
    given.write_text(report.as_json(), "utf-8")
    plan.write_text("{}", "utf-8")
    here = tmp_path / "here.html"
    assert cli.run(["report", str(given), "-o", str(here)]) == 0
    there = tmp_path / "there.html"
    subprocess.run(
        [sys.executable, "-m", "spyrec", "report", str(given), "-o", str(there)], check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"}, stdout=subprocess.DEVNULL,
    )
    assert here.read_bytes() == there.read_bytes() == html_report(report).encode()


def test_a_report_with_detail_can_be_read_back(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(report.as_json(), "utf-8")
    assert read_report(path) == report


def test_what_is_no_report_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"model": 3}', "utf-8")
    assert cli.run(["report", str(path), "-o", str(tmp_path / "r.html")]) == 1
    assert f"{path} is no report of spyrec: spyrec is missing" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.skipif(not shutil.which("node"), reason="no node on this machine")
def test_numbers_are_written_in_one_way() -> None:
    """The lines of the script that write numbers, by themselves."""
    script = (Path(spyrec.__file__).parent / "html" / "base.js").read_text("utf-8")
    [scaled] = re.findall(r"(?ms)^function scaled.*?^\}", script)
    lines = re.findall(r"(?m)^const (?:NUMBERS|count|percent|signed) = .*", script)
    assert len(lines) == 4
    shown = (
        "[signed(-104, count), signed(33453, count), signed(0, count), signed(-0.0041, percent), "
        "scaled(33453), scaled(2500000)]"
    )
    text = "\n".join([*lines, scaled, f"console.log(JSON.stringify({shown}))"])
    done = subprocess.run(["node", "-e", text], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["−104", "+33,453", "0", "−0.4%", "33,453", "2.50 M"]


def test_the_page_reads_figures_that_a_comparison_has() -> None:
    """The views in a browser are tested where there is one; this wherever Python is."""
    script = (Path(spyrec.__file__).parent / "html" / "figures.js").read_text("utf-8")
    [body] = re.findall(r"(?ms)^function comparison\(root, c\) \{\n(.*?)^\}", script)
    read = set(re.findall(r"\bc\.(\w+)", body))
    known = {f.name for f in fields(Comparison)}
    assert read <= known and {"cycles", "runs", "idle_cycles", "pairs"} <= read


# In a browser.

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]


class Watched:
    """A page in a browser, all it says and all it asks for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def show(self, text: str, folder: Path) -> Any:
        path = folder / "page.html"
        path.write_text(text, "utf-8")
        self.page.goto(path.as_uri())
        return self.page

    @property
    def quiet(self) -> bool:
        return self.said == [] and [a[:5] for a in self.asked if a != "data:,"] == ["file:"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not find_spec("playwright"):
        pytest.skip("playwright is an extra; see docs/dependencies.md")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = next(filter(None, map(shutil.which, BROWSERS)), driver.chromium.executable_path)
        if not Path(found).exists():
            pytest.skip("no Chromium on this machine; see docs/dependencies.md")
        started = driver.chromium.launch(executable_path=found, args=ARGS)
        yield started
        started.close()


@pytest.fixture(params=[1280, 390])
def watched(browser: Any, request: pytest.FixtureRequest) -> Iterator[Watched]:
    size = {"width": request.param, "height": 900}
    context = browser.new_context(viewport=size, color_scheme="dark")
    yield Watched(context.new_page())
    context.close()


def test_all_views_are_drawn(
    watched: Watched, program: spyrec.Program, report: Report, tmp_path: Path
) -> None:
    log = decision_log(report, program.plan)
    slower = replace(report.kernels[0], cycles=report.kernels[0].cycles + 100, tile="1x1")
    before = replace(report, kernels=(slower, *report.kernels[1:]))
    page = watched.show(html_report(report, log, compare(before, report)), tmp_path)
    changed = page.query_selector_all("#comparison table")[1].inner_text()
    assert "−100" in changed and "-100" not in changed
    assert " → " in changed and "->" not in changed
    width = page.viewport_size["width"]
    for section in page.query_selector_all("main > section"):
        assert section.is_visible()
        assert section.query_selector("svg, table"), section.get_attribute("id")
        assert len(section.screenshot()) > 4000
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for name in ("timeline", "roofline", "scratchpad", "ring", "layouts"):
        shapes = page.evaluate(
            "n => [...document.querySelectorAll(`#${n} .chart svg :is(rect, path)`)]"
            ".filter((s) => s.getBoundingClientRect().width > 0).length", name,
        )
        assert shapes > 5, name
    for folded in page.query_selector_all("details > summary"):
        folded.click()
    assert page.query_selector_all("details:not([open])") == []
    page.wait_for_selector("#timeline details tbody tr")
    assert len(page.query_selector_all("#timeline details tbody tr")) == len(report.detail.launches)
    page.emulate_media(media="print")
    assert all(s.is_visible() for s in page.query_selector_all("main > section"))
    assert watched.quiet, (watched.said, watched.asked)


def held_bytes(report: Report) -> list[list[int]]:
    """Of each launch, what tensors take of each core's scratchpad."""
    detail = report.detail
    assert detail is not None
    found = [[0] * detail.machine.cores for _ in detail.launches]
    for t in detail.held:
        layout = detail.layouts[t.layout]
        for core, box in enumerate(layout.boxes):
            if not all(box[1::2]):
                continue
            stored = Layout.stick(box[1::2], dtype(layout.dtype).bits, layout.stick_dim)
            for i in range(t.launches[0], t.launches[-1] + 1):
                found[i][core] += 128 * stored.sticks
    return found


def test_tables_behind_the_pictures_tell_the_reports_numbers(
    watched: Watched, report: Report, tmp_path: Path
) -> None:
    page = watched.show(html_report(report), tmp_path)

    def cells(view: str) -> list[list[str]]:
        page.click(f"#{view} details > summary")
        page.wait_for_selector(f"#{view} details tbody tr")
        rows = page.query_selector_all(f"#{view} details tbody tr")
        return [[c.inner_text() for c in row.query_selector_all("th, td")] for row in rows]

    def told(n: int) -> str:
        if n < 1024:
            return f"{n} B"
        unit, name = (1 << 20, "MiB") if n >= 1 << 20 else (1 << 10, "KiB")
        return f"{floor(n / unit * 10 + 0.5) / 10:.1f} {name}"  # halves up, as a browser rounds

    detail = report.detail
    held = held_bytes(report)
    assert cells("scratchpad") == [
        [
            str(i), report.kernels[x.kernel].name, told(max(held[i])), told(min(held[i])),
            told(detail.kernels[x.kernel].tile_bytes),
            told(report.kernels[x.kernel].lx_peak_bytes),
        ]
        for i, x in enumerate(detail.launches)
    ]
    loads = [k.links for x in detail.launches if (k := detail.kernels[x.kernel]).links]
    lanes = [
        [sum(each) for each in zip(*(getattr(x, lane) for x in loads), strict=True)]
        for lane in ("up", "down", "sums_up", "sums_down")
    ]
    rows = list(zip(*lanes, strict=True))
    assert [r[1:] for r in cells("ring")] == [[told(n) for n in row] for row in rows]
    shown = detail.layouts[0]
    assert [r[1] for r in cells("layouts")] == [
        ", ".join(f"d{d} {a}" if n == 1 else f"d{d} {a}–{a + n - 1}"
                  for d, (a, n) in enumerate(zip(box[::2], box[1::2], strict=True)))
        if all(box[1::2]) else "nothing"
        for box in shown.boxes
    ]  # fmt: skip


def test_headings_sort_and_say_so(watched: Watched, report: Report, tmp_path: Path) -> None:
    page = watched.show(html_report(report), tmp_path)

    def column(number: int) -> list[str]:
        cells = page.query_selector_all(f"#kernels .scroll.tall tbody tr > :nth-child({number})")
        return [cell.inner_text() for cell in cells]

    cycles = page.query_selector("#kernels thead th:nth-child(3)")
    cycles.query_selector("button").press("Enter")
    assert cycles.get_attribute("aria-sort") == "descending"
    shown = [int(text.replace(",", "")) for text in column(3)]
    assert shown == sorted((k.cycles for k in report.kernels), reverse=True)
    cycles.query_selector("button").press("Space")
    assert cycles.get_attribute("aria-sort") == "ascending"
    assert [int(text.replace(",", "")) for text in column(3)] == sorted(shown)
    assert len(page.query_selector_all("#kernels .scroll.tall [aria-sort]")) == 1
    page.fill("#kernels input", "matmul")
    found = [k for k in report.kernels if "matmul" in " ".join((k.name, *k.ops, *k.source)).lower()]
    assert 0 < len(found) < len(report.kernels)
    assert set(column(1)) == {k.name for k in found}


def test_keys_go_through_the_timeline(watched: Watched, report: Report, tmp_path: Path) -> None:
    page = watched.show(html_report(report), tmp_path)
    slider = page.query_selector("#timeline [role=slider]")
    slider.focus()
    for key in ("ArrowRight", "ArrowRight", "+", "+", "ArrowLeft"):
        page.keyboard.press(key)
    assert slider.get_attribute("aria-valuenow") == "1"
    said = slider.get_attribute("aria-valuetext")
    launch = report.detail.launches[1]
    kernel = report.kernels[launch.kernel]
    assert kernel.name in said and f"{launch.end_cycle - launch.go_cycle:,} cycles" in said
    assert page.query_selector("#timeline .told").inner_text() == said
    zoomed = page.query_selector("#timeline .chart svg").text_content()
    page.keyboard.press("0")
    assert page.query_selector("#timeline .chart svg").text_content() != zoomed
    assert watched.quiet, (watched.said, watched.asked)


def test_hostile_names_do_nothing_in_a_browser(
    watched: Watched, report: Report, tmp_path: Path
) -> None:
    rows = tuple(
        replace(k, name=HOSTILE[i % len(HOSTILE)][:-1] + str(i), ops=HOSTILE, source=HOSTILE)
        for i, k in enumerate(report.kernels)
    )
    detail = report.detail
    held = tuple(replace(t, name=HOSTILE[i % 5]) for i, t in enumerate(detail.held))
    forged = replace(report, model=BARE, kernels=rows, detail=replace(detail, held=held))
    page = watched.show(html_report(forged), tmp_path)
    for button in page.query_selector_all("#kernels .link"):
        button.click()
    assert page.inner_text("h1") == BARE
    assert page.query_selector_all("img, main script, [onload], [onerror]") == []
    assert watched.quiet, (watched.said, watched.asked)


def test_a_report_without_detail_is_a_page_too(
    watched: Watched, report: Report, tmp_path: Path
) -> None:
    page = watched.show(html_report(replace(report, detail=None)), tmp_path)
    assert "written without detail" in page.inner_text("#timeline")
    assert len(page.query_selector_all("#kernels .scroll.tall tbody tr")) == len(report.kernels)
    nothing = replace(report, kernels=(), total_cycles=0, total_us=0.0, detail=None)
    watched.show(html_report(nothing), tmp_path)
    assert "NaN" not in page.inner_text("main")
    assert watched.said == []
