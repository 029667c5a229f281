"""Matrix products as the planner runs them, against the floors of the machine: each shape is
compiled without a plan, simulated for time, and compared with the larger of what its arithmetic and
what its bytes take at least. Run: python -m benchmarks.floors [T1 T3 T7 T8] [--device FILE]

T1, T3, T7 and T8 are the shapes of published results (see benchmarks.targets for their plans): T1
and T3 have an aim in floors and milliseconds, T7 the fastest published split as this simulator runs
it (the card itself beats what its memory's rate allows in some), T8 that the shapes compile, with
how many cores, and within what span.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.targets import BATCHED_US, BEST, LAYOUTS, MATMUL_US, Shape, Split, matmul
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.ir.parser import parse_module
from spyrec.passes.manager import Target
from spyrec.report import KernelRow, kernel_rows
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.run import run

MIB = 2**20
WHOLE = 0.95  # of the cores that an awkward shape has to use
TIMES = 1.25  # its floor, a product of T1 may take


@dataclass(frozen=True)
class Rival:
    """A published plan of a product (M, N, K), or of ``batch`` of them, and its time on the
    card. ``kind``: of the factors, as in a file of measurements."""

    shape: Shape
    split: Split | None
    card_us: float
    batch: int = 0
    kind: str = "fp16"

    def simulated_us(self, device: DeviceSpec) -> float:
        figures = (self.card_us, self.card_us)
        layout = LAYOUTS["row-outer"] if self.batch else ""
        line = matmul(
            "", self.shape, self.split, figures, device, self.batch, layout, self.kind
        )
        if line.predicted is None:
            raise RuntimeError(f"the published plan of {self.shape} is not built: {line.reason}")
        return line.predicted


@dataclass(frozen=True)
class Case:
    """``inputs`` by name and type, ``body`` the ops, of which ``y`` is the result. ``aim_us``: 0
    for none; ``aim_floors``: the same in floors; ``rival``: the published plan to be as fast as."""

    name: str
    inputs: Mapping[str, str]
    body: tuple[str, ...]
    aim_us: float = 0.0
    aim_floors: float = 0.0
    rival: Rival | None = None

    def module(self) -> Module:
        given = [f"input %{name}: tensor<{kind}>" for name, kind in self.inputs.items()]
        lines = ['module "m" {', *given, *self.body, 'output "y" = %y', "}"]
        return parse_module("\n".join(lines))


@dataclass(frozen=True)
class Outcome:
    """``floor_us``: the larger of ``compute_us`` and ``memory_us``, each tensor moved once;
    ``cores``: share of the card's that the kernel with the fewest uses among those with matrix
    work; ``span_bytes``: the largest."""

    us: float
    compute_us: float
    memory_us: float
    cores: float
    span_bytes: int
    kernels: tuple[KernelRow, ...]

    @property
    def floor_us(self) -> float:
        return max(self.compute_us, self.memory_us)


def outcome(module: Module, device: DeviceSpec) -> Outcome:
    """The module by the planner's own choice. SpyrecError when it cannot be compiled."""
    compiled = compile_module(module, Target(device))
    result = run(compiled.program, device, timing_only=True)
    rows = kernel_rows(compiled.program, device, result.launches)
    matrix = [r for r in rows if r.macs]
    ends = (*module.body.args, *module.body.results)
    moved = sum(v.type.size * v.type.dtype.bits // 8 for v in ends)
    return Outcome(
        device.us(result.total_cycles),
        sum(r.compute_floor_us * r.count * rate(module, device) for r in matrix),
        device.us(moved / device.hbm.bytes_per_cycle),
        min(r.cores for r in matrix) / device.cores.count,
        max(r.span_bytes for r in rows),
        rows,
    )


def rate(module: Module, device: DeviceSpec) -> float:
    """Time of a multiply-accumulate of the module's factors over that of a 16-bit one."""
    costs = device.pt.mac_eighths
    return max(costs.get(v.type.dtype.name, 8) for v in module.body.args) / 8


# the cases -----------------------------------------------------------------------------------

MATMUL = "%y = matmul(%x, %w) : tensor<{}xdl16>"


def product(
    name: str, x: str, w: str, y: str, aim_floors: float = 0.0, rival: Rival | None = None
) -> Case:
    """x @ w of these shapes."""
    inputs = {"x": f"{x}xdl16", "w": f"{w}xdl16"}
    return Case(name, inputs, (MATMUL.format(y),), aim_floors=aim_floors, rival=rival)


def wide() -> Iterator[Case]:
    """T1: x[B,512,4096] @ w[4096,N]."""
    for n in (12800, 25600):
        for b in (2, 4, 8):
            name = f"x[{b},512,4096] @ w[4096,{n}]"
            x, w, y = f"{b}x512x4096", f"4096x{n}", f"{b}x512x{n}"
            yield product(name, x, w, y, aim_floors=TIMES)


GATED = (
    "%gate = matmul(%x, %g) : tensor<1x512x12800xdl16>",
    "%up = matmul(%x, %u) : tensor<1x512x12800xdl16>",
    "%open = sigmoid(%gate) : tensor<1x512x12800xdl16>",
    "%silu = mul(%gate, %open) : tensor<1x512x12800xdl16>",
    "%inner = mul(%silu, %up) : tensor<1x512x12800xdl16>",
    "%y = matmul(%inner, %d) : tensor<1x512x4096xdl16>",
)


def gated() -> Iterator[Case]:
    """T3: a gated MLP of 512 rows."""
    sides = dict.fromkeys("gu", "4096x12800xdl16")
    inputs = {"x": "1x512x4096xdl16", **sides, "d": "12800x4096xdl16"}
    yield Case("MLP [1,512,4096] through 12800", inputs, GATED, aim_us=2540)


ONE_ROW = 1, 4096, 4096
ONE_ROW_US, FP8_US = 230, 112


def single() -> Iterator[Case]:
    """T7: twelve products against the fastest published split of each; none is published for one
    row, so the published planner's rules cut it."""
    for shape, split, us, _ in (*MATMUL_US, (ONE_ROW, None, ONE_ROW_US, 0)):
        m, n, k = shape
        if split in (BEST, None):
            name = "x".join(map(str, shape))
            rival = Rival(shape, split, us)
            yield product(name, f"{m}x{k}", f"{k}x{n}", f"{m}x{n}", rival=rival)
    narrow = {"x": "1x4096xf8e4m3", "w": "4096x4096xf8e4m3"}
    body = ("%y = matmul(%x, %w) {to = type dl16} : tensor<1x4096xdl16>",)
    rival = Rival(ONE_ROW, None, FP8_US, kind="fp8")
    yield Case("1x4096x4096 fp8", narrow, body, rival=rival)
    for name, (shape, low, _) in BATCHED_US.items():
        m, n, k = shape
        rival = Rival(shape, None, low, batch=32)
        title = f"{name} 32 x {m}x{n}x{k}"
        yield product(title, f"32x{m}x{k}", f"32x{k}x{n}", f"32x{m}x{n}", rival=rival)


def awkward() -> Iterator[Case]:
    """T8: what exact divisors cannot cut."""
    yield product("1x49216x4096, vocabulary", "1x4096", "4096x49216", "1x49216")
    yield product("512x49216x4096, vocabulary", "512x4096", "4096x49216", "512x49216")
    yield product("1x25600x4096", "1x4096", "4096x25600", "1x25600")
    yield product("67x4096x4096", "67x4096", "4096x4096", "67x4096")
    yield product("67x64x4096", "67x4096", "4096x64", "67x64")
    for rows in (509, 333, 77):
        yield product(f"{rows}x4096x4096", f"{rows}x4096", "4096x4096", f"{rows}x4096")
    for head in (72, 80):
        for what, m, n, k in (("QK", 77, 77, head), ("AV", 77, head, 77)):
            name = f"{what} 16 x {m}x{n}x{k}"
            yield product(name, f"16x{m}x{k}", f"16x{k}x{n}", f"16x{m}x{n}")
    yield product("512x4304x1152", "512x1152", "1152x4304", "512x4304")
    yield product("512x1152x4304", "512x4304", "4304x1152", "512x1152")


CASES: Mapping[str, Callable[[], Iterator[Case]]] = {
    "T1": wide, "T3": gated, "T7": single, "T8": awkward,
}  # fmt: skip


def line(case: Case, found: Outcome, device: DeviceSpec) -> str:
    """One row: times in us, and whether the aim is met."""
    ratio = found.us / found.floor_us
    aim = case.aim_us or case.aim_floors * found.floor_us
    if case.rival is not None:
        aim = case.rival.simulated_us(device)
    met = "" if not aim else "met" if found.us <= aim else "missed"
    card = f"{case.rival.card_us:,.0f}" if case.rival else "-"
    return (
        f"{case.name:<32} {found.us:>9,.1f} {found.compute_us:>9,.1f} {found.memory_us:>9,.1f} "
        f"{ratio:>6.2f} {f'{aim:,.0f}' if aim else '-':>7} "
        f"{card:>5} {met:<6} {100 * found.cores:>5.0f} "
        f"{found.span_bytes / MIB:>6.1f}"
    )


def details(rows: Sequence[KernelRow]) -> Iterator[str]:
    """A row for each kernel."""
    for r in rows:
        yield (
            f"  {r.name:<28} {r.us:>9,.1f} us, {100 * r.pt_utilisation:>5.1f} % of the matrix "
            f"units, parts {r.parts}, tile {r.tile}, bound by {r.bound}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(CASES), help=" ".join(CASES))
    parser.add_argument("--device", default="spyre", help="a name or a .toml file")
    parser.add_argument("--kernels", action="store_true", help="a row for each kernel too")
    options = parser.parse_args()
    unknown = [t for t in options.targets if t not in CASES]
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}; known: {', '.join(CASES)}")
    device = load_device(options.device)
    print(f"{'case':<36} {'us':>9} {'compute':>9} {'memory':>9} {'ratio':>6} {'aim us':>7} "
          f"{'card':>5} {'':<6} {'cores':>5} {'span':>6}")  # fmt: skip
    for target in options.targets:
        for case in CASES[target]():
            found = outcome(case.module(), device)
            print(f"{target:<3} {line(case, found, device)}", flush=True)
            if options.kernels:
                print("\n".join(details(found.kernels)))


if __name__ == "__main__":
    main()
