"""Foreign Host and Origin headers, without keys."""

from __future__ import annotations

import pytest

from contract.errors import RoundhouseError
from gateway.ingress.access_rules import _LONGEST_REMEMBERED, _REMEMBERED, Cors, HostCheck, check_host_form, hostname_of


def verdict(rule: HostCheck, host: str | None, origin: str | None = None, cors: Cors | None = None) -> str:
    headers = [(b"accept", b"*/*")]
    headers += [(b"host", host.encode())] if host is not None else []
    headers += [(b"origin", origin.encode())] if origin is not None else []
    try:
        rule.check_request(headers, cors or NO_PAGES)
    except RoundhouseError as error:
        return error.entry.code
    return "accepted"


NO_PAGES = Cors([])
LOOPBACK = HostCheck(["127.0.0.1"], ["llm.example"], is_open=False)
OPEN = HostCheck(["0.0.0.0"], [], is_open=True)


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        *((host, "accepted") for host in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]")),
        *((host, "accepted") for host in ("localhost:", "[::1]:")),
        *((host, "accepted") for host in ("LOCALHOST:1", "llm.example:443")),
        *((host, "forbidden_host") for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example")),
        *((host, "forbidden_host") for host in ("192.168.1.5:8080", "localhost:8080:1", "localhost:x", "[::1", "")),
        *((host, "forbidden_host") for host in ("localhost@evil.example", "[::1]x", None)),
    ],
)
def test_names_of_this_machine_are_accepted_and_foreign_ones_refused(host: str | None, answer: str) -> None:
    assert [verdict(LOOPBACK, host), verdict(LOOPBACK, host)] == [answer, answer]


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        *((host, "accepted") for host in ("192.168.1.5:8080", "[fd00::1]:8080")),
        ("rebound.evil.example", "forbidden_host"),
        # An address may name its interface, some with the percent sign encoded, and no other text behind it: Python
        # takes whatever follows `%` for the name of an interface.
        *((f"[fe80::1%{name}]:80", "accepted") for name in ("eth0", "br-0a1b2c", "2", "25eth0", "eth0.100")),
        *((f"[::1%{text}]", "forbidden_host") for text in ("/v1/admin", "@evil.example", "?", "#", "a b", "é")),
    ],
)
def test_an_open_gateway_is_reached_by_address_and_not_by_foreign_name(host: str, answer: str) -> None:
    assert verdict(OPEN, host) == answer


OWN_PAGES = ("http://localhost:3000", "http://127.0.0.1:8080", "https://llm.example", "HTTP://LOCALHOST")
FOREIGN = ("https://evil.example", "null", "file://", "http://localhost.evil.example", "chrome-extension://localhost")


def test_pages_of_this_machine_may_send_requests_and_foreign_ones_may_not() -> None:
    for origin in OWN_PAGES:
        assert verdict(LOOPBACK, "localhost:8080", origin) == "accepted", origin
    for origin in FOREIGN:
        assert verdict(LOOPBACK, "localhost:8080", origin) == "forbidden_origin", origin
    assert verdict(OPEN, "192.168.1.5:8080", "http://192.168.1.5:8080") == "accepted"
    assert verdict(OPEN, "192.168.1.5:8080", "http://203.0.113.9") == "forbidden_origin"


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        *(("a", "a"), ("a:1", "a"), ("[::1]:1", "::1"), ("[::1]", "::1"), ("[::1", ""), ("[::1]]", "")),
        *(
            ("[::1]1", ""),
            ("a:", "a"),
            ("[::1]:", "::1"),
            (":", ""),
            ("a:x", ""),
            ("::1", ""),
            ("a:1x", ""),
            ("a:²", ""),
            ("a:1²", ""),
        ),
    ],
)
def test_the_hostname_of_an_authority(authority: str, name: str) -> None:
    assert hostname_of(authority) == name


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([(b"host", b"evil.example")], r"The Host header is 'evil\.example'; this gateway"),
        ([], "The Host header is missing, or there are several; this gateway"),
        ([(b"host", b"localhost")] * 2, "The Host header is missing, or there are several; this gateway"),
        ([(b"host", b"localhost"), (b"origin", b"https://evil.example")], r"origin 'https://evil\.example' may not"),
    ],
)
def test_a_refusal_says_what_was_sent(headers: list[tuple[bytes, bytes]], words: str) -> None:
    with pytest.raises(RoundhouseError, match=words):
        LOOPBACK.check_request(headers, NO_PAGES)


