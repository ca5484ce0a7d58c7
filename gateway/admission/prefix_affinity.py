"""Prefix affinity: guess which replica has the beginning of a prompt in its KV cache. Pure.

The guess comes from the prompts that the gateway sent to each replica; engines are not asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from gateway.protocols.common.conversation import Assistant, Image, Part, Prompt, System, Text, ToolResult, Turn, User

MOST_KEYS: Final = 32
"""Keys per request. Prompts that agree for that long belong to one conversation or one document."""
BLOCK: Final = 512
"""Characters of a plain-text prompt per key."""
_WHOLE: Final = 2048
"""Characters; of a longer text, only the length, the beginning and the end are hashed."""
_NODES: Final = 64
"""JSON values that are hashed per message; the rest is ignored."""

_SYSTEM_ROLES: Final = ("system", "developer")

ReplicaT = TypeVar("ReplicaT")


class PrefixAffinity(Generic[ReplicaT]):
    """Remembers to which replica each prompt beginning was last sent, by the keys of `prefix_keys`.

    `ModelQueue` prefers a replica that was sent the prompt's beginning among equally busy ones; `EngineSlots` keeps
    slot numbers in place of replicas. Holds a bounded number of keys, and forgets those first whose `record_request`
    was longest ago.
    """

    __slots__ = ("_replicas_by_key", "_size")

    def __init__(self, size: int) -> None:
        """`size`: number of keys to remember."""
        self._size = size
        self._replicas_by_key: OrderedDict[int, ReplicaT] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas_by_key)

    def matching_replicas(self, prefix: Sequence[int]) -> Iterator[ReplicaT]:
        """Yield the replicas that were sent a beginning of this prompt, longest match first, possibly repeated.

        Some may have left the routing table since. `prefix`: from `prefix_keys`.
        """
        replicas_by_key = self._replicas_by_key
        for key in prefix:
            replica = replicas_by_key.get(key)
            if replica is not None:
                yield replica

    def record_request(self, prefix: Sequence[int], replica: ReplicaT) -> None:
        """Remember that the prompt with these keys was sent to `replica`. `prefix`: from `prefix_keys`."""
        replicas_by_key = self._replicas_by_key
        for key in prefix:  # the shortest beginning last: most prompts share it, so it is forgotten last
            replicas_by_key[key] = replica
            replicas_by_key.move_to_end(key)
        while len(replicas_by_key) > self._size:
            replicas_by_key.popitem(last=False)


def prefix_keys(fields: Mapping[str, Any], parsed_prompt: Prompt | None = None) -> list[int]:
    """Return one hash per beginning of the prompt in a decoded request body, longest first.

    The first key is the client's `prompt_cache_key`, if given. Then comes one key for each of the leading `messages`
    together with all before it, or for each whole block of `BLOCK` (512) characters of a string `prompt`, or for each
    turn of `parsed_prompt`, the prompt as a translation has read it; at most `MOST_KEYS` (32) of these. Empty if the
    body has none of these; malformed messages raise nothing. A system prompt alone has no key: every replica soon has
    it in its cache, and requests that share only that would all go to one replica. Equal beginnings give equal keys
    within this process; different ones almost always differ.
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
    """Return one key per beginning, longest first, each hashed onto the key before it, starting from `key`.

    The first `system_count` digests get no keys of their own, but go into those that follow.
    """
    keys = []
    for digest in digests:
        key = hash((key, digest))
        keys.append(key)
    keys.reverse()
    if system_count:
        del keys[-system_count:]
    return keys


def _count_system_messages(messages: Sequence[Any]) -> int:
    """Return how many of the leading messages are system or developer messages."""
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
    if isinstance(message, dict) and len(message) == 2:  # most messages: role and content
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
