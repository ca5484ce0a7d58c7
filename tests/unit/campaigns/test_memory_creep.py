"""What the campaign makes of the figures that it took."""

from __future__ import annotations

from typing import Any

from tests.campaigns.campaign_memory_creep import SHOWN, failures_of, tables_of

LAST = 120


def _figures(minute: int, mib: float) -> dict[str, Any]:
    return {
        "at": 1000 + 60 * minute,
        "anonymous": mib,
        "rss": mib + 20,
        "heap": 3 * 2**20,
        "heap_used": 2**20,
        "blocks": 7,
        "fds": 20,
        "cpu_s": 6.0 * minute,
        "own_cpu_s": 3.0 * minute,
        "hostile": 3600 * minute,
        "good": minute,
        "wrong": 0,
        "tables": minute,
        "stored_responses": 5.0,
    }


def _taken(per_minute: float) -> list[dict[str, Any]]:
    return [_figures(minute, 50 + per_minute * minute) for minute in range(LAST + 1)]


def test_memory_that_grows_and_wrong_answers_are_failures() -> None:
    assert failures_of(_taken(0), []) == []
    assert failures_of(_taken(0.3), ["chat: no"]) == [
        "wrong answer: chat: no",
        "memory still grows, by 0.3000 MiB a minute",
    ]
    assert failures_of(_taken(0.3)[:3], []) == [], "too few figures"


def test_the_verdict_and_the_first_and_last_rows_are_shown() -> None:
    verdict, course = tables_of(_taken(0.3), ": before")
    assert (verdict.title, course.title) == ("Memory: before", "As it went: before")
    said = {str(row[0]): row[1] for row in verdict.rows}
    assert said["anonymous memory at the beginning / at the end / at most"] == "50.0 / 86.0 / 86.0 MiB"
    assert said["slope of the second half (60 min)"] == "+0.3000 ± 0.0000 MiB a minute"
    assert said["still grows, by more than 1 MiB an hour"] == "yes"
    assert said["hostile clients"] == "432,000 (60 a second)"
    assert said["CPU of the gateway, of one core"] == "10.0%"
    assert SHOWN <= len(course.rows) <= SHOWN + 2
    first, *_, last = course.rows
    assert len(first) == len(course.columns)
    assert (first[:4], last[:4]) == (("0", "50.0", "70.0", "3.0"), ("120", "86.0", "106.0", "3.0"))
    by_column = dict(zip(course.columns, last, strict=True))
    assert (by_column["threads"], by_column["stored"]) == ("", "5"), "what the gateway did not tell is left out"


def test_few_figures_are_told_as_they_are() -> None:
    verdict, course = tables_of(_taken(0)[:2])
    assert ("still grows, by more than 1 MiB an hour", "too few figures to say") in verdict.rows
    assert len(course.rows) == 2
