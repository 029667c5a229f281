"""Which points a sweep has: the product of its axes."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from spyrec.ir.errors import SpyrecError
from spyrec.passes.manager import Registry
from spyrec.sweep.settings import Settings, Unknown, Value, full_name, names, read_value
from spyrec.workbench.plugins import known_passes

Axis = tuple[Settings, ...]
"""Settings of which a point has one; most axes set one name, those of a file of points several."""

MOST_POINTS = 100_000
MODEL = "model"


class Refusals:
    """What is wrong with what was asked for, gathered so that it can be told at once. ``known``:
    the passes that a pipeline may have, None for those that are installed."""

    def __init__(self, known: Registry | None = None) -> None:
        self.known = known_passes() if known is None else known
        self.said: list[str] = []
        self.unknown = False

    def read(self, name: str, text: str, where: str = "") -> Value | None:
        """The value, None when it is refused."""
        try:
            return read_value(full_name(name), text, self.known)
        except ValueError as error:
            self.unknown |= isinstance(error, Unknown)
            self.say(f"{where}{error}")
        return None

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def __bool__(self) -> bool:
        return bool(self.said)

    def __str__(self) -> str:
        there = f"what can be set: bind.DIM, cores, {', '.join(names())}"
        return "\n".join([*self.said, *([there] if self.unknown else [])])


def grid_axis(text: str, refused: Refusals) -> Axis:
    """``"cores=8,16"`` -> ``({"cores.count": 8}, {"cores.count": 16})``. Pipelines have commas in
    them, so they are not said this way."""
    name, equals, values = text.rpartition("=")
    name = full_name(name)
    if not equals or not name or not values:
        refused.say(f"{text!r}: expected a model file, or KEY=VALUE,VALUE,...")
    elif name in ("passes", MODEL):
        how = "with --passes SPEC, once for each" if name == "passes" else "as an argument each"
        refused.say(f"{name}=: give {name if name == 'passes' else 'models'} {how}")
    else:
        return option_axis(name, values.split(","), refused)
    return ()


def option_axis(name: str, texts: Sequence[str], refused: Refusals) -> Axis:
    """An axis of one name. A value that is there twice is refused, even if spelt otherwise."""
    found: list[Value] = []
    for text in texts:
        value = refused.read(name, text)
        if value is not None and value in found:
            refused.say(f"{name}={text}: is there twice")
        elif value is not None:
            found.append(value)
    return tuple({name: value} for value in found)


def read_points(path: str, refused: Refusals) -> Axis:
    """The points of a ``.csv`` file, a column each name, or of a ``.json`` file, a list of objects.
    An empty cell, or null, says nothing of that name. SpyrecError when it is neither."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".json"):
        raise SpyrecError(f"points {path}: the name must end in .csv or .json")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        rows = list(_json_rows(text) if suffix == ".json" else _csv_rows(text))
    except (ValueError, RecursionError, csv.Error) as error:
        raise SpyrecError(f"points {path}: {error}") from None
    if not rows:
        raise SpyrecError(f"points {path}: there is no point in it")
    points = []
    for place, row in rows:
        where, point = f"{path}, {place}: ", {}
        for name, told in row.items():
            value = told if name == MODEL else refused.read(name, told, where)
            if full_name(name) in point:
                refused.say(f"{where}{full_name(name)} is there twice")
            elif value is not None:
                point[full_name(name)] = value
        points.append(point)
    return tuple(points)


def _csv_rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    reader = csv.reader(text.splitlines(), strict=True)
    header = [name.strip() for name in next(reader, [])]
    if twice := [name for name, n in Counter(header).items() if n > 1]:
        raise ValueError(f"two columns are called {twice[0]!r}")
    for row in reader:
        place = f"line {reader.line_num}"
        if len(row) > len(header):
            raise ValueError(f"{place} has {len(row)} cells, the header {len(header)}")
        cells = {name: cell.strip() for name, cell in zip(header, row, strict=False)}
        if any(cells.values()):
            yield place, {name: cell for name, cell in cells.items() if cell}


def _json_rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    rows = json.loads(text)
    if not isinstance(rows, list):
        raise ValueError("expected a JSON list of objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"entry {number} is a JSON {type(row).__name__}, expected an object")
        told = {name: value for name, value in row.items() if value is not None}
        if odd := [n for n, v in told.items() if isinstance(v, bool | list | dict)]:
            raise ValueError(f"entry {number}: {odd[0]} must be a number or a string")
        yield f"entry {number}", {name: str(value) for name, value in told.items()}


def points_of(axes: Sequence[Axis], refused: Refusals) -> tuple[Settings, ...]:
    """Every combination, the first axis slowest. Refused when two axes set the same name or there
    are more than MOST_POINTS."""
    settings = [dict.fromkeys(name for part in axis for name in part) for axis in axes]
    for name, n in Counter(name for axis in settings for name in axis).items():
        if n > 1:
            refused.say(f"{name} is given {n} times")
    n_points = prod(map(len, axes))
    if n_points > MOST_POINTS:
        refused.say(f"the grid has {n_points:,} points, more than the {MOST_POINTS:,} it may have")
    if refused:
        return ()
    return tuple(_merged(parts) for parts in product(*axes))


def _merged(parts: Sequence[Settings]) -> Settings:
    return {name: value for part in parts for name, value in part.items()}


def swept(points: Sequence[Settings]) -> list[str]:
    """The names that points set, "model" first, then in the order in which they were given."""
    found = dict.fromkeys(name for point in points for name in point)
    return [MODEL, *(name for name in found if name != MODEL)]


def described(settings: Mapping[str, Any]) -> str:
    """``encoder.onnx cores.count=8 planner=joint``"""
    told = [f"{name}={value}" for name, value in settings.items() if name != MODEL]
    return " ".join([str(settings.get(MODEL, "")), *told])
