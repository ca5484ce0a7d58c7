"""A conversation and its answer, in the form of no API family. Pure values.

The client's request is read into a `Prompt`, which is then written as a request of the API that the engine serves. The
engine's answer is read into an `Answer`, or passed part by part to an `AnswerWriter` of the client's family.
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
    """A text in a message or in a tool's result. May be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its URL, which may be a `data:` URL. The gateway does not fetch it."""

    url: str
    detail: str | None = None
    """OpenAI's `detail`, passed on unchecked; None: the request gives none."""
    place: str = field(default="", compare=False)
    """Place in the client's request, such as `messages[1].content[0]`; for errors."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Audio data in base64, not decoded or checked here. `format` is the client's word, such as `wav`."""

    data: str
    format: str
    place: str = field(default="", compare=False)
    """Place in the client's request, such as `input[0].content[1]`; for errors."""


Part = Text | Image | Audio


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model. `arguments` is the text of a JSON object, unless the model made a mistake; nothing
    checks it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class System:
    """An instruction of the operator or the developer."""

    text: str
    place: str = field(default="", compare=False)
    """Place in the client's request, such as `messages[1]`; for errors."""


@dataclass(frozen=True, slots=True)
class User:
    """A message of the user. `parts` is not empty."""

    parts: tuple[Part, ...]
    place: str = field(default="", compare=False)
    """Place in the client's request, such as `messages[1]`; for errors."""


@dataclass(frozen=True, slots=True)
class Assistant:
    """An earlier answer of the model: text, thoughts, tool calls and refusal. As the last turn, it is the start of the
    answer that the model continues."""

    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    refusal: str = ""
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of the tool call with the id `call_id`, in an earlier turn of the model. `is_error`: the client says
    that the tool failed, which only Anthropic's API can say."""

    call_id: str
    parts: tuple[Part, ...]
    is_error: bool = False
    place: str = field(default="", compare=False)


Turn = System | User | Assistant | ToolResult


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON Schema; None: the function has no parameters.
    `description` and `strict` None: the request gives none."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model calls a tool. `auto`: as it decides. `none`: never. `required`: at least one. `named`: the one
    with this `name`, which is None for the other kinds."""

    kind: Literal["auto", "none", "required", "named"]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The JSON format that the answer's text must have. `schema` is a JSON Schema; None: any JSON object."""

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None
    place: str = field(default="response_format", compare=False)
    """Field in the client's request, such as `text.format`; for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a client's request asks for: the answer to a conversation, and how to make it. Dialects that translate read
    it once per request and write it as a chat completion. A field that is None was not given by the client."""

    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output_format: OutputFormat | None = None
    max_tokens: int | None = None
    """Maximum tokens of the answer, thoughts included; None: the request sets no limit."""
    stop: tuple[str, ...] = ()
    thinking: Literal["enabled", "disabled"] | None = None
    """Whether the client asked for thinking; None: the model's own setting applies."""
    thinking_tokens: int | None = None
    """Maximum tokens for thoughts, sent to engines that support such a budget; None: the request sets no limit."""
    effort: str | None = None
    """Reasoning effort in OpenAI's words (`reasoning_effort`); None: not given."""
    passed_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that mean the same in a chat completion (sampling, `user`, ...), and fields that no API family knows,
    which may be the engine's own."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts of one answer; 0 where the engine reports none. `cached` tokens are part of the prompt, `reasoning`
    tokens part of the completion."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer, read from an engine's blocking chat completion. Texts that it does not have are empty.
    `tokens` None: the engine reported none."""

    id: str = ""
    """The engine's id of the answer; empty if it gave none."""
    text: str = ""
    thought: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    stop_sequence: str | None = None
    """The stop string that ended the answer; None if none did or the engine does not report it."""
    tokens: Tokens | None = None
    """Token counts; None: the engine reported none."""
    logprobs: tuple[Fields, ...] = ()
    """An object for each token of the text, in the form of chat completions (`choices[].logprobs.content`)."""


class AnswerWriter(Protocol):
    """Writes one answer in the client's API family: as a stream of events, or whole by `build_answer`.

    One instance serves one answer and holds the state of its stream. The caller calls `begin_answer` once, then the
    methods that write parts as the parts come, then `end_answer` once; where the answer fails, `fail_answer` once
    instead, even before `begin_answer`. What each returns must be sent at once, in the order of the calls.
    """

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """Return the first events; may be empty. Call once, when the engine's first event has come. `answer_id` is the
        engine's id (`Answer.id`). `tokens` are the prompt's counts; None: the engine has not reported them yet."""

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """Return the events for a part of the text, which is not empty. May be empty if the writer must hold it
        back. `logprobs` are those of its tokens, in the form of chat completions; None: none came."""

    def write_reasoning(self, text: str) -> bytes:
        """Return the events for a part of the thoughts, which is not empty. Empty if the family has no thoughts."""

    def write_refusal(self, text: str) -> bytes:
        """Return the events for `text`, a part of a refusal and not empty. May be empty, as those of `write_text`."""

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """Return the events for a part of a tool call; may be empty. `call_id` and `name` come with the first part and
        are None if the engine gave none; parts of `arguments` come with any. `index` counts the answer's calls from
        0."""

    def end_answer(self, finish: Finish, stop_sequence: str | None, tokens: Tokens | None) -> bytes:
        """Return the last events of a stream that ended properly, the family's closing event included.
        `stop_sequence` is as in `Answer`. `tokens` None: the engine reported no counts."""

    def fail_answer(self, error: Fields) -> bytes:
        """Return the last events of a stream that fails, even before it began. `error` is the value of `error` in our
        error envelope, with every field (`ErrorBody`)."""

    def build_answer(self, answer: Answer) -> Fields:
        """Return the body of a blocking answer, to be encoded as JSON. Uses `answer` alone; what this writer has
        streamed does not matter. May raise RoundhouseError if the family cannot express the answer."""
