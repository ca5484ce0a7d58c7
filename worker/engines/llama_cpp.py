"""llama-cpp-python: serves a GGUF model in this process, one request at a time."""

from __future__ import annotations

import importlib
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from worker.bindings.llama_devices import check_gpus
from worker.bindings.llama_prompts import Forms
from worker.bindings.llama_states import SessionStates
from worker.bindings.llama_vocabulary import LlamaVocabulary
from worker.engine import Api, FinishReason, Job, Piece, call_id
from worker.errors import LoadError, RequestError
from worker.preflight import KV_CACHE_TYPES, check_gguf
from worker.schema import ChatRequest, CompletionRequest, GenerationRequest
from worker.text import grammars, tool_calls
from worker.text.chat_template import build_variables
from worker.text.prompt_form import (
    PROMPT_FORMATS,
    Form,
    Prompt,
    check_tools,
    separate_calls,
    separate_reasoning,
    shown_texts,
)
from worker.text.reasoning import is_open
from worker.text.token_reader import TokenReader

SAMPLING: Final = (
    *("top_p", "top_k", "min_p", "typical_p", "mirostat_mode", "mirostat_tau", "mirostat_eta"),
    *("presence_penalty", "frequency_penalty", "repeat_penalty"),
)
"""Fields of a request that `Llama.generate` takes under the same name."""

CHAT_TEMPERATURE: Final = 0.2
"""Temperature of a chat that sets none; the library's own default."""
COMPLETION_TEMPERATURE: Final = 0.8
"""Temperature of a completion that sets none; the library's own default."""

