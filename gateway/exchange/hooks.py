"""What an exchange is opened with, the declaration of its API and the hooks of features (ADR 21), and its states.

A hook may add others while the request is prepared. Of each kind there may be several, which are called in order. All
are called in the event loop's one thread and must not block it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from contract.errors import RoundhouseError
from contract.keys import KeyScope
from contract.routing import Endpoint, ModelRoute
from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.protocols.common.dialect import Dialect, EventStream, StreamCollector
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.request import BodyKind, InferenceRequest, find_part_types, parse_native, parse_request
from gateway.protocols.common.stream_ids import name_model
from gateway.routing.table import Routes
from gateway.server.asgi import Header
from gateway.server.call import ClientCall

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange


class ExchangeState(IntEnum):
    """The state of one `Exchange`; `NEXT_STATES` has the legal transitions.

    Ints, because the hash of a plain enum is computed in Python at each look-up.
    """

    OPENED = 1
    """The headers are read; the body is not."""
    PREPARING = 2
    """The body is read. Hooks complete the request (files, stored history), and perhaps wait for that."""
    QUEUED = 3
    """The request waits in its model's queue for a slot."""
    LOADING = 4
    """The request waits in its model's queue, and the model for its load."""
    HELD = 5
    """The request has a slot. A `before_send` hook waits, and the engine has not been asked."""
    SENT = 6
    """An attempt is under way, and the engine has not begun to answer."""
    ANSWERING = 7
    """The engine answers."""
    ENDED = 8
    """Everything that the request held is given back."""


S = ExchangeState
_FROM_ADMISSION: Final = frozenset({S.QUEUED, S.LOADING, S.HELD, S.SENT, S.ENDED})
"""What admission may come to: a place in the queue, a slot, or a refusal."""
NEXT_STATES: Final[Mapping[ExchangeState, frozenset[ExchangeState]]] = {
    # The body comes; or the client leaves, or is refused by its headers.
    S.OPENED: frozenset({S.PREPARING, S.ENDED}),
    # A hook waits again after another; a hook answers by itself (ENDED).
    S.PREPARING: _FROM_ADMISSION | {S.PREPARING},
    # A new table unloads the model, or a slot is granted.
    S.QUEUED: frozenset({S.LOADING, S.HELD, S.SENT, S.ENDED}),
    # A new table has the model loaded, with or without a slot for the request; or the wait is over.
    S.LOADING: frozenset({S.QUEUED, S.HELD, S.SENT, S.ENDED}),
    # A second hook waits; or the replica has left the table meanwhile, and admission is asked again.
    S.HELD: _FROM_ADMISSION,
    # The attempt failed before an answer, and admission is asked again.
    S.SENT: _FROM_ADMISSION | {S.ANSWERING},
    # The engine gave the request up for want of room before any part of the answer was passed on.
    S.ANSWERING: _FROM_ADMISSION,
    S.ENDED: frozenset(),
}
WAITING_STATES: Final = frozenset({S.QUEUED, S.LOADING})
"""The request is in its model's queue."""


