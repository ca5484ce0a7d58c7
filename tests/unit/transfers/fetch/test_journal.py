"""The journal beside a partial file, and the ranges that are left to fetch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from transfers.fetch import FetchJournal, plan_segments


def test_what_was_noted_is_read_again(tmp_path: Path) -> None:
    journal = FetchJournal(tmp_path / "journal")
    assert journal.read("100 hash", 100) == []
    journal.begin("100 hash")
    journal.add((0, 10))
    journal.add((90, 100))
    assert FetchJournal(tmp_path / "journal").read("100 hash", 100) == [(0, 10), (90, 100)]
    journal.begin("100 hash")
    assert journal.read("100 hash", 100) == []
    journal.remove()
    journal.remove()
    assert not (tmp_path / "journal").exists()


def test_a_journal_of_other_content_says_nothing(tmp_path: Path) -> None:
    journal = FetchJournal(tmp_path / "journal")
    journal.begin("100 hash")
    journal.add((0, 10))
    assert journal.read("100 other", 100) == []
    assert journal.read("100 has", 100) == []


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_a_kill_cut_off_is_left_out_and_harms_no_other(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FetchJournal(path)
    journal.begin("100 hash")
    whole = len(path.read_bytes())
    journal.add((10, 20))
    with path.open("r+b") as file:
        file.truncate(max(whole, len(path.read_bytes()) - cut))
    journal.add((30, 40))
    found = journal.read("100 hash", 100)
    assert found[-1] == (30, 40)
    assert set(found) <= {(10, 20), (30, 40)}


@pytest.mark.parametrize("line", ["5 5", "6 5", "0 101", "-1 5", "1", "1 2 3", "a b", "1 ٣", "0 " + "9" * 30])
def test_a_line_that_is_no_range_of_the_file_is_left_out(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text(f"100 hash\n\n{line}\n\n7 9\n")
    assert FetchJournal(path).read("100 hash", 100) == [(7, 9)]


def test_the_segments_are_what_is_missing_and_nothing_twice() -> None:
    chance = random.Random(4)
    for _ in range(200):
        size, length = chance.randrange(60), chance.randrange(1, 20)
        ends = [sorted((chance.randrange(size + 1), chance.randrange(size + 1))) for _ in range(chance.randrange(5))]
        done = [(start, end) for start, end in ends if start < end]
        planned = plan_segments(size, done, length)
        here = {each for start, end in done for each in range(start, end)}
        asked = [each for start, end in planned for each in range(start, end)]
        assert asked == [each for each in range(size) if each not in here]
        assert all(0 < end - start <= length for start, end in planned)
