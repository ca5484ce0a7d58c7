"""The report of `roundhouse bench` as one HTML page without any request to a network. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from controller.cli.bench.plot import Series, draw_lines
from controller.cli.bench.report import (
    COLUMNS,
    COMPARE_COLUMNS,
    PLOTTED_PARTS,
    compare_reports,
    comparison_rows,
    summary_rows,
)

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
