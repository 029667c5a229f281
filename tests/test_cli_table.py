"""The kernel table: what is shown, what is summed up, what is shortened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from spyrec.report import KernelRow, Totals
from spyrec.table import MAX_ROWS, kernel_table, size

ROW = KernelRow(
    name="k0_matmul", ops=("matmul",), source=("/MatMul",), count=2, start_cycle=0, cycles=2200,
    us=2.0, cores=32, macs=32768 * 1100, pt_utilisation=0.5, hbm_read_bytes=1 << 20,
    hbm_write_bytes=1 << 19, ring_bytes=2048, lx_peak_bytes=100, compute_floor_us=1.0,
    memory_floor_us=0.5, bound="compute",
)
TOTALS = Totals(8800, 8.0, 0.25)
STARTED = Totals(8800, 8.0, 0.25, 4, 4400, 4.0)


def lines(table: Table) -> list[list[str]]:
    console = Console(width=300)
    with console.capture() as captured:
        console.print(table)
    return [line.split() for line in captured.get().splitlines()]


def test_a_row_and_the_totals() -> None:
    [heading, row, total] = lines(kernel_table([ROW], TOTALS, 300))
    assert " ".join(heading) == "kernel count cycles us share cores PT use HBM ring LX peak bound"
    assert " ".join(row) == "k0_matmul 2 2,200 2.0 50.0% 32 50.0% 1.5 MiB 2.0 KiB 100 B compute"
    assert " ".join(total) == "total 2 8,800 8.0 25.0% 3.0 MiB 4.0 KiB 100 B"


def test_starting_up_has_a_row_that_completes_the_sum() -> None:
    [_, row, start_up, total] = lines(kernel_table([ROW], STARTED, 300))
    assert " ".join(start_up) == "launch start-up 4 1,100 1.0 50.0%"
    times = [int(count) * int(each.replace(",", "")) for count, each in (row[1:3], start_up[2:4])]
    assert sum(times) == int(total[2].replace(",", ""))


def test_a_name_is_shown_as_it_is() -> None:
    [_, row, _] = lines(kernel_table([replace(ROW, name="[bold]k[0]:smile:")], TOTALS, 300))
    assert row[0] == "[bold]k[0]:smile:"


def test_the_longest_comes_first_and_the_rest_is_summed_up() -> None:
    rows = [replace(ROW, name=f"k{i}", count=1, cycles=10 + i, us=1.0) for i in range(MAX_ROWS + 3)]
    shown = lines(kernel_table(rows, TOTALS, 300))[1:-1]
    assert [row[0] for row in shown[:3]] == [f"k{MAX_ROWS + 2}", f"k{MAX_ROWS + 1}", f"k{MAX_ROWS}"]
    assert len(shown) == MAX_ROWS + 1
    assert shown[-1][:5] == ["3", "more", "3", str(10 + 11 + 12), "3.0"]


def test_long_names_keep_both_ends_and_no_number_is_cut() -> None:
    row = replace(ROW, name="k12_" + "a" * 200 + "_gelu", cycles=1_234_567_890, us=1_122_334.4)
    for columns in (40, 80, 130):
        console = Console(width=300)
        with console.capture() as captured:
            console.print(kernel_table([row], TOTALS, columns))
        shown = captured.get()
        assert "1,234,567,890" in shown
        assert "1,122,334.4" in shown
        assert shown.count("…") == 1
        assert "k12_aaaaaa" in shown
        assert "_gelu " in shown
    assert {len(line.rstrip()) <= 130 for line in shown.splitlines()} == {True}
    assert max(len(line.rstrip()) for line in shown.splitlines()) == 130


def test_an_empty_run_has_a_total_of_nothing() -> None:
    [_, total] = lines(kernel_table([], Totals(0, 0.0, 0.0), 300))
    assert total == ["total", "0", "0", "0.0", "0.0%", "-", "-", "-"]


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "-"), (1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"),
     (5 << 30, "5.0 GiB"), (7 << 40, "7168.0 GiB")],
)
def test_sizes_are_told_in_powers_of_1024(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text
