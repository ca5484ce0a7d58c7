"""Which session a request belongs to, and its key."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.responses.context import ResponseContext
from gateway.sessions.session_name import derive_session_key, find_session_name


def context_of(**fields: Any) -> ResponseContext:
    """A response's context."""
    return ResponseContext(id="resp_1", created_at=0, clock=lambda: 0.0, new_id=lambda kind: kind, **fields)


CHAIN = context_of(history=({"id": "msg_1"}, {"id": "msg_2"}))


@pytest.mark.parametrize(
    ("fields", "headers", "context", "name"),
    [
        ({}, [], None, None),
        ({"session_id": ""}, [], None, None),
        ({"session_id": None}, [], None, None),
        ({"session_id": "a"}, [(b"x-conversation-id", b"b")], None, "a"),
        ({"session_id": "", "prompt_cache_key": "k"}, [], None, "k"),
        ({"prompt_cache_key": "k"}, [(b"x-conversation-id", b"b::some/model")], None, "b"),
        ({"prompt_cache_key": "k"}, [(b"x-conversation-id", b"::m")], None, "k"),
        ({"prompt_cache_key": 7}, [], None, None),
        ({"prompt_cache_key": "k"}, [], context_of(conversation_id="conv_1"), "conv_1"),
        ({"prompt_cache_key": "k"}, [], CHAIN, "msg_1"),
        ({}, [], context_of(), None),
    ],
)
def test_the_first_name_that_is_there(
    fields: dict[str, Any], headers: list[tuple[bytes, bytes]], context: ResponseContext | None, name: str | None
) -> None:
    assert find_session_name(fields, headers, context) == name


def test_a_session_id_is_a_string() -> None:
    with pytest.raises(RoundhouseError) as caught:
        find_session_name({"session_id": 7}, [], None)
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "session_id")


def test_a_key_is_its_tenants_and_its_models() -> None:
    keys = {
        derive_session_key(*names) for names in [("a", "m", "s"), ("b", "m", "s"), ("a", "n", "s"), ("am", "", "s")]
    }
    assert len(keys) == 4
    assert {len(key) for key in keys} == {16}
    assert derive_session_key("a", "m", "s").hex() == "f42fd165b7f88b068d85ff9e6daee892"
    assert derive_session_key("a", "m", "\ud800") != derive_session_key("a", "m", "?")
