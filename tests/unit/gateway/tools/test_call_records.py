"""What the history is told of a call's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.tools.call_records import redact_arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "{}"),
        ({"path": "a.md", "n": 1, "x": None}, '{"path": "a.md", "n": 1, "x": null}'),
        ({"text": "Grüße"}, '{"text": "Grüße"}'),
        ({"password": "hunter2"}, '{"password": "***"}'),
        (
            {"api_key": 1, "apiKey": {"x": 1}, "Authorization": "x"},
            '{"api_key": "***", "apiKey": "***", "Authorization": "***"}',
        ),
        ({"a": {"client_secret": ["x"]}}, '{"a": {"client_secret": "***"}}'),
        ({"cmd": "curl -H 'Authorization: Bearer abcdefghijkl'"}, '{"cmd": "curl -H \'Authorization: ***\'"}'),
        ({"url": "https://bob:hunter2@example.org/"}, '{"url": "https://***@example.org/"}'),
        ({"url": "https://example.org/?token=abcdef&x=1"}, '{"url": "https://example.org/?***&x=1"}'),
        ({"text": "sk-abcdefghijklmnopqrst"}, '{"text": "***"}'),
        ({"text": "a ghp_abcdefghijklmnopqrst b"}, '{"text": "a *** b"}'),
        ({"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}, '{"a": {"b": {"c": {"d": {"e": "***"}}}}}'),
        ({"a": "x\ny\x1b[31m"}, '{"a": "x\\ny\\u001b[31m"}'),
    ],
)
def test_secrets_are_masked(arguments: dict[str, Any], text: str) -> None:
    assert redact_arguments(arguments) == text


def test_what_is_long_is_cut() -> None:
    text = redact_arguments({"content": "x" * 10_000_000, "more": list(range(100_000))})
    assert text == '{"content": "' + "x" * (4096 - len('{"content": "' + "...")) + "..."
    assert redact_arguments({"more": list(range(100_000))}) == '{"more": [' + ", ".join(map(str, range(200))) + "]}"


def test_what_the_controller_masks_is_not_cut() -> None:
    secret = "of the server alone, which this gateway does not know"
    assert secret in redact_arguments({"x": "y" * 180 + secret})


def test_a_secret_at_the_cut_is_masked_whole() -> None:
    for length in range(4040, 4096):
        text = redact_arguments({"x": "y" * length + " sk-abcdefghijklmnopqrstuvwxyz"})
        assert "sk-abc" not in text
        assert text.endswith(('***"}', "..."))
