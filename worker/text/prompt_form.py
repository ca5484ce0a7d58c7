"""The form of a model's prompts: its chat template, and TranslateGemma's own. Pure.

TranslateGemma's template (google/translategemma-*-it) takes one user message with one part, which names both languages,
and nothing else: no system message, no list of several parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from worker.engine import Piece
from worker.errors import RequestError
from worker.schema import ChatRequest, CompletionRequest, Message
from worker.text import tool_calls
from worker.text.answer_text import Marks, Vocabulary, is_open, marks_of, split_reasoning, until_stop
from worker.text.tool_calls import Markup

RESERVED: Final = frozenset(
    {"messages", "tools", "tool_choice", "functions", "function_call", "add_generation_prompt"}
    | {"bos_token", "eos_token", "raise_exception", "strftime_now"}
)
"""Template variables that a client must not set."""


def build_variables(request: ChatRequest) -> dict[str, Any]:
    """Return the chat template's variables that a request sets, by name. May be empty. They are those of
    `chat_template_kwargs`, `reasoning_effort` if the request has it with another value than `none`, and
    `enable_thinking`: True or False if `thinking` is `enabled` or `disabled`, and False if `reasoning_effort` is
    `none`.

    If several set the same variable, `thinking` counts before `chat_template_kwargs`, and that before
    `reasoning_effort`. Raises RequestError, with the field in `param`, for a variable in RESERVED.
    """
    client_variables = request.chat_template_kwargs or {}
    if reserved_names := sorted(RESERVED & client_variables.keys()):
        place = f"chat_template_kwargs.{reserved_names[0]}"
        raise RequestError(f"`{place}` cannot be set.", param=place)
    template_variables: dict[str, Any] = {}
    if request.reasoning_effort == "none":
        template_variables["enable_thinking"] = False
    elif request.reasoning_effort is not None:
        template_variables["reasoning_effort"] = request.reasoning_effort
    template_variables |= client_variables
    if request.thinking in ("enabled", "disabled"):
        template_variables["enable_thinking"] = request.thinking == "enabled"
    return template_variables


def messages_for(request: ChatRequest, template: str) -> list[dict[str, Any]]:
    """Return the conversation as the template with this Jinja source takes it: each message as `plain_message` returns
    it. The role `developer` becomes `system` unless the template mentions `developer`. Raises RequestError for content
    other than text."""
    messages = [plain_message(message, number) for number, message in enumerate(request.messages)]
    if "developer" not in template:
        for message in messages:
            message["role"] = "system" if message["role"] == "developer" else message["role"]
    return messages


def plain_message(message: Message, number: int = 0) -> dict[str, Any]:
    """Return a message in the form that templates know. `number` is its index, for errors. Raises RequestError for
    content other than text.

    Its content is one text; text parts are joined by newlines, and missing content is empty. Arguments of calls are
    objects, because templates write them as JSON themselves; a text that is not JSON stays. Thoughts are
    `reasoning_content`, whichever name the client used.
    """
    fields = message.model_dump(exclude_unset=True)
    fields["content"] = _text(message, number)
    thought = fields.pop("reasoning", None) or fields.get("reasoning_content")
    if thought:
        fields["reasoning_content"] = thought
    if isinstance(fields.get("tool_calls"), list):
        fields["tool_calls"] = [_with_object(call) for call in fields["tool_calls"]]
    return fields


def _text(message: Message, number: int) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    texts = []
    for index, part in enumerate(message.content):
        if part.get("type") != "text":
            place = f"messages[{number}].content[{index}].type"
            raise RequestError(f"This engine reads text, not {part.get('type')}.", param=place)
        texts.append(str(part.get("text", "")))
    return "\n".join(texts)


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return call | {"function": function | {"arguments": arguments}}


SOURCE: Final = "source_lang_code"
TARGET: Final = "target_lang_code"
MIXED: Final = frozenset({"auto", "mixed"})
"""Source languages that let the model detect the language."""
DETECT: Final = (
    "The text may be in several languages: detect the source language of each segment, and translate all of them.\n\n"
)
"""Text before a text whose language the model must detect."""


def structure_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """Return the messages for TranslateGemma's template: one user message with one part. The languages are those of the
    text part, else those of the request. If the source language is missing, `auto` or `mixed`, a sentence before the
    text asks the model to detect it.

    Raises:
        RequestError: with the field in `param`: `multi_turn_unsupported` for several messages, `tools_unsupported` for
            tools, `invalid_request` for a message that is not one text of the user, or a missing target language.
    """
    if request.tools:
        raise RequestError("TranslateGemma calls no tools.", code="tools_unsupported", param="tools")
    part = _part(request)
    target = _code(part, request, TARGET)
    if target is None:
        raise RequestError(
            f"`{TARGET}` is missing: name the language to translate into, such as `de` or `pt-BR`.", param=TARGET
        )
    text, source = part["text"], _code(part, request, SOURCE)
    if source is None or source in MIXED:
        text, source = DETECT + text, _fallback(target)
    content = {"type": "text", SOURCE: source, TARGET: target, "text": text}
    return [{"role": "user", "content": [content]}]


def _part(request: ChatRequest) -> dict[str, Any]:
    for number, message in enumerate(request.messages):
        if message.role not in ("user", "assistant"):
            raise RequestError(
                f"TranslateGemma takes no {message.role} message: send the text to translate as the user's.",
                param=f"messages[{number}].role",
            )
    if len(request.messages) > 1:
        raise RequestError("TranslateGemma takes one turn only.", code="multi_turn_unsupported", param="messages[1]")
    message = request.messages[0]
    if message.role != "user":
        raise RequestError("The text to translate must be the user's.", param="messages[0].role")
    content = message.content
    if isinstance(content, str):
        return {"type": "text", "text": content}
    if not content or len(content) > 1:
        raise RequestError("TranslateGemma takes one text part.", param="messages[0].content")
    part = content[0]
    if part.get("type") != "text":
        raise RequestError(f"This engine reads text, not {part.get('type')}.", param="messages[0].content[0].type")
    if not isinstance(part.get("text"), str):
        raise RequestError("`text` must be a text.", param="messages[0].content[0].text")
    return part


def _code(part: dict[str, Any], request: ChatRequest, name: str) -> str | None:
    part_code = part.get(name)
    if part_code is None:
        code: str | None = getattr(request, name)
        return code or None
    if not isinstance(part_code, str):
        raise RequestError(f"`{name}` must be a text.", param=f"messages[0].content[0].{name}")
    return part_code or None


def _fallback(target: str) -> str:
    """Return a language that the template knows and that is not the target."""
    return "es" if target.lower().startswith("en") else "en"


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


class TemplateForm:
    """A `Form` by a Jinja template that came with the model. `render` renders it and may raise the exceptions in
    `raised` and in `RAISED`; `template` is its source, by which marks and markup are found unless `prompt_format` names
    them."""

    def __init__(
        self,
        render: Callable[..., str],
        raised: tuple[type[Exception], ...],
        vocabulary: Vocabulary,
        template: str,
        prompt_format: str | None,
    ) -> None:
        self._render = render
        self._raised: tuple[type[Exception], ...] = (*RAISED, *raised)
        self._vocabulary = vocabulary
        self._template = template
        self._is_translategemma = prompt_format == TRANSLATEGEMMA
        self.marks = marks_of(prompt_format, template)
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


class Forms:
    """The forms of a loaded model's prompts: one, and one for requests that offer tools."""

    def __init__(self, form: Form | None, with_tools: Form | None) -> None:
        """`form`: for requests without tools; `with_tools`: for those with tools. None: no chat template."""
        self._form = form
        self._with_tools = with_tools

    def choose_form(self, request: ChatRequest) -> Form:
        """Return the form for this request: the one for tools only if the request offers tools. Raises RequestError
        with `param` `messages` if the model has no chat template."""
        form = self._with_tools if request.offered_tools else self._form
        if form is None:
            raise RequestError("This model has no chat template: send its prompt to /v1/completions.", param="messages")
        return form


