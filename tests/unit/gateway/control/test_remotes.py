"""Health of remotes: what counts as failed, and how often they are asked."""

from __future__ import annotations

import pytest

from gateway.control.remote_health import (
    FAILURES,
    LONGEST_GAP_S,
    LONGEST_OUTAGE_GAP_S,
    LONGEST_PATIENCE_S,
    ProbeOutcome,
    ProbeVerdict,
    RemoteHealth,
    apply_answer,
    apply_doubt,
    apply_probe,
    judge_status,
    parse_retry_after,
)
from gateway.control.remote_prober import hide_secrets

INTERVAL_S = 2.0
DAY_S = 24 * 3600.0
WELL = ProbeOutcome(ProbeVerdict.WELL)
LIMITED = ProbeOutcome(ProbeVerdict.LIMITED, "answers HTTP 429")
REFUSED_KEY = ProbeOutcome(ProbeVerdict.KEY_REFUSED, "answers HTTP 401")
REFUSED = ProbeOutcome(ProbeVerdict.CONNECTION_REFUSED, "cannot be reached")
DOWN = ProbeOutcome(ProbeVerdict.FAILED, "answers HTTP 503")


def after(*outcomes: ProbeOutcome, health: RemoteHealth | None = None) -> RemoteHealth:
    """The health after these probes, each made when it is due."""
    health = health or RemoteHealth()
    for outcome in outcomes:
        health = apply_probe(health, outcome, max(0.0, health.next_probe_at), INTERVAL_S)
    return health


def verdicts(*outcomes: ProbeOutcome) -> list[bool | None]:
    """Whether the remote is well after each of these probes."""
    return [after(*outcomes[: count + 1]).is_well for count in range(len(outcomes))]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((200, ProbeVerdict.WELL), (204, ProbeVerdict.FAILED), (302, ProbeVerdict.FAILED)),
        *((401, ProbeVerdict.KEY_REFUSED), (403, ProbeVerdict.KEY_REFUSED), (404, ProbeVerdict.FAILED)),
        *((429, ProbeVerdict.LIMITED), (500, ProbeVerdict.FAILED)),
    ],
)
def test_a_status_is_an_outage_a_refused_key_a_limit_or_well(status: int, verdict: ProbeVerdict) -> None:
    assert judge_status(status) is verdict


@pytest.mark.parametrize("bad", [DOWN, REFUSED_KEY])
def test_three_failures_in_a_row_or_a_refused_connection_are_a_failed_remote(bad: ProbeOutcome) -> None:
    assert verdicts(WELL, bad, bad, WELL, bad, bad, bad, bad, WELL) == [True] * 6 + [False, False, True]
    assert verdicts(bad, bad, bad) == [None, None, False]
    assert verdicts(WELL, bad, LIMITED, bad, bad) == [True] * 5
    assert verdicts(REFUSED) == [False]
    assert verdicts(WELL, REFUSED, REFUSED, WELL) == [True, False, False, True]


def test_an_error_is_told_once_it_is_decided_and_is_the_last_one() -> None:
    assert after(WELL, DOWN, DOWN).error is None
    assert after(WELL, DOWN, DOWN, DOWN).error == DOWN.message
    failed = after(WELL, DOWN, DOWN, DOWN, REFUSED_KEY)
    assert (failed.error, failed.is_key_refused) == (REFUSED_KEY.message, True)
    assert after(*[DOWN] * FAILURES, WELL).error is None


def test_429_ends_an_outage_and_says_nothing_of_a_refused_key() -> None:
    assert after(REFUSED, LIMITED).is_well
    limited = after(*[REFUSED_KEY] * FAILURES, LIMITED)
    assert (limited.is_well, limited.is_key_refused, limited.error) == (False, True, REFUSED_KEY.message)
    assert after(*[REFUSED_KEY] * FAILURES, LIMITED, WELL).is_well


def test_a_remote_that_answers_every_third_probe_with_429_stays_well() -> None:
    assert verdicts(*(WELL, WELL, LIMITED) * 4) == [True] * 12
    assert verdicts(LIMITED, LIMITED, LIMITED, LIMITED) == [True] * 4


