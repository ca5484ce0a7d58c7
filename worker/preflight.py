"""Checks before an engine starts, with plain messages where engines' own are terse."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from worker.errors import LoadError, PortTakenError

KV_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""The types that llama.cpp allows for its KV cache (`kv_cache_types` in common/arg.cpp)."""

GGUF_MAGIC = b"GGUF"
LAST_PORT = 65535
TOKEN_ENV = "ROUNDHOUSE_ENGINE_TOKEN"  # noqa: S105 - the variable's name, not its value


def read_token() -> str | None:
    """Return the bearer token that clients of the replica send, from the variable ROUNDHOUSE_ENGINE_TOKEN; None: it is
    not set, and none is required. Raises LoadError for an empty one."""
    token = os.environ.get(TOKEN_ENV)
    if token == "":
        raise LoadError(f"{TOKEN_ENV} is set and empty: set a token, or unset it to serve without one")
    return token


def port_number(text: str) -> int:
    """Return the TCP port that a text states in decimal digits. Raises ValueError for anything else, and for 0 and
    above LAST_PORT."""
    if text.isascii() and text.isdigit() and 0 < int(text) <= LAST_PORT:
        return int(text)
    raise ValueError(f"a port is a number from 1 to {LAST_PORT}")


def check_file(path: Path) -> None:
    """Check that the file can be opened for reading. Raises LoadError with the reason, also for a folder. Blocks."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise LoadError(f"cannot open {path}: {error.strerror}") from None


def check_gguf(path: Path) -> None:
    """Check that the file can be read and begins with GGUF's magic bytes; nothing behind them is checked. Raises
    LoadError with the reason. Blocks."""
    check_file(path)
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise LoadError(f"{path} is not a GGUF file: it begins with {magic!r}, not {GGUF_MAGIC!r}")


def open_listener(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on the first address of `host`; the caller closes it. Blocks for the look-up of
    a name.

    Raises PortTakenError if the port is in use, LoadError if the address cannot be used for another reason.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(
                f"port {port} on {host} is taken: stop what listens there, or choose another"
            ) from None
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise LoadError(f"cannot listen on {host}:{port}: {reason}") from None
