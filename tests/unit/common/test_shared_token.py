"""The gateways' token: made once, kept, and read anew each time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from common.gateway_token import read_token
from common.shared_token import SharedToken

NO_TOKENS = ("", "\n", "short", "fifteen-chars--", "sixteen chars, no", "ümlaute-ümlaute-ümlaute", "a" * 513)


@pytest.mark.parametrize("text", NO_TOKENS)
def test_what_is_no_token_counts_for_none_and_is_replaced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    assert read_token(path) is None
    token = SharedToken(path, "the gateways' token")
    assert not token.matches(text.encode())
    assert not token.matches(b"")
    made = read_token(path)
    assert made is not None
    assert len(made) >= 43
    assert token.matches(made.encode())


def test_a_token_is_made_once_for_whoever_may_enter_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "run" / "token"
    assert read_token(path) is None
    first = SharedToken(path, "the gateways' token").ensure_token()
    assert first == read_token(path) == SharedToken(path, "the gateways' token").ensure_token()
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_a_file_that_is_replaced_or_gone_is_in_force_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = SharedToken(path, "the gateways' token")
    first = token.ensure_token()
    assert first is not None
    path.write_text("an-operators-own-token\n")
    assert token.matches(b"an-operators-own-token")
    assert not token.matches(first.encode())
    path.unlink()
    assert not token.matches(b"an-operators-own-token")
    assert token.ensure_token() not in (None, first)


def test_a_token_that_cannot_be_written_lets_nobody_in_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    token = SharedToken(tmp_path / "file" / "token", "the gateways' token")
    with caplog.at_level(logging.WARNING):
        assert token.ensure_token() is None
        assert not token.matches(b"")
    assert caplog.text.count("the gateways' token cannot be made") == 1
    (tmp_path / "file").unlink()
    assert token.ensure_token() is not None, "there is room now"
