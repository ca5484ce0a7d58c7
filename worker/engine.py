"""The interface between the worker and an engine. A new engine is one file in `worker/engines/`.

Such a module has `add_arguments(parser)`, which declares its command line flags, and `create(args)`, which returns an
`Engine` that is not loaded yet. It imports heavy packages no earlier than in `Engine.load_model`. The worker does the
rest: HTTP, queueing, token counts, metrics and signals.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from worker.errors import JobCancelledError, RequestError
from worker.metrics import Counters
from worker.schema import ChatRequest, CompletionRequest

Api = Literal["chat", "completions", "embeddings", "tokens", "prompts"]
"""`tokens`: tokens of a text, and texts of tokens. `prompts`: the prompt of a conversation, and the number of its
tokens."""
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer. Pieces come in order; only the last one has a finish reason."""

    text: str = ""
    thought: str = ""
    """Text that the model thinks and does not say. It precedes `text` of the same piece."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Parts of tool calls in OpenAI's delta form: `index`, `id` and `function.name` once, then parts of
    `function.arguments`."""
    finish_reason: FinishReason | None = None
    """Why the answer ended: `stop` at its own end or at a stop string, `length` at the token limit, `tool_calls` after
    tool calls. None: more pieces follow."""
    stop_reason: str | None = None
    """The stop string that ended the answer; None if none did."""


def call_id() -> str:
    """Return a new random id for a tool call: nine hexadecimal digits. Mistral's templates require nine letters and
    digits; others accept them."""
    return uuid.uuid4().hex[:9]


class Job:
    """One request's work in an engine: counts its tokens, and tells the engine when to stop. The worker makes it and
    passes it to an `Engine`'s methods; only `cancel` is called from another thread."""

    def __init__(self, counters: Counters) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens: int | None = None
        """Tokens of the prompt that the engine had in its cache. Set by the engine before it counts them; None: it does
        not tell."""
        self._counters = counters
        self._cancelled = threading.Event()

    def count_prompt_tokens(self, tokens: int) -> None:
        """Add to the count of prompt tokens, of the job and of the worker's metrics. Call once they are processed; may
        be called several times for parts of a prompt."""
        self.prompt_tokens += tokens
        self._counters.add_prompt_tokens(tokens)

    def count_token(self) -> None:
        """Add one generated token to the counts of the job and of the worker's metrics. The end token counts too."""
        self.completion_tokens += 1
        self._counters.add_predicted_token()

    def check_cancelled(self) -> None:
        """Raise JobCancelledError if the answer is no longer wanted; else return at once. Call between tokens."""
        if self._cancelled.is_set():
            raise JobCancelledError

    def pause(self, seconds: float) -> None:
        """Block for `seconds`. Raises JobCancelledError as soon as the answer is no longer wanted, also with 0."""
        if self._cancelled.wait(seconds):
            raise JobCancelledError

    def cancel(self) -> None:
        """Ask the engine to stop at its next check. Does not wait for that. May be called from any thread, and
        repeatedly."""
        self._cancelled.set()


class Engine(Protocol):
    """One model, as the worker's HTTP surface calls it. The worker calls methods in threads, never in the event loop,
    so they may block.

    The worker calls `load_model`, and of the other methods only those of the APIs in `apis`: `chat`: `stream_chat`;
    `completions`: `stream_completion`; `embeddings`: `embed_texts`, `join_tokens`; `tokens`: `tokenize`, `token_texts`;
    `prompts`: `render_prompt`, `count_tokens`. Up to `slots` jobs run at the same time. The methods of `tokens` and
    `prompts` may be called while jobs run, several at the same time. An exception that a method does not name is
    logged and fails the request.

    Engines ignore stop strings: the worker closes the iterator of pieces when it finds a stop string in the text.
    """

    slots: int
    """Number of jobs that run at a time, each in a thread of its own; others wait in order of arrival. Known before
    `load_model`."""
    apis: frozenset[Api]
    """APIs that the engine serves. Known before `load_model`."""
    context_length: int | None
    """Maximum tokens of one request, prompt and answer together, once the model is loaded; None: no limit."""
    cache_types: tuple[str, str] | None
    """Data types of the K and the V cache, once the model is loaded; None: the engine has no choice of them."""

    def load_model(self) -> None:
        """Load the model; blocks until it can answer. Called once, before any other method. Raises LoadError, with one
        plain line for the operator, if the model cannot be loaded."""

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Answer a conversation: return an iterator of pieces, whose last one has a finish reason. The caller exhausts
        or closes it.

        Calls `job`'s counters as tokens are processed. Raises RequestError, from the call or before the first piece, if
        the request cannot be served; JobCancelledError while iterating, once the job is cancelled.
        """

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Continue a prompt, a text or token ids, without a chat template. Otherwise as `stream_chat`."""

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Return one vector for each text, in order, of Euclidean length 1 unless the command line says otherwise.
        Calls `job`'s counters as texts are processed. Raises RequestError if a text cannot be embedded (it is too
        long), and JobCancelledError once the job is cancelled."""

    def join_tokens(self, tokens: list[int]) -> str:
        """Return the text of tokens in a request for embeddings, without special tokens. Raises RequestError with
        `param` `input` if there is no such token."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text; never raises RequestError. `add_special` adds the tokens that a prompt starts or
        ends with. `parse_special` reads names of special tokens as these tokens, not as text."""

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes that each token stands for, in order, also of special tokens. They need not be UTF-8 on
        their own. Raises RequestError with `param` `tokens` if there is no such token."""

    def render_prompt(self, request: ChatRequest) -> str:
        """Return the text of the prompt that `stream_chat` makes of a conversation, without answering it. Raises
        RequestError if the model takes no such conversation."""

    def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of the prompt that `stream_chat` makes of a conversation, which may be more than
        fit the context. Raises RequestError if the model takes no such conversation."""


class PartialEngine:
    """Base of engines that serve only some of the APIs: every method of `Engine` but `load_model` raises RequestError
    `not_supported` when it is called. A subclass defines `load_model`, `slots` and `apis`, which this class lacks, and
    overrides the methods of the APIs in its `apis` (see `Engine`)."""

    context_length: int | None = None
    cache_types: tuple[str, str] | None = None

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        raise _not_offered()

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        raise _not_offered()

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        raise _not_offered()

    def join_tokens(self, tokens: list[int]) -> str:
        raise _not_offered()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raise _not_offered()

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        raise _not_offered()

    def render_prompt(self, request: ChatRequest) -> str:
        raise _not_offered()

    def count_tokens(self, request: ChatRequest) -> int:
        raise _not_offered()


def _not_offered() -> RequestError:
    return RequestError("This engine does not offer that.", code="not_supported")
