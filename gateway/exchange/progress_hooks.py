"""Streams whose clients ask to be told what they wait for (`X-Progress`, `X-Load-Progress`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from contract.routing import Endpoint, ModelRoute
from gateway.admission.admission import Admission
from gateway.admission.ticket import QueuePlace, Ticket
from gateway.exchange.hooks import AnswerForm, ConditionalHook, ExchangeHooks, Trigger
from gateway.exchange.progress import (
    LOAD_PROGRESS_HEADER,
    PROGRESS_HEADER,
    PROGRESS_HEADERS,
    Progress,
    ProgressPace,
    asked_progress,
    prefill_progress,
    queue_progress,
)
from gateway.protocols.chat.prompt_progress import (
    PromptProgress,
    PromptProgressStream,
    ask_for_progress,
    tells_progress,
)

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange


class ProgressRun:
    """Sends one client the progress comments of its request: queue, load and prefill.

    Made for a stream with `X-Progress: true`; lives as long as the exchange, whose hooks call it.
    """

    __slots__ = ("_engine_tells", "_exchange", "_is_added", "_pace", "_place", "_route", "_ticket")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._pace = ProgressPace()
        self._ticket: Ticket | None = None
        """The request's ticket, while it is in the queue."""
        self._place: QueuePlace | None = None
        """The request's place in the queue; None: it is not in the queue."""
        self._route: ModelRoute
        """The model as it was last seen. Set while the request is in the queue."""
        self._engine_tells = False
        """Whether the engine of this attempt tells how far it is with the prompt."""
        self._is_added = False
        """Whether the request asks the engine for that, and the client's own did not."""

    def hooks(self) -> ExchangeHooks:
        """Return the hooks that send the comments. Add them to the exchange once."""
        return ExchangeHooks(
            on_wait=(self._note_wait,),
            before_send=(self._ask_engine,),
            shape_answer=(self._follow_attempt,),
            on_end=(self._end,),
        )

    # From the exchange

    def _note_wait(self, exchange: Exchange, route: ModelRoute) -> None:
        services, admission = exchange.services, exchange.admission
        self._route = route
        if self._ticket is None and admission is not None and admission.ticket is not None:
            self._end_prefill()  # of an attempt that failed
            self._ticket = ticket = admission.ticket
            services.progress.queued[ticket] = self
            places = services.admission.list_places(route.name)
            self._place = next((place for each, place in places if each is ticket), None)
        self._tell_wait()

    def _ask_engine(self, exchange: Exchange, route: ModelRoute, _: Endpoint) -> None:
        self._leave_queue()
        assert exchange.admission is not None
        self._engine_tells = tells_progress(exchange.admission.serving_option.required_api, route)
        if self._engine_tells:
            request = ask_for_progress(exchange.request)
            if request is not exchange.request:
                self._is_added = True
                exchange.replace_request(request)

    def _follow_attempt(self, exchange: Exchange, form: AnswerForm) -> AnswerForm:
        self._end_prefill()  # of an attempt that failed
        self._tell_prefill(None)
        if form.events is None or not self._engine_tells:
            return form
        assert exchange.admission is not None
        is_translated = exchange.admission.serving_option.target is not None
        drops = self._is_added and not is_translated  # a translation drops it in any case
        return form._replace(events=PromptProgressStream(form.events, self._take_prefill, drops=drops))

    def _take_prefill(self, prompt: PromptProgress) -> None:
        exchange = self._exchange
        if prompt.share < 1:
            ledger, answer = exchange.services.ledger, exchange.answer
            ledger.record_prefill(answer.request_id, exchange.account.model, prompt.processed, prompt.total)
        else:
            self._end_prefill()
        self._tell_prefill(prompt)

    def _end(self, exchange: Exchange) -> None:
        self._leave_queue()
        self._end_prefill()
        exchange.services.progress.tellers.discard(self)

    # From the board

    def take_place(self, place: QueuePlace) -> None:
        """Take the request's place in the queue as it is now, and send the client a comment if the change is due.

        Does nothing if the place is unchanged. Called by `ProgressBoard` while the request waits in the queue.
        """
        if place != self._place:
            self._place = place
            self._tell_wait()

    def tell_due(self, now: float) -> None:
        """Send the comment that was held back and is due at `now` (monotonic seconds); do nothing if none is.

        Once the answer has begun, a comment that was held back is dropped instead.
        """
        if self._exchange.answer.first_byte_at is None:
            self._send(self._pace.next_comment(now), now)
        else:
            self._pace.drop()
            self._end_prefill()

    # Parts

    def _tell_wait(self) -> None:
        self._tell(queue_progress(self._route, self._place, is_loading=self._exchange.load_wait is not None))

    def _tell_prefill(self, prompt: PromptProgress | None) -> None:
        exchange = self._exchange
        session = None if exchange.session is None else exchange.session.decision
        self._tell(prefill_progress(exchange.account.model, prompt, session))

    def _tell(self, progress: Progress) -> None:
        now = self._exchange.services.now()
        self._send(self._pace.change(progress, now), now)

    def _send(self, comment: bytes | None, now: float) -> None:
        if comment is not None and not self._exchange.is_ended:
            self._exchange.answer.send_comment(comment, now)

    def _leave_queue(self) -> None:
        if self._ticket is not None:
            self._exchange.services.progress.queued.pop(self._ticket, None)
            self._ticket = self._place = None

    def _end_prefill(self) -> None:
        self._exchange.services.ledger.end_prefill(self._exchange.answer.request_id)


class ProgressBoard:
    """The requests of a gateway whose clients asked for progress comments (`X-Progress`). One object:
    `Services.progress`. `ProgressRun` adds and removes them; the dispatcher's timer calls `run_due`."""

    def __init__(self) -> None:
        self.tellers: set[ProgressRun] = set()
        """One for each such request, from its preparation to its end."""
        self.queued: dict[Ticket, ProgressRun] = {}
        """Those of `tellers` whose request waits in the queue, by the request's ticket."""

    def run_due(self, admission: Admission, now: float) -> None:
        """Tell each queued request its present place in `admission`, and send all comments that are due.

        Call about twice a second. `now`: monotonic seconds.
        """
        for model in {ticket.model for ticket in self.queued}:
            for ticket, place in admission.list_places(model):
                teller = self.queued.get(ticket)
                if teller is not None:
                    teller.take_place(place)
        for teller in list(self.tellers):
            teller.tell_due(now)


def _tell_load(exchange: Exchange, route: ModelRoute) -> None:
    comment = exchange.load_wait.next_comment(route) if exchange.load_wait is not None else None
    if comment is not None:
        exchange.answer.send_comment(comment, exchange.services.now())


_LOAD_HOOKS: Final = ExchangeHooks(on_wait=(_tell_load,))


def _tell_progress(exchange: Exchange, _: ModelRoute) -> None:
    if not (exchange.api.streams and exchange.request.stream):
        return
    asked = asked_progress(exchange.client.headers)
    if LOAD_PROGRESS_HEADER in asked:
        exchange.add_hooks(_LOAD_HOOKS)
    if PROGRESS_HEADER in asked:
        run = ProgressRun(exchange)
        exchange.services.progress.tellers.add(run)
        exchange.add_hooks(run.hooks())


PROGRESS_HOOKS: Final = ExchangeHooks(on_request=(ConditionalHook(_tell_progress, Trigger(headers=PROGRESS_HEADERS)),))
"""For requests by HTTP. After the hooks that complete them."""
