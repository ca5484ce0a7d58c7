"""Clients that operate a real Roundhouse by MCP, and have it run tools: what each of them does, and must see.

The controller, the gateway, the engines and the MCP server are real; only the model that calls tools is scripted: the
user's message is its script, `SCRIPT` and a JSON list of rounds, each a list of calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import random
import string
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import openai

from tests.fakes.fake_tool_model import Call, Fields, Move, ToolModel, served_model
from tests.support.mcp_clients import (
    ADMIN_TOOLS,
    GENERATIONS,
    HEADERS,
    INFERENCE_TOOLS,
    call,
    call_failing,
    list_names,
    mcp_client,
    message,
)
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until
from worker.clockwork import make_model

SCRIPT: Final = "SCRIPT "
DONE: Final = "The script is over."
KEYS: Final[Mapping[str, Fields]] = {
    "operator": {"scopes": ["inference", "admin"], "tools": ["*"]},
    "reader": {"scopes": ["inference"], "models": ["clock", "agent"], "tools": ["known__echo", "known__fail"]},
}
"""A key of an operator, and one that may neither change anything nor see all models."""
MODELS: Final[Mapping[str, tuple[Fields, str]]] = {
    "clock": ({"model_path": "clock.gguf", "llama_server_n_ctx": 512, "enabled": False}, "llama_server: "),
    "second": ({"backend": "stub", "enabled": False}, ""),
}
"""Models that clients load and unload, and what their logs hold."""
_SERVER: Final = Path(__file__).with_name("mcp_stdio_server.py")
_ANSWERS: Final = itertools.count()
_HIDDEN: Final = "known__environment"
"""A tool that `reader` may not call."""


def secret_of(key: str) -> str:
    return f"rh-secret-of-{key}"


def write_script(*rounds: list[Fields]) -> str:
    """A user's message that has the model make these calls, round after round."""
    return SCRIPT + json.dumps(rounds)


def decide(body: Fields) -> Move:
    """Return what the model does: the next round of the last script."""
    rounds: list[list[Fields]] = []
    done = 0
    for each in body["messages"]:
        text = _text_of(each)
        if each["role"] == "user" and SCRIPT in text:
            rounds, _ = json.JSONDecoder().raw_decode(text.partition(SCRIPT)[2])
            done = 0
        elif each["role"] == "assistant" and each.get("tool_calls"):
            done += 1
    mark = f"r{next(_ANSWERS)}"
    if not body.get("tools") or done >= len(rounds):
        return Move(DONE, mark=mark)
    return Move(calls=[Call(each["name"], each["arguments"]) for each in rounds[done]], mark=mark)


def _text_of(message: Fields) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def results_of(body: Fields) -> list[str]:
    """The texts of all results of tools that a model was sent."""
    return [_text_of(message) for message in body["messages"] if message["role"] == "tool"]


