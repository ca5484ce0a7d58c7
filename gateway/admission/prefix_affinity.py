"""Which replica has a request's beginning in its cache, as far as can be guessed from what went where. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from gateway.protocols.common.conversation import Assistant, Image, Part, Prompt, System, Text, ToolResult, Turn, User

MOST_KEYS: Final = 32
"""Of one request. What is alike for that long is one conversation, or one document."""
BLOCK: Final = 512
"""Characters of a prompt that get one key."""
_WHOLE: Final = 2048
"""A longer text is known by its length, its beginning and its end."""
_NODES: Final = 64
"""Values looked at in one message."""

_SYSTEM_ROLES: Final = ("system", "developer")

ReplicaT = TypeVar("ReplicaT")


class PrefixAffinity(Generic[ReplicaT]):
    """The replica that each beginning last went to; the longest unused are forgotten."""

    __slots__ = ("_replicas_by_key", "_size")

    def __init__(self, size: int) -> None:
        """`size`: keys to remember."""
        self._size = size
        self._replicas_by_key: OrderedDict[int, ReplicaT] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas_by_key)

    def matching_replicas(self, prefix: Sequence[int]) -> Iterator[ReplicaT]:
        """Replicas that had a beginning of this request, the longest first; some come up more than once."""
        replicas_by_key = self._replicas_by_key
        for key in prefix:
            replica = replicas_by_key.get(key)
            if replica is not None:
                yield replica

    def record_request(self, prefix: Sequence[int], replica: ReplicaT) -> None:
        """A request with these beginnings went to `replica`."""
        replicas_by_key = self._replicas_by_key
        for key in prefix:  # the shortest last: it suits most, so it is forgotten last
            replicas_by_key[key] = replica
            replicas_by_key.move_to_end(key)
        while len(replicas_by_key) > self._size:
            replicas_by_key.popitem(last=False)


def prefix_keys(fields: Mapping[str, Any], parsed_prompt: Prompt | None = None) -> list[int]:
    """The keys of a decoded request body, the longest beginning first; empty for one that has no text that we know.

    Before all, where the client says which requests belong together (`prompt_cache_key`), that. Then one for each of
    the leading `messages`, with all before it; or for each block of a `prompt`, where that is a string; or for each
    turn of the request as a translation has read it (`parsed_prompt`). A system prompt has none of its own, since
    every replica soon has it in its cache: what has only that in common would all go to one replica.
    Equal beginnings give equal keys within this process; different ones nearly always different keys.
    """
    keys = _beginning_keys(fields, parsed_prompt)
    cache_key = fields.get("prompt_cache_key")
    return [hash(("prompt_cache_key", cache_key)), *keys] if cache_key and isinstance(cache_key, str) else keys


def _beginning_keys(fields: Mapping[str, Any], parsed_prompt: Prompt | None) -> list[int]:
    messages = fields.get("messages")
    if isinstance(messages, list):
        messages = messages[:MOST_KEYS]
        system_key = hash((0, _digest_of_any(fields["system"]))) if "system" in fields else 0
        return _cumulate_digests(map(_digest_of_message, messages), system_key, _count_system_messages(messages))
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        ends = range(BLOCK, min(len(prompt), BLOCK * MOST_KEYS) + 1, BLOCK)
        return _cumulate_digests([hash(prompt[end - BLOCK : end]) for end in ends])
    if parsed_prompt is None:
        return []
    turns = parsed_prompt.turns[:MOST_KEYS]
    return _cumulate_digests(map(_digest_of_turn, turns), system_count=_count_system_turns(turns))


def _cumulate_digests(digests: Iterable[int], key: int = 0, system_count: int = 0) -> list[int]:
    """The keys of what follows `key`, the longest beginning's first; none for the first `system_count` parts by
    themselves."""
    keys = []
    for digest in digests:
        key = hash((key, digest))
        keys.append(key)
    keys.reverse()
    if system_count:
        del keys[-system_count:]
    return keys


def _count_system_messages(messages: Sequence[Any]) -> int:
    """How many messages a conversation begins with that are its system prompt."""
    count = 0
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _SYSTEM_ROLES:
            break
        count += 1
    return count


def _count_system_turns(turns: Sequence[Turn]) -> int:
    count = 0
    for turn in turns:
        if not isinstance(turn, System):
            break
        count += 1
    return count


def _digest_of_message(message: object) -> int:
    if isinstance(message, dict) and len(message) == 2:  # nearly all
        content = message.get("content")
        role = message.get("role")
        if isinstance(role, str) and isinstance(content, str) and len(content) <= _WHOLE and len(role) <= _WHOLE:
            return hash((role, content))
    return _digest_of_any(message)


def _digest_of_turn(turn: Turn) -> int:
    match turn:
        case System():
            return hash(("system", _shorten_text(turn.text)))
        case Assistant():
            calls = [(call.name, _shorten_text(call.arguments)) for call in turn.calls[:_NODES]]
            return hash(("assistant", _shorten_text(turn.text), _shorten_text(turn.thought), *calls))
        case User() | ToolResult():
            return hash((type(turn), *[(type(part), _shorten_text(_part_text(part))) for part in turn.parts[:_NODES]]))


def _part_text(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    return part.url if isinstance(part, Image) else part.data


def _shorten_text(text: str) -> object:
    return text if len(text) <= _WHOLE else (len(text), text[: _WHOLE // 2], text[-_WHOLE // 2 :])


def _digest_of_any(value: object) -> int:
    visited_values: list[object] = []
    pending = [value]
    while pending and len(visited_values) < _NODES:
        item = pending.pop()
        if isinstance(item, str) and len(item) > _WHOLE:
            visited_values.append(_shorten_text(item))
        elif isinstance(item, dict):
            visited_values.append(len(item))
            pending.extend(islice(item.values(), _NODES))
            pending.extend(islice(item, _NODES))
        elif isinstance(item, list):
            visited_values.append(len(item))
            pending.extend(item[:_NODES])
        else:
            visited_values.append(item)
    return hash(tuple(visited_values))
