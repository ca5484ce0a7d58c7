"""The page at `/`, files below `/page/`: open to everybody, before the first table too, with the Host checked."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli.up.run import FirstModelWatcher
from cli.up.supervisor import Announcer
from gateway.page.page_files import INDEX, security_headers
from tests.fakes.fake_control_api import FakeControlApi, model, status
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness, until
from tests.support.queueing import key
from tests.support.raw_http import raw

PAGE = "<!doctype html><title>Roundhouse</title>" + " " * 600
SCRIPT = "console.log('hello');\n" * 100
FILES = ("assets/index-a1.js", "diagram.html", "preview.html", "icon.svg")
ALLOW = "access-control-allow-origin"
SCRIPT_PATH = "/page/assets/index-a1.js"
RAW = {"accept-encoding": ""}


def build(folder: Path, page: str = PAGE, script: str = "index-a1.js") -> Path:
    """Put what a build makes into the folder, the index last."""
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    (folder / "assets" / script).write_text(SCRIPT)
    (folder / "icon.svg").write_text("<svg/>")
    for name in ("diagram.html", "preview.html"):
        (folder / name).write_text(f"<!doctype html><title>{name}</title>")
    (folder / "new").write_text(page)
    (folder / "new").rename(folder / INDEX)
    return folder


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A built page, and files in it and beside it that nobody may read."""
    (tmp_path / "secret").write_text("secret")
    folder = build(tmp_path / "built")
    (folder / ".sources").write_text("secret")
    return folder


@pytest.fixture
async def gateway(built: Path) -> AsyncIterator[GatewayHarness]:
    async with gateway_harness(page_folder=built) as gateway:
        yield gateway


@pytest.mark.parametrize("keys", [(), (key("alice"),)], ids=["open", "keys"])
async def test_page_and_files_need_no_key_and_say_how_long_they_may_be_kept(built: Path, keys: tuple[Any, ...]) -> None:
    async with gateway_harness(page_folder=built, with_table=False) as gateway:
        for has_table in (False, True):
            if has_table:
                await gateway.publish(route("m"), keys=keys)
            page, script = await gateway.get("/"), await gateway.get(SCRIPT_PATH)
            assert (page.status, page.text, page.headers["content-type"]) == (200, PAGE, "text/html; charset=utf-8")
            assert (script.status, script.text) == (200, SCRIPT)
            assert script.headers["content-type"] == "text/javascript; charset=utf-8"
            kept = [each.headers["cache-control"] for each in (page, await gateway.get("/page/icon.svg"), script)]
            assert kept == ["no-cache", "no-cache", "public, max-age=31536000, immutable"]
            for path in FILES:
                assert (await gateway.get(f"/page/{path}")).status == 200, path
            foreign = await gateway.get("/", headers={"host": "evil.example"})
            assert foreign.status == (200 if has_table and keys else 403)


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
async def test_each_document_has_exactly_its_headers_also_where_it_is_not_sent(
    gateway: GatewayHarness, path: str
) -> None:
    about = ["content-security-policy", "x-content-type-options", "referrer-policy", "permissions-policy"]
    about += ["cross-origin-opener-policy", "x-frame-options", ALLOW]
    headers = security_headers(path.removeprefix("/page/").lstrip("/") or INDEX)
    wanted = {name: [value] for name, value in headers.items()}
    page, head = [await gateway.request(method, path, headers=RAW) for method in ("GET", "HEAD")]
    for reply in (page, head):
        assert {each: reply.headers.getall(each) for each in about if each in reply.headers} == wanted
        assert "set-cookie" not in reply.headers
    varying = ("date", "x-request-id")
    same = [{k.lower(): v for k, v in each.headers.items() if k.lower() not in varying} for each in (page, head)]
    assert same[0] == same[1]
    assert (head.status, head.content, int(head.headers["content-length"])) == (200, b"", len(page.content))
    tag = page.headers["etag"]
    for known, answer in ((tag, 304), (f'"other", {tag}', 304), ('"other"', 200)):
        again = await gateway.get(path, headers={**RAW, "if-none-match": known})
        assert (again.status, again.headers["etag"], bool(again.content)) == (answer, tag, answer == 200)
        assert again.headers.getall("content-security-policy") == wanted["content-security-policy"]


async def test_the_host_is_checked_as_for_the_api(gateway: GatewayHarness) -> None:
    for path in ("/", SCRIPT_PATH, "/page/nothing"):
        for sent in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            reply = await gateway.get(path, headers=sent)
            assert (reply.status, PAGE[:15] in reply.text) == (403, False), (path, sent)
    reply = await gateway.get(SCRIPT_PATH, headers={"origin": "null"})
    assert (reply.status, reply.headers[ALLOW]) == (200, "*"), "frames have no origin, and need their scripts"
    assert (await gateway.get("/v1/models", headers={"origin": "null"})).status == 403
    assert (await gateway.get("/", headers={"host": "localhost"})).status == 200
    await gateway.publish(route("m"), keys=(key("alice"),))
    assert (await gateway.get("/", headers={"host": "chat.example"})).status == 200, "with keys a name says nothing"
    async with raw(gateway) as client:
        client.write(b"GET / HTTP/1.1\r\nhost: user@chat.example\r\n\r\n")
        assert (await client.answer()).status == 400