class OperatedSite:
    """A Roundhouse that clients operate, with `KEYS`, `MODELS`, the scripted model `agent`, the MCP server `known` and
    the built-in tool `calculate`."""

    def __init__(self, folder: Path) -> None:
        self.stack = RoundhouseStack(folder, "process")
        self.model = ToolModel(decide)
        self.states = dict.fromkeys(MODELS, "unloaded")
        self.loads: list[tuple[str, str]] = []
        """What was said by clients: action and model."""

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """All of it, ready; nothing of it is left afterwards."""
        make_model(self.stack.models / "clock.gguf")
        async with served_model(self.model):
            remote = {"backend": "openai_remote", "base_url": f"{self.model.url}/v1"}
            declared = {
                "models": {name: fields for name, (fields, _) in MODELS.items()} | {"agent": remote},
                "tools": {"calculate": {}},
                "mcp_servers": {"known": {"command": [sys.executable, str(_SERVER)], "timeout_s": 300}},
            }
            self.stack.write("site.yaml", declared)
            async with self.stack.running("mcp:known"):
                self.stack.write("keys.yaml", {"models": {}, "keys": _declare_keys()})
                await until("the keys are in force, and the model and the server are there", self._is_ready)
                yield

    async def _is_ready(self) -> bool:
        asked: Any = {"model": "agent", "input": write_script(), "tools": [_server("known")]}
        async with self.sdk("operator") as client:
            try:
                response = await client.responses.create(**asked)
            except openai.APIStatusError:
                return False
        try:
            await openai.AsyncOpenAI(base_url=f"{self.stack.url}/v1", api_key="none").models.list()
        except openai.AuthenticationError:
            return response.output[0].error is None
        return False

    def sdk(self, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.stack.url}/v1", api_key=secret_of(key), max_retries=0)

    # The `mcp` library's own client.

    async def check_scopes(self) -> None:
        """Each key is shown what it may call; no key is let in that is not declared."""
        for generation in GENERATIONS:
            async with mcp_client(self.stack.url, secret_of("operator"), generation) as client:
                assert await list_names(client) == INFERENCE_TOOLS + ADMIN_TOOLS
            async with mcp_client(self.stack.url, secret_of("reader"), generation) as client:
                assert await list_names(client) == INFERENCE_TOOLS
                for tool, arguments in (
                    ("load_model", {"model": "clock"}),
                    ("get_plan", {}),
                    ("get_logs", {"model": "clock"}),
                ):
                    assert (await call_failing(client, tool, **arguments))["code"] == "scope_required", tool
            headers = {**HEADERS, "authorization": "Bearer rh-nobody"}
            reply = await self.stack.request("POST", "/mcp", message("tools/list"), headers=headers)
            assert reply.refusal == (401, "invalid_api_key")

    async def walk(self, chance: random.Random, steps: int) -> dict[str, int]:
        """Do so many things at random, by both keys and both generations of the protocol; how often each was done."""
        acts: tuple[Callable[[random.Random], Awaitable[None]], ...] = (
            self._load,
            self._unload,
            self._list_by_operator,
            self._list_by_reader,
            self._read_one,
            self._read_logs,
            self._read_plan,
            self._read_events,
            self._read_memory,
            self._fail_to_load,
        )
        counts: dict[str, int] = {}
        for _ in range(steps):
            act = chance.choice(acts)
            await act(chance)
            name = act.__name__.strip("_").replace("_", " ")
            counts[name] = counts.get(name, 0) + 1
        return counts

    @contextlib.asynccontextmanager
    async def _client(self, chance: random.Random, key: str = "operator") -> AsyncIterator[Any]:
        async with mcp_client(self.stack.url, secret_of(key), chance.choice(GENERATIONS)) as client:
            yield client

    async def _load(self, chance: random.Random) -> None:
        model = chance.choice(list(MODELS))
        async with self._client(chance) as client:
            row = await call(client, "load_model", model=model, wait_s=60)
        assert (row["runtime_state"], row["loaded_replicas"]) == ("loaded", 1), row
        self._note(model, "loaded", "load")

    async def _unload(self, chance: random.Random) -> None:
        model = chance.choice(list(MODELS))
        async with self._client(chance) as client:
            row = await call(client, "unload_model", model=model, wait_s=60)
        assert row["runtime_state"] == "unloaded", row
        self._note(model, "unloaded", "unload")

    def _note(self, model: str, state: str, action: str) -> None:
        """Note what was said; the history has nothing of what changes nothing."""
        if self.states[model] != state:
            self.states[model] = state
            self.loads.append((action, model))

    async def _list_by_operator(self, chance: random.Random) -> None:
        async with self._client(chance) as client:
            listed = {each["name"]: each["state"] for each in (await call(client, "list_models"))["models"]}
        assert listed == {**self.states, "agent": "loaded"}

    async def _list_by_reader(self, chance: random.Random) -> None:
        async with self._client(chance, "reader") as client:
            listed = {each["name"]: each["state"] for each in (await call(client, "list_models"))["models"]}
        assert listed == {"clock": self.states["clock"], "agent": "loaded"}

    async def _read_one(self, chance: random.Random) -> None:
        model = chance.choice(list(MODELS))
        async with self._client(chance) as client:
            assert (await call(client, "get_model", model=model))["runtime_state"] == self.states[model]

    async def _read_logs(self, chance: random.Random) -> None:
        model = chance.choice(list(MODELS))
        async with self._client(chance) as client:
            if ("load", model) in self.loads:
                assert MODELS[model][1] in (await call(client, "get_logs", model=model, lines=1000))["log"]

    async def _read_plan(self, chance: random.Random) -> None:
        async with self._client(chance) as client:
            plan = await call(client, "get_plan")
        assert (plan["actions"], plan["blocked"]) == ([], []), plan

    async def _read_events(self, chance: random.Random) -> None:
        async with self._client(chance) as client:
            listed = await call(client, "list_events", kinds=["statement"], limit=200)
        said = [(each["details"]["action"], each["model"]) for each in reversed(listed["events"])]
        # Others may have said something before the walk, and a long list is cut.
        known = min(len(said), len(self.loads))
        assert known == len(self.loads) or listed.get("cut"), listed
        assert said[len(said) - known :] == self.loads[len(self.loads) - known :], (said, self.loads)
        assert {each["actor"] for each in listed["events"]} <= {"key operator 127.0.0.1 by mcp"}, listed["events"][0]

    async def _read_memory(self, chance: random.Random) -> None:
        async with self._client(chance) as client:
            assert {each["name"] for each in (await call(client, "get_memory"))["models"]} >= set(MODELS)

    async def _fail_to_load(self, chance: random.Random) -> None:
        async with self._client(chance) as client:
            assert (await call_failing(client, "load_model", model="nobody"))["code"] == "unknown_model"
        async with self._client(chance, "reader") as client:
            assert (await call_failing(client, "unload_model", model="clock"))["code"] == "scope_required"

    # OpenAI's SDK: tools of `/v1/responses`.

    async def respond(self, chance: random.Random) -> int:
        """Have the model play a random script by a random key; the number of its calls. The transcript must be what
        the script says, streamed or not, with approvals or without."""
        key = chance.choice(list(KEYS))
        tools = [_server("known"), *([_server("roundhouse")] if key == "operator" else [])]
        script = [[_draw_call(chance, key) for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 3))]
        asked: Fields = {"model": "agent", "input": write_script(*script), "tools": tools}
        async with self.sdk(key) as client:
            if chance.random() < 0.5:
                output = await _stream(client, asked)
            else:
                output = (await client.responses.create(**asked)).output
        expected = [_expect(each, key) for calls in script for each in calls]
        errors = [item.error for item in output if item.type == "mcp_call"]
        assert _transcript_of(output) == expected, (_transcript_of(output), expected, errors)
        assert output[-1].content[0].text == DONE
        return sum(map(len, script))

    async def approve(self, chance: random.Random) -> None:
        """A call that waits for an approval is made once it is given, and never where it is refused."""
        is_approved = chance.random() < 0.5
        asked: Fields = {"name": "known__echo", "arguments": {"text": f"word {chance.random()}"}}
        tools = [{"type": "mcp", "server_label": "known"}]
        async with self.sdk("operator") as client:
            create: Any = client.responses.create
            first = await create(model="agent", input=write_script([asked]), tools=tools)
            request = first.output[-1]
            assert (request.type, json.loads(request.arguments)) == ("mcp_approval_request", asked["arguments"])
            answer = {
                "type": "mcp_approval_response",
                "approval_request_id": request.id,
                "approve": is_approved,
            }
            second = await create(model="agent", previous_response_id=first.id, tools=tools, input=[answer])
        expected = [_expect(asked, "operator")] if is_approved else []
        assert _transcript_of(second.output) == expected
        assert second.output[-1].content[0].text == DONE


