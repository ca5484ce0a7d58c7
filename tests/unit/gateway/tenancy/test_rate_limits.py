"""Limits of a key: requests and tokens per minute, requests at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.errors import RoundhouseError
from contract.keys import Key
from gateway.tenancy.api_keys import ANONYMOUS, Caller, KeyRing
from gateway.tenancy.rate_limits import (
    LARGE_BODY_BYTES,
    MOST_ANSWERS,
    MOST_LOOKS,
    MOST_TOKENS,
    READS_PER_MINUTE,
    RateLimits,
    client_headers,
    duration_text,
    estimated_tokens,
)
from tests.support.outcomes import error_of


def ring(name: str = "ci", **limits: int) -> KeyRing:
    return KeyRing.of((Key.model_validate({"name": name, "tenant": "t", "sha256": "0" * 64, **limits}),))


def caller(**limits: int) -> Caller:
    return ring("ci", **limits).by_name["ci"]


def refused(limits: RateLimits, who: Caller, tokens: int = 0, now: float = 0.0) -> RoundhouseError:
    error = error_of(lambda: limits.admit_request(who, tokens, now))
    assert error.entry.code == "rate_limit_exceeded"
    return error


def left(limits: RateLimits, who: Caller, now: float = 0.0) -> dict[str, str]:
    headers = limits.response_headers(who, now)
    return {name.decode().removeprefix("x-ratelimit-"): value.decode() for name, value in headers}


def test_requests_per_minute_are_refilled_all_the_time() -> None:
    limits, who = RateLimits(), caller(requests_per_minute=6)
    for _ in range(6):
        limits.admit_request(who, 0, 0.0).release_request(0.0, 0)
    error = refused(limits, who)
    assert (error.message, error.build_headers()) == (
        "The key ci has reached its limit of 6 request(s) per minute.",
        {"retry-after": "10"},
    )
    assert refused(limits, who, now=9.9).build_headers() == {"retry-after": "1"}
    limits.admit_request(who, 0, 10.0)
    assert refused(limits, who, now=10.1).retry_after_s == 10


def test_rounding_costs_nobody_a_request() -> None:
    limits, who = RateLimits(), caller(requests_per_minute=7)
    for _ in range(7):
        limits.admit_request(who, 0, 0.0)
    for step in range(1, 7 * 60 + 1):
        shown = left(limits, who, step / 7)["remaining-requests"]
        assert shown == str(min(7, step // 60))
    for _ in range(7):
        limits.admit_request(who, 0, 60.0)


def refused_read(limits: RateLimits, who: Caller, now: float = 0.0) -> RoundhouseError:
    error = error_of(lambda: limits.admit_read(who, now))
    assert error.entry.code == "rate_limit_exceeded"
    return error


def read(limits: RateLimits, who: Caller, count: int = 1, now: float = 0.0) -> None:
    """Reads that are over at once."""
    for _ in range(count):
        limits.admit_read(who, now).release_request(now, 0)


def test_reading_takes_nothing_of_the_other_limits_and_is_not_bound_by_them() -> None:
    limits, who = RateLimits(), caller(requests_per_minute=1, tokens_per_minute=60)
    read(limits, who, 9)
    full = {"limit-requests": "1", "remaining-requests": "1", "reset-requests": "0ms", "remaining-tokens": "60"}
    assert full.items() <= left(limits, who).items()
    limits.admit_request(who, 60, 0.0).release_request(0.0, 600)
    refused(limits, who)
    read(limits, who)
    assert left(limits, who)["reset-tokens"] == "10m0s"


def test_reading_counts_among_the_requests_at_a_time() -> None:
    limits, who = RateLimits(), caller(concurrency=2)
    first = limits.admit_read(who, 0.0)
    limits.admit_request(who, 0, 0.0)
    assert refused_read(limits, who).message == "The key ci has reached its limit of 2 request(s) at a time."
    refused(limits, who)
    first.release_request(0.0, 0)
    assert limits.count_inflight("ci") == 1


def test_without_requests_per_minute_reading_has_no_bound() -> None:
    limits = RateLimits()
    for who in (caller(tokens_per_minute=1), caller(), ANONYMOUS):
        read(limits, who, READS_PER_MINUTE + 2)  # without requests per minute it has no bound
    assert limits.count_inflight("ci") == 0


@pytest.mark.parametrize("requests", [6, READS_PER_MINUTE - 1, READS_PER_MINUTE, READS_PER_MINUTE + 5])
def test_reading_has_a_bound_of_its_own_that_is_never_closer_than_that_of_requests(requests: int) -> None:
    limits, who, bound = RateLimits(), caller(requests_per_minute=requests), max(requests, READS_PER_MINUTE)
    read(limits, who, bound)
    error = refused_read(limits, who)
    assert error.message == f"The key ci has reached its limit of {bound} read(s) per minute."
    assert error.retry_after_s == 1.0
    refused_read(limits, who)
    limits.admit_request(who, 0, 0.0).release_request(0.0, 0)
    limits.admit_read(who, 60 / bound)
    refused_read(limits, who, 60 / bound)


def test_the_bound_of_reading_follows_an_edit() -> None:
    limits, keys = RateLimits(), ring(requests_per_minute=6)
    read(limits, keys.by_name["ci"], READS_PER_MINUTE)
    wider = ring(requests_per_minute=2 * READS_PER_MINUTE)
    limits.follow_keys(wider, 0.0)
    refused_read(limits, wider.by_name["ci"])
    limits.admit_read(wider.by_name["ci"], 30 / READS_PER_MINUTE)
    free = ring(tokens_per_minute=6)
    limits.follow_keys(free, 30 / READS_PER_MINUTE)
    limits.admit_read(free.by_name["ci"], 30 / READS_PER_MINUTE)


def test_what_is_about_a_request_under_way_is_none_of_those_at_a_time() -> None:
    limits, who = RateLimits(), caller(concurrency=1, requests_per_minute=6)
    running = limits.admit_request(who, 0, 0.0)
    for _ in range(READS_PER_MINUTE):
        limits.admit_read(who, 0.0, is_concurrent=False).release_request(0.0, 0)
    assert "per minute" in error_of(lambda: limits.admit_read(who, 0.0, is_concurrent=False)).message
    assert "at a time" in refused(limits, who).message
    instead = limits.admit_request(who, 0, 0.0, ending_requests=1)
    running.release_request(0.0, 0)
    assert "at a time" in refused(limits, who).message
    instead.release_request(0.0, 0)
    limits.admit_request(who, 0, 0.0)


def test_requests_at_a_time() -> None:
    limits, who = RateLimits(), caller(concurrency=2)
    first, _ = limits.admit_request(who, 0, 0.0), limits.admit_request(who, 0, 0.0)
    error = refused(limits, who)
    assert (error.message, error.retry_after_s) == ("The key ci has reached its limit of 2 request(s) at a time.", None)
    first.release_request(1.0, None)
    first.release_request(1.0, None)
    assert limits.count_inflight("ci") == 1, "leaving twice is leaving once"
    limits.admit_request(who, 0, 1.0)
    refused(limits, who)


def test_tokens_are_settled_when_they_are_known() -> None:
    limits, who = RateLimits(), caller(tokens_per_minute=600)
    entry = limits.admit_request(who, 500, 0.0)
    assert refused(limits, who, 200).message == "The key ci has reached its limit of 600 token(s) per minute."
    entry.release_request(0.0, 100)
    assert left(limits, who)["remaining-tokens"] == "500"
    limits.admit_request(who, 200, 0.0).release_request(0.0, None)
    assert left(limits, who)["remaining-tokens"] == "300", "what nobody counted stays as estimated"
    limits.admit_request(who, 100, 0.0).release_request(0.0, 900)
    assert left(limits, who) == {"limit-tokens": "600", "remaining-tokens": "0", "reset-tokens": "2m0s"}
    assert refused(limits, who, 10).retry_after_s == 61, "a debt is refilled first"
    limits.admit_request(who, 10, 61.0)


def test_a_refused_request_uses_nothing_up_and_a_large_one_passes_when_nothing_was_used() -> None:
    limits, who = RateLimits(), caller(requests_per_minute=5, tokens_per_minute=100, concurrency=3)
    limits.admit_request(who, 90, 0.0)
    before = left(limits, who)
    for _ in range(10):
        refused(limits, who, 50)
    assert (left(limits, who), limits.count_inflight("ci")) == (before, 1)
    limits, who = RateLimits(), caller(tokens_per_minute=60)
    limits.admit_request(who, 1, 0.0).release_request(0.0, 1)
    assert refused(limits, who, 500).retry_after_s == 1
    limits.admit_request(who, 500, 1.0)
    assert refused(limits, who, 1, now=1.0).retry_after_s == 441


def test_the_limit_that_lasts_longest_is_the_one_that_is_named() -> None:
    limits, who = RateLimits(), caller(requests_per_minute=1, tokens_per_minute=60)
    limits.admit_request(who, 60, 0.0)
    assert "1 request(s) per minute" in refused(limits, who, 10).message
    assert refused(limits, who, 10).retry_after_s == 60
    limits.admit_request(who, 60, 120.0).release_request(120.0, 600)
    error = refused(limits, who, 10, now=120.0)
    assert ("60 token(s) per minute" in error.message, error.retry_after_s) == (True, 550)
    limits, who = RateLimits(), caller(requests_per_minute=1, tokens_per_minute=1)
    limits.admit_request(who, 1, 0.0)
    assert "1 request(s) per minute" in refused(limits, who, 1).message


def test_headers_say_what_is_left_of_each_limit() -> None:
    limits, who = RateLimits(), caller(requests_per_minute=60, tokens_per_minute=6000, concurrency=5)
    limits.admit_request(who, 3000, 0.0)
    assert left(limits, who, 0.5) == {
        "limit-requests": "60",
        "remaining-requests": "59",
        "reset-requests": "500ms",
        "limit-tokens": "6000",
        "remaining-tokens": "3050",
        "reset-tokens": "30s",
    }
    assert set(left(RateLimits(), caller(tokens_per_minute=5))) == {"limit-tokens", "remaining-tokens", "reset-tokens"}
    assert RateLimits().response_headers(caller(concurrency=5), 0.0) == []
    assert client_headers(caller()) == [(b"x-ratelimit-client", b"ci")]
    assert client_headers(ANONYMOUS) == []


@pytest.mark.parametrize("who", [ANONYMOUS, caller()])
def test_without_limits_nothing_is_counted(who: Caller) -> None:
    limits = RateLimits()
    entries = [limits.admit_request(who, 10**9, 0.0) for _ in range(3)]
    for entry in entries:
        entry.release_request(0.0, 5)
    assert (limits.response_headers(who, 0.0), limits._states) == ([], {})


def test_changed_limits_hold_at_once_and_leave_the_others_as_used_as_they_are() -> None:
    limits, old = RateLimits(), ring(requests_per_minute=10, concurrency=5)
    limits.follow_keys(old, 0.0)
    for _ in range(5):
        limits.admit_request(old.by_name["ci"], 0, 0.0)
    more = ring(requests_per_minute=100, concurrency=2, tokens_per_minute=50)
    limits.follow_keys(more, 0.0)
    who = more.by_name["ci"]
    assert left(limits, who)["remaining-requests"] == "50", "half of it was used up"
    assert left(limits, who)["remaining-tokens"] == "50"
    assert "2 request(s) at a time" in refused(limits, who).message, "those inside stay counted"
    fewer = ring(requests_per_minute=4)
    limits.follow_keys(fewer, 0.0)
    assert left(limits, fewer.by_name["ci"]) == {
        "limit-requests": "4",
        "remaining-requests": "2",
        "reset-requests": "30s",
    }
    limits, old = RateLimits(), ring(tokens_per_minute=600, requests_per_minute=10)
    limits.admit_request(old.by_name["ci"], 200, 0.0)
    new = ring(tokens_per_minute=600, requests_per_minute=20)
    limits.follow_keys(new, 0.0)
    shown = left(limits, new.by_name["ci"])
    assert (shown["remaining-tokens"], shown["remaining-requests"]) == ("400", "18")


def test_a_key_that_vanished_is_forgotten_when_nothing_of_it_runs() -> None:
    limits, keys = RateLimits(), ring(requests_per_minute=10, tokens_per_minute=10)
    who, gone = keys.by_name["ci"], ring("other")
    limits.admit_request(who, 1, 0.0).release_request(0.0, 1)
    limits.follow_keys(gone, 0.0)
    assert limits._states == {}
    first, second = limits.admit_request(who, 1, 0.0), limits.admit_request(who, 1, 0.0)
    limits.follow_keys(gone, 0.0)
    first.release_request(1.0, 1)
    assert limits.count_inflight("ci") == 1
    second.release_request(1.0, 1)
    assert limits._states == {}
    limits, who = RateLimits(), caller(concurrency=2)
    entry = limits.admit_read(who, 0.0)
    limits.follow_keys(KeyRing.of(()), 0.0)
    assert limits.count_inflight("ci") == 1
    entry.release_request(0.0, 0)
    assert not limits._states


def test_a_key_that_came_back_is_the_same() -> None:
    limits, keys = RateLimits(), ring(requests_per_minute=10)
    who = keys.by_name["ci"]
    running = limits.admit_request(who, 0, 0.0)
    limits.follow_keys(KeyRing.of(()), 0.0)
    limits.follow_keys(keys, 0.0)
    running.release_request(0.0, 0)
    assert left(limits, who)["remaining-requests"] == "9"


def settled(used: int | None = None, *, sent: bool = True, failed: bool = False, passed: int = 0) -> tuple[str, str]:
    """Requests and tokens that are left of 10 and 600, after one that was estimated at 100 and took no time."""
    limits, who = RateLimits(), caller(requests_per_minute=10, tokens_per_minute=600)
    limits.admit_request(who, 0, 0.0)
    limits.admit_request(who, 100, 0.0).settle_request(0.0, used, was_sent=sent, is_failed=failed, passed_tokens=passed)
    assert limits.count_inflight("ci") == 1
    return remaining(limits, who)


def remaining(limits: RateLimits, who: Caller, now: float = 0.0) -> tuple[str, str]:
    """Requests and tokens."""
    shown = left(limits, who, now)
    return shown["remaining-requests"], shown["remaining-tokens"]


def test_what_a_request_is_charged_in_the_end() -> None:
    assert settled(sent=False) == settled(40, sent=False) == ("9", "600"), "nothing of what no engine has seen"
    assert settled(40) == settled(40, failed=True) == ("8", "560")
    assert settled(0) == ("8", "600")
    assert settled(failed=True) == ("8", "600")
    assert settled(passed=30) == ("8", "500"), "leaving early saves nothing"
    assert settled(passed=130) == ("8", "470")


def test_what_is_given_back_is_at_most_what_a_minute_holds() -> None:
    unsent: dict[str, Any] = {"was_sent": False, "is_failed": False, "passed_tokens": 0}
    limits, who = RateLimits(), caller(requests_per_minute=6, tokens_per_minute=600)
    first, second = limits.admit_request(who, 500, 0.0), limits.admit_request(who, 0, 0.0)
    first.settle_request(15.0, None, **unsent)
    assert remaining(limits, who, 15.0) == ("6", "600")
    for _ in range(2):
        second.settle_request(15.0, None, **unsent)
    limits.admit_request(who, 600, 15.0)
    refused(limits, who, 1, now=15.0)
    assert remaining(limits, who, 15.0) == ("5", "0")
    limits, only_tokens = RateLimits(), caller(tokens_per_minute=60)
    limits.admit_request(only_tokens, 60, 0.0).settle_request(0.0, None, **unsent)
    assert left(limits, only_tokens) == {"limit-tokens": "60", "remaining-tokens": "60", "reset-tokens": "0ms"}


def test_an_answer_that_took_less_than_expected_fills_the_bucket_and_no_more() -> None:
    limits, who = RateLimits(), caller(tokens_per_minute=600)
    limits.admit_request(who, 500, 0.0).release_request(60.0, 0)
    limits.admit_request(who, 600, 60.0)
    assert refused(limits, who, 60, now=60.0).retry_after_s == 6


def test_what_comes_in_while_a_request_runs_pays_for_none_of_it_beyond_a_minutes_worth() -> None:
    limits, who = RateLimits(), caller(tokens_per_minute=600)
    limits.admit_request(who, 0, 0.0).release_request(600.0, 200)
    assert left(limits, who, 600.0)["remaining-tokens"] == "400"


@pytest.mark.parametrize(
    "declared",
    [
        *({}, {"requests_per_minute": 60}, {"tokens_per_minute": 6}),
        {"requests_per_minute": 6, "concurrency": 1},
        {"requests_per_minute": 60, "tokens_per_minute": 6},
        {"concurrency": 1},
    ],
)
def test_headers_as_they_go_over_the_wire(declared: dict[str, int]) -> None:
    limits, who = RateLimits(), caller(**declared)
    unused = b"".join(name + b": " + value + b"\r\n" for name, value in RateLimits().response_headers(who, 1.0))
    assert limits.header_lines(who, 1.0) == unused
    limits.admit_request(who, 2, 1.0)
    headers = limits.response_headers(who, 1.0)
    assert limits.header_lines(who, 1.0) == b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    assert limits.header_lines(ANONYMOUS, 1.0) == b""
    kinds = [each.removesuffix("_per_minute").encode() for each in declared if each != "concurrency"]
    names = [b"x-ratelimit-" + which + kind for kind in kinds for which in (b"limit-", b"remaining-", b"reset-")]
    assert [name for name, _ in headers] == names


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.0, b"0ms"), (-0.1, b"0ms"), (0.0200001, b"21ms"), (0.02, b"20ms"), (0.9999, b"1s")),
        *((0.001, b"1ms"), (1.0, b"1s"), (1.5, b"2s"), (8.64, b"9s"), (59.5, b"1m0s"), (360.0, b"6m0s")),
        *((3599.0, b"59m59s"), (3600.0, b"1h0m0s"), (3661.0, b"1h1m1s"), (86_340.0, b"23h59m0s")),
    ],
)
def test_times_until_a_reset_are_said_in_words(seconds: float, words: bytes) -> None:
    assert duration_text(seconds).encode() == words


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        *(({}, 25), ({"max_tokens": 100}, 125), ({"max_completion_tokens": 7}, 32)),
        ({"max_output_tokens": 7, "max_tokens": None}, 32),
        *(({"max_tokens": -1}, 25), ({"max_tokens": True}, 25), ({"max_tokens": "100"}, 25)),
        *(({"max_tokens": 1.5}, 25), ({"max_tokens": 10**30}, 25), ({"max_tokens": [1]}, 25)),
        *(({"n_predict": 40}, 65), ({"n_predict": -1}, 25), ({"max_tokens": 100, "n": 3}, 325)),
        *(({"n_predict": 100, "n_cmpl": 2}, 225), ({"max_tokens": 100, "n": 0}, 125)),
        *(({"max_tokens": 100, "n": True}, 125), ({"max_tokens": 100, "n": "3"}, 125)),
        ({"max_tokens": 100, "n": 10**400}, 25 + 100 * MOST_ANSWERS),
        ({"max_tokens": 16, "max_completion_tokens": 900_000}, 900_025),
        ({"max_tokens": 900_000, "max_completion_tokens": 16}, 900_025),
        *(({"n": 3}, 25), ({"max_tokens": 1}, 26), ({"max_tokens": 0, "n_predict": 40}, 65)),
        *(({"max_tokens": MOST_TOKENS}, 25 + MOST_TOKENS), ({"max_tokens": MOST_TOKENS + 1}, 25)),
        ({"max_tokens": 10, "n": 1, "n_cmpl": 2}, 45),
        ({"max_tokens": 10, "n": MOST_ANSWERS}, 25 + 10 * MOST_ANSWERS),
        ({"max_tokens": 10, "n": MOST_ANSWERS + 1}, 25 + 10 * MOST_ANSWERS),
    ],
)
def test_tokens_of_a_request_are_estimated_from_its_fields(fields: dict[str, Any], tokens: int) -> None:
    for size in (100, 103):
        assert estimated_tokens(size, fields) == tokens


PICTURE = "data:image/png;base64," + "A" * 4_000_000
LETTERS = "x" * 4_000_000


def of(content: object, **more: object) -> int:
    """The estimate of a message with this content."""
    fields = {"messages": [{"role": "user", "content": content}], **more}
    return estimated_tokens(len(json.dumps(fields)), fields)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "input_image", "image_url": PICTURE},
        {"type": "input_audio", "input_audio": {"data": LETTERS, "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": LETTERS}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PICTURE}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "base64", "data": LETTERS}}]},
    ],
)
def test_an_image_or_sound_is_no_text(part: dict[str, Any]) -> None:
    assert of([{"type": "text", "text": "What is this?"}, part]) < 100
    assert of([part, {"type": "text", "text": "And this?"}, part]) < 150
    assert of([{"type": "text", "text": LETTERS}, part]) > 1_000_000
    assert of([part], max_tokens=50, n=2) < 200
    others: list[dict[str, Any]] = [
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]},
        {"prompt": {"prompt_string": "What is <__media__>?", "multimodal_data": [LETTERS]}},
        {"image_data": [{"data": LETTERS, "id": 1}]},
    ]
    assert all(estimated_tokens(len(json.dumps(fields)), fields) < 100 for fields in others), "of other APIs"


@pytest.mark.parametrize(
    "content",
    [
        PICTURE,
        [{"type": "text", "text": PICTURE}],
        [{"type": "document", "source": {"type": "text", "data": LETTERS}}],
        [{"type": "image_url", "image_url": {"url": "http://" + LETTERS}}],
    ],
)
def test_text_is_text_whatever_it_looks_like(content: object) -> None:
    assert of(content) > 1_000_000


def test_small_bodies_are_not_searched_and_the_search_is_bounded() -> None:
    fields: dict[str, Any] = {"image_data": [{"data": "A" * 4000}]}
    assert estimated_tokens(LARGE_BODY_BYTES, fields) == LARGE_BODY_BYTES // 4
    assert estimated_tokens(LARGE_BODY_BYTES + 4, fields) == (LARGE_BODY_BYTES + 4 - 4000) // 4
    fields = {"messages": [[[]] * 1000] * 1000, "image_data": [{"data": LETTERS}]}
    assert estimated_tokens(8_000_000, fields) >= 1_000_000
    nested: list[Any] = []
    for _ in range(MOST_LOOKS * 2):
        nested = [nested]
    assert estimated_tokens(100_000, {"messages": nested}) == 25_000


@pytest.mark.parametrize("beside", [0, 3000])
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_of_more_values_than_are_looked_at_the_first_are(beside: int, kind: str) -> None:
    """Whatever waits to be looked at is bounded, too: what a body holds is not copied."""
    many: Any = [{"data": LETTERS} if number == 100 else "x" for number in range(2 * MOST_LOOKS)]
    if kind == "dict":
        many = {f"x{number}": each for number, each in enumerate(many)}
    body: dict[str, Any] = {"messages": [*("x" for _ in range(beside)), many]}
    assert estimated_tokens(4_000_100, body) == 25
