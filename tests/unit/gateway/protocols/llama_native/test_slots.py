"""What POST /slots/{id} may ask for: an action, and a file by a plain name."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import parse_native
from gateway.protocols.llama_native import SLOTS
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of


def _check(query: bytes, body: bytes) -> None:
    SLOTS.check_request(parse_native(body, query, "/slots/0", "m", body="any"), route("m"))


def _refused_param(query: bytes, body: bytes) -> str | None:
    error = error_of(lambda: _check(query, body))
    assert error.entry.code == "invalid_request"
    return error.param


@pytest.mark.parametrize("action", [b"save", b"restore"])
def test_a_plain_name_is_needed_to_save_and_to_restore_alone(action: bytes) -> None:
    for name in ("a", "talk.bin", "0_x-Y.9..z", "x" * 200):
        _check(b"model=m&action=" + action, json_bytes({"filename": name}))
    for body in (b"{}", b"[]", b"3"):
        assert _refused_param(b"action=" + action, body) == "filename"
        _check(b"action=erase", body)


@pytest.mark.parametrize(
    "query", [b"", b"model=m", b"action=", b"action=eat", b"action=SAVE", b"action=erase&action=x", b"action=save%00"]
)
def test_another_action_is_refused(query: bytes) -> None:
    assert _refused_param(query, json_bytes({"filename": "a"})) == "action"


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".hidden", "-x", "a/b", "../a", "/etc/passwd", "a\\b", "a\x00b", "a\nb", "a\n", "ä", "a b"),
        *("C:a", "%2e%2e", "x" * 201, None, 3, ["a"], {"a": "b"}, True),
    ],
)
def test_what_is_no_plain_name_is_refused(name: Any) -> None:
    for action in (b"save", b"restore"):
        assert _refused_param(b"action=" + action, json_bytes({"filename": name})) == "filename"
    _check(b"action=erase", json_bytes({"filename": name}))
