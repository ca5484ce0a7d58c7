"""Folding system messages never changes what was sent before, loses nothing, and leaves none behind the first."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocols.chat.dialect import fold_system_messages
from tests.support.campaign import campaign_count

Message = dict[str, Any]


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """The requests of one conversation, each with the messages of the one before, an answer, and what follows it. Every
    text is another one."""
    count = 0

    def text() -> str:
        nonlocal count
        count += 1
        return f"[{count}]"

    def write(role: str) -> Message:
        content: Any = text()
        if draw(st.booleans()):
            content = [{"type": "text", "text": content}]
        return {"role": role, "content": content}

    system_roles = st.sampled_from(("system", "developer"))
    messages = [write(draw(system_roles)) for _ in range(draw(st.integers(0, 2)))]
    requests: list[list[Message]] = []
    has_calls = False
    for _ in range(draw(st.integers(1, 5))):
        said_roles = draw(st.lists(st.just("user") | system_roles, max_size=3))
        if has_calls:
            messages.extend(write("tool") for _ in range(draw(st.integers(1, 2))))
        elif not said_roles:
            said_roles = ["user"]
        messages.extend(map(write, said_roles))
        requests.append([*messages])
        has_calls = draw(st.booleans())
        messages.append({"role": "assistant", "content": text(), **({"tool_calls": [{}]} if has_calls else {})})
    return requests


def text_of(messages: list[Message]) -> list[str]:
    """The texts of all messages."""
    return [
        message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
        for message in messages
    ]


@settings(max_examples=campaign_count(100, 5000))
@given(conversations())
def test_a_request_goes_on_with_what_was_sent_before(requests: list[list[Message]]) -> None:
    folded_before: list[Message] = []
    for request in requests:
        folded = fold_system_messages(request)
        assert folded[: len(folded_before)] == folded_before
        roles = [message["role"] for message in folded]
        assert "developer" not in roles
        assert "system" not in roles[1:] or folded is request
        whole = "".join(text_of(folded))
        places = [whole.index(text) for text in text_of(request)]
        assert places == sorted(places), "nothing is lost, and nothing changes its place"
        folded_before = folded
