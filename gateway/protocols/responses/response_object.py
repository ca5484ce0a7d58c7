"""The response object: repeats what was asked for and holds what came of it. Pure.

It has every field that Open Responses and OpenAI's SDK require. `error.code` is one of OpenAI's closed list, or
`context_length_exceeded`, which OpenAI's servers send beside that list and Codex looks for; `error.reason` is our own
code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gateway.protocols.common import context_overflow
from gateway.protocols.common.conversation import Fields, Finish, Tokens
from gateway.protocols.responses import tools as responses_tools
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.request import output_format_of

_REASONS: Final[dict[Finish, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_UNLIKELY: Final = -9999.0
"""OpenAI's log probability for a token that is hardly possible."""
_TIERS: Final = ("default", "flex", "priority")


def begin_response(fields: Fields, context: ResponseContext) -> Fields:
    """Return the response object of a response in progress, with no output. `fields` are those of a request that was
    read without an error (`responses.request.read_prompt`), because they are not checked again."""
    tools, choice = responses_tools.echo_tools(fields, context.mcp)
    return {
        "id": context.id,
        "object": "response",
        "created_at": context.created_at,
        "completed_at": None,
        "status": "in_progress",
        "background": bool(fields.get("background")),
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": fields.get("max_tool_calls"),
        "metadata": fields.get("metadata") or {},
        "model": fields["model"],
        "output": [],
        "parallel_tool_calls": _field_or(fields, "parallel_tool_calls", True),
        "presence_penalty": _field_or(fields, "presence_penalty", 0.0),
        "frequency_penalty": _field_or(fields, "frequency_penalty", 0.0),
        "previous_response_id": fields.get("previous_response_id"),
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": _reasoning(fields),
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": fields["service_tier"] if fields.get("service_tier") in _TIERS else "default",
        "store": context.stores,
        "temperature": _field_or(fields, "temperature", 1.0),
        "text": _text(fields, context),
        "tool_choice": choice,
        "tools": tools,
        "top_logprobs": fields.get("top_logprobs") or 0,
        "top_p": _field_or(fields, "top_p", 1.0),
        "truncation": fields.get("truncation") or "disabled",
        "usage": None,
        "user": fields.get("user"),
        **_conversation(context),
    }


def _conversation(context: ResponseContext) -> Fields:
    """Return the field `conversation`, with the item that the response follows if the request named it; empty if the
    response continues no conversation."""
    if context.conversation_id is None:
        return {}
    parent = {"parent_id": context.conversation_item} if context.names_parent else {}
    return {"conversation": {"id": context.conversation_id, **parent}}


def end_response(
    response: Fields, output: list[Fields], finish: Finish, tokens: Tokens | None, context: ResponseContext
) -> Fields:
    """Return a copy of `response` that is `completed`, or `incomplete` if `finish` cut the answer short; the caller
    marks the last item of `output` then. `completed_at` is Unix time in seconds by `context.clock`, and is noted in
    `context.times`. `tokens` None: the usage is null."""
    context.times.ended_at = ended_at = context.clock()
    reason = _REASONS.get(finish)
    if reason is None:
        end_fields: Fields = {"status": "completed", "completed_at": int(ended_at)}
    else:
        end_fields = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {**response, **end_fields, "output": output, "usage": None if tokens is None else usage_fields(tokens)}


def fail_response(response: Fields, output: list[Fields], error: Fields) -> Fields:
    """Return a copy of `response` that is `failed`, with the output so far. `error` has every field of our error
    envelope. In the copy, `error.code` is one of OpenAI's, chosen by the error's status (or `context_length_exceeded`),
    and `error.reason` is our own code."""
    status = error["status"]
    code = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"
    if error["code"] == context_overflow.CODE:
        code = context_overflow.CODE
    error_fields = {name: error.get(name) for name in ("message", "type", "param")}
    return {
        **response,
        "status": "failed",
        "error": {"code": code, **error_fields, "reason": error["code"]},
        "output": output,
    }


