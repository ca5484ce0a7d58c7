"""The messages of a request, and digests of their beginnings, by which a later request is compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from gateway.protocols.common.conversation import Assistant, Audio, Image, Part, Prompt, System, Text, Turn
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest

_DIGEST_BYTES: Final = 16


class Beginning(NamedTuple):
    """Identifies the first `length` parts of a conversation without keeping their text."""

    length: int
    """Number of messages; for a prompt that is a text, number of characters."""
    digest: bytes
    """16 bytes; equal for equal beginnings, in every gateway and after every restart."""


class Transcript:
    """The conversation that a request carries: its messages, or the text of its prompt. `whole` and `begins_with` raise
    RecursionError for messages that are nested too deeply to be encoded as JSON."""

    __slots__ = ("_beginnings", "_parts")

    def __init__(self, parts: Sequence[object]) -> None:
        """`parts`: messages as JSON values, or a text, whose parts are its characters."""
        self._parts = parts
        self._beginnings: dict[int, Beginning] = {}
        """Computed beginnings, by length: admission compares a waiting turn many times."""

    @classmethod
    def of(cls, request: InferenceRequest) -> Transcript:
        """Return the transcript of a request. It has no parts if the request has neither messages nor a prompt.

        Of a large body (`gateway.protocols.common.large_body.LargeBody`), only the outline is compared: two that differ
        only inside long strings have equal transcripts.
        """
        if request.prompt is not None:
            return cls(_describe_turns(request.prompt))
        return cls(_native_parts(request.outline_fields))

    def whole(self) -> Beginning:
        """Return the Beginning that covers the whole conversation; for one without parts, its length is 0."""
        return self._digest(len(self._parts))

    def begins_with(self, beginning: Beginning) -> bool:
        """Return whether the conversation begins with `beginning`, which is the whole of an earlier request. True for
        equal conversations."""
        return beginning.length <= len(self._parts) and self._digest(beginning.length) == beginning

    def _digest(self, length: int) -> Beginning:
        beginning = self._beginnings.get(length)
        if beginning is None:
            beginning = self._beginnings[length] = self._compute_digest(length)
        return beginning

    def _compute_digest(self, length: int) -> Beginning:
        parts = self._parts[:length]
        digest = blake2b(digest_size=_DIGEST_BYTES)
        if isinstance(parts, str):
            digest.update(parts.encode(errors="surrogatepass"))
        else:
            for part in parts:
                encoded = json_bytes(part)
                digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return Beginning(length, digest.digest())


def _native_parts(fields: Mapping[str, Any]) -> Sequence[object]:
    messages = fields.get("messages")
    if isinstance(messages, list):
        return [fields["system"], *messages] if "system" in fields else messages
    prompt = fields.get("prompt")
    return prompt if isinstance(prompt, (str, list)) else []


def _describe_turns(prompt: Prompt) -> list[object]:
    return [_describe_turn(turn) for turn in prompt.turns]


def _describe_turn(turn: Turn) -> object:
    """Return what a turn says as JSON, without its place in the request, which moves."""
    if isinstance(turn, System):
        return ["system", turn.text]
    if isinstance(turn, Assistant):
        return [
            "assistant",
            turn.text,
            turn.thought,
            turn.refusal,
            *([call.name, call.arguments] for call in turn.calls),
        ]
    return [type(turn).__name__, *(_describe_part(part) for part in turn.parts)]


def _describe_part(part: Part) -> object:
    match part:
        case Text():
            return ["text", part.text]
        case Image():
            return ["image", part.url]
        case Audio():
            return ["audio", part.data]
