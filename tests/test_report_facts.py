"""What the report says of a kernel agrees with the machine: cores, tiles, scratchpad, span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from real_models import MODELS, model_path
from small_models import Graph, module, random_inputs

import spyrec
from spyrec import cli, runtime
from spyrec.driver import Compiled, compile_module
from spyrec.ir.core import Module, Value
from spyrec.ir.errors import CapacityError
from spyrec.passes.kernel import Nest
from spyrec.passes.manager import Target
from spyrec.report import KernelRow, kernel_rows
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.errors import SimulationError
from spyrec.sim.isa import Program
from spyrec.sim.run import run

SPYRE = load_device()


def with_span(nbytes: int) -> DeviceSpec:
    return replace(SPYRE, hbm=replace(SPYRE.hbm, span_bytes=nbytes))


def compiled(m: Module, device: DeviceSpec = SPYRE) -> Compiled:
    return compile_module(m, Target(device, "dl16"))


def rows(program: Program, device: DeviceSpec = SPYRE) -> tuple[KernelRow, ...]:
    return kernel_rows(program, device, run(program, device, timing_only=True).launches)


def execute(m: Module, program: Program, device: DeviceSpec) -> None:
    inputs = random_inputs(m)
    packed = {
        p.buffer.name: runtime.pack(p, inputs[p.name]) for p in runtime.ports(program, "input")
    }
    run(program, device, packed)


def odd_matmul() -> Module:
    return module(lambda g, x: [g("matmul", x, g.weight(300, 200))], ("x", (100, 300), "f32"))


def strided_conv() -> Module:
    return module(
        lambda g, x: [g("conv", x, g.weight(100, 70, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1),
                        dilations=(1, 1))],
        ("x", (1, 70, 30, 31), "f32"),
    )  # fmt: skip


def wide_sum() -> Module:
    return module(
        lambda g, x, y: [g("add", x, y)], ("x", (67, 300), "f32"), ("y", (67, 1), "f32")
    )


def feed_forward() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        h = g("gelu", g("add", g("matmul", x, g.weight(256, 512)), g.weight(512)))
        return [g("add", g("matmul", h, g.weight(512, 256)), x)]

    return module(make, ("x", (64, 256), "f32"))


def heads() -> Module:
    def make(g: Graph, x: Value) -> list[Value]:
        return [g("transpose", g("reshape", x, shape=(1, 64, 12, 32)), perm=(0, 2, 1, 3))]

    return module(make, ("x", (1, 64, 384), "f32"))


def joined() -> Module:
    return module(
        lambda g, x, y: [g("concat", x, g("relu", y), axis=1)],
        ("x", (1, 70, 10, 10), "f32"), ("y", (1, 30, 10, 10), "f32"),
    )  # fmt: skip


def embedding() -> Module:
    return module(lambda g, i: [g("gather", g.weight(500, 192), i, axis=0)], ("i", (3, 100), "u16"))


ROADS = [odd_matmul, strided_conv, wide_sum, feed_forward, heads, joined, embedding]
EXACT = [odd_matmul, strided_conv, wide_sum, feed_forward]


def largest_span(program: Program) -> int:
    return max(int(k.info["span_bytes"]) for k in program.kernels)


@pytest.mark.parametrize("road", ROADS, ids=lambda f: f.__name__)
def test_no_core_reaches_further_than_the_report_says(road: Callable[[], Module]) -> None:
    m = road()
    program = compiled(m).program
    execute(m, program, with_span(largest_span(program)))


@pytest.mark.parametrize("road", EXACT, ids=lambda f: f.__name__)
def test_a_core_reaches_as_far_as_the_report_says(road: Callable[[], Module]) -> None:
    m = road()
    program = compiled(m).program
    with pytest.raises(SimulationError, match="reaches over sticks"):
        execute(m, program, with_span(largest_span(program) - 128))


def test_a_look_up_may_reach_over_all_rows_of_its_table() -> None:
    done = compiled(embedding())
    [kernel] = done.plan["kernels"].values()
    groups = -(-3 // kernel["parts"]["d"])  # of 64 columns, of the table's 192
    assert largest_span(done.program) == groups * 500 * 128


def test_cuts_that_reach_too_far_are_avoided() -> None:
    # the result lies in groups of 64 columns, each with all 512 rows: a core that has some rows of
    # many groups reaches over all of those groups
    m = module(lambda g, x: [g("matmul", x, g.weight(64, 4096))], ("x", (512, 64), "f32"))
    limit = 512 * 64 * 2 * 2  # two groups
    assert largest_span(compiled(m).program) > limit
    program = compiled(m, with_span(limit)).program
    assert largest_span(program) == limit
    assert [row.cores for row in rows(program)] == [32]
    execute(m, program, with_span(limit))


def test_a_span_that_no_cut_keeps_within_is_refused() -> None:
    # every core may be asked for any row of a table of one group of columns
    table = (4096, 64)
    m = module(lambda g, i: [g("gather", g.weight(*table), i, axis=0)], ("i", (300,), "u16"))
    assert largest_span(compiled(m).program) == 4096 * 64 * 2
    with pytest.raises(CapacityError) as error:
        compiled(m, with_span(1 << 18))
    assert str(error.value) == (
        "codegen: core 0 of k0_gather reaches over 0.50 MiB of %c, a core reaches over 0.25 MiB of "
        "one tensor at most (from unknown); no cut among the cores keeps within that, so split the "
        "tensor in the model"
    )


def test_tiles_and_cores_are_those_of_the_matrix_work() -> None:
    m = feed_forward()
    plan = {"kernels": {"k1_matmul_add": {"parts": {"m": 5, "n": 4}}}}
    program = compile_module(m, Target(SPYRE, "dl16"), plan=plan).program
    result = run(program, SPYRE, timing_only=True)
    first, second = kernel_rows(program, SPYRE, result.launches)
    assert result.launches[1].cores_used == 32  # all take part in the exchange before it
    assert second.cores == 20
    assert (first.tiles, second.tiles) == (8 * 8, 8 * 4)  # 64 rows, 512 and 256 columns
    assert (second.dims, second.parts) == ("m=64,n=256,k=512", "5x4x1")
    assert [len(row.tile.split("x")) for row in (first, second)] == [3, 3]


def check_row(row: KernelRow, device: DeviceSpec) -> None:
    assert 0 < row.lx_peak_bytes <= device.lx.bytes, row
    assert 0 <= row.span_bytes <= device.hbm.span_bytes, row
    assert 1 <= row.cores <= device.cores.count, row
    assert row.compute_floor_us <= row.us, row
    assert row.memory_floor_us <= row.us + row.prefetch_us, row
    assert row.pt_utilisation == pytest.approx(row.compute_floor_us / row.us)
    assert (row.tiles > 0) == (row.macs > 0), row
    if max(row.compute_floor_us, row.memory_floor_us) >= row.us / 2:  # a floor explains the time
        assert row.bound != "latency", row
    if row.tiles >= device.cores.count:
        assert row.cores >= 0.95 * device.cores.count, row


@pytest.mark.parametrize("road", ROADS, ids=lambda f: f.__name__)
def test_rows_keep_the_limits_and_floors(road: Callable[[], Module]) -> None:
    done = compiled(road())
    kernels = {op.attrs["name"]: Nest(op) for op in done.module.body.ops if op.name == "kernel"}
    for row in rows(done.program):
        check_row(row, SPYRE)
        assert row.cores == kernels[row.name].cores
        assert row.parts == "x".join(map(str, kernels[row.name].parts))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["C01", "C02", "C13", "C15", "light_resnet50", "light_squeezenet", "light_densenet121"],
)
def test_rows_of_real_models_keep_the_limits_and_floors(name: str) -> None:
    program = spyrec.compile(model_path(name), bind=dict(MODELS[name].bind))
    result = spyrec.simulate(program, timing_only=True)
    for row in result.kernels:
        check_row(row, program.device)
    assert result.totals.pt_utilisation <= 1


# Tensors that do not fit the card --------------------------------------------------------------


@pytest.fixture
def small_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that describes a card of 1 MiB."""
    monkeypatch.chdir(tmp_path)
    text = SPYRE.text.replace(f"bytes = {SPYRE.hbm.bytes} ", f"bytes = {1 << 20} ")
    Path("card.toml").write_text(text, "utf-8")
    assert load_device("card.toml").hbm.bytes == 1 << 20
    return "card.toml"


