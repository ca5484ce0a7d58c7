"""Makes prompts for llama-cpp-python's models, by the chat template in the file or by a chat format of the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from worker.bindings.llama_vocabulary import LlamaVocabulary
from worker.errors import LoadError, RequestError
from worker.schema import ChatRequest
from worker.text.chat_template import messages_for
from worker.text.prompt_form import GENERIC, RAISED, Form, Prompt, TemplateForm
from worker.text.reasoning import Marks
from worker.text.tool_calls import Markup

_KEY: Final = "tokenizer.chat_template"


def file_template(
    llama_cpp: Any, llama: Any, vocabulary: LlamaVocabulary, template: str, prompt_format: str | None
) -> TemplateForm:
    """Return the form that renders a Jinja template of the GGUF file. `prompt_format` is what `--prompt-format` names;
    None: found out by the template's text. Raises jinja2.TemplateError for a template with a wrong syntax."""
    chat_format = llama_cpp.llama_chat_format
    formatter = chat_format.Jinja2ChatFormatter(
        template=template,
        bos_token=vocabulary.token_name(llama.token_bos()),
        eos_token=vocabulary.token_name(llama.token_eos()),
    )

    def render(**template_variables: Any) -> str:
        text: str = formatter(**template_variables).prompt
        return text

    return TemplateForm(render, (chat_format.jinja2.TemplateError,), vocabulary, template, prompt_format)


class LibraryFormat:
    """A `Form` by a chat format that is code in llama-cpp-python. How its models mark thoughts and tool calls is not
    known, so both stay in the text."""

    marks: Marks | None = None
    markup: Markup | None = None
    tells_tools = False

    def __init__(self, llama_cpp: Any, llama: Any, name: str) -> None:
        """Raises LoadError if llama-cpp-python has no format of this name."""
        try:
            self._handler = llama_cpp.llama_chat_format.get_chat_completion_handler(name)
        except Exception as error:
            raise LoadError(f"--chat-format {name}: neither the model nor llama-cpp-python has it") from error
        self._name = name
        self._llama = llama

    def render_prompt(self, request: ChatRequest) -> Prompt:
        """Return the prompt that the chat format would have llama.cpp complete, with the format's stop strings; nothing
        is completed. Raises RequestError where the format makes no prompt, and for content other than text."""
        scribe = _PromptRecorder(self._llama)
        tools = request.offered_tools or None
        try:
            self._handler(llama=scribe, messages=messages_for(request, ""), tools=tools, stream=True)
            tokens = scribe.options["prompt"]
            stops = tuple(stop for stop in scribe.options.get("stop") or () if stop)
            if isinstance(tokens, str):
                scribe.text, tokens = tokens.encode(), self._llama.tokenize(tokens.encode(), special=True)
        except RAISED as error:
            message = f"The chat format {self._name} makes no prompt of this conversation: {error!r:.300}"
            raise RequestError(message, param="messages") from error
        return Prompt(scribe.text.decode(), tokens, stops)


class _PromptRecorder:
    """Stands in for a `Llama`, and records the prompt that a chat format would have it complete."""

    verbose = False

    def __init__(self, llama: Any) -> None:
        self._llama = llama
        self.text = b""
        self.options: dict[str, Any] = {}

    def tokenize(self, text: bytes, **flags: bool) -> list[int]:
        self.text = text
        tokens: list[int] = self._llama.tokenize(text, **flags)
        return tokens

    def create_completion(self, **options: Any) -> Iterator[Any]:
        self.options = options
        return iter(())


class Forms:
    """The prompt forms of a loaded model: one, and for requests with tools a second one where the file has it.
    `chat_format`, `prompt_format`: what `--chat-format` and `--prompt-format` name; None: not given. Creating it raises
    LoadError if the command line's chat format or prompt format does not fit the file, and jinja2.TemplateError for a
    template with a wrong syntax."""

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
            else file_template(llama_cpp, llama, vocabulary, template, prompt_format)
        )
        self._with_tools = (
            self._form if with_tools is None else file_template(llama_cpp, llama, vocabulary, with_tools, prompt_format)
        )

    def choose_form(self, request: ChatRequest) -> Form:
        """Return the form for this request: the one for tools only if the request offers tools. Never fails."""
        return self._with_tools if request.offered_tools else self._form


def _template(metadata: Mapping[str, str], chat_format: str | None) -> str | None:
    if chat_format is None or chat_format == "chat_template.default":
        return metadata.get(_KEY)
    return metadata.get(f"{_KEY}.{chat_format.removeprefix('chat_template.')}")
