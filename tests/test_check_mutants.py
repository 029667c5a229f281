"""Faults seeded into compiled programs: what changes a result or hangs under some legal timing is
found by ``simulate --check``."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import test_end_to_end as end_to_end
import test_fp8
import test_ksplit
from interleave import Interleaving, Stuck
from mutants import TOKEN_KINDS
from mutants_address import ADDRESS_KINDS
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
KINDS = {**TOKEN_KINDS, **ADDRESS_KINDS}
Road = tuple[Module, Mapping[str, Any] | None]
"""A model and, if it needs one, a plan."""

ROADS: dict[str, Callable[[], Road]] = {
    **{f.__name__: lambda f=f: (f(), None) for f in end_to_end.ROADS},  # type: ignore[misc]
    "fp8_product": lambda: (test_fp8.product(70, 300, 130), None),
    "fp8_packed": lambda: (test_fp8.packed(70, 300, 130), None),
    **{
        f"ksplit_{case}": lambda case=case: (  # type: ignore[misc]
            test_ksplit.CASES[case][0], test_ksplit.plan_of(case)
        )
        for case in test_ksplit.CASES
    },
}  # fmt: skip
FEW = ("softmax", "strided_slices", "embedding", "fp8_packed", "ksplit_epilogue")


@dataclass(frozen=True)
class Subject:
    """A valid program, its inputs, and what comes out."""

    program: Program
    inputs: dict[str, Array]
    packed: dict[str, bytes]
    outputs: dict[str, Array]

    @staticmethod
    def of(name: str) -> Subject:
        module, plan = ROADS[name]()
        program = compile_module(module, Target(DEVICE), plan=plan).program
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
    for kind, make in KINDS.items():
        for _ in range(each):
            mutant = make(subject.program, rng)
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


def judge(name: str, each: int) -> Counter[str]:
    """Every mutant that changes a result is caught."""
    subject = Subject.of(name)
    assert subject.is_changed(subject.program, 0) is False
    assert subject.is_caught(subject.program) is False
    counts, missed = hunt(subject, each, random.Random(name))
    assert sum(n for key, n in counts.items() if key.endswith("changed")) > 5 * each
    assert missed == []
    return counts


@pytest.mark.parametrize("name", FEW)
def test_faults_are_found(name: str) -> None:
    judge(name, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ROADS)
def test_faults_are_found_everywhere(name: str) -> None:
    judge(name, 3)


def main() -> None:
    """Print how many mutants of each kind there were, changed a result and were caught. Run:
    PYTHONPATH=. python tests/test_check_mutants.py"""
    total: Counter[str] = Counter()
    for name in ROADS:
        counts, missed = hunt(Subject.of(name), 3, random.Random(name))
        total.update(counts)
        print(name, *missed, flush=True)
    for kind in KINDS:
        print(kind, *(total[f"{kind}: {what}"] for what in ("mutants", "changed", "caught")))


if __name__ == "__main__":
    main()
