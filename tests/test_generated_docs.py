"""What documents say of the program's own tables, fields and output is what it is."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from onnx import defs

from examples.make_models import encoder
from spyrec import api
from spyrec.frontend.onnx_load import OPSETS
from spyrec.report import BucketUse, KernelRow, Report, UnitCycles
from spyrec.report_detail import (
    CardBuffer,
    Detail,
    HeldLayout,
    HeldTensor,
    KernelDetail,
    LaunchTime,
)
from spyrec.runtime import HostTime
from spyrec.sim.stats import bound
from spyrec.table import HEADINGS, MAX_ROWS
from tests.generated_docs import PAGES, ROOT, TABLE, encoder_table

STALE = "has drifted from the program; run: make docs"


@pytest.mark.parametrize("page", ["docs/ops.md", "docs/onnx.md"])
def test_a_printed_page_is_what_the_program_prints(page: str) -> None:
    if page == "docs/onnx.md" and defs.onnx_opset_version() < OPSETS[-1]:
        known = defs.onnx_opset_version()
        pytest.skip(f"this onnx package knows opset {known}, the page goes to {OPSETS[-1]}")
    assert (ROOT / page).read_text("utf-8") == PAGES[page](), f"{page} {STALE}"


def kernels_and_cycles(table: str) -> tuple[list[str], str]:
    rows = [re.split(r"\s{2,}", line) for line in table.splitlines()]
    return [row[0] for row in rows[1:]], rows[-1][2]


def test_the_table_in_the_readme_is_that_of_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPYREC_PLAN_BUDGET", raising=False)
    [shown] = TABLE.findall((ROOT / "README.md").read_text("utf-8"))
    assert kernels_and_cycles(shown) == kernels_and_cycles(encoder_table()), f"README.md {STALE}"


def test_the_readme_leads_to_every_page_and_example() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    assert [p.name for p in pages if f"({p.relative_to(ROOT)})" not in readme] == []


def tables(page: str) -> list[list[str]]:
    """The first column of each Markdown table of a page, in order, without the heading."""
    found: list[list[str]] = [[]]
    for line in (ROOT / page).read_text("utf-8").splitlines():
        if line.startswith("|"):
            found[-1].append(line.split("|")[1].strip().strip("`"))
        elif found[-1]:
            found.append([])
    return [column[2:] for column in found if column]


def test_the_page_on_reports_has_every_field_column_and_bound() -> None:
    run, host, bucket, kernel, bounds, units, columns, *details, views = tables("docs/report.md")
    assert run == [f.name for f in fields(Report)]
    assert host == [f.name for f in fields(HostTime)]
    assert bucket == [f.name for f in fields(BucketUse)]
    assert kernel == [f.name for f in fields(KernelRow)]
    assert units == [f.name for f in fields(UnitCycles)]
    assert columns == list(HEADINGS)
    kinds = (Detail, KernelDetail, LaunchTime, HeldLayout, HeldTensor, CardBuffer)
    assert details == [[f.name for f in fields(kind)] for kind in kinds]
    page = (ROOT / "spyrec" / "html" / "page.html").read_text("utf-8")
    assert views == re.findall(r'<section id="(\w+)"', page)
    assert f"the {MAX_ROWS + 1}st kernel on" in (ROOT / "docs" / "report.md").read_text("utf-8")
    idle = {"pt": 0, "sfp": 0, "rs": 0}
    found = [bound(1, idle | {unit: 1}, 0) for unit in ("pt", "sfp")]
    found += [bound(1, idle, 1), bound(1, idle | {"rs": 1}, 0), bound(1, idle, 0)]
    assert bounds == found


def test_the_plan_on_the_page_of_plans_is_one_for_the_encoder(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "plan.md").read_text("utf-8")
    [example] = re.findall(r"^```json\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    plan = json.loads(example)
    assert PAGES["docs/plan.md"]() == text, f"docs/plan.md {STALE}"
    made = api.compile(encoder(), plan=plan).plan
    for name, pins in plan["kernels"].items():
        kernel = made["kernels"][name]
        for key, value in pins.items():
            got = kernel[key]
            assert (got.items() >= value.items()) if isinstance(value, dict) else got == value
    for name, pins in plan["tensors"].items():
        assert made["tensors"][name].items() >= pins.items()
