"""The campaign of the goldens, of one subject; `make campaign ARGS=goldens` changes all of them."""

from __future__ import annotations

import pytest

from tests.campaigns.campaign_goldens import files_with, scratch_copy, try_change
from tests.campaigns.golden_changes import CHANGES, Change
from tests.campaigns.record import REPOSITORY
from tests.support.goldens.catalog import GOLDENS


def test_each_golden_has_a_change() -> None:
    changed = {change.golden for change in CHANGES if change.subject != "state-folders"}
    assert changed == {str(golden) for golden in GOLDENS}
    assert {change.subject for change in CHANGES} >= {"state-folders"}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.golden}: {change.what}")
def test_the_text_of_a_change_is_there_once(change: Change) -> None:
    assert len(files_with(REPOSITORY, change)) == 1


@pytest.mark.slow
def test_a_golden_fails_where_its_subject_changes() -> None:
    [change] = [change for change in CHANGES if change.subject == "errors"]
    harmless = Change(change.golden, "nothing", change.find, change.find)
    with scratch_copy() as copy:
        assert try_change(copy, change) == (["test_golden[errors/codes]"], None)
        assert try_change(copy, harmless) == ([], "errors/codes does not fail")
