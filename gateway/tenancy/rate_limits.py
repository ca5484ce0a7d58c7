"""Rate limits of keys, and of clients without one: requests and tokens per minute, requests at a time. Pure.

A limit per minute is a token bucket that holds one minute's worth and refills continuously. An estimate of a request's
tokens is taken when it arrives, and settled when it ends, which may leave a negative level. `now` is monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from contract.errors import RoundhouseError
from gateway.tenancy.api_keys import Caller, KeyRing

BYTES_PER_TOKEN: Final = 4
READS_PER_MINUTE: Final = 600
"""Reads that a key with `requests_per_minute` may make besides; as many as that limit, if that is more."""
MOST_TOKENS: Final = 10_000_000
"""A `max_tokens` above this counts as no limit."""
MOST_ANSWERS: Final = 128
"""An `n` above this counts as this many."""
LARGE_BODY_BYTES: Final = 16 * 1024
"""Images and sound are searched for in bodies above this size only."""
MOST_LOOKS: Final = 4096
"""JSON values that the search for media visits; the rest counts as text."""
REMEMBERED_CLIENTS: Final = 4096
"""Clients without a key whose usage is kept; those with running requests are kept besides."""
_CLIENTS_LOOKED_AT: Final = 8
"""Clients that are examined, per new client, for one that can be forgotten."""
_BOUNDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_COUNTS: Final = ("n", "n_cmpl")
_MEDIA_IN: Final = ("messages", "input", "prompt", "content", "image_data")
_URLS: Final = frozenset({"url", "image_url", "file_url"})
_ENCODED: Final = frozenset({"data", "file_data", "multimodal_data"})
_DUST: Final = 1e-6
"""Rounding error by which a level may lack a whole request or token."""


def estimated_tokens(body_bytes: int, fields: Mapping[str, Any]) -> int:
    """Estimate the tokens of a request: those of its prompt, by its size, and of the longest answers that it allows.

    `body_bytes`: size of the JSON body, of which `BYTES_PER_TOKEN` bytes count as one token. `fields`: its top-level
    fields. Answers without a limit count as 0, and so do images and sound in bodies above `LARGE_BODY_BYTES`;
    `RateLimitEntry.settle_request` corrects the estimate by the engine's count.
    """
    if body_bytes > LARGE_BODY_BYTES:
        body_bytes = max(0, body_bytes - count_media_bytes(fields))
    return body_bytes // BYTES_PER_TOKEN + (answer_bound(fields) or 0)


def answer_bound(fields: Mapping[str, Any]) -> int | None:
    """Return the most tokens that a request allows for all its answers together; None: it sets no limit.

    That is `answer_limit` times the number of answers: the greater of `n` and `n_cmpl`, but at most `MOST_ANSWERS`.
    `fields`: the top-level fields of the body. A number that is no positive integer counts as 1.
    """
    limit = answer_limit(fields)
    return None if limit is None else limit * min(_greatest(fields, _COUNTS) or 1, MOST_ANSWERS)


def answer_limit(fields: Mapping[str, Any]) -> int | None:
    """Return the most tokens that a request allows for one answer; None: it sets no limit.

    Of `max_tokens`, `max_completion_tokens`, `max_output_tokens` and `n_predict` the greatest counts, because engines
    differ in which they read. `fields`: the top-level fields of the body. One that is no integer from 1 to
    `MOST_TOKENS` is ignored.
    """
    return _greatest(fields, _BOUNDS, MOST_TOKENS)


def _greatest(fields: Mapping[str, Any], names: tuple[str, ...], most: int | None = None) -> int | None:
    """Return the greatest positive integer of these fields that is at most `most`; None: there is none."""
    greatest: int | None = None
    for name in names:
        value = fields.get(name)
        if value.__class__ is int and value > (greatest or 0) and (most is None or value <= most):
            greatest = int(value)
    return greatest


def count_media_bytes(fields: Mapping[str, Any]) -> int:
    """Return how many characters of a body's fields are `data:` URIs and base64, which are a byte each.

    `fields`: the body's top-level fields. Only the first `MOST_LOOKS` JSON values of messages, prompt, input, content
    and image data are visited. Nothing is decoded, and nothing is raised for fields of unexpected types.
    """
    size = 0
    pending: list[tuple[str, Any]] = [(name, fields[name]) for name in reversed(_MEDIA_IN) if name in fields]
    for _ in range(MOST_LOOKS):
        if not pending:
            break
        name, value = pending.pop()
        if value.__class__ is list:
            pending.extend((name, item) for item in islice(value, MOST_LOOKS - len(pending)))
        elif value.__class__ is dict:
            if value.get("type") != "text":  # a document may be text, in a field that else holds base64
                pending.extend(islice(value.items(), MOST_LOOKS - len(pending)))
        elif value.__class__ is str and (name in _ENCODED or (name in _URLS and value.startswith("data:"))):
            size += len(value)
    return size


def client_headers(caller: Caller) -> list[tuple[bytes, bytes]]:
    """Return the header `x-ratelimit-client` of a 429, which says whose limit was reached, as a list of one pair.

    Empty for a caller that has neither a key nor limits.
    """
    return [(b"x-ratelimit-client", caller.client_id)] if caller.name is not None or caller.is_limited else []


class TokenBucket:
    """A limit per minute: `capacity` units, at least 1, which refill continuously within one minute. A new bucket is
    full.

    The caller takes units by lowering `level`, which may become negative. Times are monotonic seconds.
    """

    __slots__ = ("capacity", "level", "refilled_at")

    def __init__(self, capacity: int, now: float) -> None:
        self.capacity = capacity
        self.level = float(capacity)
        self.refilled_at = now

    def refill(self, now: float) -> None:
        """Add the units of the time since the last refill, at most up to `capacity`. Call before reading `level`.

        `now`: monotonic seconds; a time before the last refill adds nothing.
        """
        if now > self.refilled_at:
            level = self.level + (now - self.refilled_at) * self.capacity / 60
            self.level = level if level < self.capacity else float(self.capacity)
            self.refilled_at = now

    def resize(self, capacity: int, now: float) -> None:
        """Refill the bucket, then change its capacity. `level`, even if negative, stays the same share of the capacity.

        `now`: monotonic seconds.
        """
        self.refill(now)
        self.level *= capacity / self.capacity
        self.capacity = capacity

    def wait_s(self, amount: float) -> float:
        """Return the seconds from the last refill until `amount` may be taken; 0: now. Call `refill` first.

        Nothing is taken. An amount above the capacity may be taken when the bucket is full.
        """
        if amount <= self.level:
            return 0.0
        shortfall = min(amount, self.capacity) - self.level
        return shortfall * 60 / self.capacity if shortfall > _DUST else 0.0


class _KeyUsage:
    """Usage of one key, or of one client without a key."""

    __slots__ = ("concurrency", "inflight", "is_gone", "read_bucket", "request_bucket", "token_bucket")

    def __init__(self, caller: Caller, now: float) -> None:
        self.inflight = 0
        self.is_gone = False
        self.concurrency = caller.concurrency
        self.request_bucket = _adapt_bucket(None, caller.requests_per_minute, now)
        self.read_bucket = _adapt_bucket(None, _reads_per_minute(caller), now)
        self.token_bucket = _adapt_bucket(None, caller.tokens_per_minute, now)

    def adapt_limits(self, caller: Caller, now: float) -> None:
        """Adopt the key's limits of a new table. Its running requests, and the used share of each limit, stay."""
        self.is_gone = False
        self.concurrency = caller.concurrency
        self.request_bucket = _adapt_bucket(self.request_bucket, caller.requests_per_minute, now)
        self.read_bucket = _adapt_bucket(self.read_bucket, _reads_per_minute(caller), now)
        self.token_bucket = _adapt_bucket(self.token_bucket, caller.tokens_per_minute, now)


