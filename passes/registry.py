"""The passes that ship, by name, and those that other distributions add by entry point."""

from __future__ import annotations

import inspect
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import TypeGuard

from spyrec.ir.errors import PassError, PluginWarning

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
from .manager import Absent, Pass, Registry
from .pipeline_text import check_name
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

    One that does not load, is no pass, or takes a name that is in use is left out with a
    PluginWarning, so that it spoils nothing but itself. Under the name of its entry point then
    stands what tells why, unless that name is in use.
    """
    found = dict(registry)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            made = _loaded(point, found)
        except PassError as error:
            warnings.warn(f"{error}; spyrec goes on without it", PluginWarning, stacklevel=2)
            found.setdefault(point.name, Absent(str(error)))
        else:
            found[str(made.name)] = made
    return found


def _loaded(point: EntryPoint, taken: Registry) -> type[Pass]:
    """The class that an entry point names. PassError when there is none that can be used."""
    whose = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    what = f"the pass {point.name}{whose} (entry point {point.value})"
    try:
        made: type[Pass] = point.load()
    except (Exception, SystemExit) as error:  # whatever its module does when it is imported
        told = " ".join(str(error).split())
        raise PassError(f"{what} does not load: {type(error).__name__}: {told}") from error
    if not is_pass(made):
        raise PassError(
            f"{what} is no class with a name, a summary (both class variables) and a method "
            "run(module, target)"
        )
    try:
        check_name(str(made.name))
    except PassError as error:
        raise PassError(f"{what}: {error}") from None
    if str(made.name) in taken:
        raise PassError(f"{what} is called {made.name}, and so is another pass")
    return made


def is_pass(made: object) -> TypeGuard[type[Pass]]:
    """Whether it is a class of passes."""
    if not inspect.isclass(made):  # asked first: other objects may answer any question, or raise
        return False
    texts = (getattr(made, "name", None), getattr(made, "summary", None))
    return all(isinstance(text, str) for text in texts) and callable(getattr(made, "run", None))
