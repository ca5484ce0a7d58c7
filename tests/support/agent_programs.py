"""Coding agents as their users start them, told or not told how much context their model has, and the clockwork model
that they work with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.support.foreign_clients import ForeignClients
from worker.clockwork import VOCAB_MULTIPLE, make_vocabulary, make_weights, write_gguf

SUMMARY = "SUMMARY: the notes were read, and they are to be read once more."
DONE = "DONE: the notes were read before and after the summary."
_CALLING, _NOTING, _ENDING = "<|assistant|>", "<|noting|>", "<|ending|>"
_USER_DEFINED = 4

TEMPLATE = """\
{#- [SYSTEM_PROMPT] [TOOL_CALLS] [ARGS]: by these llama-server knows how the model calls tools -#}
{%- set seen = namespace(summary=false, results=0, text='') %}
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- set seen.text = '' %}
{%- if m['content'] is string %}{% set seen.text = m['content'] %}
{%- elif m['content'] %}{% for part in m['content'] %}{% set seen.text = seen.text + part['text'] %}{% endfor %}
{%- endif -%}
<|{{ m['role'] }}|>{{ seen.text }}
{%- for t in m['tool_calls'] or [] %}[TOOL_CALLS]{{ t['function']['name'] }}[ARGS]
{{- t['function']['arguments'] | tojson }}{% endfor %}<|end|>
{%- if '@SUMMARY' in seen.text %}{% set seen.summary = true %}{% set seen.results = 0 %}{% endif %}
{%- if m['role'] == 'tool' %}{% set seen.results = seen.results + 1 %}{% endif %}
{%- endfor %}
{%- set asked = messages[-1]['role'] == 'user' and '@SUMMARY' not in seen.text %}
{%- if not tools or (asked and ('summary' in seen.text or 'summarize' in seen.text)) -%}
<|noting|>
{%- elif seen.summary and seen.results -%}
<|ending|>
{%- else -%}
<|assistant|>
{%- endif %}
""".replace("@SUMMARY", SUMMARY)
"""Content is a text or a list of parts: llama-server turns the one into the other. Who offers no tools, or asks for a
summary, gets the summary."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model calls: a tool's name, and its arguments as JSON."""

    name: str
    arguments: str


def make_agent_model(path: Path, call: ToolCall, context: int) -> None:
    """Write it, with its chat template and so many tokens of context."""
    import gguf

    plain = make_vocabulary()
    chains: Sequence[Sequence[str]] = (
        (_CALLING, "[TOOL_CALLS]", call.name, "[ARGS]", call.arguments, "<|end|>"),
        (_NOTING, SUMMARY, "<|end|>"),
        (_ENDING, DONE, "<|end|>"),
    )
    names = [name for chain in chains for name in chain]
    first = plain.padding_from
    added = [name for name in dict.fromkeys(names) if name not in plain.tokens[:first]]
    tokens = [*plain.tokens[:first], *added]
    tokens += [f"<|pad{n}|>" for n in range(len(tokens), -(-len(tokens) // VOCAB_MULTIPLE) * VOCAB_MULTIPLE)]
    vocabulary = replace(plain, tokens=tuple(tokens), chain=())
    weights = make_weights(vocabulary)
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    for chain in chains:
        for token, following in pairwise(chain):
            head[tokens.index(following)] += embedding[tokens.index(token)] * 4
    write_gguf(path, vocabulary, weights, context, TEMPLATE)
    types = gguf.GGUFReader(path, "r+").fields["tokenizer.ggml.token_type"]
    for number in range(first, first + len(added)):
        types.parts[types.data[number]][0] = _USER_DEFINED


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
    window = "" if home.context is None else f"model_context_window = {home.context}\n"
    (folder / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "roundhouse"\n{window}\n'
        f'[model_providers.roundhouse]\nname = "Roundhouse"\nbase_url = "{home.url}/v1"\n'
        f'env_key = "{_SECRET}"\nwire_api = "responses"\n'
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
