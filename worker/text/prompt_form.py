"""How a conversation becomes a prompt, and what is read in the answer to it. Pure."""

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
"""What code that was written for other conversations raises."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as the model sees it."""

    text: str
    tokens: list[int]
    stops: tuple[str, ...] = ()
    """Texts that end the answer, beside the model's own end tokens."""


class Form(Protocol):
    """One way to make prompts, and how the answers to them are to be read."""

    marks: Marks | None
    markup: Markup | None
    tells_tools: bool
    """The model learns which tools there are."""

    def render_prompt(self, request: ChatRequest) -> Prompt:
        """Raises RequestError."""


class Tokenizer(Protocol):
    """A vocabulary, as far as a prompt needs it."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of a text."""


class TemplateForm:
    """A Jinja template that came with the model. `render` raises `raised`, beside `RAISED`, where it cannot."""

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
        """See Form."""
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
    """Raises RequestError where tools are offered that the model would learn nothing of."""
    if request.offered_tools and not form.tells_tools:
        message = "The model's chat template knows no tools: name the one to call in `tool_choice`, or send none."
        raise RequestError(message, code="tools_unsupported", param="tools")


def shown_texts(request: ChatRequest, form: Form) -> tuple[str, ...]:
    """Texts whose tokens must be told as text, even those that vocabularies hide."""
    texts = (form.marks.begin, form.marks.end) if form.marks else ()
    return (*texts, *form.markup.tokens) if request.offered_tools and form.markup else texts


def separate_reasoning(pieces: Generator[Piece], form: Form, prompt: Prompt) -> Generator[Piece]:
    """What the model made, up to the form's own stops, with thoughts apart from text."""
    if prompt.stops:
        pieces = _without_stop_reason(until_stop(pieces, prompt.stops))
    return split_reasoning(pieces, form.marks, is_thinking=is_open(prompt.text, form.marks)) if form.marks else pieces


def separate_calls(
    pieces: Generator[Piece], request: ChatRequest, form: Form, new_id: Callable[[], str]
) -> Generator[Piece]:
    """The pieces, with calls of tools apart from text where the request offers some."""
    if not request.offered_tools or not form.markup:
        return pieces
    schemas = tool_calls.schemas_of(request.offered_tools)
    return tool_calls.split_calls(
        pieces, form.markup, schemas, new_id, several=request.parallel_tool_calls is not False
    )


def _without_stop_reason(pieces: Generator[Piece]) -> Generator[Piece]:
    """A chat format's own stops are no news to a client."""
    with closing(pieces):
        for piece in pieces:
            yield replace(piece, stop_reason=None)
