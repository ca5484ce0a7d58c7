"""The hot path: one inference request, from the client to an engine and back, and its account.

The story of a request: its body is there, find its model, let hooks complete it, refuse what the model does not take,
wait for a slot or a load (`AdmissionStage`), send it to the replica that admission chose, and elsewhere as long as
nothing has come back (`EngineStage`), and pass the answer on (`ClientResponse`). Whatever goes wrong ends in one error,
told in whichever form the answer still allows.

No task runs for it (ADR 8). An `Exchange` and its stages are called by what they wait for: the client's connection,
admission, the engine's connection, the clock, and the futures of hooks. Each call does what can be done at once and
returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from common.log_formats import tag_request
from common.processes import without_tracebacks
from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.admission.ticket import QueuePlace
from gateway.exchange.admission_stage import AdmissionStage, LoadWait
from gateway.exchange.client_response import ClientResponse
from gateway.exchange.engine_stage import Attempt, EngineStage
from gateway.exchange.hooks import NEXT_STATES, NO_HOOKS, ApiSpec, ExchangeHooks, ExchangeState, Pause, RequestHook
from gateway.exchange.services import Services
from gateway.exchange.stored_end import AnswerKeeper, StoredEnd
from gateway.metrics.request_metrics import CLIENT_GONE_STATUS, NO_WORK, UNKNOWN_MODEL, EngineWork, Metrics, Outcome
from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.fan_out import check_bounds
from gateway.protocols.common.large_body import WHOLE_COPIES, LargeBody
from gateway.protocols.common.request import InferenceRequest
from gateway.routing.availability import find_model, not_loaded_in_time
from gateway.server.call import ClientCall, Handler
from gateway.server.request_head import explain_unread_body
from gateway.sessions import SessionClaim
from gateway.settings import MIB
from gateway.tenancy.api_keys import ANONYMOUS, Caller, find_client_text
from gateway.tenancy.rate_limits import RateLimitEntry, estimated_tokens

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RequestAccount:
    """What one request takes of its key's rate limits, and what it adds to the metrics. Times are monotonic seconds.

    Belongs to its `Exchange`, which calls `close_account` when the request ends.
    """

    model: str
    """The model's own name, or `UNKNOWN_MODEL`."""
    begun_at: float
    """When the request's headers were read."""
    attempts: int = 0
    """How many times the request was sent to an engine."""
    is_round: bool = False
    """The request is a round of a client's request, which counts as one request: of this one, the metrics have what the
    engine did, and nothing of what a client asked and got."""
    is_counted: bool = False
    """Whether `Exchange.count_request` has counted the request against its key's limits, if the key has any."""
    entry: RateLimitEntry | None = None
    """What the request takes of its key's rate limits; None: the key has none, or the request is not counted yet."""
    is_cancelled: bool = False
    """The client left, and the request ended for that."""
    usage: Usage | None = None
    """Tokens as the engine counted them; None before the end of the request, and where the engine sent no count."""
    passed_tokens: int = 0
    """Tokens of a stream whose engine sent no count, as far as they came. Set at the end of the request."""

    def take_entry(self) -> RateLimitEntry | None:
        """Return what the request takes of its key's rate limits; the caller must settle it, in the place of
        `close_account`. None: there is nothing to settle, as after an earlier call."""
        entry, self.entry = self.entry, None
        return entry

    def close_account(
        self,
        metrics: Metrics,
        path: str,
        caller: Caller,
        client_text: bytes,
        answer: ClientResponse,
        attempt: Attempt | None,
        now: float,
    ) -> None:
        """Settle the request's rate limits and count it in the metrics. Call once, at the end of the request.

        Sets `usage` and `passed_tokens`. `path`: of its API. `client_text`: how the client names itself. `answer`: the
        client's, which has ended. `attempt`: the last one; None: none was sent, or the last one failed before an
        answer. `now`: monotonic seconds.
        """
        self.usage = usage = attempt.usage if attempt is not None else None
        self.passed_tokens = streamed_tokens = attempt.count_tokens() if attempt is not None and usage is None else 0
        if self.entry is not None:
            used_tokens = usage.prompt + usage.completion if usage is not None else None
            is_failed = attempt is None or attempt.is_refused or answer.status >= 400
            self.entry.settle_request(
                now, used_tokens, was_sent=self.attempts > 0, is_failed=is_failed, passed_tokens=streamed_tokens
            )
        # What an engine generated was generated, though it could not report it any more.
        counted_usage = Usage(0, streamed_tokens) if streamed_tokens else usage
        series, model_series = metrics.series_of(self.model, path), metrics.model_series_of(self.model)
        client_series = metrics.client_series_of(client_text)
        first_s = None if answer.first_byte_at is None else answer.first_byte_at - self.begun_at
        work = NO_WORK if attempt is None else _measure_work(attempt, answer, first_s, now)
        outcome = self._outcome_of(answer)
        if self.attempts > 1:
            series.count_retries(self.attempts - 1)
        if self.is_round:
            series.count_tokens(counted_usage)
            model_series.count_round(outcome, work, usage, streamed_tokens)
            client_series.count_work(work.inference_s)
            if caller.name is not None:
                metrics.key_series_of(caller.name).count_tokens(counted_usage)
            return
        series.count_finished(answer.status or CLIENT_GONE_STATUS, now - self.begun_at, first_s, counted_usage)
        model_series.count_finished(outcome, work, usage, streamed_tokens)
        client_series.count_finished(work.inference_s)
        if answer.client_gone:
            series.count_client_left()
        if answer.broken_off_code is not None:
            series.count_broken_off(answer.broken_off_code)
        if caller.name is not None:
            metrics.key_series_of(caller.name).count_finished(counted_usage)

    def _outcome_of(self, answer: ClientResponse) -> Outcome:
        if self.is_cancelled or not answer.status:
            return "cancelled"
        return "errored" if answer.status >= 400 or answer.broken_off_code is not None else "completed"


