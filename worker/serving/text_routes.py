"""Routes for tokens and prompts, in llama-server's shapes. They take no slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from worker.engine import Api, Engine
from worker.schema import ChatRequest, DetokenizeRequest, TokenizeRequest, parse_request
from worker.text import openai_objects
from worker.text.openai_objects import Object


class TextRoutes:
    """The HTTP routes of one engine for tokens and prompts. `refusal` returns the error response for an API that the
    engine cannot serve now, else None. Each route may raise RequestError, for a wrong body or from the engine, and
    ClientDisconnect if the client leaves while it sends the body."""

    def __init__(self, engine: Engine, refusal: Callable[[Api], Response | None]) -> None:
        self._engine = engine
        self._refusal = refusal

    async def tokenize(self, request: Request) -> Response:
        """Answer `/tokenize` with `{"tokens": [...]}`: the ids of a text's tokens. If the request sets `with_pieces`,
        they are objects with `id` and `piece` instead; `piece` is the token's text, or a list of its bytes if these are
        not UTF-8. Token ids in the request are passed through. Answers 503 while the engine is not loaded, 501 if it
        offers no `tokens`. Raises RequestError for a wrong body, and with `with_pieces` for an unknown token id."""
        return await self._answer("tokens", request, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        """Answer `/detokenize` with `{"content": TEXT}`: the text of tokens, special ones included. Bytes that are not
        UTF-8 become U+FFFD. Answers 503 while the engine is not loaded, 501 if it offers no `tokens`. Raises
        RequestError for a wrong body or an unknown token id."""
        return await self._answer("tokens", request, self._detokenize)

    async def apply_template(self, request: Request) -> Response:
        """Answer `/apply-template` with `{"prompt": TEXT}`: the text of a conversation's prompt, which is not sent to
        the model. Answers 503 while the engine is not loaded, 501 if it offers no `prompts`. Raises RequestError for a
        wrong body, and for a conversation that the model does not take."""
        return await self._answer("prompts", request, self._apply_template)

    async def input_tokens(self, request: Request) -> Response:
        """Answer `/v1/chat/completions/input_tokens` with `input_tokens`: the number of tokens in a conversation's
        prompt, which may be more than fit the context. Answers 503 while the engine is not loaded, 501 if it offers no
        `prompts`. Raises RequestError for a wrong body, and for a conversation that the model does not take."""
        return await self._answer("prompts", request, self._input_tokens)

    async def _answer(self, api: Api, request: Request, make: Callable[[bytes], Object]) -> Response:
        if refusal := self._refusal(api):
            return refusal
        content = await asyncio.to_thread(make, await request.body())
        return Response(openai_objects.encode_json(content), media_type="application/json")

    def _tokenize(self, body: bytes) -> Object:
        request = parse_request(TokenizeRequest, body)
        tokens: list[int] = []
        for index, part in enumerate([request.content] if isinstance(request.content, str) else request.content):
            if isinstance(part, int):
                tokens.append(part)
                continue
            add_special = request.add_special and index == 0
            tokens += self._engine.tokenize(part, add_special=add_special, parse_special=request.parse_special)
        if not request.with_pieces:
            return {"tokens": tokens}
        texts = self._engine.token_texts(tokens)
        return {"tokens": [{"id": id_, "piece": _piece(text)} for id_, text in zip(tokens, texts, strict=True)]}

    def _detokenize(self, body: bytes) -> Object:
        texts = self._engine.token_texts(parse_request(DetokenizeRequest, body).tokens)
        return {"content": b"".join(texts).decode(errors="replace")}

    def _apply_template(self, body: bytes) -> Object:
        return {"prompt": self._engine.render_prompt(parse_request(ChatRequest, body))}

    def _input_tokens(self, body: bytes) -> Object:
        return {
            "input_tokens": self._engine.count_tokens(parse_request(ChatRequest, body)),
            "object": "response.input_tokens",
        }


def _piece(text: bytes) -> Any:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return list(text)
