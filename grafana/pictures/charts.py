"""One panel as SVG: a figure, curves, or bands of states. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, TypeAlias

from grafana.pictures.series import Series
from grafana.pictures.units import divisor_of, format_value

PALETTE: Final = (
    "#3f8f3f", "#d99e00", "#2f7fb8", "#d9662b", "#c0392b", "#7d4fa8",
    "#2b8f8a", "#a8623a", "#6b7f1f", "#b8487f", "#4a5fc1", "#7a7a7a",
)  # fmt: skip
COLORS: Final = {
    "green": "#3f8f3f",
    "red": "#c0392b",
    "blue": "#2f6fb8",
    "yellow": "#e0b400",
    "orange": "#d9762b",
    "text": "#b8bcc2",
}
"""Grafana's names of colors, as they are drawn."""
Points: TypeAlias = tuple[tuple[float, float], ...]
"""Unix time and value of each reading of a curve."""
_LEGEND_LINE: Final = 14
_LEGEND_ROWS: Final = 3
_LETTER: Final = 6.0
"""Width of a letter of the small text, about."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a picture shows, in Unix time, and the pause between two readings, in seconds."""

    start: float
    end: float
    step: float


def draw_text(x: float, y: float, text: str, style: str) -> str:
    """Return a text. `style`: a class of the page's style sheet."""
    return f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(text)}</text>'


def draw_panel(panel: Mapping[str, Any], curves: Sequence[Series], span: Span, box: Box) -> Iterator[str]:
    """Yield the SVG elements of a panel that has these curves."""
    width, height = box.width - 6, box.height - 6
    yield f'<rect x="{box.x + 3:g}" y="{box.y + 3:g}" width="{width:g}" height="{height:g}" class="panel"/>'
    yield draw_text(box.x + 12, box.y + 20, panel["title"], "title")
    inner = Box(box.x + 12, box.y + 28, box.width - 24, box.height - 38)
    if not curves:
        yield draw_text(inner.x, inner.y + 24, "No data", "small")
    elif panel["type"] == "stat":
        yield from _draw_stat(panel, curves, inner)
    elif panel["type"] == "state-timeline":
        yield from _draw_states(panel, curves, span, inner)
    else:
        yield from _draw_curves(panel, curves, span, inner)


def _draw_stat(panel: Mapping[str, Any], curves: Sequence[Series], box: Box) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    value = curves[0].last or 0.0
    steps = defaults["thresholds"]["steps"]
    color = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
    text = escape(format_value(value, defaults.get("unit", "short")))
    yield f'<text x="{box.x:g}" y="{box.y + 38:g}" class="figure" style="fill: {COLORS[color]}">{text}</text>'


def _draw_states(panel: Mapping[str, Any], curves: Sequence[Series], span: Span, box: Box) -> Iterator[str]:
    states = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    left = max(len(series.name) for series in curves) * _LETTER + 10
    plot = Box(box.x + left, box.y, box.width - left, box.height - 16)
    height = plot.height / len(curves)
    for row, series in enumerate(curves):
        y = plot.y + row * height
        yield draw_text(box.x, y + height / 2 + 4, series.name, "small")
        for start, end, value in _bands(series, span):
            x, last = _place_x(start, span, plot), _place_x(end, span, plot)
            state = states.get(f"{value:g}", {"text": "", "color": "text"})
            yield (
                f'<rect x="{x:.1f}" y="{y + 2:.1f}" width="{max(last - x, 0.5):.1f}" height="{height - 4:.1f}"'
                f' fill="{COLORS[state["color"]]}"/>'
            )
            if last - x > len(state["text"]) * _LETTER + 6:
                yield draw_text(round(x + 4, 1), round(y + height / 2 + 4, 1), state["text"], "band")
    yield from _draw_times(span, plot)


def _bands(series: Series, span: Span) -> Iterator[tuple[float, float, float]]:
    """Yield start, end and value of each time in which the value stays the same and readings follow one another."""
    start, before, value = series.points[0][0], series.points[0][0], series.points[0][1]
    for at, now in series.points[1:]:
        if now != value or at - before > 1.5 * span.step:
            yield start, min(before + span.step, at), value
            start, value = at, now
        before = at
    yield start, min(before + span.step, span.end), value


