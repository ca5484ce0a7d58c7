"""What is told of a remote names no secret."""

from __future__ import annotations

import pytest

from gateway.control.remote_prober import hide_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Cannot connect to http://host/v1", "Cannot connect to http://host/v1"),
        ("Cannot connect to http://user:secret@host/v1", "Cannot connect to http://host/v1"),
        ("Cannot connect to http://user:p@ss@host/v1", "Cannot connect to http://host/v1"),
        ("http://a:b@one/x and http://c:d@two/y@z", "http://one/x and http://two/y@z"),
        ("the key token-1 was refused by token-1", "the key *** was refused by ***"),
    ],
)
def test_users_passwords_and_tokens_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text, "token-1") == shown
    assert "token-1" in hide_secrets("the key token-1", "")
