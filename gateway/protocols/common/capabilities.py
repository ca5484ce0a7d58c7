"""Checks a request against the model's capabilities: thinking, tools, structured output, modalities, turns. Pure.

Every request passes through here, so for text this costs one look at each message. A field of unexpected shape passes;
the engine refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from controller.schema.admin import Capabilities, Modality, ThinkingMode
from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import (
    Assistant,
    Audio,
    Image,
    Prompt,
    System,
    ToolChoice,
    ToolResult,
    Turn,
    User,
)
from gateway.protocols.common.media_urls import check_media_urls, check_prompt_media_urls, list_inner_parts
from gateway.protocols.common.output_constraints import CONSTRAINT_FIELDS

MODALITY_OF_PART: Final[dict[str, Modality]] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
}
"""Type of a content part to the modality that it holds. Types that are missing here pass, as `text` does."""

FORMATS: Final = ("response_format", "output_format")
"""Fields that hold the answer's format: OpenAI's, and Anthropic's first name for it."""
HOLDS_FORMAT: Final = ("text", "output_config")
"""Fields whose `format` holds the answer's format: of responses, and of messages."""

_FORMS: Final = frozenset({*FORMATS, *HOLDS_FORMAT, *CONSTRAINT_FIELDS})
_MODES: Final = get_args(ThinkingMode)
_ALL_MODALITIES: Final = frozenset(get_args(Modality))
_TEXT: Final[tuple[Modality, ...]] = ("text",)
_ASKING: Final = frozenset({"user", "tool", "function"})
"""Roles whose messages ask for an answer."""


def check_capabilities(fields: dict[str, Any], capabilities: Capabilities, model: str) -> None:
    """Refuse a decoded request that asks for what `model` does not support, for requests that are passed through. Looks
    at the fields of all API families, whichever API was asked. A field of an unexpected shape is not refused.

    Raises:
        RoundhouseError: `invalid_request` (a string in `thinking` that is no known mode; media given by an address,
            which the model does not fetch), `thinking_unsupported`, `tools_unsupported`,
            `structured_output_unsupported`, `logprobs_unsupported`, `modality_unsupported` or
            `multi_turn_unsupported`; its `param` is the field, or the path to the value (`messages[1].content[0]`).
    """
    if "thinking" in fields:
        _check_thinking(fields["thinking"], capabilities, model)
    if not capabilities.tools:
        _check_tools(fields, model)
    elif not capabilities.forced_tools:
        _check_forced_tools(fields, model)
    if not (capabilities.structured_output or _FORMS.isdisjoint(fields)):
        _check_form(fields, model)
    if not capabilities.logprobs and (name := _find_logprobs(fields)) is not None:
        raise _no_logprobs(name, model)
    messages = fields.get("messages")
    if isinstance(messages, list):
        if not _ALL_MODALITIES.issubset(capabilities.modalities):
            _check_parts(messages, capabilities, model)
        if _checks_media_urls(capabilities):
            check_media_urls(messages, model)
        if not capabilities.multi_turn:
            _check_turns(messages, model)


def check_prompt(prompt: Prompt, capabilities: Capabilities, model: str) -> None:
    """Refuse a request that is to be translated and asks for what `model` does not support.

    Raises:
        RoundhouseError: `invalid_request` (media given by an address, which the model does not fetch),
            `thinking_unsupported`, `tools_unsupported`, `structured_output_unsupported`, `logprobs_unsupported`,
            `modality_unsupported` or `multi_turn_unsupported`; its `param` is a field's name, such as `tools`, or for
            turns, parts and the output format the path in the client's own request, such as `input[1].content[0]`.
    """
    if prompt.thinking is not None and prompt.thinking not in capabilities.thinking_modes:
        raise _no_thinking(prompt.thinking, capabilities, model)
    if prompt.tools:
        _check_choice(prompt.tool_choice, capabilities, model)
    if not capabilities.structured_output:
        if prompt.output_format is not None:
            raise _no_form(prompt.output_format.place, model)
        _check_form(prompt.passed_fields, model)
    if not capabilities.logprobs and _find_logprobs(prompt.passed_fields) is not None:
        # Requests for responses ask for log probabilities by either field.
        raise _no_logprobs("top_logprobs" if prompt.passed_fields.get("top_logprobs") else "include", model)
    if not _ALL_MODALITIES.issubset(capabilities.modalities):
        for turn in prompt.turns:
            _check_turn(turn, capabilities, model)
    if _checks_media_urls(capabilities):
        check_prompt_media_urls(prompt, model)
    if not capabilities.multi_turn:
        _check_turns_of(prompt.turns, model)


