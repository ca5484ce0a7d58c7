"""What llama-cpp-python's models are asked: conversations as prompts, by the template in the file or by one of the
library's own chat formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from worker import thoughts, tool_calls
from worker.chat_template import messages_for, variables
from worker.errors import LoadError, RequestError
from worker.llama_vocabulary import LlamaVocabulary
from worker.schema import ChatRequest
from worker.thoughts import Marks
from worker.tool_calls import Markup
from worker.translategemma import structured

TRANSLATEGEMMA: Final = "translategemma_template"
GENERIC: Final = "generic"
PROMPT_FORMATS: Final = (GENERIC, "mistral_template", "qwen3_template", "gemma4_template", TRANSLATEGEMMA)

_KEY: Final = "tokenizer.chat_template"
_RAISED: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


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

    def prompt(self, request: ChatRequest) -> Prompt:
        """Raises RequestError."""


class FileTemplate:
    """A Jinja template of the file's."""

    def __init__(
        self, llama_cpp: Any, llama: Any, vocabulary: LlamaVocabulary, template: str, prompt_format: str | None
    ) -> None:
        chat_format = llama_cpp.llama_chat_format
        self._raised = (*_RAISED, chat_format.jinja2.TemplateError)
        self._formatter = chat_format.Jinja2ChatFormatter(
            template=template,
            bos_token=vocabulary.name(llama.token_bos()),
            eos_token=vocabulary.name(llama.token_eos()),
        )
        self._vocabulary = vocabulary
        self._template = template
        self._is_translategemma = prompt_format == TRANSLATEGEMMA
        self.marks = thoughts.marks_of(prompt_format, template)
        self.markup = tool_calls.markup_of(prompt_format, template)
        self.tells_tools = "tools" in template or self.markup is not None

    def prompt(self, request: ChatRequest) -> Prompt:
        """See Form."""
        messages = structured(request) if self._is_translategemma else messages_for(request, self._template)
        given = variables(request)
        try:
            text = self._formatter(messages=messages, tools=request.offered_tools or None, **given).prompt
        except self._raised as error:
            reason = str(error) or type(error).__name__
            message = f"The chat template makes no prompt of this conversation: {reason:.300}"
            raise RequestError(message, param="messages") from error
        return Prompt(text, self._vocabulary.tokenize(text, add_special=False, parse_special=True))


class LibraryFormat:
    """A chat format that is code of llama-cpp-python's. How its models think and call tools is not known."""

    marks: Marks | None = None
    markup: Markup | None = None
    tells_tools = False

    def __init__(self, llama_cpp: Any, llama: Any, name: str) -> None:
        try:
            self._handler = llama_cpp.llama_chat_format.get_chat_completion_handler(name)
        except Exception as error:
            raise LoadError(f"--chat-format {name}: neither the model nor llama-cpp-python has it") from error
        self._name = name
        self._llama = llama

    def prompt(self, request: ChatRequest) -> Prompt:
        """See Form."""
        scribe = _Scribe(self._llama)
        tools = request.offered_tools or None
        try:
            self._handler(llama=scribe, messages=messages_for(request, ""), tools=tools, stream=True)
            tokens = scribe.options["prompt"]
            stops = tuple(stop for stop in scribe.options.get("stop") or () if stop)
            if isinstance(tokens, str):
                scribe.text, tokens = tokens.encode(), self._llama.tokenize(tokens.encode(), special=True)
        except _RAISED as error:
            message = f"The chat format {self._name} makes no prompt of this conversation: {error!r:.300}"
            raise RequestError(message, param="messages") from error
        return Prompt(scribe.text.decode(), tokens, stops)


class _Scribe:
    """In the place of a `Llama`: takes down what a chat format would let it complete."""

    verbose = False

    def __init__(self, llama: Any) -> None:
        self._llama = llama
        self.text = b""
        self.options: dict[str, Any] = {}

    def tokenize(self, text: bytes, **how: bool) -> list[int]:
        self.text = text
        tokens: list[int] = self._llama.tokenize(text, **how)
        return tokens

    def create_completion(self, **options: Any) -> Iterator[Any]:
        self.options = options
        return iter(())


class Forms:
    """The ways that a loaded model has: one, or a second one for requests with tools."""

    def __init__(
        self,
        llama_cpp: Any,
        llama: Any,
        vocabulary: LlamaVocabulary,
        *,
        chat_format: str | None,
        prompt_format: str | None,
    ) -> None:
        template = _template(llama.metadata, chat_format)
        with_tools = llama.metadata.get(f"{_KEY}.tool_use") if chat_format is None else None
        if template is None and prompt_format not in (None, GENERIC):
            raise LoadError(f"--prompt-format {prompt_format}: the file has no chat template")
        self._form: Form = (
            LibraryFormat(llama_cpp, llama, chat_format or llama.chat_format)
            if template is None
            else FileTemplate(llama_cpp, llama, vocabulary, template, prompt_format)
        )
        self._with_tools = (
            self._form if with_tools is None else FileTemplate(llama_cpp, llama, vocabulary, with_tools, prompt_format)
        )

    def of(self, request: ChatRequest) -> Form:
        """The one for this request."""
        return self._with_tools if request.offered_tools else self._form


def _template(metadata: Mapping[str, str], chat_format: str | None) -> str | None:
    if chat_format is None or chat_format == "chat_template.default":
        return metadata.get(_KEY)
    return metadata.get(f"{_KEY}.{chat_format.removeprefix('chat_template.')}")
