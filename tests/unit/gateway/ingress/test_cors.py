"""The rule of CORS: which origins may read answers, and what an answer says of it."""

from __future__ import annotations

import pytest

from gateway.ingress.cors import Cors
from gateway.server.asgi import Header

CHAT, EVIL = b"https://chat.example", b"https://evil.example"
OFF, NAMED, ALL = Cors([]), Cors(["https://chat.example/", "http://localhost:3000"]), Cors(["*"])
VARY: Header = (b"vary", b"origin")
METHOD: Header = (b"access-control-request-method", b"POST")
USUAL = (
    b"authorization, x-api-key, content-type, accept, last-event-id, x-client-id, x-conversation-id, "
    b"x-progress, x-load-progress, anthropic-version"
)


def asking(origin: bytes | None, *more: Header) -> list[Header]:
    """A request's headers. The origin is neither the first nor the last."""
    return [(b"host", b"localhost"), *([(b"origin", origin)] if origin is not None else []), *more, (b"accept", b"*/*")]


def said(headers: list[Header]) -> dict[bytes, bytes]:
    """No header is sent twice."""
    assert len({name for name, _ in headers}) == len(headers)
    return dict(headers)


@pytest.mark.parametrize(
    ("rule", "is_on", "allowed"),
    [(OFF, False, []), (NAMED, True, [CHAT, CHAT.upper(), b"http://localhost:3000"]), (ALL, True, [CHAT, EVIL])],
)
def test_which_origins_may_read(rule: Cors, is_on: bool, allowed: list[bytes]) -> None:
    assert rule.is_on is is_on
    origins = [CHAT, CHAT.upper(), EVIL, b"http://localhost:3000", b"https://chat.example/"]
    assert [origin for origin in origins if rule.allows_origin(origin)] == (origins if rule is ALL else allowed)


def test_an_answer_names_the_origin_that_may_read_it() -> None:
    headers = said(NAMED.response_headers(asking(CHAT)))
    assert list(headers) == [b"access-control-allow-origin", b"access-control-expose-headers", b"vary"]
    assert (headers[b"access-control-allow-origin"], headers[b"vary"]) == (CHAT, b"origin")
    exposed = headers[b"access-control-expose-headers"].split(b", ")
    assert {b"x-request-id", b"x-client-id", b"retry-after", b"x-ratelimit-reset-tokens"} <= set(exposed)
    assert said(ALL.response_headers(asking(EVIL))) == {
        b"access-control-allow-origin": b"*",
        b"access-control-expose-headers": headers[b"access-control-expose-headers"],
    }


@pytest.mark.parametrize("origin", [EVIL, None, b""])
def test_to_others_an_answer_says_only_that_it_depends_on_the_origin(origin: bytes | None) -> None:
    assert NAMED.response_headers(asking(origin)) == [VARY]
    assert OFF.response_headers(asking(origin)) == []


def test_headers_as_they_go_over_the_wire() -> None:
    assert NAMED.header_lines(asking(EVIL)) == b"vary: origin\r\n"
    assert NAMED.header_lines(asking(CHAT)) == b"".join(
        name + b": " + value + b"\r\n" for name, value in NAMED.response_headers(asking(CHAT))
    )


@pytest.mark.parametrize(("rule", "origin"), [(NAMED, CHAT), (ALL, EVIL)])
def test_a_question_before_the_request_is_answered(rule: Cors, origin: bytes) -> None:
    wanted = (b"access-control-request-headers", b"X-Stainless-Lang, authorization")
    headers = said(rule.answer_preflight(asking(origin, METHOD, wanted)))
    assert {name: headers.pop(name) for name in said(rule.response_headers(asking(origin)))} == said(
        rule.response_headers(asking(origin))
    ), "what every answer says"
    assert headers == {
        b"access-control-allow-methods": b"GET, POST, DELETE",
        b"access-control-allow-headers": wanted[1],
        b"access-control-max-age": b"600",
    }


@pytest.mark.parametrize("wanted", [None, b"", b"x\r\nset-cookie: a", b"\x80", b"a" * 2001, b"a;b"])
def test_a_question_without_decent_names_gets_the_usual_ones(wanted: bytes | None) -> None:
    more = [] if wanted is None else [(b"access-control-request-headers", wanted)]
    assert said(NAMED.answer_preflight(asking(CHAT, METHOD, *more)))[b"access-control-allow-headers"] == USUAL


@pytest.mark.parametrize(
    ("rule", "headers"),
    [
        (OFF, asking(CHAT, METHOD)),
        (NAMED, asking(EVIL, METHOD)),
        (NAMED, asking(None, METHOD)),
        (NAMED, asking(CHAT)),
        (ALL, asking(None, METHOD)),
        (ALL, asking(CHAT)),
    ],
)
def test_what_is_no_question_of_one_that_may_read_is_not_answered(rule: Cors, headers: list[Header]) -> None:
    assert rule.answer_preflight(headers) == []
