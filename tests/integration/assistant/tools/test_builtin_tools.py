"""The built-in tools that reach out: what those of files do in their folder, and which hosts `fetch_url` connects
to; nothing leads out of either."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import socket
import ssl
import stat
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assistant.tools.builtin import builtin_tools
from assistant.tools.builtin.builtin_tools import LARGEST_WRITE, FolderTool
from assistant.tools.builtin.fetch_url import LARGEST_PAGE, FetchUrl, PageNetwork
from assistant.tools.files.job_runner import JobRunner
from assistant.tools.spec import ToolCall, ToolResult
from contract.tools import ToolRoute
from gateway.tenancy.api_keys import ANONYMOUS
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.networks import PUBLIC, Resolver, connected, make_certificate
from tests.support.tool_calls import call_code, call_error, call_text
from tests.support.transfers_harness import FileServer, file_server, trust_nobody
from tests.support.wait import until

__all__ = ["connected"]


TOOLS = {spec.name: spec for spec in vars(builtin_tools).values() if hasattr(spec, "display_name")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A declared folder, beside which a secret lies."""
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("the secret")
    made = tmp_path / "folder"
    (made / "notes").mkdir(parents=True)
    (made / "notes" / "coal.md").write_text("Coal is in the shed.\nTea is in the kitchen.\nMore coal.\n")
    (made / "to-file").symlink_to(tmp_path / "secret")
    (made / "to-folder").symlink_to(tmp_path / "outside")
    (made / "to-itself").symlink_to("to-itself")
    (made / "notes" / "up").symlink_to("../..")
    os.mkfifo(made / "pipe")
    (made / "binary").write_bytes(b"\x7fELF\0\0\0 the secret")
    return made


async def run(tool: str, folder: Path, timeout_s: float = 30.0, **arguments: Any) -> ToolResult:
    call = ToolCall(ANONYMOUS, "anonymous", arguments, "req-1", timeout_s, 64 * 1024)
    return await FolderTool(TOOLS[tool], str(folder), JobRunner()).run(call)


async def text(tool: str, folder: Path, **arguments: Any) -> str:
    result = await run(tool, folder, **arguments)
    assert not result.is_error, result.text
    return result.text


async def error(tool: str, folder: Path, **arguments: Any) -> str:
    result = await run(tool, folder, **arguments)
    assert result.is_error, result.text
    return result.text


async def test_a_file_is_read_or_some_of_its_lines(folder: Path) -> None:
    path = "notes/coal.md"
    assert await text("read_file", folder, path=path) == (folder / path).read_text()
    assert await text("read_file", folder, path=f"./notes//{path[6:]}", first_line=2) == (
        "Tea is in the kitchen.\nMore coal.\n"
    )
    assert await text("read_file", folder, path=path, first_line=2, last_line=2) == "Tea is in the kitchen.\n"
    assert await error("read_file", folder, path=path, first_line=9) == "notes/coal.md has 3 lines."
    assert await text("read_file", folder, path=path, first_line=3, last_line=1) == ""


async def test_a_folder_is_listed(folder: Path) -> None:
    assert (await text("list_files", folder)).splitlines() == [
        "binary (18 bytes)",
        "notes/",
        "pipe (no regular file)",
        "to-file (a link, which is not followed)",
        "to-folder (a link, which is not followed)",
        "to-itself (a link, which is not followed)",
    ]
    assert "coal.md (55 bytes)" in await text("list_files", folder, path="notes")
    (folder / "empty").mkdir()
    assert await text("list_files", folder, path="empty/") == "The folder is empty."
    (folder / "empty" / "a\nb").touch()
    assert await text("list_files", folder, path="empty") == "a\N{REPLACEMENT CHARACTER}b (0 bytes)"