# Checks of requests that are passed through.


def _check_thinking(thinking: Any, capabilities: Capabilities, model: str) -> None:
    if not isinstance(thinking, str):
        return  # the engine's own field of this name
    if thinking not in _MODES:
        rule = f"`thinking` must be one of {', '.join(_MODES)}; it is {thinking!r:.60}."
        raise RoundhouseError("invalid_request", rule, param="thinking")
    if thinking != "default" and thinking not in capabilities.thinking_modes:
        raise _no_thinking(thinking, capabilities, model)


def _check_tools(fields: dict[str, Any], model: str) -> None:
    for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        if fields.get(name) and fields.get(choice) not in ("none", {"type": "none"}):
            raise _no_tools(name, model)


def _check_forced_tools(fields: dict[str, Any], model: str) -> None:
    for tools, name in (("tools", "tool_choice"), ("functions", "function_call")):
        choice = fields.get(name) if fields.get(tools) else None
        if isinstance(choice, dict):
            allowed = choice.get("allowed_tools")
            holder = allowed if isinstance(allowed, dict) else choice
            is_free = choice.get("type") in ("auto", "none") or holder.get("mode") == "auto"
        else:
            is_free = choice in (None, "auto", "none")
        if not is_free:
            raise _no_forced_tools(name, model)


def _check_form(fields: Mapping[str, Any], model: str) -> None:
    for name in FORMATS:
        if _is_form(fields.get(name)):
            raise _no_form(name, model)
    for name in HOLDS_FORMAT:
        holder = fields.get(name)
        if isinstance(holder, dict) and _is_form(holder.get("format")):
            raise _no_form(f"{name}.format", model)
    for name in CONSTRAINT_FIELDS:
        if fields.get(name) not in (None, "", False):
            raise _no_form(name, model)


def _find_logprobs(fields: Mapping[str, Any]) -> str | None:
    """Return the field that asks for log probabilities, or None. A completion's `logprobs` is a number, and 0 asks for
    them too."""
    wanted = fields.get("logprobs")
    if wanted is not None and wanted is not False:
        return "logprobs"
    return next((name for name in ("top_logprobs", "prompt_logprobs") if fields.get(name)), None)


