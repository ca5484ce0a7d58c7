"""What is said about a start before an engine is asked."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.require import require
from worker.errors import LoadError, PortTakenError
from worker.preflight import check_gguf, open_listener, port_number


@pytest.mark.parametrize(("content", "message"), [(b"hello", "b'hell'"), (b"", "b''"), (b"GGU", "b'GGU'")])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=f"is not a GGUF file: it begins with {message}"):
        check_gguf(path)
    with pytest.raises(LoadError, match=f"^cannot open {tmp_path}/none: No such file or directory$"):
        check_gguf(tmp_path / "none")
    with pytest.raises(LoadError, match="Is a directory"):
        check_gguf(tmp_path)


def test_addresses_that_cannot_be_listened_on_are_named() -> None:
    with pytest.raises(LoadError, match=r"cannot listen on 192\.0\.2\.1:8080: Cannot assign requested address$"):
        open_listener("192.0.2.1", 8080)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1 is taken"):
            open_listener("127.0.0.1", port)


def test_ipv6_where_the_host_says_so() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        require("ipv6", False, f"no IPv6 loopback on this machine: {error}")
    with open_listener("::1", free_port()) as listener:
        assert listener.family == socket.AF_INET6


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "", "8080.0", "²"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(ValueError, match="a number from 1 to 65535"):
        port_number(text)
