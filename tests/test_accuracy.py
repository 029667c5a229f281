"""The accuracy benchmark: what it measures, and light models with random weights."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy import LEAST_COSINE, compare, measure


def test_compare_sees_errors_and_what_is_not_finite() -> None:
    want = np.array([3.0, 4.0])
    same = compare("m", "y", want, want.copy())
    assert (same.cosine, same.error, same.largest, same.good) == (1.0, 0.0, 4.0, True)
    turned = compare("m", "y", want, np.array([4.0, 3.0]))
    assert turned.cosine == pytest.approx(24 / 25)
    assert turned.error == 1.0
    assert not turned.good
    assert not compare("m", "y", want, np.array([3.0, np.nan])).good
    assert not compare("m", "y", np.zeros(2), np.ones(2)).good
    assert compare("m", "y", np.zeros(2), np.zeros(2)).good


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_resnet50", "light_squeezenet", "light_densenet121"])
def test_light_models_with_random_weights(name: str) -> None:
    rows = list(measure(name, random_weights=True))
    assert rows
    for row in rows:
        print(f"{row.model} {row.output}: cosine {row.cosine:.7f}, largest error {row.error:.3g}")
        assert row.cosine >= LEAST_COSINE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_resnet50", "C17"])
def test_ieee_half(name: str) -> None:
    assert all(row.good for row in measure(name, numerics="ieee16"))
