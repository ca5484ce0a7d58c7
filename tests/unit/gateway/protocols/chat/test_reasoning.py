"""Thoughts under both names: in events, in blocking answers, in messages of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocols.chat.dialect import CHAT, COMPLETIONS, alias_in_events
from gateway.protocols.common.request import parse_request
from gateway.protocols.common.streams import DONE
from tests.support.campaign import campaign_count
from tests.support.outcomes import present

REQUEST = parse_request(b'{"model": "m", "stream": true}', may_stream=True)
NAMES = ("reasoning", "reasoning_content")


def event(text: str) -> bytes:
    return b'data: {"id":"c","choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n' % text.encode()


def deltas(events: bytes) -> list[dict[str, Any]]:
    lines = [line for line in events.decode().split("\n") if line.startswith("data: {")]
    return [choice["delta"] for line in lines for choice in json.loads(line[6:])["choices"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_thought_in_a_stream_has_both_names_and_its_bytes(name: str) -> None:
    other = NAMES[1 - NAMES.index(name)]
    text = r'"so\u00fc \"reasoning\": \\ \n ü€ \ud83d"'
    passed = CHAT.open_stream(REQUEST).feed_data(event(f'{{"{name}" : {text},"content":null}}'))
    assert passed == event(f'{{"{name}" : {text},"{other}":{text},"content":null}}')
    # A name that is null is given the thought.
    chunk = event(f'{{"{other}":null,"{name}":"so"}}') + event('{"content":"x"}') + event(f'{{"{name}":"on"}}')
    passed = CHAT.open_stream(REQUEST).feed_data(chunk)
    assert deltas(passed) == [dict.fromkeys(NAMES, "so"), {"content": "x"}, dict.fromkeys(NAMES, "on")]
    assert passed.count(b"\n\n") == 3


@pytest.mark.parametrize(
    "delta",
    [
        *('{"content":"I am \\"reasoning\\":\\"x\\""}', '{"content":"\\"reasoning_content\\":\\"x\\""}'),
        *('{"reasoning":null}', '{"reasoning_content":null,"content":"x"}'),
        *('{"reasoning_details":[{"type":"reasoning","text":"x"}]}', '{"reasoning":"x","reasoning_content":"x"}'),
        *('{"reasoning":"x","reasoning_content":"y"}', '{"reasoning":null,"reasoning_content":null}'),
        '{"reasoning":{"a":"b"}}',
    ],
)
def test_what_is_no_thought_or_has_both_names_stays(delta: str) -> None:
    assert CHAT.open_stream(REQUEST).feed_data(event(delta)) == event(delta)


def test_choices_and_events_keep_their_own_thoughts() -> None:
    chunk = b'data: {"choices":[{"delta":{"reasoning":"a"}},{"delta":{"reasoning_content":null}}]}\n\n'
    passed = CHAT.open_stream(REQUEST).feed_data(chunk)
    assert deltas(passed) == [dict.fromkeys(NAMES, "a"), {"reasoning_content": None}]
    passed = CHAT.open_stream(REQUEST).feed_data(event('{"reasoning":"a"}') + event('{"reasoning_content":"b"}'))
    assert deltas(passed) == [dict.fromkeys(NAMES, "a"), dict.fromkeys(NAMES, "b")]


def test_completions_have_no_thoughts() -> None:
    chunk = b'data: {"choices":[{"text":"x","reasoning":"y"}]}\n\n'
    assert COMPLETIONS.open_stream(REQUEST).feed_data(chunk) == chunk
    assert COMPLETIONS.get_body_converter(REQUEST) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_blocking_or_gathered_answer_has_both(name: str) -> None:
    change = present(CHAT.get_body_converter(REQUEST))
    body = b'{\n "choices": [{"message": {"%b": "so",\n "content": "x"}}],"usage":{"d":{"reasoning_tokens":1}}}'
    answer = change(body % name.encode())
    assert json.loads(answer)["choices"][0]["message"] == {"content": "x"} | dict.fromkeys(NAMES, "so")
    assert change(b'{"choices":[{"message":{"content":"x"}}]}') == b'{"choices":[{"message":{"content":"x"}}]}'
    assert change(b'{"choices":7,"reasoning":null,"reasoning_content":1}').startswith(b'{"choices":7')
    gathering = present(CHAT.open_collector(REQUEST))
    gathering.feed_data(event(f'{{"{name}":"so "}}') + event(f'{{"{name}":"on"}}') + event('{"content":"x"}') + DONE)
    result = present(gathering.build_result())
    message = json.loads(result[1])["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "x"} | dict.fromkeys(NAMES, "so on")


TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n{}:,'), max_size=30)
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.none() | TEXTS,
        "reasoning": st.none() | TEXTS,
        "reasoning_content": st.none() | TEXTS,
        "tool_calls": st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"arguments": TEXTS})})),
    },
)


@settings(max_examples=campaign_count(40, 2_000))
@given(st.lists(DELTAS, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_both_names_hold_the_thought(said: list[dict[str, Any]], ascii_only: bool, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    chunk = b"".join(event(json.dumps(delta, ensure_ascii=ascii_only, separators=separators)) for delta in said)
    passed = alias_in_events(chunk)
    for before, after in zip(said, deltas(passed), strict=True):
        told = [before[name] for name in NAMES if before.get(name)]
        expected = dict.fromkeys(NAMES, told[0]) if len(told) == 1 else {}
        if not told and "" in (before.get(name) for name in NAMES):
            expected = {name: after.get(name) for name in NAMES if name in after}
            assert set(expected.values()) <= {"", None}
        assert after == before | expected
    assert alias_in_events(passed) == passed
