"""llama-cpp-python: a GGUF model in this process."""

from __future__ import annotations

import importlib
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from worker.engine import Api, Job, Piece
from worker.errors import LoadError, RequestError
from worker.preflight import KV_CACHE_TYPES, check_gguf
from worker.schema import ChatRequest, CompletionRequest, GenerationRequest, Message

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repeat_penalty", "mirostat_mode", "mirostat_tau", "mirostat_eta"),
)
"""Fields of a request that llama-cpp-python takes under the same name."""

CONTEXT_MULTIPLE = 256
EMBEDDING_TOKENS = 2048
"""Longest text to embed when `--n-ctx` does not say; never more than the model's own context."""


def add_arguments(parser: ArgumentParser) -> None:
    """The engine's own flags."""
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help="the GGUF file")
    parser.add_argument("--n-ctx", type=int, default=0, metavar="N", help="context in tokens; 0: the model's own")
    parser.add_argument("--n-gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU; -1: all")
    parser.add_argument("--flash-attn", choices=("on", "off", "auto"), default="auto")
    parser.add_argument("--type-k", choices=KV_CACHE_TYPES, default="f16", help="type of the K cache")
    parser.add_argument("--type-v", choices=KV_CACHE_TYPES, default="f16", help="type of the V cache")
    parser.add_argument("--embedding", action="store_true", help="serve embeddings, and nothing else")
    parser.add_argument("--chat-format", metavar="F", help="a chat format of llama-cpp-python's; default: the model's")


def create(args: Namespace) -> LlamaCpp:
    """The engine that the command line describes."""
    return LlamaCpp(args)


def flash_attention(choice: str, type_v: str) -> bool:
    """llama-cpp-python knows on and off; `auto` is on where llama.cpp insists: a quantised V cache."""
    return choice == "on" or (choice == "auto" and type_v not in ("f32", "f16", "bf16"))


def padded(n_ctx: int) -> int:
    """The context as llama.cpp will round it up. llama-cpp-python sizes its own buffers by what it is told."""
    return -(-n_ctx // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE


class LlamaCpp:
    """One `llama_cpp.Llama`, which serves one request at a time."""

    slots = 1

    def __init__(self, args: Namespace) -> None:
        self.apis: frozenset[Api] = frozenset({"embeddings"} if args.embedding else {"chat", "completions"})
        self._args = args
        self._llama: Any = None
        self._log: _Log
        self._generate: Callable[..., Iterator[int]]
        self._bad_request: tuple[type[Exception], ...] = ()

    def load(self) -> None:
        """Load the file. llama.cpp's log of it goes to stderr; the lines about single requests do not."""
        args = self._args
        check_gguf(args.model)
        try:
            # Untyped on purpose: type checks must not depend on whether the extra is installed.
            llama_cpp: Any = importlib.import_module("llama_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            raise LoadError(f"llama-cpp-python cannot be used: {error} (it is the extra `llama-cpp`)") from None
        self._log = _Log(llama_cpp)
        n_ctx = padded(args.n_ctx)
        # An embedding is made in one batch, which bounds the length of a text; a larger one needs more memory.
        batch = dict.fromkeys(("n_batch", "n_ubatch"), n_ctx or EMBEDDING_TOKENS) if args.embedding else {}
        try:
            self._llama = llama_cpp.Llama(
                model_path=str(args.model),
                n_ctx=n_ctx,
                n_gpu_layers=args.n_gpu_layers,
                flash_attn=flash_attention(args.flash_attn, args.type_v),
                type_k=cache_type(llama_cpp, args.type_k),
                type_v=cache_type(llama_cpp, args.type_v),
                embedding=args.embedding,
                chat_format=args.chat_format,
                verbose=True,
                **batch,
            )
        except (ValueError, RuntimeError, MemoryError) as error:
            raise LoadError(f"llama.cpp cannot load {args.model}: {self._log.first_error or error}") from error
        self._check_chat_format(llama_cpp)
        self._log.quiet()
        self._llama.verbose = False
        self._generate = self._llama.generate
        self._bad_request = (ValueError, LookupError, TypeError, llama_cpp.llama_chat_format.jinja2.TemplateError)

    def chat(self, request: ChatRequest, job: Job) -> Iterator[Piece]:
        """Through the model's own chat template, or the format that was asked for."""
        options = {
            **sampling(request),
            "messages": [plain(message) for message in request.messages],
            "max_tokens": request.token_limit,
            "response_format": response_format(request.response_format),
            "tools": request.tools,
            "tool_choice": request.tool_choice,
        }
        return self._stream(lambda: self._llama.create_chat_completion(stream=True, **options), job, chat_pieces)

    def complete(self, request: CompletionRequest, job: Job) -> Iterator[Piece]:
        """The prompt as it is, without a template."""
        options = {**sampling(request), "prompt": request.prompt}
        if request.token_limit is not None:
            options["max_tokens"] = request.token_limit
        return self._stream(lambda: self._llama.create_completion(stream=True, **options), job, completion_pieces)

    def embed(self, texts: list[str], job: Job) -> list[list[float]]:
        """The model's pooled vectors; the mean over tokens where the model pools nothing."""
        vectors = []
        for text in texts:
            job.check()
            try:
                vector, tokens = self._llama.embed(text, truncate=False, return_count=True)
            except ValueError as error:
                raise RequestError(f"`input` is too long: {error}", param="input") from error
            job.count_prompt(tokens)
            vectors.append(unit(mean(vector) if vector and isinstance(vector[0], list) else vector))
        return vectors

    def _stream(
        self, start: Callable[[], Iterable[Any]], job: Job, pieces: Callable[[Iterable[Any]], Iterator[Piece]]
    ) -> Iterator[Piece]:
        # All of llama-cpp-python's ways to answer call `generate`: the one place that sees every token.
        self._llama.generate = lambda tokens, *args, **kwargs: self._metered(job, tokens, args, kwargs)
        try:
            yield from pieces(start())
        except self._bad_request as error:
            code = "context_length_exceeded" if "exceed context window" in str(error) else "invalid_request"
            reason = f"{error}" if isinstance(error, ValueError) else repr(error)
            raise RequestError(f"llama.cpp cannot answer this request: {reason}", code=code) from error

    def _metered(self, job: Job, tokens: Any, args: Any, kwargs: Any) -> Iterator[int]:
        job.check()
        counted = False
        for token in self._generate(tokens, *args, **kwargs):
            if not counted:
                job.count_prompt(len(tokens))
                counted = True
            job.count_token()
            yield token
            job.check()

    def _check_chat_format(self, llama_cpp: Any) -> None:
        name = self._args.chat_format
        if name is None or name == "chat_template.default" or f"tokenizer.chat_template.{name}" in self._llama.metadata:
            return
        try:
            llama_cpp.llama_chat_format.get_chat_completion_handler(name)
        except Exception as error:
            raise LoadError(f"--chat-format {name}: neither the model nor llama-cpp-python has it") from error


class _Log:
    """Sends llama.cpp's log to stderr and keeps its first error: the cause, where later ones are consequences.

    Must live as long as llama.cpp may log: it keeps a pointer into this object.
    """

    _WARNING, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level

    def __init__(self, llama_cpp: Any) -> None:
        self.first_error = ""
        self._least = 0
        self._level = 0
        self._callback = llama_cpp.llama_log_callback(self._write)
        llama_cpp.llama_log_set(self._callback, None)

    def quiet(self) -> None:
        """Warnings and errors only."""
        self._least = self._WARNING

    def _write(self, level: int, text: bytes, user_data: object) -> None:
        self._level = self._level if level == self._CONTINUED else level
        line = text.decode(errors="replace")
        if self._level == self._ERROR and not self.first_error:
            self.first_error = line.strip()
        if self._level >= self._least:
            sys.stderr.write(line)


def cache_type(llama_cpp: Any, name: str) -> int:
    """ggml's number for a type of `KV_CACHE_TYPES`."""
    return int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))


