"""Files of the state folder that others must not read, and the gateways' token among them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from common.atomic_write import is_open_to_others, narrow_files
from common.shared_token import SharedToken, read_token


def test_files_are_narrowed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    folder = tmp_path / "state"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub").chmod(0o755)
    modes = {"read": 0o644, "written": 0o602, "shared": 0o640, "own": 0o600}
    for name, mode in modes.items():
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    (folder / "link").symlink_to(outside)
    narrow_files(folder)
    found = {name: (folder / name).stat().st_mode & 0o777 for name in modes}
    assert found == {"read": 0o600, "written": 0o600, "shared": 0o640, "own": 0o600}
    assert (folder / "sub").stat().st_mode & 0o777 == 0o755
    assert outside.stat().st_mode & 0o777 == 0o644
    narrow_files(tmp_path / "missing")


def test_a_folder_that_others_may_use(tmp_path: Path) -> None:
    for mode, is_open in ((0o700, False), (0o750, False), (0o701, True), (0o755, True)):
        tmp_path.chmod(mode)
        assert is_open_to_others(tmp_path) is is_open
    assert not is_open_to_others(tmp_path / "missing")


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


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "token"
    assert read_token(path) is None
    first = SharedToken(path, "the gateways' token").ensure_token()
    assert first == read_token(path) == SharedToken(path, "the gateways' token").ensure_token()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["token"]


@pytest.mark.parametrize(("mode", "narrowed"), [(0o644, 0o600), (0o666, 0o600), (0o640, 0o640), (0o600, 0o600)])
def test_a_token_that_every_user_may_read_is_narrowed(mode: int, narrowed: int, tmp_path: Path) -> None:
    """One that its group may read is an operator's own way to share it."""
    path = tmp_path / "token"
    path.write_text("an-operators-own-token\n")
    path.chmod(mode)
    assert SharedToken(path, "the gateways' token").ensure_token() == "an-operators-own-token"
    assert path.stat().st_mode & 0o777 == narrowed


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give files away")
def test_what_root_makes_belongs_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    """So the controller of a compose project makes the token that the gateway, another user, reads."""
    path = tmp_path / "run" / "token"
    path.parent.mkdir()
    os.chown(path.parent, 10001, 10002)
    assert SharedToken(path, "the gateways' token").ensure_token() is not None
    made = path.stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (10001, 10002, 0o600)


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


def test_a_token_that_cannot_be_written_lets_nobody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    token = SharedToken(tmp_path / "file" / "token", "the gateways' token")
    with caplog.at_level(logging.WARNING):
        assert token.ensure_token() is None
        assert not token.matches(b"")
    assert caplog.text.count("the gateways' token cannot be made") == 1
    (tmp_path / "file").unlink()
    assert token.ensure_token() is not None, "there is room now"
