"""Workers of llama-cpp-python whose models say what a test wants, and what clients get of them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.require import require
from tests.support.scripted_model_file import Token, make_scripted_model
from tests.support.worker_process import Worker
from worker.clockwork import CHAT_TEMPLATE

Serve = Callable[..., Worker]
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]

THINKER_TEMPLATE = """\
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|end|>{% endfor -%}
<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{%- if begun %}<think>{% endif %}"""
THINKER: list[Token] = [
    "<think>",
    "\nhm, </",
    "</thi",
    "well <",
    "</think>",
    "\n\n",
    "Grüße, und zwar an alle und jeden, die dies hier lesen oder hören wollen: ",
    b"\xf0\x9f",
    b"\x98\x80",
]
THOUGHT = "hm, </</thiwell <"
SPOKEN = "Grüße, und zwar an alle und jeden, die dies hier lesen oder hören wollen: 😀"


@contextmanager
def scripted_models(folder: Path) -> Iterator[Serve]:
    """Starts workers whose models say these tokens; the same one for the same arguments. Skips, or fails where it is
    required, without llama-cpp-python."""
    available = importlib.util.find_spec("llama_cpp") is not None
    require("llama_cpp", available, "llama-cpp-python is not installed (extra `llama-cpp`)")
    workers: dict[object, Worker] = {}

    def serving(says: Sequence[Token], template: str = CHAT_TEMPLATE, *flags: str, **how: Any) -> Worker:
        key = (tuple(says), template, flags, repr(how))
        if key not in workers:
            path = folder / f"{len(workers)}.gguf"
            make_scripted_model(path, says, template, **how)
            port = free_port()
            args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "demo", "--model", str(path))
            workers[key] = Worker(folder / f"{len(workers)}.log", port, "llama_cpp", *args, *flags)
        return workers[key].ready()

    try:
        yield serving
    finally:
        for worker in workers.values():
            worker.__exit__()


def told(worker: Worker, path: str = CHAT, **fields: Any) -> Any:
    """The answer, whatever it is."""
    body = {"messages": USER, **fields} if path != "/v1/completions" else fields
    return json.loads(worker.ask("POST", path, body)[1])


def choice(worker: Worker, **fields: Any) -> Any:
    """The one choice of an answer."""
    answer = told(worker, **fields)
    assert "choices" in answer, answer
    return answer["choices"][0]


def streamed(worker: Worker, **fields: Any) -> list[Any]:
    """The choices of a stream's chunks."""
    text = worker.ask("POST", CHAT, {"messages": USER, "stream": True, **fields})[1]
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event)["choices"][0] for event in events]


def joined(choices: list[Any], name: str) -> str:
    """The parts of one field of a stream's messages."""
    return "".join(each["delta"].get(name) or "" for each in choices)


def error(worker: Worker, **fields: Any) -> tuple[int, str, str | None]:
    """Status, code and place of a refusal."""
    status, body = worker.ask("POST", CHAT, {"messages": USER, **fields})
    said = json.loads(body)["error"]
    return status, said["code"], said["param"]


def thinking_worker(serve: Serve) -> Worker:
    """It thinks `THOUGHT` and says `SPOKEN`; the marks are hidden tokens."""
    return serve(THINKER, THINKER_TEMPLATE, hidden=["<think>", "</think>"])