CONTEXT_MULTIPLE = 256
EMBEDDING_TOKENS = 2048
"""Maximum tokens of a text to embed without `--n-ctx`, if the model's own context is not smaller."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add llama-cpp-python's command line flags to `parser`."""
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help="the GGUF file")
    parser.add_argument("--n-ctx", type=int, default=0, metavar="N", help="context in tokens; 0: the model's own")
    parser.add_argument("--n-gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU; -1: all")
    parser.add_argument(
        "--tensor-split", type=_shares, metavar="N,N...", help="shares of the GPUs; default: by their free memory"
    )
    parser.add_argument("--gpu-count", type=int, default=0, metavar="N", help="GPUs that must be there; default: 0")
    parser.add_argument("--flash-attn", choices=("on", "off", "auto"), default="auto")
    parser.add_argument("--type-k", choices=KV_CACHE_TYPES, default="f16", help="type of the K cache")
    parser.add_argument("--type-v", choices=KV_CACHE_TYPES, default="f16", help="type of the V cache")
    parser.add_argument("--embedding", action="store_true", help="serve embeddings, and nothing else")
    parser.add_argument(
        "--session-cache", type=int, default=0, metavar="N", help="sessions to keep in main memory; default: 0"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--chat-format", metavar="F", help="a chat format of llama-cpp-python's; default: the model's")
    form.add_argument("--prompt-format", choices=PROMPT_FORMATS, help="what the chat template in the file is")


def create(args: Namespace) -> LlamaCpp:
    """Return the engine that the parsed command line describes, not loaded yet. Checks nothing."""
    return LlamaCpp(args)


def flash_attention(choice: str, type_v: str) -> bool:
    """Return whether flash attention is used. `choice` is `on`, `off` or `auto`, `type_v` the type of the V cache.
    llama-cpp-python knows on and off only; `auto` is on only where llama.cpp requires it: for a quantised V cache."""
    return choice == "on" or (choice == "auto" and type_v not in ("f32", "f16", "bf16"))


def _shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def pad_context(n_ctx: int) -> int:
    """Return the context in tokens, rounded up to a multiple of CONTEXT_MULTIPLE as llama.cpp does it; 0 stays 0.
    llama-cpp-python sizes its own buffers by the number that it is given."""
    return -(-n_ctx // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE


class LlamaCpp:
    """The engine `llama_cpp`: serves one GGUF model by a `llama_cpp.Llama`, one request at a time. With `--embedding`
    it serves embeddings but no chat and completions, else the reverse; tokens of texts in any case."""

    slots = 1
    context_length: int | None = None
    cache_types: tuple[str, str] | None = None

    def __init__(self, args: Namespace) -> None:
        self.apis: frozenset[Api] = frozenset(
            {"embeddings", "tokens"} if args.embedding else {"chat", "completions", "tokens", "prompts"}
        )
        self._args = args
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._llama_cpp: Any = None
        self._llama: Any = None
        self._log: _Log
        self._vocabulary: LlamaVocabulary
        self._forms: Forms
        self._states: SessionStates

    def load_model(self) -> None:
        """Load the file. llama.cpp's log goes to stderr; after the load, only its warnings and errors do. Raises
        LoadError if the package is missing, the file is no GGUF file or cannot be loaded, or fewer GPUs than
        `--gpu-count` are seen; AttributeError if this version of llama-cpp-python lacks the type of `--type-k` or
        `--type-v`. See `Engine`."""
        args = self._args
        check_gguf(args.model)
        try:
            llama_cpp = self._llama_cpp = importlib.import_module("llama_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            raise LoadError(f"llama-cpp-python cannot be used: {error} (it is the extra `llama-cpp`)") from None
        self._log = _Log(llama_cpp)
        if args.gpu_count:
            check_gpus(llama_cpp, args.gpu_count, lambda: self._log.first_error)
        n_ctx = pad_context(args.n_ctx)
        # An embedding is computed in one batch, whose size limits the length of a text and costs memory.
        batch = dict.fromkeys(("n_batch", "n_ubatch"), n_ctx or EMBEDDING_TOKENS) if args.embedding else {}
        try:
            self._llama = llama_cpp.Llama(
                model_path=str(args.model),
                n_ctx=n_ctx,
                n_gpu_layers=args.n_gpu_layers,
                tensor_split=args.tensor_split,
                flash_attn=flash_attention(args.flash_attn, args.type_v),
                type_k=cache_type(llama_cpp, args.type_k),
                type_v=cache_type(llama_cpp, args.type_v),
                embedding=args.embedding,
                verbose=True,
                **batch,
            )
        except (ValueError, RuntimeError, MemoryError, llama_cpp.llama_chat_format.jinja2.TemplateError) as error:
            raise LoadError(f"llama.cpp cannot load {args.model}: {self._log.first_error or error}") from error
        self.context_length = self._llama.n_ctx()
        params = self._llama.context_params
        self.cache_types = (cache_type_name(llama_cpp, params.type_k), cache_type_name(llama_cpp, params.type_v))
        self._vocabulary = LlamaVocabulary(llama_cpp, self._llama)
        if not args.embedding:
            formats = {"chat_format": args.chat_format, "prompt_format": args.prompt_format}
            self._forms = Forms(llama_cpp, self._llama, self._vocabulary, **formats)
            self._states = SessionStates(llama_cpp, self._llama, args.session_cache)
        self._log.hide_info()
        self._llama.verbose = False

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Answer by the model's own chat template, or by the chat format of the command line. See `Engine.stream_chat`.

        Raises RequestError, from the call, if the template takes no such conversation, or the grammar, schema or tools
        cannot be followed. Raises it before the first piece if `logit_bias` has an unknown token, `ignore_eos` stands
        beside a grammar, or, with `context_length_exceeded`, the prompt does not fit. Raises JobCancelledError while
        iterating, once the job is cancelled.
        """
        form = self._forms.choose_form(request)
        prompt = form.render_prompt(request)
        must_call = tool_calls.forced_tools(request)
        if not must_call:
            check_tools(request, form)
        gbnf = self._grammar(request, form, prompt, must_call)
        shown_tokens = self._vocabulary.special_tokens_in(shown_texts(request, form))
        raw_pieces = self._stream_answer(prompt.tokens, request, job, CHAT_TEMPERATURE, gbnf, shown_tokens)
        pieces = separate_reasoning(raw_pieces, form, prompt)
        return _read_forced_calls(pieces, [*must_call]) if must_call else separate_calls(pieces, request, form, call_id)

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Continue the prompt without a template. A text gets the model's begin token, and names of special tokens in
        it are read as these tokens. See `Engine.stream_completion`.

        Raises RequestError, from the call, if there are several prompts, the prompt has no tokens or an unknown one,
        the grammar or schema cannot be followed, or the request asks for several. Raises it before the first piece if
        `logit_bias` has an unknown token, `ignore_eos` stands beside a grammar, or, with `context_length_exceeded`, the
        prompt does not fit. Raises JobCancelledError while iterating, once the job is cancelled.
        """
        prompt = request.text_or_tokens
        tokens = self.tokenize(prompt, add_special=True, parse_special=True) if isinstance(prompt, str) else prompt
        self._vocabulary.check_tokens(tokens, "prompt")
        if not tokens:
            raise RequestError("`prompt` is empty, and this model has no token to begin with.", param="prompt")
        gbnf, place = self._asked_grammar(request)
        if gbnf is not None:
            self._vocabulary.check_grammar(gbnf, place)
        return self._stream_answer(tokens, request, job, COMPLETION_TEMPERATURE, gbnf, ())

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Return for each text the model's pooled vector, or the mean over its tokens if the model does not pool,
        scaled to length 1. Raises RequestError for a text that is longer than one batch; nothing is cut. Raises
        JobCancelledError between texts, once the job is cancelled. See `Engine.embed_texts`."""
        vectors = []
        for text in texts:
            job.check_cancelled()
            try:
                vector, tokens = self._llama.embed(text, truncate=False, return_count=True)
            except ValueError as error:
                raise RequestError(f"`input` is too long: {error}", param="input") from error
            job.count_prompt_tokens(tokens)
            vectors.append(normalize_vector(mean_vector(vector) if vector and isinstance(vector[0], list) else vector))
        return vectors

    def join_tokens(self, tokens: list[int]) -> str:
        """Return the text of these tokens, because the library embeds texts only. Special tokens are left out; bytes
        that are not UTF-8 become U+FFFD. Raises RequestError if there is no such token."""
        self._vocabulary.check_tokens(tokens, "input")
        texts = (self._vocabulary.token_text(token, with_special=False) for token in tokens)
        return b"".join(texts).decode(errors="replace")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. Raises nothing once the model is loaded. `add_special` adds the tokens that a
        prompt starts or ends with. `parse_special` reads names of special tokens as these tokens, not as text."""
        return self._vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes that each token stands for, in order, also of special tokens. Raises RequestError with
        `param` `tokens` if there is no such token."""
        return self._vocabulary.token_texts(tokens)

    def render_prompt(self, request: ChatRequest) -> str:
        """Return the text of a conversation's prompt, which is not answered. Raises RequestError if the template or
        chat format takes no such conversation."""
        return self._forms.choose_form(request).render_prompt(request).text

    def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of a conversation's prompt, which may be more than fit the context. Raises
        RequestError if the template or chat format takes no such conversation."""
        return len(self._forms.choose_form(request).render_prompt(request).tokens)

    def _grammar(
        self, request: ChatRequest, form: Form, prompt: Prompt, must_call: dict[str, dict[str, Any]]
    ) -> str | None:
        gbnf, place = self._asked_grammar(request)
        if must_call:
            [*schemas], place = must_call.values(), "tools"
            schema = schemas[0] if len(schemas) == 1 else grammars.any_call_schema(must_call)
            gbnf = self._grammar_of(schema, place)
        if gbnf is None:
            return None
        if request.offered_tools and not must_call and form.markup:
            gbnf = grammars.allow_call(gbnf, form.markup.begin)
        if form.marks is not None:
            is_thinking = is_open(prompt.text, form.marks)
            if is_thinking or build_variables(request).get("enable_thinking") is not False:
                gbnf = grammars.allow_reasoning(gbnf, form.marks, is_thinking=is_thinking)
        self._vocabulary.check_grammar(gbnf, place)
        return gbnf

    def _asked_grammar(self, request: GenerationRequest) -> tuple[str | None, str]:
        """Return the grammar that the answer must follow, None if the request asks for none, and the field that asks
        for it."""
        schema, gbnf, place = grammars.constraint_asked(request)
        return (gbnf if schema is None else self._grammar_of(schema, place)), place

    def _grammar_of(self, schema: dict[str, Any], place: str) -> str:
        return grammars.gbnf_of(schema, place, self._llama_cpp.llama_grammar.json_schema_to_gbnf)

    def _stream_answer(
        self,
        tokens: list[int],
        request: GenerationRequest,
        job: Job,
        temperature: float,
        gbnf: str | None,
        shown_tokens: Collection[int],
    ) -> Generator[Piece]:
        room = self._llama.n_ctx() - len(tokens)
        if room <= 0:
            message = f"The prompt has {len(tokens)} tokens, more than fit the context of {self._llama.n_ctx()}."
            raise RequestError(message, code="context_length_exceeded")
        limit = min(request.token_limit or room, room)
        if request.ignore_eos and gbnf is not None:
            raise RequestError(
                "An answer that is held to a form ends with it: leave `ignore_eos` out.", param="ignore_eos"
            )
        job.check_cancelled()
        self._states.enter(request.session_id or None, tokens)
        self._llama.set_seed(self._llama_cpp.LLAMA_DEFAULT_SEED if request.seed is None else request.seed)
        generated_tokens = self._llama.generate(
            tokens,
            temp=temperature if request.temperature is None else request.temperature,
            logits_processor=self._bias(request),
            grammar=None if gbnf is None else self._llama_cpp.LlamaGrammar.from_string(gbnf, verbose=False),
            **sampling_options(request),
        )
        reader = TokenReader(self._vocabulary, shown_tokens)
        finish: FinishReason = "length"
        with closing(generated_tokens):
            for number, token in enumerate(generated_tokens, 1):
                if number == 1:
                    job.cached_tokens = self._states.count_cached(tokens)
                    job.count_prompt_tokens(len(tokens))
                job.count_token()
                if self._vocabulary.is_end_token(token):
                    finish = "stop"
                    break
                if text := reader.feed_token(token):
                    yield Piece(text)
                if number >= limit:
                    break
                job.check_cancelled()
        yield Piece(reader.flush_text(), finish_reason=finish)

    def _bias(self, request: GenerationRequest) -> Any:
        values = {int(token): value for token, value in (request.logit_bias or {}).items()}
        self._vocabulary.check_tokens(values, "logit_bias")
        if request.ignore_eos:
            values |= dict.fromkeys(self._vocabulary.end_tokens, -math.inf)
        if not values:
            return None

        def biased(tokens: Any, logits: Any) -> Any:
            for token, value in values.items():
                logits[token] += value
            return logits

        return self._llama_cpp.LogitsProcessorList([biased])


def _read_forced_calls(pieces: Generator[Piece], names: list[str]) -> Generator[Piece]:
    if len(names) == 1:
        return tool_calls.split_forced_call(pieces, names[0], call_id)
    return tool_calls.split_json_calls(pieces, call_id)


class _Log:
    """Sends llama.cpp's log to stderr and keeps its first error, the cause of those that follow.

    Must live as long as llama.cpp may log, because llama.cpp keeps a pointer into this object.
    """

    _WARNING, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level

    def __init__(self, llama_cpp: Any) -> None:
        self.first_error = ""
        self._least = 0
        self._level = 0
        self._callback = llama_cpp.llama_log_callback(self._write)
        llama_cpp.llama_log_set(self._callback, None)

    def hide_info(self) -> None:
        """Send warnings and errors only from now on."""
        self._least = self._WARNING

    def _write(self, level: int, text: bytes, user_data: object) -> None:
        self._level = self._level if level == self._CONTINUED else level
        line = text.decode(errors="replace")
        if self._level == self._ERROR and not self.first_error:
            self.first_error = line.strip()
        if self._level >= self._least:
            sys.stderr.write(line)


def cache_type(llama_cpp: Any, name: str) -> int:
    """Return ggml's number for a type of `KV_CACHE_TYPES`. Raises AttributeError if this version of llama-cpp-python
    has none."""
    return int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))


def cache_type_name(llama_cpp: Any, number: int) -> str:
    """Return the name in `KV_CACHE_TYPES` of the type with ggml's number `number`. For a type that is not in
    `KV_CACHE_TYPES`, return the number as text."""
    names = (name for name in KV_CACHE_TYPES if getattr(llama_cpp, f"GGML_TYPE_{name.upper()}", None) == number)
    return next(names, str(number))


def sampling_options(request: GenerationRequest) -> dict[str, Any]:
    """Return keyword arguments for `llama_cpp.Llama.generate`: those fields of `SAMPLING` that the request sets, with
    the request's values; empty if it sets none. For a missing argument the library's own default holds. Temperature and
    seed are not in `SAMPLING`: the caller passes them on itself."""
    return request.model_dump(include=set(SAMPLING), exclude_none=True)


def mean_vector(vectors: list[list[float]]) -> list[float]:
    """Return the mean of at least one token vector of equal widths: (tokens, width) to (width,)."""
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def normalize_vector(vector: list[float]) -> list[float]:
    """Return the vector scaled to Euclidean length 1; a zero vector stays zero."""
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]
