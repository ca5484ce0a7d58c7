"""The report of a load test: statistics, verdict, and a page with plots. Pure.

Times are measured by the client: the time to first token (TTFT) goes from sending the request to the first piece of
text; an inter-token latency is the time between two pieces, which are one token each for most engines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Final

PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class RequestSample:
    """One request of a load test. Times are in seconds."""

    started_s: float
    """Since the beginning of its level."""
    duration_s: float
    ttft_s: float | None
    """None: no text came."""
    gaps_s: tuple[float, ...]
    """Times between two pieces of text."""
    output_tokens: int
    """As the engine counted them; without its count, the pieces of text that came."""
    error: str | None = None
    """Code of the error that ended it, such as `queue_full`. None: it was answered, or cut."""
    is_cut: bool = False
    """Whether the client gave it up, because the time of its level was over or the operator ended the test."""

    @property
    def is_answered(self) -> bool:
        """Whether the whole answer came."""
        return self.error is None and not self.is_cut


@dataclass(frozen=True, slots=True)
class Distribution:
    """Figures of one or more values, in the unit of the values. `percentiles`: percent (50, 90, 95, 99) to value."""

    count: int
    mean: float
    smallest: float
    largest: float
    percentiles: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """The figures of one level: of all requests that ran with one number of requests at a time. `answered` and `cut`
    are numbers of requests. Distributions are None where there is nothing to count."""

    concurrency: int
    duration_s: float
    answered: int
    cut: int
    errors: Mapping[str, int]
    """Error code to the number of requests that it ended."""
    output_tokens: int
    """Of all requests, those that were cut included."""
    tokens_per_s: float
    """Of all requests together."""
    requests_per_s: float
    """Answered ones."""
    ttft_ms: Distribution | None
    inter_token_ms: Distribution | None
    """Of all gaps of all requests."""
    request_ms: Distribution | None
    """Whole answered requests."""
    request_tokens_per_s: Distribution | None
    """Speed of single answered requests after their first token."""


def find_percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated linearly between the two nearest values. `ordered`: ascending. Raises
    ValueError where it is empty or `percent` is not from 0 to 100."""
    if not ordered or not 0 <= percent <= 100:
        raise ValueError("a percentile from 0 to 100 of at least one value")
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe_values(values: Iterable[float]) -> Distribution | None:
    """Return count, mean, extremes and percentiles of the values, in their unit; None: there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        len(ordered),
        math.fsum(ordered) / len(ordered),
        ordered[0],
        ordered[-1],
        {percent: find_percentile(ordered, percent) for percent in PERCENTILES},
    )


def summarize_level(concurrency: int, samples: Sequence[RequestSample], duration_s: float) -> LevelSummary:
    """Return the figures of one level. `duration_s`: seconds from its beginning to its end, by which throughput is
    computed; where it is 0, throughput is 0."""
    answered = [sample for sample in samples if sample.is_answered]
    tokens = sum(sample.output_tokens for sample in samples)
    return LevelSummary(
        concurrency=concurrency,
        duration_s=duration_s,
        answered=len(answered),
        cut=sum(sample.is_cut for sample in samples),
        errors=dict(sorted(Counter(sample.error for sample in samples if sample.error is not None).items())),
        output_tokens=tokens,
        tokens_per_s=tokens / duration_s if duration_s > 0 else 0.0,
        requests_per_s=len(answered) / duration_s if duration_s > 0 else 0.0,
        ttft_ms=describe_values(sample.ttft_s * 1000 for sample in samples if sample.ttft_s is not None),
        inter_token_ms=describe_values(gap * 1000 for sample in samples for gap in sample.gaps_s),
        request_ms=describe_values(sample.duration_s * 1000 for sample in answered),
        request_tokens_per_s=describe_values(speed for speed in map(_speed_of, answered) if speed is not None),
    )


def _speed_of(sample: RequestSample) -> float | None:
    """Return a request's tokens per second after its first; None where it had no second one."""
    if sample.ttft_s is None or sample.output_tokens < 2 or sample.duration_s <= sample.ttft_s:
        return None
    return (sample.output_tokens - 1) / (sample.duration_s - sample.ttft_s)


def list_last_seconds(counts: Mapping[int, int], now_s: float, seconds: int) -> list[int]:
    """Return the counts of the last whole `seconds` before `now_s`, the oldest first; 0 for a second without one.
    `counts`: by the whole second in which they happened."""
    this_second = math.floor(now_s)
    return [counts.get(second, 0) for second in range(this_second - seconds, this_second)]


FORMAT: Final = 1
"""Version of the report's form."""
COLUMNS: Final = ("AT A TIME", "ANSWERED", "FAILED", "TOKENS/S", "TTFT P50", "TTFT P95", "TOKEN P50", "TOKEN P95")
COMPARE_COLUMNS: Final = ("AT A TIME", "FIGURE", "A", "B", "CHANGE")

