"""Where system messages behind the first user message go, for templates that want them first."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocols.chat.system_messages import fold_system_messages

Message = dict[str, Any]
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
IMAGE: Message = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def system(text: Any = "rule") -> Message:
    """A message of the system."""
    return {"role": "system", "content": text}


def user(content: Any = "ask") -> Message:
    """A message of the user."""
    return {"role": "user", "content": content}


def assistant(text: str = "answer") -> Message:
    """A message of the model."""
    return {"role": "assistant", "content": text}


def result(text: Any = "found") -> Message:
    """A result of a tool."""
    return {"role": "tool", "tool_call_id": "c", "content": text}


def reminder(text: str = "rule") -> str:
    """A system message as it stands in another message."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


@pytest.mark.parametrize(
    "messages",
    [
        [user()],
        [system(), user(), assistant(), user()],
        [system(), user(), CALL, result(), assistant()],
        [system([{"type": "text", "text": "rule"}]), user()],
        [],
        ["what is this", {"role": 5}, {}],
        [user(), system([IMAGE])],
        [user(), system(None)],
    ],
)
def test_a_conversation_that_the_template_takes_stays_the_same_object(messages: list[Any]) -> None:
    assert fold_system_messages(messages) is messages


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        # As Claude Code sends them: behind the user's first message, and behind results of tools.
        ([system("s"), user(), system()], [system("s"), user(f"ask\n\n{reminder()}")]),
        (
            [user(), CALL, result(), system(), assistant(), user()],
            [user(), CALL, result(f"found\n\n{reminder()}"), assistant(), user()],
        ),
        # Behind an answer it waits for what comes next.
        ([user(), assistant(), system(), user("b")], [user(), assistant(), user(f"{reminder()}\n\nb")]),
        ([user(), assistant(), system()], [user(), assistant(), user(reminder())]),
        (
            [user(), assistant(), system(), assistant("b")],
            [user(), assistant(), user(reminder()), assistant("b")],
        ),
        # Between a call and its result nothing may stand.
        ([user(), CALL, system(), result()], [user(), CALL, result(f"{reminder()}\n\nfound")]),
        # Several at once, in their order.
        ([user(), system("a"), system("b")], [user(f"ask\n\n{reminder('a')}\n\n{reminder('b')}")]),
        (
            [user(), assistant(), system("a"), system("b"), user("c")],
            [user(), assistant(), user(f"{reminder('a')}\n\n{reminder('b')}\n\nc")],
        ),
        # Those at the beginning are one, whichever of both roles they have.
        ([system("a"), system("b"), user()], [system("a\n\nb"), user()]),
        ([{"role": "developer", "content": "a"}, user()], [system("a"), user()]),
        ([user(), {"role": "developer", "content": "a"}], [user(f"ask\n\n{reminder('a')}")]),
        # Parts.
        ([user([IMAGE]), system()], [user([IMAGE, {"type": "text", "text": reminder()}])]),
        ([assistant(), system(), user([IMAGE])], [assistant(), user([{"type": "text", "text": reminder()}, IMAGE])]),
        (
            [user(), system([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
            [user(f"ask\n\n{reminder('a' + chr(10) + 'b')}")],
        ),
        ([result(""), system()], [result(reminder())]),
        ([{"role": "user"}, system()], [{"role": "user"}, user(reminder())]),
    ],
)
def test_each_goes_to_its_neighbour(messages: list[Message], expected: list[Message]) -> None:
    before = repr(messages)
    assert fold_system_messages(messages) == expected
    assert repr(messages) == before, "the request itself stays"


def test_a_text_written_as_parts_gives_the_same_message_as_a_string() -> None:
    parts = [{"type": "text", "text": "ask"}]
    assert fold_system_messages([user(parts), system()]) == fold_system_messages([user(), system()])