StateUse = Literal["none", "read", "made", "completion", "message"]


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """An API that engines answer, directly or through a translation. The table `gateway/api/inference.py` declares
    them."""

    path: str
    """The path as clients request it; `{id}` stands for a number. `api_matrix.SERVING_OPTIONS` maps it to engines."""
    method: str = "POST"
    streams: bool = False
    """Requests may set `stream`."""
    gathers: bool = False
    """Requests cannot set `stream`, but the gateway may ask the engine for a stream and answer with the whole of it
    (see `engine_stage`), as it may for every API that streams."""
    takes_slot: bool = True
    """A request occupies one of the engine's slots and is admitted; False: the request is sent at once."""
    inputs: tuple[str, ...] = ()
    """Names of fields that may list several inputs, each of which costs an engine as much as a request of its own."""
    whole_copies: int = 0
    """Memory of a request with a large body, as a multiple of the body's size, where the API decodes the body whole:
    its blocks, its text, what is decoded of it, and what is sent or stored of that. 0: it does not, and long texts pass
    as they came."""
    scope: KeyScope = field(kw_only=True)
    """The scope that a key needs. It has no default, so the gateway does not start with an API that declares none."""
    is_inner_state: bool = False
    """The API changes or reveals an engine's inner state. It is served only if `engine_state_routes` is set."""
    names_replica: bool = False
    """A request may choose the replica that answers (`?replica=`), and the answer names the replica (`X-Replica`)."""
    body: BodyKind = "object"
    """The JSON that a request must hold. Where that is no object, the query names the model."""
    state: StateUse = "none"
    """How requests use stored state. `none`: not at all. `read`: they continue a response. `made`: they make a
    response, which may search files. `completion`: they make a chat completion, which documents may ground, and which
    is stored if the request says so. `message`: they make a message, which documents may ground. `Extension.hooks` maps
    it to hooks."""
    is_native: bool = False
    """llama.cpp's own API. A request may name its model in the body or the query, and need not where only one model
    serves the API."""
    resumes: bool = False
    """A stream with `X-Conversation-Id` is kept, and can be read again."""

    @property
    def changes_replica(self) -> bool:
        """Whether requests change what one engine keeps, so that one of several replicas must be chosen."""
        return self.is_inner_state and self.method != "GET"

    @property
    def dialect(self) -> Dialect:
        """The `Dialect` of the API's family (OpenAI, Anthropic, llama.cpp ...), by which clients are answered.

        Use it for what does not depend on the engine: errors and heartbeats.
        """
        return SERVING_OPTIONS[self.path][0].dialect

    def read_request(self, body: bytes | LargeBody, client: ClientCall, routes: Routes) -> InferenceRequest:
        """Return the decoded request. Whether the routing table has its model is not checked.

        `routes`: the table in force, for an API whose requests need not name their model. `client`: for the query and
        the headers of the request.

        Raises:
            RoundhouseError: `invalid_json` if the body is no JSON of the kind `body`; `invalid_request` if it names no
                model, or `stream` or `stream_options` is wrong, or a number is too large.
        """
        if not self.is_native:
            request = self._parse_request(body, client)
            request.target = self.path
            return request
        path = client.path.decode("latin-1") if "{" in self.path else self.path
        return parse_native(
            body, client.query, path, routes.sole_model(SERVING_OPTIONS[self.path][0].required_api), body=self.body
        )

    def _parse_request(self, body: bytes | LargeBody, client: ClientCall) -> InferenceRequest:
        try:
            return parse_request(body, may_stream=self.streams)
        except RoundhouseError as error:
            model = name_model(client.headers) if self.resumes and error.param == "model" else None
            if model is None:
                raise
            return parse_request(body, may_stream=self.streams, usual_model=model)


class AnswerForm(NamedTuple):
    """How an engine's answer becomes the client's. `events`: for a stream that the client gets as a stream; None: it
    asked for a blocking answer. `collector`: for a stream that is gathered into a blocking answer; None: none is
    gathered. `translate`: for the body of a blocking answer; None: it passes unchanged."""

    events: EventStream | None
    """Translates a stream into the client's stream; None: the client asked for a blocking answer."""
    collector: StreamCollector | None
    """Gathers a stream into a blocking answer; None: the engine is asked for what the client asked for."""
    translate: Callable[[bytes], bytes] | None
    """Translates the body of a blocking answer; None: the body is passed on unchanged. Never gets an error."""
    may_flow: bool
    """A blocking answer that is too long to hold in memory is passed on in parts, without `translate`."""


class Pause(NamedTuple):
    """What an exchange waits for before its next hook: a future, and what to do with its result. An exception of the
    future ends the request.

    The exchange may end during the wait, when its client leaves or its time is over; `then` is not called then.
    """

    future: asyncio.Future[Any]
    """An exception of it ends the request: a RoundhouseError is sent to the client, another as `internal_error`.

    It is not cancelled when the request ends otherwise: a hook that wants this does it in `on_end`. If it is cancelled,
    the exchange goes on waiting: whoever cancels it must end the request.
    """
    then: Callable[[Any], None] | None = None
    """Called with the result, if the request is not over; None: the result is ignored. May raise RoundhouseError."""


RequestHook: TypeAlias = "Callable[[Exchange, ModelRoute], Pause | None]"
SendHook: TypeAlias = "Callable[[Exchange, ModelRoute, Endpoint], Pause | None]"
_NOTHING: Final[frozenset[Any]] = frozenset()


class Trigger(NamedTuple):
    """Parts of a request that call for a hook, whatever their values: names of fields, names of headers in lower case,
    types of content parts. Any one of them is enough."""

    fields: frozenset[str] = _NOTHING
    """Fields of the body."""
    headers: frozenset[bytes] = _NOTHING
    """In lower case."""
    parts: frozenset[str] = _NOTHING
    """Types of content parts; see `find_part_types`."""

    def matches(self, fields: Collection[str], headers: Collection[bytes], parts: Collection[str]) -> bool:
        """Return whether a request with these fields, headers and types of parts has any of what is named."""
        return not (
            self.fields.isdisjoint(fields) and self.headers.isdisjoint(headers) and self.parts.isdisjoint(parts)
        )


