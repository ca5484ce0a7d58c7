"""What registries say of their tokens."""

from __future__ import annotations

import pytest

from transfers.network.registry_token import Challenge, find_repository, parse_challenge, parse_token


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ('Bearer realm="https://a/t",service="s",scope="x"', Challenge("https://a/t", "s")),
        ('bearer service="s, t", realm="https://a/t?b=c"', Challenge("https://a/t?b=c", "s, t")),
        ("Bearer realm=https://a/t", Challenge("https://a/t", None)),
        ('Bearer realm=""', None),
        ('Bearer service="s"', None),
        ('Basic realm="x"', None),
        ("", None),
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
        ("/v2/", None),
        ("/other/v2/m/blobs/x", None),
        ("/v2/m/tags/list", None),
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
        (b'{"token": 1}', None),
        (b'["token"]', None),
        (b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_a_token_is_read_that_a_header_can_carry(body: bytes, token: str | None) -> None:
    assert parse_token(body) == token
