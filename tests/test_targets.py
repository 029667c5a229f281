"""The published results: what a prediction is held against."""

from __future__ import annotations

import pytest

from benchmarks.targets import Line


@pytest.mark.parametrize(
    ("low", "high", "predicted", "ratio"),
    [(10, 10, 15, 1.5), (10, 20, 15, 1.0), (10, 20, 25, 1.25), (10, 20, 8, 0.8),
     (10, 20, None, None)],
)  # fmt: skip
def test_a_range_is_as_far_as_its_nearer_end(
    low: float, high: float, predicted: float | None, ratio: float | None
) -> None:
    assert Line("", low, high, predicted).ratio == ratio
