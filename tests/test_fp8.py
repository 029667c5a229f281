"""fp8 from model to binary: which tensors stay fp8, how they lie in card memory, that the matrix
unit takes them at twice the rate, and that the binary gives the interpreter's numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from spyrec import runtime
from spyrec.driver import compile_module
from spyrec.ir import interp
from spyrec.ir.arrange import ARRANGEMENTS, arranged, arrangement_of, resized
from spyrec.ir.core import Builder, Module, Value
from spyrec.ir.errors import PassError
from spyrec.ir.layout import Layout, LayoutError, parse_layout
from spyrec.ir.parser import parse_module
from spyrec.ir.rounding import round_to
from spyrec.ir.types import DTYPES
from spyrec.passes.kernel import Nest
from spyrec.passes.legalize_dtypes import legalize
from spyrec.passes.manager import Numerics, Target
from spyrec.passes.narrow import exact_format, narrow_factors
from spyrec.passes.pipeline import PIPELINE
from spyrec.passes.pull_scales import pull_scales
from spyrec.sim.arrange import LEFT, RIGHT, Arrangement
from spyrec.sim.check import find_hazards
from spyrec.sim.device import load_device, parse_device
from spyrec.sim.isa import Instr, Program, instructions
from spyrec.sim.run import run
from spyrec.validate_rows import CardLayout
from tests.small_models import module, random_inputs

TARGET = Target(load_device())
Build = Callable[..., Module]


def text(*lines: str) -> Module:
    return parse_module("\n".join(['module "m" {', *lines, "}"]))


def product(m: int, k: int, n: int, kind: str = "f8e4m3") -> Module:
    """x @ w in dl16 from factors of a kind."""
    return text(
        f"input %x: tensor<{m}x{k}x{kind}>", f"input %w: tensor<{k}x{n}x{kind}>",
        f"%y = matmul(%x, %w) {{to = type dl16}} : tensor<{m}x{n}xdl16>", 'output "y" = %y',
    )  # fmt: skip


def widened(m: int, k: int, n: int) -> Module:
    """As a framework writes it: fp8 tensors are cast to floats, which are multiplied."""
    return text(
        f"input %x: tensor<{m}x{k}xf8e4m3>", f"input %w: tensor<{k}x{n}xf8e4m3>",
        f"%a = cast(%x) {{to = type f32}} : tensor<{m}x{k}xf32>",
        f"%b = cast(%w) {{to = type f32}} : tensor<{k}x{n}xf32>",
        f"%y = matmul(%a, %b) : tensor<{m}x{n}xf32>", 'output "y" = %y',
    )  # fmt: skip


def packed(m: int, k: int, n: int) -> Module:
    """x in 16 bits is halved, which is exact, and packed to fp8 on the card."""
    return text(
        f"input %x: tensor<{m}x{k}xdl16>", f"input %w: tensor<{k}x{n}xf8e4m3>",
        "%h = constant {value = dense<float32, [0.5]>} : tensor<dl16>",
        f"%s = mul(%x, %h) : tensor<{m}x{k}xdl16>",
        f"%p = cast(%s) {{to = type f8e4m3}} : tensor<{m}x{k}xf8e4m3>",
        f"%y = matmul(%p, %w) {{to = type dl16}} : tensor<{m}x{n}xdl16>", 'output "y" = %y',
    )  # fmt: skip


def outputs(m: Module, program: Program, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """(what the interpreter gives, rounded to dl16; what the poisoned binary gives)."""
    given = random_inputs(m, seed)
    want = interp.run(m, given)
    assert find_hazards(program, parse_device(program.device)) == ()
    fed = {p.buffer.name: runtime.pack(p, given[p.name], True)
           for p in runtime.ports(program, "input")}  # fmt: skip
    result = run(program, parse_device(program.device), fed, poison=True)
    return [
        (np.asarray(round_to(want[p.name], DTYPES["dl16"])),
         runtime.unpack(p, result.outputs[p.buffer.name]))
        for p in runtime.ports(program, "output")
    ]  # fmt: skip


def products(program: Program) -> list[Instr]:
    return [i for k in program.kernels for i, _ in instructions(k.streams.get("pt", ()))
            if i.op == "mm"]  # fmt: skip


def factor_formats(program: Program) -> set[tuple[str, ...]]:
    return {tuple(o.dtype for o in i.operands) for i in products(program)}


@pytest.mark.parametrize("build", [product, widened, packed])
@pytest.mark.parametrize(
    "size", [(1, 2, 1), (8, 128, 64), (7, 200, 130), (5, 77, 200), (300, 1000, 96), (3, 4100, 70)]
)
def test_the_binary_is_the_interpreter_rounded_once(build: Build, size: tuple[int, ...]) -> None:
    m = build(*size)
    program = compile_module(m, TARGET).program
    assert factor_formats(program) == {("f32", "f8e4m3", "f8e4m3")}
    for want, got in outputs(m, program):
        different = want != got
        # sums of thousands of products are not exact in fp32, and not added in numpy's order
        assert different.mean() < (0.01 if size[1] > 1000 else 1e-9)
        assert np.allclose(want, got, rtol=2**-9)


def test_batches_epilogues_and_constants() -> None:
    rng = np.random.default_rng(3)
    weights = round_to(rng.standard_normal((3, 33, 5)), DTYPES["f8e4m3"])
    values = ", ".join(map(str, weights.reshape(-1).tolist()))
    m = text(
        "input %x: tensor<3x50x33xf8e4m3>", "input %b: tensor<5xdl16>",
        f"%w = constant {{value = dense<3x33x5xfloat32, [{values}]>}} : tensor<3x33x5xf8e4m3>",
        "%y = matmul(%x, %w) {to = type dl16} : tensor<3x50x5xdl16>",
        "%z = max(%y, %b) : tensor<3x50x5xdl16>", 'output "z" = %z',
    )  # fmt: skip
    program = compile_module(m, TARGET).program
    assert factor_formats(program) == {("f32", "f8e4m3", "f8e4m3")}
    ((want, got),) = outputs(m, program)
    assert (want == got).all()


def test_a_product_packed_for_the_next_product() -> None:
    m = text(
        "input %x: tensor<2x70x32xf8e4m3>", "input %v: tensor<32x300xf8e4m3>",
        "input %w: tensor<300x130xf8e4m3>",
        "%s = matmul(%x, %v) {to = type dl16} : tensor<2x70x300xdl16>",
        "%p = cast(%s) {to = type f8e4m3} : tensor<2x70x300xf8e4m3>",
        "%y = matmul(%p, %w) {to = type dl16} : tensor<2x70x130xdl16>", 'output "y" = %y',
    )  # fmt: skip
    program = compile_module(m, TARGET).program
    assert factor_formats(program) == {("f32", "f8e4m3", "f8e4m3")}
    ((want, got),) = outputs(m, program)
    # the first sum goes to fp8 from the fp32 accumulator, in the model by way of dl16
    assert np.corrcoef(want.ravel(), got.ravel())[0, 1] > 0.999


def test_packing_saturates() -> None:
    m = packed(4, 64, 64)
    program = compile_module(m, TARGET).program
    given = {"x": np.full((4, 64), 3000.0, np.float32), "w": np.zeros((64, 64), np.float32)}
    given["w"][0] = 1
    assert (interp.run(m, given)["y"] == 448).all()
    fed = {p.buffer.name: runtime.pack(p, given[p.name]) for p in runtime.ports(program, "input")}
    result = run(program, parse_device(program.device), fed)
    (port,) = runtime.ports(program, "output")
    assert (runtime.unpack(port, result.outputs[port.buffer.name]) == 448).all()


def test_fp8_takes_half_the_matrix_time_and_half_the_memory() -> None:
    narrow, wide = (compile_module(product(512, 1024, 512, kind), TARGET).program
                    for kind in ("f8e4m3", "dl16"))  # fmt: skip
    small, large = (sum(b.size for b in p.buffers if b.kind == "input") for p in (narrow, wide))
    assert small * 2 == large
    busy = [sum(launch.busy_cycles["pt"] for launch in
                run(p, parse_device(p.device), timing_only=True).launches)
            for p in (narrow, wide)]  # fmt: skip
    assert 0.45 < busy[0] / busy[1] < 0.6


# What stays narrow -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["%y = matmul(%x, %w) : tensor<8x8xf8e4m3>", 'output "y" = %y'], {"x", "w"}),
        # an elementwise reader; the second factor may be narrow alone
        (["%y = matmul(%x, %w) : tensor<8x8xf8e4m3>", "%z = neg(%x) : tensor<8x8xf8e4m3>",
          'output "y" = %y', 'output "z" = %z'], {"w"}),
        # once as a first, once as a second factor
        (["%y = matmul(%x, %x) : tensor<8x8xf8e4m3>", 'output "y" = %y'], set()),
        # a first factor, once beside a factor that is not narrow
        (["%n = neg(%w) : tensor<8x8xf8e4m3>", "%y = matmul(%x, %n) : tensor<8x8xf8e4m3>",
          "%z = matmul(%x, %v) : tensor<8x8xf8e4m3>", 'output "y" = %y', 'output "z" = %z'],
         {"v"}),
        # the cast is an output too
        (["%a = cast(%x) {to = type f32} : tensor<8x8xf32>",
          "%b = cast(%w) {to = type f32} : tensor<8x8xf32>",
          "%y = matmul(%a, %b) : tensor<8x8xf32>", 'output "y" = %y', 'output "a" = %a'], {"w"}),
        # packed for a second factor: the vector unit cannot
        (["%n = neg(%w) : tensor<8x8xf8e4m3>", "%m = cast(%n) {to = type f32} : tensor<8x8xf32>",
          "%p = cast(%m) {to = type f8e4m3} : tensor<8x8xf8e4m3>",
          "%y = matmul(%x, %p) : tensor<8x8xf8e4m3>", 'output "y" = %y'], set()),
    ],
)  # fmt: skip
def test_which_tensors_stay_narrow(lines: list[str], kept: set[str]) -> None:
    inputs = [f"input %{name}: tensor<8x8xf8e4m3>" for name in "xwv"]
    m = text(*inputs, *lines)
    assert {v.name for v in narrow_factors(m)} == kept
    types = {v.name: v.type.dtype.name for v in legalize(m, "dl16").body.args}
    assert types == {n: "f8e4m3" if n in kept else "dl16" for n in "xwv"}
    program = compile_module(m, TARGET).program
    for want, got in outputs(m, program):
        assert np.allclose(want, got, rtol=0.07, atol=2**-6)  # fp8 steps where the model rounds


def test_what_a_window_gives_is_not_packed() -> None:
    m = text(
        "input %x: tensor<1x64x8x64xdl16>", "input %w: tensor<64x32xf8e4m3>",
        "%q = max_pool(%x) {kernel = (1, 1), strides = (1, 1), pads = (0, 0, 0, 0), "
        "dilations = (1, 1)} : tensor<1x64x8x64xdl16>",
        "%p = cast(%q) {to = type f8e4m3} : tensor<1x64x8x64xf8e4m3>",
        "%y = matmul(%p, %w) {to = type dl16} : tensor<1x64x8x32xdl16>", 'output "y" = %y',
    )  # fmt: skip
    assert {v.name for v in narrow_factors(m)} == {"w"}


# Layouts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sim"),
    [("qfp8ch", LEFT["f8e4m3"]), ("qint4ch", LEFT["i4"]), ("qfp8wt", RIGHT["i8"]),
     ("qint4wt", RIGHT["i4"])],
)  # fmt: skip
def test_layouts_and_matrix_unit_mean_the_same_lanes(name: str, sim: Arrangement) -> None:
    what = ARRANGEMENTS[name]
    across, along = what.block("across"), what.block("along")
    layout = arranged(name, (across, along), 1, 0)
    assert (layout.sticks, sim.block) == (1, (across, along))
    coords = np.argwhere(np.ones((across, along)))
    _, _, _, lanes = layout.locate(coords)
    assert (lanes == sim.lanes).all()


def test_a_widened_tensor_alternates_between_two_sticks_by_fours() -> None:
    layout = arranged("widened", (3, 130), 1)
    for column in range(130):
        _, _, stick, lane = layout.locate([[1, column]])
        pair, rest = divmod(column, 64)
        group, s, e = rest // 8, rest % 8 // 4, rest % 4
        assert (stick[0], lane[0]) == (6 * pair + 2 * 1 + s, 4 * group + e)


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_arrangement_packs_unpacks_prints_and_resizes(name: str) -> None:
    what = ARRANGEMENTS[name]
    layout = arranged(name, (3, 301, 130), 2, 1)
    kind = {4: np.uint8, 8: np.uint8, 32: np.uint32}[what.bits]
    x = np.arange(3 * 301 * 130).reshape(3, 301, 130).astype(kind)
    slots = layout.pack(x)
    assert (layout.unpack(slots) == x).all()
    for point in [(0, 0, 0), (2, 300, 129), (1, 77, 65)]:
        _, _, stick, lane = layout.locate([point])
        assert slots[0, stick[0], lane[0]] == x[point]
    assert parse_layout(str(layout)) == layout
    assert arrangement_of(layout) == name
    assert resized(layout, (1, 9, 200)) == arranged(name, (1, 9, 200), 2, 1)
    assert (layout.unit(1), layout.unit(2)) == (what.block("across"), max(64, what.block("along")))


def test_a_plain_layout_has_no_arrangement() -> None:
    for bits in (4, 8, 16, 32):
        assert arrangement_of(Layout.stick((5, 300), bits, 1)) == ""


def test_what_no_arrangement_can_be() -> None:
    with pytest.raises(LayoutError, match="no arrangement is called 'qfp9'; known: qfp8ch, "):
        arranged("qfp9", (4, 4), 1)
    with pytest.raises(LayoutError, match="qfp8wt needs a second dimension beside 1"):
        arranged("qfp8wt", (4, 4), 1, 1)


# Narrow weights --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "step", "kind"),
    [(-8, 7, 1, "i4"), (-128, 127, 1, "i8"), (-7, 8, 0.5, "f8e4m3"), (-300, 300, 1, "dl16")],
)
def test_weights_are_kept_in_the_narrowest_format_that_loses_nothing(
    low: int, high: int, step: float, kind: str
) -> None:
    size, k, n = (5, 301, 130), 301, 130
    weights = np.random.default_rng(2).integers(low, high, (k, n), endpoint=True) * step
    weights[0, :2] = low * step, high * step
    m = module(
        lambda g, x: [g.op("matmul", [x, g.constant(weights.astype(np.float32), DTYPES["dl16"])])
                      .result],
        ("x", (size[0], k), "dl16"),
    )  # fmt: skip
    program = compile_module(m, TARGET).program
    assert factor_formats(program) == {("f32", "dl16", kind)}
    (stored,) = (b.size for b in program.buffers if b.kind == "const")
    bits = DTYPES[kind].bits
    block = {4: (4, 64), 8: (2, 64), 16: (1, 64)}[bits]
    assert stored == -(-k // block[0]) * -(-n // block[1]) * 128
    ((want, got),) = outputs(m, program)
    assert (want != got).mean() < 0.01 and np.allclose(want, got, rtol=2**-8)


def test_folded_fp8_weights_stay_fp8_beside_fp8_inputs() -> None:
    """A cast of a constant is computed when the model is read; its values still fit."""
    weights = round_to(np.random.default_rng(3).standard_normal((64, 48)), DTYPES["f8e4m3"])

    def make(g: Builder, x: Value) -> list[Value]:
        wide = g.op("cast", [g.constant(weights, DTYPES["f8e4m3"])], to=DTYPES["f32"]).result
        return [g.op("matmul", [g.op("cast", [x], to=DTYPES["f32"]).result, wide]).result]

    m = module(make, ("x", (9, 64), "f8e4m3"))
    program = compile_module(m, TARGET).program
    assert factor_formats(program) == {("f32", "f8e4m3", "f8e4m3")}
    ((want, got),) = outputs(m, program)
    assert (want == got).all()


def test_one_number_is_no_narrow_weight() -> None:
    assert exact_format(np.array([[0.5, np.nan]])) is None
    assert exact_format(np.array([[0.5, np.inf]])) is None
    assert exact_format(np.array([[-0.0, 7.0]])) == DTYPES["i4"]
    assert exact_format(np.concatenate([np.ones(500), [1 / 3]])) is None
    m = module(
        lambda g, x: [g.op("matmul", [x, g.constant(np.ones((1, 1), np.float32), DTYPES["dl16"])])
                      .result],
        ("x", (4, 1), "dl16"),
    )  # fmt: skip
    assert narrow_factors(m) == {}


# Quantised models ------------------------------------------------------------------------------


def dequantised(kind: str, axis: str, turned: bool) -> Module:
    """x in dl16 times weights as (q - 0) * scale, a scale for each column or one for all."""
    rng = np.random.default_rng(7)
    low, high = {"i4": (-8, 8), "i8": (-128, 128), "f8e4m3": (-16, 17)}[kind]
    shape = (40, 70) if turned else (70, 40)

    def make(g: Builder, x: Value) -> list[Value]:
        q = g.constant(rng.integers(low, high, shape).astype(DTYPES[kind].np_dtype), DTYPES[kind])
        size = () if axis == "none" else (shape[0 if (axis == "columns") == turned else 1],)
        scale = g.constant(np.asarray(rng.uniform(0.01, 0.1, size), np.float32), DTYPES["f32"])
        zero = g.constant(np.zeros(size, DTYPES[kind].np_dtype), DTYPES[kind])
        along = 0 if (axis == "columns") == turned else 1
        w = g.op("dequantize_linear", [q, scale, zero], axis=along).result
        w = g.op("transpose", [w], perm=(1, 0)).result if turned else w
        return [g.op("matmul", [x, w]).result]

    return module(make, ("x", (9, 70), "f32"))


@pytest.mark.parametrize("kind", ["i4", "i8", "f8e4m3"])
@pytest.mark.parametrize("axis", ["none", "columns"])
@pytest.mark.parametrize("turned", [False, True])
def test_dequantised_weights_stay_as_they_were(kind: str, axis: str, turned: bool) -> None:
    m = dequantised(kind, axis, turned)
    pulled = pull_scales(m)
    assert [op.name for op in pulled.body.ops][-1] == "mul"
    given = random_inputs(m, 1)
    assert np.allclose(interp.run(m, given)["o0"], interp.run(pulled, given)["o0"], rtol=1e-4,
                       atol=1e-4)  # fmt: skip
    program = compile_module(m, TARGET).program
    ((_, dtype, stored),) = factor_formats(program)
    assert dtype == "dl16" and DTYPES[stored].bits == DTYPES[kind].bits
    ((want, got),) = outputs(m, program)
    assert np.corrcoef(want.ravel(), got.ravel())[0, 1] > 0.9999


def test_a_scale_along_the_sum_stays_where_it_is() -> None:
    m = dequantised("i8", "rows", False)
    assert [op.name for op in pull_scales(m).body.ops] == [op.name for op in m.body.ops]


def test_a_quantised_fp8_model_runs_in_fp8() -> None:
    """x is quantised on the card, with a scale for each row of it; both scales come behind."""
    rng = np.random.default_rng(8)
    f8 = DTYPES["f8e4m3"]

    def make(g: Builder, x: Value) -> list[Value]:
        scale = g.constant(np.asarray(rng.uniform(0.01, 0.02, 9), np.float32), DTYPES["f32"])
        zero = g.constant(np.zeros(9, np.float32), f8)
        q = g.op("quantize_linear", [x, scale, zero], axis=0, to=f8).result
        a = g.op("dequantize_linear", [q, scale, zero], axis=0).result
        w = g.constant(round_to(rng.standard_normal((70, 40)), f8), f8)
        one = g.constant(np.asarray(0.5, np.float32), DTYPES["f32"])
        b = g.op("dequantize_linear", [w, one, g.constant(np.zeros((), np.float32), f8)],
                 axis=0).result  # fmt: skip
        return [g.op("matmul", [a, b]).result]

    m = module(make, ("x", (9, 70), "f32"))
    program = compile_module(m, TARGET).program
    assert factor_formats(program) == {("f32", "f8e4m3", "f8e4m3")}
    ((want, got),) = outputs(m, program)
    assert np.corrcoef(want.ravel(), got.ravel())[0, 1] > 0.999


def test_a_narrow_sum_is_cut_over_cores_and_trips_in_whole_steps() -> None:
    m = product(9, 1100, 70)
    pins = {"kernels": {"k0_matmul": {"parts": {"k": 4}, "tile": {"k": 128}}}}
    compiled = compile_module(m, TARGET, plan=pins)
    (op,) = (op for op in compiled.module.body.ops if op.name == "kernel")
    nest = Nest(op)
    assert nest.step(nest.k) == 128 and nest.parts[nest.k] == 4 and nest.trips(nest.k) == 3
    ((want, got),) = outputs(m, compiled.program)
    assert (want != got).mean() < 0.02 and np.allclose(want, got, rtol=2**-8)


def test_another_stick_dimension_of_a_factor_is_refused() -> None:
    with pytest.raises(PassError, match="stick"):
        compile_module(product(8, 128, 64), TARGET, plan={"tensors": {"x": {"stick": 0}}})
    with pytest.raises(PassError, match="its layout is fixed"):
        compile_module(
            product(8, 128, 64), TARGET,
            pipeline=[p for s in PIPELINE for p in
                      ((s, CardLayout((("x", (0, 1)),))) if s.name == "stick-layout" else (s,))],
        )  # fmt: skip


@pytest.mark.parametrize(("numerics", "kind"), [("ieee16", "f16"), ("fp32", "f32")])
def test_products_of_fp8_in_other_numerics(numerics: Numerics, kind: str) -> None:
    m = widened(7, 200, 130)
    program = compile_module(m, Target(load_device(), numerics)).program
    assert factor_formats(program) == {("f32", "f8e4m3", "f8e4m3")}
    (port,) = runtime.ports(program, "output")
    assert port.stored == kind
    ((want, got),) = outputs(m, program)
    assert np.allclose(want, got, rtol=2**-9)
