"""Sessions: which requests belong to one conversation, and which conversations each replica has in its cache. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

from gateway.protocols.common.conversation import Assistant, Audio, Fields, Image, Part, System, Text, Turn
from gateway.protocols.common.field_reader import optional_field
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses.context import ResponseContext
from gateway.server.asgi import Header

SESSION_FIELD: Final = "session_id"
_CACHE_KEY_FIELD: Final = "prompt_cache_key"
NAMING_FIELDS: Final = frozenset((SESSION_FIELD, _CACHE_KEY_FIELD))
"""Fields of a request that may name its session."""
CONVERSATION_HEADER: Final = b"x-conversation-id"
_MODEL_MARK: Final = "::"
"""Separates a conversation's id from the model's name in `CONVERSATION_HEADER`."""
_KEY_BYTES: Final = 16


def find_session_name(fields: Fields, headers: Sequence[Header], context: ResponseContext | None) -> str | None:
    """Return the client's name for the session of a request; None: the request belongs to no session.

    The first of these that is present and not empty names it: the field `session_id`, the header `X-Conversation-Id`
    (up to `::`), the conversation of a response, the id of the oldest item that `previous_response_id` leads to, the
    field `prompt_cache_key`, and the `session_name` of the context. `fields`: the request body. A `prompt_cache_key`
    that is no string counts as missing. `headers`: names in lower case. `context`: the ResponseContext of the request,
    with its history loaded; None for any API but `/v1/responses`.

    Raises:
        RoundhouseError: `invalid_request`: `session_id` is not a string.
    """
    name = optional_field(fields, SESSION_FIELD, str) if SESSION_FIELD in fields else None
    if not name:
        name = _header_name(headers)
    if not name and context is not None:
        name = context.conversation_id or _first_item_id(context)
    if not name:
        cache_key = fields.get(_CACHE_KEY_FIELD)
        name = cache_key if isinstance(cache_key, str) else None
    if not name and context is not None:
        name = context.session_name
    return name or None


def derive_session_key(tenant: str, model: str, name: str) -> bytes:
    """Return the key of a tenant's session of a model: 16 bytes, the same in every gateway.

    Equal names of two tenants, or of two models, give different keys. Engines see the key, never the name.
    """
    digest = blake2b(digest_size=_KEY_BYTES)
    for part in (tenant, model, name):
        encoded = part.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


def _header_name(headers: Sequence[Header]) -> str:
    for name, value in headers:
        if name == CONVERSATION_HEADER:
            return value.decode("latin-1").partition(_MODEL_MARK)[0]
    return ""


def _first_item_id(context: ResponseContext) -> str | None:
    """Return the id of the oldest item before the request's own, which all responses of a chain share."""
    item_id = context.history[0].get("id") if context.history else None
    return item_id if isinstance(item_id, str) else None


_DIGEST_BYTES: Final = 16
_TOO_DEEP: Final = b"nested too deeply to be encoded as JSON"


class Beginning(NamedTuple):
    """Identifies the first `length` parts of a conversation without keeping their text. Parts are messages, or the
    characters of a prompt that is a text. `digest`: 16 bytes, equal for equal beginnings in every gateway."""

    length: int
    """Number of messages; for a prompt that is a text, number of characters."""
    digest: bytes
    """16 bytes; equal for equal beginnings, in every gateway and after every restart."""


class Transcript:
    """The conversation that a request carries: its messages, or the text of its prompt. Messages that are nested too
    deeply to be encoded as JSON count as equal."""

    __slots__ = ("_beginnings", "_parts")

    def __init__(self, parts: Sequence[object]) -> None:
        """`parts`: messages as JSON values, or a text, whose parts are its characters."""
        self._parts = parts
        self._beginnings: dict[int, Beginning] = {}
        """Computed beginnings, by length: admission compares a waiting turn many times."""

    @classmethod
    def of(cls, request: InferenceRequest) -> Transcript:
        """Return the transcript of a request. It has no parts if the request has neither messages nor a prompt.

        Of a large body (`gateway.protocols.common.large_body.LargeBody`), only the outline is compared: two that differ
        only inside long strings have equal transcripts.
        """
        if request.prompt is not None:
            return cls([_describe_turn(turn) for turn in request.prompt.turns])
        return cls(_native_parts(request.outline_fields))

    def whole(self) -> Beginning:
        """Return the Beginning that covers the whole conversation; for one without parts, its length is 0."""
        return self._digest(len(self._parts))

    def begins_with(self, beginning: Beginning) -> bool:
        """Return whether the conversation begins with `beginning`, which is the whole of an earlier request. True for
        equal conversations."""
        return beginning.length <= len(self._parts) and self._digest(beginning.length) == beginning

    def _digest(self, length: int) -> Beginning:
        beginning = self._beginnings.get(length)
        if beginning is None:
            beginning = self._beginnings[length] = self._compute_digest(length)
        return beginning

    def _compute_digest(self, length: int) -> Beginning:
        parts = self._parts[:length]
        digest = blake2b(digest_size=_DIGEST_BYTES)
        if isinstance(parts, str):
            digest.update(parts.encode(errors="surrogatepass"))
        else:
            for part in parts:
                try:
                    encoded = json_bytes(part)
                except RecursionError:  # which would break off an admission half way
                    encoded = _TOO_DEEP
                digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return Beginning(length, digest.digest())


