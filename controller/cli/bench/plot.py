"""Line plots as SVG text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLOURS: Final = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774", "#d44c47", "#cb912f")
WIDTH: Final = 520
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 34, 60
_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `values`: one per place of the x axis; None leaves the place out."""

    name: str
    values: Sequence[float | None]


def draw_lines(title: str, x_title: str, x_labels: Sequence[str], series: Sequence[Series]) -> str:
    """Return an SVG element: a line per series over equally spaced places, from zero up. `title` names the unit, too.
    Every point says its value when it is pointed at. All texts are escaped. Values must not be negative; each series
    has as many as there are `x_labels` (else ValueError)."""
    largest = max((value for line in series for value in line.values if value is not None), default=0.0)
    step = nice_step(largest, _TICKS)
    top = step * max(1, math.ceil(largest / step))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="18" class="title">{escape(title)}</text>',
    ]
    for count in range(round(top / step) + 1):
        y = _y(count * step, top)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="tick end">{count * step:g}</text>')
    for place, label in enumerate(x_labels):
        x = _x(place, len(x_labels))
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" class="tick middle">{escape(label)}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 32}" class="tick middle">{escape(x_title)}</text>')
    for number, line in enumerate(series):
        parts += _draw_series(line, x_labels, top, COLOURS[number % len(COLOURS)])
    parts += _draw_legend([line.name for line in series])
    return "\n".join([*parts, "</svg>"])


def nice_step(largest: float, ticks: int) -> float:
    """Return the distance between marks of an axis from 0 to `largest`: 1, 2 or 5 times a power of ten, with `ticks`
    marks at most besides that at 0. 1 where `largest` is not positive."""
    if largest <= 0:
        return 1.0
    raw = largest / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * (1 - 1e-9))


def _x(place: int, places: int) -> float:
    width = WIDTH - _LEFT - _RIGHT
    return _LEFT + width * (place + 0.5) / max(1, places)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top


def _draw_series(line: Series, x_labels: Sequence[str], top: float, colour: str) -> list[str]:
    points = [
        (_x(place, len(x_labels)), _y(value, top), label, value)
        for place, (label, value) in enumerate(zip(x_labels, line.values, strict=True))
        if value is not None
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">'
            f"<title>{escape(line.name)}, {escape(label)}: {value:.4g}</title></circle>"
            for x, y, label, value in points
        ),
    ]


def _draw_legend(names: Sequence[str]) -> list[str]:
    width = (WIDTH - _LEFT - _RIGHT) / max(1, len(names))
    parts: list[str] = []
    for number, name in enumerate(names):
        x = _LEFT + width * number
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{x:.1f}" y="{HEIGHT - 16}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14:.1f}" y="{HEIGHT - 7}" class="tick">{escape(name)}</text>')
    return parts
