"""The whole way from an imported model to addresses: one pass a line, with the reason for its
place."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from spyrec.ir.errors import PassError

from .allocate import CoreAllocation
from .attention_blocks import AttentionBlocks
from .baseline_division import BaselineDivision
from .baseline_kernels import BaselineKernels
from .baseline_order import BaselineOrder
from .baseline_residency import BaselineResidency
from .baseline_sticks import BaselineSticks
from .canonicalize import Canonicalize
from .cse import Cse
from .dce import Dce
from .decompose import Decompose
from .find_attention import FindAttention
from .fold import Fold
from .fold_groups import FoldGroups
from .frame_columns import FrameColumns
from .fuse import Fuse
from .hbm_plan import HbmPlan
from .improve import Improve
from .join_products import JoinProducts
from .legalize_dtypes import LegalizeDtypes
from .limits import Limits
from .lower_tiles import LowerTiles
from .manager import Pass, Pipeline, Registry
from .merge_moves import MergeMoves
from .merge_programs import MergePrograms
from .pull_scales import PullScales
from .range_scale import RangeScale
from .registry import PASSES, with_plugins
from .residency import RingRelayout
from .scratchpad import Scratchpad
from .share_launches import ShareLaunches
from .stick_layout import StickLayout
from .tiling import Tiling

PIPELINE: Pipeline = (
    Canonicalize(),  # fewer forms for the rules to match
    PullScales(),  # before quantised weights become floats
    Fold(),  # shape arithmetic and constant weights
    Cse(),  # exporters repeat themselves
    FindAttention(),  # when scales and masks are constants
    AttentionBlocks(),  # while attention is one op; masks are constants by now, and equal ones one
    JoinProducts(),  # before what follows them is taken apart, which the price depends on
    Decompose(),  # what is left the device has
    Canonicalize(),  # rules leave reshapes and identities behind
    Fold(),  # and constants: masks, interpolation matrices, scaled weights
    FrameColumns(),  # convolutions have their last form, and constant filters
    Limits(),  # what cannot fit is refused before the trial run of the next pass
    RangeScale(),  # while values are still float32: powers of two where 16 bits cannot reach
    LegalizeDtypes(),  # the device's own formats from here on
    Cse(),  # constants that became equal
    MergeMoves(),  # a tensor that only moves read need not exist
    Dce(),  # nothing unread reaches the planner
    Fuse(),  # kernels; all planning below is per kernel or per edge between kernels
    StickLayout(),  # lanes first: it decides what divides evenly
    FoldGroups(),  # where the lanes are known: rows are folded by groups first
    Improve(),  # what the passes below would decide, tried out and bettered while the budget lasts
    CoreAllocation(),  # then cores, seeing which tensors would have to move
    RingRelayout(),  # then which tensors stay on chip
    Tiling(),  # then tiles, in the scratchpad that is left
    LowerTiles(),  # loops and loads become explicit
    Scratchpad(),  # every buffer is known now
    HbmPlan(),  # as is what lives in card memory
    MergePrograms(),  # the plan is final
    ShareLaunches(),
)

BASELINE: Pipeline = (
    Canonicalize(),
    PullScales(),
    Fold(),
    Cse(),
    Decompose(),  # attention is not found, nor cut into blocks; no products are joined
    Canonicalize(),
    Fold(),
    Limits(),
    RangeScale(),
    LegalizeDtypes(),
    Cse(),
    MergeMoves(),
    Dce(),
    BaselineKernels(),  # a kernel for each op of the published compiler; each folds lane by lane
    BaselineSticks(),  # pins what the next pass would choose ...
    StickLayout(),
    BaselineOrder(),
    BaselineDivision(),  # ... so does this ...
    CoreAllocation(),
    BaselineResidency(),  # ... and this
    RingRelayout(),
    # no factor stays in the scratchpad or comes far ahead: with that the published times are met
    Tiling(kept=0.0, ahead=0),
    LowerTiles(),
    Scratchpad(prefetch=False),  # no weights come before their kernel's turn
    HbmPlan(),
)
"""The published heuristics, one decision after the other, to compare with: see docs/baseline.md.
Where nothing is planned the passes are the usual ones, so that both compute with the same numbers.
"""

PLANNERS: Mapping[str, Pipeline] = MappingProxyType({"joint": PIPELINE, "baseline": BASELINE})

DEVICE_PASSES: tuple[type[Pass], ...] = (
    MergeMoves, Fuse, StickLayout, FoldGroups, Improve, CoreAllocation, RingRelayout, Tiling,
    LowerTiles, Scratchpad, HbmPlan, MergePrograms, ShareLaunches,
)  # fmt: skip

BASELINE_PASSES: tuple[type[Pass], ...] = (
    BaselineKernels, BaselineSticks, BaselineOrder, BaselineDivision, BaselineResidency,
)  # fmt: skip


def registry() -> Registry:
    """All passes by name, those of other distributions included."""
    return with_plugins({**PASSES, **{str(p.name): p for p in (*DEVICE_PASSES, *BASELINE_PASSES)}})


PLANNING: tuple[str, ...] = tuple(
    str(p.name) for p in DEVICE_PASSES if p not in (MergeMoves, FoldGroups, Improve, MergePrograms)
)
"""Each of these builds on what those before it decided."""
STANDS_FOR: Mapping[str, str] = MappingProxyType({BaselineKernels.name: Fuse.name})
"""Passes that do the work of another."""


def check_order(passes: Pipeline) -> None:
    """PassError when a planning pass comes before one it builds on, or without it."""
    seen: set[str] = set()
    for step in passes:
        name = STANDS_FOR.get(step.name, step.name)
        if name in PLANNING:
            missing = [n for n in PLANNING[: PLANNING.index(name)] if n not in seen]
            if missing:
                raise PassError(
                    f"pass {step.name} builds on {', '.join(missing)}, which the pipeline does not "
                    f"run before it; the order is {', '.join(PLANNING)}"
                )
        seen.add(name)
