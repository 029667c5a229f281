"""Published results rebuilt with their published plans: each is compiled, simulated for time, and
compared with the published figure. Run: python -m benchmarks.targets [T1 T2 T4 T7] [--device FILE]

The figures are those published for torch-spyre on the real card: fp16, 32 cores unless said, device
time without the host's launch, except where a case says "call". T2 also states bytes, which have to
be met exactly.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from benchmarks.spilled import compile_spilled, overflows, steps_of
from spyrec.driver import Compiled, compile_module
from spyrec.ir.parser import parse_module
from spyrec.passes.allocate import CoreAllocation
from spyrec.passes.fuse import Fuse
from spyrec.passes.hbm_plan import HbmPlan
from spyrec.passes.lower_tiles import LowerTiles
from spyrec.passes.manager import Pipeline, Target, run_pipeline
from spyrec.passes.residency import RingRelayout
from spyrec.passes.scratchpad import Scratchpad
from spyrec.passes.stick_layout import StickLayout
from spyrec.passes.tiling import Tiling
from spyrec.sim.device import DeviceSpec, load_device
from spyrec.sim.isa import Instr, Kernel
from spyrec.sim.run import run
from spyrec.sim.stats import LaunchStats
from spyrec.validate import build, predict
from spyrec.validate_plans import LANES, RESIDENT
from spyrec.validate_rows import Row, case_of

Split = tuple[int, int, int, int]
BEST: Split = (1, 4, 8, 1)
"""Parts along (b, m, n, k) of the published plan that is fastest for most of these shapes."""


@dataclass(frozen=True)
class Line:
    """One case. ``low`` and ``high``: the published figure, or its range; ``predicted`` is None
    when the case cannot be built, for the ``reason``. ``unit``: of all three."""

    case: str
    low: float
    high: float
    predicted: float | None
    unit: str = "us"
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted over published; of a range, over its nearer end, and 1 within it."""
        if self.predicted is None:
            return None
        return self.predicted / min(max(self.predicted, self.low), self.high)


# T1 and T7: matmuls, as rows of a measurements file ------------------------------------------

ORDERS = {"before": "row-outer", "after": "batch-outer"}
"""Of activation and output: [M, K/64, B, 64] and [B, K/64, M, 64]; the weight stays [K, N]."""

LAYOUT_MS: Mapping[tuple[int, int], tuple[float, float]] = {  # (N, B): before, after
    (12800, 2): (4.604, 2.196), (12800, 4): (6.631, 4.244), (12800, 8): (26.968, 8.384),
    (25600, 2): (6.862, 4.879), (25600, 4): (12.156, 7.672), (25600, 8): (31.985, 15.502),
}  # fmt: skip
"""x[B, 512, 4096] @ w[4096, N], milliseconds."""

Shape = tuple[int, int, int]

MATMUL_US: tuple[tuple[Shape, Split, float, float], ...] = (  # (M, N, K), split, low, high
    ((512, 4096, 4096), BEST, 317, 317), ((512, 4096, 4096), (1, 32, 1, 1), 852, 852),
    ((512, 4096, 4096), (1, 1, 32, 1), 658, 658), ((512, 4096, 4096), (1, 8, 4, 1), 376, 412),
    ((512, 1024, 4096), BEST, 89, 89), ((512, 12800, 4096), BEST, 1017, 1017),
    ((512, 4096, 12800), BEST, 899, 899), ((64, 4096, 4096), BEST, 221, 221),
    ((64, 1024, 4096), BEST, 60, 60), ((64, 12800, 4096), BEST, 705, 705),
    ((64, 4096, 12800), BEST, 685, 685),
)  # fmt: skip

CALL_MS: Mapping[int, tuple[float, float]] = {  # N: cut (1, 1, 8, 4), and (1, 32, 1, 1)
    2048: (5.39, 4.47), 4096: (19.6, 6.03), 6144: (57.3, 7.58), 8192: (76.4, 9.08),
}  # fmt: skip
"""2048 x N x 8192 from a call to its end, the host's part included: partial sums that fit the
scratchpads or do not, and the same product without a cut of K."""
HOST_US = 2900
"""Of such a call: those of that campaign that compute next to nothing take 2.87-2.96 ms."""
SUMMED, BY_ROWS_ONLY = (1, 8, 4), (32, 1, 1)

