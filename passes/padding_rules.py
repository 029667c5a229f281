"""What padding does to each op: where it lies in the results, and what must be masked so that it
touches no true element."""

from __future__ import annotations

from collections.abc import Mapping

from .padding import Rule
from .padding_moves import MOVES
from .padding_pointwise import POINTWISE
from .padding_sums import SUMS

RULES: Mapping[str, Rule] = {**POINTWISE, **SUMS, **MOVES}
"""How each op hands on the claim of ``padding``. An op without a rule may not meet padding."""
