"""The work of planning grows no faster than the number of different layers. Work is counted in
lines that the passes run, which no other process on the machine changes."""

from __future__ import annotations

from functools import cache

from benchmarks.growth import alike, different, lines_run


@cache
def lines_of_different(count: int) -> int:
    return lines_run(different(count))


def test_twice_the_different_layers_take_at_most_twice_the_work() -> None:
    two, four, eight = map(lines_of_different, (2, 4, 8))
    assert four <= 2 * two
    assert eight <= 2.05 * four  # some exchanges of the wider ones are long enough for a search
    assert eight - four <= 1.2 * 2 * (four - two)  # what all models have in common left out


def test_a_layer_like_others_takes_a_fifth_of_the_work_of_another_one() -> None:
    four, eight, sixteen = (lines_run(alike(n)) for n in (4, 8, 16))
    assert sixteen - eight <= 1.1 * 2 * (eight - four)
    assert 5 * (eight - four) <= lines_of_different(8) - lines_of_different(4)
