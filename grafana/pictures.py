"""Draws dashboards as SVG pictures, as they look in Grafana, from the answers of a Prometheus. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. `points`: Unix time and value, in the order of time; where there is no figure, there is no point."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float | None:
        """The newest value; None: there is none."""
        return self.points[-1][1] if self.points else None


def read_matrix(result: Iterable[Mapping[str, Any]], legend: str) -> list[Series]:
    """Return the curves of a range query's `result`, sorted by name. Empty ones are left out.

    `legend`: Grafana's form, in which `{{model}}` stands for a label's value; empty: all labels.
    """
    found = []
    for each in result:
        pairs = ((float(at), float(value)) for at, value in each["values"])
        points = tuple((at, value) for at, value in pairs if math.isfinite(value))
        if points:
            found.append(Series(name_series(each["metric"], legend), points))
    return sorted(found, key=lambda series: series.name)


def name_series(labels: Mapping[str, str], legend: str) -> str:
    """Return a curve's name as Grafana makes it from its labels."""
    if legend:
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)
    told = {name: value for name, value in labels.items() if name not in ("__name__", "instance", "job")}
    return ", ".join(f"{name}={value}" for name, value in sorted(told.items()))


_SCALES: Final[dict[str, tuple[tuple[float, float, str], ...]]] = {
    "s": (
        (86_400, 86_400, " d"),
        (3_600, 3_600, " h"),
        (60, 60, " min"),
        (1, 1, " s"),
        (1e-3, 1e-3, " ms"),
        (0, 1e-6, " µs"),
    ),
    "bytes": ((2**30, 2**30, " GiB"), (2**20, 2**20, " MiB"), (2**10, 2**10, " KiB"), (0, 1, " B")),
    "mbytes": ((2**20, 2**20, " TiB"), (2**10, 2**10, " GiB"), (0, 1, " MiB")),
    "short": ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e3, 1e3, " k"), (0, 1, "")),
    "percentunit": ((0, 0.01, "%"),),
}
"""By unit: from which value on, divided by what, followed by what."""
_SUFFIXES: Final = {"reqps": " req/s", "ops": " /s"}


def format_value(value: float, unit: str) -> str:
    """Return a figure of Grafana's `unit` with three significant digits."""
    if value == 0:
        return "0%" if unit == "percentunit" else "0"
    if unit in _SUFFIXES:
        return f"{value:.3g}{_SUFFIXES[unit]}"
    divisor, suffix = _scale_of(value, unit)
    return f"{_shorten(value / divisor)}{suffix}"


def divisor_of(value: float, unit: str) -> float:
    """Return by what `format_value` divides a figure of this size."""
    return 1.0 if unit in _SUFFIXES else _scale_of(value, unit)[0]


def _scale_of(value: float, unit: str) -> tuple[float, str]:
    return next(
        (divisor, suffix) for least, divisor, suffix in _SCALES.get(unit, _SCALES["short"]) if abs(value) >= least
    )


def _shorten(value: float) -> str:
    """Return three significant digits, and all digits of a whole part."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


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


COLUMN: Final = 50
"""Pixels of one of the 24 columns."""
ROW: Final = 26
"""Pixels of one row of Grafana's grid."""
HEAD: Final = 64
"""Pixels above the first panel."""
_STYLE: Final = """
text { font-family: Helvetica, Arial, sans-serif; fill: #24292f; }
.head { font-size: 20px; font-weight: bold; }
.row { font-size: 14px; font-weight: bold; }
.title { font-size: 12px; font-weight: bold; }
.small { font-size: 10px; fill: #57606a; }
.band { font-size: 10px; fill: #ffffff; }
.figure { font-size: 30px; font-weight: bold; }
.panel { fill: #ffffff; stroke: #d0d7de; }
.grid { stroke: #e6e9ec; }
.curve { fill: none; stroke-width: 1.3; }
""".replace("\n", " ")


def draw_dashboard(board: Mapping[str, Any], data: Mapping[int, Sequence[Series]], span: Span) -> str:
    """Return the picture of a dashboard as SVG. The same arguments give the same picture.

    `data`: the curves of each panel, by its id; a panel without any shows `No data`.
    """
    height = HEAD + ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 6
    width = COLUMN * 24
    chosen = ", ".join(f"{each['label']}: All" for each in board["templating"].get("list", ()))
    shown = f"{board['description']}  {chosen}".strip()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#f6f8fa"/>',
        draw_text(12, 28, board["title"], "head"),
        draw_text(12, 48, shown, "small"),
    ]
    for panel in board["panels"]:
        place = panel["gridPos"]
        box = Box(place["x"] * COLUMN, HEAD + place["y"] * ROW, place["w"] * COLUMN, place["h"] * ROW)
        if panel["type"] == "row":
            parts.append(draw_text(box.x + 12, box.y + 19, panel["title"], "row"))
        else:
            parts += draw_panel(panel, data.get(panel["id"], ()), span, box)
    return "\n".join([*parts, "</svg>", ""])