def is_cut(finish: Finish) -> bool:
    """Whether an answer that ends for this reason is incomplete: at the token limit, or by a content filter."""
    return finish in _REASONS


def message_item(name: str, parts: list[Fields], status: str) -> Fields:
    """Return a message item of the assistant. `name` is the item's id; `status` is `in_progress`, `completed` or
    `incomplete`, as for all items."""
    return {"id": name, "type": "message", "status": status, "role": "assistant", "content": parts}


def text_part(text: str, logprobs: list[Fields], annotations: list[Fields]) -> Fields:
    """Return a text part of a message. `logprobs` are in the form of `logprobs_of`."""
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": logprobs}


def refusal_part(text: str) -> Fields:
    """Return a refusal part of a message."""
    return {"type": "refusal", "refusal": text}


def reasoning_item(name: str, parts: list[Fields], status: str) -> Fields:
    """Return a reasoning item with thoughts and no summary. `name` is the item's id."""
    return {"id": name, "type": "reasoning", "status": status, "summary": [], "content": parts}


def reasoning_part(text: str) -> Fields:
    """Return a part of a reasoning item, with the model's thoughts in plain text."""
    return {"type": "reasoning_text", "text": text}


def function_call_item(name: str, call_id: str, function: str, arguments: str, status: str) -> Fields:
    """Return a function call item. `name` is the item's id, `call_id` the id that the call's result refers to,
    `function` the function's name, and `arguments` the JSON text of its arguments."""
    call_fields = {"call_id": call_id, "name": function, "arguments": arguments}
    return {"id": name, "type": "function_call", "status": status, **call_fields}


def custom_call_item(name: str, call_id: str, tool: str, input_text: str, status: str) -> Fields:
    """Return an item for the call of a custom tool. `name` is the item's id, `call_id` the id that the call's result
    refers to, `tool` the tool's name, and `input_text` its input in plain text."""
    return {
        "id": name,
        "type": "custom_tool_call",
        "status": status,
        "call_id": call_id,
        "name": tool,
        "input": input_text,
    }


def logprobs_of(logprobs: Iterable[Fields]) -> list[Fields]:
    """Return log probabilities in the form of responses, an object for each token in order. `logprobs` has the form of
    chat completions; fields that an engine adds are dropped, and a missing `logprob` is -9999."""
    return [
        {
            **_probability(each),
            "top_logprobs": [_probability(alternative) for alternative in _objects(each.get("top_logprobs"))],
        }
        for each in logprobs
    ]


def usage_fields(tokens: Tokens) -> Fields:
    """Return a usage object in the form of responses."""
    return {
        "input_tokens": tokens.prompt,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
        "output_tokens": tokens.completion,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.prompt + tokens.completion,
    }


def _probability(entry: Fields) -> Fields:
    token = entry.get("token")
    token = token if isinstance(token, str) else ""
    content = entry.get("bytes")
    if not isinstance(content, list):
        content = list(token.encode(errors="replace"))
    logprob = entry.get("logprob")
    known_logprob = logprob if isinstance(logprob, int | float) else _UNLIKELY
    return {"token": token, "logprob": known_logprob, "bytes": content}


def _objects(value: Any) -> list[Fields]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _reasoning(fields: Fields) -> Fields:
    reasoning = fields.get("reasoning") or {}
    return {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")}


def _text(fields: Fields, context: ResponseContext) -> Fields:
    form = output_format_of(fields)
    if form["type"] == "json_schema":
        schema_fields = {name: form.get(name) for name in ("name", "description", "schema")}
        # `schema` must be null in Open Responses, and an object in OpenAI's API.
        schema = {"schema": None} if context.is_open_responses else {}
        form = {"type": "json_schema", **schema_fields, **schema, "strict": bool(form.get("strict"))}
    verbosity = (fields.get("text") or {}).get("verbosity")
    return {"format": form} if verbosity is None else {"format": form, "verbosity": verbosity}


def _field_or(fields: Fields, name: str, default: Any) -> Any:
    value = fields.get(name)
    return default if value is None else value
