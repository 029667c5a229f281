"""The result of a sweep as a picture: one figure over one setting, a line for each combination of
the other settings that differ; marks alone where the setting is no number, since between two
pipelines or models there is nothing. SVG without a library: axes, grid, lines, marks and a legend
are all there is in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from spyrec.sweep.grid import MODEL
from spyrec.sweep.point import FIGURES
from spyrec.sweep.settings import Value
from spyrec.sweep.tables import Row

WIDTH, HEIGHT = 640, 400  # of the part with the axes, in pixels
LEFT, RIGHT, TOP, BOTTOM = 80, 16, 24, 56
CHARACTER = 7  # pixels, on average, of a letter of the legend
LINE = 18
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The palette of Okabe and Ito, which people who see few colours can tell apart, without yellow."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
MARKS = ("", "m-4 -4h8v8h-8z", "m0 -5l5 10h-10z", "m0 5l5 -10h-10z")
"""As many as dashes, to tell apart what no line joins; the first is a circle."""
MOST_LINES = len(COLOURS) * len(DASHES)
LOG_FROM = 4.0  # greatest over least x from which steps are ratios
TICKS = 5

Place = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line: its name in the legend and its points, y None where there is no figure."""

    name: str
    points: tuple[tuple[Value, float | None], ...]


def series_of(rows: Sequence[Row], x: str, y: str) -> tuple[Series, ...]:
    """The lines of ``y`` over ``x`` in the order of the rows. Settings that are the same in all
    rows tell no two lines apart and are left out of names."""
    names = [n for n in rows[0] if n not in FIGURES and n not in (x, "error", "id")]
    apart = [n for n in names if len({row[n] for row in rows}) > 1]
    found: dict[str, list[tuple[Value, float | None]]] = {}
    for row in rows:
        at, value = row[x], row[y]
        name = " ".join(_part(n, row[n]) for n in apart)
        height = float(value) if value is not None else None
        found.setdefault(name, []).append(("" if at is None else at, height))
    return tuple(Series(name, tuple(points)) for name, points in found.items())


def _part(name: str, value: Value | None) -> str:
    return str(value) if name == MODEL else f"{name}={'' if value is None else value}"


def svg(rows: Sequence[Row], x: str, y: str) -> str:
    """The picture. Of more than MOST_LINES lines the rest is only counted."""
    every = series_of(rows, x, y)
    lines = every[:MOST_LINES]
    names = [s.name for s in lines if s.name]
    if len(every) > len(lines):
        names.append(f"and {len(every) - len(lines)} more, not shown")
    legend = max(map(len, names), default=0) * CHARACTER + (50 if names else 0)
    width = LEFT + WIDTH + RIGHT + legend
    height = max(TOP + HEIGHT + BOTTOM, TOP + LINE * len(names) + BOTTOM)
    across = _Across(list(dict.fromkeys(at for s in lines for at, _ in s.points)))
    step, top = _steps(max((h for s in lines for _, h in s.points if h is not None), default=0.0))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_axes(across, step, top, x, y),
    ]
    for number, line in enumerate(lines):
        out += _line(line, number, across, top)
    out += _legend(names, len([s for s in lines if s.name]), across.numbers)
    return "\n".join([*out, "</svg>"]) + "\n"


class _Across:
    """Where the values of x stand: ``numbers`` by size (in ratios when they are far apart),
    anything else side by side."""

    def __init__(self, values: Sequence[Value]) -> None:
        numbers = [v for v in values if not isinstance(v, str)]
        self.numbers = len(numbers) == len(values)
        self.values = sorted(numbers) if self.numbers else list(values)
        if not self.numbers:
            places = [float(i) for i in range(len(values))]
        elif min(numbers) > 0 and max(numbers) >= LOG_FROM * min(numbers):
            places = [math.log(v) for v in sorted(numbers)]
        else:
            places = [float(v) for v in sorted(numbers)]
        low, span = places[0], places[-1] - places[0]
        inner = WIDTH - 60
        self._at = {
            value: LEFT + 30 + (inner * (place - low) / span if span else inner / 2)
            for value, place in zip(self.values, places, strict=True)
        }

    def at(self, value: Value) -> float:
        return self._at[value]


def _steps(most: float) -> tuple[float, float]:
    """The distance of the ticks of y, 1, 2 or 5 times a power of ten, and the topmost tick."""
    if most <= 0:
        return 1.0, 1.0
    power = 10.0 ** math.floor(math.log10(most / TICKS))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * TICKS >= most * (1 - 1e-9))
    return step, step * math.ceil(most / step * (1 - 1e-9))


def _axes(across: _Across, step: float, top: float, x: str, y: str) -> Iterator[str]:
    bottom = TOP + HEIGHT
    for i in range(round(top / step) + 1):
        at = _y(i * step, top)
        yield f'<path d="M{LEFT} {at:.1f}H{LEFT + WIDTH}" stroke="#ddd"/>'
        yield _text(LEFT - 8, at + 4, _number(i * step), "end")
    last = -math.inf
    for value in across.values:
        at, label = across.at(value), str(value)
        yield f'<path d="M{at:.1f} {bottom}v5" stroke="black"/>'
        if at - len(label) * CHARACTER / 2 > last:  # labels do not run into each other
            yield _text(at, bottom + 20, label, "middle")
            last = at + len(label) * CHARACTER / 2 + 4
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{LEFT + WIDTH}" stroke="black" fill="none"/>'
    yield _text(LEFT + WIDTH / 2, bottom + 44, x, "middle")
    yield _text(LEFT - 8, TOP - 10, y, "start")


def _line(line: Series, number: int, across: _Across, top: float) -> Iterator[str]:
    """Broken where there is no figure; marks that are not joined where x is no number."""
    colour, dash = _look(number)
    pieces: list[list[Place]] = [[]]
    order = {value: i for i, value in enumerate(across.values)}
    for value, height in sorted(line.points, key=lambda p: order[p[0]]):
        if height is None:
            pieces.append([])
        else:
            pieces[-1].append((across.at(value), _y(height, top)))
    yield f'<g stroke="{colour}" fill="{colour}"><title>{escape(line.name)}</title>'
    for piece in pieces:
        if len(piece) > 1 and across.numbers:
            path = "L".join(f"{a:.1f} {b:.1f}" for a, b in piece)
            yield f'<path d="M{path}" fill="none" stroke-width="2"{dash}/>'
        yield from (_mark(0 if across.numbers else number, a, b) for a, b in piece)
    yield "</g>"


def _mark(number: int, x: float, y: float) -> str:
    """Filled with the colour around it; its shape is another one where that comes again."""
    shape = MARKS[number // len(COLOURS) % len(MARKS)]
    if not shape:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    return f'<path d="M{x:.1f} {y:.1f}{shape}"/>'


def _legend(names: Sequence[str], n_lines: int, joined: bool) -> Iterator[str]:
    left = LEFT + WIDTH + RIGHT
    for number, name in enumerate(names):
        at = TOP + LINE * number + LINE / 2
        if number < n_lines:
            colour, dash = _look(number)
            if joined:
                yield f'<path d="M{left} {at}h26" stroke="{colour}" stroke-width="2"{dash}/>'
            else:
                yield f'<g stroke="{colour}" fill="{colour}">{_mark(number, left + 13, at)}</g>'
        yield _text(left + 34, at + 4, name, "start")


def _look(number: int) -> tuple[str, str]:
    """Colour and dashes, different for MOST_LINES lines."""
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return COLOURS[number % len(COLOURS)], f' stroke-dasharray="{dash}"' if dash else ""


def _y(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.6g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
