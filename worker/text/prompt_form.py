"""How a conversation becomes a prompt, and how the answer to it is read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol

from worker.engine import Piece
from worker.errors import RequestError
from worker.schema import ChatRequest
from worker.text import reasoning, tool_calls
from worker.text.chat_template import build_variables, messages_for
from worker.text.reasoning import Marks, is_open, split_reasoning
from worker.text.stop_strings import until_stop
from worker.text.tool_calls import Markup
from worker.text.translategemma import structure_messages

TRANSLATEGEMMA: Final = "translategemma_template"
GENERIC: Final = "generic"
CHAT_FORMATS: Final = (GENERIC, "mistral_template", "qwen3_template", "gemma4_template")
"""Prompt formats that take a conversation."""
PROMPT_FORMATS: Final = (*CHAT_FORMATS, TRANSLATEGEMMA)
RAISED: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions of template code that meets a conversation it was not written for."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a conversation, as text and as the tokens that the engine gets, with the strings that end its
    answer."""

    text: str
    tokens: list[int]
    stops: tuple[str, ...] = ()
    """Strings that end the answer, beside the model's own end tokens."""


class Form(Protocol):
    """One way to make prompts of conversations and to read the answers to them: a chat template, or a chat format of a
    library. Stateless; any thread may use it."""

    marks: Marks | None
    """Marks around thoughts; None: not known."""
    markup: Markup | None
    """Markup of tool calls; None: not known."""
    tells_tools: bool
    """Whether the prompt tells the model which tools there are."""

    def render_prompt(self, request: ChatRequest) -> Prompt:
        """Return the prompt of a conversation. It ends where the model's answer begins. Raises RequestError if the
        model takes no such conversation."""


class Tokenizer(Protocol):
    """The part of a vocabulary that `TemplateForm` needs."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. `add_special` adds the tokens that a prompt starts or ends with. `parse_special`
        reads names of special tokens as these tokens, not as text."""


class TemplateForm:
    """A `Form` by a Jinja template that came with the model. `render` renders it and may raise the exceptions in
    `raised` and in `RAISED`; `template` is its source, by which marks and markup are found unless `prompt_format` names
    them."""

    def __init__(
        self,
        render: Callable[..., str],
        raised: tuple[type[Exception], ...],
        vocabulary: Tokenizer,
        template: str,
        prompt_format: str | None,
    ) -> None:
        self._render = render
        self._raised: tuple[type[Exception], ...] = (*RAISED, *raised)
        self._vocabulary = vocabulary
        self._template = template
        self._is_translategemma = prompt_format == TRANSLATEGEMMA
        self.marks = reasoning.marks_of(prompt_format, template)
        self.markup = tool_calls.markup_of(prompt_format, template)
        self.tells_tools = "tools" in template or self.markup is not None

    def render_prompt(self, request: ChatRequest) -> Prompt:
        """Return the prompt that the template makes of a conversation, which ends where the model's answer begins.
        Raises RequestError if the template refuses the conversation, for content other than text, and for a template
        variable that clients must not set."""
        messages = structure_messages(request) if self._is_translategemma else messages_for(request, self._template)
        template_variables = build_variables(request)
        try:
            text = self._render(messages=messages, tools=request.offered_tools or None, **template_variables)
        except self._raised as error:
            reason = str(error) or type(error).__name__
            message = f"The chat template makes no prompt of this conversation: {reason:.300}"
            raise RequestError(message, param="messages") from error
        return Prompt(text, self._vocabulary.tokenize(text, add_special=False, parse_special=True))


def check_tools(request: ChatRequest, form: Form) -> None:
    """Raise RequestError `tools_unsupported` if the request offers tools that the form's prompt would not tell the
    model of."""
    if request.offered_tools and not form.tells_tools:
        message = "The model's chat template knows no tools: name the one to call in `tool_choice`, or send none."
        raise RequestError(message, code="tools_unsupported", param="tools")


def shown_texts(request: ChatRequest, form: Form) -> tuple[str, ...]:
    """Return the texts (marks of thoughts, and of tool calls if the request offers tools) whose tokens must appear in
    the answer's text, even if they are special tokens, which have no text otherwise. May be empty."""
    texts = (form.marks.begin, form.marks.end) if form.marks else ()
    return (*texts, *form.markup.tokens) if request.offered_tools and form.markup else texts


def separate_reasoning(pieces: Generator[Piece], form: Form, prompt: Prompt) -> Generator[Piece]:
    """Return an iterator over the pieces with thoughts in `thought`, if the form knows their marks. The answer ends
    before the first of the form's own stop strings (`prompt.stops`); a piece's `stop_reason` does not name it. Closing
    the iterator closes `pieces`."""
    if prompt.stops:
        pieces = _without_stop_reason(until_stop(pieces, prompt.stops))
    return split_reasoning(pieces, form.marks, is_thinking=is_open(prompt.text, form.marks)) if form.marks else pieces


def separate_calls(
    pieces: Generator[Piece], request: ChatRequest, form: Form, new_id: Callable[[], str]
) -> Generator[Piece]:
    """Return an iterator over the pieces with tool calls separated from text; `pieces` itself if the request offers no
    tools or their markup is not known. With `parallel_tool_calls` false, the answer ends after the first call. `new_id`
    makes the calls' ids."""
    if not request.offered_tools or not form.markup:
        return pieces
    schemas = tool_calls.schemas_of(request.offered_tools)
    return tool_calls.split_calls(
        pieces, form.markup, schemas, new_id, several=request.parallel_tool_calls is not False
    )


def _without_stop_reason(pieces: Generator[Piece]) -> Generator[Piece]:
    """Yield the pieces without stop reason: a client does not know a chat format's own stop strings."""
    with closing(pieces):
        for piece in pieces:
            yield replace(piece, stop_reason=None)
