"""Thinking on or off, in the words of an engine. Pure."""

from __future__ import annotations

from typing import Literal

from controller.schema.routing import ThinkingControl
from gateway.protocols.common.conversation import Fields

Asked = Literal["enabled", "disabled"]


def apply_thinking(fields: Fields, mode: Asked | None, control: ThinkingControl | None) -> Fields:
    """Chat completion fields that ask an engine to think or not; `fields` themselves where nothing is asked.

    - `chat_template_kwargs`: `enable_thinking` of the chat template, as llama-server and vLLM take it;
    - `thinking`: the word itself, as our worker takes it;
    - `reasoning_effort`: `none`, or as much as the request says, at least `medium`;
    - None: the engine has no switch, and such a model advertises none.
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
