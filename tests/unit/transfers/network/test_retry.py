"""When a request that failed is made again."""

from __future__ import annotations

import pytest

from transfers.network.retry import RetryPolicy, parse_retry_after

NOW = 1_800_000_000.0
POLICY = RetryPolicy(attempts=4, first_delay_s=1.0, longest_delay_s=3.0, longest_asked_s=100.0)


@pytest.mark.parametrize(
    ("failures", "asked_s", "delay"),
    [
        (1, None, 1.0),
        (2, None, 2.0),
        (3, None, 3.0),
        (4, None, None),
        (1, 0.0, 1.0),
        (1, 50.0, 50.0),
        (1, 100.0, 100.0),
        (1, 100.5, None),
        (4, 1.0, None),
    ],
)
def test_the_delay_doubles_up_to_a_bound_and_is_never_shorter_than_asked(
    failures: int, asked_s: float | None, delay: float | None
) -> None:
    assert POLICY.choose_delay(failures, asked_s) == delay


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        (" 120 ", 120.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("9" * 40, None),
        ("٣", None),
        ("Fri, 15 Jan 2027 08:01:00 GMT", 60.0),
        ("Fri, 15 Jan 2027 08:01:00 -0000", 60.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
    ],
)
def test_a_wish_to_wait_is_read_as_rfc_9110_has_it(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds
