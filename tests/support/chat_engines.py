"""Real engines whose models think, speak and call tools, for clients of chat: each says an exactly known text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.routing import ModelRoute
from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.support import installed_engines, scripted_model_file
from tests.support.scripted_model_file import make_scripted_model
from tests.support.worker_process import Worker
from worker.clockwork import make_model

TOKEN = "replica-token"
SWITCH = "{%- if enable_thinking is defined and not enable_thinking %}[THINK][/THINK]{% endif %}\n"
HISTORY = """\
{%- for m in messages %}<|{{ m['role'] }}|>{{ m['reasoning_content'] or '' }}{{ m['content'] }}<|end|>{% endfor -%}
<|assistant|>"""
WORKERS = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.reasoning_content or '' }}{{ m.content }}
{%- for t in m.tool_calls or [] %}<tool_call>{{ t | tojson }}</tool_call>{% endfor %}<|end|>{% endfor -%}
<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"""
CALLS = (
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    '{"name": "get_weather", "arguments": {"city": "Rome"}}',
)
SAYS = [
    "<think>",
    "well ",
    "</think>",
    "Sure. ",
    "<tool_call>",
    CALLS[0],
    "</tool_call>",
    f"<tool_call>{CALLS[1]}</tool_call>",
]


def tool(name: str, *cities: str) -> Any:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": list(cities)}},
        "required": ["city"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


@dataclass
class Engine:
    """One kind of engine, with a model that thinks, speaks and calls (`thinks`), and one that says a sentence."""

    backend: str
    workers: dict[str, Worker]
    remembers: str
    """The one whose template has the thoughts of earlier answers."""
    thought: str
    spoken: str
    tools: list[Any]
    calls: list[tuple[str, Any]]
    asks: dict[str, Any]
    """Fields with which `thinks` says all of that."""
    many: dict[str, Any] = field(default_factory=dict)
    """Further ones with which it calls more than once."""

    def model(self, name: str) -> ModelRoute:
        """The table's entry, as the controller would make it."""
        engine = ENGINES[self.backend]
        modes = ["enabled", "disabled"] if name == "thinks" else ["default"]
        definition = engine.definition.model_validate(
            {"backend": self.backend, "model_path": "m.gguf", "thinking_modes": modes}
        )
        model = route(
            name,
            [f"http://127.0.0.1:{self.workers[name].port}"],
            token=TOKEN,
            served_name=f"inner-{name}",
            apis=engine.list_apis(definition),
            capabilities=engine.derive_capabilities(definition),
            target_inflight=engine.target_inflight(definition),
        )
        more = {"backend": self.backend, "thinking_control": engine.thinking_control(definition)}
        return model.model_copy(update=more | {"notices_leaving": engine.notices_leaving})


def llama_server(kind: installed_engines.Kind, folder: Path, stack: ExitStack) -> Engine:
    """llama.cpp's own server."""
    installed_engines.needed(kind)
    make_model(folder / "plain.gguf")
    scripted_model_file.make_caller(folder / "thinks.gguf")
    (folder / "thinks.jinja").write_text(scripted_model_file.TEMPLATE.rstrip() + SWITCH)
    (folder / "plain.jinja").write_text(HISTORY)
    workers = {
        name: stack.enter_context(
            installed_engines.started(
                kind,
                folder,
                name,
                folder / f"{name}.gguf",
                *("--chat-template-file", str(folder / f"{name}.jinja")),
                token=TOKEN,
            )
        )
        for name in ("thinks", "plain")
    }
    weather = tool("get_weather", "Paris")
    return Engine(
        "llama_server",
        workers,
        "plain",
        scripted_model_file.THOUGHT,
        scripted_model_file.SPOKEN,
        [weather],
        [("get_weather", {"city": "Paris"})],
        {"tools": [weather], "tool_choice": "required"},
        {"logit_bias": {"[TOOL_CALLS]": 100}, "max_tokens": 100, "parallel_tool_calls": True},
    )


def worker(folder: Path, stack: ExitStack) -> Engine:
    """llama-cpp-python in our worker."""
    hidden = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    make_scripted_model(folder / "thinks.gguf", SAYS, WORKERS, hidden=hidden)
    make_model(folder / "plain.gguf")
    workers = {
        name: stack.enter_context(
            installed_engines.llama_cpp_worker(folder, folder / f"{name}.gguf", f"inner-{name}", TOKEN)
        )
        for name in ("thinks", "plain")
    }
    calls = [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]
    weather = [tool("get_weather", "Oslo", "Rome")]
    return Engine("llama_cpp", workers, "thinks", "well", "Sure.", weather, calls, {"tools": weather})


KINDS: dict[str, Callable[[Path, ExitStack], Engine]] = {
    "llama_server-embedded": lambda folder, stack: llama_server("embedded", folder, stack),
    "llama_server-binary": lambda folder, stack: llama_server("binary", folder, stack),
    "llama_cpp-worker": worker,
}