def test_names_are_compared_without_case() -> None:
    rule = HostCheck(["10.1.2.3", "LLM.Local"], ["Api.Example"], is_open=False)
    for host in ("llm.local", "LLM.LOCAL:1", "10.1.2.3:80", "api.example", "API.EXAMPLE:8080"):
        assert verdict(rule, host, f"http://{host}") == "accepted"
    assert verdict(OPEN, "[FD00::1]:8080", "http://[fd00::1]:8080") == "accepted"


def test_an_origin_that_cors_names_is_not_foreign_and_no_other_is_let_in() -> None:
    named = Cors(["https://evil.example"])
    assert verdict(LOOPBACK, "localhost", "https://evil.example", named) == "accepted"
    assert verdict(LOOPBACK, "localhost", "https://other.example", named) == "forbidden_origin"
    assert verdict(LOOPBACK, "evil.example", "https://evil.example", named) == "forbidden_host"


def test_what_is_remembered_has_a_bound() -> None:
    rule = HostCheck(["0.0.0.0"], [], is_open=True)
    for digits in (5, 300, 30_000):
        assert verdict(rule, f"10.0.0.1:{'1' * digits}") == "accepted"
    assert rule._accepted == {b"10.0.0.1:11111"}
    for port in range(3 * _REMEMBERED):
        assert verdict(rule, f"10.0.0.1:{port}") == "accepted"
    assert len(rule._accepted) == _REMEMBERED
    names = ["a" * length for length in (_LONGEST_REMEMBERED, _LONGEST_REMEMBERED + 1)]
    rule = HostCheck(["127.0.0.1"], names, is_open=False)
    assert [verdict(rule, name) for name in names] == ["accepted", "accepted"]
    assert rule._accepted == {names[0].encode()}


@pytest.mark.parametrize(
    "host",
    [
        *(b"a", b"A-b_c.example:1", b"a:", b"127.0.0.1:80", b"[::1]", b"[fe80::1%25eth0]:80", b"[fe80::1%eth0]"),
        *(b"a%2Fb", b"~!$&'()*+,;="),
    ],
)
@pytest.mark.parametrize("may_lack_host", [False, True])
def test_a_host_of_any_name_is_well_formed(host: bytes, may_lack_host: bool) -> None:
    check_host_form([(b"accept", b"*/*"), (b"host", host), (b"hosts", b"/")], may_lack_host=may_lack_host)


@pytest.mark.parametrize(
    "host",
    [
        b"", b":80", b"a/b", b"a?b", b"a#b", b"a@b", b"a b", b"a\\b", b"a%2", b"a:b", b"a:1:2", b"a\xe4", b"::1",
        b"[a]", b"[::g]", b"[::1", b"[::1]x", b"[1.2.3.4]", b"[]", b"a\n", b"[::1%]", b"[::1%%]", b"a:\xb2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("may_lack_host", [False, True])
def test_what_names_no_host_is_refused(host: bytes, may_lack_host: bool) -> None:
    with pytest.raises(RoundhouseError, match=r"(?s)The Host header is '.*', which names no host\.") as refusal:
        check_host_form([(b"host", host)], may_lack_host=may_lack_host)
    assert refusal.value.entry.code == "invalid_request"


@pytest.mark.parametrize(
    ("headers", "may_lack_host", "words"),
    [
        ([(b"host", b"a"), (b"host", b"a")], False, r"several Host headers\."),
        ([(b"host", b"a"), (b"host", b"a")], True, r"several Host headers\."),
        ([(b"accept", b"*/*")], False, r"no Host header, and HTTP/1\.1 demands one\."),
    ],
)
def test_several_hosts_or_none_are_refused(headers: list[tuple[bytes, bytes]], may_lack_host: bool, words: str) -> None:
    check_host_form([(b"accept", b"*/*")], may_lack_host=True)
    with pytest.raises(RoundhouseError, match=words) as refusal:
        check_host_form(headers, may_lack_host=may_lack_host)
    assert refusal.value.entry.code == "invalid_request"
