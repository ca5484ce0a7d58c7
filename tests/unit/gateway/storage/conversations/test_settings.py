"""Settings of conversations, which the gateway keeps without looking into them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.storage.conversations.settings import MOST_BYTES, read_settings


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("settings", [{}, {"a": [1, None, "ü", {"b": 2**70}]}, {"half": "\ud800"}, nested(300)])
def test_any_object_is_kept(settings: dict[str, Any]) -> None:
    encoded = read_settings({"settings": settings})
    assert encoded is not None
    assert json.loads(encoded) == settings


@pytest.mark.parametrize("fields", [{}, {"settings": None}])
def test_there_may_be_none(fields: dict[str, Any]) -> None:
    assert read_settings(fields) is None


@pytest.mark.parametrize("settings", [[], "x", 1, {"a": "ü" * (MOST_BYTES // 2)}, nested(100_000)])
def test_what_cannot_be_kept_is_refused(settings: Any) -> None:
    with pytest.raises(RoundhouseError) as caught:
        read_settings({"settings": settings})
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "settings")


def test_bytes_are_counted() -> None:
    fits = {"a": "ü" * ((MOST_BYTES - len('{"a":""}')) // 2)}
    assert len(read_settings({"settings": fits}) or b"") == MOST_BYTES
