"""What no model can reach that is blind to a difference between rows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.noise_floor import Point, alike, blind


def point(variant: str, rows: int, cores: int, measured: float) -> Point:
    return Point(variant, (rows, 64), cores, measured, 0.0, ())


def test_rows_that_move_the_same_bytes_are_told_apart_by_their_times_only() -> None:
    found = [
        point("bcast", 8, 32, 100.0), point("bcastcol", 8, 32, 112.0), point("copy", 8, 32, 106.0),
        point("bcast", 16, 32, 50.0), point("mulbcast", 16, 32, 52.0),
        point("add", 16, 32, 90.0),  # moves other bytes
        point("copy", 16, 4, 70.0),  # on few cores
    ]  # fmt: skip
    off, notes = blind(found, 32)
    assert sorted(off) == [-6.0, -1.0, 0.0, 1.0, 6.0]
    assert notes == ["8 x 64: bcastcol +12 %, copy +6 %"]


def test_nothing_to_compare_is_no_spread() -> None:
    off, notes = blind([point("add", 8, 32, 1.0)], 32)
    assert len(off) == 0 and not notes


def test_a_spread_of_few_is_that_of_a_sample() -> None:
    found = [point("neg", 8, 32, 10.0), point("gelu", 8, 32, 12.0), point("gelu", 9, 32, 3.0)]
    assert np.sqrt(np.mean(alike(found, ("neg", "gelu"), 32) ** 2)) == pytest.approx(2**0.5)
