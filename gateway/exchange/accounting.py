"""The account of one request: its rate limits are settled and its metrics counted when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.exchange.attempt import Attempt
from gateway.exchange.client_response import ClientResponse
from gateway.metrics.registry import Metrics
from gateway.metrics.request_metrics import CLIENT_GONE_STATUS, NO_WORK, EngineWork, Outcome
from gateway.protocols.common.dialect import Usage
from gateway.tenancy.api_keys import Caller
from gateway.tenancy.rate_limits import RateLimitEntry


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
