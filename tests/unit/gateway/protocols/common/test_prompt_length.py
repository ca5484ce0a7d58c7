"""Requests that certainly do not fit, and those that might."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.common.context_overflow import find_overflow
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.prompt_length import check_length
from gateway.protocols.common.request import InferenceRequest, parse_request
from tests.fakes.fake_controller import route

LIMIT, LONGEST = 100, 8
FITS = "x" * (LIMIT * LONGEST)
ROUTE = route("m", context_length=LIMIT, longest_token=LONGEST)


def request(**fields: Any) -> InferenceRequest:
    """One with these fields."""
    return InferenceRequest(json.dumps(fields).encode(), fields, "m", stream=False, wants_usage=False)


def refusal(**fields: Any) -> RoundhouseError | None:
    """What is said of such a request; None: it passes."""
    try:
        check_length(request(**fields), ROUTE)
    except RoundhouseError as error:
        return error
    return None


def user(content: Any) -> list[dict[str, Any]]:
    """Messages."""
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize(("text", "size"), [("x", 1), ("您 \n", 3), ("😀", 4)])
def test_the_text_of_a_large_body_counts_though_it_is_read_by_its_outline(text: str, size: int, is_ascii: bool) -> None:
    count = 400_000
    raw = json.dumps({"model": "m", "messages": user(text * count)}, ensure_ascii=is_ascii).encode()
    body = LargeBody()
    body.add_part(raw)
    body.finish()
    asked = parse_request(body, may_stream=True)
    assert len(asked.outline) < len(raw) // 10
    limit = count * size // LONGEST
    check_length(asked, route("m", context_length=limit, longest_token=LONGEST))
    with pytest.raises(RoundhouseError) as refused:
        check_length(asked, route("m", context_length=limit - 1, longest_token=LONGEST))
    assert refused.value.entry.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"messages": user(FITS + "x")}, "messages"),
        ({"messages": [*user(FITS), *user("x")]}, "messages"),
        ({"messages": user([{"type": "text", "text": FITS}, {"type": "text", "text": "x"}])}, "messages"),
        ({"prompt": FITS + "x"}, "prompt"),
        ({"prompt": ["x", FITS + "x"]}, "prompt"),
        ({"prompt": [7] * (LIMIT + 1)}, "prompt"),
        ({"input": [[7], [7] * (LIMIT + 1)]}, "input"),
        ({"input": "您" * (LIMIT * LONGEST // 3 + 1)}, "input"),
        ({"prompt": "x" * 40_000_000}, "prompt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_fit_is_refused_with_both_numbers(fields: dict[str, Any], place: str) -> None:
    error = refusal(**fields)
    assert error is not None
    assert (error.entry.code, error.param) == ("context_length_exceeded", place)
    told = find_overflow({"message": error.message})
    assert told is not None
    assert (told.limit, told.is_at_least) == (LIMIT, True)
    assert told.prompt_tokens is not None
    assert told.prompt_tokens > LIMIT


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": user(FITS)},
        {"messages": user(FITS + " \n\t\u3000\u2581" * 1000)},
        {"messages": user(" " * 40_000_000)},
        {"messages": user([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + FITS * 9}}])},
        # Templates may leave these out.
        {"messages": [{"role": "system", "content": FITS * 9}, {"role": "assistant", "content": FITS * 9}]},
        {"messages": [{"role": "tool", "content": FITS * 9}], "tools": [{"description": FITS * 9}]},
        {"messages": user([{"type": "tool_result", "content": FITS * 9}, "text", {"type": "text", "text": 5}])},
        {"messages": "x" * 9999},
        {"prompt": [FITS, FITS]},
        {"prompt": [7] * LIMIT},
        {"prompt": [7, FITS, {"prompt_string": FITS * 9}]},
        {"prompt": [], "input": FITS * 9},
        {"prompt": "\ud800" * 9999},
        # The engine cuts it off, or takes something else.
        {"input": FITS * 9, "truncation": "auto"},
        {"messages": user(FITS * 9), "truncate_prompt_tokens": 50},
        {"messages": user(FITS * 9), "chat_template": "Hi"},
        {"query": FITS * 9, "documents": [FITS * 9]},
    ],
    ids=range(17),
)
def test_what_may_fit_passes(fields: dict[str, Any]) -> None:
    assert refusal(**fields) is None


@pytest.mark.parametrize("fields", [{"context_length": None}, {"longest_token": None}, {"longest_token": 0}])
def test_where_a_figure_lacks_nothing_is_refused(fields: dict[str, Any]) -> None:
    check_length(request(prompt=FITS * 9), ROUTE.model_copy(update=fields))


def test_what_was_read_for_a_translation_counts_the_same() -> None:
    for text, is_refused in ((FITS, False), (FITS + "x", True)):
        asked = request(model="m", max_tokens=5, messages=[*user(text), *user([{"type": "tool_result"}])[1:]])
        asked.prompt = MESSAGES_VIA_CHAT.read_request(asked)
        if is_refused:
            with pytest.raises(RoundhouseError):
                check_length(asked, ROUTE)
        else:
            check_length(asked, ROUTE)
