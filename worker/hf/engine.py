"""The base of engines whose models have a Hugging Face tokenizer: all but the computation itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from math import inf, isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from worker.engine import Api, FinishReason, Job, Piece, call_id
from worker.errors import RequestError
from worker.hf.folder import HFFolder
from worker.hf.vocabulary import HFVocabulary
from worker.schema import ChatRequest, CompletionRequest, GenerationRequest
from worker.text import tool_calls
from worker.text.grammars import check_unconstrained
from worker.text.prompt_form import check_tools, separate_calls, separate_reasoning, shown_texts
from worker.text.token_reader import TokenReader

if TYPE_CHECKING:
    from worker.hf.prompts import HFForms

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


class HFEngine:
    """The base of engines with a Hugging Face model folder: implements `Engine` for one model, except `load_model`,
    `generate_tokens` and `slots`, which a subclass defines. `load_model` must call `open_folder`. Embeddings are
    refused."""

    name: ClassVar[str]
    """Name of the engine in error messages."""
    sampling_fields: ClassVar[Collection[str]]
    """The fields of `NEUTRAL` that the engine supports."""
    apis: frozenset[Api] = frozenset({"chat", "completions", "tokens", "prompts"})
    context_length: int | None = None
    cache_types: tuple[str, str] | None = None
    vocabulary: HFVocabulary
    _forms: HFForms

    def open_folder(self, folder: HFFolder, prompt_format: str | None) -> None:
        """Read the tokenizer and the chat templates, and set `vocabulary`. `load_model` of a subclass calls it. Blocks.
        `prompt_format`: what `--prompt-format` names; None: found out by the template. Raises LoadError if a file
        cannot be used, and ImportError if `tokenizers` or `jinja2` is missing."""
        from worker.hf.prompts import HFForms

        self.vocabulary = HFVocabulary(folder)
        self._forms = HFForms(folder, self.vocabulary, prompt_format)

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
        """Answer a conversation by the folder's chat template: return an iterator of pieces, whose last one has a
        finish reason. The caller exhausts or closes it. See `Engine.stream_chat`.

        Raises RequestError, from the call or before the first piece: the folder has no template, or the template takes
        no such conversation or no tools; the request asks for a schema, a grammar, a forced tool call or unsupported
        sampling; or, with `context_length_exceeded`, the prompt does not fit. Raises JobCancelledError while iterating,
        once the job is cancelled.
        """
        form = self._forms.choose_form(request)
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
        """Continue a prompt, a text or token ids, as it is, without a template: return an iterator of pieces, whose
        last one has a finish reason. The caller exhausts or closes it. See `Engine.stream_completion`.

        Raises RequestError, from the call or before the first piece: the prompt is empty, is several texts, or has an
        unknown token; the request asks for a schema, a grammar or unsupported sampling; or, with
        `context_length_exceeded`, the prompt does not fit. Raises JobCancelledError while iterating, once the job is
        cancelled.
        """
        check_unconstrained(request, self.name)
        prompt = request.text_or_tokens
        tokens = self.tokenize(prompt, add_special=True, parse_special=True) if isinstance(prompt, str) else prompt
        self.vocabulary.check_tokens(tokens, "prompt")
        if not tokens:
            raise RequestError("`prompt` is empty, and this model has no token to begin with.", param="prompt")
        return self._stream_answer(tokens, request, job, ())

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Raise RequestError `not_supported`: these engines make no embeddings."""
        raise RequestError(f"{self.name} makes no embeddings here.", code="not_supported")

    def join_tokens(self, tokens: list[int]) -> str:
        """Raise RequestError `not_supported`: these engines make no embeddings."""
        raise RequestError(f"{self.name} makes no embeddings here.", code="not_supported")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. Raises nothing once the model is loaded. `add_special` adds the tokens that a
        prompt starts or ends with. `parse_special` reads names of special tokens as these tokens, not as text."""
        return self.vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes that each token stands for, in order, also of special tokens. Raises RequestError with
        `param` `tokens` if there is no such token."""
        return self.vocabulary.token_texts(tokens)

    def render_prompt(self, request: ChatRequest) -> str:
        """Return the text of a conversation's prompt, which is not answered. Raises RequestError if the folder has no
        chat template, or the template takes no such conversation."""
        return self._forms.choose_form(request).render_prompt(request).text

    def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of a conversation's prompt, which may be more than fit the context. Raises
        RequestError if the folder has no chat template, or the template takes no such conversation."""
        return len(self._forms.choose_form(request).render_prompt(request).tokens)

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