def _native_parts(fields: Mapping[str, Any]) -> Sequence[object]:
    messages = fields.get("messages")
    if isinstance(messages, list):
        return [fields["system"], *messages] if "system" in fields else messages
    prompt = fields.get("prompt")
    return prompt if isinstance(prompt, (str, list)) else []


def _describe_turn(turn: Turn) -> object:
    """Return what a turn says as JSON, without its place in the request, which moves."""
    if isinstance(turn, System):
        return ["system", turn.text]
    if isinstance(turn, Assistant):
        return [
            "assistant",
            turn.text,
            turn.thought,
            turn.refusal,
            *([call.name, call.arguments] for call in turn.calls),
        ]
    return [type(turn).__name__, *(_describe_part(part) for part in turn.parts)]


def _describe_part(part: Part) -> object:
    match part:
        case Text():
            return ["text", part.text]
        case Image():
            return ["image", part.url]
        case Audio():
            return ["audio", part.data]


Decision = Literal["new", "reused", "rebuilt"]
"""What the gateway expects of a turn's cache. `new`: the gateway does not know the session. `reused`: the replica has
the session's cache, and the request begins with the messages of the turn before. `rebuilt`: the gateway knows the
session, but the replica computes the prompt again."""


class Sampling(NamedTuple):
    """Sampling fields of a request, which LiteRT-LM binds to its conversation; None: the request does not set the
    field."""

    temperature: Any = None
    top_k: Any = None
    top_p: Any = None
    seed: Any = None

    @classmethod
    def of(cls, fields: Fields) -> Sampling:
        """Return the sampling fields of a request's JSON body as they are, unchecked; None for those that are
        missing."""
        return cls(*(fields.get(name) for name in cls._fields))


class SessionClaim:
    """One request's turn in its session: how the request names and continues the session, and what was decided. Made
    before admission; it lives as long as the request's exchange."""

    __slots__ = ("cached_tokens", "decision", "held_tokens", "key", "sampling", "session", "transcript", "waits_since")

    def __init__(self, key: bytes, transcript: Transcript, sampling: Sampling) -> None:
        """`key`: see `derive_session_key`. `transcript`: the messages that the request carries."""
        self.key = key
        self.transcript = transcript
        self.sampling = sampling
        self.decision: Decision | None = None
        """The decision for the replica that the request was last sent to; None: no replica was chosen yet."""
        self.held_tokens: int | None = None
        """Tokens of prompt and answer that the engine has in its cache after the turn; None: there was no answer."""
        self.cached_tokens = 0
        """Tokens of the prompt that the replica was expected to have in its cache when the request was sent to it."""
        self.session: Session | None = None
        """The session that counts the turn as inside; None: none does."""
        self.waits_since: float | None = None
        """Monotonic time in seconds since which the turn waits for its home although another replica has room; None: it
        does not."""


@dataclass(slots=True)
class Session:
    """A session as one replica keeps it: the turns that are inside, and what the gateway expects in the engine's cache.
    Made by `ReplicaSessions.begin_turn`."""

    used_at: float
    """Monotonic time in seconds at which its last turn began or ended."""
    sampling: Sampling | None = None
    seen: Beginning | None = None
    """All messages of its last answered turn; None: no turn was answered yet, or the last turn that was `rebuilt` was
    not answered."""
    tokens: int = 0
    """Tokens, prompt and answer, of its last answered turn whose counts the engine reported; 0: there is none, or the
    last turn that was `rebuilt` was not answered."""
    turns_inside: int = 0
    """Requests of the session that the replica is serving."""
    slot: int | None = None
    """The engine's slot that has its cache; None: no slot has it, or the engine finds the cache by tokens."""