class ConditionalHook(NamedTuple):
    """A hook of `on_request` that is called for those requests alone that `trigger` matches, as they came: what an
    earlier hook changes in a request neither adds a hook nor takes one away."""

    hook: RequestHook
    trigger: Trigger


@dataclass(slots=True)
class ExchangeHooks:
    """The hooks of one exchange, by kind, in the order of their calls. A kind without hooks costs one look.

    Never changed once made; `frozen` would cost a microsecond.

    Hooks of the first six kinds may raise RoundhouseError, which ends the request and is sent to the client. Those of
    the last two must not raise.
    """

    on_request: tuple[RequestHook | ConditionalHook, ...] = ()
    """Complete or change the request. Its body is read and its caller may use the model; it is neither checked against
    the model nor counted against the key's limits yet. Before an expensive step, call `exchange.count_request`. A hook
    that few requests need is a `ConditionalHook`: a request that asks for nothing enters no code of a feature."""
    before_admission: tuple[Callable[[Exchange], bool], ...] = ()
    """Look at the request, which is complete, checked and counted. Return True to answer it without an engine, now or
    later, by `exchange.answer` and `exchange.close`: no other hook is called but those of `on_event` and `on_end`."""
    on_admitted: tuple[Callable[[Exchange], None], ...] = ()
    """Note that admission took the request: it has a slot, or waits in the queue. Called once, when the header lines of
    the answer are set and before the engine is asked."""
    on_wait: tuple[Callable[[Exchange, ModelRoute], None], ...] = ()
    """Note that the request waits in the queue, perhaps for a load (`exchange.load_wait`). Called when it enters the
    queue, which it may do again after a failed attempt, and with each new routing table."""
    before_send: tuple[SendHook, ...] = ()
    """Look at the replica, whose slot the request holds, and change the request for it. Called for each attempt, before
    the engine's body is made. A pause should be short: it keeps the slot. If the replica has left the table at
    its end, the request is admitted again, and all are called for the new replica."""
    shape_answer: tuple[Callable[[Exchange, AnswerForm], AnswerForm], ...] = ()
    """Wrap what translates the engine's answer. Called for each attempt."""
    on_event: tuple[Callable[[bytes], None], ...] = ()
    """Take a part of a streamed answer before the client gets it: whole events, or a comment (a heartbeat, progress);
    of a long answer that is no stream, bytes that are cut anywhere. Called whether or not a client is there. The hot
    path never looks for these: adding one wraps the client's call."""
    on_end: tuple[Callable[[Exchange], None], ...] = ()
    """Note that the request is over, however it ended, and holds nothing any more: `exchange.answer` and
    `exchange.account` tell what became of it. Called once, also where the request was refused before any other hook."""
    _collected: tuple[Trigger, Sequence[RequestHook]] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    """Of `on_request`: the triggers of its conditional hooks in one, and the hooks for every request; None: no
    request has come yet."""

    def list_matching(self, request: InferenceRequest, headers: Sequence[Header]) -> Sequence[RequestHook]:
        """Return those hooks of `on_request` that are for this request, in order. `headers`: names in lower case."""
        if self._collected is None:
            triggers = [each.trigger for each in self.on_request if isinstance(each, ConditionalHook)]
            trigger = Trigger(*(_NOTHING.union(*sets) for sets in zip(*triggers, strict=True)))
            self._collected = trigger, [each for each in self.on_request if not isinstance(each, ConditionalHook)]
        trigger, for_all = self._collected
        fields = request.outline_fields
        found_headers = [name for name, _ in headers if name in trigger.headers] if trigger.headers else ()
        found_parts = find_part_types(fields) if trigger.parts else ()
        if not trigger.matches(fields, found_headers, found_parts):
            return for_all
        return [
            each.hook if isinstance(each, ConditionalHook) else each
            for each in self.on_request
            if not isinstance(each, ConditionalHook) or each.trigger.matches(fields, found_headers, found_parts)
        ]

    def __add__(self, other: ExchangeHooks) -> ExchangeHooks:
        """Return new hooks that hold both, those of `other` after these. Neither operand is changed."""
        return ExchangeHooks(
            self.on_request + other.on_request,
            self.before_admission + other.before_admission,
            self.on_admitted + other.on_admitted,
            self.on_wait + other.on_wait,
            self.before_send + other.before_send,
            self.shape_answer + other.shape_answer,
            self.on_event + other.on_event,
            self.on_end + other.on_end,
        )


NO_HOOKS: Final = ExchangeHooks()
