"""A fake of a phone's server for Android's AICore: the protocol that its HTTP API documents, over one made-up model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from tests.fakes.served_app import served_app

MODEL: Final = "gemini-nano-aicore"
KEY: Final = "llm-key"
WORDS: Final = ("Hi", "!", " How", " can", " I", " help?")
_LABELS: Final = {3: "available", 2: "downloadable", 1: "downloading", 0: "unavailable"}
_FAILURES: Final = {
    2: (503, "AICORE_DOWNLOADABLE", "Gemini Nano can be downloaded."),
    1: (425, "AICORE_DOWNLOADING", "Gemini Nano is downloading on this device."),
    0: (503, "AICORE_UNAVAILABLE", "Gemini Nano is not available on this device."),
}


@dataclass
class FakePhone:
    url: str = ""
    """Of its OpenAI API, with `/v1`."""
    code: int = 3
    """AICore's status."""
    is_backgrounded: bool = False
    is_broken: bool = False
    """Its SDK throws, so that there is no status."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and query, and body, of each request but probes of its health."""

    @web.middleware
    async def check_key(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer 401 without the key, but at `/health`."""
        if request.path != "/health" and request.headers.get("authorization") != f"Bearer {KEY}":
            error = {"message": "Missing or invalid bearer token", "type": "auth", "code": 401}
            return web.json_response({"error": error}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def list_models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 1778610090, "owned_by": "google-aicore"}
        return web.json_response({"object": "list", "data": [model]})

    async def tell_status(self, request: web.Request) -> web.Response:
        """Answer `/v1/aicore/status`."""
        self.requests.append((request.path_qs, {}))
        if self.is_broken:
            error = {"message": "The service is not installed", "type": "server_error", "code": 500}
            return web.json_response({"error": error}, status=500)
        status: dict[str, Any] = {
            "model_id": MODEL,
            "status_code": self.code,
            "status": _LABELS[self.code],
            "available": self.code == 3,
            "soc_model": "Tensor G5",
            "device": "frankel",
            "manufacturer": "Google",
        }
        if request.query.get("probe") == "all":
            status["probes"] = [{"release_stage": "PREVIEW", "preference": "FAST", "status_code": 3}]
        return web.json_response(status)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat completion."""
        body = await request.json()
        self.requests.append((request.path_qs, body))
        if self.is_backgrounded:
            return _refuse(403, "AICORE_BACKGROUND_BLOCKED", "The app was backgrounded (ErrorCode 30).", "available")
        if self.code != 3:
            status, code, message = _FAILURES[self.code]
            return _refuse(status, code, message, _LABELS[self.code])
        base = {"id": "chatcmpl-1", "created": 1778611764, "model": MODEL}
        if not body.get("stream"):
            reply = {"role": "assistant", "content": "".join(WORDS)}
            choice = {"index": 0, "message": reply, "finish_reason": "stop"}
            return web.json_response({**base, "object": "chat.completion", "choices": [choice]})
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        deltas: list[dict[str, Any]] = [{"role": "assistant"}, *({"content": word} for word in WORDS), {}]
        for delta in deltas:
            choice = {"delta": delta, "index": 0} | ({} if delta else {"finish_reason": "stop"})
            chunk = {**base, "object": "chat.completion.chunk", "choices": [choice]}
            await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer


def _refuse(status: int, code: str, message: str, aicore_status: str) -> web.Response:
    error = {
        "message": message,
        "type": "aicore_unavailable",
        "code": code,
        "aicore_status": aicore_status,
        "actionable": True,
        "next_steps": ["Wait for status: Available", "Retry"],
    }
    return web.json_response({"error": error}, status=status)


@asynccontextmanager
async def fake_phone() -> AsyncIterator[FakePhone]:
    """Run one on a free port."""
    fake = FakePhone()
    app = web.Application(middlewares=[fake.check_key])
    app.router.add_get("/v1/models", fake.list_models)
    app.router.add_get("/v1/aicore/status", fake.tell_status)
    app.router.add_post("/v1/chat/completions", fake.complete)
    async with served_app(app) as url:
        fake.url = f"{url}/v1"
        yield fake