PLOTTED_PARTS: Final = ("p50", "p95", "p99")
"""Parts of each distribution that a page plots."""
_PLOTTED: Final = ("ttft_ms", "inter_token_ms", "request_tokens_per_s")
_COMPARED: Final = (
    ("tokens/s", "tokens_per_s", None),
    ("requests/s", "requests_per_s", None),
    ("TTFT p50, ms", "ttft_ms", "p50"),
    ("TTFT p95, ms", "ttft_ms", "p95"),
    ("inter-token p50, ms", "inter_token_ms", "p50"),
    ("inter-token p95, ms", "inter_token_ms", "p95"),
    ("request p95, ms", "request_ms", "p95"),
)
"""Figures of a comparison: name, field of a level, and part of a distribution (None: a number)."""


class ReportError(Exception):
    """A file is no report of `roundhouse bench`. The message is what a sentence says after the file's name."""


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What one level of a load test (one number of requests at a time) measured: its figures, and each request."""

    summary: LevelSummary
    samples: tuple[RequestSample, ...]


def build_report(
    levels: Sequence[LevelResult], *, model: str, made_at: str, version: str, options: Mapping[str, Any], is_whole: bool
) -> dict[str, Any]:
    """Return the report as a JSON object with `format`, `version`, `model`, `made_at`, `complete`, `options` and
    `levels`: each has the fields of a `LevelSummary`, and `requests`. `made_at`: date and time in words. `version`: of
    Roundhouse. `options`: how the load was made. `is_whole`: whether no operator ended the test early."""
    return {
        "format": FORMAT,
        "version": version,
        "model": model,
        "made_at": made_at,
        "complete": is_whole,
        "options": dict(options),
        "levels": [
            {**_level_fields(level.summary), "requests": [_sample_fields(sample) for sample in level.samples]}
            for level in levels
        ],
    }


def _level_fields(summary: LevelSummary) -> dict[str, Any]:
    fields = asdict(summary)
    return {
        name: _distribution_fields(value) if isinstance(value := getattr(summary, name), Distribution) else fields[name]
        for name in fields
    }


def _distribution_fields(values: Distribution) -> dict[str, float]:
    percentiles = {f"p{percent}": value for percent, value in values.percentiles.items()}
    return {
        "count": values.count,
        "mean": values.mean,
        "min": values.smallest,
        "max": values.largest,
        **percentiles,
    }


def _sample_fields(sample: RequestSample) -> dict[str, Any]:
    """Return one request without its gaps, which would be most of the report."""
    return {
        "started_s": sample.started_s,
        "duration_s": sample.duration_s,
        "ttft_s": sample.ttft_s,
        "output_tokens": sample.output_tokens,
        "error": sample.error,
        "cut": sample.is_cut,
    }


def check_report(content: object) -> dict[str, Any]:
    """Return `content` itself, a report as decoded from JSON, after a check that its format is this version's, that it
    has a model and a time, and that each level has the figures of a comparison; other fields are not checked. Raises
    ReportError for anything else."""
    if not isinstance(content, dict) or not isinstance(content.get("levels"), list):
        raise ReportError("is no report of `roundhouse bench`")
    if content.get("format") != FORMAT:
        raise ReportError(f"has format {content.get('format')}, and this version reads format {FORMAT}")
    for name in ("model", "made_at"):
        if not isinstance(content.get(name), str):
            raise ReportError(f"has no `{name}`")
    for level in content["levels"]:
        if not isinstance(level, dict) or not isinstance(level.get("concurrency"), int):
            raise ReportError("has a level without its number of requests at a time")
        plotted = [(field, part) for field in _PLOTTED if field in level for part in PLOTTED_PARTS]
        for field, part in (*((field, part) for _, field, part in _COMPARED), *plotted):
            if not _is_figure(level, field, part):
                raise ReportError(f"has a level without the figure {field}" + (f".{part}" if part else ""))
    return content


def _is_figure(level: Mapping[str, Any], field: str, part: str | None) -> bool:
    """Return whether a level has a figure: a number, or None where a distribution was not measured."""
    if field not in level:
        return False
    value = level[field]
    if part is not None:
        if value is None:
            return True
        value = value.get(part) if isinstance(value, dict) else None
    return isinstance(value, int | float) and not isinstance(value, bool)


def summary_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row of cells of `COLUMNS` for each level of a report, in its order; `-` for what was not measured."""
    return [_level_row(level) for level in report["levels"]]


def result_rows(levels: Sequence[LevelResult]) -> list[tuple[str, ...]]:
    """Return a row of cells of `COLUMNS` for each measured level, as `summary_rows` does for a report."""
    return [_level_row(_level_fields(level.summary)) for level in levels]


def _level_row(level: Mapping[str, Any]) -> tuple[str, ...]:
    times = [(field, part) for field in ("ttft_ms", "inter_token_ms") for part in ("p50", "p95")]
    return (
        str(level["concurrency"]),
        str(level["answered"]),
        str(sum(level["errors"].values())),
        f"{level['tokens_per_s']:.1f}",
        *(_milliseconds(_pick(level, field, part)) for field, part in times),
    )


