"""The hot path: one inference request, from the client to an engine and back.

The story of a request: its body is there, find its model, refuse what that does not take, wait for a slot (or a load),
send it to the replica that admission chose, try elsewhere as long as nothing has come back, and hand the answer on.
Whatever goes wrong ends in one error, told in whichever form the answer still allows.

No task runs for it. An `Exchange` is called by what it waits for: the client's connection, admission, the engine's
connection, and the clock. Each call does what can be done at once and returns.
"""

from __future__ import annotations

import logging

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.admission import Ticket
from gateway.affinity import prefix_keys
from gateway.answer import Answer
from gateway.attempt import Attempt
from gateway.capabilities import check_capabilities
from gateway.client_call import ClientCall
from gateway.dialects.base import Usage
from gateway.engine_http import BrokenError, EngineFailureError, RefusedError
from gateway.keys import ANONYMOUS, Caller
from gateway.limits import Entry, estimated_tokens
from gateway.metrics import CLIENT_GONE_STATUS, UNKNOWN_MODEL
from gateway.parts import Api, Parts
from gateway.readiness import find, is_worth_waiting, not_loaded_in_time, overtaken, refusal
from gateway.request import InferenceRequest, parse_native, parse_request

logger = logging.getLogger(__name__)


class Exchange:
    """One request. Every method is called in the event loop's one thread, and none of them waits."""

    __slots__ = (
        "_answer", "_api", "_attempt", "_begun_at", "_caller", "_checked", "_client", "_deadline", "_entry",
        "_is_over", "_load_by", "_model", "_parts", "_request", "_streams", "_ticket", "_tries",
        "_waits_since", "due_at",
    )  # fmt: skip

    def __init__(self, api: Api, client: ClientCall, parts: Parts, request_id: str) -> None:
        self._api = api
        self._client = client
        self._parts = parts
        self._caller: Caller = ANONYMOUS
        self._begun_at = now = parts.now()
        self._deadline = now + parts.settings.request_timeout_s
        self._answer = Answer(client, api.dialect, request_id, parts.now)
        self._model = UNKNOWN_MODEL
        self._request: InferenceRequest
        self._streams = False
        self._checked: ModelRoute | None = None
        self._entry: Entry | None = None
        self._ticket: Ticket | None = None
        self._waits_since: float | None = None
        self._load_by: float | None = None
        self._attempt: Attempt | None = None
        self._tries = 0
        self.due_at = self._deadline
        """When `on_time` is to be called, or a little later."""
        self._is_over = False

    # From the client

    def open(self, caller: Caller) -> None:
        """The headers are there, and they are `caller`'s."""
        self._caller = caller
        self._parts.exchanges.add(self)

    def begin(self, body: bytes) -> None:
        """The body is there."""
        if self._is_over:
            return
        try:
            self._request = request = self._read(body)
            route = find(self._parts.live.current, request.model)
            self._model = route.name
            self._caller.may_use(route)
            self._check_takes(route)
            self._count_in(len(body))
            if self._api.streams and request.stream:
                self._streams = True
                self._answer.last_sent_at = self._parts.now()
                self._set_due()
            self._seek(route)
        except RoundhouseError as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - logged, and answered
            self._fail_unexpectedly()

    def client_gone(self) -> None:
        """Nobody listens any more. Closing the engine's connection makes it stop."""
        if not self._is_over:
            self._answer.ended = True
            self._close(client_gone=True)

    def client_full(self) -> None:
        """The client takes less than the engine gives."""
        if self._attempt is not None:
            self._attempt.pause()

    def client_ready(self) -> None:
        """The client takes more."""
        if self._attempt is not None:
            self._attempt.resume()

    # The way in

    def _read(self, body: bytes) -> InferenceRequest:
        api, client = self._api, self._client
        if not api.is_native:
            request = parse_request(body, may_stream=api.streams)
            request.target = api.path
            return request
        sole = self._parts.live.current.sole(api.offered_as)
        return parse_native(body, client.query, client.path.decode("latin-1"), sole, body=api.body)

    def _check_takes(self, route: ModelRoute) -> None:
        offered_as = self._api.offered_as
        if route.apis and offered_as not in route.apis:
            offered = ", ".join(route.apis)
            message = f"The engine of {route.name!r} does not offer {offered_as}; it offers {offered}."
            raise RoundhouseError("not_supported", message, param="model")
        check_capabilities(self._request.fields, route.capabilities, route.name)
        self._checked = route

    def _count_in(self, body_bytes: int) -> None:
        caller, parts = self._caller, self._parts
        if caller.is_limited:
            tokens = estimated_tokens(body_bytes, self._request.fields)
            self._entry = parts.limits.enter(caller, tokens, parts.now())

    def _seek(self, route: ModelRoute) -> None:
        """Find a place for the request: at once, or in the queue."""
        parts, request = self._parts, self._request
        now = parts.now()
        refused = refusal(route, parts.clock())
        if refused is None and not self._api.takes_slot:
            self._answer.lines = self._lines()
            self._send(route, parts.admission.choose(route, now))
            return
        if refused is not None:
            self._await_load(route, refused, now)
        caller = self._caller
        prefix = prefix_keys(request.fields) if len(route.endpoints) > 1 else ()
        rank = caller.rank(request.fields.get("service_tier"))
        ticket = Ticket(self, route.name, caller.tenant, caller.weight, rank, prefix)
        endpoint = parts.admission.arrive(ticket, route, now)
        self._ticket = ticket
        self._answer.lines = self._lines()
        if endpoint is not None:
            self._send(route, endpoint)
        else:
            self._waits_since = now
            parts.ledger.on_change()

    def _await_load(self, route: ModelRoute, refused: RoundhouseError, now: float) -> None:
        """The model is not loaded: ask for it if demand loads it. Raises `refused` if waiting is vain."""
        if route.autoload:
            self._parts.ledger.demanded(route.name)
        if not is_worth_waiting(route):
            raise refused
        self._load_by = now + self._parts.settings.autoload_timeout_s
        self._set_due()

    def admitted(self, endpoint: Endpoint) -> None:
        """Admission has a slot for the request, which is taken already."""
        parts = self._parts
        if self._is_over:
            return
        try:
            if self._waits_since is not None:
                parts.metrics.series(self._model, self._api.path).waited(parts.now() - self._waits_since)
            self._waits_since = self._load_by = None
            route = find(parts.live.current, self._request.model)
            if route is not self._checked:  # a newer table's
                self._check_takes(route)
            self._send(route, endpoint)
        except RoundhouseError as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - logged, and answered
            self._fail_unexpectedly()

    def model_changed(self, route: ModelRoute | None) -> None:
        """A newer table came while the request waits; None: the model is gone."""
        if route is None:
            self.fail(RoundhouseError("unknown_model", f"The model {self._model!r} is gone.", param="model"))
            return
        refused = refusal(route, self._parts.clock())
        if refused is not None and not is_worth_waiting(route):
            self.fail(overtaken(route) if refused.entry.code == "model_not_loaded" else refused)

    def _send(self, route: ModelRoute, endpoint: Endpoint) -> None:
        parts, dialect, request = self._parts, self._api.dialect, self._request
        events = dialect.events(request) if self._streams else None
        # An engine that does not notice when the client of a blocking call leaves notices it of a stream.
        gathers = self._api.streams and not (self._streams or route.notices_leaving)
        gathering = dialect.gathering(request) if gathers else None
        body = dialect.body_for(request, route.served_name, as_stream=gathering is not None)
        headers = parts.lines.for_engine(self._answer.request_id, self._client.headers)
        # A kept connection that broke may merely have been stale; a second one would prove nothing.
        fresh = self._tries > 0
        self._tries += 1
        self._attempt = Attempt(self, parts, self._answer, route.name, endpoint, events, gathering)
        self._attempt.start(self._api.method, request.target, headers, body, fresh=fresh)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a slot or a load."""
        return self._waits_since is not None

    # What becomes of it

    def attempt_done(self) -> None:
        """The answer is complete."""
        self._close()

    def attempt_broke(self, error: RoundhouseError) -> None:
        """The engine failed in the middle of its answer."""
        self.fail(error)

    def attempt_failed(self, failure: EngineFailureError) -> None:
        """The engine failed before it answered: try elsewhere where that can do no harm."""
        self._attempt = None
        if self._is_over:
            return  # told, while admission dealt with the failure, that nothing is left to try
        if not isinstance(failure, (RefusedError, BrokenError)):
            self.fail(RoundhouseError("engine_disconnected", f"The engine failed: {failure}."))
            return
        try:
            self._try_again(refused=isinstance(failure, RefusedError))
        except RoundhouseError as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - logged, and answered
            self._fail_unexpectedly()

    def _try_again(self, *, refused: bool) -> None:
        parts, ticket = self._parts, self._ticket
        now = parts.now()
        route = find(parts.live.current, self._request.model)
        self._check_takes(route)
        if ticket is None:
            if self._tries > 1:
                raise RoundhouseError("engine_unreachable", f"The model {route.name!r} cannot be reached.")
            self._send(route, parts.admission.choose(route, now))
            return
        not_loaded = refusal(route, parts.clock())
        if not_loaded is not None:
            self._await_load(route, not_loaded, now)
        endpoint, grants = parts.admission.again(ticket, now, refused=refused)
        if endpoint is not None:
            self._send(route, endpoint)
        else:
            self._waits_since = now
        parts.turns.give(grants)

    def fail(self, error: RoundhouseError) -> None:
        """Answer `error`, in the form that is left, and be done."""
        if self._is_over:
            return
        answer = self._answer
        if not answer.lines:
            answer.lines = self._lines()
        if not answer.status:
            self._parts.metrics.series(self._model, self._api.path).refused(error.entry.code)
            answer.lines += self._parts.lines.for_refusal(error, self._caller)
        answer.fail(error)
        self._close()

    def _fail_unexpectedly(self) -> None:
        logger.exception("request %s failed", self._answer.request_id)
        self.fail(RoundhouseError("internal_error", "The gateway failed on this request."))

    def _close(self, *, client_gone: bool = False) -> None:
        """Give back all that the request holds, and count it. Whatever happens, this is run once."""
        if self._is_over:
            return
        self._is_over = True
        parts, attempt, ticket = self._parts, self._attempt, self._ticket
        now = parts.now()
        parts.exchanges.discard(self)
        usage = None
        if attempt is not None:
            usage = attempt.usage
            attempt.cancel()
        if self._entry is not None:
            self._entry.leave(now, usage.prompt + usage.completion if usage is not None else None)
        self._count(usage, now, client_gone=client_gone)
        # Nothing refers back to this from here: what the cyclic collector need not find, it need not stop for.
        self._attempt = self._ticket = self._client.handler = None
        if ticket is not None:
            if self._waits_since is not None:
                parts.ledger.on_change()
            grants = parts.admission.leave(ticket, now)
            if grants:
                parts.turns.give(grants)

    def _count(self, usage: Usage | None, now: float, *, client_gone: bool) -> None:
        metrics, answer, begun_at = self._parts.metrics, self._answer, self._begun_at
        series = metrics.series(self._model, self._api.path)
        first = answer.first_byte_at
        first_s = None if first is None else first - begun_at
        series.finished(answer.status or CLIENT_GONE_STATUS, now - begun_at, first_s, usage)
        if self._tries > 1:
            series.retried(self._tries - 1)
        if client_gone:
            series.client_left()
        if answer.broken_off is not None:
            series.broke_off(answer.broken_off)
        if self._caller.name is not None:
            metrics.key(self._caller.name).finished(usage)

    def _lines(self) -> bytes:
        parts = self._parts
        place = self._ticket.place if self._ticket is not None else None
        rates = parts.limits.headers(self._caller, parts.now()) if self._caller.is_limited else ()
        return parts.lines.for_client(self._answer.request_id, self._client.headers, self._caller, place, rates)

    # Time

    def _set_due(self) -> None:
        due = self._deadline if self._load_by is None else min(self._deadline, self._load_by)
        self.due_at = min(due, self._beat_at()) if self._streams else due

    def _beat_at(self) -> float:
        settings, answer = self._parts.settings, self._answer
        return answer.last_sent_at + (settings.heartbeat_s if answer.status else settings.hold_headers_s)

    def on_time(self, now: float) -> None:
        """Something is due: the request's end, the end of its wait for a load, or a heartbeat."""
        settings = self._parts.settings
        if now >= self._deadline:
            limit = f"The answer was not complete after {settings.request_timeout_s:g} s."
            self.fail(RoundhouseError("request_timeout", limit))
        elif self._load_by is not None and now >= self._load_by:
            route = self._parts.live.current.models.get(self._model)
            self.fail(not_loaded_in_time(self._model, settings.autoload_timeout_s, route))
        elif self._streams and now >= self._beat_at():
            self._answer.heartbeat()
        self._set_due()
