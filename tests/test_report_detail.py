"""What a report's detail says of launches, cores, ring and tensors is what the machine did."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from test_ksplit import compiled

import spyrec
from examples.make_models import encoder, reader
from spyrec.ir.errors import SpyrecError
from spyrec.report import Report
from spyrec.report_detail import Detail, HeldTensor, LaunchTime, check_detail
from spyrec.sim.assembler import assemble
from spyrec.sim.device import DeviceSpec
from spyrec.sim.engine import Engine
from spyrec.sim.errors import ObjectError
from spyrec.sim.isa import Program
from spyrec.sim.link import bucket_program
from spyrec.sim.link_load import link_load
from spyrec.sim.listing import disassemble
from spyrec.sim.objfile import dump, loads
from spyrec.sim.wellformed import Limits, check_program


@pytest.fixture(scope="module")
def program() -> spyrec.Program:
    return spyrec.compile(encoder())


@pytest.fixture(scope="module")
def report(program: spyrec.Program) -> Report:
    return spyrec.simulate(program, timing_only=True, detail=True).facts


def ring_of(code: Program, device: DeviceSpec) -> tuple[list[list[int]], list[list[int]]]:
    """Bytes over each piece as the engine counts them, and as the loads of its launches say."""
    engine = Engine(code, device)
    engine.run()
    loads = [link_load(kernel, device) for kernel in code.kernels]
    lanes = [
        np.sum([vars(loads[x.kernel])[lane] for x in code.launches], axis=0).tolist()
        for lane in ("up", "down", "sums_up", "sums_down")
    ]
    return [*engine.ring.link_bytes, *engine.ring.psum_bytes], lanes


def test_the_loads_of_launches_are_what_passes_the_ring(program: spyrec.Program) -> None:
    counted, told = ring_of(program.code, program.device)
    assert told == counted
    assert all(sum(lane) > 0 for lane in counted[:2])


@pytest.mark.parametrize("case", ["a group of all cores", "reads over the ring"])
def test_partial_sums_are_told_apart(case: str) -> None:
    code = compiled(case).program
    counted, told = ring_of(code, spyrec.Program(code).device)
    assert told == counted
    assert sum(map(sum, counted[2:])) > 0


def test_every_launch_is_there_with_its_row(program: spyrec.Program, report: Report) -> None:
    detail = report.detail
    assert detail is not None
    assert len(detail.launches) == len(program.code.launches)
    for number, row in enumerate(report.kernels):
        mine = [x for x in detail.launches if x.kernel == number]
        assert len(mine) == row.count
        assert mine[0].go_cycle == row.start_cycle
        assert {x.end_cycle - x.go_cycle for x in mine} == {row.cycles}
    assert max(x.end_cycle for x in detail.launches) == report.total_cycles


def test_cores_add_up_to_what_the_row_says(report: Report) -> None:
    assert report.detail is not None
    for row, more in zip(report.kernels, report.detail.kernels, strict=True):
        sums = {unit: sum(lane) for unit, lane in vars(more.core_busy).items()}
        assert sums == vars(row.busy_cycles)
        assert bool(row.ring_bytes) == (more.links is not None)


def test_shortcuts_lose_no_core() -> None:
    program = spyrec.compile(reader(), bind={"seq": 64})
    short, long = (Engine(program.code, program.device), Engine(
        program.code, program.device, shortcuts=()))
    short.run(), long.run()
    assert short.stats == long.stats


def test_tensors_lie_within_what_is_used_and_beside_each_other(report: Report) -> None:
    detail = report.detail
    assert detail is not None and detail.held

    def room(t: HeldTensor) -> range:
        return range(t.address, t.address + detail.layouts[t.layout].core_bytes)

    for t in detail.held:
        for i in range(t.launches[0], t.launches[-1] + 1):
            assert room(t).stop <= report.kernels[detail.launches[i].kernel].lx_peak_bytes
    for n, a in enumerate(detail.held):
        for b in detail.held[n + 1 :]:
            apart = room(a).stop <= room(b).start or room(b).stop <= room(a).start
            # what is computed in place takes its operand's room in the launch that reads that last
            assert apart or a.launches[-1] <= b.launches[0] or b.launches[-1] <= a.launches[0]


def test_every_element_that_is_made_on_chip_has_an_owner(report: Report) -> None:
    detail = report.detail
    assert detail is not None
    made = {t.layout for t in detail.held if not re.search(r"_there(_\d+)?$", t.name)}
    for number in made:
        layout = detail.layouts[number]
        owned = np.zeros(layout.shape, bool)
        for box in layout.boxes:
            owned[tuple(slice(a, a + n) for a, n in zip(box[::2], box[1::2], strict=True))] = True
        assert owned.all(), layout.shape


def test_what_is_in_card_memory_is_not_on_chip(program: spyrec.Program, report: Report) -> None:
    assert report.detail is not None
    held = {t.name for t in report.detail.held}
    spaces = {name: t["space"] for name, t in program.plan["tensors"].items()}
    assert {n for n, space in spaces.items() if space == "lx"} <= held
    assert not held & {n for n, space in spaces.items() if space == "hbm"}


def test_files_and_listings_keep_holdings(program: spyrec.Program) -> None:
    code = program.code
    assert code.holdings
    assert loads(dump(code)).holdings == code.holdings
    assert assemble(disassemble(code)).holdings == code.holdings


def test_a_bucket_has_the_holdings_of_its_launches() -> None:
    whole = spyrec.compile(reader(), buckets={"seq": [64, 128]})
    parts = [bucket_program(whole.code, n) for n in range(2)]
    assert sum(len(p.holdings) for p in parts) == len(whole.code.holdings)
    for part in parts:
        check_program(part, Limits())
        assert {h.launches[-1] < len(part.launches) for h in part.holdings} == {True}
    small, large = (
        sum(prod(part.tensors[h.tensor].shape) for h in part.holdings) for part in parts
    )
    assert 0 < small < large
    facts = spyrec.simulate(whole, timing_only=True, bucket={"seq": 64}, detail=True).facts
    assert facts.detail is not None
    check_detail(facts.detail, len(facts.kernels))
    assert len(facts.detail.held) == len(parts[0].holdings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": 1 << 20}, "a holding is of tensor 1048576, which is not there"),
        ({"launches": ()}, "its launches () do not ascend"),
        ({"launches": (3, 2)}, "its launches (3, 2) do not ascend"),
        ({"launches": (0, 1 << 20)}, "it names a launch beyond the"),
        ({"address": -1}, "bytes at -1"),
        ({"size": 1 << 41}, "2199023255552 bytes at"),
        ({"boxes": ()}, "0 parts for 63 cores"),
        ({"boxes": (((0, 1),) * 9,)}, "on core 0 is no part of"),
        ({"dtype": "\ud800"}, "its element type is not text"),
    ],
)
def test_a_holding_that_cannot_be_is_refused(
    program: spyrec.Program, change: dict[str, Any], message: str
) -> None:
    first, *rest = program.code.holdings
    forged = replace(program.code, holdings=(replace(first, **change), *rest))
    with pytest.raises(ObjectError, match=re.escape(message)):
        check_program(forged, Limits())


Change = Callable[[Detail], Detail]
CHANGES: dict[str, Change] = {
    "1000000 cores": lambda d: replace(d, machine=replace(d.machine, cores=1_000_000)),
    "0 kernels": lambda d: replace(d, kernels=()),
    "a launch of kernel 99": lambda d: replace(d, launches=(LaunchTime(99, 0, 0, 1),)),
    "a layout 99": lambda d: replace(d, held=(replace(d.held[0], layout=99),)),
    "x without a launch": lambda d: replace(d, held=(HeldTensor("x", 0, 0, ()),)),
    "launches of x": lambda d: replace(d, held=(HeldTensor("x", 0, 0, (0, 1 << 40)),)),
    "pieces of the ring": lambda d: replace(d, kernels=tuple(
        replace(k, links=k.links and replace(k.links, up=(1,))) for k in d.kernels)),
    "layout 0 of": lambda d: replace(d, layouts=(replace(d.layouts[0], stick_dim=9),)),
}


@pytest.mark.parametrize("message", CHANGES)
def test_detail_that_does_not_fit_is_refused(report: Report, message: str) -> None:
    assert report.detail is not None
    forged = CHANGES[message](report.detail)
    with pytest.raises(SpyrecError, match=f"does not fit the report: it has .*{message}"):
        check_detail(forged, len(report.kernels))
