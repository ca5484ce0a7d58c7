"""What a model's answers to a few prompts tell of its speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from contract.errors import ERROR_CODES, RoundhouseError
from contract.routing import ModelRoute
from gateway.exchange.inner_requests import InnerAnswer, InnerRequests
from gateway.protocols.api_matrix import offers_path
from gateway.protocols.common.conversation import Fields
from gateway.server.asgi import Header
from gateway.tenancy.api_keys import Caller

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_TEXTS: Final = ("content", "reasoning_content", "reasoning")


class Measurement(NamedTuple):
    """One answer to one prompt. Times are in seconds from the request on, its wait in the queue included. `ttft_s`:
    until the first text; without any, it equals `total_s`."""

    prompt: str
    output_tokens: int
    ttft_s: float
    """Seconds until the first text of the answer; equals `total_s` if the answer has no text."""
    total_s: float

    @property
    def tokens_per_sec(self) -> float:
        """Output tokens per second of the whole time, wait and prompt included; 0 for an answer without tokens."""
        return self.output_tokens / self.total_s if self.total_s > 0 else 0.0


def generation_path(route: ModelRoute) -> str | None:
    """Return the path of the API by which the model is asked for text: `CHAT` if the model has it, else `COMPLETIONS`.

    None: the model makes no text. A model that lists no APIs is taken to answer chats.
    """
    if not route.apis or offers_path(CHAT, route):
        return CHAT
    return COMPLETIONS if offers_path(COMPLETIONS, route) else None


def probe_request(route: ModelRoute) -> tuple[str, Fields]:
    """Return path and JSON body of the smallest request that proves that the model works: one token of text, else one
    embedding, else one ranking. Whether the model offers rankings is not checked."""
    path = generation_path(route)
    if path is not None:
        return path, generation_body(route, path, "Hi", 1)
    if offers_path("/v1/embeddings", route):
        return "/v1/embeddings", {"model": route.name, "input": "Hi"}
    return "/v1/rerank", {"model": route.name, "query": "Hi", "documents": ["Hi"]}


def generation_body(route: ModelRoute, path: str, prompt: str, max_tokens: int) -> Fields:
    """Return the JSON body of a request at `path`, `CHAT` or `COMPLETIONS`, for a streamed answer to the prompt with
    usage. `max_tokens`: most tokens of the answer."""
    question: Fields = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": max_tokens}
    return {"model": route.name, **question, **options}


def read_measurement(prompt: str, answer: InnerAnswer) -> Measurement:
    """Return what a complete answer to a request with `generation_body` tells of the model's speed. `prompt`: only
    copied into the result.

    Tokens are the engine's count, or, if it sent none, the number of events with a text.

    Raises:
        RoundhouseError: the answer is an error, or broke off; see `raise_error`.
    """
    raise_error(answer)
    first_text_at: float | None = None
    texts, counted_tokens = 0, None
    for came_at, fields in answer.read_events():
        usage = fields.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            counted_tokens = usage["completion_tokens"]
        if _has_text(fields):
            texts += 1
            first_text_at = first_text_at or came_at
    tokens = texts if counted_tokens is None else counted_tokens
    ttft_s = (first_text_at or answer.ended_at) - answer.began_at
    return Measurement(prompt, tokens, ttft_s, answer.ended_at - answer.began_at)


def raise_error(answer: InnerAnswer) -> None:
    """Raise the error that the answer holds as a RoundhouseError; do nothing if the answer succeeded.

    A code that is not in `ERROR_CODES` becomes `engine_error`; an answer that broke off is `engine_disconnected`.
    """
    error = answer.error
    if error is not None:
        code = error.get("code")
        known_code = code if isinstance(code, str) and code in ERROR_CODES else "engine_error"
        raise RoundhouseError(known_code, str(error.get("message", "The engine failed.")), param="model")


class SpeedTest:
    """Asks one model a few prompts, one after the other. Made for one benchmark."""

    def __init__(self, requests: InnerRequests, headers: list[Header], caller: Caller) -> None:
        """`headers`, `caller`: of the request on whose behalf the model is asked."""
        self._requests = requests
        self._headers = headers
        self._caller = caller

    async def measure(
        self, route: ModelRoute, prompts: Sequence[str], warmup: int, max_tokens: int
    ) -> list[Measurement]:
        """Ask the first prompt `warmup` times without counting, then each prompt once, one after the other.

        Returns one measurement per prompt, in their order. `max_tokens`: limit of each answer.

        Raises:
            RoundhouseError: the error of the first answer that is one, which ends the test (see `raise_error`);
                `not_supported`: the model makes no text.
        """
        path = generation_path(route)
        if path is None:
            message = f"The model {route.name!r} makes no text, so that there is no speed to measure."
            raise RoundhouseError("not_supported", message, param="model")
        for _ in range(warmup if prompts else 0):
            await self._ask(route, path, prompts[0], max_tokens)
        return [await self._ask(route, path, prompt, max_tokens) for prompt in prompts]

    async def _ask(self, route: ModelRoute, path: str, prompt: str, max_tokens: int) -> Measurement:
        body = generation_body(route, path, prompt, max_tokens)
        answer = await self._requests.send_request(path, body, self._headers, self._caller)
        return read_measurement(prompt, answer)


def _has_text(fields: Fields) -> bool:
    """Whether an event of a chat completion or a completion has text or thoughts."""
    choices = fields.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            delta = choice.get("delta")
            texts = [delta.get(name) for name in _TEXTS] if isinstance(delta, dict) else [choice.get("text")]
            if any(texts):
                return True
    return False
