"""What an engine is, as the worker sees it. A new engine is one file in `worker/engines/`.

Such a module has `add_arguments(parser)`, which declares its own command line flags, and `create(args)`, which
returns an `Engine`; heavy packages are imported no earlier than `Engine.load_model`. The HTTP surface, queueing,
tokens, metrics and signals are the worker's.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from worker.errors import JobCancelledError
from worker.metrics import Counters
from worker.schema import ChatRequest, CompletionRequest

Api = Literal["chat", "completions", "embeddings", "tokens", "prompts"]
"""`tokens`: what a text is to the model, and back. `prompts`: what a conversation is to it, and how long."""
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer, in order. The last piece of an answer has the finish reason."""

    text: str = ""
    thought: str = ""
    """What the model thinks, not says. In one piece it comes before the text."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """OpenAI's delta form: `index`, `id` and `function.name` once, then parts of `function.arguments`."""
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None
    """The stop string that ended the answer."""


def call_id() -> str:
    """A name for a call of a tool. Nine letters and digits: what Mistral's templates insist on, and others take."""
    return uuid.uuid4().hex[:9]


class Job:
    """One request's work as an engine sees it: where tokens are counted and where it learns that it must stop."""

    def __init__(self, counters: Counters) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._counters = counters
        self._cancelled = threading.Event()

    def count_prompt_tokens(self, tokens: int) -> None:
        """Count the prompt's tokens, once they are processed."""
        self.prompt_tokens += tokens
        self._counters.add_prompt_tokens(tokens)

    def count_token(self) -> None:
        """Count one generated token, the end token included."""
        self.completion_tokens += 1
        self._counters.add_predicted_token()

    def check_cancelled(self) -> None:
        """Call between tokens: raises JobCancelledError when the answer is no longer wanted."""
        if self._cancelled.is_set():
            raise JobCancelledError

    def pause(self, seconds: float) -> None:
        """Wait, unless the answer is no longer wanted: then raise JobCancelledError at once."""
        if self._cancelled.wait(seconds):
            raise JobCancelledError

    def cancel(self) -> None:
        """Ask the engine to stop at its next check. From any thread."""
        self._cancelled.set()


class Engine(Protocol):
    """One model. Methods are called in threads, never in the event loop, and may block.

    Stop strings are not the engine's: its pieces are closed when one is found. `tokenize`, `token_texts`, `prompt` and
    `count` may be called while jobs run, each from a thread of its own; they are asked for only where `apis` says so.
    """

    slots: int
    """Jobs that run at a time, each in a thread of its own; more wait in order of arrival. Known before `load`."""
    apis: frozenset[Api]
    """What the engine serves. Known before `load`."""
    context_length: int | None
    """Tokens of one request, prompt and answer, once it is loaded; None: it has no bound."""

    def load_model(self) -> None:
        """Called once, before anything else. Raises LoadError."""

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Answer a conversation. Raises RequestError before the first piece."""

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Continue a text. Raises RequestError before the first piece."""

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """One vector of Euclidean length 1 for each text. Raises RequestError."""

    def join_tokens(self, tokens: list[int]) -> str:
        """The text that tokens of a request for embeddings stand for, without special ones. Raises RequestError: no
        such token."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of a text: with those that a prompt begins or ends with, or without; names of special tokens read
        as these tokens, or as text."""

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """What each token stands for, which need not be UTF-8 on its own. Raises RequestError: no such token."""

    def render_prompt(self, request: ChatRequest) -> str:
        """What `chat` makes of a conversation for the model. Raises RequestError."""

    def count_tokens(self, request: ChatRequest) -> int:
        """How many tokens that is, as `chat` will count them. Raises RequestError."""
