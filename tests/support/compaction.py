"""Contexts that fill up, at a real engine: what coding agents ask before and do about it, and what packages of others
raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from contract.routing import ModelRoute
from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.fakes.served_app import served_app
from tests.support import installed_engines, overflow_probe
from tests.support.agent_programs import (
    DONE,
    MODEL,
    SUMMARY,
    AgentHome,
    AgentRun,
    CodingAgent,
    make_agent_model,
    run_agent,
)
from tests.support.foreign_clients import ForeignClients
from tests.support.worker_process import Worker
from worker.clockwork import CONTEXT, SPECIAL, make_model

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


TOKEN: Final = "replica-token"
CHAT: Final = "/v1/chat/completions"
_SMALL_CONTEXT: Final = 4096
_FILLS: Final = 3
"""Results of the tool that fill the context from the first request on, or a little more."""
_LONGEST_RESULT: Final = 25_000
"""Bytes; of longer ones agents show the model a part."""
_NOTE: Final = "note {} of the project says little\n"
_TOLD: Final = re.compile(
    r'"(?:message|error|result)": ?"([^"]*(?:context|compact|too long|window)[^"]*)"', re.IGNORECASE
)
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class CompactionRun:
    agent: CodingAgent
    is_told: bool
    """It was told how much context its model has."""
    first_tokens: int
    """Of its first request with tools, as the engine's `/tokenize` counts what its `/apply-template` makes of it."""
    context: int
    calls: tuple[RecordedCall, ...]
    """What reached the engine."""
    run: AgentRun

    @property
    def overflows(self) -> int:
        """Requests that the engine refused as too long."""
        return sum(call.is_overflow for call in self.calls)

    @property
    def summaries(self) -> int:
        """Times that the agent had its conversation summed up."""
        return sum(SUMMARY in call.beginning and _holds_notes(call) for call in self.calls)

    @property
    def has_gone_on(self) -> bool:
        """It went on from its summary to the end of its task."""
        return self.summaries > 0 and DONE in self.run.output

    @property
    def tokens(self) -> list[int]:
        """Of the prompts that were answered, in their order."""
        return [call.prompt_tokens for call in self.calls if call.path == CHAT and call.prompt_tokens is not None]

    @property
    def end(self) -> str:
        if self.has_gone_on:
            return "compacts and goes on to the end of its task"
        counts = _TOLD.findall(self.run.output)
        words = f", saying: {counts[-1][:_SHOWN]}" if counts else ""
        if self.run.code is None:
            return f"had not ended when its time was over{words}"
        return f"ends with code {self.run.code}{words}"


async def count_first_request(agent: CodingAgent, clients: ForeignClients, folder: Path) -> int:
    """Tokens of what the agent sends first to its model with tools."""
    ends = asyncio.Event()

    def note_call(call: RecordedCall) -> None:
        if call.fields.get("tools"):
            ends.set()

    folder.mkdir()
    async with _served_agent(agent, folder, _SMALL_CONTEXT) as (worker, recorder, url):
        recorder.on_call = note_call
        home = AgentHome(folder / "agent", url, None, _NOTE)
        await run_agent(agent, clients, home, ends=ends, seconds=120)
        [call, *_] = [call for call in recorder.calls if call.fields.get("tools")]
        return await asyncio.to_thread(_count_tokens, worker, call.fields)


def _count_tokens(worker: Worker, fields: dict[str, Any]) -> int:
    body = {"messages": fields["messages"], "tools": fields["tools"]}
    prompt = json.loads(worker.request("POST", "/apply-template", body)[1])["prompt"]
    content = {"content": prompt, "add_special": True, "parse_special": True}
    return len(json.loads(worker.request("POST", "/tokenize", content)[1])["tokens"])


async def play_compaction(
    agent: CodingAgent, clients: ForeignClients, folder: Path, first_tokens: int, *, is_told: bool, seconds: float
) -> CompactionRun:
    """Let the agent work with a model of twice its first request's tokens, for so long at most."""
    context = 2 * first_tokens
    result_bytes = min(first_tokens // _FILLS, _LONGEST_RESULT)
    notes = "".join(_NOTE.format(number) for number in range(result_bytes // len(_NOTE)))
    folder.mkdir()
    async with _served_agent(agent, folder, context) as (_, recorder, url):
        home = AgentHome(folder / "agent", url, context if is_told else None, notes)
        run = await run_agent(agent, clients, home, ends=asyncio.Event(), seconds=seconds)
    return CompactionRun(agent, is_told, first_tokens, context, tuple(recorder.calls), run)


@asynccontextmanager
async def _served_agent(
    agent: CodingAgent, folder: Path, context: int
) -> AsyncIterator[tuple[Worker, EngineRecorder, str]]:
    """A real llama-server with the agent's model, what is asked of it, and the address of a gateway before it."""
    make_agent_model(folder / "agent.gguf", agent.call, context)
    flags = ("--ctx-size", str(context), "--threads", "2")
    with installed_engines.started("binary", folder, MODEL, folder / "agent.gguf", *flags, token=TOKEN) as worker:
        worker.ready()
        async with (
            recording(f"http://127.0.0.1:{worker.port}") as recorder,
            gateway_harness(request_timeout_s=3600) as gateway,
        ):
            await gateway.publish(route_to(MODEL, recorder.url, context))
            yield worker, recorder, gateway.url


def route_to(name: str, url: str, context: int) -> ModelRoute:
    """The table's entry of a model that a llama-server at `url` serves."""
    engine = ENGINES["llama_server"]
    definition = engine.definition.model_validate({"backend": "llama_server", "model_path": "m.gguf"})
    model = route(
        name,
        [url],
        token=TOKEN,
        served_name=f"inner-{name}",
        apis=engine.list_apis(definition),
        capabilities=engine.derive_capabilities(definition),
        target_inflight=engine.target_inflight(definition),
        context_length=context,
    )
    return model.model_copy(update={"backend": "llama_server", "notices_leaving": engine.notices_leaving})


def _holds_notes(call: RecordedCall) -> bool:
    return _NOTE.format(0).strip() in json.dumps(call.fields.get("messages"))


_PLAIN: Final = "plain"
EXPECTED: Final = {"LangChain": "ContextOverflowError", "litellm": "ContextWindowExceededError"}
"""By the first word of a way of asking."""
REFUSERS: Final = {"the engine": 2 * CONTEXT, "the gateway": 2 * CONTEXT * max(map(len, SPECIAL))}
"""Who refuses prompts of so many letters."""


async def probe_packages(clients: ForeignClients, folder: Path) -> Mapping[str, Mapping[str, str]]:
    """Who refuses, to the way of asking, to the names of the exception's classes."""
    folder.mkdir()
    make_model(folder / "plain.gguf")
    with installed_engines.started("binary", folder, _PLAIN, folder / "plain.gguf", token=TOKEN) as worker:
        worker.ready()
        async with gateway_harness() as gateway:
            model = route_to(_PLAIN, f"http://127.0.0.1:{worker.port}", CONTEXT)
            await gateway.publish(model.model_copy(update={"longest_token": max(map(len, SPECIAL))}))
            return {who: await _probe(clients, gateway.url, letters) for who, letters in REFUSERS.items()}


async def _probe(clients: ForeignClients, url: str, letters: int) -> Mapping[str, str]:
    env = {"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = await asyncio.create_subprocess_exec(
        str(clients.python),
        str(overflow_probe.__file__),
        *(url, _PLAIN, str(letters)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=env,
    )
    output, _ = await process.communicate()
    raised: dict[str, str] = json.loads(output.splitlines()[-1])
    return raised
