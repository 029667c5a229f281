"""The passes that ship, by name, and those that other distributions add by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from spyrec.ir.errors import PassError

from .attention_blocks import AttentionBlocks
from .canonicalize import Canonicalize
from .cse import Cse
from .dce import Dce
from .decompose import Decompose
from .find_attention import FindAttention
from .fold import Fold
from .frame_columns import FrameColumns
from .join_products import JoinProducts
from .legalize_dtypes import LegalizeDtypes
from .limits import Limits
from .manager import Pass, Registry
from .pull_scales import PullScales
from .range_scale import RangeScale

PASSES: dict[str, type[Pass]] = {
    Canonicalize.name: Canonicalize,
    PullScales.name: PullScales,
    Fold.name: Fold,
    Cse.name: Cse,
    FrameColumns.name: FrameColumns,
    FindAttention.name: FindAttention,
    JoinProducts.name: JoinProducts,
    AttentionBlocks.name: AttentionBlocks,
    Dce.name: Dce,
    Decompose.name: Decompose,
    Limits.name: Limits,
    RangeScale.name: RangeScale,
    LegalizeDtypes.name: LegalizeDtypes,
}

ENTRY_POINT_GROUP = "spyrec.passes"


def with_plugins(registry: Registry) -> Registry:
    """The registry plus the passes that installed distributions offer under ``spyrec.passes``.

    PassError when one does not load or takes a name that is in use.
    """
    found = dict(registry)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        made = _load(point)
        name = str(getattr(made, "name", point.name))
        if name in found:
            raise PassError(f"the pass {name} of entry point {point.value} exists already")
        found[name] = made
    return found


def _load(point: EntryPoint) -> type[Pass]:
    try:
        made: type[Pass] = point.load()
    except Exception as error:
        raise PassError(f"the pass {point.name} ({point.value}) does not load: {error}") from error
    return made
