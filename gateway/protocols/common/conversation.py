"""A conversation and its answer in no family's own form. Pure values.

A family's request is read into a `Prompt`, which is written as a request of the family that an engine speaks; what the
engine answers is read into an `Answer`, or piece by piece handed to an `AnswerWriter` of the client's family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Fields = dict[str, Any]
Finish = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why an answer ended, in the words of chat completions."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, of a message or of a tool's result."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its URL, which may be a `data:` URL."""

    url: str
    detail: str | None = None
    place: str = field(default="", compare=False)
    """Where it stands in the client's request, such as `messages[1].content[0]`: for errors."""


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound, in base64."""

    data: str
    format: str
    place: str = field(default="", compare=False)


Part = Text | Image | Audio


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, as the model asked for it. `arguments` is JSON, unless the model erred."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class System:
    """What the operator or the developer says."""

    text: str
    place: str = field(default="", compare=False)
    """Where it stands in the client's request, such as `messages[1]`: for errors."""


@dataclass(frozen=True, slots=True)
class User:
    """What the user says. Not empty."""

    parts: tuple[Part, ...]
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Assistant:
    """What the model said before: its thoughts, its text, a refusal, its calls."""

    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    refusal: str = ""
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gave back."""

    call_id: str
    parts: tuple[Part, ...]
    is_error: bool = False
    place: str = field(default="", compare=False)


Turn = System | User | Assistant | ToolResult


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON Schema; None: it takes nothing."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model calls a tool: as it likes, not at all, at least one, or the one of that name."""

    kind: Literal["auto", "none", "required", "named"]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What the answer's text must be. Without a schema: any JSON object."""

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None
    place: str = field(default="response_format", compare=False)
    """The client's field, such as `text.format`: for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request for an answer to a conversation."""

    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output_format: OutputFormat | None = None
    max_tokens: int | None = None
    """Of the answer, thoughts included."""
    stop: tuple[str, ...] = ()
    thinking: Literal["enabled", "disabled"] | None = None
    """As the client asked for; None: as the model is configured."""
    thinking_tokens: int | None = None
    """Most tokens to think, for engines that can be told."""
    effort: str | None = None
    """How much to think, in OpenAI's words (`reasoning_effort`)."""
    passed_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that mean the same to a chat completion (sampling, `user`, ...), and those that no family knows, which
    may be the engine's own."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Counts. `cached` ones are of the prompt, `reasoning` ones of the completion."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    id: str = ""
    """The engine's own name for it; empty where it gives none."""
    text: str = ""
    thought: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    stop_sequence: str | None = None
    """The stop string that ended it, where the engine tells."""
    tokens: Tokens | None = None
    """None: the engine does not tell."""
    logprobs: tuple[Fields, ...] = ()
    """Of the text's tokens, as chat completions have them (`choices[].logprobs.content`)."""


class AnswerWriter(Protocol):
    """One answer in the client's family: as a stream, event by event, or whole. Holds the state of its stream."""

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """The first events. Called once, before the others, when the engine's first event is there. `answer_id` is
        the engine's own name for the answer (`Answer.id`). `tokens`: of the prompt; None: the engine has not told."""

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """A part of the text, not empty."""

    def write_reasoning(self, text: str) -> bytes:
        """A part of the thoughts, not empty."""

    def write_refusal(self, text: str) -> bytes:
        """A part of a refusal, not empty."""

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """A part of a call: its id and name once, then parts of its arguments. Engines count calls from 0."""

    def end_answer(self, finish: Finish, stop_sequence: str | None, tokens: Tokens | None) -> bytes:
        """The last events. `tokens` None: the engine did not tell."""

    def fail_answer(self, error: Fields) -> bytes:
        """The last events of a stream that fails, perhaps before it began. `error` has every field of our envelope."""

    def build_answer(self, answer: Answer) -> Fields:
        """The body of a blocking answer. Of a stream that was written before, nothing is said."""