def _draw_curves(panel: Mapping[str, Any], curves: Sequence[Series], span: Span, box: Box) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    legend = _arrange_legend(curves, box.width)
    plot = Box(box.x + 62, box.y + 4, box.width - 66, box.height - 24 - len(legend) * _LEGEND_LINE)
    is_stacked = (defaults["custom"].get("stacking") or {}).get("mode") == "normal"
    layers: list[tuple[Points, Points | None]] = (
        _stack(curves) if is_stacked else [(series.points, None) for series in curves]
    )
    least = min(0.0, *(value for top, _ in layers for _, value in top))
    most = max(defaults.get("max") or 0.0, *(value for top, _ in layers for _, value in top))
    unit = defaults.get("unit", "short")
    ticks = choose_ticks(least, most, divisor_of(most, unit))
    low, high = min(ticks[0], least), max(ticks[-1], most)

    def place(point: tuple[float, float]) -> str:
        y = plot.y + plot.height * (1 - (point[1] - low) / (high - low))
        return f"{_place_x(point[0], span, plot):.1f},{y:.1f}"

    for tick in ticks:
        y = plot.y + plot.height * (1 - (tick - low) / (high - low))
        yield f'<line x1="{plot.x:g}" x2="{plot.x + plot.width:g}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        label = format_value(tick, unit)
        yield f'<text x="{plot.x - 6:g}" y="{y + 4:.1f}" class="small" text-anchor="end">{escape(label)}</text>'
    yield from _draw_times(span, plot)
    for number, (top, bottom) in enumerate(layers):
        color = PALETTE[number % len(PALETTE)]
        if bottom is not None:
            outline = " ".join(map(place, [*top, *reversed(bottom)]))
            yield f'<polygon points="{outline}" fill="{color}" fill-opacity="0.35"/>'
        for part in _split(top, span):
            yield f'<polyline points="{" ".join(map(place, part))}" stroke="{color}" class="curve"/>'
    yield from _draw_legend(legend, plot.x, plot.y + plot.height + 32)


def choose_ticks(least: float, most: float, divisor: float = 1.0) -> list[float]:
    """Return three to six values from `least` or below it to `most` or above it, round after division by `divisor`."""
    least, most = least / divisor, most / divisor
    if most <= least:
        most = least + (abs(least) or 1.0)
    rough = (most - least) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.floor(least / step + 1e-9)
    last = max(math.ceil(most / step - 1e-9), first + 1)
    return [number * step * divisor for number in range(first, last + 1)]


def _stack(curves: Sequence[Series]) -> list[tuple[Points, Points | None]]:
    """Return the upper and the lower edge of each curve on top of those before it. Without a reading it adds 0."""
    times = sorted({at for series in curves for at, _ in series.points})
    below = dict.fromkeys(times, 0.0)
    layers: list[tuple[Points, Points | None]] = []
    for series in curves:
        own = dict(series.points)
        above = {at: below[at] + own.get(at, 0.0) for at in times}
        layers.append((tuple(above.items()), tuple(below.items())))
        below = above
    return layers


def _split(points: Sequence[tuple[float, float]], span: Span) -> Iterator[list[tuple[float, float]]]:
    """Yield the stretches in which readings follow one another. A single reading becomes a short stroke."""
    part: list[tuple[float, float]] = []
    for point in points:
        if part and point[0] - part[-1][0] > 1.5 * span.step:
            yield part
            part = []
        part.append(point)
    if len(part) == 1:
        part.append((part[0][0] + span.step / 2, part[0][1]))
    yield part


def _place_x(at: float, span: Span, plot: Box) -> float:
    return plot.x + plot.width * (at - span.start) / (span.end - span.start)


def _draw_times(span: Span, plot: Box) -> Iterator[str]:
    """Label the time axis with the minutes and seconds since the picture's beginning."""
    for number in range(5):
        at = (span.end - span.start) * number / 4
        x, text = plot.x + plot.width * number / 4, f"{int(at) // 60}:{int(at) % 60:02d}"
        anchor = "start" if number == 0 else "end" if number == 4 else "middle"
        y = plot.y + plot.height + 15
        yield f'<text x="{x:.1f}" y="{y:.1f}" class="small" text-anchor="{anchor}">{text}</text>'


def _arrange_legend(curves: Sequence[Series], width: float) -> list[list[tuple[int, str]]]:
    """Return rows of curves' numbers and names. Beyond `_LEGEND_ROWS` rows, the last entry counts the rest."""
    rows: list[list[tuple[int, str]]] = [[]]
    used = 62.0
    for number, series in enumerate(curves):
        needed = len(series.name) * _LETTER + 22
        if rows[-1] and used + needed > width:
            if len(rows) == _LEGEND_ROWS:
                rows[-1][-1] = (-1, f"and {len(curves) - number + 1} more")
                return rows
            rows.append([])
            used = 62.0
        rows[-1].append((number, series.name))
        used += needed
    return rows


def _draw_legend(rows: Sequence[Sequence[tuple[int, str]]], left: float, y: float) -> Iterator[str]:
    for row, entries in enumerate(rows):
        x = left
        for number, name in entries:
            top = y + row * _LEGEND_LINE
            if number >= 0:
                color = PALETTE[number % len(PALETTE)]
                yield f'<rect x="{x:.1f}" y="{top - 6:.1f}" width="10" height="4" fill="{color}"/>'
            yield draw_text(round(x + 14, 1), round(top, 1), name, "small")
            x += len(name) * _LETTER + 22
