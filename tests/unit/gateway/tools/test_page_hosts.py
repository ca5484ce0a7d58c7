"""Which URLs the declared hosts of `fetch_url` allow."""

from __future__ import annotations

import pytest

from gateway.tools.builtin.page_hosts import PageHosts

HOSTS = PageHosts(("docs.python.org", "*.example.org", "wiki:8080"))


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [
        ("https", "docs.python.org", 443),
        ("http", "docs.python.org", 80),
        ("https", "docs.python.org.", 443),
        ("https", "a.example.org", 443),
        ("https", "a.b.example.org", 80),
        ("http", "wiki", 8080),
    ],
)
def test_allowed(scheme: str, host: str, port: int) -> None:
    assert HOSTS.find_refusal(scheme, host, port) is None


@pytest.mark.parametrize(
    ("scheme", "host", "port", "reason"),
    [
        ("ftp", "docs.python.org", 21, "ftp: is not a scheme of pages"),
        ("https", "docs.python.org", 8443, "port 8443 is not among those that are allowed"),
        ("https", "a.example.org", 22, "port 22 is not among those that are allowed"),
        ("https", "example.org", 443, "the host is not among those that are allowed"),
        ("https", "notexample.org", 443, "the host is not among those that are allowed"),
        ("https", "a.docs.python.org", 443, "the host is not among those that are allowed"),
        ("https", "wiki", 443, "the host is not among those that are allowed"),
        ("https", "", 443, "the host is not among those that are allowed"),
    ],
)
def test_refused(scheme: str, host: str, port: int, reason: str) -> None:
    assert HOSTS.find_refusal(scheme, host, port) == reason


def test_only_whole_names_may_be_private() -> None:
    assert HOSTS.literal.has("docs.python.org", 443)
    assert HOSTS.literal.has("wiki", 8080)
    assert not HOSTS.literal.has("a.example.org", 443)
