"""llama-cpp-python: serves a GGUF model in this process, one request at a time."""

from __future__ import annotations

import ctypes
import importlib
import math
import sys
from argparse import ArgumentParser, Namespace
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

from worker.engine import Api, FinishReason, Job, PartialEngine, Piece, call_id
from worker.errors import LoadError, RequestError
from worker.preflight import KV_CACHE_TYPES, check_gguf
from worker.schema import ChatRequest, CompletionRequest, GenerationRequest
from worker.text import grammars, tool_calls
from worker.text.answer_text import Marks, TokenReader, Vocabulary, is_open
from worker.text.prompt_form import (
    GENERIC,
    PROMPT_FORMATS,
    RAISED,
    Form,
    Forms,
    Prompt,
    PromptedEngine,
    TemplateForm,
    build_variables,
    check_tools,
    messages_for,
    separate_calls,
    separate_reasoning,
    shown_texts,
)
from worker.text.tool_calls import Markup

_GPU_TYPES: Final = (1, 2)
"""GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU of ggml-backend.h."""


def check_gpus(llama_cpp: Any, gpu_count: int, read_first_error: Callable[[], str]) -> None:
    """Check that llama.cpp sees at least `gpu_count` GPUs. If it saw none, it would compute on the CPU and only log a
    warning.

    `llama_cpp` is the module; the check starts CUDA. `read_first_error` returns the first error in llama.cpp's log,
    which this check may cause. Returns without an error if this version's libraries do not tell the number of GPUs, but
    can compute on GPUs.

    Raises:
        LoadError: llama.cpp sees fewer GPUs.
    """
    can_offload = llama_cpp.llama_supports_gpu_offload()  # this starts CUDA
    seen_count = _count_gpus(llama_cpp)
    if seen_count is None:
        seen_count = gpu_count if can_offload else 0
    if seen_count >= gpu_count:
        return
    if seen_count:
        raise LoadError(f"llama.cpp sees {seen_count} of the {gpu_count} GPUs that it was given: look after the driver")
    cause = read_first_error() or ("CUDA did not start" if _has_cuda(llama_cpp) else "it was built without CUDA")
    raise LoadError(f"llama-cpp-python: {cause}: llama.cpp sees no GPU, and was given {gpu_count}")


def _count_gpus(llama_cpp: Any) -> int | None:
    """Return how many GPUs llama.cpp sees; None if this version's libraries do not tell."""
    try:
        library = _open_library(llama_cpp)
        count, get, type_of = (
            library.ggml_backend_dev_count,
            library.ggml_backend_dev_get,
            library.ggml_backend_dev_type,
        )
    except AttributeError:
        return None
    count.restype = ctypes.c_size_t
    get.argtypes, get.restype = [ctypes.c_size_t], ctypes.c_void_p
    type_of.argtypes, type_of.restype = [ctypes.c_void_p], ctypes.c_int
    return sum(type_of(get(number)) in _GPU_TYPES for number in range(count()))


def _has_cuda(llama_cpp: Any) -> bool:
    try:
        find_backend = _open_library(llama_cpp).ggml_backend_reg_by_name
    except AttributeError:
        return False
    find_backend.argtypes, find_backend.restype = [ctypes.c_char_p], ctypes.c_void_p
    return find_backend(b"CUDA") is not None


def _open_library(llama_cpp: Any) -> Any:
    return llama_cpp.llama_cpp._lib  # noqa: SLF001 - the package has no public way to ggml's devices


