"""What a point of a sweep can set: the names, and which values each may have."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache

from spyrec.api import NUMERICS
from spyrec.driver import JOINT
from spyrec.ir.errors import SpyrecError
from spyrec.passes.manager import Registry
from spyrec.passes.pipeline import PLANNERS
from spyrec.sim.device import load_device
from spyrec.sim.device_file import Whole
from spyrec.sim.device_values import parameters
from spyrec.sim.errors import SimError
from spyrec.workbench.plugins import pipeline_of

Value = int | float | str
Settings = Mapping[str, Value]
"""By name: "model", the options below, "bind.DIM", and parameters of a device by dotted name."""

DEFAULTS: Settings = {
    "device": "spyre", "passes": "", "planner": JOINT, "numerics": NUMERICS[0], "plan-budget": "",
}
"""The options, and what they are where nothing is said; "" is the usual pipeline, and the budget
that suits the model."""

BIND = "bind."
HOST = "host."
SHORT = {"cores": "cores.count"}
MOST_SECONDS = 86400
MOST_DIGITS = 18


class Unknown(ValueError):
    """There is no such name, nor one like it."""


def full_name(name: str) -> str:
    """The name as it stands in results: ``cores.count`` for ``cores``."""
    return SHORT.get(name, name)


@cache
def names() -> dict[str, Whole | None]:
    """Every name but those of models and dimensions, with the rule of a device's parameter. Those
    of its host are left out: no figure of a sweep depends on them."""
    of_card = {name: rule for name, rule in parameters().items() if not name.startswith(HOST)}
    return {**dict.fromkeys(DEFAULTS), **of_card}


def read_value(name: str, text: str, known: Registry) -> Value:
    """What a full name is set to; ``known``: the passes that a pipeline may have.

    Unknown when there is no such name; ValueError with a sentence, ``cores.count=99: expected a
    whole number from 1 to 63 (cores)``, when it cannot be that."""
    if name.startswith(BIND) and name != BIND:
        return _whole(name, text, None)
    if name not in names():
        if near := get_close_matches(name, [*names(), *SHORT], 1):
            raise ValueError(f"{name} cannot be set; did you mean {near[0]}?")
        raise Unknown(f"{name} cannot be set")
    rule = names()[name]
    if rule is not None:
        return _whole(name, text, rule)
    if name == "plan-budget":
        return _seconds(text)
    words = {"planner": tuple(PLANNERS), "numerics": NUMERICS}.get(name)
    if words is not None and text not in words:
        raise ValueError(f"{name}={text}: expected {' or '.join(words)}")
    try:
        if name == "passes":
            pipeline_of(text, known)
        elif name == "device":
            load_device(text)
    except (SpyrecError, SimError) as error:
        raise ValueError(f"{name}={text}: {error}") from None
    return text


def _whole(name: str, text: str, rule: Whole | None) -> int:
    plain = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    if not plain or (rule is not None and not rule.accepts(int(text))):
        raise ValueError(f"{name}={text}: expected {rule or 'a whole number, 0 or more'}")
    return int(text)


def _seconds(text: str) -> int | float:
    number = text.removesuffix("s")
    try:
        seconds = float(number) if number.isascii() and number.strip() == number else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(
            f"plan-budget={text}: expected seconds from 0 to {MOST_SECONDS}, as 10s"
        )
    return int(seconds) if seconds.is_integer() else seconds
