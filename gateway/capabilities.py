"""Whether a model takes what a request holds: thinking, images, audio, a conversation. Pure.

Every request comes by here, so text costs a look at each message and nothing else. What has not the shape of OpenAI's
fields passes: it is the engine's to refuse.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from controller.schema.admin import Capabilities, Modality, ThinkingMode
from controller.schema.errors import RoundhouseError
from gateway.translation.conversation import Prompt

MODALITY_OF_PART: Final[dict[str, Modality]] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
}
"""Type of a content part to what it holds. Types that are not here pass, as `text` does."""

_MODES: Final = get_args(ThinkingMode)
_ALL_MODALITIES: Final = frozenset(get_args(Modality))
_ASKING: Final = frozenset({"user", "tool", "function"})
"""Roles whose messages want an answer."""


def check_capabilities(fields: dict[str, Any], capabilities: Capabilities, model: str) -> None:
    """Refuse a decoded request for what `model` does not take. Goes by the fields, whichever API they came to.

    Raises:
        RoundhouseError: `invalid_request`, `thinking_unsupported`, `modality_unsupported` or `multi_turn_unsupported`;
            its `param` is the field, or the place (`messages[1].content[0]`).
    """
    if "thinking" in fields:
        _check_thinking(fields["thinking"], capabilities, model)
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return
    if not _ALL_MODALITIES.issubset(capabilities.modalities):
        _check_parts(messages, capabilities, model)
    if not capabilities.multi_turn:
        _check_turns(messages, model)


def _check_thinking(thinking: Any, capabilities: Capabilities, model: str) -> None:
    if not isinstance(thinking, str):
        return  # an engine's own field of that name
    if thinking not in _MODES:
        rule = f"`thinking` must be one of {', '.join(_MODES)}; it is {thinking!r:.60}."
        raise RoundhouseError("invalid_request", rule, param="thinking")
    if thinking != "default" and thinking not in capabilities.thinking_modes:
        taken = ", ".join(capabilities.thinking_modes)
        message = f"The model {model!r} does not take `thinking: {thinking}`; it takes {taken}."
        raise RoundhouseError("thinking_unsupported", message, param="thinking")


def _check_parts(messages: list[Any], capabilities: Capabilities, model: str) -> None:
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        for place, part in enumerate(content):
            modality = _modality(part)
            if modality is not None and modality not in capabilities.modalities:
                taken = ", ".join(capabilities.modalities)
                raise RoundhouseError(
                    "modality_unsupported",
                    f"The model {model!r} takes no {modality}; it takes {taken}.",
                    param=f"messages[{number}].content[{place}]",
                )


def _modality(part: Any) -> Modality | None:
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if isinstance(kind, str):
        return MODALITY_OF_PART.get(kind)
    # vLLM takes parts that name their type only by the field they hold.
    return next((MODALITY_OF_PART[name] for name in part if name in MODALITY_OF_PART), None)


def _check_turns(messages: list[Any], model: str) -> None:
    """More than one message that wants an answer, or an assistant's before one, is a conversation.

    An assistant's message at the end is not: it is the beginning of the answer.
    """
    begun = False
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role in _ASKING and begun:
            text = f"The model {model!r} takes one turn only."
            raise RoundhouseError("multi_turn_unsupported", text, param=f"messages[{number}]")
        begun = begun or role in _ASKING or role == "assistant"


def check_prompt(prompt: Prompt, capabilities: Capabilities, model: str) -> None:
    """The same for a request that is translated.

    Raises:
        RoundhouseError: as `check_capabilities`; its `param` is the place in the client's own request.
    """
