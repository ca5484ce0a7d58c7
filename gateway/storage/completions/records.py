"""What is stored of a chat completion. Pure values."""

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
"""Fields of a stored completion, and of which field of the request each is the value."""


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """One chat completion as it is written. Encoded where it is made, so that nobody changes it any more."""

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
        """Bytes of all of it."""
        return len(self.completion) + len(self.messages)


class FoundCompletion(NamedTuple):
    """A stored completion, read."""

    model: str
    completion: Fields


class CompletionFilter(NamedTuple):
    """Which completions a list shows."""

    model: str | None = None
    """The own name of a model; None: of all."""
    metadata: Sequence[tuple[str, str]] = ()
    """Pairs that each of them must have."""

    def takes_model(self, model: str) -> bool:
        """Whether completions of the model of that own name are shown."""
        return self.model is None or self.model == model


def describe_completion(answer: Fields, request_fields: Fields, request_id: str) -> Fields:
    """The completion as it is shown later: what was answered, and what was asked for beside the messages. `metadata` is
    added where it is read."""
    echoed_fields = {name: request_fields.get(asked) for name, asked in _ECHOED.items()}
    return {**echoed_fields, "service_tier": None, "request_id": request_id, **answer}


def list_messages(completion_id: str, messages: Sequence[Fields]) -> list[Fields]:
    """The messages of a completion's request as they are listed, each with an id."""
    return [_message(f"{completion_id}-{number}", message) for number, message in enumerate(messages)]


def _message(message_id: str, message: Fields) -> Fields:
    content = message.get("content")
    is_parts = isinstance(content, list)
    parts: Any = content if is_parts else None
    return {"name": None, **message, "id": message_id, "content": None if is_parts else content, "content_parts": parts}