def _reads_per_minute(caller: Caller) -> int | None:
    return None if caller.requests_per_minute is None else max(READS_PER_MINUTE, caller.requests_per_minute)


def _adapt_bucket(bucket: TokenBucket | None, capacity: int | None, now: float) -> TokenBucket | None:
    if capacity is None:
        return None
    if bucket is None:
        return TokenBucket(capacity, now)
    if bucket.capacity != capacity:
        bucket.resize(capacity, now)
    return bucket


class RateLimitEntry:
    """What one admitted request took of its caller's limits; made by `RateLimits`.

    Whoever admitted the request calls `settle_request` or `release_request` when it ends. The first call counts; later
    ones do nothing. All requests without limits share an entry that counts nothing.
    """

    __slots__ = ("_estimated_tokens", "_limits", "_name", "_state", "_token_bucket")

    def __init__(self, limits: RateLimits | None, name: str, state: _KeyUsage | None, estimated_tokens: int) -> None:
        self._limits = limits
        self._name = name
        self._state = state
        self._token_bucket = state.token_bucket if state is not None else None
        self._estimated_tokens = estimated_tokens

    def settle_request(
        self, now: float, used_tokens: int | None, *, was_sent: bool, is_failed: bool, passed_tokens: int
    ) -> None:
        """Stop counting an inference request as running, and settle its tokens. Repeated calls do nothing.

        `now`: monotonic seconds. `used_tokens`: prompt and answer as the engine counted them; None: it did not.
        `was_sent`: the request was sent to an engine; if not, it gives back its tokens and its request per minute.
        `is_failed`: the answer is an error, which costs no tokens unless the engine counted some. Any other answer
        without a count costs `passed_tokens` (tokens that were relayed), and at least the estimate.
        """
        if not was_sent:
            self._return_request(now)
        elif used_tokens is not None or is_failed:
            self.release_request(now, used_tokens or 0)
        else:  # the answer broke off or the client left: leaving early must save nothing
            self.release_request(now, max(self._estimated_tokens, passed_tokens))

    def _return_request(self, now: float) -> None:
        state = self._state
        if state is not None:
            if state.request_bucket is not None:
                state.request_bucket.refill(now)
                state.request_bucket.level = min(float(state.request_bucket.capacity), state.request_bucket.level + 1)
            self.release_request(now, 0)

    def release_request(self, now: float, used_tokens: int | None) -> None:
        """Stop counting the request as running, and charge `used_tokens` in place of the estimate.

        `now`: monotonic seconds. `used_tokens` None: unknown, so the estimate stands. The request per minute stays
        used. Repeated calls do nothing.
        """
        state = self._state
        if state is None:
            return
        self._state = None
        state.inflight -= 1
        if self._token_bucket is not None and used_tokens is not None:
            tokens = self._token_bucket
            tokens.refill(now)
            level = tokens.level + self._estimated_tokens - (max(0, used_tokens))
            tokens.level = level if level < tokens.capacity else float(tokens.capacity)
        if state.is_gone and not state.inflight and self._limits is not None:
            self._limits.forget_key(self._name, state)