class LlamaVocabulary(Vocabulary):
    """The vocabulary of a loaded model. Valid as long as the `Llama` it was made of."""

    def __init__(self, llama_cpp: Any, llama: Any) -> None:
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._llama_cpp = llama_cpp
        self._llama = llama
        self._vocab = llama_cpp.llama_model_get_vocab(llama.model)
        self.size: int = llama.n_vocab()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens: list[int] = self._llama.tokenize(
            text.encode(errors="replace"), add_bos=add_special, special=parse_special
        )
        return tokens

    def token_text(self, token: int, *, with_special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, with_special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def token_name(self, token: int) -> str:
        """Return a token's text as the vocabulary stores it, which for special tokens is what templates write; empty
        for -1 (no token). Any other `token` must be an id of the model's vocabulary, which is not checked."""
        return "" if token < 0 else str(self._llama_cpp.llama_vocab_get_text(self._vocab, token).decode())

    def is_end_token(self, token: int) -> bool:
        """Return whether the token ends an answer. `token` must be an id of the model's vocabulary, which is not
        checked."""
        return bool(self._llama_cpp.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids of all tokens that end an answer, ascending. May be empty."""
        return tuple(token for token in range(self.size) if self.is_end_token(token))

    def check_grammar(self, gbnf: str, place: str) -> None:
        """Raise RequestError, with `place` as `param`, if llama.cpp cannot read the GBNF grammar, whose start rule must
        be `root`. Call this before a sampler is made with the grammar: llama.cpp would crash otherwise."""
        sampler = self._llama_cpp.llama_sampler_init_grammar(self._vocab, gbnf.encode(), b"root")
        if not sampler:
            raise RequestError(f"`{place}` cannot be followed: llama.cpp makes no grammar of it.", param=place)
        self._llama_cpp.llama_sampler_free(sampler)


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


class LlamaForms(Forms):
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
        form: Form = (
            LibraryFormat(llama_cpp, llama, chat_format or llama.chat_format)
            if template is None
            else file_template(llama_cpp, llama, vocabulary, template, prompt_format)
        )
        tools_form: Form = (
            form if with_tools is None else file_template(llama_cpp, llama, vocabulary, with_tools, prompt_format)
        )
        super().__init__(form, tools_form)


def _template(metadata: Mapping[str, str], chat_format: str | None) -> str | None:
    if chat_format is None or chat_format == "chat_template.default":
        return metadata.get(_KEY)
    return metadata.get(f"{_KEY}.{chat_format.removeprefix('chat_template.')}")


_SEQUENCE = 0
"""The sequence of the context that llama-cpp-python uses."""


class KeptState(NamedTuple):
    """The cache of one session, copied out of llama.cpp's context to main memory, and the tokens that it holds."""

    tokens: list[int]
    data: Any
    """A ctypes array, as llama.cpp wrote it."""


class SessionStates:
    """The sessions of one `llama_cpp.Llama`: the cache of the last one is in its context, those of others in main
    memory.

    At most `capacity` sessions, which together have at most as many tokens as the context; the least recently used ones
    are dropped. Not thread-safe: call from the thread that generates.
    """

    def __init__(self, llama_cpp: Any, llama: Any, capacity: int) -> None:
        """`llama_cpp`: the library's module. `llama`: the model, whose `eval` is wrapped to count tokens. `capacity`:
        maximum number of sessions; 0: none, and each request finds the context as the last request left it."""
        self._library = llama_cpp
        self._llama = llama
        self._capacity = capacity
        self._kept: OrderedDict[str, KeptState] = OrderedDict()
        self._present: str | None = None
        """The session whose tokens are in the context; None: a request's without a session."""
        self._evaluate = llama.eval
        self._evaluated: int | None = None
        llama.eval = self._count_first

    def enter(self, session_id: str | None, prompt: Sequence[int]) -> None:
        """Make the context ready for a request, `prompt` being its tokens. Call once before its answer is generated.

        If the context holds another session, that session's cache is copied to main memory, and sessions beyond the
        capacity are dropped. Then the kept cache of `session_id` is restored into the context, if it begins with more
        tokens of `prompt` than the context does. If there is no memory for a copy, that session's cache is lost,
        without an error.

        `session_id` None: the request belongs to no session.
        """
        self._evaluated = None
        if not self._capacity:
            return
        if session_id != self._present:
            state = None if session_id is None else self._kept.pop(session_id, None)
            self._put_away(self._capacity - (session_id is not None))
            if state is not None and _shared(state.tokens, prompt) > _shared(self._tokens(), prompt):
                self._restore(state)
        self._present = session_id

    def count_cached(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of `prompt` were in the cache. Call only after the first token of its answer."""
        return len(prompt) - (self._evaluated or 0)

    def _count_first(self, tokens: Sequence[int]) -> None:
        if self._evaluated is None:
            self._evaluated = len(tokens)
        self._evaluate(tokens)

    def _tokens(self) -> list[int]:
        return list(map(int, self._llama.input_ids[: self._llama.n_tokens]))

    def _put_away(self, most: int) -> None:
        """Copy the session that is in the context, if one is, to main memory, where `most` sessions are kept."""
        tokens = [] if self._present is None else self._tokens()
        self._make_room(most - bool(tokens), self._llama.n_ctx() - len(tokens))
        if self._present is None or not tokens or not most:
            return
        try:
            size = self._library.llama_state_seq_get_size(self._llama.ctx, _SEQUENCE)
            data = (ctypes.c_uint8 * size)()
        except MemoryError:
            return
        if self._library.llama_state_seq_get_data(self._llama.ctx, data, size, _SEQUENCE) == size:
            self._kept[self._present] = KeptState(tokens, data)

    def _make_room(self, most: int, most_tokens: int) -> None:
        """Drop the sessions used longest ago until no more are kept, and no more tokens of them together."""
        while self._kept and (
            len(self._kept) > most or sum(len(state.tokens) for state in self._kept.values()) > most_tokens
        ):
            self._kept.popitem(last=False)

    def _restore(self, state: KeptState) -> None:
        llama, library = self._llama, self._library
        llama.reset()
        library.llama_memory_clear(library.llama_get_memory(llama.ctx), True)
        if library.llama_state_seq_set_data(llama.ctx, state.data, len(state.data), _SEQUENCE) == len(state.data):
            llama.input_ids[: len(state.tokens)] = state.tokens
            llama.n_tokens = len(state.tokens)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens are equal from the first on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


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


class LlamaCpp(PromptedEngine, PartialEngine):
    """The engine `llama_cpp`: serves one GGUF model by a `llama_cpp.Llama`, one request at a time. With `--embedding`
    it serves embeddings but no chat and completions, else the reverse; tokens of texts in any case."""

    slots = 1
    vocabulary: LlamaVocabulary

    def __init__(self, args: Namespace) -> None:
        self.apis: frozenset[Api] = frozenset(
            {"embeddings", "tokens"} if args.embedding else {"chat", "completions", "tokens", "prompts"}
        )
        self._args = args
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._llama_cpp: Any = None
        self._llama: Any = None
        self._log: _Log
        self._states: SessionStates

    def load_model(self) -> None:
        """Load the file. llama.cpp's log goes to stderr; after the load, only its warnings and errors do. Raises
        LoadError if the package is missing, the file is no GGUF file or cannot be loaded, or fewer GPUs than
        `--gpu-count` are seen; AttributeError if this version of llama-cpp-python lacks the type of `--type-k` or
        `--type-v`."""
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
        self.vocabulary = LlamaVocabulary(llama_cpp, self._llama)
        if not args.embedding:
            formats = {"chat_format": args.chat_format, "prompt_format": args.prompt_format}
            self.forms = LlamaForms(llama_cpp, self._llama, self.vocabulary, **formats)
            self._states = SessionStates(llama_cpp, self._llama, args.session_cache)
        self._log.hide_info()
        self._llama.verbose = False

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Answer by the model's own chat template, or by the chat format of the command line. Raises RequestError,
        beside what `Engine.stream_chat` says, if the grammar, schema or tools cannot be followed, `logit_bias` has an
        unknown token, or `ignore_eos` stands beside a grammar."""
        form = self.forms.choose_form(request)
        prompt = form.render_prompt(request)
        must_call = tool_calls.forced_tools(request)
        if not must_call:
            check_tools(request, form)
        gbnf = self._grammar(request, form, prompt, must_call)
        shown_tokens = self.vocabulary.special_tokens_in(shown_texts(request, form))
        raw_pieces = self._stream_answer(prompt.tokens, request, job, CHAT_TEMPERATURE, gbnf, shown_tokens)
        pieces = separate_reasoning(raw_pieces, form, prompt)
        return _read_forced_calls(pieces, [*must_call]) if must_call else separate_calls(pieces, request, form, call_id)

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Continue the prompt without a template (`read_prompt`). Raises RequestError as `stream_chat`."""
        tokens = self.read_prompt(request)
        gbnf, place = self._asked_grammar(request)
        if gbnf is not None:
            self.vocabulary.check_grammar(gbnf, place)
        return self._stream_answer(tokens, request, job, COMPLETION_TEMPERATURE, gbnf, ())

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Return for each text the model's pooled vector, or the mean over its tokens if the model does not pool,
        scaled to length 1. Raises RequestError for a text that is longer than one batch; nothing is cut. Raises
        JobCancelledError between texts, once the job is cancelled."""
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
        self.vocabulary.check_tokens(tokens, "input")
        texts = (self.vocabulary.token_text(token, with_special=False) for token in tokens)
        return b"".join(texts).decode(errors="replace")

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
        self.vocabulary.check_grammar(gbnf, place)
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
        reader = TokenReader(self.vocabulary, shown_tokens)
        finish: FinishReason = "length"
        with closing(generated_tokens):
            for number, token in enumerate(generated_tokens, 1):
                if number == 1:
                    job.cached_tokens = self._states.count_cached(tokens)
                    job.count_prompt_tokens(len(tokens))
                job.count_token()
                if self.vocabulary.is_end_token(token):
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
        self.vocabulary.check_tokens(values, "logit_bias")
        if request.ignore_eos:
            values |= dict.fromkeys(self.vocabulary.end_tokens, -math.inf)
        if not values:
            return None

        def biased(tokens: Any, logits: Any) -> Any:
            for token, value in values.items():
                logits[token] += value
            return logits

        return self._llama_cpp.LogitsProcessorList([biased])


create = LlamaCpp


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
