"""Token counts, as the families write them and as engines get them wrong."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.usage import UsageTally, usage_of

COUNTS = {"prompt_tokens": 7, "completion_tokens": 3}
NO_OBJECTS: list[Any] = [None, 7, "7", [7], True]


@pytest.mark.parametrize("value", NO_OBJECTS)
def test_what_is_no_object_tells_no_usage(value: Any) -> None:
    assert usage_of(value) is None


@pytest.mark.parametrize("value", NO_OBJECTS)
def test_an_event_that_tells_no_usage_changes_none(value: Any) -> None:
    tally, told = UsageTally(), []
    for before in (None, COUNTS, COUNTS | {"completion_tokens": 4}):
        tally.note_usage(before, [])
        tally.note_usage(value, [])
        tally.note_usage(value, [{"finish_reason": "stop"}])
        told.append(tally.usage)
    assert told == [None, Usage(7, 3), Usage(7, 7)], "llama-server tells it of each choice"
