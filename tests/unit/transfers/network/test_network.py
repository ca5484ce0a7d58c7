"""When a request that failed is made again, and what registries say of their tokens."""

from __future__ import annotations

import pytest

from transfers.network import Challenge, RetryPolicy, find_repository, parse_challenge, parse_retry_after, parse_token

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
def test_the_delay_doubles_and_is_as_long_as_asked(failures: int, asked_s: float | None, delay: float | None) -> None:
    assert POLICY.choose_delay(failures, asked_s) == delay


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        (" 120 ", 120.0),
        *((value, None) for value in ("-1", "1.5", "soon", "", "9" * 40, "٣")),
        ("Fri, 15 Jan 2027 08:01:00 GMT", 60.0),
        ("Fri, 15 Jan 2027 08:01:00 -0000", 60.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
        (f"Mon, 01 Jan 2024 00:00:00 +{'9' * 20}", None),
    ],
)
def test_a_wish_to_wait_is_read_as_rfc_9110_has_it(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ('Bearer realm="https://a/t",service="s",scope="x"', Challenge("https://a/t", "s")),
        ('bearer service="s, t", realm="https://a/t?b=c"', Challenge("https://a/t?b=c", "s, t")),
        ("Bearer realm=https://a/t", Challenge("https://a/t", None)),
        *((header, None) for header in ('Bearer realm=""', 'Bearer service="s"', 'Basic realm="x"', "")),
    ],
)
def test_a_challenge_is_read(header: str, challenge: Challenge | None) -> None:
    assert parse_challenge(header) == challenge


def test_a_token_is_asked_for_to_read_one_repository() -> None:
    assert Challenge("r", "s").build_query("a/b") == {"service": "s", "scope": "repository:a/b:pull"}
    assert Challenge("r", None).build_query("a") == {"scope": "repository:a:pull"}


@pytest.mark.parametrize(
    ("path", "repository"),
    [
        ("/v2/library/m/manifests/latest", "library/m"),
        ("/v2/m/blobs/sha256:ab", "m"),
        *((path, None) for path in ("/v2/", "/other/v2/m/blobs/x", "/v2/m/tags/list")),
    ],
)
def test_a_path_of_a_registry_names_its_repository(path: str, repository: str | None) -> None:
    assert find_repository(path) == repository


@pytest.mark.parametrize(
    ("body", "token"),
    [
        (b'{"token": "abc"}', "abc"),
        (b'{"access_token": "abc"}', "abc"),
        (b'{"token": "a\\nb", "access_token": "c"}', "c"),
        *((body, None) for body in (b'{"token": 1}', b'["token"]', b"[" * 100_000, b"")),
    ],
)
def test_a_token_is_read_that_a_header_can_carry(body: bytes, token: str | None) -> None:
    assert parse_token(body) == token
