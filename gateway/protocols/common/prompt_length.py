"""How many tokens a request has at least, so that one that cannot fit is refused before it takes a slot. Pure.

A bound, never a guess: what it refuses, the engine would refuse. It counts what no template leaves out, which is what
the user says: templates drop thoughts, and some do not know tools or the system. It counts bytes of text, white space
aside, because templates trim messages and special tokens take white space along; a token of the model's vocabulary
stands for `ModelRoute.longest_token` of these at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.context_overflow import CODE, ContextOverflow
from gateway.protocols.common.conversation import Prompt, Text, User
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.request import InferenceRequest

_BLOCK: Final = 65_536
"""Characters that are looked at in one step."""
_LONGEST_CHARACTER: Final = 4
"""Bytes."""
_SPACE_MARK: Final = "\u2581"
"""A vocabulary of SentencePiece's cannot tell it from a space."""
_CUTTING: Final = ("truncate_prompt_tokens", "chat_template", "prompt_embeds")
"""Fields by which vLLM cuts a prompt, writes it by another template, or takes no text."""
_PLACES: Final = ("messages", "input", "prompt")


def check_length(request: InferenceRequest, route: ModelRoute) -> None:
    """Refuse a request whose prompt certainly has more tokens than the model's context.

    Raises:
        RoundhouseError: `context_length_exceeded`.
    """
    limit, longest_token, fields = route.context_length, route.longest_token, request.outline_fields
    if limit is None or not longest_token or request.size <= limit:
        return
    if fields.get("truncation") == "auto" or any(fields.get(name) for name in _CUTTING):
        return
    for texts in _list_sequences(request):
        tokens = texts if isinstance(texts, int) else _count_least_tokens(texts, longest_token, limit, request)
        if tokens > limit:
            overflow = ContextOverflow(limit=limit, prompt_tokens=tokens, is_at_least=True)
            place = next((name for name in _PLACES if name in fields), None)
            raise RoundhouseError(CODE, overflow.describe_for_openai(), param=place)


def _list_sequences(request: InferenceRequest) -> Iterator[list[str] | int]:
    """What the engine makes a sequence of tokens of, each: its texts, or the number of its tokens."""
    if request.prompt is not None:
        yield _texts_of_prompt(request.prompt)
        return
    fields = request.outline_fields
    messages = fields.get("messages")
    if isinstance(messages, list):
        yield [text for message in messages for text in _texts_of_message(message)]
        return
    given = fields.get("prompt", fields.get("input"))
    yield from _list_given(given, is_inner=False)


def _list_given(given: Any, *, is_inner: bool) -> Iterator[list[str] | int]:
    """Of a prompt, or of what is to be embedded: a text, tokens, or several of these."""
    if isinstance(given, str):
        yield [given]
    elif isinstance(given, list):
        if given and all(type(each) is int for each in given):
            yield len(given)
        elif not is_inner:
            for each in given:
                yield from _list_given(each, is_inner=True)


def _texts_of_prompt(prompt: Prompt) -> list[str]:
    users = (turn for turn in prompt.turns if isinstance(turn, User))
    return [part.text for turn in users for part in turn.parts if isinstance(part, Text)]


def _texts_of_message(message: Any) -> list[str]:
    """The texts of a user's message, in the form of chat completions or of Anthropic's."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return []
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    return [text for text in texts if isinstance(text, str)]


def _count_least_tokens(texts: list[str], longest_token: int, limit: int, request: InferenceRequest) -> int:
    """Tokens of these texts of the request at least; counted no further than to a little above `limit`."""
    enough = limit * longest_token
    # JSON writes no character with fewer bytes than UTF-8 does.
    if request.size <= enough or (request.large_body is None and _LONGEST_CHARACTER * sum(map(len, texts)) <= enough):
        return 0
    size = 0
    for block in _list_blocks(texts, request.large_body):
        size += _measure_block(block)
        if size > enough:
            break
    return -(-size // longest_token)


def _list_blocks(texts: list[str], large_body: LargeBody | None) -> Iterator[str]:
    """The texts in pieces that take little time each."""
    for text in texts:
        for piece in (text,) if large_body is None else large_body.split_text(text):
            yield from (piece[start : start + _BLOCK] for start in range(0, len(piece), _BLOCK))


def _measure_block(text: str) -> int:
    """Bytes of a text without white space. Half of a surrogate pair has none: no engine gets it."""
    return len("".join(text.split()).replace(_SPACE_MARK, "").encode(errors="ignore"))