def compare_reports(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each figure of each concurrency that both reports have, in the order of the first: objects with
    `concurrency`, `figure` (its name), `a` and `b` (its values, None: missing) and `change`, that of the second to the
    first as a share of the first; None where one is missing or the first is 0. Yields nothing where the reports have no
    concurrency in common."""
    second_levels = {level["concurrency"]: level for level in second["levels"]}
    for level in first["levels"]:
        other = second_levels.get(level["concurrency"])
        if other is None:
            continue
        for name, field, part in _COMPARED:
            old, new = _pick(level, field, part), _pick(other, field, part)
            change = None if old is None or new is None or old == 0 else new / old - 1
            yield {"concurrency": level["concurrency"], "figure": name, "a": old, "b": new, "change": change}


def comparison_rows(figures: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row of cells of `COMPARE_COLUMNS` for each figure of `compare_reports`; `-` for what is missing."""
    return [
        (
            str(figure["concurrency"]),
            str(figure["figure"]),
            _number(figure["a"]),
            _number(figure["b"]),
            "-" if figure["change"] is None else f"{figure['change']:+.1%}",
        )
        for figure in figures
    ]


def _pick(level: Mapping[str, Any], field: str, part: str | None) -> float | None:
    value = level[field]
    if part is None or value is None:
        return value  # type: ignore[no-any-return] # a number of JSON
    return float(value[part])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


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


_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1120px;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse}th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #d0d7de}
th{font-weight:600}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1rem}
svg{width:100%;height:auto}.title{font-weight:600;font-size:14px}.tick{font-size:11px;fill:#57606a}
.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#d8dee4;stroke-width:1}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}
.tick{fill:#8d96a0}.title{fill:#e6edf3}.grid{stroke:#30363d}}
"""
_X_TITLE: Final = "requests at a time"


def render_page(report: Mapping[str, Any]) -> str:
    """Return the page of one report, a whole HTML document. `report`: as `report.build_report` makes it. Raises
    KeyError where a field is missing, which `report.check_report` does not rule out."""
    options = ", ".join(f"{name} {value}" for name, value in report["options"].items())
    ended = "" if report["complete"] else " It was ended early."
    intro = f"Roundhouse {report['version']}, {report['made_at']}; {options}.{ended}"
    return _page(
        f"Load test of {report['model']}",
        [
            f"<p>{escape(intro)}</p>",
            _table(COLUMNS, summary_rows(report)),
            _plots([("", report)]),
            _error_list(report),
            "<p>TTFT: from sending a request to its first text. Token: between two pieces of text, one token each with "
            "most engines. TOKENS/S: of all requests together.</p>",
        ],
    )


def render_comparison(first_name: str, first: Mapping[str, Any], second_name: str, second: Mapping[str, Any]) -> str:
    """Return a whole HTML document with two reports beside each other; figures are of the levels that both have. The
    reports are as `report.check_report` returns them; the names are those of their files."""
    figures = list(compare_reports(first, second))
    lines = [
        f"A is {first_name}: {first['model']}, {first['made_at']}.",
        f"B is {second_name}: {second['model']}, {second['made_at']}.",
    ]
    return _page(
        f"Load tests of {first['model']} and {second['model']}",
        [
            *(f"<p>{escape(line)}</p>" for line in lines),
            _table(COMPARE_COLUMNS, comparison_rows(figures)),
            _plots([("A ", first), ("B ", second)]),
        ],
    )


def _page(title: str, parts: Sequence[str]) -> str:
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
    )
    return "\n".join([head, f"<h1>{escape(title)}</h1>", *parts, "</body></html>", ""])


def _plots(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the plots by concurrency, with lines of every report. The text before a report's names tells it apart."""
    places = sorted({level["concurrency"] for _, report in reports for level in report["levels"]})
    labels = [str(place) for place in places]
    by_place = [(prefix, {level["concurrency"]: level for level in report["levels"]}) for prefix, report in reports]
    throughput = [
        Series(f"{prefix}tokens/s", [levels[place]["tokens_per_s"] if place in levels else None for place in places])
        for prefix, levels in by_place
    ]
    plots = [draw_lines("Tokens per second, all requests", _X_TITLE, labels, throughput)]
    for title, field in (
        ("Time to first token, ms", "ttft_ms"),
        ("Inter-token latency, ms", "inter_token_ms"),
        ("Tokens per second, one request", "request_tokens_per_s"),
    ):
        series = [
            Series(f"{prefix}{part}", [_part_of(levels.get(place), field, part) for place in places])
            for prefix, levels in by_place
            for part in PLOTTED_PARTS
        ]
        plots.append(draw_lines(title, _X_TITLE, labels, series))
    return '<div class="plots">\n' + "\n".join(plots) + "\n</div>"


def _part_of(level: Mapping[str, Any] | None, field: str, part: str) -> float | None:
    values = None if level is None else level.get(field)
    return None if values is None else float(values[part])


def _error_list(report: Mapping[str, Any]) -> str:
    lines = [
        f"<li>{level['concurrency']} at a time: {count} ended with <code>{escape(code)}</code></li>"
        for level in report["levels"]
        for code, count in level["errors"].items()
    ]
    return f"<h2>Failed requests</h2><ul>{''.join(lines)}</ul>" if lines else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
