"""Faults seeded into compiled programs: what changes a result or hangs under some legal timing is
found by ``simulate --check``."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import test_end_to_end as end_to_end
from interleave import Interleaving, Stuck
from mutants import KINDS, mutate
from small_models import random_inputs

import spyrec
from spyrec import api, runtime
from spyrec.driver import compile_module
from spyrec.ir.core import Module
from spyrec.passes.manager import Target
from spyrec.sim.device import load_device
from spyrec.sim.errors import SimError
from spyrec.sim.functional import Functional
from spyrec.sim.isa import Program
from spyrec.sim.memory import build_memory
from spyrec.sim.run import run

DEVICE = load_device()
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
SHIFT = "shift scratchpad"
FEW = ("softmax", "strided_slices", "shared_weights_in_uneven_columns", "global_mean")


@dataclass(frozen=True)
class Subject:
    """A valid program, its inputs, and what comes out."""

    program: Program
    inputs: dict[str, Array]
    packed: dict[str, bytes]
    outputs: dict[str, Array]

    @staticmethod
    def of(road: Callable[[], Module]) -> Subject:
        module = road()
        program = compile_module(module, Target(DEVICE)).program
        inputs = random_inputs(module)
        packed = {
            p.buffer.name: runtime.pack(p, inputs[p.name], True)
            for p in runtime.ports(program, "input")
        }
        done = run(program, DEVICE, packed, poison=True)
        return Subject(program, inputs, packed, _values(program, done.outputs))

    def runs(self, program: Program, seed: int) -> Iterator[dict[str, Array]]:
        """Outputs at the engine's pace, and in a random order that the tokens allow."""
        yield _values(program, run(program, DEVICE, self.packed, poison=True).outputs)
        memory = build_memory(program, DEVICE, self.packed, True)
        Interleaving(program, DEVICE, seed, Functional(program, DEVICE, memory)).run()
        outputs = {b.name: memory.output(b) for b in program.buffers if b.kind == "output"}
        yield _values(program, outputs)

    def is_changed(self, program: Program, seed: int) -> bool:
        """Whether some run gets stuck, breaks a rule or gives something else."""
        try:
            return any(not _same(self.outputs, got) for got in self.runs(program, seed))
        except (SimError, Stuck):
            return True

    def is_caught(self, program: Program) -> bool:
        try:
            spyrec.simulate(api.Program(program), self.inputs, device=DEVICE, check=True)
        except SimError:
            return True
        return False


def _values(program: Program, outputs: dict[str, bytes]) -> dict[str, Array]:
    return {
        p.name: runtime.unpack(p, outputs[p.buffer.name])
        for p in runtime.ports(program, "output")
    }


def _same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def hunt(subject: Subject, each: int, rng: random.Random) -> tuple[Counter[str], list[str]]:
    """Try ``each`` mutants of every kind. Counts of "kind changed", "kind caught" (of those) and
    "kind mutants"; and what got away."""
    counts: Counter[str] = Counter()
    missed = []
    for kind in KINDS:
        for _ in range(each):
            mutant = mutate(subject.program, kind, rng)
            if mutant is None:
                continue
            counts[f"{kind}: mutants"] += 1
            if not subject.is_changed(mutant.program, rng.randrange(1 << 31)):
                continue
            counts[f"{kind}: changed"] += 1
            if subject.is_caught(mutant.program):
                counts[f"{kind}: caught"] += 1
            else:
                missed.append(f"{kind}: {mutant.fault}")
    return counts, missed


def is_legal_otherwise(fault: str) -> bool:
    """Whether the fault may leave another program without a hazard: a shifted source may read
    another value that is complete. See docs/checking.md."""
    return fault.startswith(f"{SHIFT}: operand") and "operand 0" not in fault


def judge(road: Callable[[], Module], each: int) -> None:
    subject = Subject.of(road)
    assert subject.is_changed(subject.program, 0) is False
    assert subject.is_caught(subject.program) is False
    counts, missed = hunt(subject, each, random.Random(road.__name__))
    print(dict(counts), missed)
    assert sum(n for key, n in counts.items() if key.endswith("changed")) > 0
    assert [m for m in missed if not is_legal_otherwise(m)] == []


@pytest.mark.parametrize("name", FEW)
def test_faults_are_found(name: str) -> None:
    judge(getattr(end_to_end, name), 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("road", end_to_end.ROADS, ids=lambda f: f.__name__)
def test_faults_are_found_everywhere(road: Callable[[], Module]) -> None:
    judge(road, 3)