def save_model(op: str, inputs: dict[str, tuple[int, ...]], shape: tuple[int, ...]) -> None:
    """big.onnx: s = op(inputs), named /big"""

    def info(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), ["s"], name="/big")], "big",
        [info(name, dims) for name, dims in inputs.items()], [info("s", shape)],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "big.onnx")


def failure(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The first line on stderr of a command that ends with exit code 1."""
    assert cli.run(["compile", "big.onnx", "-o", "big.spx", *args]) == 1
    assert not Path("big.spx").exists()
    errors = [e for e in capsys.readouterr().err.splitlines() if not e.startswith("warning")]
    return errors[0]


def test_a_tensor_too_large_for_the_card(
    small_card: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model("Add", {"x": (1000, 1), "y": (1, 1024)}, (1000, 1024))
    assert failure(capsys, "--device", small_card) == (
        "spyrec: limits: %s (1000x1024 f32, from /big) needs at least 1.95 MiB, the card has "
        "1.00 MiB; make the batch smaller or split the tensor in the model"
    )


def test_a_tensor_too_large_for_the_card_once_its_lanes_are_filled(
    small_card: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model("MatMul", {"x": (9000, 1), "w": (1, 50)}, (9000, 50))
    # x itself comes densely; repacked for the matrix unit it has one element in each stick, as many
    # sticks as the result
    assert failure(capsys, "--device", small_card) == (
        "spyrec: hbm: %s_3 (9000x50 dl16, from /big) needs 1.10 MiB, the card has 1.00 MiB; "
        "split the tensor in the model"
    )


def test_tensors_too_large_for_the_card_together(
    small_card: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model("Relu", {"x": (400, 1024)}, (400, 1024))
    assert failure(capsys, "--device", small_card) == (
        "spyrec: hbm: the program needs 1.56 MiB, the card has 1.00 MiB; its largest tensor %x "
        "(400x1024 dl16, from x) needs 0.78 MiB; make the batch smaller"
    )