BATCHED_US: Mapping[str, tuple[Shape, float, float]] = {  # 32 heads
    "QK": ((512, 512, 128), 731, 1009), "AV": ((512, 128, 512), 198, 395),
}  # fmt: skip
LAYOUTS: Mapping[str, str] = {
    "row-outer": "A row-outer / B row-outer / C row-outer",
    "batch-outer": "A batch-outer / B batch-outer / C batch-outer",
}
"""No plan is published for these: they get the card's own layout, row-outer, and the one that is
best for it; in both the cut of validate_plans."""


def matmul(
    case: str, shape: Shape, split: Split | None, figures: tuple[float, float], device: DeviceSpec,
    batch: int = 0, layout: str = "", kind: str = "fp16",
) -> Line:
    """A matmul of ``shape`` (M, N, K), or ``batch`` of them, as a measured row would have it."""
    sizes = dict(zip("MNK", shape, strict=True)) | {"cores": device.cores.count}
    if batch:
        sizes["B"] = batch
    low, high = figures
    row = Row(case, "bmm" if batch else "matmul", "", "", kind, sizes, split, layout, "", low)
    outcome = predict(row, device)
    return Line(case, low, high, outcome.predicted_us, reason=outcome.reason)


def layouts(device: DeviceSpec) -> Iterator[Line]:
    """T1: a batched matmul before and after its tensors are laid out with the batch outermost, and
    how much that saves, in percent."""
    for (n, batch), published_ms in LAYOUT_MS.items():
        name = f"x[{batch},512,4096] @ w[4096,{n}]"
        pair = []
        for (when, order), ms in zip(ORDERS.items(), published_ms, strict=True):
            layout = f"A {order} / B shared 2-D / C {order}"
            us = 1e3 * ms
            pair.append(matmul(
                f"{name} {when}", (512, n, 4096), BEST, (us, us), device, batch, layout
            ))  # fmt: skip
        yield from pair
        before, after = pair
        saved = None
        if before.predicted is not None and after.predicted is not None:
            saved = 100 * (1 - after.predicted / before.predicted)
        published = 100 * (1 - after.low / before.low)
        yield Line(f"{name} saves", published, published, saved, "%")


def matmuls(device: DeviceSpec) -> Iterator[Line]:
    """T7: single matmuls by their cut."""
    for shape, split, low, high in MATMUL_US:
        size, cut = "x".join(map(str, shape)), ",".join(map(str, split))
        yield matmul(f"{size} ({cut})", shape, split, (low, high), device)
    for n, published_ms in CALL_MS.items():
        shape = 2048, n, 8192
        for parts, ms in zip((SUMMED, BY_ROWS_ONLY), published_ms, strict=True):
            us = called(shape, parts, device)
            case = f"{'x'.join(map(str, shape))} ({','.join(map(str, (1, *parts)))}) call"
            yield Line(case, 1e3 * ms, 1e3 * ms, us)
    for name, (shape, low, high) in BATCHED_US.items():
        for order, layout in LAYOUTS.items():
            case = f"{name} 32 x {'x'.join(map(str, shape))} {order}"
            yield matmul(case, shape, None, (low, high), device, batch=32, layout=layout)


