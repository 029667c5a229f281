"""The work of planning grows no faster than the number of different layers. Work is counted in
lines that the passes run, which no other process on the machine changes. Layers of some widths are
more work than others, so a model is compared with its halves as models of their own."""

from __future__ import annotations

from benchmarks.growth import alike, different, lines_run


def test_different_layers_take_no_more_work_than_as_two_models() -> None:
    widths = different(8)
    first, last = lines_run(widths[:4]), lines_run(widths[4:])
    assert first <= lines_run(widths[:2]) + lines_run(widths[2:4])
    assert lines_run(widths) <= first + last


def test_a_layer_like_others_takes_a_fifth_of_the_work_of_another_one() -> None:
    four, eight, sixteen = (lines_run(alike(n)) for n in (4, 8, 16))
    assert sixteen - eight <= 1.1 * 2 * (eight - four)
    assert 5 * (eight - four) <= lines_run(different(8)) - lines_run(different(4))
