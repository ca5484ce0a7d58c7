"""Checks where images, sounds and videos of a request come from. Pure.

Engines fetch addresses that a request names: llama-server and vLLM follow any `http:` address from where they run, also
one of the host's own network that the client cannot reach. So the gateway refuses addresses of a model that does not
declare `media_urls`, and lets data pass: a `data:` URL, or base64 alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Audio, Image, Prompt, ToolResult, User

_FIELDS: Final = (
    *("image_url", "input_image", "image", "input_audio", "audio_url", "audio", "input_video", "video_url", "video"),
    "source",
)
"""Fields of content parts that hold media: the data or address itself, or an object with it (`_INNER_FIELDS`)."""
_INNER_FIELDS: Final = ("url", "data")
_WITHOUT_MEDIA: Final = frozenset({"text", "tool_use", "search_result", "thinking", "redacted_thinking"})
_DATA: Final = re.compile(r"data:.*|(?!http)[a-z0-9+/=_\-]*", re.IGNORECASE | re.DOTALL)
_LOOKED_AT: Final = 64
"""Characters at the beginning that tell an address from base64. Python's parser of addresses, which vLLM uses, drops
white space before and inside an address; base64 has none in its first line, which is not shorter than this."""
_LEFT_OUT: Final = "\x01"
"""Where a large body's outline lacks the rest of a text. It has the first 6 characters, unless the client escaped one
of them, which nobody does in base64."""
_CERTAIN: Final = 6


def check_media_urls(messages: list[Any], model: str) -> None:
    """Refuse media that are given by an address, in messages of any API family that are passed through. `model`: its
    name, for the error. A message or part of an unexpected shape is not refused.

    Raises:
        RoundhouseError: `invalid_request`; `param` is the part, such as `messages[0].content[1]`.
    """
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and (place := _find_address(content)) is not None:
            raise _refusal(f"messages[{number}].content{place}", model)


def check_prompt_media_urls(prompt: Prompt, model: str) -> None:
    """Refuse media that are given by an address, in a request that is to be translated. `model`: its name, for the
    error.

    Raises:
        RoundhouseError: `invalid_request`; `param` is the path to the part in the client's own request.
    """
    for turn in prompt.turns:
        for part in turn.parts if isinstance(turn, User | ToolResult) else ():
            value = part.url if isinstance(part, Image) else part.data if isinstance(part, Audio) else ""
            if isinstance(part, Image | Audio) and not _is_data(value):
                raise _refusal(part.place or turn.place, model)


def list_inner_parts(part: Mapping[str, Any]) -> tuple[list[Any], str] | None:
    """Return the list of parts inside an Anthropic tool result or document, and the path from `part` to that list, such
    as `.content`; None if `part` is of another type or holds no list."""
    content, place = part.get("content"), ".content"
    if part.get("type") == "document":
        source = part.get("source")
        content, place = source.get("content") if isinstance(source, dict) else None, ".source.content"
    elif part.get("type") != "tool_result":
        return None
    return (content, place) if isinstance(content, list) else None


def _find_address(parts: list[Any]) -> str | None:
    """Return the place of the first part that holds an address; None: none does."""
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") in _WITHOUT_MEDIA:
            continue
        if not all(_is_data(value) for value in _list_values(part)):
            return f"[{number}]"
        if (inner := list_inner_parts(part)) is not None and (place := _find_address(inner[0])) is not None:
            return f"[{number}]{inner[1]}{place}"
    return None


def _list_values(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a part that are data or addresses of media."""
    for name in _FIELDS:
        value = part.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict) and value.get("type") not in ("text", "content"):
            yield from (inner for field in _INNER_FIELDS if isinstance(inner := value.get(field), str))


def _is_data(value: str) -> bool:
    beginning = value[:_LOOKED_AT]
    end = beginning.find(_LEFT_OUT)
    return _DATA.fullmatch(beginning[:end] if end >= _CERTAIN else beginning) is not None


def _refusal(place: str, model: str) -> RoundhouseError:
    message = f"The model {model!r} fetches no addresses: send the data itself, as base64 or as a `data:` URL."
    return RoundhouseError("invalid_request", message, param=place)
