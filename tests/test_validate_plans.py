"""How pointwise kernels of the measured rows are walked: tiles by the rows that a core has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyrec.validate_plans import BURST, LANES, by_column, by_rows, copied, filled, paired

POWERS = st.integers(0, 10).map(lambda n: 1 << n)  # within what one core reaches


@pytest.mark.parametrize(
    ("rows", "cols", "column", "copy"),
    [(128, 4096, (4, 16), (4, 16)),  # 4 rows of a block for a core: 64 sticks together
     (512, 8192, (16, 4), (16, 2)),  # half a burst: 64 sticks, and a burst
     (1024, 4096, (32, 1), (32, 1)),  # whole bursts on their own
     (2048, 2048, (64, 4), (64, 4)),  # more than a burst: 32 KiB
     (64, 16384, (64, 4), (64, 4))],  # columns are cut, so a core has all the rows
)  # fmt: skip
def test_short_runs_are_gathered_and_whole_bursts_are_not(
    rows: int, cols: int, column: tuple[int, int], copy: tuple[int, int]
) -> None:
    for rule, (tall, blocks) in ((by_column, column), (copied, copy)):
        division = rule(rows, cols, 32)
        assert division.tile == {"d0": tall, "d1": LANES * blocks}
        assert division.overlap == "loads"
        assert division.parts == by_rows(rows, cols, 32).parts


def test_a_row_operand_has_large_tiles_whatever_the_rows() -> None:
    assert by_rows(1024, 4096, 32).tile == {"d0": 32, "d1": 8 * LANES}
    assert filled(2048, 1024, 32).tile == {"d0": 64, "d1": LANES}
    assert filled(2048, 1024, 32).overlap == "all"
    assert paired(1024, 4096, 32).overlap == "all"


@given(POWERS, POWERS, st.sampled_from((1, 2, 4, 8, 16, 32)))
def test_a_tile_lies_in_the_part_of_a_core(rows: int, blocks: int, cores: int) -> None:
    for rule in (by_rows, by_column, copied, filled, paired):
        division = rule(rows, LANES * blocks, cores)
        down, across = division.parts["d0"], division.parts["d1"]
        assert down * across <= cores
        assert rows % down == 0 and blocks % across == 0
        assert 1 <= division.tile["d0"] <= rows // down
        assert LANES <= division.tile["d1"] <= LANES * blocks // across
        assert division.tile["d0"] * division.tile["d1"] <= 8 * BURST * LANES
