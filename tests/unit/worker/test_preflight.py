"""What is said about a start before an engine is asked."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.require import require
from worker.errors import LoadError, PortTakenError
from worker.preflight import check_gguf, open_listener, port_number


def ipv6_loopback() -> tuple[bool, str]:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        return False, f"no IPv6 loopback on this machine: {error}"
    return True, ""


@pytest.mark.parametrize(("content", "message"), [(b"hello", "b'hell'"), (b"", "b''"), (b"GGU", "b'GGU'")])
def test_a_file_that_is_no_gguf(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=f"is not a GGUF file: it begins with {message}"):
        check_gguf(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError) as raised:
        check_gguf(tmp_path / "m.gguf")
    assert str(raised.value) == f"cannot open {tmp_path / 'm.gguf'}: No such file or directory"


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="Is a directory"):
        check_gguf(tmp_path)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1 is taken"):
            open_listener("127.0.0.1", port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(LoadError, match=r"cannot listen on 192\.0\.2\.1:8080: Cannot assign requested address$"):
        open_listener("192.0.2.1", 8080)


def test_ipv6_where_the_host_says_so() -> None:
    available, reason = ipv6_loopback()
    require("ipv6", available, reason)
    with open_listener("::1", free_port()) as listener:
        assert listener.family == socket.AF_INET6


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "", "8080.0", "²"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(ValueError, match="a number from 1 to 65535"):
        port_number(text)
