"""Adapts a chat completion request to the model's engine. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, cast

from controller.schema.routing import ModelRoute, ThinkingControl
from gateway.protocols.chat import llama_server
from gateway.protocols.chat.reasoning import alias_in_message
from gateway.protocols.chat.system_messages import fold_system_messages
from gateway.protocols.chat.tool_choice import narrow_tools
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest

Asked = Literal["enabled", "disabled"]
_REMOTE: Final = "openai_remote"
"""Backend that may be OpenAI itself, which understands OpenAI's own terms and refuses fields that it does not know."""


def adapt_request(request: InferenceRequest, route: ModelRoute) -> InferenceRequest:
    """Return a chat completion request as the model's engine understands it; the same object if nothing must change,
    else a copy.

    - `thinking` and `reasoning_effort: none` become the field that `route.thinking_control` names.
    - Thoughts of earlier answers get both of their field names, because engines read one or the other. Not for remote
      models.
    - A `tool_choice` that the engine does not support becomes a shorter list of `tools`. Not for remote models.
    - System messages move to where the model's chat template takes them (`route.system_first`).

    Raises:
        RoundhouseError: `invalid_request`: `tool_choice` names a tool that is not among `tools`.
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
    """Return the fields of a translated chat completion as the model's engine understands them; `fields` itself if none
    of them must change. `fields` must have `messages` in the form of `codec.write_request`.

    - The token limit gets the name in `route.max_tokens_field`.
    - Thoughts of earlier answers keep one name for a remote, which may refuse the other. This changes the messages in
      place.
    - System messages move to where the model's chat template takes them (`route.system_first`).
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
    """Return the fields of a stream so that the engine reports the prompt's tokens before its first token: llama-server
    in progress events, vLLM and our worker in the usage of each event. The same object for a remote model, which may
    refuse such a field. Raises KeyError if `fields` lacks `stream_options` and the engine is neither llama-server nor a
    remote."""
    if route.backend == _REMOTE:
        return fields
    if route.backend == llama_server.BACKEND:
        return fields | {"return_progress": True}
    return fields | {"stream_options": {**fields["stream_options"], "continuous_usage_stats": True}}


def adapt_thinking(fields: Fields, route: ModelRoute) -> Fields:
    """Return the fields with `thinking` and `reasoning_effort: none` as the model's engine understands them (see
    `apply_thinking`); the same object if nothing must change. `fields` itself is never changed.

    - `thinking`, if it is a string, must be `default`, `enabled` or `disabled`; the caller has checked that. `default`
      is dropped, and so is any of them if the engine has no switch. A value that is no string stays.
    - `reasoning_effort: none` counts as `thinking: disabled` if the model can disable thinking, but `enabled` or
      `disabled` in `thinking` wins over it. It stays as it is if the engine has no switch, or if `thinking` is neither
      `enabled` nor `disabled` and the engine takes `reasoning_effort` or the model cannot disable thinking.
    """
    control, word, effort = route.thinking_control, fields.get("thinking"), fields.get("reasoning_effort")
    mode = cast("Asked", word) if isinstance(word, str) and word != "default" else None
    dropped_names = {"thinking"} if isinstance(word, str) else set()
    if effort == "none" and control not in (None, "reasoning_effort"):
        if mode is None and "disabled" in route.capabilities.thinking_modes:
            mode = "disabled"
        if mode is not None:
            dropped_names.add("reasoning_effort")
    if dropped_names == {"thinking"} and control == "thinking" and mode is not None:
        return fields  # the engine takes the field as it is
    if dropped_names:
        fields = {name: value for name, value in fields.items() if name not in dropped_names}
    return apply_thinking(fields, mode, control)


def apply_thinking(fields: Fields, mode: Asked | None, control: ThinkingControl | None) -> Fields:
    """Return a copy of chat completion fields in which the field named by `control` turns thinking on or off; the same
    object if `mode` or `control` is None. By `control`:

    - `chat_template_kwargs`: sets `enable_thinking` in it for the chat template, as llama-server and vLLM take it.
    - `thinking`: sets the word itself, as our worker takes it.
    - `reasoning_effort`: sets `none` to disable thinking. To enable it, the request's own effort stays; `medium` if it
      has none, or `none`.
    - None: the engine has no switch, and its models advertise no thinking modes.
    """
    if mode is None or control is None:
        return fields
    if control == "thinking":
        return fields | {"thinking": mode}
    if control == "reasoning_effort":
        effort = fields.get("reasoning_effort")
        new_effort = "none" if mode == "disabled" else effort if effort not in (None, "none") else "medium"
        return fields | {"reasoning_effort": new_effort}
    kwargs = fields.get("chat_template_kwargs")
    template_kwargs = kwargs if isinstance(kwargs, dict) else {}
    return fields | {"chat_template_kwargs": {**template_kwargs, "enable_thinking": mode == "enabled"}}
