"""Whether a conversation begins as an earlier request of it did."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.common.conversation import Assistant, Call, Image, Prompt, System, Text, ToolResult, User
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.sessions.transcript import Transcript


def request_of(**fields: Any) -> InferenceRequest:
    """A request with these fields."""
    return parse_request(json.dumps({"model": "m", **fields}).encode(), may_stream=True)


def said(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the model in turn."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


EARLIER = said("a", "b", "c")


@pytest.mark.parametrize(
    ("later", "continues"),
    [
        (said("a", "b", "c"), True),
        (said("a", "b", "c", "d", "e"), True),
        (said("a", "b"), False),
        (said("a", "B", "c", "d"), False),
        ([*said("a", "b"), {"role": "system", "content": "c"}], False),
        (said("ab", "c"), False),
        ([], False),
    ],
)
def test_messages_are_compared_up_to_those_seen(later: list[Any], continues: bool) -> None:
    seen = Transcript.of(request_of(messages=EARLIER)).whole()
    assert Transcript.of(request_of(messages=later)).begins_with(seen) is continues


def test_a_prompt_is_compared_character_by_character() -> None:
    seen = Transcript.of(request_of(prompt="once upon")).whole()
    assert Transcript.of(request_of(prompt="once upon a time")).begins_with(seen)
    assert not Transcript.of(request_of(prompt="twice upon a time")).begins_with(seen)


def test_anthropics_system_prompt_comes_first() -> None:
    seen = Transcript.of(request_of(system="short", messages=EARLIER)).whole()
    assert Transcript.of(request_of(system="short", messages=EARLIER)).begins_with(seen)
    assert not Transcript.of(request_of(system="long", messages=EARLIER)).begins_with(seen)


def test_what_was_read_of_a_request_counts_without_its_places() -> None:
    turns = (
        System("be kind", place="instructions"),
        User((Text("look"), Image("data:,x", place="input[0].content[1]")), place="input[0]"),
        Assistant(calls=(Call("c1", "f", "{}"),), place="input[1]"),
        ToolResult("c1", (Text("1"),), place="input[2]"),
    )
    moved = (
        System("be kind"),
        User((Text("look"), Image("data:,x"))),
        Assistant(calls=(Call("c1", "f", "{}"),)),
        ToolResult("c1", (Text("1"),)),
        User((Text("and?"),)),
    )
    earlier, later = request_of(input="look"), request_of(input="and?")
    earlier.prompt, later.prompt = Prompt(turns=turns), Prompt(turns=moved)
    seen = Transcript.of(earlier).whole()
    assert seen.length == 4
    assert Transcript.of(later).begins_with(seen)
    later.prompt = Prompt(turns=(*moved[:2], Assistant(calls=(Call("c1", "f", "[]"),)), *moved[3:]))
    assert not Transcript.of(later).begins_with(seen)


def test_a_digest_is_the_same_in_every_process() -> None:
    seen = Transcript.of(request_of(messages=said("a"))).whole()
    assert (seen.length, seen.digest.hex()) == (1, "03d10c3caecabf3250216bcc1cddd7e0")