class ReplicaSessions:
    """The sessions of one replica, by the key of `derive_session_key`. Iterating yields the keys; the
    session whose last turn began longest ago comes first.

    Admission makes one for each replica and tells it of every turn; it never asks the engine. Used from one event loop
    only. `now` in its methods is monotonic time in seconds.
    """

    __slots__ = ("_binds_sampling", "_sessions", "capacity")

    def __init__(self, capacity: int, *, binds_sampling: bool = False) -> None:
        """`capacity`: maximum number of sessions kept, apart from those with a turn inside. `binds_sampling`: a turn
        with other sampling fields than the turn before is `rebuilt`."""
        self.capacity = capacity
        self._binds_sampling = binds_sampling
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sessions)

    def find_session(self, key: bytes) -> Session | None:
        """Return the session of this key; None: the replica does not keep it."""
        return self._sessions.get(key)

    def decide(self, claim: SessionClaim, *, is_known_elsewhere: bool) -> Decision:
        """Return whether a turn is `new`, `reused` or `rebuilt` in this replica (see `Decision`). Changes nothing.

        `reused`: the session is here, no other turn of it is inside, and the request begins with the messages of its
        last answered turn (with `binds_sampling`, also has its sampling). `is_known_elsewhere`: another replica keeps
        the session, or a replica that is gone kept it; then a session unknown here is `rebuilt`, not `new`.
        """
        session = self._sessions.get(claim.key)
        if session is None:
            return "rebuilt" if is_known_elsewhere else "new"
        return "reused" if self._continues(session, claim) else "rebuilt"

    def count_cached(self, claim: SessionClaim) -> int:
        """Return the tokens that the session has in the cache (`Session.tokens`: prompt and answer of its last turn
        whose counts the engine reported) if `decide` would say `reused` for this turn; else 0, as where no counts were
        reported."""
        session = self._sessions.get(claim.key)
        return session.tokens if session is not None and self._continues(session, claim) else 0

    def begin_turn(self, claim: SessionClaim, now: float) -> Session:
        """Count a turn of the claim's session as inside, set `claim.session`, and return the session.

        The session is a new one if the replica did not keep it. It becomes the most recently used. Call `drop_oldest`
        afterwards until it returns None, and `end_turn` once per turn. `now`: monotonic seconds.
        """
        session = self._sessions.get(claim.key)
        if session is None:
            session = self._sessions[claim.key] = Session(now)
        claim.session = session
        self._sessions.move_to_end(claim.key)
        session.used_at = now
        session.turns_inside += 1
        return session

    def drop_oldest(self) -> Session | None:
        """If there are more than `capacity` sessions, drop and return the least recently used one without a turn
        inside. None: there are not more, or each has a turn inside."""
        if len(self._sessions) <= self.capacity:
            return None
        for key, session in self._sessions.items():
            if not session.turns_inside:
                return self._sessions.pop(key)
        return None

    def drop_session(self, key: bytes) -> None:
        """Drop the session of this key. Raises KeyError if the replica does not keep it."""
        del self._sessions[key]

    def end_turn(self, claim: SessionClaim, now: float) -> Session | None:
        """End a turn that `begin_turn` counted, and set `claim.session` to None. `now`: monotonic seconds.

        If `claim.held_tokens` is not None, the turn was answered: the session remembers its messages, its sampling and,
        unless they are 0, these tokens. A `rebuilt` turn without an answer makes the session forget the messages and
        tokens of earlier turns. If the turn was not answered, the session remembered no messages before it, and no
        other turn of it is inside, the session is dropped.

        Returns:
            The session if it is dropped now. None: it is kept, or was dropped before; then nothing happens, even if the
                replica keeps a new session of the same key.
        """
        session, claim.session = claim.session, None
        if session is None or self._sessions.get(claim.key) is not session:
            return None
        session.turns_inside -= 1
        session.used_at = now
        if claim.held_tokens is not None:
            session.seen = claim.transcript.whole()
            session.sampling = claim.sampling
            session.tokens = claim.held_tokens or session.tokens
        elif session.seen is None and not session.turns_inside:
            return self._sessions.pop(claim.key)
        elif claim.decision == "rebuilt":
            session.seen, session.tokens = None, 0  # what it began to compute took the place of what was there
        return None

    def _continues(self, session: Session, claim: SessionClaim) -> bool:
        if session.turns_inside or session.seen is None or not claim.transcript.begins_with(session.seen):
            return False
        return not self._binds_sampling or claim.sampling == session.sampling
