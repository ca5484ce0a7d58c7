"""A name server under a test's control, and connections that are looked at instead of made."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest

PUBLIC = "93.184.216.34"


class Resolver:
    """A name server whose answers change: the n-th question gets the n-th answer, and the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.queries: list[str] = []

    def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.queries.append(host)
        return self.answers[min(len(self.queries), len(self.answers)) - 1]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were connected to. Nobody answers at any."""
    addresses: list[str] = []

    def connect(_self: socket.socket, address: tuple[Any, ...]) -> None:
        addresses.append(str(address[0]))
        raise ConnectionRefusedError(111, "nobody is there")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return addresses
