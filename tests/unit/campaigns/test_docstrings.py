"""The draw of docstrings: which are public, that a commit draws the same ones, and that a reader's words are kept."""

from __future__ import annotations

from pathlib import Path

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
from tests.campaigns.record import REPOSITORY, Table

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
