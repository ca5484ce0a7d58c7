"""The report of `roundhouse bench` as JSON, and the comparison of two. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from controller.cli.bench.statistics import Distribution, LevelSummary, RequestSample

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
        return value  # type: ignore[no-any-return]
    return float(value[part])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
