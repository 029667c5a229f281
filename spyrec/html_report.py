"""A report as one HTML page that needs nothing else: style, script and data stand in it, and its
content policy lets it load nothing.

The script draws all views from the data. Names come from models that nobody vouches for, so they
reach the page as JSON in which no ``<`` stands, and the script makes text nodes of them.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from importlib import resources
from typing import Any

from spyrec.compare import Comparison
from spyrec.decision_log import DecisionLog
from spyrec.report import Report
from spyrec.report_detail import check_detail

SCRIPTS = ("base.js", "figures.js", "timeline.js", "machine.js", "tensors.js", "main.js")


def html_report(
    report: Report, log: DecisionLog | None = None, against: Comparison | None = None
) -> str:
    """The page: the same text for the same report. ``log``: what the planner decided;
    ``against``: how the run compares with another one, which came before. SpyrecError: the parts of
    the report do not fit together."""
    if report.detail is not None:
        check_detail(report.detail, len(report.kernels))
    data = {
        "report": report.as_dict(),
        "log": None if log is None else log.as_dict(),
        "against": None if against is None else against.as_dict(),
    }
    style = _part("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_part, SCRIPTS)) + "})();\n"
    name, device = (_markup(text) for text in (report.model or "a program", report.device))
    parts = {
        "TITLE": f"{name} on {device}, spyrec",
        "HEADING": name,
        "STYLE": style,
        "STYLE_HASH": _digest(style),
        "SCRIPT": script,
        "SCRIPT_HASH": _digest(script),
        "DATA": in_script(data),
    }
    first, *rest = _part("page.html").split("@")  # name and text in turn
    return first + "".join(
        parts[piece] if i % 2 == 0 else piece for i, piece in enumerate(rest)
    )


def in_script(data: Any) -> str:
    """JSON that may stand in a script element whatever texts are in it."""
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _markup(text: str) -> str:
    """As HTML, without what UTF-8 cannot say."""
    return html.escape(text.encode("utf-8", "replace").decode())


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity, which a forged report may hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else 0.0
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _part(name: str) -> str:
    return (resources.files("spyrec") / "html" / name).read_text("utf-8")
