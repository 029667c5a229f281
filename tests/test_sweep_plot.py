"""The picture of a sweep: to scale, joined only between numbers, with gaps and escaped names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spyrec.sweep.plot import COLOURS, MARKS, MOST_LINES, svg


def row(x: Any, y: float | None, **more: Any) -> dict[str, Any]:
    return {"model": "m<&>.onnx", "x": x, **more, "total_us": y, "error": None, "id": ""}


def heights(picture: str) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)]


def test_a_picture_is_to_scale() -> None:
    far = heights(svg([row(1, 10.0), row(4, 30.0), row(16, 40.0)], "x", "total_us"))
    assert far[1][0] - far[0][0] == pytest.approx(far[2][0] - far[1][0], abs=0.11)  # ratios
    near = heights(svg([row(10, 10.0), row(11, 30.0), row(14, 40.0)], "x", "total_us"))
    assert 3 * (near[1][0] - near[0][0]) == pytest.approx(near[2][0] - near[1][0], abs=0.41)
    rise = [far[0][1] - y for _, y in far]
    assert rise[2] == pytest.approx(1.5 * rise[1], abs=0.2)
    words = heights(svg([row("b", 1.0), row("a", 1.0)], "x", "total_us"))
    assert words[0][0] < words[1][0]  # in their order


def test_only_numbers_are_joined() -> None:
    """Between two pipelines or models there is nothing that a line could show."""
    numbers = svg([row(1, 1.0), row(2, 2.0)], "x", "total_us")
    assert "stroke-width" in numbers
    words = svg([row("usual", 1.0), row("cse,dce", 2.0)], "x", "total_us")
    assert words.count("<circle") == 2 and "stroke-width" not in words
    some = svg([row(8, 1.0), row("all", 2.0)], "x", "total_us")
    assert "stroke-width" not in some
    kinds = len(COLOURS) + 1  # one more than there are colours
    many = svg([row(x, 1.0, kind=i) for x in "ab" for i in range(kinds)], "x", "total_us")
    assert "stroke-width" not in many
    first, *_, last = re.findall(r'<g stroke="(.*?)".*?</title>\n(.*?)\n</g>', many, re.DOTALL)
    assert first[0] == last[0]  # told apart by the mark
    assert "<circle" in first[1] and "<circle" not in last[1]
    assert many.count("<circle") == 3 * len(COLOURS)  # two points and the legend
    assert many.count(MARKS[1]) == 3


def test_a_picture_leaves_gaps_and_escapes_names() -> None:
    broken = svg([row(1, 1.0), row(2, None), row(3, 1.0)], "x", "total_us")
    assert broken.count("<circle") == 2
    assert "stroke-width" not in broken  # no line across the gap
    two = svg([row(1, 1.0), row(1, 2.0) | {"model": "b"}], "x", "total_us")
    assert "m&lt;&amp;&gt;.onnx" in two
    assert "<&>" not in two
    assert "<circle" not in svg([row(1, None)], "x", "total_us")
    many = svg([row(1, 1.0, kind=i) for i in range(MOST_LINES + 3)], "x", "total_us")
    assert "and 3 more, not shown" in many