def sampling(request: GenerationRequest) -> dict[str, Any]:
    """The sampling fields that the request sets. What it leaves out, the library decides."""
    given = request.model_dump(include=set(SAMPLING), exclude_none=True)
    extra = {name: value for name, value in (request.model_extra or {}).items() if name in SAMPLING}
    return given | {name: value for name, value in extra.items() if value is not None}


def plain(message: Message) -> dict[str, Any]:
    """A message as chat templates know it, its content one text. Raises RequestError for images and the like."""
    fields = message.model_dump(exclude_unset=True)
    if isinstance(message.content, list):
        if other := next((part for part in message.content if part.get("type") != "text"), None):
            raise RequestError(f"This engine reads text, not {other.get('type')}.", param="messages")
        fields["content"] = "".join(str(part.get("text", "")) for part in message.content)
    return fields


def response_format(asked: dict[str, Any] | None) -> dict[str, Any] | None:
    """OpenAI's `json_schema` in llama-cpp-python's words."""
    if asked is not None and asked.get("type") == "json_schema":
        return {"type": "json_object", "schema": asked.get("json_schema", {}).get("schema", {})}
    return asked


def completion_pieces(chunks: Iterable[Any]) -> Iterator[Piece]:
    """Pieces from the chunks of `create_completion`."""
    for chunk in chunks:
        choice = chunk["choices"][0]
        yield Piece(choice["text"], finish_reason=choice["finish_reason"])


def chat_pieces(chunks: Iterable[Any]) -> Iterator[Piece]:
    """Pieces from the chunks of `create_chat_completion`.

    The library repeats a tool call's id and name in every chunk; clients add them up, so they are kept once.
    """
    named: set[int] = set()
    for chunk in chunks:
        choice = chunk["choices"][0]
        text = choice["delta"].get("content") or ""
        calls = choice["delta"].get("tool_calls") or []
        if text or calls or choice["finish_reason"]:
            yield Piece(text, tuple(_call_part(call, named) for call in calls), choice["finish_reason"])


def _call_part(call: Any, named: set[int]) -> dict[str, Any]:
    index = call["index"]
    if index in named:
        return {"index": index, "function": {"arguments": call["function"]["arguments"]}}
    named.add(index)
    return {"index": index, "id": call["id"], "type": "function", "function": dict(call["function"])}


def mean(vectors: list[list[float]]) -> list[float]:
    """The mean of token vectors: (tokens, width) to (width,)."""
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def unit(vector: list[float]) -> list[float]:
    """The vector, scaled to Euclidean length 1."""
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]
