"""Trial runs for the planner: the passes that are left, code generation and the simulator, on a
module or a part of one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from spyrec.backend.joints import Joints
from spyrec.backend.program import emit_program
from spyrec.backend.shared import Built
from spyrec.backend.switching import whole_costs
from spyrec.ir.core import Module, Op
from spyrec.ir.errors import CapacityError, PassError
from spyrec.memo import Memo
from spyrec.passes.manager import ChangedInput, Target
from spyrec.passes.merge_programs import MERGED
from spyrec.passes.share_launches import SHARED
from spyrec.passes.trial import BUILD_STEPS, KernelTrial, Trial, decided
from spyrec.rewritten import Rewritten
from spyrec.sim.isa import Program
from spyrec.sim.stats import LaunchStats

Finish = Callable[[Module], Module]

@dataclass
class Trials:
    """``finish``: the passes that are left. ``built``: kernels that trials have built, which the
    program itself need not build again. ``memo``: trials of earlier compilations. ``rewritten``:
    what was made of kernels for trials.

    Where kernels may share launches, and vector programs be merged, prices decide in a trial: other
    ways are only tried when the plan is final."""

    finish: Finish
    target: Target
    built: dict[Hashable, Built] = field(default_factory=dict)
    memo: Memo | None = None
    rewritten: Rewritten = field(default_factory=Rewritten)

    def __call__(self, module: Module) -> Trial | None:
        """See passes.trial.Try."""
        if self.memo is None:
            return self._run(module)
        key = self.memo.key(module)
        found, trial = self.memo.load(key, module)
        if not found:
            trial = self._run(module)
            self.memo.store(key, trial)
        return trial

    def _run(self, module: Module) -> Trial | None:
        try:
            final = self.finish(module)
            program = emit_program(final, self.target, built=self.built, weights=False)
        except ChangedInput:  # what comes after the trial would be another model
            raise
        except (CapacityError, PassError):  # a pin that only the whole module can obey, too
            return None
        device = self.target.device
        if final.attrs.get(MERGED):
            costs = whole_costs(program, device.sfp)
            program = self.rewritten.fewer_switches(program, device, costs)
        if final.attrs.get(SHARED):
            joints = Joints(program, device)
            program = joints.cheapest(joints.priced())
        ready = self.rewritten.prepared(program, device)
        ran = ready.run(None)
        self.rewritten.keep(ready)
        ops = [op for op in final.body.ops if op.name == "kernel"]
        kernels = tuple(
            self._kernel(op, program, stats) for op, stats in zip(ops, ran.launches, strict=True)
        )
        steps = ran.events + BUILD_STEPS * len(program.kernels)
        return Trial(ran.total_cycles, kernels, steps)

    def _kernel(self, op: Op, program: Program, stats: LaunchStats) -> KernelTrial:
        device = self.target.device
        info = program.kernels[program.launches[stats.index].kernel].info
        macs = int(info.get("macs", stats.padded_macs))
        moved = stats.hbm_read_bytes + stats.hbm_write_bytes
        floor = max(
            macs / (device.pt.macs_per_cycle * device.cores.count),
            moved / device.hbm.bytes_per_cycle,
        )
        spaces = tuple(str(v.type.space) for v in op.results)
        return KernelTrial(stats.cycles, int(floor), decided(op), spaces)

