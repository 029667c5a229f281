"""``spyrec validate``: rows become programs with their forced decisions, figures are what they say,
and nothing is dropped."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_models import cosine, random_inputs

from spyrec import cli, runtime
from spyrec.cli_validate import report
from spyrec.driver import Compiled
from spyrec.ir import interp
from spyrec.ir.core import Op
from spyrec.ir.errors import PassError, SpyrecError
from spyrec.ir.rounding import round_to
from spyrec.ir.types import dtype
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.isa import instructions
from spyrec.sim.run import run
from spyrec.validate import (
    Outcome,
    Validation,
    build,
    by_class,
    by_kind,
    predict,
    ranks,
    spearman,
    summary,
    validate,
)
from spyrec.validate_plans import Product
from spyrec.validate_rows import COLUMNS, CannotBuild, CardLayout, Row, case_of, read_rows

ROOT = Path(__file__).resolve().parent.parent
MEASUREMENTS = ROOT.parent / "shared" / "measurements" / "device_kernels.csv"
DEVICE = load_device()
TARGET = Target(DEVICE)

HEAD = (
    "id,op,variant,B,M,N,K,rows,cols,row_tiles,dtype,cores,split_b_m_n_k,device_layout,config,"
    "time_us,std_us,reps,stack,note"
)
LINES = {
    "mm": "mm,matmul,,1,256,512,256,,,,fp16,32,1_4_8_1,,forced_split,10.5,0.1,7,H,",
    "cut": "cut,matmul,,1,256,512,256,,,,fp16,32,1_2_2_8,,forced_split,9.5,,7,H,",
    "sum": "sum,matmul,,1,256,512,256,,,,fp16,32,1_2_4_4,,forced_split,9.5,,7,H,",
    "free": "free,matmul,,1,64,256,256,,,,fp16,16,planner,,,5.5,,7,X,",
    "fp8": "fp8,matmul,,1,64,256,256,,,,fp8,32,sendnn auto,,,3.5,,7,X,",
    "rr": "rr,bmm,,4,128,256,128,,,,fp16,32,1_4_4_1,A row-outer/B row-outer,,40,,7,H,",
    "bb": "bb,bmm,,4,128,256,128,,,,fp16,32,2_4_4_1,"
          "A batch-outer / B batch-outer / C batch-outer,,20,,7,H,",
    "2d": "2d,bmm,,4,128,256,128,,,,fp16,32,1_4_4_1,A row-outer/B shared 2-D,,30,,7,H,",
    "add": "add,pointwise,add,,,,,256,512,,fp16,8,,,,12,,7,H,add: 2 reads 1 write",
    "write": "write,pointwise,write,,,,,256,512,,fp16,32,,,,4,,7,H,",
    "amax": "amax,reduction,amax,,,,,512,512,,fp16,32,,,,6,,7,H,row max over C",
    "ct": "ct,reduction,ctsum,,,,,512,512,,fp16,32,,,,6,,7,H,",
    "soft": "soft,softmax,,,,,,512,256,4,fp16,8,,,,20,,7,H,coarse row tiles",
    "big": "big,softmax,,,,,,512,2048,1,fp16,1,,,,400,,7,H,one kernel",
    "cat1": "cat1,copy,cat1,,,,,256,512,,fp16,32,,,,9,,7,H,",
    "turn": "turn,restickify,transpose2d,,,,,256,512,,fp16,32,,,,6,,7,H,",
    "add4": "add4,fused,,,,,,256,512,,fp16,32,,,,12,,7,H,\"add4: 3-add chain, HBM\"",
    "add3": "add3,fused,,,,,,256,512,,fp16,32,,lx,lx_planning=1,9,,7,H,\"add3_lx: chain, LX\"",
    "two": "two,fused,,,,,,256,512,,fp16,32,,,,12,,7,H,add_indep2: two independent adds",
    "moe": "moe,fused,,8,,,,512,2048,,fp16,32,,,,12,,7,X,MoE dispatch E8 T512 H2048",
}  # fmt: skip


def write_csv(path: Path, *names: str) -> Path:
    path.write_text("\n".join([HEAD, *(LINES[n] for n in names)]) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    path = write_csv(tmp_path_factory.mktemp("csv") / "all.csv", *LINES)
    return {row.id: row for row in read_rows(path)}


def built(row: Row) -> tuple[Compiled, str]:
    return build(case_of(row), TARGET)


def kernels(compiled: Compiled) -> list[Op]:
    return [op for op in compiled.module.body.ops if op.name == "kernel"]


def moved_bytes(row: Row) -> tuple[int, int]:
    """Bytes read from and written to card memory."""
    launches = run(built(row)[0].program, DEVICE, timing_only=True).launches
    return sum(n.hbm_read_bytes for n in launches), sum(n.hbm_write_bytes for n in launches)


def test_a_row_is_read_as_it_stands(rows: dict[str, Row]) -> None:
    assert rows["mm"] == Row(
        "mm", "matmul", "", "H", "fp16", {"B": 1, "M": 256, "N": 512, "K": 256, "cores": 32},
        (1, 4, 8, 1), "", "", 10.5,
    )  # fmt: skip
    assert rows["free"].split is None
    assert rows["soft"].sizes["row_tiles"] == 4


def test_every_bad_cell_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    bad = [
        LINES["mm"].replace("256,512", "x,0").replace("10.5", "-1"),
        LINES["add"].replace("add,pointwise", "mm,pointwise"),
        LINES["rr"].replace("1_4_4_1", "4x4"),
        LINES["free"],
        LINES["free"],
    ]
    path.write_text("\n".join([HEAD, *bad]) + "\n", "utf-8")
    with pytest.raises(SpyrecError) as caught:
        read_rows(path)
    number = "expected a whole number, 1 or more, got"
    assert str(caught.value).splitlines() == [
        f"{path}, line 2, M: {number} 'x'",
        f"{path}, line 2, N: {number} '0'",
        f"{path}, line 2, time_us: expected a time above 0, got '-1'",
        f"{path}, line 4, split_b_m_n_k: expected four numbers as in 1_4_8_1 or one of ?, planner, "
        "sendnn auto, got '4x4'",
        f"{path}: two rows are called free",
    ]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("id,op,time_us\na,matmul,1\n", "utf-8")
    missing = ", ".join(c for c in COLUMNS if c not in ("id", "op", "time_us"))
    with pytest.raises(SpyrecError, match=re.escape(f"{path} has no column {missing}")):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("mm", {"m": 4, "n": 8, "k": 1}), ("rr", {"b0": 1, "m": 4, "n": 4, "k": 1}),
     ("bb", {"b0": 2, "m": 4, "n": 4, "k": 1}), ("2d", {"b0": 1, "m": 4, "n": 4, "k": 1})],
)
def test_a_forced_split_is_the_split(
    rows: dict[str, Row], name: str, parts: dict[str, int]
) -> None:
    [op] = kernels(built(rows[name])[0])
    names = [d for d, _ in op.attrs["dims"]]
    assert dict(zip(names, op.attrs["parts"], strict=True)) == parts


@pytest.mark.parametrize("name", ["free", "add", "soft"])
def test_a_planner_uses_no_more_cores_than_the_row(rows: dict[str, Row], name: str) -> None:
    [op] = kernels(built(rows[name])[0])
    assert math.prod(op.attrs["parts"]) == rows[name].size("cores")


def test_card_memory_is_laid_out_as_the_row_says(rows: dict[str, Row]) -> None:
    def orders(name: str) -> list[list[int]]:
        body = built(rows[name])[0].module.body
        tensors = (*body.args, *body.results)
        return [[d.dim for d in v.type.layout.digits if d.axis == "mem"] for v in tensors]

    assert orders("rr") == [[1, 2, 0], [1, 2, 0], [1, 2, 0]]
    assert orders("bb") == [[0, 2, 1], [0, 2, 1], [0, 2, 1]]
    assert orders("2d") == [[1, 2, 0], [1, 0], [1, 2, 0]]


def test_row_outer_loads_jump_over_the_batch(rows: dict[str, Row]) -> None:
    """One stick of a row-outer operand is followed by the same place of the next batch, so rows of
    one batch lie ``batch`` times as far apart."""
    [op] = built(rows["rr"])[0].program.kernels
    loads = [i for i, _ in instructions(op.streams["ml"]) if i.op == "load"]
    far = [i.operands[1].strides for i in loads]
    assert far
    assert all(min(s) >= 4 for s in far)
    [op] = built(rows["bb"])[0].program.kernels
    loads = [i for i, _ in instructions(op.streams["ml"]) if i.op == "load"]
    assert all(min(i.operands[1].strides) == 1 for i in loads)


@pytest.mark.parametrize("name", ["rr", "2d", "soft", "amax", "write", "cat1", "add3"])
def test_the_programs_compute_what_the_rows_name(rows: dict[str, Row], name: str) -> None:
    module, program = case_of(rows[name]).module, built(rows[name])[0].program
    inputs = {n: np.asarray(round_to(x, dtype("dl16"))) for n, x in random_inputs(module).items()}
    ports = runtime.ports(program, "input")
    packed = {p.buffer.name: runtime.pack(p, inputs[p.name], True) for p in ports}
    result = run(program, DEVICE, packed, poison=True)
    [port] = runtime.ports(program, "output")
    got = runtime.unpack(port, result.outputs[port.buffer.name])
    assert cosine(interp.run(module, inputs)[port.name], got) > 0.9999


def test_whole_sticks_move_in_the_order_of_card_memory(rows: dict[str, Row]) -> None:
    [op] = built(rows["cat1"])[0].program.kernels
    for unit, card in (("ml", 1), ("ms", 0)):
        moves = [i for i, _ in instructions(op.streams[unit]) if i.op in ("load", "store")]
        assert moves
        for move in moves:
            strides = move.operands[card].strides
            assert strides == tuple(sorted(strides, reverse=True))
            assert strides[-1] == 1


def test_a_layout_of_a_tensor_that_is_not_there_is_refused(rows: dict[str, Row]) -> None:
    module = case_of(rows["rr"]).module
    with pytest.raises(PassError, match=r"^card-layout: the model has no input or output z$"):
        CardLayout((("z", (1, 2, 0)),)).run(module, TARGET)


def test_a_sum_cut_over_cores_goes_over_the_ring(rows: dict[str, Row]) -> None:
    compiled, _ = built(rows["sum"])
    assert [op.attrs["parts"] for op in kernels(compiled)] == [(2, 4, 4)]
    [launch] = run(compiled.program, DEVICE, timing_only=True).launches
    assert launch.ring_bytes == 3 * 256 * 512 * 4  # each fp32 sum is passed on three times
    assert predict(rows["sum"], DEVICE).reason == ""


@pytest.mark.parametrize(
    ("product", "parts", "tile"),
    [(Product(2048, 2048, 2048), (2, 4, 4), (128, 512, 512)),  # 512 x 512 stay
     (Product(2048, 2048, 8192), (1, 8, 4), (32, 256, 2048)),  # 1 MiB, as much as may stay
     (Product(2048, 4096, 8192), (1, 8, 4), (256, 256, 64)),  # 2 MiB, so piece by piece
     (Product(2048, 2048, 2048), (4, 8, 1), (256, 256, 64)),
     (Product(4, 128, 256), (1, 1, 2), (4, 128, 128))],
)  # fmt: skip
def test_second_factors_of_a_k_split_stay_where_they_fit(
    product: Product, parts: tuple[int, int, int], tile: tuple[int, int, int]
) -> None:
    cut = dict(zip("mnk", parts, strict=True))
    assert product.tile(cut) == dict(zip("mnk", tile, strict=True))


@pytest.mark.parametrize(
    ("batch", "lone", "parts", "tile"),
    [(4, False, (1, 4, 8), (128, 64, 128)),
     (2, False, (1, 4, 8), (128, 128, 128)),  # two sticks of each matrix in a granule
     (2, False, (2, 2, 8), (128, 64, 128)),  # of which a core takes one at a time
     (4, True, (1, 4, 8), (128, 128, 64)),  # 512 rows of 4 matrices
     (8, True, (1, 4, 8), (256, 128, 64))],  # and of 2
)  # fmt: skip
def test_a_batch_is_taken_by_granules(
    batch: int, lone: bool, parts: tuple[int, int, int], tile: tuple[int, int, int]
) -> None:
    product = Product(1024, 1024, 1024, batch, first=not lone, second=not lone, lone=lone)
    found = product.tile(dict(zip(("b0", "m", "n"), parts, strict=True)))
    assert found.pop("b0", 0) == (min(batch, 4) if batch < 8 else 2) * lone
    assert found == dict(zip("mnk", tile, strict=True))


def test_a_k_split_fetches_what_stays_once() -> None:
    sizes = {"M": 1024, "N": 1024, "K": 1024, "cores": 32}
    row = Row("k", "matmul", "", "H", "fp16", sizes, (1, 2, 4, 4), "", "", 1.0)
    factor = 1024 * 1024 * 2
    assert moved_bytes(row) == (2 * factor, factor)


def test_fp8_factors_stay_fp8_as_inputs_and_when_packed_on_the_card(rows: dict[str, Row]) -> None:
    for row in (rows["fp8"], replace(rows["fp8"], op="fused")):
        program = built(row)[0].program
        products = [i for k in program.kernels for i, _ in instructions(k.streams.get("pt", ()))
                    if i.op == "mm"]  # fmt: skip
        assert products
        assert {o.dtype for i in products for o in i.operands[1:]} == {"f8e4m3"}


def test_row_tiles_are_loop_trips_of_a_core(rows: dict[str, Row]) -> None:
    compiled, remark = built(rows["soft"])
    [op] = kernels(compiled)
    assert (op.attrs["parts"], op.attrs["tile"], remark) == ((8, 1), (16, 256), "")


def test_of_row_tiles_only_loads_overlap(rows: dict[str, Row]) -> None:
    compiled, remark = built(replace(rows["big"], sizes={**rows["big"].sizes, "row_tiles": 4}))
    [op] = kernels(compiled)
    assert (op.attrs["tile"], op.attrs["overlap"], remark) == ((128, 2048), "loads", "")


def test_a_row_tile_without_room_is_halved_and_told(rows: dict[str, Row]) -> None:
    row = replace(rows["big"], sizes={**rows["big"].sizes, "row_tiles": 2})
    compiled, remark = built(row)
    [op] = kernels(compiled)
    assert (op.attrs["tile"], op.attrs["buffers"]) == ((128, 2048), 2)
    assert remark == "row_tiles 4 for 2: its tile does not fit the scratchpad"
    assert predict(row, DEVICE).remark == remark


def test_one_row_tile_is_streamed_through_two_slots(rows: dict[str, Row]) -> None:
    compiled, remark = built(rows["big"])
    [op] = kernels(compiled)
    rows_of_tile, whole = op.attrs["tile"]
    assert rows_of_tile < 512 and (whole, op.attrs.get("buffers", 2), remark) == (2048, 2, "")


def test_additions_are_walked_a_burst_at_a_time_in_a_chain_too(rows: dict[str, Row]) -> None:
    # 256 rows of 8 sticks: 8 rows and 4 column blocks of a core are a burst of 32 sticks.
    for name, count in (("add4", 3), ("two", 2), ("add3", 2)):
        cut = [(op.attrs["parts"], op.attrs["tile"]) for op in kernels(built(rows[name])[0])]
        assert cut == count * [((32, 1), (8, 4 * 64))]


@pytest.mark.parametrize(("variant", "tile", "overlap"), [
    ("neg", (32, 64), "all"), ("add", (32, 64), "all"), ("bcast", (64, 256), "loads"),
    ("copy", (64, 256), "loads"), ("bcastcol", (64, 256), "loads"), ("write", (64, 64), "all"),
])  # fmt: skip
def test_tiles_follow_how_the_operands_relate(
    rows: dict[str, Row], variant: str, tile: tuple[int, int], overlap: str
) -> None:
    row = replace(rows["add"], variant=variant, sizes={"rows": 1024, "cols": 512, "cores": 8})
    [op] = kernels(built(row)[0])
    assert (op.attrs["tile"], op.attrs.get("overlap", "all")) == (tile, overlap)


MATRIX = 256 * 512 * 2  # bytes of a 256 x 512 tensor


@pytest.mark.parametrize(
    ("name", "read", "written", "launches"),
    [("add", 2 * MATRIX, MATRIX, 1), ("turn", MATRIX, MATRIX, 1),
     ("cat1", MATRIX, 2 * MATRIX, 1), ("add4", 6 * MATRIX, 3 * MATRIX, 3),
     ("add3", 3 * MATRIX, MATRIX, 2), ("two", 4 * MATRIX, 2 * MATRIX, 2),
     ("amax", 512 * 512 * 2, 512 * 128, 1)],
)  # fmt: skip
def test_traffic_is_what_the_row_describes(
    rows: dict[str, Row], name: str, read: int, written: int, launches: int
) -> None:
    assert moved_bytes(rows[name]) == (read, written)
    assert len(built(rows[name])[0].program.launches) == launches


def test_time_is_the_whole_run_with_one_start_a_kernel(rows: dict[str, Row]) -> None:
    result = run(built(rows["add4"])[0].program, DEVICE, timing_only=True)
    starts = 3 * DEVICE.launch.start_cycles
    assert result.total_cycles == sum(n.cycles for n in result.launches) + starts
    outcome = predict(rows["add4"], DEVICE)
    assert outcome.predicted_us == result.total_cycles / DEVICE.clock_mhz
    assert outcome.bound == "memory"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("cut", "plan: kernel k0_matmul, parts: k = 256 is cut in steps of 64 into 4 parts at most, "
             "got 8"),
     ("moe", "the row names a hand-off between ops but not what they compute")],
)  # fmt: skip
def test_what_cannot_be_built_has_a_reason(rows: dict[str, Row], name: str, reason: str) -> None:
    outcome = predict(rows[name], DEVICE)
    assert (outcome.predicted_us, outcome.reason) == (None, reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"op": "conv"}, "nothing here computes conv 'add'"),
     ({"dtype": "bf16"}, "the element type 'bf16' is unknown"),
     ({"sizes": {"rows": 4, "cores": 1}}, "the row gives no cols"),
     ({"sizes": {"rows": 64, "cols": 64, "cores": 64}}, "it takes 64 cores, the device has fewer")],
)  # fmt: skip
def test_rows_that_say_too_little_or_ask_too_much(
    rows: dict[str, Row], changes: dict[str, object], reason: str
) -> None:
    from dataclasses import replace

    row = replace(rows["add"], **changes)  # type: ignore[arg-type]
    with pytest.raises(CannotBuild) as caught:
        built(row)
    assert str(caught.value) == reason


# Figures -------------------------------------------------------------------------------------


def outcome(id_: str, measured: float, predicted: float | None, stack: str = "H") -> Outcome:
    return Outcome(id_, "copy", "cat0", stack, measured, predicted, reason="" if predicted else "r")


def test_the_figures_by_hand() -> None:
    e = math.e
    rows = [outcome("a", 1, e**0.3), outcome("b", 2, 2 * e**-0.1), outcome("c", 4, 4.0),
            outcome("d", 1, None)]  # fmt: skip
    s = summary("H", "x", rows)
    assert (s.rows, s.built, s.worst_id, s.spearman) == (4, 3, "a", 1.0)
    assert s.rms_percent == pytest.approx(100 * math.sqrt((0.09 + 0.01) / 3))
    assert s.mean_percent == pytest.approx(100 * 0.2 / 3)
    assert s.worst_ratio == pytest.approx(e**0.3)


def test_rank_correlation_by_hand() -> None:
    assert list(ranks([30, 10, 20, 20])) == [4, 1, 2.5, 2.5]
    assert spearman([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)
    # d = (0, 1, -1, 0): 1 - 6 * 2 / (4 * 15)
    assert spearman([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(0.8)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_stack_h_comes_first_and_groups_without_rows_are_left_out() -> None:
    rows = [outcome("a", 1, 1, "A"), outcome("b", 1, 1, "H"), outcome("c", 1, None, "Z")]
    assert [(s.stack, s.name, s.built) for s in by_kind(rows)] == [
        ("H", "copy cat0", 1), ("A", "copy cat0", 1), ("Z", "copy cat0", 0),
    ]  # fmt: skip
    assert [(s.stack, s.name) for s in by_class(rows)] == [
        ("H", "transport"), ("A", "transport"), ("Z", "transport"),
    ]  # fmt: skip


def test_every_built_in_kind_belongs_to_one_class() -> None:
    from spyrec.validate import CLASSES
    from spyrec.validate_rows import SIMPLE

    held = [kind for kinds in CLASSES.values() for kind in kinds]
    assert len(held) == len(set(held))
    assert {f"{op} {variant}" for op, variant in SIMPLE} <= set(held)


def test_the_report_names_every_row_that_is_missing_or_other() -> None:
    lines = list(report(Validation("spyre", *_figures([
        outcome("a", 1, 2), outcome("b", 1, None), *(outcome(f"c{i}", 1, None) for i in range(12)),
    ]))))  # fmt: skip
    assert lines[0] == "14 rows, 1 built, device spyre"
    names = ", ".join(["b", *(f"c{i}" for i in range(11))])
    assert lines[-2:] == ["13 rows not built:", f"  H: 13 x r: {names} and 1 more"]
    [row] = [line for line in lines if line.startswith("H      copy cat0")]
    assert row.split() == ["H", "copy", "cat0", "14", "1", "69.3", "+69.3", "a", "2.00", "-"]


def _figures(rows: list[Outcome]) -> tuple[tuple[Outcome, ...], object, object]:
    return tuple(rows), by_kind(rows), by_class(rows)


def test_two_processes_give_the_same_as_one(rows: dict[str, Row]) -> None:
    told: list[tuple[int, int]] = []
    many = list(rows.values())
    one = validate(many, DEVICE.text, processes=1)
    two = validate(many, DEVICE.text, lambda _, done, total: told.append((done, total)))
    assert one == two
    assert told == [(i + 1, len(many)) for i in range(len(many))]
    assert [o.id for o in one.outcomes] == list(rows)


def test_the_command_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "m.csv", "mm", "cut", "add", "fp8")
    out = tmp_path / "out.json"
    assert cli.run(["validate", str(path), "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("4 rows, 3 built, device spyre\n")
    data = json.loads(out.read_text("utf-8"))
    assert [r["id"] for r in data["rows"]] == ["mm", "cut", "add", "fp8"]
    assert [u["id"] for u in data["unbuilt"]] == ["cut"]
    first = data["rows"][0]
    assert first["measured_us"] == 10.5
    assert 2 < first["predicted_us"] < 20
    assert {g["name"] for g in data["groups"]} == {"matmul", "pointwise add"}


def test_a_file_that_is_not_there_is_the_users_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["validate", "nowhere.csv"]) == 1
    assert capsys.readouterr().err == "spyrec: nowhere.csv: No such file or directory\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not MEASUREMENTS.exists(), reason="the full measurements are not here")
def test_the_page_shows_what_the_command_prints() -> None:
    rows = read_rows(MEASUREMENTS)
    done = validate(rows, DEVICE.text)
    in_h = [o for o in done.outcomes if o.stack == "H"]
    assert sum(o.predicted_us is not None for o in in_h) >= 0.97 * len(in_h)
    page = (ROOT / "docs" / "validation.md").read_text("utf-8")
    [shown] = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert shown.splitlines() == list(report(done))