def _declare_keys() -> Fields:
    return {
        name: {"sha256": hashlib.sha256(secret_of(name).encode()).hexdigest(), **fields}
        for name, fields in KEYS.items()
    }


def _server(label: str) -> Fields:
    return {"type": "mcp", "server_label": label, "require_approval": "never"}


def _draw_call(chance: random.Random, key: str) -> Fields:
    """Draw a call: a good one, one that fails, one without its argument, and one of a tool that the key may not
    call."""
    word = "".join(chance.choices(string.ascii_letters + 'äß"\\\n ', k=chance.randint(1, 40)))
    calls: list[tuple[str, Fields]] = [
        ("known__echo", {"text": word}),
        ("known__echo", {}),
        ("known__fail", {}),
        ("roundhouse__calculate", {"expression": f"{chance.randint(0, 99)} + 1"}),
        ("known__nothing" if key == "operator" else _HIDDEN, {}),
    ]
    name, arguments = chance.choice(calls)
    return {"name": name, "arguments": arguments}


def _expect(asked: Fields, key: str) -> tuple[str, Fields, str | None, str | None]:
    """What must come of a call, as `_transcript_of` tells it."""
    name, arguments = asked["name"], asked["arguments"]
    output = error = None
    if name == "known__echo" and arguments:
        output = arguments["text"]
    elif name == "roundhouse__calculate" and key == "operator":
        output = str(int(arguments["expression"].split()[0]) + 1)
    else:
        error = "mcp_tool_execution_error" if name == "known__fail" else "mcp_protocol_error"
    return name.rpartition("__")[2], arguments, output, error


def _transcript_of(output: list[Any]) -> list[tuple[str, Fields, str | None, str | None]]:
    """Of each call the tool, the arguments, its output and the type of its error."""
    return [
        (item.name.rpartition("__")[2], json.loads(item.arguments), item.output, item.error and item.error.type)
        for item in output
        if item.type == "mcp_call"
    ]


async def _stream(client: openai.AsyncOpenAI, asked: Fields) -> list[Any]:
    create: Any = client.responses.create
    events = [event async for event in await create(**asked, stream=True)]
    assert events[-1].type == "response.completed"
    return list(events[-1].response.output)
