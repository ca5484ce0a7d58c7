"""A client that reads slowly slows the round down that is under way, and the next one too."""

from __future__ import annotations

from typing import Any

from gateway.exchange.round_client import RoundClient


class Recorder:
    """In the place of a handler, and of the client's exchange."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.client: Any = self
        self.handler: Any = self

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)


def test_the_pace_of_the_client_is_the_rounds() -> None:
    exchange, first, second = Recorder(), Recorder(), Recorder()
    client = RoundClient(exchange)  # type: ignore[arg-type]
    client.follow_client()
    assert exchange.handler is client
    client.begin_round(first)
    client.slow_round()
    assert first.told == []
    client.client_full()
    client.end_round(first)
    client.client_full()
    client.begin_round(second)
    client.slow_round()
    client.client_ready()
    client.slow_round()
    assert (first.told, second.told) == (["client_full"], ["client_full", "client_ready"])
    client.client_gone()
    assert exchange.told == ["client_gone"]
    client.let_go()
    assert exchange.handler is None


def test_another_handler_of_the_call_stays() -> None:
    exchange = Recorder()
    exchange.handler = other = object()
    client = RoundClient(exchange)  # type: ignore[arg-type]
    client.follow_client()
    client.let_go()
    assert exchange.handler is other
