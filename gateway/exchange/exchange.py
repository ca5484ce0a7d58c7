"""The hot path: one inference request, from the client to an engine and back.

The story of a request: its body is there, find its model, refuse what that does not take, wait for a slot (or a load),
send it to the replica that admission chose, try elsewhere as long as nothing has come back, and hand the answer on.
Whatever goes wrong ends in one error, told in whichever form the answer still allows.

No task runs for it. An `Exchange` is called by what it waits for: the client's connection, admission, the engine's
connection, and the clock. Each call does what can be done at once and returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from common.tracebacks import without_tracebacks
from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.admission.admission import Ticket, cache_exhausted_error
from gateway.admission.prefix_affinity import prefix_keys
from gateway.admission.retry_state import NO_RETRIES
from gateway.admission.token_demand import read_demand
from gateway.admission.token_pool import TokenClaim
from gateway.exchange.accounting import RequestAccount
from gateway.exchange.attempt import AnswerForm, Attempt
from gateway.exchange.client_response import ClientResponse
from gateway.exchange.load_wait import LoadWait
from gateway.exchange.services import ApiSpec, Services
from gateway.metrics.registry import UNKNOWN_MODEL
from gateway.protocols.api_matrix import ServingOption, serving_option
from gateway.protocols.common.choices import count_slots
from gateway.protocols.common.file_parts import FilePart, find_files, holds_files
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.prompt_length import check_length
from gateway.protocols.common.request import InferenceRequest
from gateway.routing.availability import find_model
from gateway.server.call import ClientCall
from gateway.server.request_head import explain_unread_body
from gateway.tenancy.api_keys import ANONYMOUS, Caller
from gateway.tenancy.rate_limits import BYTES_PER_TOKEN, answer_bound, estimated_tokens
from gateway.upstream.client import EngineBrokenError, EngineFailureError, EngineRefusedError

logger = logging.getLogger(__name__)


class Exchange(LoadWait):
    """One request. Every method is called in the event loop's one thread, and none of them waits."""

    __slots__ = (
        "_api",
        "_attempt",
        "_checked_route",
        "_file_task",
        "_large_body",
        "_request",
        "_serving_option",
        "_ticket",
    )

    def __init__(self, api: ApiSpec, client: ClientCall, services: Services, request_id: str) -> None:
        self._api = api
        self._client = client
        self._services = services
        self._caller = ANONYMOUS
        now = services.now()
        self._account = RequestAccount(UNKNOWN_MODEL, now)
        self._deadline = now + services.settings.request_timeout_s
        self._answer = ClientResponse(client, api.dialect, request_id, services.now)
        self._request: InferenceRequest
        self._large_body: LargeBody | None = None
        """What is to be freed as soon as no engine can need it any more."""
        self._is_stream = False
        self._serving_option: ServingOption
        self._checked_route: ModelRoute | None = None
        self._ticket: Ticket | None = None
        self._file_task: asyncio.Task[list[str]] | None = None
        """Reads the files of the request."""
        self.waits_since: float | None = None
        """Since when it waits for a slot or a load."""
        self._load_deadline: float | None = None
        self._last_progress = b""
        self._attempt: Attempt | None = None
        self.due_at = self._deadline
        """When `run_due` is to be called, or a little later."""
        self._is_over = False

    # From the client

    def authorize_caller(self, caller: Caller) -> None:
        """The headers are there, and they are `caller`'s."""
        self._caller = caller
        self._services.exchanges.add(self)

    def take_body(self, body: bytes | LargeBody) -> None:
        """The body is there."""
        if isinstance(body, LargeBody):
            self._large_body = body
        if self._is_over:
            self.answer_begun()
        else:
            self._run_guarded(self._read_request, body)

    def _read_request(self, body: bytes | LargeBody) -> None:
        try:
            self._request = request = self._api.read_request(body, self._client, self._services.live.current)
        except RoundhouseError as error:
            raise explain_unread_body(error, self._client.headers) from None
        self._answer.request = request
        request.id, request.received_at = self._answer.request_id, self._services.clock()
        route = find_model(self._services.live.current, request.model)
        self._account.model = route.name
        self._caller.require_model(route)
        if not (holds_files(request.outline_fields) and self._begin_reading_files(route)):
            self._accept_request(route)

    def _begin_reading_files(self, route: ModelRoute) -> bool:
        """Read the PDFs of the request, where its model takes none. Whether it has any."""
        option = serving_option(self._api.path, self._request, route)
        if option.takes_files(route):
            return False
        pdfs, has_changed = find_files(self._request.fields)
        if has_changed or self._request.large_body is not None:  # base64 is decoded whole
            self._request = self._answer.request = self._request.with_fields(self._request.fields)
        if pdfs:
            self._file_task = asyncio.get_running_loop().create_task(self._services.documents.read_texts(pdfs))
            self._file_task.add_done_callback(partial(self._files_read, pdfs))
        return bool(pdfs)

    def _files_read(self, parts: Sequence[FilePart], task: asyncio.Task[list[str]]) -> None:
        self._file_task = None
        if not (task.cancelled() or self._is_over):
            self._run_guarded(self._use_files, parts, task)
        elif not task.cancelled():
            task.exception()  # else asyncio says that nobody has looked at it

    def _use_files(self, parts: Sequence[FilePart], task: asyncio.Task[list[str]]) -> None:
        for part, text in zip(parts, task.result(), strict=True):
            part.put_text(text)
        self._request = self._answer.request = self._request.with_fields(self._request.fields)
        route = find_model(self._services.live.current, self._request.model)
        self._caller.require_model(route)
        self._accept_request(route)

    def _run_guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """Take a step; whatever goes wrong is told to the client."""
        try:
            step(*arguments)
        except RoundhouseError as error:
            self.fail_request(without_tracebacks(error))
        except Exception:
            logger.exception("request %s failed", self._answer.request_id)
            self.fail_request(RoundhouseError("internal_error", "The gateway failed on this request."))

    def client_gone(self) -> None:
        """Nobody listens any more. Closing the engine's connection makes it stop."""
        if not self._is_over:
            self._answer.is_ended = self._answer.client_gone = True
            self._close()

    def client_full(self) -> None:
        """The client takes less than the engine gives."""
        if self._attempt is not None:
            self._attempt.pause()

    def client_ready(self) -> None:
        """The client takes more."""
        if self._attempt is not None:
            self._attempt.resume()

    # The way in

    def _accept_request(self, route: ModelRoute) -> None:
        """The request is for a model that its caller may use."""
        self._check_capabilities(route)
        self._find_slot(route, self._count_request())

    def _count_request(self) -> float:
        """Count the request for its key's limits, and keep a stream's time. Now."""
        request, now = self._request, self._services.now()
        if self._caller.is_limited:
            tokens = estimated_tokens(request.text_bytes, request.outline_fields)
            self._account.entry = self._services.limits.admit_request(self._caller, tokens, now)
        if self._api.streams and request.stream:
            self._is_stream = True
            self._answer.last_sent_at = now
            self._set_due()
        return now

    def _check_capabilities(self, route: ModelRoute) -> None:
        self._serving_option = option = serving_option(self._api.path, self._request, route)
        option.dialect.check_request(self._request, route)
        if self._api.takes_slot and not self._api.is_native:
            check_length(self._request, route)
        self._checked_route = route

    def _find_slot(self, route: ModelRoute, now: float) -> None:
        """Find a place for the request: at once, or in the queue."""
        services, request = self._services, self._request
        error = self._find_refusal(route)
        if error is None and not self._api.takes_slot:
            self._answer.lines = self._header_lines(now)
            self._send_attempt(route, services.admission.choose_replica(route, now))
            return
        if error is not None:
            self._await_load(route, error, now)
        caller = self._caller
        fields = request.outline_fields
        prefix = prefix_keys(fields, request.prompt) if len(route.endpoints) > 1 else ()
        rank = caller.tier_rank(fields.get("service_tier"))
        slots = count_slots(fields, route)
        claim = TokenClaim(read_demand(request.size, self._text_bytes(), fields, slots))
        ticket = Ticket(self, route.name, caller.tenant, caller.weight, rank, prefix, slots, claim)
        self._ticket = ticket
        endpoint = services.admission.admit_ticket(ticket, route, now)
        self._answer.lines = self._header_lines(now)
        if endpoint is not None:
            self._send_attempt(route, endpoint)
        else:
            self.waits_since = now
            services.ledger.on_change()
            self._tell_progress(route)

    def _text_bytes(self) -> int:
        """Size of what the prompt is made of, without media in a large body."""
        return self._request.text_bytes

    def use_slot(self, endpoint: Endpoint) -> None:
        """Admission has a slot for the request, which is taken already."""
        if not self._is_over:
            self._run_guarded(self._enter_slot, endpoint)

    def _enter_slot(self, endpoint: Endpoint) -> None:
        services, now = self._services, self._services.now()
        if self.waits_since is not None:
            services.metrics.series_of(self._account.model, self._api.path).count_waited(now - self.waits_since)
        self.waits_since = self._load_deadline = None
        self._set_due()
        self._send_attempt(self._renew_route(), endpoint)

    def _renew_route(self) -> ModelRoute:
        """The model as the table in force has it: by its own name, because an alias may have moved in the meantime.

        Raises:
            RoundhouseError: it is gone, or no longer for the key, which may be gone itself.
        """
        services = self._services
        routes = services.live.current
        self._caller = caller = routes.keys.renew_caller(self._caller, services.clock())
        caller.require_scope(self._api.scope)
        route = routes.models.get(self._account.model)
        if route is None:
            raise RoundhouseError("unknown_model", f"The model {self._account.model!r} is gone.", param="model")
        caller.require_model(route)
        if route is not self._checked_route:
            self._check_capabilities(route)
        return route

    def _send_attempt(self, route: ModelRoute, endpoint: Endpoint) -> None:
        services, option, request = self._services, self._serving_option, self._request
        dialect = option.dialect
        events = dialect.open_stream(request) if self._is_stream else None
        # An engine that does not notice when the client of a blocking call leaves notices it of a stream.
        may_collect = self._api.streams or self._api.gathers
        is_collected = may_collect and not (self._is_stream or route.notices_leaving or self._ends_soon())
        collector = dialect.open_collector(request) if is_collected else None
        body = request.fill(dialect.engine_body(request, route, as_stream=collector is not None))
        headers = services.lines.engine_headers(self._answer.request_id, self._client.headers)
        # A kept connection that broke may merely have been stale; a second one would prove nothing.
        fresh = self._account.attempts > 0
        self._account.attempts += 1
        form = self._adapt_form(AnswerForm(events, collector, dialect.get_body_converter(request), dialect.may_flow))
        self._attempt = attempt = Attempt(self, services, self._answer, route.name, endpoint, form)
        if self._ticket is not None:
            attempt.mark = services.admission.begin_answer(self._ticket, is_counted=attempt.asks_for_stream)
        attempt.send_request(self._api.method, option.target or request.target, headers, body, fresh=fresh)

    def _adapt_form(self, form: AnswerForm) -> AnswerForm:
        """What an attempt makes of the engine's answer."""
        return form

    def _ends_soon(self) -> bool:
        """Whether the answer is expected so soon that it matters little if the engine does not notice who leaves."""
        fields = self._request.outline_fields
        expected_s = self._services.paces.of(self._account.model).expected_s(
            self._request.size // BYTES_PER_TOKEN,
            answer_bound(fields),
            runs_to_bound=bool(fields.get("ignore_eos")),
        )
        return expected_s is not None and expected_s < self._services.settings.gather_after_s

    # What becomes of it

    def answer_begun(self) -> None:
        """There will be no other try."""
        if self._large_body is not None:
            self._large_body.free()
            self._large_body = None

    def attempt_done(self) -> None:
        """The answer is complete."""
        attempt, route = self._attempt, self._checked_route
        if route is not None and not route.notices_leaving and attempt is not None:
            self._learn_pace(route, attempt)
        self._close()

    def _learn_pace(self, route: ModelRoute, attempt: Attempt) -> None:
        usage = attempt.usage
        if usage is not None and self._answer.status == 200:
            self._services.paces.of(route.name).record_answer(*usage, self._services.now() - attempt.sent_at)

    def has_other_replica(self, replica: str) -> bool:
        """Whether admission knows a replica other than `replica` that takes requests."""
        return self._services.admission.has_other_replica(self._account.model, replica, self._services.now())

    def attempt_failed(self, failure: EngineFailureError, replica: str, *, resent: bool) -> None:
        """The engine failed before it answered: try elsewhere where that can do no harm."""
        self._attempt = None
        if self._is_over:
            return
        self._account.attempts += resent
        if resent and self._ticket is not None:
            self._ticket.retries = self._ticket.retries.after_break(replica)  # the kept connection's
        if not isinstance(failure, (EngineRefusedError, EngineBrokenError)):
            self.fail_request(RoundhouseError("engine_disconnected", f"The engine failed: {failure}."))
            return
        self._run_guarded(self._try_again, replica, isinstance(failure, EngineRefusedError))

    def _try_again(self, replica: str, is_refused: bool) -> None:
        services, ticket = self._services, self._ticket
        now = services.now()
        route = self._renew_route()
        if ticket is None:
            if self._account.attempts > 1:
                raise RoundhouseError("engine_unreachable", f"The model {route.name!r} cannot be reached.")
            retries = NO_RETRIES.after_refusal(replica) if is_refused else NO_RETRIES.after_break(replica)
            self._send_attempt(route, services.admission.choose_replica(route, now, retries))
            return
        error = self._find_refusal(route)
        if error is not None:
            self._await_load(route, error, now)
        endpoint, grants = services.admission.retry_ticket(ticket, now, is_refused=is_refused)
        if endpoint is not None:
            self._send_attempt(route, endpoint)
        else:
            self.waits_since = now
        services.turns.grant_slots(grants)

    def attempt_overrun(self, *, may_resend: bool) -> None:
        """The engine had no room for the request beside the others: try again with more of it."""
        self._attempt = None
        if self._is_over:
            return
        services, ticket = self._services, self._ticket
        if ticket is not None:
            services.admission.record_overrun(ticket, services.now())
        if not may_resend:
            self._answer.broken_off_code = cache_exhausted_error(self._account.model).entry.code
            self._close()
        elif ticket is None or not self._has_body:
            self.fail_request(cache_exhausted_error(self._account.model))
        else:
            self._run_guarded(self._try_with_more, ticket, True)

    def extend_answer(self, answered: int) -> None:
        """The answer goes on beyond what was granted to it. Whoever must leave for that does so now."""
        attempt, ticket = self._attempt, self._ticket
        if attempt is None or ticket is None:
            return
        attempt.mark, victims = self._services.admission.extend_answer(ticket, answered, _may_be_resent)
        for victim in victims:
            victim.owner.give_up_tokens()

    @property
    def may_be_resent(self) -> bool:
        """Whether its engine notices at once that the request leaves, and the client has no part of an answer."""
        attempt = self._attempt
        is_unanswered = self._answer.first_byte_at is None and self._has_body
        return attempt is not None and attempt.asks_for_stream and is_unanswered

    @property
    def _has_body(self) -> bool:
        """Whether the request can be sent once more: a large body is let go when its engine begins to answer."""
        return self._request.large_body is None or self._large_body is not None

    def give_up_tokens(self) -> None:
        """The engine has no room for the request beside the others: it leaves, and comes back if it can."""
        if self._is_over or self._ticket is None:
            return
        if not self.may_be_resent:
            self.fail_request(cache_exhausted_error(self._account.model))
            return
        assert self._attempt is not None
        self._attempt.cancel()
        self._account.attempts += self._attempt.resent
        self._attempt = None
        self._run_guarded(self._try_with_more, self._ticket, False)

    def _try_with_more(self, ticket: Ticket, is_by_engine: bool) -> None:
        services, now = self._services, self._services.now()
        route = self._renew_route()
        error = self._find_refusal(route)
        if error is not None:
            self._await_load(route, error, now)
        endpoint, grants = services.admission.preempt_ticket(ticket, now, by_engine=is_by_engine)
        if endpoint is not None:
            self._send_attempt(route, endpoint)
        else:
            self.waits_since = now
        services.turns.grant_slots(grants)

    def fail_request(self, error: RoundhouseError) -> None:
        """Answer `error`, in the form that is left, and be done."""
        if self._is_over:
            return
        answer = self._answer
        answer.lines = answer.lines or self._header_lines(self._services.now())
        if not answer.status:
            self._services.metrics.series_of(self._account.model, self._api.path).count_refused(error.entry.code)
            answer.lines += self._services.lines.refusal_lines(error, self._caller)
        answer.send_error(error)
        self._close()

    def _close(self) -> None:
        """Give back all that the request holds, and count it. Whatever happens, this is run once."""
        if self._is_over:
            return
        self._is_over = True
        self.answer_begun()
        services, attempt, ticket = self._services, self._attempt, self._ticket
        now = services.now()
        services.exchanges.discard(self)
        if self._file_task is not None:
            self._file_task.cancel()
        if attempt is not None:
            attempt.cancel()
            self._account.attempts += attempt.resent
        self._account.close_account(services.metrics, self._api.path, self._caller, self._answer, attempt, now)
        # Nothing refers back to this from here: what the cyclic collector need not find, it need not stop for.
        self._attempt = self._ticket = None
        if self._client.handler is self:
            self._client.handler = None
        if ticket is not None:
            if self.waits_since is not None:
                services.ledger.on_change()
            ticket.is_refused = attempt is not None and attempt.is_refused
            usage = attempt.usage if attempt is not None else None
            if usage is not None:
                services.admission.record_usage(ticket, usage.prompt, usage.completion)
            grants = services.admission.release_ticket(ticket, now)
            if grants:
                services.turns.grant_slots(grants)

    def _header_lines(self, now: float) -> bytes:
        services = self._services
        place = self._ticket.place if self._ticket is not None else None
        rate_lines = services.limits.header_lines(self._caller, now)
        return services.lines.client_headers(
            self._answer.id_lines, self._client.headers, self._caller, place, rate_lines
        )


def _may_be_resent(ticket: Ticket) -> bool:
    owner: Exchange = ticket.owner
    return owner.may_be_resent