def _measure_work(attempt: Attempt, answer: ClientResponse, first_s: float | None, now: float) -> EngineWork:
    first_at = answer.first_byte_at
    if first_at is None or not answer.is_stream:
        return EngineWork(now - attempt.sent_at, attempt.events_passed)
    return EngineWork(now - attempt.sent_at, attempt.events_passed, first_s, now - first_at)


MOST_SHARE: Final = 4
"""One request may take the memory for bodies divided by this, if that is more than `WHOLE_COPIES` of its body."""

_OPENED, _PREPARING = ExchangeState.OPENED, ExchangeState.PREPARING
_ENDED = ExchangeState.ENDED


class Exchange:
    """One inference request, from its headers to the end of its answer. A `Handler` of its client's call.

    Made by `InferenceDispatcher`; it ends once, by `close`, and then gives back all that it held. All methods are
    called in the event loop's thread, and none of them blocks.
    """

    __slots__ = (
        "_deadline",
        "_freed_body",
        "account",
        "admission",
        "answer",
        "api",
        "caller",
        "client",
        "due_at",
        "ending_requests",
        "engine",
        "extra_text_bytes",
        "goes_on",
        "hides_paths",
        "hooks",
        "is_client_full",
        "is_stream",
        "large_body",
        "load_wait",
        "outlives_client",
        "request",
        "services",
        "session",
        "state",
        "stored_end",
    )

    def __init__(
        self, api: ApiSpec, client: ClientCall, services: Services, request_id: str, hooks: ExchangeHooks = NO_HOOKS
    ) -> None:
        now = services.now()
        self.api = api
        self.client = client
        self.services = services
        self.caller = ANONYMOUS
        self.account = RequestAccount(UNKNOWN_MODEL, now)
        self.answer = ClientResponse(client, api.dialect, request_id, services.now)
        self.state = _OPENED
        self.request: InferenceRequest
        """Set when the body is read."""
        self.large_body: LargeBody | None = None
        """A body that must be freed as soon as no engine can need it; None: the body is small, or is freed."""
        self._freed_body: LargeBody | None = None
        """A body whose outline still counts as memory, because the request has what was decoded of it."""
        self.admission: AdmissionStage | None = None
        """The request in admission; None before the request is complete and after its end."""
        self.engine: EngineStage | None = None
        """The request at engines; None when `admission` is None."""
        self.load_wait: LoadWait | None = None
        """The wait for a load; None: the request waits for none."""
        self._deadline = now + services.settings.request_timeout_s
        self.due_at = self._deadline
        """The time, in monotonic seconds, at which or soon after which `run_due` must be called."""
        self.is_stream = False
        """The client asked for a stream, which heartbeats keep alive from now on. Set when the request is counted."""
        self.outlives_client = False
        """The request goes on when its client leaves."""
        self.is_client_full = False
        """The client reads more slowly than the answer is sent."""
        self.hides_paths = False
        """Others than the caller may read the answer, so its errors must not name files of the server."""
        self.session: SessionClaim | None = None
        """The request's turn in a session; None: it belongs to none."""
        self.extra_text_bytes = 0
        """Bytes of text in the engine's prompt that the request does not have."""
        self.ending_requests = 0
        """Number of running requests of the same key that end because of this one."""
        self.goes_on = False
        """The request is a part of one that was let in, so a full queue takes it."""
        self.stored_end: StoredEnd | None = None
        """Holds back the end of the answer until it is stored; None: nothing is to be stored."""
        if api.whole_copies:
            client.reading_copies = api.whole_copies
        self.hooks = hooks
        if hooks.on_event:
            self._record_parts(hooks)

    def move_to(self, state: ExchangeState) -> None:
        """Enter `state`.

        Raises:
            AssertionError: the transition is not in `NEXT_STATES`.
        """
        assert state in NEXT_STATES[self.state], f"{self.state.name} to {state.name}"
        self.state = state

    def run_guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """Call `step` with `arguments`. Raises nothing: an exception ends the request and is sent to the client.

        A RoundhouseError is sent as it is, any other exception is logged and sent as `internal_error`.
        """
        try:
            step(*arguments)
        except RoundhouseError as error:
            self.fail_request(without_tracebacks(error))
        except Exception:
            request_id = self.answer.request_id
            logger.exception("request %s failed", request_id, extra=tag_request(request_id))
            self.fail_request(RoundhouseError("internal_error", "The gateway failed on this request."))

    # From the client

    def set_caller(self, caller: Caller) -> None:
        """Set the caller, and add the exchange to those that the clock calls (`run_due`) and a stop ends.

        Call once, when the headers are read. Checks nothing.
        """
        self.caller = caller
        self.services.exchanges.add(self)

    def take_body(self, body: bytes | LargeBody) -> None:
        """Read the request from its complete body, have hooks complete it, and take it to admission. If the request has
        ended already, only free the body.

        Called once by the client's connection. Raises nothing: whatever is wrong with the request ends it with an
        error.
        """
        if isinstance(body, LargeBody):
            self.large_body = body
            self.run_guarded(self._claim_room, body)
        elif self.state is not _ENDED:
            self.run_guarded(self._read_request, body)

    def client_gone(self) -> None:
        """Note that the client has left: end the request, and so stop its engine, unless the request outlives its
        client. Called by the client's connection. Does nothing after the end."""
        if self.is_ended:
            return
        self.answer.client_gone = True
        self.detach_client()  # also where its end waits for the store: heartbeats go on till then
        if self.outlives_client:
            self.client_ready()
        else:
            self.answer.is_ended = self.account.is_cancelled = True
            self.close()

    def client_full(self) -> None:
        """Stop reading from the engine, because the client reads more slowly than the answer is sent. Called by the
        client's connection, also before an engine is asked."""
        self.is_client_full = True
        if self.engine is not None:
            self.engine.pause()

    def client_ready(self) -> None:
        """Read from the engine again after `client_full`. Called by the client's connection."""
        self.is_client_full = False
        if self.engine is not None:
            self.engine.resume()

    # The way in

    def _claim_room(self, body: LargeBody) -> None:
        """Read the request from a large body as soon as there is room for what its values take."""
        if self.is_ended:
            self.free_body()
            return
        most_bytes = max(self.services.settings.body_memory_bytes // MOST_SHARE, WHOLE_COPIES * body.size)
        bytes_taken = body.decoded_bytes
        if bytes_taken > most_bytes:
            message = (
                f"The body's values would take {bytes_taken // MIB} MiB of memory, and a request may take "
                f"{most_bytes // MIB} MiB: send fewer at a time."
            )
            raise RoundhouseError("body_too_large", message)
        if body.claim_room(self.api.whole_copies, partial(self.run_guarded, self._read_large, body)):
            self._read_large(body)

    def _read_large(self, body: LargeBody) -> None:
        if not self.is_ended:
            self._read_request(body)
            body.settle_room()

    def _read_request(self, body: bytes | LargeBody) -> None:
        routes = self.services.live.current
        try:
            self.request = request = self.api.read_request(body, self.client, routes)
        except RoundhouseError as error:
            raise explain_unread_body(error, self.client.headers) from None
        self.move_to(_PREPARING)
        self.answer.request = request
        request.id, request.received_at = self.answer.request_id, self.services.clock()
        route = find_model(routes, request.model)
        self.account.model = route.name
        self.caller.require_model(route)
        check_bounds(request, self.api.inputs, self.services.bounds)
        hooks = self.hooks
        self._prepare(iter(hooks.list_matching(request, self.client.headers) if hooks.on_request else ()), route)

    def _prepare(self, hooks: Iterator[RequestHook], route: ModelRoute) -> None:
        """Call the hooks that are left, which complete the request, and then take it to admission."""
        for hook in hooks:
            pause = hook(self, route)
            if pause is not None:
                self.wait_for(pause, _PREPARING, partial(self._prepare, hooks))
                return
        self.admission = admission = AdmissionStage(self)
        self.engine = EngineStage(self, admission)
        admission.admit_request(route)

    def wait_for(self, pause: Pause, state: ExchangeState, go_on: Callable[[ModelRoute], None]) -> None:
        """Enter `state`, and return at once. After the pause, call `go_on` with the model as the table then has it.

        An exception of the pause's future, of its `then` or of `go_on` ends the request. Nothing is called if the
        request has ended meanwhile, or if the future was cancelled: whoever cancels it must end the request.

        Raises:
            AssertionError: the transition is not in `NEXT_STATES`.
        """
        self.move_to(state)
        if self.is_stream and not self.answer.lines:  # a heartbeat may have to begin the answer
            self.set_header_lines(self.services.now())
        pause.future.add_done_callback(partial(self._end_pause, pause, go_on))

    def _end_pause(self, pause: Pause, go_on: Callable[[ModelRoute], None], future: asyncio.Future[object]) -> None:
        if future.cancelled():
            return
        if self.is_ended:
            future.exception()  # else asyncio says that nobody has looked at it
        else:
            self.run_guarded(self._resume, pause, go_on)

    def _resume(self, pause: Pause, go_on: Callable[[ModelRoute], None]) -> None:
        result = pause.future.result()
        if pause.then is not None:
            pause.then(result)
        go_on(self.renew_route() if self.admission is None else self.admission.renew_route())

    def renew_route(self) -> ModelRoute:
        """Return the request's model as the routing table in force has it, and renew `caller` by that table.

        The model is looked up by its own name, because the alias that the client used may have moved.

        Raises:
            RoundhouseError: `controller_unavailable` if no table is in force any more; `unknown_model` if the model is
                gone; `invalid_api_key` if the key is gone or has expired; `scope_required` or `model_not_allowed` if it
                is not for the API or the model any more.
        """
        routes = self.services.live.current
        self.caller = caller = routes.keys.renew_caller(self.caller, self.services.clock())
        caller.require_scope(self.api.scope)
        route = routes.models.get(self.account.model)
        if route is None:
            raise RoundhouseError("unknown_model", f"The model {self.account.model!r} is gone.", param="model")
        caller.require_model(route)
        return route

    # The wait for a load, and the clock

    def begin_load_wait(self, wait: LoadWait) -> None:
        """Note that the request waits for the load of its model, so that `run_due` ends it at the deadline of `wait`.
        Returns at once."""
        self.load_wait = wait
        self.set_due()

    def end_load_wait(self) -> None:
        """Note that the request waits for no load any more. Does nothing else if it waited for none."""
        self.load_wait = None
        self.set_due()

    def set_due(self) -> None:
        """Compute `due_at`, when `run_due` must be called next: the earliest of the request's deadline, the deadline of
        the load, and the next heartbeat of a stream. Call when one of these has changed."""
        due_at = self._deadline if self.load_wait is None else min(self._deadline, self.load_wait.deadline)
        if self.is_stream:
            settings = self.services.settings
            # The shorter one, because the first event, after which the other counts, may come at any time.
            due_at = min(due_at, self.answer.last_sent_at + min(settings.heartbeat_s, settings.hold_headers_s))
        self.due_at = due_at

    def run_due(self, now: float) -> None:
        """Do what is due at `now` (monotonic seconds), and set `due_at`. Does nothing after the end.

        At its deadline, the request fails with `request_timeout`; at the deadline of its load, with the error for a
        model that was not loaded in time. A silent stream gets a heartbeat.
        """
        settings, answer, load_wait = self.services.settings, self.answer, self.load_wait
        if self.is_ended:
            return
        silence_s = settings.heartbeat_s if answer.status else settings.hold_headers_s
        if now >= self._deadline:
            limit = f"The answer was not complete after {settings.request_timeout_s:g} s."
            self.fail_request(RoundhouseError("request_timeout", limit))
        elif load_wait is not None and now >= load_wait.deadline:
            routes = self.services.live.current_or_none
            route = None if routes is None else routes.models.get(self.account.model)
            self.fail_request(not_loaded_in_time(self.account.model, settings.autoload_timeout_s, route))
        elif self.is_stream and now >= answer.last_sent_at + silence_s:
            answer.send_heartbeat(now)
        self.set_due()

    # For hooks, of what they know about the request

    def outlive_client(self) -> None:
        """Have the request go on when its client leaves: hooks of `on_event` get the rest of the answer."""
        self.outlives_client = True

    def hide_paths(self) -> None:
        """Keep files of the server out of the answer's errors, because others than the caller may read the answer.
        Call before admission."""
        self.hides_paths = True

    def join_session(self, claim: SessionClaim) -> None:
        """Make the request a turn of the session that `claim` names: admission chooses a replica by it. Call before
        admission."""
        self.session = claim

    def set_extra_text(self, size: int) -> None:
        """Set the bytes of text in the engine's prompt that the request does not have, all together.
        Call before admission."""
        self.extra_text_bytes = size

    def replace_stream(self) -> None:
        """Count one more running request of the same key that ends because of this one: `count_request` leaves it out
        of the key's `concurrency`. Call in a hook of `on_request`, once for each such request."""
        self.ending_requests += 1

    def pass_full_queue(self) -> None:
        """Have a full queue take the request, because it is a part of one that was let in. Call before
        admission."""
        self.goes_on = True

    # For stages and hooks

    @property
    def is_ended(self) -> bool:
        """Whether the request is over."""
        return self.state is _ENDED

    @property
    def has_body(self) -> bool:
        """Whether the request's body is still there, so that it can be sent again.

        A large body is freed when an engine begins to answer. Ask only once the body was read.
        """
        return self.request.large_body is None or self.large_body is not None

    def add_hooks(self, hooks: ExchangeHooks) -> None:
        """Add `hooks` after those that are there. Those of `on_request` are not called: that time is over.

        Other kinds are called only for what happens from now on.
        """
        self.hooks = self.hooks + hooks
        if hooks.on_event:
            self._record_parts(hooks)

    def _record_parts(self, hooks: ExchangeHooks) -> None:
        for take_part in hooks.on_event:
            self.answer.record_parts(take_part)

    def hold_end(self, keeper: AnswerKeeper) -> None:
        """Hold back the end of the answer until `keeper` has stored it. Call once, before anything is sent.

        `close` gives back the slot meanwhile, and the exchange ends when the end is sent.
        """
        self.stored_end = end = StoredEnd(self.client, self, keeper)
        self.answer.wrap_call(end)

    def replace_request(self, request: InferenceRequest) -> None:
        """Replace the client's request by `request`, which engines get then. Nothing is checked or counted again.

        Call in a hook of `on_request` or `before_send` only.
        """
        self.request = self.answer.request = request

    def count_request(self) -> float:
        """Count the request against its key's limits and begin the heartbeats of a stream. Returns `services.now()`.

        That time is in monotonic seconds. Later calls only return the time. The exchange gives back what was counted
        when it ends.

        Raises:
            RoundhouseError: `rate_limit_exceeded`, at the first call only. The caller must end the request.
        """
        request, account, now = self.request, self.account, self.services.now()
        if account.is_counted:
            return now
        account.is_counted = True
        if self.caller.is_limited:
            tokens = estimated_tokens(request.text_bytes, request.outline_fields)
            account.entry = self.services.limits.admit_request(
                self.caller, tokens, now, ending_requests=self.ending_requests
            )
        if self.api.streams and request.stream:
            self.is_stream = True
            self.answer.last_sent_at = now
            self.set_due()
        return now

    def set_header_lines(self, now: float, place: QueuePlace | None = None) -> None:
        """Set the header lines of the answer: request id, client, place in the queue, rate limits. Replaces the earlier
        lines, also those that hooks added. `now`: monotonic seconds. `place`: in the queue; None: that of the ticket,
        if there is one."""
        ticket = self.admission.ticket if self.admission is not None else None
        if ticket is not None:
            place = ticket.place
        rate_lines = self.services.limits.header_lines(self.caller, now)
        self.answer.lines = self.services.lines.client_headers(
            self.answer.id_lines, self.client.headers, self.caller, place, rate_lines
        )

    def detach_client(self, handler: Handler | None = None) -> None:
        """Send no more of the answer to the client; hooks of `on_event` still get it. The request goes on.

        `handler`: serves the client's connection from now on, and must answer it; None: the client is gone.
        """
        self.answer.detach_client()
        if handler is not None:
            self.client.handler = handler

    # The end

    def fail_request(self, error: RoundhouseError) -> None:
        """End the request with `error`, in the form that the answer still allows. Does nothing after the end.

        If the answer is complete and only waits to be stored, `error` is not sent: the client gets the answer, which
        says that it is not stored.
        """
        if self.is_ended:
            return
        answer = self.answer
        if self.stored_end is not None and self.stored_end.is_holding and answer.is_ended:
            self.stored_end.give_up()
            return
        try:
            if not answer.lines:
                self.set_header_lines(self.services.now())
            if not answer.status:
                if not self.account.is_round:  # the client's request, of which it is one, is refused by the same error
                    self.services.metrics.series_of(self.account.model, self.api.path).count_refused(error.entry.code)
                answer.lines += self.services.lines.refusal_lines(error, self.caller)
            answer.send_error(error)
        except Exception:  # of header lines, a recorder, or the stream's end: the slot must not stay taken for it
            request_id = answer.request_id
            logger.exception("request %s: its error was not sent", request_id, extra=tag_request(request_id))
            answer.break_off()
        self.close()

    def close(self) -> None:
        """End the request: give back all that it holds, count it, and call the hooks of `on_end`.

        Sends nothing: end `answer` before. An attempt that is under way is cancelled. Does nothing after the end. While
        the end of the answer waits for the store, only the slot is given back; the request ends with its answer.
        """
        if self.state is _ENDED:
            return
        if self.stored_end is not None:
            if self.stored_end.is_holding:
                self.stored_end.close_later()
                self._leave_engine()
                return
            self.answer.stop_recording()
            self.stored_end = None
        self.move_to(_ENDED)
        if self.large_body is not None:
            self.free_body()
        services, admission = self.services, self.admission
        now = services.now()
        services.exchanges.discard(self)
        attempt = self.engine.end() if self.engine is not None else None
        client_text = find_client_text(self.client.headers)
        self.account.close_account(services.metrics, self.api.path, self.caller, client_text, self.answer, attempt, now)
        # Nothing refers back to this from here: what the cyclic collector need not find, it need not stop for.
        hooks, self.hooks = self.hooks, NO_HOOKS
        self.admission = self.engine = None
        if self.client.handler is self:
            self.client.handler = None
        if admission is not None:
            admission.release_slot(attempt, now)
        if hooks.on_end:
            self._end_hooks(hooks)
        if self._freed_body is not None:
            services.call_when_written(self._freed_body.free)  # what is stored of it is memory till then
            self._freed_body = None

    def _leave_engine(self) -> None:
        """Give back what the request holds at engines and in the queue. May be called twice."""
        engine, admission = self.engine, self.admission
        if engine is not None and admission is not None:
            attempt = engine.end(is_last=False)
            self.account.usage = attempt.usage if attempt is not None else None
            admission.release_slot(attempt, self.services.now())

    def _end_hooks(self, hooks: ExchangeHooks) -> None:
        for on_end in hooks.on_end:
            try:
                on_end(self)
            except Exception:  # one feature's fault is none of the others'
                request_id = self.answer.request_id
                logger.exception("request %s: a hook failed at its end", request_id, extra=tag_request(request_id))

    def free_body(self, *, keeps_fields: bool = False) -> None:
        """Free a large body, if there is one; do nothing for a small one. Call when no engine can need it any more.

        After a large body was freed, `has_body` is False. `keeps_fields`: what was decoded of it still counts as
        memory, until the request ends.
        """
        body, self.large_body = self.large_body, None
        if body is None:
            return
        if not keeps_fields:
            body.free()
        elif body.free_blocks():
            self._freed_body = body
