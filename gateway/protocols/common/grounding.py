"""Answers grounded in documents: what is searched, the passages put in front of a question, and the citations found in
an answer. Pure. For messages of chat completions and of Anthropic's form.

The passages stand in the user's question, so that all earlier messages stay as they were and an engine's cache still
fits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error
from gateway.protocols.common.passages import USUAL_TOKENS, Passage, write_context
from retrieval.schema.search import Mode, SearchRequest

FIELD: Final = "rag"
LONGEST_QUERY: Final = 32_768
"""Characters of the question that are searched with."""


class GroundingOptions(BaseModel):
    """The field `rag` of a request, as an object: what is searched, and how much of it the model gets."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str | None = Field(
        None, min_length=1, max_length=LONGEST_QUERY, description="Default: the text of the user's last message."
    )
    filter: dict[str, Any] | None = Field(None, description="As in `/v1/search`, like the fields below.")
    top_k: int = Field(5, ge=1, le=50, description="Most passages.")
    mode: Mode | None = None
    score_threshold: float | None = None
    rerank: bool = False
    max_tokens: int | None = Field(
        None,
        ge=50,
        le=1_000_000,
        description=f"Most tokens of all passages together, estimated; the worst ones go. Default: {USUAL_TOKENS}, and "
        "at most a quarter of the model's context.",
    )


def read_options(value: object) -> GroundingOptions | None:
    """Return the options of a request's `rag`; None for null and false, which ask for nothing. `true`: the defaults.

    Raises:
        RoundhouseError: `invalid_request` for a wrong value or an unknown field; `param` is its path, such as
            `rag.top_k`.
    """
    if value is None or value is False:
        return None
    if value is True:
        return GroundingOptions()
    if not isinstance(value, dict):
        raise field_error(FIELD, "must be true, false or an object")
    try:
        return GroundingOptions.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join((FIELD, *map(str, first["loc"])))
        raise RoundhouseError("invalid_request", f"`{place}`: {first['msg']}.", param=place) from None


def build_search(options: GroundingOptions, fields: Fields) -> SearchRequest:
    """Return the search for `options.query`; if that is None, for the text of the user's last message in `fields`, the
    decoded whole body (see `find_question`). The query is cut to `LONGEST_QUERY` characters. Nothing is searched here.

    Raises:
        RoundhouseError: `invalid_request` if neither `rag.query` nor a message of the user has a text.
    """
    query = options.query or find_question(fields)
    if not query:
        raise field_error("messages", "must have a text of the user to search for, or `rag.query` must be set")
    return SearchRequest(
        query=clean_query(query),
        top_k=options.top_k,
        filter=options.filter,
        score_threshold=options.score_threshold,
        mode=options.mode,
        rerank=options.rerank,
    )


def clean_query(text: str) -> str:
    """Return the text as a search takes it: its first `LONGEST_QUERY` (32,768) characters, with `?` in the place of
    halves of surrogate pairs, which are no text."""
    return text[:LONGEST_QUERY].encode(errors="replace").decode()


def find_question(fields: Fields) -> str:
    """Return the text of the user's last message, its parts joined by line ends; messages that hold nothing but tool
    results do not count. Empty if there is no such message, or no text in it."""
    index = _question_index(fields)
    content = None if index is None else fields["messages"][index].get("content")
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts).strip()


def add_passages(fields: Fields, passages: Sequence[Passage]) -> Fields:
    """Return a copy of the request's fields without `rag`, with the passages, numbered from 1, in the message that
    `find_question` reads, in front of its text. `fields` are not changed. Without passages or such a message, only
    `rag` is left out."""
    rest = {name: value for name, value in fields.items() if name != FIELD}
    index = _question_index(fields)
    if not passages or index is None:
        return rest
    messages = list(fields["messages"])
    context, content = write_context(passages), messages[index].get("content")
    grounded: Any = f"{context}\n\n{content}" if isinstance(content, str) else context
    if isinstance(content, list):
        # Anthropic wants the results of tools before everything else.
        start = sum(_is_tool_result(part) for part in content)
        grounded = [*content[:start], {"type": "text", "text": context}, *content[start:]]
    messages[index] = {**messages[index], "content": grounded}
    return {**rest, "messages": messages}


def _question_index(fields: Fields) -> int | None:
    """Return the index of the user's last message that holds more than results of tools; None: there is none."""
    messages = fields.get("messages")
    messages = messages if isinstance(messages, list) else []
    for index in reversed(range(len(messages))):
        message = messages[index]
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if not (isinstance(content, list) and content and all(map(_is_tool_result, content))):
                return index
    return None


def _is_tool_result(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"
