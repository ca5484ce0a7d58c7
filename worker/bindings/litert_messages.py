"""Converts OpenAI's messages to LiteRT-LM's form, and its answers to ours."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worker.engine import Piece, call_id
from worker.errors import RequestError
from worker.schema import Message

Object = dict[str, Any]


def messages_for(messages: Sequence[Message], *, images: bool, audio: bool) -> list[Object]:
    """Return the conversation in LiteRT-LM's form: contents are lists of parts, arguments of calls are objects, a
    tool's result has the tool's name (empty if no earlier call has its id) and the value of its text where that is
    JSON, and the role `developer` becomes `system`. `images`, `audio`: the model takes images, or audio.

    Raises RequestError, with the field in `param`, for content that the model does not take, an image or audio in a
    tool's result, an image that is no base64 data URL, audio that is no base64, and a malformed tool call.
    """
    converted_messages = []
    names: dict[str, str] = {}
    for number, message in enumerate(messages):
        fields = message.model_dump(exclude_unset=True)
        content = _content(message, f"messages[{number}].content", images=images, audio=audio)
        role = "system" if message.role == "developer" else message.role
        if role == "tool":
            name = names.get(str(fields.get("tool_call_id")), "")
            content = [{"type": "tool_response", "name": name, "response": _result(content)}]
        converted_message: Object = {"role": role, "content": content}
        calls = fields.get("tool_calls")
        if isinstance(calls, list) and calls:
            converted_message["tool_calls"] = [
                _call(call, f"messages[{number}].tool_calls[{index}]") for index, call in enumerate(calls)
            ]
            names |= {str(call.get("id")): call["function"]["name"] for call in calls}
        converted_messages.append(converted_message)
    return converted_messages


def _content(message: Message, place: str, *, images: bool, audio: bool) -> list[Object]:
    if not isinstance(message.content, list):
        return [{"type": "text", "text": message.content}] if message.content else []
    parts: list[Object] = []
    for index, part in enumerate(message.content):
        if part.get("type") == "text":
            parts.append({"type": "text", "text": str(part.get("text", ""))})
        elif part.get("type") == "image_url" and images and message.role != "tool":
            parts.append({"type": "image", "blob": _image(part, f"{place}[{index}].image_url")})
        elif part.get("type") == "input_audio" and audio and message.role != "tool":
            parts.append({"type": "audio", "blob": _audio(part, f"{place}[{index}].input_audio")})
        else:
            kinds = ["text", *(["images"] if images else []), *(["audio"] if audio else [])]
            readable = "text in a tool's result" if message.role == "tool" else " and ".join(kinds)
            raise RequestError(f"This engine reads {readable}, not {part.get('type')}.", param=f"{place}[{index}].type")
    return parts


def _image(part: Mapping[str, Any], place: str) -> str:
    """Return the base64 of an image in a data URL."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    head, comma, body = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RequestError("An image is sent as a data URL: `data:image/png;base64,...`.", param=place)
    return _base64(body, "image", place)


def _audio(part: Mapping[str, Any], place: str) -> str:
    """Return the base64 of audio. LiteRT-LM finds out its format by itself."""
    audio = part.get("input_audio")
    body = audio.get("data") if isinstance(audio, dict) else None
    if not isinstance(body, str) or not body:
        raise RequestError("Audio is sent as base64 in `data`.", param=place)
    return _base64(body, "audio", place)


def _base64(body: str, what: str, place: str) -> str:
    """Return the text. Raises RequestError if it is no base64; `what` names it there."""
    try:
        base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise RequestError(f"The {what} is not base64: {error}.", param=place) from None
    return body


def _result(content: Sequence[Mapping[str, Any]]) -> Any:
    """Return a tool's result: the value if the text is JSON, else the text."""
    text = "\n".join(part["text"] for part in content)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _call(call: Any, place: str) -> Object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("A call has a `function` with a `name`.", param=place)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"The arguments are not JSON: {error}.", param=f"{place}.function.arguments") from None
    if not isinstance(arguments, dict):
        raise RequestError("The arguments are not a JSON object.", param=f"{place}.function.arguments")
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def piece_of(chunk: Mapping[str, Any], calls_before: int, most_calls: int | None = None) -> Piece:
    """Return a chunk of LiteRT-LM's answer as a piece, without a finish reason; an empty one if the chunk has no text,
    thought or call. `calls_before`: number of calls in earlier chunks. Calls beyond `most_calls` of the whole answer
    are dropped; None: no limit."""
    content = chunk.get("content") or ()
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    calls = tuple(_delta(call, index) for index, call in enumerate(chunk.get("tool_calls") or (), calls_before))
    calls = calls if most_calls is None else calls[: max(0, most_calls - calls_before)]
    return Piece(text, thought="".join((chunk.get("channels") or {}).values()), tool_calls=calls)


def _delta(call: Mapping[str, Any], index: int) -> Object:
    function = call.get("function", call)
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    return {
        "index": index,
        "id": call_id(),
        "type": "function",
        "function": {"name": function.get("name", ""), "arguments": arguments},
    }


def answer_of(pieces: Iterable[Piece]) -> Object:
    """Return the message that an answer's pieces make, in the form in which `messages_for` writes it when a client
    sends it back: to recognise that a request continues the conversation. Thoughts are left out."""
    pieces = [*pieces]
    text = "".join(piece.text for piece in pieces)
    message: Object = {"role": "assistant", "content": [{"type": "text", "text": text}] if text else []}
    if calls := [call for piece in pieces for call in piece.tool_calls]:
        message["tool_calls"] = [_call(call, "") for call in calls]
    return message
