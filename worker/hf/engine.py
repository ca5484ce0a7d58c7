"""What engines on Hugging Face's tokenizers share: prompts, and answers token by token."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Mapping
from datetime import datetime
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, ClassVar, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from worker.engine import Api, FinishReason, Job, PartialEngine, Piece, call_id
from worker.errors import LoadError, RequestError
from worker.hf.folder import HFFolder, HFVocabulary
from worker.schema import ChatRequest, CompletionRequest, GenerationRequest
from worker.text import tool_calls
from worker.text.answer_text import TokenReader
from worker.text.grammars import check_unconstrained
from worker.text.prompt_form import (
    Forms,
    PromptedEngine,
    TemplateForm,
    check_tools,
    separate_calls,
    separate_reasoning,
    shown_texts,
)


class _Generation(Extension):
    """Jinja's tag `{% generation %}`, which marks the model's own words for training. A prompt contains them like any
    others."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class HFForms(Forms):
    """The chat templates of a folder, compiled: one, and for requests with tools a second one where the folder has it.

    Creating it raises LoadError for a template with a wrong syntax, and if `prompt_format` is given where there is no
    template. A folder without templates is no error.
    """

    def __init__(self, folder: HFFolder, vocabulary: HFVocabulary, prompt_format: str | None) -> None:
        forms = {
            name: _form(name, template, folder.special_tokens, vocabulary, prompt_format)
            for name, template in folder.templates.items()
        }
        form = forms.get("default")
        super().__init__(form, forms.get("tool_use", form))
        if form is None and prompt_format is not None:
            raise LoadError(f"--prompt-format {prompt_format}: there is no chat template in {folder.path}")


def _form(
    name: str, template: str, tokens: Mapping[str, str], vocabulary: HFVocabulary, prompt_format: str | None
) -> TemplateForm:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: f"{datetime.now():{form}}"}  # noqa: DTZ005 - the host's day is meant
    try:
        compiled_template = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise LoadError(f"the chat template {name} cannot be used: {error}") from None

    def render(**template_variables: Any) -> str:
        return compiled_template.render({**tokens, **template_variables, "add_generation_prompt": True})

    return TemplateForm(render, (jinja2.TemplateError,), vocabulary, template, prompt_format)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes `<` as \u003c for HTML; models were not trained on that.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


NEUTRAL: Final[Mapping[str, object]] = MappingProxyType(
    {
        "min_p": 0,
        "typical_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repeat_penalty": 1,
        "mirostat_mode": 0,
        "logit_bias": {},
    }
)
"""Sampling fields that an engine may lack, and the values with which they do nothing."""


BOUNDS: Final[Mapping[str, tuple[Callable[[float], bool], str]]] = MappingProxyType(
    {
        "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
        "repeat_penalty": (lambda value: 0 < value < inf, "above 0"),
        "presence_penalty": (isfinite, "a finite number"),
        "frequency_penalty": (isfinite, "a finite number"),
        "temperature": (isfinite, "a finite number"),
    }
)
"""Sampling fields to the check of a valid value and its description. With other values the engines fail or compute
nonsense."""


class HFEngine(PromptedEngine, PartialEngine):
    """The base of engines with a Hugging Face model folder: implements `Engine` for one model, except `load_model`,
    `generate_tokens` and `slots`, which a subclass defines. `load_model` must call `open_folder`. Embeddings are
    refused."""

    name: ClassVar[str]
    """Name of the engine in error messages."""
    sampling_fields: ClassVar[Collection[str]]
    """The fields of `NEUTRAL` that the engine supports."""
    apis: frozenset[Api] = frozenset({"chat", "completions", "tokens", "prompts"})
    vocabulary: HFVocabulary

    def open_folder(self, folder: HFFolder, prompt_format: str | None) -> None:
        """Read the tokenizer and the chat templates, and set `vocabulary`. `load_model` of a subclass calls it. Blocks.
        `prompt_format`: what `--prompt-format` names; None: found out by the template. Raises LoadError if a file
        cannot be used, and ImportError if `tokenizers` or `jinja2` is missing."""

        self.vocabulary = HFVocabulary(folder)
        self.forms = HFForms(folder, self.vocabulary, prompt_format)

    def generate_tokens(
        self, tokens: list[int], limit: int | None, request: GenerationRequest, job: Job
    ) -> Generator[int]:
        """Yield tokens as they are generated, the end token included, at most `limit` (None: the engine's own bound). A
        subclass implements it; here it raises NotImplementedError.

        The prompt's `tokens` fit the context, and `request`'s sampling fields are checked. Raises RequestError before
        the first token. The base counts the tokens; closing the iterator must end the work.
        """
        raise NotImplementedError

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Answer a conversation by the folder's chat template. Raises RequestError, beside what `Engine.stream_chat`
        says, if the folder has no template, or the request asks for a schema, a grammar, a forced tool call or
        unsupported sampling."""
        form = self.forms.choose_form(request)
        check_unconstrained(request, self.name)
        if tool_calls.forced_tools(request):
            message = f"{self.name} cannot be made to call a tool: leave `tool_choice` at `auto`."
            raise RequestError(message, code="tools_unsupported", param="tool_choice")
        check_tools(request, form)
        prompt = form.render_prompt(request)
        shown_tokens = self.vocabulary.special_tokens_in(shown_texts(request, form))
        pieces = separate_reasoning(self._stream_answer(prompt.tokens, request, job, shown_tokens), form, prompt)
        return separate_calls(pieces, request, form, call_id)

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Continue a prompt as it is, without a template. Raises RequestError, beside what `Engine.stream_completion`
        says, for a schema, a grammar or unsupported sampling."""
        check_unconstrained(request, self.name)
        return self._stream_answer(self.read_prompt(request), request, job, ())

    def _stream_answer(
        self, tokens: list[int], request: GenerationRequest, job: Job, shown_tokens: Collection[int]
    ) -> Generator[Piece]:
        self._check_sampling(request)
        limit = request.token_limit
        if self.context_length is not None:
            room = self.context_length - len(tokens)
            if room <= 0:
                message = f"The prompt has {len(tokens)} tokens, more than fit the context of {self.context_length}."
                raise RequestError(message, code="context_length_exceeded")
            limit = min(limit or room, room)
        return self._pieces(self.generate_tokens(tokens, limit, request, job), len(tokens), job, shown_tokens)

    def _pieces(
        self, generated_tokens: Generator[int], prompt_tokens: int, job: Job, shown_tokens: Collection[int]
    ) -> Generator[Piece]:
        reader = TokenReader(self.vocabulary, shown_tokens)
        finish: FinishReason = "length"
        job.check_cancelled()
        try:
            for number, token in enumerate(generated_tokens):
                if number == 0:
                    job.count_prompt_tokens(prompt_tokens)
                job.count_token()
                if token in self.vocabulary.end_tokens:
                    finish = "stop"
                    break
                if text := reader.feed_token(token):
                    yield Piece(text)
                job.check_cancelled()
        finally:
            generated_tokens.close()
        yield Piece(reader.flush_text(), finish_reason=finish)

    def _check_sampling(self, request: GenerationRequest) -> None:
        for name in sorted(NEUTRAL.keys() - {*self.sampling_fields}):
            value: Any = getattr(request, name)
            if value is not None and value != NEUTRAL[name]:
                raise RequestError(f"{self.name} cannot sample by `{name}`: leave it out.", param=name)
        for name, (is_valid, rule) in BOUNDS.items():
            value = getattr(request, name)
            if value is not None and not is_valid(value):
                raise RequestError(f"`{name}` must be {rule}; it is {value}.", param=name)