@pytest.mark.parametrize(
    ("accepted", "is_gzip"),
    [("gzip, deflate, br", True), ("br;q=1, gzip;q=0.5", True), ("GZIP", True), ("br", False), ("gzip;q=0", False)],
)
async def test_a_client_that_takes_gzip_gets_it(gateway: GatewayHarness, accepted: str, is_gzip: bool) -> None:
    async with raw(gateway) as client:
        asked = f"GET /page/assets/index-a1.js HTTP/1.1\r\nhost: localhost\r\naccept-encoding: {accepted}\r\n\r\n"
        client.write(asked.encode())
        response = await client.answer()
    assert response.all("vary") == ["accept-encoding"]
    assert response.all("content-encoding") == (["gzip"] if is_gzip else [])
    assert (gzip.decompress(response.body) if is_gzip else response.body) == SCRIPT.encode()


@pytest.mark.parametrize(
    "path",
    [
        "/page/nothing.js",
        "/page/",
        "/page/index.html",
        "/page/../secret",
        "/page/%2e%2e/secret",
        "/page/..%2fsecret",
        "/page/assets/%2e%2e/%2e%2e/secret",
        "/page/assets/../index.html",
        "/page//etc/passwd",
        "/page/%2Fetc%2Fpasswd",
        "/page/assets",
        "/page/icon.svg%00",
        "/page/.sources",
    ],
)
async def test_what_is_no_file_of_the_page_is_an_unknown_route(gateway: GatewayHarness, path: str) -> None:
    async with raw(gateway) as client:
        client.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        response = await client.answer()
        assert (response.status, response.error["code"]) == (404, "unknown_route")


async def test_a_page_that_is_built_later_is_served_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    async with gateway_harness(page_folder=folder) as gateway:
        reply = await gateway.get("/")
        assert (reply.status, reply.headers["cache-control"], "make page" in reply.text) == (200, "no-store", True)
        assert reply.headers["content-security-policy"] == security_headers(INDEX)["content-security-policy"]
        assert (await gateway.get(SCRIPT_PATH)).status == 404
        build(folder)
        assert (await gateway.get("/")).text == PAGE
        build(folder, page="<!doctype html> newer", script="index-b2.js")
        os.utime(folder / INDEX, ns=(1, 1))  # a file system may tell two builds of one moment apart or not
        assert (await gateway.get("/")).text == "<!doctype html> newer"
        assert (await gateway.get("/page/assets/index-b2.js")).status == 200


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("built", "The page is at {url}/\n"),
        ("not built", "roundhouse: the page is not built: `make page` builds it, and {url}/ has it then\n"),
        ("off", ""),
    ],
)
async def test_up_says_where_the_page_is(
    page: str, said: str, built: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = built if page == "built" else tmp_path / "nothing"
    async with (
        gateway_harness(page=page != "off", page_folder=folder) as gateway,
        FakeControlApi(tmp_path / "c.sock") as controller,
        asyncio.timeout(20),
    ):
        await gateway.publish(route("chat", ["http://127.0.0.1:9"], apis=("/v1/chat/completions",)))
        await FirstModelWatcher(controller.url, gateway.url, tmp_path, Announcer(as_json=False)).run()
        out, err = capfd.readouterr()
        assert "chat is ready" in out
        lines = [line for line in (out + err).splitlines(keepends=True) if "the page" in line.lower()]
        assert "".join(lines) == said.format(url=gateway.url)


async def test_up_says_once_which_models_cannot_be_loaded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with gateway_harness() as gateway, FakeControlApi(tmp_path / "c.sock") as controller, asyncio.timeout(20):
        await gateway.publish(route("chat", ["http://127.0.0.1:9"], apis=("/v1/chat/completions",)))
        wide = model("wide", "unloaded", blocked=["it needs 9 GiB\nof 8"])
        controller.status = status(wide, model("bad", "failed", last_error="file missing"))
        watching = asyncio.create_task(
            FirstModelWatcher(controller.url, gateway.url, tmp_path, Announcer(as_json=False)).run()
        )
        await until(lambda: controller.requests.count(("status", None)) >= 3, "it has looked three times")
        controller.status = status(wide, model("chat"))
        await watching
    lines = [line for line in capfd.readouterr().err.splitlines() if "wide" in line or "bad" in line]
    assert lines == ["roundhouse: wide is not loaded: it needs 9 GiB", "roundhouse: bad failed: file missing"]


async def test_other_methods_are_no_routes(gateway: GatewayHarness) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert (await gateway.request(method, "/")).refusal == (405, "method_not_allowed")


async def test_off_there_is_no_page(built: Path) -> None:
    async with gateway_harness(page=False, page_folder=built) as gateway:
        for path in ("/", SCRIPT_PATH):
            assert (await gateway.get(path)).refusal == (404, "unknown_route")


@pytest.mark.parametrize("origins", [(), ("https://chat.example",), ("*",)])
async def test_its_files_open_no_answer_of_the_api(built: Path, origins: tuple[str, ...]) -> None:
    async with gateway_harness(page_folder=built, cors_origins=origins) as gateway:
        await gateway.publish(route("m"), keys=(key("alice"),))
        for origin in ("https://chat.example", "null"):
            sent = {"origin": origin}
            assert (await gateway.get(SCRIPT_PATH, headers=sent)).headers.getall(ALLOW) == ["*"], "two would be none"
            assert ALLOW not in (await gateway.get("/", headers=sent)).headers
            reply = await gateway.get("/v1/models", key="secret-alice", headers=sent)
            is_named = "*" in origins or origin in origins
            assert reply.headers.get(ALLOW) == (("*" if "*" in origins else origin) if is_named else None)
