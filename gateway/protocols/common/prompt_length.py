"""Counts the tokens that a request has at least, to refuse one that cannot fit before it takes a slot. Pure.

The count is a lower bound, never an estimate: the engine would refuse whatever is refused here. It covers user messages
alone, because templates drop thoughts and may ignore tools and system messages. It measures bytes of text without white
space, because templates trim messages and special tokens absorb white space. One token of the model's vocabulary stands
for at most `ModelRoute.longest_token` of these bytes.
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
"""Characters measured in one step."""
_LONGEST_CHARACTER: Final = 4
"""Maximum bytes of a character in UTF-8."""
_SPACE_MARK: Final = "\u2581"
"""SentencePiece's mark for a space. Its vocabularies cannot tell the two apart."""
_CUTTING: Final = ("truncate_prompt_tokens", "chat_template", "prompt_embeds")
"""Fields by which vLLM truncates a prompt, renders it by another template, or takes embeddings in place of text."""
_PLACES: Final = ("messages", "input", "prompt")


def check_length(request: InferenceRequest, route: ModelRoute) -> None:
    """Refuse a request if a prompt in it certainly has more tokens than the model's context.

    Checks nothing if `route.context_length` or `route.longest_token` is not known, or if the request asks the engine to
    truncate the prompt, replaces the chat template, or gives embeddings as the prompt. Of a conversation, only the
    user's texts are counted, so a request that passes may still be too long for the engine.

    Raises:
        RoundhouseError: `context_length_exceeded`; `param` is the field that holds the prompt, such as `messages`. Or
            `invalid_json`: a long string of a large body is not valid JSON.
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
    """Yield, for each token sequence that the engine will make of the request, its texts or the number of its
    tokens."""
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
    """Yield the text, or the number of tokens, of each sequence in `given`: a prompt, or an input to embed. It is a
    text, tokens, or a list of these."""
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
    """Return the texts of a user message, in the form of chat completions or of Anthropic's messages; none for other
    roles."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return []
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    return [text for text in texts if isinstance(text, str)]


def _count_least_tokens(texts: list[str], longest_token: int, limit: int, request: InferenceRequest) -> int:
    """Return how many tokens these texts of the request have at least. Counting stops soon after the result exceeds
    `limit`."""
    enough = limit * longest_token
    # JSON needs at least as many bytes for a character as UTF-8.
    if request.size <= enough or (request.large_body is None and _LONGEST_CHARACTER * sum(map(len, texts)) <= enough):
        return 0
    size = 0
    for block in _list_blocks(texts, request.large_body):
        size += _measure_block(block)
        if size > enough:
            break
    return -(-size // longest_token)


def _list_blocks(texts: list[str], large_body: LargeBody | None) -> Iterator[str]:
    """Yield the texts in pieces that take little time each."""
    for text in texts:
        for piece in (text,) if large_body is None else large_body.split_text(text):
            yield from (piece[start : start + _BLOCK] for start in range(0, len(piece), _BLOCK))


def _measure_block(text: str) -> int:
    """Return the bytes of a text without white space. Half of a surrogate pair counts nothing, because no engine gets
    it."""
    return len("".join(text.split()).replace(_SPACE_MARK, "").encode(errors="ignore"))
