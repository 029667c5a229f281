"""What launching Granite 3.3 8B costs the host, beside published ratios. Run:
python -m benchmarks.launch [PREFILL.spx DECODE.spx]

Without files both phases are compiled from the configuration first, for 1024 tokens, which takes
some minutes and needs torch and transformers. The published stack runs a phase as JOBS device jobs;
taking graph construction off the data-transfer path, and then off the compute path too, made it
PATCHED and BOUND times as fast in all (figures of public forks of torch-spyre; batch 1, 1024
tokens).
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import spyrec
from spyrec import runtime
from spyrec.api import import_model
from spyrec.sim.device import DeviceSpec
from spyrec.sim.run import run

MODEL, TOKENS = "granite-3.3-8b", 1024
TOLERANCE = 0.15
MOST_US = 10_000  # cost of constructing a job's graph that is tried


@dataclass(frozen=True)
class Published:
    """Of one phase: device jobs, and speed over ``graph``."""

    phase: str
    jobs: int
    patched: float
    bound: float


PUBLISHED = (Published("prefill", 204, 1.099, 1.7), Published("decode", 244, 1.136, 2.4))


@dataclass(frozen=True)
class Phase:
    """What was published of it, and the jobs of ours: cut into as many, and as one."""

    published: Published
    many: tuple[runtime.Job, ...]
    one: tuple[runtime.Job, ...]


def phase_of(program: spyrec.Program, device: DeviceSpec, published: Published) -> Phase:
    """Simulate a program as it runs in the published number of jobs, and in one. Each kernel is a
    launch, as it is there."""
    launches = tuple(replace(launch, joint="") for launch in program.code.launches)
    alone = replace(program.code, launches=launches)

    def jobs(count: int) -> tuple[runtime.Job, ...]:
        code = runtime.cut(alone, count)
        return runtime.jobs_of(code, count, run(code, device, timing_only=True).launches)

    return Phase(published, jobs(published.jobs), jobs(1))


def ratios(device: DeviceSpec, jobs: Sequence[runtime.Job]) -> tuple[float, float]:
    """``patched`` over ``graph``, and ``bound`` over ``graph``: how many times as fast."""
    wall = {m: runtime.host_time(device, m, jobs).wall_us for m in runtime.HOST_LAUNCHES}
    return wall["graph"] / wall["patched"], wall["graph"] / wall["bound"]


def with_host(device: DeviceSpec, graph_us: int | None = None, **changes: int) -> DeviceSpec:
    """The device with another host. ``graph_us``: what constructing a graph takes in all, the
    share of data transfer as it was."""
    host = device.host
    if graph_us is not None:
        whole = host.transfer_graph_us + host.compute_graph_us
        transfer = round(graph_us * host.transfer_graph_us / whole) if whole else 0
        changes |= {"transfer_graph_us": transfer, "compute_graph_us": graph_us - transfer}
    return replace(device, host=replace(host, **changes))


def off(device: DeviceSpec, phase: Phase) -> float:
    """By how much ``bound`` over ``graph`` misses what was published, as a share of it."""
    return ratios(device, phase.many)[1] / phase.published.bound - 1


def first_cost(reached: Callable[[int], bool]) -> int:
    """The least cost, us, from which on ``reached`` holds, found by halves."""
    return bisect_left(range(MOST_US), True, key=reached)


def costs_within(device: DeviceSpec, phase: Phase) -> str:
    """The costs of constructing a graph, us, with which a phase is as published."""
    low, high = (
        first_cost(lambda cost, limit=limit: off(with_host(device, cost), phase) >= limit)
        for limit in (-TOLERANCE, TOLERANCE)
    )
    return f"{low}-{high}"


def best_cost(device: DeviceSpec, phases: Sequence[Phase]) -> tuple[int, float]:
    """The one cost, us, with which the phase that misses most misses least, and by how much: where
    what is too slow and what is too fast are equally far off."""
    def misses(cost: int) -> list[float]:
        return [off(with_host(device, cost), phase) for phase in phases]

    best = first_cost(lambda cost: max(misses(cost)) + min(misses(cost)) >= 0)
    return best, max(map(abs, misses(best)))


def lines(device: DeviceSpec, phases: Sequence[Phase]) -> Iterator[str]:
    host = device.host
    yield (
        f"one host cost per job: graph {host.transfer_graph_us} us (data transfer) + "
        f"{host.compute_graph_us} us (compute), submit {host.submit_us} us; jobs ahead "
        f"{host.ahead_jobs}"
    )
    yield "phase    jobs  launch      device ms   host ms   wall ms  over graph  published    off"
    for phase in phases:
        for jobs in (phase.many, phase.one):
            yield from _modes(device, phase.published, jobs)
    yield ""
    yield f"costs of a graph, us, with which bound over graph is published +-{TOLERANCE:.0%}:"
    yield "submit us  jobs ahead  prefill       decode        best one cost  its worst miss"
    for ahead in (0, 1, 4):
        for submit in (50, 100, 200):
            yield _window(with_host(device, ahead_jobs=ahead, submit_us=submit), phases)


def _modes(
    device: DeviceSpec, published: Published, jobs: Sequence[runtime.Job]
) -> Iterator[str]:
    told = {"patched": published.patched, "bound": published.bound}
    graph = runtime.host_time(device, "graph", jobs)
    for mode in runtime.HOST_LAUNCHES:
        time = runtime.host_time(device, mode, jobs)
        over = graph.wall_us / time.wall_us
        beside = ""
        if mode in told and len(jobs) > 1:
            beside = f"{told[mode]:10.3f} {over / told[mode] - 1:+6.1%}"
        yield (
            f"{published.phase:8} {len(jobs):4}  {mode:8} {time.device_us / 1e3:12.3f} "
            f"{(time.host_us + time.copy_us) / 1e3:9.3f} {time.wall_us / 1e3:9.3f} {over:11.3f} "
            f"{beside}"
        ).rstrip()


def _window(device: DeviceSpec, phases: Sequence[Phase]) -> str:
    shown = [costs_within(device, phase) for phase in phases]
    cost, miss = best_cost(device, phases)
    return (
        f"{device.host.submit_us:9}  {device.host.ahead_jobs:10}  {shown[0]:12}  {shown[1]:12}  "
        f"{cost:13}  {miss:14.1%}"
    )


def compiled() -> tuple[spyrec.Program, ...]:
    """Both phases from the configuration."""
    from spyrec.frontend.torch_config import exported_model, read_card

    card = read_card(MODEL)
    made = (exported_model(card, prompt=TOKENS), exported_model(card, decode=TOKENS))
    return tuple(spyrec.compile(import_model(model, {}, {})) for model in made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path, nargs="*", help="prefill and decode, .spx")
    given = parser.parse_args().programs
    if len(given) not in (0, 2):
        parser.error("give a prefill and a decode program, or none")
    programs = [spyrec.load(path) for path in given] or compiled()
    device = programs[0].device
    phases = [phase_of(p, device, told) for p, told in zip(programs, PUBLISHED, strict=True)]
    print("\n".join(lines(device, phases)))


if __name__ == "__main__":
    main()
