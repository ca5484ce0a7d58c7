"""Addresses that controllers listen on and are asked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.program_address import ProgramAddress, split_listen_address


def test_what_is_listened_on_in_parts() -> None:
    assert split_listen_address("unix:a:b") == Path("a:b")
    assert split_listen_address("[::1]:80") == ("::1", 80)
    with pytest.raises(ValueError, match="must be"):
        split_listen_address("::1")
    with pytest.raises(ValueError, match="names no path"):
        split_listen_address("unix:")


def test_where_a_controller_is_asked() -> None:
    assert ProgramAddress.parse("http://c:1/") == ProgramAddress("http://c:1")
    assert ProgramAddress.parse("unix:/run/c.sock") == ProgramAddress("http://socket", "/run/c.sock")


@pytest.mark.parametrize("url", ["controller:8081", "http://", "http:///", "http:c:1", "unix:", "ftp://x", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="unix:/path"):
        ProgramAddress.parse(url)


def test_the_token_is_read_each_time_and_shown_on_ports_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    port = ProgramAddress.parse("http://c:1", file)
    assert port.read_headers() == ProgramAddress.parse("http://c:1").read_headers() == {}
    for token in ("first-" * 8, "second-" * 8):
        file.write_text(token + "\n")
        assert port.read_headers() == {"x-roundhouse-gateway-token": token}
    assert ProgramAddress.parse("unix:/run/c.sock", file).read_headers() == {}
