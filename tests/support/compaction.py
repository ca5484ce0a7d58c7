"""A coding agent whose model's context fills up: what it asks of the engine before, and what it does about it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.engines import ENGINES
from controller.schema.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support import llama_servers
from tests.support.agent_model import DONE, SUMMARY, make_agent_model
from tests.support.agent_programs import MODEL, AgentHome, AgentRun, CodingAgent, run_agent
from tests.support.engine_recorder import EngineRecorder, RecordedCall, recording
from tests.support.foreign_clients import ForeignClients
from tests.support.worker_process import Worker

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
        told = _TOLD.findall(self.run.output)
        words = f", saying: {told[-1][:_SHOWN]}" if told else ""
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
    asked = {"messages": fields["messages"], "tools": fields["tools"]}
    prompt = json.loads(worker.request("POST", "/apply-template", asked)[1])["prompt"]
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
    with llama_servers.started("binary", folder, MODEL, folder / "agent.gguf", *flags, token=TOKEN) as worker:
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
    made = route(
        name,
        [url],
        token=TOKEN,
        served_name=f"inner-{name}",
        apis=engine.list_apis(definition),
        capabilities=engine.derive_capabilities(definition),
        target_inflight=engine.target_inflight(definition),
        context_length=context,
    )
    return made.model_copy(update={"backend": "llama_server", "notices_leaving": engine.notices_leaving})


def _holds_notes(call: RecordedCall) -> bool:
    return _NOTE.format(0).strip() in json.dumps(call.fields.get("messages"))