def called(shape: Shape, parts: tuple[int, int, int], device: DeviceSpec) -> float:
    """Microseconds of a call of a product cut into (m, n, k) ``parts``.

    What outgrows the scratchpads goes to card memory. Without a cut of K a core's output tiles are
    as wide as the accumulators allow: the times grow with N as if the first factor passed once for
    every 1024 columns.
    """
    if parts[2] > 1 and overflows(shape, parts, device):
        compiled = compile_spilled(shape, parts, steps_of(shape, parts), device)
    else:
        sizes = dict(zip("MNK", shape, strict=True)) | {"cores": device.cores.count}
        case = case_of(Row("call", "matmul", "", "", "fp16", sizes, (1, *parts), "", "", 1.0))
        if parts[2] == 1:
            rows = shape[0] // parts[0]
            wide = {"m": rows, "n": min(shape[1], RESIDENT // rows), "k": LANES}
            case = replace(case, tile=wide)
        compiled, _ = build(case, Target(device))
    return HOST_US + device.us(run(compiled.program, device, timing_only=True).total_cycles)


# T2 and T4: a kernel an op, with tensors pinned to memories -----------------------------------

SOFTMAX = """module "softmax" {
  input %x: tensor<512x1024xdl16>
  %clone = identity(%x) : tensor<512x1024xdl16>
  %max = reduce_max(%clone) {axes = (0,), keepdims = true} : tensor<1x1024xdl16>
  %sub = sub(%clone, %max) : tensor<512x1024xdl16>
  %exp = exp(%sub) : tensor<512x1024xdl16>
  %sum = reduce_sum(%exp) {axes = (0,), keepdims = true} : tensor<1x1024xdl16>
  %div = div(%exp, %sum) : tensor<512x1024xdl16>
  output "y" = %div
}"""
MN, N = 512 * 1024, 1024
ELEMENT_BYTES = 2
REDUCED, FULL = frozenset(("max", "sum")), frozenset(("sub", "exp"))
BY_ROWS = {"tile": {"d1": 1024}, "loops": ["d0"]}
"""So that a row of maxima or sums is read once."""

SOFTMAX_STAGES: Mapping[str, tuple[bool, frozenset[str], float, int]] = {
    # cloned first?, what stays in the scratchpad, published us, elements off chip
    "all ops through memory": (False, frozenset(), 32.51, 8 * MN + 4 * N),
    "reductions in the scratchpad": (False, REDUCED, 27.66, 8 * MN),
    "exp and sub in place": (False, REDUCED | FULL, 23.93, 3 * MN),
    "input cloned to the scratchpad": (True, REDUCED | FULL | {"clone"}, 23.67, 2 * MN),
}
"""The published times are about 20 us and 1.48 us for each MB (a fit): 675 GB/s, three times what
the card's memory gives, so they are no one core's and only the elements are to be met."""

RELAYOUT = """module "relayout" {
  input %x: tensor<256x8x512xdl16>
  %neg = neg(%x) : tensor<256x8x512xdl16>
  %zero = constant {value = dense<float32, [0.0]>} : tensor<dl16>
  %relu = max(%neg, %zero) : tensor<256x8x512xdl16>
  output "y" = %relu
}"""
"""8 x 256 x 512 as the card lays it out, [256, 512/64, 8, 64]."""
RELAYOUT_CORES = 8
EXCHANGE_US = {4: 8.72}  # split change: measured
STICK_BYTES = 128


def one_kernel_an_op(cores: int, reorder: bool) -> Pipeline:
    """The planning passes; nothing is fused and tensors may take the whole scratchpad."""
    return (
        Fuse(join=False), StickLayout(), CoreAllocation(cores=cores),
        RingRelayout(share=1.0, reorder=reorder), Tiling(), LowerTiles(),
        Scratchpad(beside=reorder), HbmPlan(),
    )  # fmt: skip


def compile_pinned(
    text: str, cores: int, spaces: Mapping[str, str], pins: Sequence[Mapping[str, Any]],
    device: DeviceSpec, reorder: bool = True,
) -> Compiled:
    """The module with a kernel for each op of the text; ``spaces``: by value name in the text;
    ``pins``: of each kernel in turn; ``reorder``: as `ring-relayout` has it, and
    exchanges have room beside their buffers too."""
    target, passes = Target(device), one_kernel_an_op(cores, reorder)
    module = parse_module(text)
    names = [op.result.name for op in module.body.ops if op.name != "constant"]
    fused = run_pipeline(module, passes[:1], target)
    kernels = [op for op in fused.body.ops if op.name == "kernel"]
    made = {name: op.result.name for name, op in zip(names, kernels, strict=True)}
    plan = {
        "tensors": {made[n]: {"space": s} for n, s in spaces.items()},
        "kernels": {str(k.attrs["name"]): p for k, p in zip(kernels, pins, strict=True)},
    }
    return compile_module(fused, target, pipeline=passes[1:], plan=plan)


def softmax(device: DeviceSpec) -> Iterator[Line]:
    """T2: softmax over rows on one core, a kernel an op: elements off chip and time."""
    for name, (cloned, resident, us, elements) in SOFTMAX_STAGES.items():
        text = SOFTMAX
        if not cloned:
            lines = (s for s in SOFTMAX.splitlines() if "identity" not in s)
            text = "\n".join(lines).replace("%clone", "%x")
        made = ("clone", *("max", "sub", "exp", "sum"))[not cloned :]
        spaces = {n: "lx" if n in resident else "hbm" for n in made}
        pins = [{} if op in REDUCED else BY_ROWS for op in (*made, "div")]
        done = compile_pinned(text, 1, spaces, pins, device)
        result = run(done.program, device, timing_only=True)
        moved = sum(x.hbm_read_bytes + x.hbm_write_bytes for x in result.launches)
        yield Line(name, elements, elements, moved / ELEMENT_BYTES, "elements")
        yield Line(name, us, us, result.total_cycles / device.clock_mhz)


@dataclass
class Exchange:
    """An observer of an exchange: from the first send's start to the end of the last or of the last
    copy to its place, core cycles."""

    first: int | None = None
    last: int = 0

    def started(self, launch: int, kernel: Kernel, cycle: int) -> None:
        """Launches do not matter."""

    def worked(
        self, launch: int, kernel: Kernel, core: int, unit: str, instr: Instr,
        start: int, end: int, nbytes: int,
    ) -> None:
        if unit == "rs" or instr.op == "shuf":
            self.first = start if self.first is None else min(self.first, start)
            self.last = max(self.last, end)

    def finished(self, stats: LaunchStats) -> None:
        """Launches do not matter."""


def law_us(split: int, run_bytes: int, core_bytes: int) -> float:
    """The published fit of measured exchanges (10 % RMS), microseconds."""
    runs = core_bytes // run_bytes
    return (runs * (-1.14 + 3.92 * log2(split)) + core_bytes * split / 547) / 1e3


def exchange(device: DeviceSpec) -> Iterator[Line]:
    """T4: relu(neg(x)), 2 MiB on 8 cores, cut along the outer dimension and then ``split`` times
    along the innermost, so that runs are 8 / split sticks: with buffers ordered as published, and
    as `ring-relayout` orders them."""
    for split in (2, 4, 8):
        pins = ({"parts": {"d0": 8}}, {"parts": {"d0": 8 // split, "d1": split}})
        us, ours = (_exchange_us(pins, device, reorder) for reorder in (False, True))
        run_bytes = RELAYOUT_CORES // split * STICK_BYTES
        law = law_us(split, run_bytes, 256 * 8 * 512 * ELEMENT_BYTES // RELAYOUT_CORES)
        case = f"split {split}, runs of {run_bytes} B"
        if split in EXCHANGE_US:
            yield Line(f"{case}, measured", EXCHANGE_US[split], EXCHANGE_US[split], us)
        yield Line(f"{case}, law", law, law, us)
        yield Line(f"split {split}, in our order, law", law, law, ours)


def _exchange_us(
    pins: Sequence[Mapping[str, Any]], device: DeviceSpec, reorder: bool
) -> float:
    done = compile_pinned(RELAYOUT, RELAYOUT_CORES, {"neg": "lx"}, pins, device, reorder)
    watch = Exchange()
    run(done.program, device, timing_only=True, observer=watch)
    assert watch.first is not None, "nothing went over the ring"
    return (watch.last - watch.first) / device.clock_mhz


TARGETS: Mapping[str, Callable[[DeviceSpec], Iterator[Line]]] = {
    "T1": layouts, "T2": softmax, "T4": exchange, "T7": matmuls,
}  # fmt: skip


def print_line(name: str, line: Line) -> None:
    exact = ",.0f" if line.unit == "elements" else ",.2f" if line.high < 100 else ",.0f"
    low, high = f"{line.low:{exact}}", f"{line.high:{exact}}"
    published = low if line.low == line.high else f"{low}-{high}"
    start = f"{name:<3} {line.case:<44} {published:>12}"
    if line.predicted is None:
        print(f"{start} {'-':>12} {'-':>6}  not built: {line.reason}")
    else:
        print(f"{start} {line.predicted:>12{exact}} {line.ratio:>6.2f}  {line.unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=" ".join(TARGETS))
    parser.add_argument("--device", default="spyre", help="a name or a .toml file")
    options = parser.parse_args()
    unknown = [t for t in options.targets if t not in TARGETS]
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    device = load_device(options.device)
    print(f"{'':<3} {'case':<44} {'published':>12} {'predicted':>12} {'ratio':>6}")
    for name in options.targets:
        for line in TARGETS[name](device):
            print_line(name, line)


if __name__ == "__main__":
    main()
