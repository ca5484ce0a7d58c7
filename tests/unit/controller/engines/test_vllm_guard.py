"""Who gets past the guard of a vLLM that can sleep, and what others are told."""

from __future__ import annotations

from typing import Any

import pytest

from controller.engines.vllm_guard import Message, RouteGuard

KEY = "replica-key"
RIGHT = (b"authorization", b"Bearer " + KEY.encode())
WRONG = (b"authorization", b"Bearer replica-kez")
REFUSED = [
    {"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]},
    {"type": "http.response.body", "body": b""},
]
ENTERED = [{"type": "entered"}]


async def _answers(scope: dict[str, Any]) -> list[Message]:
    """What is sent to a request: by the guard, or `ENTERED` by the application behind it."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("the guard reads no body")

    async def application(seen: Message, receives: Any, sends: Any) -> None:
        assert (seen, receives, sends) == (scope, receive, send), "what enters is passed on as it came"
        await sends({"type": "entered"})

    await RouteGuard(application)(scope, receive, send)
    return sent


def _request(path: str, *headers: tuple[bytes, bytes], method: str = "GET") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": [(b"host", b"x"), *headers]}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)


@pytest.mark.parametrize("path", ["/sleep", "/v1/completions", "/health", "/"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_who_has_the_key_gets_everywhere(path: str, method: str) -> None:
    assert await _answers(_request(path, RIGHT, method=method)) == ENTERED


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_health_and_metrics_are_read_without_a_key_and_not_more(path: str) -> None:
    assert await _answers(_request(path)) == ENTERED
    assert await _answers(_request(path, WRONG)) == ENTERED
    for method in ("POST", "HEAD", "OPTIONS", "get"):
        assert await _answers(_request(path, method=method)) == REFUSED, method


@pytest.mark.parametrize(
    "path",
    [
        *("/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/v1/models", "/", ""),
        *("//health", "/health/", "/HEALTH", "/health/../sleep", "/health;x", "/health\x00", "health", "/v1/health"),
    ],
)
async def test_without_a_key_nothing_else_is_read(path: str) -> None:
    assert await _answers(_request(path)) == REFUSED


@pytest.mark.parametrize(
    "headers",
    [
        [WRONG],
        [(b"authorization", b"")],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"bearer " + KEY.encode())],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", b"Bearer " + KEY.encode() + b" ")],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"x-api-key", KEY.encode())],
        [RIGHT, RIGHT],
        [WRONG, RIGHT],
        [RIGHT, WRONG],
    ],
)
async def test_any_other_credentials_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    assert await _answers(_request("/sleep", *headers, method="POST")) == REFUSED


@pytest.mark.parametrize("own", [None, ""])
async def test_without_a_key_of_its_own_nobody_gets_in(monkeypatch: pytest.MonkeyPatch, own: str | None) -> None:
    monkeypatch.delenv("VLLM_API_KEY") if own is None else monkeypatch.setenv("VLLM_API_KEY", own)
    for header in (RIGHT, (b"authorization", b"Bearer "), (b"authorization", b"Bearer")):
        assert await _answers(_request("/sleep", header, method="POST")) == REFUSED
    assert await _answers(_request("/health")) == ENTERED


async def test_websockets_need_the_key_and_the_server_s_own_start_and_end_do_not() -> None:
    for path in ("/v1/realtime", "/health"):
        socket: dict[str, Any] = {"type": "websocket", "path": path, "headers": []}
        assert await _answers(socket) == [{"type": "websocket.close", "code": 1008}]
        assert await _answers(socket | {"headers": [RIGHT]}) == ENTERED
    assert await _answers({"type": "lifespan"}) == ENTERED
