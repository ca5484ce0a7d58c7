"""Coding agents as their users start them, told or not told how much context their model has."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.agent_model import ToolCall
from tests.support.foreign_clients import ForeignClients

MODEL: Final = "agent"
TASK: Final = "Read the notes of this project."
NOTES: Final = "notes.txt"
_SECRET: Final = "ROUNDHOUSE_KEY"
_NOWHERE: Final = "http://127.0.0.1:9"
"""A proxy that is none: what an agent wants of the internet, it does not get."""
_READ: Final = f'{{"command": "cat {NOTES}"}}'


@dataclass(frozen=True, slots=True)
class AgentHome:
    """One agent's folders, and what it is told."""

    folder: Path
    url: str
    """Of the gateway."""
    context: int | None
    """Tokens of the model, as the agent is told; None: it is not told."""
    notes: str
    """What the notes hold."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def project(self) -> Path:
        return self.folder / "project"


@dataclass(frozen=True, slots=True)
class CodingAgent:
    name: str
    package: str
    program: str
    path: str
    """Of the gateway, that it asks."""
    call: ToolCall
    """What a model calls to read the notes."""
    told_by: str
    """How its user tells it the context."""
    configure: Callable[[AgentHome], tuple[Sequence[str], Mapping[str, str]]]
    """Writes its files; its arguments, and what its environment has beside."""


@dataclass(frozen=True, slots=True)
class AgentRun:
    code: int | None
    """None: it did not end in time, and was killed."""
    output: str
    """What it wrote, standard error last."""


def _configure_claude(home: AgentHome) -> tuple[Sequence[str], Mapping[str, str]]:
    env = {
        "ANTHROPIC_BASE_URL": home.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    if home.context is not None:
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(home.context)
    return ("-p", TASK, "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose"), env


def _configure_codex(home: AgentHome) -> tuple[Sequence[str], Mapping[str, str]]:
    folder = home.home / ".codex"
    folder.mkdir()
    told = "" if home.context is None else f"model_context_window = {home.context}\n"
    (folder / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "roundhouse"\n{told}\n[model_providers.roundhouse]\nname = "Roundhouse"\n'
        f'base_url = "{home.url}/v1"\nenv_key = "{_SECRET}"\nwire_api = "responses"\n'
    )
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
    return ("exec", *flags, TASK), {"CODEX_HOME": str(folder), _SECRET: "none"}


def _configure_opencode(home: AgentHome) -> tuple[Sequence[str], Mapping[str, str]]:
    limit = {} if home.context is None else {"limit": {"context": home.context, "output": 4096}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{home.url}/v1", "apiKey": "none"},
        "models": {MODEL: limit},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"roundhouse/{MODEL}",
        "permission": "allow",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"roundhouse": provider},
    }
    (home.project / "opencode.json").write_text(json.dumps(settings))
    return ("run", TASK), {}


AGENTS: Final = (
    CodingAgent(
        "Claude Code",
        "@anthropic-ai/claude-code",
        "claude",
        "/v1/messages",
        ToolCall("Bash", _READ),
        "`CLAUDE_CODE_AUTO_COMPACT_WINDOW`",
        _configure_claude,
    ),
    CodingAgent(
        "Codex",
        "@openai/codex",
        "codex",
        "/v1/responses",
        ToolCall("exec_command", f'{{"cmd": "cat {NOTES}"}}'),
        "`model_context_window`",
        _configure_codex,
    ),
    CodingAgent(
        "opencode",
        "opencode-ai",
        "opencode",
        "/v1/chat/completions",
        ToolCall("bash", _READ),
        "`limit.context`",
        _configure_opencode,
    ),
)


async def run_agent(
    agent: CodingAgent, clients: ForeignClients, home: AgentHome, *, ends: asyncio.Event, seconds: float
) -> AgentRun:
    """Let it work until it ends, `ends` is set or the time is over; then it is killed with all of its processes. Its
    folder is empty before."""
    home.home.mkdir(parents=True)
    home.project.mkdir()
    (home.project / NOTES).write_text(home.notes)
    arguments, own = agent.configure(home)
    env = {
        "PATH": f"{clients.node_folder}:{os.environ['PATH']}",
        "HOME": str(home.home),
        "LANG": "C.UTF-8",
        "HTTP_PROXY": _NOWHERE,
        "HTTPS_PROXY": _NOWHERE,
        "NO_PROXY": "127.0.0.1",
        **own,
    }
    output = home.folder / "output.log"
    with output.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            str(clients.program(agent.program)),
            *arguments,
            cwd=home.project,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=written,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        waits = [asyncio.create_task(process.wait()), asyncio.create_task(ends.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        has_ended = process.returncode is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return AgentRun(process.returncode if has_ended else None, output.read_text(errors="replace"))
