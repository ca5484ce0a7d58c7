"""A fixed text instead of a model: for tests and dry installs."""

from __future__ import annotations

import hashlib
import math
import re
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Generator

from worker.engine import Api, Job, Piece
from worker.errors import LoadError, RequestError
from worker.schema import ChatRequest, CompletionRequest, GenerationRequest
from worker.text.grammars import check_unconstrained

TEXT = "This is a stub: it answers every request with this one sentence."
DIMENSIONS = 64
SLOTS = 64
LOAD_STEPS = 10


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--text", default=TEXT, help="the answer to everything")
    parser.add_argument("--token-delay-ms", type=float, default=0, metavar="N", help="pause before each token")
    parser.add_argument("--load-s", type=float, default=0, metavar="S", help="how long loading seems to take")
    parser.add_argument("--fail", metavar="MESSAGE", help="end with this message instead of loading")


def create(args: Namespace) -> Stub:
    return Stub(args.text, token_delay_s=args.token_delay_ms / 1000, load_s=args.load_s, fail=args.fail)


class Stub:
    """The engine `stub`: answers every request with the same text, without a model. Serves all APIs; calls no tools. A
    token is a word with the space before it."""

    slots = SLOTS
    context_length: int | None = None
    cache_types: tuple[str, str] | None = None
    apis: frozenset[Api] = frozenset({"chat", "completions", "embeddings", "tokens", "prompts"})

    def __init__(self, text: str, *, token_delay_s: float = 0, load_s: float = 0, fail: str | None = None) -> None:
        self._tokens = split_words(text)
        self._token_delay_s = token_delay_s
        self._load_s = load_s
        self._fail = fail
        self._words: dict[str, int] = {}
        """Every word that was ever made a token, to its number."""
        self._lock = threading.Lock()

    def load_model(self) -> None:
        """Wait for `--load-s` seconds with progress on stderr. Raises LoadError with the message of `--fail`, if that
        is given."""
        for step in range(1, LOAD_STEPS + 1) if self._load_s else ():
            time.sleep(self._load_s / LOAD_STEPS)
            sys.stderr.write(f"loading: {100 * step // LOAD_STEPS} %\n")
            sys.stderr.flush()
        if self._fail is not None:
            raise LoadError(self._fail)

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Answer the fixed text, whatever the conversation, up to the request's token limit. Raises RequestError also
        if the request offers tools."""
        self._check_request(request)
        return self._stream_answer(request, self.count_tokens(request), job)

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Answer the fixed text up to the token limit. RequestError: several prompts, schema, grammar, `ignore_eos`."""
        check_unconstrained(request, "The stub")
        prompt = request.text_or_tokens
        return self._stream_answer(request, count_words(prompt) if isinstance(prompt, str) else len(prompt), job)

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Return one vector of length 1 and DIMENSIONS numbers for each text, equal for equal texts. Counts the words
        as prompt tokens."""
        job.count_prompt_tokens(sum(count_words(text) for text in texts))
        return [make_embedding(text) for text in texts]

    def join_tokens(self, tokens: list[int]) -> str:
        try:
            return b"".join(self.token_texts(tokens)).decode(errors="replace")
        except RequestError as error:
            raise RequestError(str(error), param="input") from None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the numbers of the text's words, counted from 0 in the order in which the stub first saw them. No
        token is special, so both flags change nothing."""
        with self._lock:
            return [self._words.setdefault(word, len(self._words)) for word in split_words(text)]

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of each token's word, with the space before it. RequestError for an unknown token."""
        with self._lock:
            words = [*self._words]
        if unknown_ids := [token for token in tokens if not 0 <= token < len(words)]:
            raise RequestError(f"There is no token {unknown_ids[0]}: the stub has seen {len(words)}.", param="tokens")
        return [words[token].encode(errors="replace") for token in tokens]

    def render_prompt(self, request: ChatRequest) -> str:
        """Return the texts of the conversation, without roles: each message, or each text part of one, on a line of its
        own. Tools and parts that are no text are left out. Never raises."""
        return "\n".join(text for message in request.messages for text in texts_of(message.content))

    def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of words in the conversation, without roles."""
        return count_words(self.render_prompt(request))

    def _check_request(self, request: ChatRequest) -> None:
        if request.offered_tools:
            raise RequestError("The stub calls no tools.", code="tools_unsupported", param="tools")
        check_unconstrained(request, "The stub")

    def _stream_answer(self, request: GenerationRequest, prompt_tokens: int, job: Job) -> Generator[Piece]:
        job.count_prompt_tokens(prompt_tokens)
        tokens = self._tokens[: request.token_limit]
        for token in tokens:
            job.pause(self._token_delay_s)
            job.count_token()
            yield Piece(token)
        yield Piece(finish_reason="stop" if len(tokens) == len(self._tokens) else "length")


def split_words(text: str) -> list[str]:
    """Return the stub's tokens of a text, in order: each is a word with the white space before it, and white space at
    the end is one of its own. Joined, they are the text again."""
    return re.findall(r"\s*\S+|\s+$", text)


def count_words(text: str) -> int:
    """Return the number of words in a text, as white space separates them."""
    return len(text.split())


def texts_of(content: object) -> list[str]:
    """Return a message's content as a list of texts: the text itself, or its parts that have one. Empty for None; other
    parts are left out."""
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def make_embedding(text: str) -> list[float]:
    """Return a vector of Euclidean length 1 and DIMENSIONS numbers, made from a hash of the text: equal for equal
    texts, unrelated for others."""
    digest = hashlib.shake_256(text.encode()).digest(2 * DIMENSIONS)
    numbers = [int.from_bytes(digest[at : at + 2], "big") / 32768 - 1 for at in range(0, len(digest), 2)]
    length = math.hypot(*numbers)
    return [number / length for number in numbers]
