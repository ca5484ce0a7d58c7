"""Header lines of our own: who a client is, and what is remembered of it."""

from __future__ import annotations

from gateway.ingress.cors import Cors
from gateway.ingress.response_headers import ResponseHeaders
from gateway.tenancy.api_keys import ANONYMOUS


def test_what_clients_say_of_themselves_is_remembered_in_bounds() -> None:
    lines = ResponseHeaders(Cors([]))
    for number in range(1000):
        agent = b"agent-%d %b" % (number, b"x" * 30_000)
        said = lines.client_headers(b"", [(b"user-agent", agent)], ANONYMOUS, None, b"")
        assert said == b"x-client-id: %b\r\n" % agent[:100]
        assert said == lines.client_headers(b"", [(b"user-agent", agent)], ANONYMOUS, None, b""), "remembered or not"
    assert sum(len(text) + len(line) for text, line in lines._clients.items()) < 100_000
