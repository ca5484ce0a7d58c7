"""A request that asks for nothing special enters no code of features."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.trace import trace_chat

pytestmark = pytest.mark.interpreted

FEATURES = ("assistant/", "gateway/sessions", "gateway/exchange/session", "gateway/exchange/progress")


def list_features(way: dict[str, dict[str, None]]) -> list[str]:
    return [path for path in way if path.startswith(FEATURES)]


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"temperature": 0, "max_tokens": 5, "user": "u"}])
async def test_a_plain_chat_enters_no_feature(fields: dict[str, Any]) -> None:
    assert not list_features(await trace_chat(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False},
        {"rag": False},
        {"prompt_cache_key": "k"},
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "aGk="}}]}]},
    ],
)
async def test_one_that_asks_for_a_feature_does(fields: dict[str, Any]) -> None:
    assert list_features(await trace_chat(**fields))
