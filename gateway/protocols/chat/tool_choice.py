"""Reduces `tool_choice` to the words that every engine knows: `auto`, `none`, `required`. Pure."""

from __future__ import annotations

from typing import Any

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields


def narrow_tools(fields: Fields, *, names_one: bool) -> Fields:
    """Return chat completion fields that offer only the tools that `tool_choice` permits. `fields` itself stays.

    - `{"type": "allowed_tools"}`, which only OpenAI knows: `tools` keeps the tools that the choice lists, perhaps none,
      and the choice becomes `required` if that is its mode, else `auto`.
    - `{"type": "function"}`, if `names_one` (for llama-server, which ignores this choice): `tools` keeps the function
      that the choice names, and the choice becomes `required`.
    - Any other choice, or `tools` that is no array: the result is the same object.

    Raises:
        RoundhouseError: `invalid_request`: `tool_choice` names a tool that is not among `tools`.
    """
    choice, tools = fields.get("tool_choice"), fields.get("tools")
    if not isinstance(choice, dict) or not isinstance(tools, list):
        return fields
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("allowed_tools"), dict):
        allowed_tools = choice["allowed_tools"]
        mode = "required" if allowed_tools.get("mode") == "required" else "auto"
        listed_tools = allowed_tools.get("tools")
        names = [_name(tool) for tool in listed_tools] if isinstance(listed_tools, list) else []
    elif names_one and choice.get("type") == "function":
        mode, names = "required", [_name(choice)]
    else:
        return fields
    known_names = {_name(tool) for tool in tools}
    for name in names:
        if name not in known_names:
            rule = f"`tool_choice` names {name!r:.80}, which is not among `tools`."
            raise RoundhouseError("invalid_request", rule, param="tool_choice")
    return fields | {"tools": [tool for tool in tools if _name(tool) in names], "tool_choice": mode}


def _name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