_FREE: Final = RateLimitEntry(None, "", None, 0)
"""Entry of every request without limits; its methods do nothing."""


class RateLimits:
    """Counts requests and tokens of every key that has limits, by the key's name. Outlives routing tables.

    Usage of clients without a key goes by their ids. Clients choose these, so the number that is kept is bounded. Each
    gateway counts for itself, in memory. `now` is monotonic seconds in every method.
    """

    __slots__ = ("_clients", "_states")

    def __init__(self) -> None:
        self._states: dict[str, _KeyUsage] = {}
        self._clients: dict[bytes, _KeyUsage] = {}
        """By client id; the client of the latest request is last."""

    def follow_keys(self, ring: KeyRing, now: float) -> None:
        """Adopt the limits of a new table's keys. Call this for each table. `now`: monotonic seconds. Running requests
        stay counted. Usage of keys that vanished, or have no limits any more, is forgotten when their last request
        ends, and that of clients without a key as soon as keys are declared."""
        if not ring.is_empty:
            self._clients.clear()
        for name, state in list(self._states.items()):
            caller = ring.by_name.get(name)
            if caller is not None and caller.is_limited:
                state.adapt_limits(caller, now)
            elif state.inflight:
                state.is_gone = True
            else:
                del self._states[name]

    def admit_request(
        self, caller: Caller, estimated_tokens: int, now: float, *, ending_requests: int = 0
    ) -> RateLimitEntry:
        """Count a request against the caller's limits, from before it waits in a queue until it ends.

        `now`: monotonic seconds.

        The caller of this method must settle or release the returned entry when the request ends. `ending_requests`:
        number of the caller's running requests that this one replaces, which do not count for `concurrency`. A request
        whose tokens exceed the limit per minute is admitted when the whole limit is free.

        Raises:
            RoundhouseError: `rate_limit_exceeded`, and nothing is counted; `retry_after_s` is the whole seconds until a
                request of this size would be admitted, or None if `concurrency` is reached.
        """
        if not caller.is_limited:
            return _FREE
        state = self._state_of(caller, now)
        requests, tokens = state.request_bucket, state.token_bucket
        _check_concurrency(caller, state, ending_requests)
        requests_wait_s = tokens_wait_s = 0.0
        if requests is not None:
            requests.refill(now)
            requests_wait_s = requests.wait_s(1)
        if tokens is not None:
            tokens.refill(now)
            tokens_wait_s = tokens.wait_s(estimated_tokens)
        if requests_wait_s or tokens_wait_s:
            per_minute = (requests, "request(s)") if requests_wait_s >= tokens_wait_s else (tokens, "token(s)")
            assert per_minute[0] is not None
            limit_text = f"{per_minute[0].capacity} {per_minute[1]} per minute"
            raise _rate_limit_error(caller, limit_text, max(requests_wait_s, tokens_wait_s))
        if requests is not None:
            requests.level -= 1
        if tokens is not None:
            tokens.level -= estimated_tokens
        state.inflight += 1
        return RateLimitEntry(self, caller.name or "", state, estimated_tokens)

    def admit_read(self, caller: Caller, now: float, *, is_concurrent: bool = True) -> RateLimitEntry:
        """Count a request that only reads what the gateway or the controller knows, and runs no model.

        The read takes nothing of the requests and tokens per minute. `now`: monotonic seconds. A key with
        `requests_per_minute` may make `READS_PER_MINUTE` reads besides, or as many as that limit, if that is more.
        `is_concurrent` False: the read is about a running request, so it neither counts for `concurrency` nor is
        refused for it. The caller of this method must release the returned entry when the read ends.

        Raises:
            RoundhouseError: `rate_limit_exceeded`, and nothing is counted; `retry_after_s` as for `admit_request`.
        """
        if not caller.is_limited:
            return _FREE
        state = self._state_of(caller, now)
        reads = state.read_bucket
        if is_concurrent:
            _check_concurrency(caller, state)
        if reads is not None:
            reads.refill(now)
            wait_s = reads.wait_s(1)
            if wait_s:
                raise _rate_limit_error(caller, f"{reads.capacity} read(s) per minute", wait_s)
            reads.level -= 1
        if not is_concurrent:
            return _FREE
        state.inflight += 1
        return RateLimitEntry(self, caller.name or "", state, 0)

    def header_lines(self, caller: Caller, now: float) -> bytes:
        """Return the headers of `response_headers` as lines of an HTTP/1.1 header section, each with CRLF.

        Empty for a caller without limits per minute. `now`: monotonic seconds.
        """
        if not caller.is_limited:
            return b""
        state, lines = self._state_of(caller, now), ""
        if state.request_bucket is not None:
            lines = _bucket_lines("requests", *_bucket_state(state.request_bucket, now))
        if state.token_bucket is not None:
            lines += _bucket_lines("tokens", *_bucket_state(state.token_bucket, now))
        return lines.encode()

    def response_headers(self, caller: Caller, now: float) -> list[tuple[bytes, bytes]]:
        """Return the caller's `x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` headers; empty without such limits.

        There are three each for requests and tokens per minute. `now`: monotonic seconds. `remaining` is rounded down
        and at least 0; `reset` is the time until the limit is wholly free, as `duration_text`.
        """
        if not caller.is_limited:
            return []
        state = self._state_of(caller, now)
        headers: list[tuple[bytes, bytes]] = []
        for bucket, names in ((state.request_bucket, _REQUEST_HEADERS), (state.token_bucket, _TOKEN_HEADERS)):
            if bucket is not None:
                headers += (
                    (name, str(value).encode()) for name, value in zip(names, _bucket_state(bucket, now), strict=True)
                )
        return headers

    def count_inflight(self, name: str) -> int:
        """Return the number of counted requests of the key `name` that have not ended, waiting ones included, and reads
        that count for `concurrency`.

        0 for an unknown key, and for requests that were admitted while the key had no limits.
        """
        state = self._states.get(name)
        return state.inflight if state is not None else 0

    @property
    def client_count(self) -> int:
        """Number of clients without a key whose usage is kept: at most `REMEMBERED_CLIENTS`, and a few more while
        clients with running requests cannot be forgotten."""
        return len(self._clients)

    def forget_key(self, name: str, state: _KeyUsage) -> None:
        """Forget the usage of the key `name`, which is not declared or not limited any more, if `state` is still the
        object that holds that usage. Otherwise, also for an unknown name, do nothing.

        For `RateLimitEntry` only, which calls this when the key's last running request ends.
        """
        if self._states.get(name) is state:
            del self._states[name]

    def _state_of(self, caller: Caller, now: float) -> _KeyUsage:
        if caller.name is None:
            return self._client_state(caller, now)
        state = self._states.get(caller.name)
        if state is None:
            state = self._states[caller.name] = _KeyUsage(caller, now)
        return state

    def _client_state(self, caller: Caller, now: float) -> _KeyUsage:
        clients = self._clients
        state = clients.pop(caller.client_id, None)
        if state is None:
            state = _KeyUsage(caller, now)
            if len(clients) >= REMEMBERED_CLIENTS:
                self._forget_client()
        clients[caller.client_id] = state
        return state

    def _forget_client(self) -> None:
        """Forget one of the clients whose last request is oldest; clients with running requests move to the end."""
        clients = self._clients
        for client_id in list(islice(clients, _CLIENTS_LOOKED_AT)):
            state = clients.pop(client_id)
            if not state.inflight:
                return
            clients[client_id] = state


