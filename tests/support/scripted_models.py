"""Models of several engines that think, speak and call a tool, and what clients get of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.support.scripted_model_file import Token
from tests.support.worker_process import Worker

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

FIRST_CALL = '\n{"name": "plan", "arguments": {"day": "mon"}}\n'
SECOND_CALL = '<tool_call>{"name": "plan", "arguments": {"day": "tue"}}</tool_call>'
CALLS = [("plan", {"day": "mon"}), ("plan", {"day": "tue"})]
CALLER: list[Token] = [*THINKER, "<tool_call>", FIRST_CALL, "</tool_call>", SECOND_CALL]
"""Thinks `THOUGHT`, says `SPOKEN`, and makes `CALLS`."""
UNCALLED = f"{SPOKEN}{FIRST_CALL}{SECOND_CALL}"
"""What it says to a client without tools: the marks around the first call are hidden tokens."""
HIDDEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALLER_TEMPLATE = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for t in m.tool_calls or [] %}<tool_call>{{ t.function.arguments.day }}</tool_call>{% endfor %}<|end|>{% endfor -%}
<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{%- if begun %}<think>{% endif %}"""


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"name": name} | ({} if parameters is None else {"parameters": parameters})
    return {"type": "function", "function": function}


DAYS = {"type": "object", "properties": {"day": {"enum": ["mon", "tue"]}}, "required": ["day"]}
PLAN = tool("plan", DAYS)
REST = tool("rest")


def post(worker: Worker, path: str = CHAT, **fields: Any) -> Any:
    body = fields if path in ("/v1/completions", "/v1/embeddings") else {"messages": USER, **fields}
    return json.loads(worker.request("POST", path, body)[1])


def choice(worker: Worker, **fields: Any) -> Any:
    answer = post(worker, **fields)
    assert "choices" in answer, answer
    return answer["choices"][0]


def streamed(worker: Worker, **fields: Any) -> list[Any]:
    """The choices of a stream's chunks."""
    text = worker.request("POST", CHAT, {"messages": USER, "stream": True, **fields})[1]
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event)["choices"][0] for event in events]


def joined(choices: Sequence[Any], name: str) -> str:
    """The parts of one field of a stream's messages."""
    return "".join(each["delta"].get(name) or "" for each in choices)


def error(worker: Worker, **fields: Any) -> tuple[int, str, str | None]:
    """Status, code and place of a refusal."""
    status, body = worker.request("POST", CHAT, {"messages": USER, **fields})
    failure = json.loads(body)["error"]
    return status, failure["code"], failure["param"]


def calls_in(message: Any) -> list[tuple[str, Any]]:
    return [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message["tool_calls"]]