def _is_form(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") not in (None, "text")


def _checks_media_urls(capabilities: Capabilities) -> bool:
    """Whether the engine might fetch what a request names, and must not: one that takes nothing but text never does."""
    return not capabilities.media_urls and capabilities.modalities != _TEXT


def _check_parts(messages: list[Any], capabilities: Capabilities, model: str) -> None:
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if (
            isinstance(content, list)
            and (refused_part := _find_refused_part(content, capabilities.modalities)) is not None
        ):
            modality, place = refused_part
            raise _no_modality(modality, f"messages[{number}].content{place}", capabilities, model)


def _find_refused_part(parts: list[Any], modalities: Sequence[Modality]) -> tuple[Modality, str] | None:
    """Return modality and place of the first part that holds an unsupported modality, or None."""
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") == "text":
            continue
        modality = modality_of(part)
        if modality is not None:
            if modality not in modalities:
                return modality, f"[{number}]"
        elif (inner := list_inner_parts(part)) is not None and (
            refused_part := _find_refused_part(inner[0], modalities)
        ) is not None:
            return refused_part[0], f"[{number}]{inner[1]}{refused_part[1]}"
    return None


def modality_of(part: dict[str, Any]) -> Modality | None:
    """Return the modality that a content part of any API family holds; None: text, or a type that is not known."""
    kind = part.get("type")
    if isinstance(kind, str):
        return "image" if kind == "document" and _has_pages(part.get("source")) else MODALITY_OF_PART.get(kind)
    # vLLM takes parts without a `type`; the name of their field tells it.
    return next((MODALITY_OF_PART[name] for name in part if name in MODALITY_OF_PART), None)


def _has_pages(source: Any) -> bool:
    """Whether the source of an Anthropic document is a PDF, whose pages are images to a model. Other sources are text
    or parts."""
    return isinstance(source, dict) and source.get("type") in ("base64", "url")


def _check_turns(messages: list[Any], model: str) -> None:
    """Refuse a conversation: a second message that asks for an answer, or one after an assistant message.

    An assistant message at the end is allowed: it is the start of the answer.
    """
    has_begun = False
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        role = role if isinstance(role, str) else None
        if role in _ASKING and has_begun:
            raise _one_turn(f"messages[{number}]", model)
        has_begun = has_begun or role in _ASKING or role == "assistant"


# Checks of requests that are translated.


def _check_choice(choice: ToolChoice | None, capabilities: Capabilities, model: str) -> None:
    kind = "auto" if choice is None else choice.kind
    if kind != "none" and not capabilities.tools:
        raise _no_tools("tools", model)
    if kind in ("required", "named") and not capabilities.forced_tools:
        raise _no_forced_tools("tool_choice", model)


def _check_turn(turn: Turn, capabilities: Capabilities, model: str) -> None:
    for part in turn.parts if isinstance(turn, User | ToolResult) else ():
        modality: Modality | None = "image" if isinstance(part, Image) else "audio" if isinstance(part, Audio) else None
        if modality is not None and modality not in capabilities.modalities:
            place = part.place if isinstance(part, Image | Audio) else ""
            raise _no_modality(modality, place or turn.place, capabilities, model)


def _check_turns_of(turns: tuple[Turn, ...], model: str) -> None:
    has_begun = False
    for turn in turns:
        if has_begun and not isinstance(turn, System | Assistant):
            raise _one_turn(turn.place, model)
        has_begun = has_begun or not isinstance(turn, System)


# Errors.


def _no_thinking(thinking: str, capabilities: Capabilities, model: str) -> RoundhouseError:
    accepted_modes = ", ".join(capabilities.thinking_modes)
    message = f"The model {model!r} does not take `thinking: {thinking}`; it takes {accepted_modes}."
    return RoundhouseError("thinking_unsupported", message, param="thinking")


def _no_tools(param: str, model: str) -> RoundhouseError:
    return RoundhouseError("tools_unsupported", f"The model {model!r} calls no tools.", param=param)


def _no_forced_tools(param: str, model: str) -> RoundhouseError:
    message = f"The model {model!r} cannot be made to call a tool: leave `{param}` at `auto`."
    return RoundhouseError("tools_unsupported", message, param=param)


def _no_form(param: str, model: str) -> RoundhouseError:
    message = f"The answers of the model {model!r} cannot be held to JSON, a schema or a grammar."
    return RoundhouseError("structured_output_unsupported", message, param=param)


def _no_logprobs(param: str, model: str) -> RoundhouseError:
    message = f"The engine of the model {model!r} does not tell the probabilities of tokens."
    return RoundhouseError("logprobs_unsupported", message, param=param)


def _no_modality(modality: Modality, param: str, capabilities: Capabilities, model: str) -> RoundhouseError:
    accepted_modalities = ", ".join(capabilities.modalities)
    message = f"The model {model!r} takes no {modality}; it takes {accepted_modalities}."
    return RoundhouseError("modality_unsupported", message, param=param)


def _one_turn(param: str, model: str) -> RoundhouseError:
    return RoundhouseError("multi_turn_unsupported", f"The model {model!r} takes one turn only.", param=param)
