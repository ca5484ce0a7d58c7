"""Which addresses may be connected to, however they are written; and the one reader of answers that are held whole."""

from __future__ import annotations

import ast
import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.network.address_rule import AllowedHosts, find_refusal, parse_allowed_hosts
from common.network.answers import DEEPEST_JSON, UnreadableAnswerError, gather_whole, parse_json, read_whole
from tests.support.packages import PACKAGES

REFUSED = """
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1
    192.0.2.1 192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    192.88.99.1
    :: ::1 fe80::1 febf::1 fec0::1 fc00::1 fd12:3456::1 ff02::1 ff0e::1 2001:db8::1 100::1 2001:2::1 2001:10::1 3fff::1
    5f00::1 4000::1 1::1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1 ::10.0.0.1 ::ffff:0:127.0.0.1
    64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 64:ff9b:1::808:808
    2002:7f00:1:: 2002:a00:1::1 2002:a9fe:a9fe::1 2002:c0a8:101::1
    2001:0:7f00:1::1 2001:0:808:808:0:0:80ff:fffe
    2606:4700::5efe:127.0.0.1 2606:4700::200:5efe:10.0.0.1
"""
ALLOWED = """
    1.1.1.1 8.8.8.8 93.184.216.34 172.32.0.1 192.167.255.255 100.128.0.1 198.20.0.1 223.255.255.255
    2606:4700::1111 2001:4860:4860::8888 2a00:1450:4001:81b::200e 64:ff9b::808:808
    ::ffff:8.8.8.8 2606:4700::5efe:8.8.8.8
"""


@pytest.mark.parametrize("text", REFUSED.split())
def test_what_is_not_on_the_public_internet_is_refused(text: str) -> None:
    reason = find_refusal(ipaddress.ip_address(text))
    assert reason is not None
    assert str(ipaddress.ip_address(text)) in reason


@pytest.mark.parametrize("text", ALLOWED.split())
def test_what_is_on_the_public_internet_is_not(text: str) -> None:
    assert find_refusal(ipaddress.ip_address(text)) is None


@pytest.mark.parametrize(
    ("text", "host", "port", "is_allowed"),
    [
        ("hub.example", "hub.example", 443, True),
        ("hub.example", "HUB.example.", 8443, True),
        ("hub.example:8443", "hub.example", 443, False),
        ("hub.example:8443, other", "hub.example", 8443, True),
        ("hub.example", "evil-hub.example", 443, False),
        ("hub.example", "hub.example.evil", 443, False),
        ("[::1]:8080", "::1", 8080, True),
        ("[::1]", "::1", 80, True),
        ("", "hub.example", 443, False),
    ],
)
def test_allowed_hosts_are_those_that_are_named(text: str, host: str, port: int, is_allowed: bool) -> None:
    assert parse_allowed_hosts(text).has(host, port) is is_allowed


@pytest.mark.parametrize(
    "text",
    ["hub.example:0", "hub.example:65536", "hub:x", ":80", "https://hub.example", "::1", "fe80::1", "[::1", "[::1]x"],
)
def test_an_entry_that_is_no_host_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="neither a host nor HOST:PORT"):
        parse_allowed_hosts(text)


def test_nothing_is_allowed_by_itself() -> None:
    assert not AllowedHosts().has("localhost", 80)


ROOT = Path(__file__).parents[4]
CLIENTS = {"aiohttp", "httpx2", "httpx", "requests"}
READS = {"json", "text", "read", "aread", "readany", "readline", "readexactly", "iter_any", "iter_chunked"} | {
    f"{prefix}{name}" for prefix in ("", "a") for name in ("iter_bytes", "iter_text", "iter_lines", "iter_raw")
}
READERS = {"read_whole", "gather_whole"}
READERS_OF_PARTS = {
    ("common/program_client.py", "readany"): "parts of an answer of a program of ours",
    ("transfers/sources/base.py", "iter_raw"): "parts of files, which their readers count",
    ("assistant/tools/builtin/fetch_url.py", "iter_raw"): "cut after `LARGEST_PAGE`, before and after decompressing",
}
"""Files that ask by HTTP, and how they read answers without the reader."""


def find_reads(path: Path) -> Iterator[str]:
    """The methods by which a file reads answers, but for those whose parts go to the reader."""
    tree = ast.parse(path.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    if not imported & CLIENTS:
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    bounded = {id(part) for call in calls if _name(call.func) in READERS for part in call.args}
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in READS and id(call) not in bounded:
            yield call.func.attr


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


def test_nobody_reads_an_answer_in_another_way() -> None:
    """The command line is left out: it asks the operator's own Roundhouse."""
    found = {
        (str(path.relative_to(ROOT)), name)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "cli" not in path.parts
        for name in find_reads(path)
    }
    assert found == set(READERS_OF_PARTS)


def test_a_body_is_read_up_to_its_bound() -> None:
    assert read_whole([b"ab", b"", b"c"], most_bytes=3) == b"abc"
    with pytest.raises(UnreadableAnswerError, match="larger than 2 bytes"):
        read_whole([b"ab", b"", b"c"], most_bytes=2)

    async def parts() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    assert asyncio.run(gather_whole(parts(), most_bytes=3)) == b"abc"
    with pytest.raises(UnreadableAnswerError, match="larger than 2 bytes"):
        asyncio.run(gather_whole(parts(), most_bytes=2))


def test_a_body_that_goes_on_for_too_long_ends() -> None:
    now = iter(range(100))
    with pytest.raises(TimeoutError, match="not complete after 5 s"):
        read_whole((b"x" for _ in range(100)), within_s=5, clock=lambda: next(now))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"NaN",
        b'{"a": -Infinity}',
        b"1" * 5000,
        b"[" * 100_000,
        b'{"a":' * 5000,
        b"\xef\xbb\xbf{}{}",
    ],
)
def test_what_is_no_json_is_said(body: bytes) -> None:
    with pytest.raises(UnreadableAnswerError, match="it is no JSON"):
        parse_json(body)


def test_depth_has_a_bound() -> None:
    for begin, end in (("[", "]"), ('{"a":', "}")):
        deepest = begin * DEEPEST_JSON + "1" + end * DEEPEST_JSON
        assert parse_json(deepest.encode()) == json.loads(deepest)
        with pytest.raises(UnreadableAnswerError, match="nested deeper than 64 levels"):
            parse_json((begin + deepest + end).encode())