class PromptedEngine:
    """Base of engines whose prompts are made by forms: the methods of `Engine` for tokens and prompts. `load_model` of
    a subclass sets `vocabulary` and `forms`."""

    vocabulary: Vocabulary
    forms: Forms

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. `add_special` adds those that a prompt begins or ends with; `parse_special`
        reads names of special tokens as these tokens."""
        return self.vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of each token, in order, also of special ones. RequestError for an unknown token."""
        return self.vocabulary.token_texts(tokens)

    def render_prompt(self, request: ChatRequest) -> str:
        """Return the text of a conversation's prompt, which is not answered. Raises RequestError if the model has no
        chat template, or it takes no such conversation."""
        return self.forms.choose_form(request).render_prompt(request).text

    def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of a conversation's prompt, which may be more than fit the context. Raises
        RequestError as `render_prompt`."""
        return len(self.forms.choose_form(request).render_prompt(request).tokens)

    def read_prompt(self, request: CompletionRequest) -> list[int]:
        """Return the tokens of a completion's prompt, at least one. A text gets the model's begin token, and names of
        special tokens in it are read as these tokens. Raises RequestError for several prompts, an empty one, and an
        unknown token."""
        prompt = request.text_or_tokens
        tokens = self.tokenize(prompt, add_special=True, parse_special=True) if isinstance(prompt, str) else prompt
        self.vocabulary.check_tokens(tokens, "prompt")
        if not tokens:
            raise RequestError("`prompt` is empty, and this model has no token to begin with.", param="prompt")
        return tokens


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
