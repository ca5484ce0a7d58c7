"""The input of a chat template: messages in the form that templates know, and variables. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from worker.errors import RequestError
from worker.schema import ChatRequest, Message

RESERVED: Final = frozenset(
    {"messages", "tools", "tool_choice", "functions", "function_call", "add_generation_prompt"}
    | {"bos_token", "eos_token", "raise_exception", "strftime_now"}
)
"""Template variables that a client must not set."""


def build_variables(request: ChatRequest) -> dict[str, Any]:
    """Return the chat template's variables that a request sets, by name. May be empty. They are those of
    `chat_template_kwargs`, `reasoning_effort` if the request has it with another value than `none`, and
    `enable_thinking`: True or False if `thinking` is `enabled` or `disabled`, and False if `reasoning_effort` is
    `none`.

    If several set the same variable, `thinking` counts before `chat_template_kwargs`, and that before
    `reasoning_effort`. Raises RequestError, with the field in `param`, for a variable in RESERVED.
    """
    client_variables = request.chat_template_kwargs or {}
    if reserved_names := sorted(RESERVED & client_variables.keys()):
        place = f"chat_template_kwargs.{reserved_names[0]}"
        raise RequestError(f"`{place}` cannot be set.", param=place)
    template_variables: dict[str, Any] = {}
    if request.reasoning_effort == "none":
        template_variables["enable_thinking"] = False
    elif request.reasoning_effort is not None:
        template_variables["reasoning_effort"] = request.reasoning_effort
    template_variables |= client_variables
    if request.thinking in ("enabled", "disabled"):
        template_variables["enable_thinking"] = request.thinking == "enabled"
    return template_variables


def messages_for(request: ChatRequest, template: str) -> list[dict[str, Any]]:
    """Return the conversation as the template with this Jinja source takes it: each message as `plain_message` returns
    it. The role `developer` becomes `system` unless the template mentions `developer`. Raises RequestError for content
    other than text."""
    messages = [plain_message(message, number) for number, message in enumerate(request.messages)]
    if "developer" not in template:
        for message in messages:
            message["role"] = "system" if message["role"] == "developer" else message["role"]
    return messages


def plain_message(message: Message, number: int = 0) -> dict[str, Any]:
    """Return a message in the form that templates know. `number` is its index, for errors. Raises RequestError for
    content other than text.

    Its content is one text; text parts are joined by newlines, and missing content is empty. Arguments of calls are
    objects, because templates write them as JSON themselves; a text that is not JSON stays. Thoughts are
    `reasoning_content`, whichever name the client used.
    """
    fields = message.model_dump(exclude_unset=True)
    fields["content"] = _text(message, number)
    thought = fields.pop("reasoning", None) or fields.get("reasoning_content")
    if thought:
        fields["reasoning_content"] = thought
    if isinstance(fields.get("tool_calls"), list):
        fields["tool_calls"] = [_with_object(call) for call in fields["tool_calls"]]
    return fields


def _text(message: Message, number: int) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    texts = []
    for index, part in enumerate(message.content):
        if part.get("type") != "text":
            place = f"messages[{number}].content[{index}].type"
            raise RequestError(f"This engine reads text, not {part.get('type')}.", param=place)
        texts.append(str(part.get("text", "")))
    return "\n".join(texts)


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return call | {"function": function | {"arguments": arguments}}