def _header_names(unit: bytes) -> tuple[bytes, bytes, bytes]:
    return (b"x-ratelimit-limit-" + unit, b"x-ratelimit-remaining-" + unit, b"x-ratelimit-reset-" + unit)


_REQUEST_HEADERS: Final = _header_names(b"requests")
_TOKEN_HEADERS: Final = _header_names(b"tokens")


def _bucket_state(bucket: TokenBucket, now: float) -> tuple[int, int, str]:
    """Return capacity, whole units left, and the time until the bucket is full, as text."""
    bucket.refill(now)
    capacity, level = bucket.capacity, bucket.level
    remaining = int(level + _DUST) if level > 0 else 0
    return capacity, remaining, duration_text((capacity - level) * 60 / capacity)


def _bucket_lines(unit: str, capacity: int, remaining: int, reset_text: str) -> str:
    return (
        f"x-ratelimit-limit-{unit}: {capacity}\r\nx-ratelimit-remaining-{unit}: {remaining}\r\n"
        f"x-ratelimit-reset-{unit}: {reset_text}\r\n"
    )


def _check_concurrency(caller: Caller, state: _KeyUsage, ending_requests: int = 0) -> None:
    if state.concurrency is not None and state.inflight - ending_requests >= state.concurrency:
        raise _rate_limit_error(caller, f"{state.concurrency} request(s) at a time", None)


def _rate_limit_error(caller: Caller, limit: str, wait_s: float | None) -> RoundhouseError:
    who = f"client {caller.client_id.decode()!r}" if caller.name is None else f"key {caller.name}"
    message = f"The {who} has reached its limit of {limit}."
    # Whole seconds, rounded up: a client that returns at that time must be admitted.
    return RoundhouseError(
        "rate_limit_exceeded", message, retry_after_s=None if wait_s is None else float(math.ceil(wait_s))
    )


def duration_text(seconds: float) -> str:
    """Format a duration as OpenAI's rate limit headers do: `20ms`, `12s`, `6m0s`, `1h0m0s`. `0ms` if it is negative.

    It is rounded up, below one second to whole milliseconds, from there to whole seconds.
    """
    if seconds < 1:
        milliseconds = math.ceil(seconds * 1000 - _DUST)
        if milliseconds < 1000:
            return f"{milliseconds}ms" if milliseconds > 0 else "0ms"
        return "1s"
    minutes, rest_s = divmod(math.ceil(seconds - _DUST), 60)
    if minutes < 60:
        return f"{minutes}m{rest_s}s" if minutes else f"{rest_s}s"
    return f"{minutes // 60}h{minutes % 60}m{rest_s}s"
