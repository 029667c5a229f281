"""Seconds and peak memory of compiling and simulating real models, each step a process of its own,
also divided by the time of a million heap push-pops so that machines can be compared; and how many
events a second the engine handles when it skips nothing.
Run: python -m benchmarks.compile_simulate [--json FILE] [MODEL ...]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from pathlib import Path

from benchmarks.child import run

MODELS = ("C02", "light_resnet50", "granite1", "granite40")
GRANITE = "granite"  # and the number of layers: see benchmarks.granite; only timed
HEAP_PAIRS = 1_000_000
HEAP_SIZE = 1_000  # entries that stay in the heap, about as many as the simulator keeps

AIMS_S = {
    ("C02", "compile"): 10.0, ("C02", "timing only"): 2.0, ("C02", "functional"): 30.0,
    ("light_resnet50", "compile"): 20.0, ("light_resnet50", "timing only"): 2.0,
    ("light_resnet50", "functional"): 30.0, ("granite1", "timing only"): 2.0,
    ("granite40", "timing only"): 3.0,
}  # fmt: skip
AIM_MIB = 1536
AIM_EVENTS = 300_000  # a second


@dataclass(frozen=True)
class Measure:
    """One command. ``heap_s``: seconds of a million heap push-pops, taken just before it;
    ``cycles``: simulated ones, 0 for a step that simulates nothing; ``events``: handled in the step
    "events", which unrolls kernels before its clock starts, skips nothing, and whose seconds are
    the processor's."""

    model: str
    step: str
    wall_s: float
    heap_s: float
    peak_mib: float
    cycles: int
    events: int = 0

    @property
    def ratio(self) -> float:
        return self.wall_s / self.heap_s

    @property
    def events_a_second(self) -> float:
        return self.events / self.wall_s


def heap_seconds(clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds in which this machine, now, pushes and pops a million (cycle, number) pairs."""
    heap = [(i * 7919 % HEAP_SIZE, i) for i in range(HEAP_SIZE)]
    heap.sort()
    start = clock()
    for i in range(HEAP_PAIRS):
        heappush(heap, (heap[0][0] + i * 7919 % HEAP_SIZE, i))
        heappop(heap)
    return clock() - start


def prepare(model: str, folder: Path) -> None:
    """Write the model's inputs, and the compile command's arguments, into ``folder``."""
    from spyrec import files

    if model.startswith(GRANITE):
        import onnx

        from benchmarks.granite import decoder

        path = folder / "granite.onnx"
        onnx.save(decoder(int(model.removeprefix(GRANITE)), tokens=512), path)
        files.write_text(folder / "args.json", json.dumps([str(path)]))
        return
    from tests.real_models import MODELS as KNOWN
    from tests.real_models import make_inputs, model_path

    binds = [f"{name}={size}" for name, size in KNOWN[model].bind.items()]
    args = [str(model_path(model)), *(part for bind in binds for part in ("--bind", bind))]
    files.write_npz(folder / "in.npz", make_inputs(model))
    files.write_text(folder / "args.json", json.dumps(args))


def measure(model: str, folder: Path) -> list[Measure]:
    """Compile, simulate for time only, simulate with numbers."""
    run(["-m", "benchmarks.compile_simulate", "--prepare", model, str(folder)])
    args = json.loads((folder / "args.json").read_text("utf-8"))
    spx, report = str(folder / "model.spx"), folder / "report.json"
    simulate = ["simulate", spx, "--report", str(report)]
    steps = {
        "compile": ["compile", *args, "--no-cache", "-o", spx],
        "timing only": [*simulate, "--timing-only"],
        "functional": [*simulate, "--inputs", str(folder / "in.npz")],
    }
    if model.startswith(GRANITE):
        del steps["functional"]
    found = []
    for step, command in steps.items():
        heap_s = heap_seconds()
        cost = run(["-m", "spyrec", *command])
        cycles = 0 if step == "compile" else json.loads(report.read_text("utf-8"))["total_cycles"]
        found.append(Measure(model, step, cost.wall_s, heap_s, cost.peak_mib, cycles))
    rate = folder / "rate.json"
    cost = run(["-m", "benchmarks.compile_simulate", "--rate", spx, str(rate)])
    told = json.loads(rate.read_text("utf-8"))
    found.append(Measure(model, "events", peak_mib=cost.peak_mib, **told))
    return found


def rate(spx: Path, target: Path) -> None:
    """Time the engine on a program with shortcuts off, beside the bare heap, and write that."""
    from spyrec import api, files
    from spyrec.sim.engine import Engine
    from spyrec.sim.expand import expand

    program = api.load(spx)
    engine = Engine(program.code, program.device, shortcuts=())
    for number, kernel in enumerate(program.code.kernels):
        engine.plans[number] = expand(kernel, program.device)
    heap_s = heap_seconds(time.process_time)
    start = time.process_time()
    cycles = engine.run()
    wall_s = time.process_time() - start
    figures = {"wall_s": wall_s, "heap_s": heap_s, "cycles": cycles, "events": engine.events}
    files.write_text(target, json.dumps(figures))


def print_table(found: list[Measure]) -> None:
    head = f"{'model':<16} {'step':<12} {'seconds':>8} {'aim':>5} {'/ heap':>7} {'heap s':>7}"
    print(f"{head} {'peak MiB':>9} {'aim':>5} {'cycles':>12}")
    for m in found:
        aim = f"{AIMS_S[m.model, m.step]:.0f}" if (m.model, m.step) in AIMS_S else ""
        cycles = f"{m.cycles:,}" if m.cycles else ""
        print(
            f"{m.model:<16} {m.step:<12} {m.wall_s:>8.2f} {aim:>5} {m.ratio:>7.1f} "
            f"{m.heap_s:>7.3f} {m.peak_mib:>9.0f} {AIM_MIB:>5} {cycles:>12}"
        )
    print(f"/ heap: seconds over those of {HEAP_PAIRS:,} heap push-pops just before (heap s)")
    for m in found:
        if m.events:
            share = m.events_a_second * m.heap_s / HEAP_PAIRS
            print(f"{m.model}: {m.events:,} events, {m.events_a_second:,.0f} a second (aim "
                  f"{AIM_EVENTS:,}), {share:.3f} of the bare heap's rate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help="names in tests/real_models.py")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rate:
        spx, target = map(Path, options.models)
        rate(spx, target)
        return
    if options.prepare:
        model, folder = options.models
        prepare(model, Path(folder))
        return
    found = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            found += measure(model, Path(folder))
    print_table(found)
    if options.json is not None:
        figures = [asdict(m) | {"ratio": m.ratio} for m in found]
        options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
