"""A proxy before an engine that remembers what was asked of it, and what came of that."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests.fakes.served_app import served_app

_PROMPT_TOKENS = re.compile(rb'"prompt_tokens":(\d+)')
_KEPT_BYTES = 4096


@dataclass(slots=True)
class RecordedCall:
    """One request that reached the engine."""

    path: str
    fields: dict[str, Any]
    status: int = 0
    """0: it has not been answered."""
    prompt_tokens: int | None = None
    """As the engine counted them."""
    beginning: str = ""
    """Of the answer."""
    seconds: float = 0.0

    @property
    def is_overflow(self) -> bool:
        """The engine refused its prompt as too long."""
        return "exceed_context_size_error" in self.beginning


@dataclass
class EngineRecorder:
    """Passes everything on, and keeps it."""

    upstream: str
    calls: list[RecordedCall] = field(default_factory=list)
    url: str = ""
    on_call: Callable[[RecordedCall], None] = lambda _: None
    """Told of each before it is passed on."""
    _session: aiohttp.ClientSession | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        body = await request.read()
        call = RecordedCall(request.path, _object_of(body))
        self.calls.append(call)
        self.on_call(call)
        began = time.monotonic()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "connection")}
        async with self._session.request(
            request.method, self.upstream + request.path_qs, data=body, headers=headers
        ) as answer:
            call.status = answer.status
            content_type = answer.headers.get("content-type", "application/json")
            response = web.StreamResponse(status=answer.status, headers={"content-type": content_type})
            await response.prepare(request)
            async for part in answer.content.iter_any():
                call.beginning += part[: _KEPT_BYTES - len(call.beginning)].decode(errors="replace")
                if found := _PROMPT_TOKENS.findall(part):
                    call.prompt_tokens = int(found[-1])
                await response.write(part)
            await response.write_eof()
        call.seconds = time.monotonic() - began
        return response


@contextlib.asynccontextmanager
async def recording(upstream: str) -> AsyncIterator[EngineRecorder]:
    """One that listens, before the engine at `upstream`."""
    recorder = EngineRecorder(upstream)
    app = web.Application(client_max_size=2**28)
    app.router.add_route("*", "/{path:.*}", recorder.serve)
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as recorder._session,
        served_app(app, shutdown_s=0.1) as recorder.url,
    ):
        yield recorder


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
