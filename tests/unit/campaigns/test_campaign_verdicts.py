"""Verdicts of campaigns: memory that grows, and docstrings that a reader has judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.campaigns.campaign_docstrings import (
    COLUMNS,
    DRAWN,
    READINGS,
    Docstring,
    draw_docstrings,
    judge_readings,
    list_docstrings,
    read_cells,
)
from tests.campaigns.campaign_memory_creep import SHOWN, failures_of, tables_of
from tests.campaigns.record import REPOSITORY, Table

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
    expected = ["wrong answer: chat: no", "memory still grows, by 0.3000 MiB a minute"]
    assert failures_of(_taken(0.3), ["chat: no"]) == expected
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


SOURCE = '''
class Pool:
    """Keeps connections
    open."""

    def __init__(self, limit: int) -> None:
        """`limit`: most
        connections."""

    def take(self, origin: str, *, fresh: bool = False) -> int | None:
        """Return one."""

    def _drop(self) -> None:
        """Not public."""

    def close(self) -> None: ...


class Plain:
    """Has an `__init__` without words."""

    def __init__(self, name: str) -> None: ...


class Bare:
    """Has none."""


class _Inner:
    def get(self) -> None:
        """Not public, because its class is not."""


async def main() -> None:
    """Run."""
'''


def test_only_public_docstrings_are_listed(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "pool.py").write_text(SOURCE)
    assert list_docstrings(tmp_path) == [
        Docstring(
            "gateway/pool.py:Pool",
            "class Pool: __init__(self, limit: int) -> None",
            "Keeps connections open. `__init__`: `limit`: most connections.",
        ),
        Docstring(
            "gateway/pool.py:Pool.take", "take(self, origin: str, *, fresh: bool=False) -> int | None", "Return one."
        ),
        Docstring(
            "gateway/pool.py:Plain",
            "class Plain: __init__(self, name: str) -> None",
            "Has an `__init__` without words.",
        ),
        Docstring("gateway/pool.py:Bare", "class Bare", "Has none."),
        Docstring("gateway/pool.py:main", "async main() -> None", "Run."),
    ]


def test_a_commit_draws_the_same_docstrings_and_another_one_others() -> None:
    found = list_docstrings(REPOSITORY)
    assert len(found) > 2000
    drawn = draw_docstrings(found, "5a4486d2f014", 1)
    assert drawn == draw_docstrings(found, "5a4486d2f014", 1)
    assert len(set(drawn)) == DRAWN
    assert drawn != draw_docstrings(found, "5a4486d2f014", 2) != draw_docstrings(found, "08be28a00000", 2)


def test_what_was_filled_in_is_kept_for_the_commit() -> None:
    rows = [("`a.py:f`", "Takes a | b.", "Takes both.", "right"), ("`a.py:g`", "", "", "")]
    page = f"| commit | `abc` |\n\n{Table(READINGS, COLUMNS, rows).to_markdown()}\n\n## Failures\n\n`x`\n"
    cells = read_cells(page, "abc")
    assert cells["a.py:f"] == ("Takes a | b.", "Takes both.", "right")
    assert cells["a.py:g"] == ("", "", "")
    assert read_cells(page, "def") == {}


def test_unread_docstrings_and_too_many_missed_ones_are_failures() -> None:
    right, missed, unread = ("a", "b", "right"), ("a", "b", "missed"), ("", "", "")
    assert judge_readings({"f": right, "g": missed}) == []
    assert judge_readings({"f": right, "g": unread}) == ["1 of 2 docstrings are not judged yet"]
    assert judge_readings({"f": right, "g": ("a", "b", "missed: the unit")}) == []
    assert judge_readings({"f": missed, "g": missed}) == ["2 of 2 docstrings are missed, not 1 at most"]