async def test_a_large_folder_is_listed_in_part(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(2100):
        (folder / "many" / f"{number:05}").touch()
    lines = (await text("list_files", folder, path="many")).splitlines()
    assert (len(lines), lines[-1]) == (2001, "[These are 2000 of 2100 entries.]")


async def test_files_of_a_folder_are_searched_for_a_text(folder: Path) -> None:
    (folder / "notes" / "deep").mkdir()
    (folder / "notes" / "deep" / "more.txt").write_text("No COAL here.\n")
    assert await text("search_files", folder, text="oal") == (
        "notes/coal.md:1: Coal is in the shed.\nnotes/coal.md:3: More coal."
    )
    assert await text("search_files", folder, text="coal", ignore_case=True, files="*.txt") == (
        "notes/deep/more.txt:1: No COAL here."
    )
    assert await text("search_files", folder, text=r"^Tea\b.*", regex=True, path="notes/coal.md") == (
        "notes/coal.md:2: Tea is in the kitchen."
    )
    assert await text("search_files", folder, text=".*coal", path="notes") == "No match in 2 files."
    assert "no regular expression" in await error("search_files", folder, text="(", regex=True)


async def test_a_search_has_bounds(folder: Path) -> None:
    (folder / "many").write_text("coal\n" * 1000)
    lines = (await text("search_files", folder, text="coal")).splitlines()
    assert (len(lines), lines[-1]) == (501, "[The search ended early: there are 500 matches.]")


async def test_a_search_does_not_follow_links(folder: Path) -> None:
    """Nor does it open what is no regular file, or show what is no text."""
    assert await text("search_files", folder, text="the secret") == "No match in 2 files."


async def test_a_file_is_written_whole(folder: Path) -> None:
    assert await text("write_file", folder, path="new/deep/a.txt", content="Grüße") == (
        "new/deep/a.txt was written: 7 bytes."
    )
    written = folder / "new" / "deep" / "a.txt"
    assert written.read_text() == "Grüße"
    assert await error("write_file", folder, path="new/deep/a.txt", content="x") == (
        "new/deep/a.txt exists. Set `replace` to write it anew."
    )
    assert written.read_text() == "Grüße"
    written.chmod(0o640)
    assert await text("write_file", folder, path="new/deep/a.txt", content="", replace=True) == (
        "new/deep/a.txt was replaced: 0 bytes."
    )
    assert (written.read_text(), stat.S_IMODE(written.stat().st_mode)) == ("", 0o640)
    assert [each.name for each in written.parent.iterdir()] == ["a.txt"], "nothing else stays"


async def test_the_largest_file_is_written_and_no_larger_one(folder: Path) -> None:
    await text("write_file", folder, path="large", content="x" * LARGEST_WRITE)
    assert (folder / "large").stat().st_size == LARGEST_WRITE
    assert "are the most" in await error("write_file", folder, path="larger", content="ä" * LARGEST_WRITE)
    assert not (folder / "larger").exists()


OUTSIDE = (
    *("../secret", "notes/../../secret", "..", "/etc/passwd", "//etc/passwd", "to-file", "to-folder/secret"),
    *("notes/up/secret", "to-itself", "to-itself/x", "notes/coal.md/x", "a\0b", "x" * 300, "x/" * 40 + "x"),
    *("~/.ssh/id_rsa", "%2e%2e/secret", "..%2fsecret", "notes/..\\..\\secret", "file:///etc/passwd"),
)


@pytest.mark.parametrize("path", OUTSIDE)
async def test_no_path_leads_out_of_the_folder(folder: Path, path: str) -> None:
    before = sorted(each.name for each in folder.parent.rglob("*"))
    assert "the secret" not in await error("read_file", folder, path=path)
    await error("list_files", folder, path=path)
    await error("search_files", folder, path=path, text="secret")
    if path in OUTSIDE[:14]:
        await error("write_file", folder, path=path, content="x", replace=True)
        assert sorted(each.name for each in folder.parent.rglob("*")) == before
    assert (folder.parent / "secret").read_text() == "the secret"
    assert (folder.parent / "outside" / "secret").read_text() == "the secret"


@pytest.mark.parametrize("path", ["pipe", "notes", ".", "", "socket", "null"])
async def test_only_regular_files_are_opened(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe would wait for a writer, and a device may do something."""
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(folder)  # a socket's path is short
    listener.bind("socket")
    (folder / "null").symlink_to("/dev/null")
    await error("read_file", folder, path=path)
    await error("write_file", folder, path=path, content="x", replace=True)
    listener.close()
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)


async def test_a_binary_file_is_said_to_be_one(folder: Path) -> None:
    assert await error("read_file", folder, path="binary") == "binary is a binary file, and no text."
    assert await error("read_file", folder, path="binary", first_line=1, last_line=1) == (
        "binary is a binary file, and no text."
    )


async def test_a_huge_file_is_read_in_part(folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.write(b"line\n" * 10)
        file.truncate(100 * 1024 * 1024 * 1024)  # a hole, which takes no space
    assert "binary" in await error("read_file", folder, path="huge")
    with (folder / "long").open("wb") as file:
        file.write(b"x" * (17 * 1024 * 1024))
    assert (await run("read_file", folder, path="long")).text.count("x") == 64 * 1024 + 1
    assert "1 lines in its first" in await error("read_file", folder, path="long", first_line=2)


async def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    assert await error("list_files", tmp_path / "nowhere") == (
        "The folder of this tool cannot be opened: No such file or directory."
    )


async def test_a_folder_that_the_system_does_not_let_write_is_said() -> None:
    """Not root either may make a file there."""
    assert "x cannot be written: " in await error("write_file", Path("/proc"), path="x", content="x")


async def test_through_a_gateway_writing_needs_its_own_tool(folder: Path, gateway: GatewayHarness) -> None:
    await gateway.publish(tools=(ToolRoute(name="read_file", folder=str(folder)), ToolRoute(name="write_file")))
    assert await call_text(gateway, "read_file", path="notes/coal.md", last_line=1) == "Coal is in the shed.\n"
    assert await call_code(gateway, "write_file", path="x", content="x") == (404, "tool_not_found")
    assert await call_code(gateway, "read_file", path=1) == (400, "tool_arguments_invalid")


REFUSED = "must not be connected to"


@dataclass
class EndlessServer:
    """Where it listens, and its open connections."""

    host: str = ""
    connections: set[asyncio.Task[Any]] = field(default_factory=set)


@contextlib.asynccontextmanager
async def endless_server(
    part: bytes, pause_s: float = 0.0, certificate: tuple[Path, Path] | None = None
) -> AsyncIterator[EndlessServer]:
    """A server whose answer never ends: this part again and again. Empty: it never begins."""
    server = EndlessServer()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        server.connections.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            if part:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
            while not reader.at_eof():
                writer.write(part)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await reader.read(1)
        except (OSError, EOFError):
            pass
        finally:
            server.connections.discard(task)
            writer.close()

    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    server.host = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in list(server.connections):
            task.cancel()


@pytest.fixture
def site() -> Iterator[FileServer]:
    with file_server() as found:
        yield found


async def fetch(url: str, *hosts: str, resolver: Resolver | None = None) -> ToolResult:
    """The answer to a call, where these hosts are declared."""
    tool = FetchUrl(hosts, PageNetwork(resolver, trust_nobody()), JobRunner())
    return await tool.run(ToolCall(ANONYMOUS, "anonymous", {"url": url}, "req-1", 30.0, 64 * 1024))


async def refusal(url: str, *hosts: str, resolver: Resolver | None = None) -> str:
    result = await fetch(url, *hosts, resolver=resolver)
    assert result.is_error, result.text
    return result.text


def host_of(site: FileServer) -> str:
    return f"127.0.0.1:{site.port}"


async def test_a_page_is_text(site: FileServer) -> None:
    page = (
        b"<html><head><title>Coal</title><script>alert(1)</script><style>p{}</style></head><body><nav>Menu</nav>"
        b"<h2>Where</h2><p>In   the\n shed &amp; <b>cellar</b>.</p><ul><li>one<li>two</ul>"
        b'<a href="https://example.org/x">more</a><table><tr><td>1<td>2</table></body></html>'
    )
    site.answers["/coal"] = lambda _: (200, {"content-type": "text/html; charset=utf-8"}, page)
    result = await fetch(f"{site.url}/coal#part", host_of(site))
    assert result.text == (
        f"{site.url}/coal\n\nCoal\n\nMenu\n\n## Where\n\nIn the\nshed & cellar.\n\n- one\n- two\n\n"
        "[more](https://example.org/x)\n\n| 1 | 2"
    )
    [(path, headers)] = site.requests
    assert path == "/coal"
    assert headers["accept-encoding"] == "identity"
    assert "authorization" not in headers
    assert "cookie" not in headers


@pytest.mark.parametrize(
    ("media_type", "body", "text"),
    [
        ("text/plain", "Grüße".encode(), "Grüße"),
        ("text/plain; charset=iso-8859-1", "Grüße".encode("latin-1"), "Grüße"),
        ("text/plain; Charset=ISO-8859-1", b"\xfc", "ü"),
        ("text/plain; charset=zlib", b"plain", "plain"),
        ("text/plain; charset=idna", b"abc", "abc"),
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("application/vnd.api+json", b"{}", "{}"),
        ("text/html", b'<meta charset="cp1252"><p>\x80', "€"),
        ("text/html", b"<p>" * 100_000 + b"deep", "deep"),
        ("text/html", b"<!-- never ends <p>x", None),
        ("", b"plain", "plain"),
    ],
)
async def test_fetched_texts_are_decoded_by_their_charset(
    site: FileServer, media_type: str, body: bytes, text: str | None
) -> None:
    site.answers["/"] = lambda _: (200, {"content-type": media_type}, body)
    result = await fetch(f"{site.url}/", host_of(site))
    assert not result.is_error
    if text is not None:
        assert result.text == f"{site.url}/\n\n{text}"


@pytest.mark.parametrize(
    ("status", "headers", "body", "reason"),
    [
        (404, {}, b"", "The server answers 404 Not Found."),
        (500, {}, b"", "The server answers 500"),
        (200, {"content-type": "image/png"}, b"\x89PNG", "is no text, but image/png."),
        (200, {"content-type": "application/pdf"}, b"%PDF", "is no text, but application/pdf."),
        (200, {"content-type": "text/plain"}, b"a\0b", "is no text"),
        (200, {"content-encoding": "br"}, b"x", "compressed as 'br'"),
        (200, {"content-encoding": "gzip"}, b"no gzip", "cannot be read"),
        (200, {"content-length": "1000"}, b"short", "cannot be read"),
    ],
)
async def test_an_answer_that_is_no_page_is_told(
    site: FileServer, status: int, headers: dict[str, str], body: bytes, reason: str
) -> None:
    site.answers["/"] = lambda _: (status, headers, body)
    if "content-length" in headers:
        site.answers["/"] = lambda _: (status, headers | {"connection": "close"}, body)
    assert reason in await refusal(f"{site.url}/", host_of(site))


@pytest.mark.parametrize(
    "url",
    [
        *("https://example.com/", "https://example.org.evil.net/", "https://evil.net/?example.org"),
        *("https://evil.net#example.org", "https://notexample.org/", "https://example.org@evil.net/"),
        *("https://example.org:8443/", "https://example.org:22/", "http://127.0.0.1/", "http://127.1/"),
        *("http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://①②⑦.⓪.⓪.①/"),
        *("http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[fe80::1%25eth0]/"),
        *("http://localhost/", "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/"),
        *("ftp://example.org/", "file:///etc/passwd", "gopher://example.org/", "javascript:alert(1)"),
        *("https://", "http:///etc/passwd", "example.org/page", "https://user:password@example.org/"),
        *("https://exa mple.org/", "https://example.org\\@evil.net/", "https://example.org\r\nhost: evil.net/"),
    ],
)
async def test_other_hosts_are_never_asked(url: str, connected: list[str]) -> None:
    resolver = Resolver([PUBLIC])
    await refusal(url, "example.org", "*.example.org", resolver=resolver)
    assert connected == []
    assert resolver.queries == []


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.org/", "example.org"),
        ("http://example.org/", "example.org"),
        ("https://EXAMPLE.org./", "example.org"),
        ("https://a.b.example.org/", "*.example.org"),
        ("https://wiki:8080/", "wiki:8080"),
    ],
)
async def test_declared_hosts_are_asked(url: str, host: str, connected: list[str]) -> None:
    await refusal(url, host, resolver=Resolver([PUBLIC]))
    assert connected == [PUBLIC]


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "192.168.1.1", "172.17.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("::1", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "::", "224.0.0.1"),
    ],
)
async def test_a_pattern_reaches_the_public_internet_alone(address: str, connected: list[str]) -> None:
    """Whoever owns a name below the pattern may point it anywhere."""
    assert REFUSED in await refusal("https://a.example.org/", "*.example.org", resolver=Resolver([address]))
    mixed = await refusal("https://a.example.org/", "*.example.org", resolver=Resolver([PUBLIC, address]))
    assert REFUSED in mixed
    assert connected == []


async def test_a_host_that_is_named_in_full_may_be_private(connected: list[str]) -> None:
    await refusal("https://wiki.internal/", "wiki.internal", resolver=Resolver(["10.1.2.3"]))
    assert connected == ["10.1.2.3"]


async def test_the_address_that_was_checked_is_connected_to(connected: list[str]) -> None:
    """The name server answers something else when it is asked again."""
    resolver = Resolver([PUBLIC], ["127.0.0.1"])
    await refusal("https://a.example.org/", "*.example.org", resolver=resolver)
    assert connected == [PUBLIC]
    assert resolver.queries == ["a.example.org"]


@pytest.mark.parametrize(
    "target",
    [
        *("http://169.254.169.254/latest/meta-data/", "http://localhost:{port}/secret"),
        *("http://127.0.0.2:{port}/secret", "http://[::1]:{port}/secret", "http://2130706433:{port}/secret"),
        *("//localhost:{port}/secret", "http://127.0.0.1:{other}/secret", "http://127.0.0.1/secret"),
        *("file:///etc/passwd", "http://user:password@127.0.0.1:{port}/secret", "http://:::/"),
    ],
)
async def test_redirects_are_checked_as_the_first_address_is(site: FileServer, target: str) -> None:
    with file_server() as other:
        location = target.format(port=site.port, other=other.port)
        site.answers["/"] = lambda _: (302, {"location": location}, b"")
        site.files["/secret"] = other.files["/secret"] = b"secret"
        assert "secret" not in (await refusal(f"{site.url}/", host_of(site))).replace("/secret", "")
        assert [path for path, _ in site.requests] == ["/"]
        assert other.requests == []


async def test_redirects_within_the_declared_hosts_are_followed(site: FileServer) -> None:
    with file_server() as other:
        site.answers["/"] = lambda _: (302, {"location": "/next", "set-cookie": "a=b"}, b"")
        site.answers["/next"] = lambda _: (307, {"location": f"{other.url}/last"}, b"")
        other.answers["/last"] = lambda _: (200, {"content-type": "text/plain"}, b"There.")
        result = await fetch(f"{site.url}/", host_of(site), host_of(other))
        assert result.text == f"{other.url}/last\n\nThere."
        assert all("cookie" not in headers for _, headers in [*site.requests, *other.requests])


async def test_redirects_that_never_end_are_ended(site: FileServer) -> None:
    site.answers["/"] = lambda _: (302, {"location": "/"}, b"")
    assert await refusal(f"{site.url}/", host_of(site)) == "There are more than 5 redirects."
    assert len(site.requests) == 6


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_a_zip_bomb_costs_no_more_than_another_page(site: FileServer, compress: Callable[[bytes], bytes]) -> None:
    encoding = "gzip" if compress is gzip.compress else "deflate"
    bomb = compress(bytes(100 * 1024 * 1024).replace(b"\0", b"x"))
    assert len(bomb) < 1024 * 1024
    site.answers["/"] = lambda _: (200, {"content-type": "text/plain", "content-encoding": encoding}, bomb)
    result = await fetch(f"{site.url}/", host_of(site))
    head, _, text = result.text.partition("\n\n")
    assert head == f"{site.url}/"
    assert text == "x" * LARGEST_PAGE + "\n[The page is longer, and only its beginning was read.]"


async def test_a_page_that_never_ends_is_cut() -> None:
    async with endless_server(b"x" * 65536) as server:
        result = await fetch(f"http://{server.host}/", server.host)
    assert result.text.endswith("x\n[The page is longer, and only its beginning was read.]")


async def test_a_server_that_never_answers_is_given_up() -> None:
    """Also one that sends a byte from time to time, so that no read takes long."""
    for part in (b"", b"x"):
        async with endless_server(part, pause_s=0.05) as server, gateway_harness() as gateway:
            tool = ToolRoute(name="fetch_url", hosts=(server.host,), timeout_s=1.0)
            await gateway.publish(tools=(tool,))
            assert await call_code(gateway, "fetch_url", url=f"http://{server.host}/") == (504, "tool_timeout")
            await until("the connection is closed", lambda: not server.connections)


async def test_a_call_that_ends_closes_its_connection() -> None:
    async with endless_server(b"", pause_s=0.05) as server:
        task = asyncio.create_task(fetch(f"http://{server.host}/", server.host))
        await until("it is connected", lambda: bool(server.connections))
        task.cancel()
        await until("the connection is closed", lambda: not server.connections)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_through_a_gateway_declared_hosts_alone_are_fetched(site: FileServer, gateway: GatewayHarness) -> None:
    site.answers["/"] = lambda _: (200, {"content-type": "text/html"}, b"<p>Coal")
    await gateway.publish(tools=(ToolRoute(name="fetch_url", hosts=(host_of(site),)),))
    assert await call_text(gateway, "fetch_url", url=f"{site.url}/") == f"{site.url}/\n\nCoal"
    assert REFUSED in await call_error(gateway, "fetch_url", url="http://127.0.0.1:9/")
    await gateway.publish(tools=(ToolRoute(name="fetch_url", hosts=("a:99999",)),))
    assert await call_code(gateway, "fetch_url", url=f"{site.url}/") == (403, "tools_disabled")


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    async with endless_server(b"x" * 65536, certificate=make_certificate(tmp_path)) as server:
        assert "no encrypted connection" in await refusal(f"https://{server.host}/", server.host)
