"""Stored chat completions, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gateway.protocols.common.conversation import Fields

_ECHOED: Final = {
    "tool_choice": "tool_choice",
    "tools": "tools",
    "seed": "seed",
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "response_format": "response_format",
    "input_user": "user",
}
"""Fields of a stored completion that repeat a field of the request, by the completion's name for it."""


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """A chat completion to be written. It holds JSON that is encoded already, so that later changes of the completion
    and its messages have no effect."""

    id: str
    tenant: str
    model: str
    """The model's own name."""
    created_at: float
    """Unix time in seconds."""
    metadata: Mapping[str, str]
    completion: bytes
    """The completion object as JSON, without `metadata`, which may change."""
    messages: bytes
    """The request's `messages`, a JSON array."""

    @property
    def size(self) -> int:
        """Bytes of the completion and its messages as JSON, without the metadata."""
        return len(self.completion) + len(self.messages)


class FoundCompletion(NamedTuple):
    """A chat completion that was read."""

    model: str
    """The model's own name."""
    completion: Fields
    """The completion object, with `metadata`."""


class CompletionFilter(NamedTuple):
    """Which chat completions a list shows: those of the model that have all pairs of the metadata."""

    model: str | None = None
    """A model's own name; None: completions of all models."""
    metadata: Sequence[tuple[str, str]] = ()
    """Pairs that a completion's metadata must have."""

    def takes_model(self, model: str) -> bool:
        """Return whether the list shows completions of a model. `model`: the model's own name."""
        return self.model is None or self.model == model


def describe_completion(answer: Fields, request_fields: Fields, request_id: str) -> Fields:
    """Return the completion object to store: the fields of `answer`, which win, and parameters of the request.

    These are `tool_choice`, `tools`, `seed`, `temperature`, `top_p`, the penalties, `response_format` and, as
    `input_user`, `user`, each None if the request lacks it; besides, `request_id`, and `service_tier` None. `metadata`
    is not set here: it is stored apart, because it may change.
    """
    echoed_fields = {name: request_fields.get(asked) for name, asked in _ECHOED.items()}
    return {**echoed_fields, "service_tier": None, "request_id": request_id, **answer}


def list_messages(completion_id: str, messages: Sequence[Fields]) -> list[Fields]:
    """Return the messages of a completion's request as list entries, in their order, each with an `id`.

    The id is the completion's id, `-`, and the message's number from 0.

    A message whose `content` is a list of parts has them as `content_parts`, and `content` None; else the parts are
    None. `name` is None if the message has none.
    """
    return [_message(f"{completion_id}-{number}", message) for number, message in enumerate(messages)]


def _message(message_id: str, message: Fields) -> Fields:
    content = message.get("content")
    is_parts = isinstance(content, list)
    parts: Any = content if is_parts else None
    return {"name": None, **message, "id": message_id, "content": None if is_parts else content, "content_parts": parts}
