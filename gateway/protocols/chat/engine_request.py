"""A chat completion request in the words of the model's engine. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from controller.schema.routing import ModelRoute
from gateway.protocols.chat import llama_server, thinking
from gateway.protocols.chat.reasoning import alias_in_message
from gateway.protocols.chat.system_messages import fold_system_messages
from gateway.protocols.chat.tool_choice import narrow_tools
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest

_REMOTE: Final = "openai_remote"
"""It may be OpenAI itself, which knows what is said in its own words, and refuses what it does not know."""


def adapt_request(request: InferenceRequest, route: ModelRoute) -> InferenceRequest:
    """The request as the model's engine understands it; the same one where nothing must change. Raises RoundhouseError.

    - `thinking` and `reasoning_effort: none` as `route.thinking_control` says;
    - thoughts of earlier answers under both names, since engines read one or the other, but for remotes;
    - a `tool_choice` that the engine does not know as fewer `tools`;
    - system messages where the model's chat template takes them (`route.system_first`).
    """
    fields = request.outline_fields
    engine_fields = fields
    if "thinking" in fields or "reasoning_effort" in fields:
        engine_fields = adapt_thinking(engine_fields, route)
    messages = fields.get("messages")
    if isinstance(messages, list) and route.backend != _REMOTE:
        for message in messages:
            if (
                isinstance(message, dict)
                and ("reasoning" in message or "reasoning_content" in message)
                and alias_in_message(message) is not message
            ):
                engine_fields = engine_fields | {"messages": [alias_in_message(each) for each in messages]}
                break
    if isinstance(messages, list) and route.system_first:
        folded_messages = fold_system_messages(engine_fields["messages"])
        if folded_messages is not engine_fields["messages"]:
            engine_fields = engine_fields | {"messages": folded_messages}
    if "tool_choice" in fields and route.backend != _REMOTE:
        engine_fields = narrow_tools(engine_fields, names_one=route.backend == llama_server.BACKEND)
    if engine_fields is fields:
        return request
    return replace(request, outline=json_bytes(engine_fields), outline_fields=engine_fields)


def adapt_fields(fields: Fields, route: ModelRoute) -> Fields:
    """The fields of a chat completion that was written here, as the model's engine knows them.

    - the limit of tokens by `route.max_tokens_field`;
    - thoughts of earlier answers to a remote under one name: it may refuse the other;
    - system messages where the model's chat template takes them (`route.system_first`).
    """
    if route.system_first:
        fields = fields | {"messages": fold_system_messages(fields["messages"])}
    if "max_tokens" in fields and route.max_tokens_field != "max_tokens":
        fields = {route.max_tokens_field if name == "max_tokens" else name: fields[name] for name in fields}
    if route.backend == _REMOTE:
        for message in fields["messages"]:
            message.pop("reasoning", None)
    return fields


def ask_for_prompt_tokens(fields: Fields, route: ModelRoute) -> Fields:
    """The fields of a stream whose prompt's tokens the engine shall tell before its first token: llama-server in events
    of its own, vLLM and our worker with the usage of each event. A remote is not asked: it may refuse to be."""
    if route.backend == _REMOTE:
        return fields
    if route.backend == llama_server.BACKEND:
        return fields | {"return_progress": True}
    return fields | {"stream_options": {**fields["stream_options"], "continuous_usage_stats": True}}


def adapt_thinking(fields: Fields, route: ModelRoute) -> Fields:
    """The fields with `thinking` and `reasoning_effort: none` in the words of the model's engine."""
    control, word, effort = route.thinking_control, fields.get("thinking"), fields.get("reasoning_effort")
    mode = cast("thinking.Asked", word) if isinstance(word, str) and word != "default" else None
    dropped_names = {"thinking"} if isinstance(word, str) else set()
    if effort == "none" and control not in (None, "reasoning_effort"):
        if mode is None and "disabled" in route.capabilities.thinking_modes:
            mode = "disabled"
        if mode is not None:
            dropped_names.add("reasoning_effort")
    if dropped_names == {"thinking"} and control == "thinking" and mode is not None:
        return fields  # the word is the engine's own
    if dropped_names:
        fields = {name: value for name, value in fields.items() if name not in dropped_names}
    return thinking.apply_thinking(fields, mode, control)
