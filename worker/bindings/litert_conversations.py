"""LiteRT-LM's conversations whose last answer is complete, kept for requests that continue them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class HeldConversation:
    """A conversation of `litert_lm` whose last answer is complete, with the messages that its cache holds and what a
    request must have in common with it to continue it. The holder closes `conversation`."""

    conversation: Any
    key: str
    """Sampling, tools and template variables, which must be the same in a request that continues it."""
    messages: list[dict[str, Any]]
    """All messages so far, the last answer included."""

    def is_continued_by(self, key: str, earlier: list[dict[str, Any]]) -> bool:
        """Return whether a request with this key, whose last message follows `earlier`, continues the conversation."""
        return self.key == key and self.messages == earlier


class HeldConversations:
    """Conversations of `litert_lm` kept for later requests: one per session, of at most `capacity` sessions, and that
    of the last request without a session. Closes each conversation that it drops. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: maximum number of sessions; 0: none is kept."""
        self._capacity = capacity
        self._sessions: OrderedDict[str, HeldConversation] = OrderedDict()
        self._last_plain: HeldConversation | None = None

    def take(self, session_id: str | None, key: str, earlier: list[dict[str, Any]]) -> Any:
        """Return and remove the session's conversation, if the request continues it; the caller then owns it. Else
        close and remove it, if there is one, and return None.

        `key` and `earlier` are those of the request, as in `HeldConversation`. `session_id` None: the request belongs
        to no session.
        """
        if session_id is None:
            held, self._last_plain = self._last_plain, None
        else:
            held = self._sessions.pop(session_id, None)
        if held is None or held.is_continued_by(key, earlier):
            return None if held is None else held.conversation
        held.conversation.close()
        return None

    def make_room(self, session_id: str | None) -> None:
        """Close the conversations of the sessions that were used longest ago, until there is room for another session.
        Call before a conversation is created for `session_id`, which holds none. None: the request has no session, and
        nothing is done."""
        while session_id is not None and self._sessions and len(self._sessions) >= self._capacity:
            self._sessions.popitem(last=False)[1].conversation.close()

    def keep(self, session_id: str | None, held: HeldConversation) -> None:
        """Keep a conversation whose answer is complete, for the next request of the session `session_id`; None: for the
        next request without a session. It takes the place of that session's earlier conversation, which `take` has
        removed. If the capacity is 0, a session's conversation is closed at once. Call `make_room` before the
        conversation is created: nothing is dropped here."""
        if session_id is None:
            self._last_plain = held
        elif self._capacity:
            self._sessions[session_id] = held
        else:
            held.conversation.close()

    def drop_all(self) -> bool:
        """Close and drop all conversations, to free memory for another. Return whether there were any."""
        held = [*self._sessions.values(), *([] if self._last_plain is None else [self._last_plain])]
        self._sessions.clear()
        self._last_plain = None
        for each in held:
            each.conversation.close()
        return bool(held)