def test_what_is_well_is_probed_ever_more_rarely_up_to_once_a_minute() -> None:
    gaps = [after(*[WELL] * count).gap_s for count in range(1, 9)]
    assert gaps == [2, 4, 8, 16, 32, 60, 60, 60]
    probes, health = 0, RemoteHealth()
    while health.next_probe_at < DAY_S:
        health, probes = after(WELL, health=health), probes + 1
    assert probes < 1450, "43,200 a day at two seconds"


def test_what_fails_is_probed_at_once_again_and_then_more_rarely() -> None:
    health = after(*[WELL] * 8)
    gaps = []
    for _ in range(8):
        health = after(DOWN, health=health)
        gaps.append(health.gap_s)
    assert gaps == [2, 2, 2, 4, 8, LONGEST_OUTAGE_GAP_S, LONGEST_OUTAGE_GAP_S, LONGEST_OUTAGE_GAP_S]
    assert after(WELL, health=health).gap_s == INTERVAL_S
    assert after(*[REFUSED_KEY] * 12).gap_s == LONGEST_GAP_S


@pytest.mark.parametrize(
    ("retry_after_s", "gap_s"), [(None, 8), (90.0, 90), (0.0, INTERVAL_S), (1e9, LONGEST_PATIENCE_S)]
)
def test_a_limited_remote_is_probed_when_it_says(retry_after_s: float | None, gap_s: float) -> None:
    assert after(WELL, WELL, ProbeOutcome(ProbeVerdict.LIMITED, "answers HTTP 429", retry_after_s)).gap_s == gap_s


def test_an_interval_longer_than_a_minute_holds() -> None:
    health = apply_probe(RemoteHealth(), WELL, 0.0, 300.0)
    for _ in range(3):
        health = apply_probe(health, WELL, health.next_probe_at, 300.0)
        assert health.gap_s == 300
    assert apply_answer(health, 200, health.probed_at, 300.0).next_probe_at == health.probed_at + 300


def test_a_request_that_is_limited_says_nothing_of_health() -> None:
    health = after(WELL, DOWN)
    assert apply_answer(health, 429, 3.0, INTERVAL_S) is health


@pytest.mark.parametrize("status", [200, 400, 404])
def test_an_answer_to_a_request_stands_for_probes_once_a_minute(status: int) -> None:
    health = first = after(WELL)
    for now in range(50):
        health = apply_answer(health, status, float(now), INTERVAL_S)
    assert health.next_probe_at == first.probed_at + LONGEST_GAP_S, "it does not put the probe off for ever"
    assert after(WELL, health=health).gap_s == LONGEST_GAP_S
    failing = after(DOWN, DOWN, health=health)
    assert failing.failure_count == 2
    assert after(DOWN, DOWN, health=apply_answer(failing, status, 70.0, INTERVAL_S)).is_well, "not in a row"
    assert apply_answer(after(*[DOWN] * FAILURES), status, 10.0, INTERVAL_S).is_well


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_an_answer_that_raises_a_doubt_brings_the_next_probe_forward(status: int) -> None:
    health = after(*[WELL] * 8)
    doubted = apply_answer(health, status, health.probed_at + 30, INTERVAL_S)
    assert (doubted.is_well, doubted.next_probe_at) == (True, health.probed_at + 30)
    soon = apply_doubt(health, health.probed_at + 0.5, INTERVAL_S)
    assert soon.next_probe_at == health.probed_at + INTERVAL_S, "no request makes it be asked more often"
    due = apply_doubt(soon, health.probed_at + 10, INTERVAL_S)
    assert due.next_probe_at == soon.next_probe_at, "nor later"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *((None, None), ("7", 7.0), ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0)),
        *(("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", None), ("-3", None), ("", None)),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, 100.0) == seconds


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Cannot connect to http://host/v1", "Cannot connect to http://host/v1"),
        ("Cannot connect to http://user:secret@host/v1", "Cannot connect to http://host/v1"),
        ("Cannot connect to http://user:p@ss@host/v1", "Cannot connect to http://host/v1"),
        ("http://a:b@one/x and http://c:d@two/y@z", "http://one/x and http://two/y@z"),
        ("the key token-1 was refused by token-1", "the key *** was refused by ***"),
    ],
)
def test_users_passwords_and_tokens_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text, "token-1") == shown
    assert "token-1" in hide_secrets("the key token-1", "")
