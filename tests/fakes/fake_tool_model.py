"""A fake: an engine of chat completions whose model says and calls what a test decides, on a real socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.served_app import served_app

Fields = dict[str, Any]


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Any = field(default_factory=dict)
    """As JSON; a string goes out as it is."""

    @property
    def text(self) -> str:
        """The arguments as the engine sends them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Move:
    """What the model does in one request: think, say and call."""

    text: str = ""
    calls: Sequence[Call] = ()
    thought: str = ""
    finish: str | None = None
    """None: `tool_calls` after calls, else `stop`."""
    tokens: int = 5
    error: str | None = None
    """The engine's error in the place of an answer."""
    holds: bool = False
    """The answer waits, after its first words, for `ToolModel.release`."""
    mark: str = ""
    """What the ids of the answer and of its calls begin with: some clients take two answers of one id for one."""
    breaks: bool = False
    """The connection breaks after the first words."""


@dataclass
class ToolModel:
    """The engine: `decide` makes the move for each request. Its prompts have 10 tokens each."""

    decide: Callable[[Fields], Move]
    requests: list[Fields] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one chat completion, streamed or whole."""
        body = await request.json()
        self.requests.append(body)
        move = self.decide(body)
        if move.error is not None:
            return web.json_response({"error": {"message": move.error, "type": "x", "code": 400}}, status=400)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if not body.get("stream"):
                return web.json_response(_whole(move))
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for event in _events(move):
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                if move.breaks:
                    assert request.transport is not None
                    request.transport.abort()
                    break
                if move.holds:
                    await self.release.wait()
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return response


@asynccontextmanager
async def tool_model(*moves: Move, decide: Callable[[Fields], Move] | None = None) -> AsyncIterator[ToolModel]:
    """An engine whose model makes these moves, one a request and the last for ever, or what `decide` says."""
    left = list(moves)
    async with served_model(ToolModel(decide or (lambda _: left.pop(0) if len(left) > 1 else left[0]))) as model:
        yield model


@asynccontextmanager
async def served_model(model: ToolModel) -> AsyncIterator[ToolModel]:
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", model.answer)
    app.router.add_get("/v1/models", _answer_health)
    async with served_app(app) as model.url:
        try:
            yield model
        finally:
            model.release.set()


async def _answer_health(_: web.Request) -> web.Response:
    """Answer that the engine is healthy, where it is declared as a remote."""
    return web.json_response({"object": "list", "data": []})


def _usage(move: Move) -> Fields:
    return {"prompt_tokens": 10, "completion_tokens": move.tokens, "total_tokens": 10 + move.tokens}


def _finish(move: Move) -> str:
    return move.finish or ("tool_calls" if move.calls else "stop")


def _whole(move: Move) -> Fields:
    calls = [
        {"id": f"{move.mark}c{n}", "type": "function", "function": {"name": call.name, "arguments": call.text}}
        for n, call in enumerate(move.calls)
    ]
    message = {"role": "assistant", "content": move.text, **({"tool_calls": calls} if calls else {})}
    return {
        "id": f"{move.mark}x",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(move)}],
        "usage": _usage(move),
    }


def _events(move: Move) -> list[Fields]:
    deltas: list[Fields] = [{"reasoning_content": move.thought}] if move.thought else []
    deltas += [{"content": word} for word in re.findall(r"\S+\s*", move.text)]
    for number, call in enumerate(move.calls):
        half = len(call.text) // 2
        named = {"name": call.name, "arguments": call.text[:half]}
        deltas.append(
            {"tool_calls": [{"index": number, "id": f"{move.mark}c{number}", "type": "function", "function": named}]}
        )
        deltas.append({"tool_calls": [{"index": number, "function": {"arguments": call.text[half:]}}]})
    own_id = f"{move.mark}x"
    chunks = [{"id": own_id, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"id": own_id, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(move)}]}
    return [*chunks, end, {"id": own_id, "choices": [], "usage": _usage(move)}]
