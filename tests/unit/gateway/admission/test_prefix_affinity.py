"""Where a request's beginning was seen last."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.prefix_affinity import BLOCK, MOST_KEYS, PrefixAffinity, prefix_keys
from gateway.protocols.common.conversation import Assistant, Call, Image, Prompt, System, Text, ToolResult, Turn, User
from tests.support.campaign import campaign_count


def _said(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


def test_the_longest_beginning_comes_first_and_the_longest_unused_is_forgotten() -> None:
    affinity: PrefixAffinity[str] = PrefixAffinity(3)
    affinity.record_request([2, 1], "a")
    affinity.record_request([3, 1], "b")
    assert list(affinity.matching_replicas([9, 3, 2, 1])) == ["b", "a", "b"]
    affinity.record_request([2], "c")
    affinity.record_request([4], "d")
    assert len(affinity) == 3
    assert list(affinity.matching_replicas([4, 3, 2, 1])) == ["d", "c", "b"]


def test_parts_tools_and_roles_count() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000 + "B"}}
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", "name": "bob"}]},
        {"messages": [{"role": "user", "content": [picture]}]},
        {"messages": [{"role": "user", "content": [other]}]},
    ]
    keys = [prefix_keys(body)[0] for body in bodies]
    assert len(set(keys)) == len(bodies)
    assert [prefix_keys(body)[0] for body in bodies] == keys


def test_a_key_of_the_clients_own_comes_first() -> None:
    plain = prefix_keys(_said("hello"))
    keyed = prefix_keys(_said("hello") | {"prompt_cache_key": "agent-7"})
    other = prefix_keys({"input": "good-bye", "prompt_cache_key": "agent-7"})
    assert keyed == [*other, *plain]
    assert len(other) == 1
    assert prefix_keys({"prompt_cache_key": "agent-8"}) != other
    for nothing in ("", None, 7, ["a"]):
        assert prefix_keys(_said("hello") | {"prompt_cache_key": nothing}) == plain


def test_anthropics_system_is_a_part_of_every_beginning() -> None:
    plain = prefix_keys(_said("hello"))
    first, second = (prefix_keys(_said("hello") | {"system": text}) for text in ("be nice", "be rude"))
    assert len(first) == len(second) == 1
    assert len({*plain, *first, *second}) == 3
    assert prefix_keys(_said("hello", "more") | {"system": "be nice"})[1:] == first


def test_what_a_translation_has_read_has_a_key_for_each_turn() -> None:
    def read(*turns: Turn) -> list[int]:
        return prefix_keys({"input": "x"}, Prompt(turns=turns))

    system, said = System("be nice"), User((Text("hello"),), place="input[0]")
    before = read(system, said)
    after = read(system, replace(said, place="input[1]"), Assistant("hi!"), ToolResult("c", (Text("1"),)))
    assert (len(before), len(after)) == (1, 3)
    assert after[2:] == before
    long = "x" * 100_000
    others = [
        read(system, User((Text("hello "),))),
        read(system, ToolResult("c", (Text("hello"),))),
        read(system, User((Text("hello"), Text("hello")))),
        read(system, User((Image("hello"),))),
        read(system, User((Image(long),))),
        read(system, User((Image(long + "y"),))),
        read(system, Assistant("hello")),
        read(system, Assistant("", "hello")),
        read(system, Assistant("", calls=(Call("c", "f", "{}"),))),
    ]
    assert len({key for keys in [before, *others] for key in keys}) == len(others) + 1


SYSTEM = {"role": "system", "content": "be nice"}
DEVELOPER = {"role": "developer", "content": [{"type": "text", "text": "be brief"}]}


def _asks(text: str, *before: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*before, {"role": "user", "content": text}]}


@pytest.mark.parametrize(
    "ask",
    [
        lambda text: prefix_keys(_asks(text, SYSTEM)),
        lambda text: prefix_keys(_asks(text, SYSTEM, DEVELOPER, SYSTEM)),
        lambda text: prefix_keys(_asks(text) | {"system": "be nice"}),
        lambda text: prefix_keys(_asks(text, SYSTEM) | {"system": [{"type": "text", "text": "be nice"}]}),
        lambda text: prefix_keys({}, Prompt(turns=(System("nice"), System("brief"), User((Text(text),))))),
    ],
)
def test_what_is_alike_in_its_system_prompt_alone_shares_no_key(ask: Any) -> None:
    first, second = ask("hello"), ask("good-bye")
    assert len(first) == len(second) == 1
    assert first != second
    assert ask("hello") == first


def test_system_prompts_have_no_keys() -> None:
    assert prefix_keys({"messages": [SYSTEM, DEVELOPER]}) == []
    assert prefix_keys({"messages": [], "system": "be nice"}) == []
    said = {"role": "user", "content": "hello"}
    keys = prefix_keys({"messages": [SYSTEM, said, DEVELOPER, said]})
    assert len(keys) == 3
    assert keys[2:] == prefix_keys({"messages": [SYSTEM, said]})
    assert keys[2:] != prefix_keys({"messages": [said]}), "what it is a beginning of"


def test_a_long_system_prompt_leaves_the_most_keys_to_what_follows() -> None:
    many = [{"role": "user", "content": str(number)} for number in range(MOST_KEYS)]
    assert len(prefix_keys({"messages": [SYSTEM, *many]})) == MOST_KEYS - 1
    assert prefix_keys({"messages": [*[SYSTEM] * MOST_KEYS, *many]}) == []


@settings(max_examples=campaign_count(50, 5_000))
@given(
    st.lists(st.sampled_from([SYSTEM, DEVELOPER]), max_size=3),
    st.lists(st.text(max_size=5), min_size=1, max_size=5),
    st.lists(st.text(max_size=5), min_size=1, max_size=5),
)
def test_equal_messages_have_equal_keys(system: list[dict[str, Any]], first: list[str], second: list[str]) -> None:
    keys = [prefix_keys({"messages": [*system, *_said(*texts)["messages"]]})[::-1] for texts in (first, second)]
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    assert [len(each) for each in keys] == [len(first), len(second)]
    assert keys[0][:shared] == keys[1][:shared]
    assert not {*keys[0][shared:]} & {*keys[1][shared:]}


def test_a_prompt_has_a_key_for_each_whole_block_up_to_a_bound() -> None:
    text = "".join(chr(97 + number % 26) for number in range(BLOCK * 3 + 5))
    keys = prefix_keys({"prompt": text})
    assert len(keys) == 3
    assert prefix_keys({"prompt": text[: BLOCK * 2] + "!" * BLOCK})[1:] == keys[1:]
    assert prefix_keys({"prompt": text[: BLOCK * 2] + "!" * BLOCK})[0] != keys[0]
    assert prefix_keys({"prompt": "!" + text}) != keys
    assert len(prefix_keys(_said(*map(str, range(10_000))))) == MOST_KEYS
    assert len(prefix_keys({"prompt": "x" * 5_000_000})) == MOST_KEYS


@pytest.mark.parametrize(
    "fields", [{}, {"messages": None}, {"messages": "x"}, {"prompt": ["x"]}, {"input": "x" * 9999}, {"prompt": "x"}]
)
def test_other_shapes_have_none(fields: dict[str, Any]) -> None:
    assert prefix_keys(fields) == []


class _Watched(list[Any]):
    """Says how much of it was looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        _Watched.looks += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Any:
        raise AssertionError("all of it was looked at")


def test_the_work_is_bounded() -> None:
    _Watched.looks = 0
    part = _Watched({"type": "text", "text": "x"} for _ in range(100_000))
    prefix_keys({"messages": _Watched({"role": "user", "content": part} for _ in range(100_000))})
    assert 0 < _Watched.looks <= MOST_KEYS * 65
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert len(prefix_keys({"messages": [deep]})) == 1


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=campaign_count(30, 3_000))
@given(st.dictionaries(st.sampled_from(["messages", "prompt", "input"]), _json | st.lists(_json, max_size=5)))
def test_no_shape_makes_it_fail(fields: dict[str, Any]) -> None:
    assert prefix_keys(fields) == prefix_keys(fields)
    for key in prefix_keys(fields):
        assert isinstance(key, int)
        assert not math.isnan(key)
