"""The page at `/`, files below `/page/`: open to everybody, before the first table too, with the Host checked."""

from __future__ import annotations

import gzip
import os
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from gateway.page.page_files import INDEX
from gateway.page.security_headers import security_headers
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.queueing import key
from tests.support.raw_http import raw
from tests.support.tls_files import make_certificate

PAGE = "<!doctype html><title>Roundhouse</title>" + " " * 600
SCRIPT = "console.log('hello');\n" * 100
FILES = ("assets/index-a1.js", "diagram.html", "preview.html", "icon.svg")
ALLOW = "access-control-allow-origin"


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
    """A built page, and a file beside it that nobody may read."""
    (tmp_path / "secret").write_text("secret")
    return build(tmp_path / "built")


async def fetch(gateway: GatewayHarness, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    """Status, headers and body as sent. `path` is sent as it is written."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    url = URL(gateway.url + path, encoded=True)
    async with gateway.client.request(method, url, headers={"accept-encoding": "", **sent}) as answer:
        return answer.status, answer.headers, await answer.read()


@pytest.mark.parametrize("keys", [(), (key("alice"),)])
async def test_page_and_files_need_no_key(built: Path, keys: tuple[Any, ...]) -> None:
    async with gateway_harness(page_folder=built) as gateway:
        await gateway.publish(route("m"), keys=keys)
        status, headers, body = await fetch(gateway, "/")
        assert (status, body, headers["content-type"]) == (200, PAGE.encode(), "text/html; charset=utf-8")
        status, headers, body = await fetch(gateway, "/page/assets/index-a1.js")
        assert (status, body, headers["content-type"]) == (200, SCRIPT.encode(), "text/javascript; charset=utf-8")
        for path in FILES:
            assert (await fetch(gateway, f"/page/{path}"))[0] == 200, path


async def test_they_are_answered_before_the_first_table(built: Path) -> None:
    async with gateway_harness(page_folder=built, with_table=False) as gateway:
        assert (await fetch(gateway, "/"))[::2] == (200, PAGE.encode())
        assert (await fetch(gateway, "/page/assets/index-a1.js"))[::2] == (200, SCRIPT.encode())
        assert (await fetch(gateway, "/v1/models"))[0] == 503
        status, _, body = await fetch(gateway, "/", host="evil.example")
        assert (status, b"forbidden_host" in body) == (403, True)


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
async def test_each_document_has_exactly_its_headers(built: Path, path: str) -> None:
    name = path.removeprefix("/page/") if path != "/" else INDEX
    async with gateway_harness(page_folder=built) as gateway:
        for method in ("GET", "HEAD"):
            _, headers, _ = await fetch(gateway, path, method)
            about = ["content-security-policy", "x-content-type-options", "referrer-policy", "permissions-policy"]
            about += ["cross-origin-opener-policy", "x-frame-options", ALLOW]
            sent = {each: headers.getall(each) for each in about if each in headers}
            assert sent == {each: [value] for each, value in security_headers(name).items()}, method
            assert "set-cookie" not in headers


async def test_the_host_is_checked_as_for_the_api(built: Path) -> None:
    async with gateway_harness(page_folder=built) as gateway:
        for path in ("/", "/page/assets/index-a1.js", "/page/nothing"):
            for sent in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
                status, _, body = await fetch(gateway, path, **sent)
                assert (status, PAGE[:15].encode() in body) == (403, False), (path, sent)
        status, headers, _ = await fetch(gateway, "/page/assets/index-a1.js", origin="null")
        assert (status, headers[ALLOW]) == (200, "*"), "the page's frames have no origin, and need their scripts"
        assert (await fetch(gateway, "/v1/models", origin="null"))[0] == 403
        assert (await fetch(gateway, "/", host="localhost"))[0] == 200
        await gateway.publish(route("m"), keys=(key("alice"),))
        assert (await fetch(gateway, "/", host="chat.example"))[0] == 200, "with keys a name says nothing"
        async with raw(gateway) as client:
            client.write(b"GET / HTTP/1.1\r\nhost: user@chat.example\r\n\r\n")
            assert (await client.answer()).status == 400


async def test_head_says_what_get_says_without_the_body(built: Path) -> None:
    async with gateway_harness(page_folder=built) as gateway:
        for path in ("/", "/page/assets/index-a1.js"):
            asked, headed = await fetch(gateway, path), await fetch(gateway, path, "HEAD")
            varying = ("date", "x-request-id")
            same = [{k.lower(): v for k, v in each[1].items() if k.lower() not in varying} for each in (asked, headed)]
            assert same[0] == same[1]
            assert (headed[0], headed[2], int(headed[1]["content-length"])) == (200, b"", len(asked[2]))


async def test_other_methods_are_no_routes(built: Path) -> None:
    async with gateway_harness(page_folder=built) as gateway:
        for method in ("POST", "PUT", "DELETE"):
            status, _, body = await fetch(gateway, "/", method)
            assert (status, b'"error"' in body) == (405, True), method


async def test_a_file_that_did_not_change_is_not_sent_again(built: Path) -> None:
    async with gateway_harness(page_folder=built) as gateway:
        for path in ("/", "/page/assets/index-a1.js"):
            _, headers, _ = await fetch(gateway, path)
            for known in (headers["etag"], f'"other", {headers["etag"]}'):
                status, again, body = await fetch(gateway, path, if_none_match=known)
                assert (status, body, again["etag"]) == (304, b"", headers["etag"])
                assert again["content-security-policy"] == headers["content-security-policy"]
            assert (await fetch(gateway, path, if_none_match='"other"'))[0] == 200


async def test_names_by_content_are_kept_for_good_and_others_are_asked_about_each_time(built: Path) -> None:
    async with gateway_harness(page_folder=built) as gateway:
        kept = {path: (await fetch(gateway, path))[1]["cache-control"] for path in ("/", "/page/icon.svg")}
        assert kept == {"/": "no-cache", "/page/icon.svg": "no-cache"}
        _, headers, _ = await fetch(gateway, "/page/assets/index-a1.js")
        assert headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    ("accepted", "is_gzip"),
    [("gzip, deflate, br", True), ("br;q=1, gzip;q=0.5", True), ("GZIP", True), ("br", False), ("gzip;q=0", False)],
)
async def test_a_client_that_takes_gzip_gets_it(built: Path, accepted: str, is_gzip: bool) -> None:
    async with gateway_harness(page_folder=built) as gateway:
        async with raw(gateway) as client:
            asked = f"GET /page/assets/index-a1.js HTTP/1.1\r\nhost: localhost\r\naccept-encoding: {accepted}\r\n\r\n"
            client.write(asked.encode())
            answer = await client.answer()
        assert answer.all("vary") == ["accept-encoding"]
        assert answer.all("content-encoding") == (["gzip"] if is_gzip else [])
        assert (gzip.decompress(answer.body) if is_gzip else answer.body) == SCRIPT.encode()


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
async def test_what_is_no_file_of_the_page_is_an_unknown_route(built: Path, path: str) -> None:
    (built / ".sources").write_text("secret")
    async with gateway_harness(page_folder=built) as gateway, raw(gateway) as client:
        client.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (404, "unknown_route")


async def test_a_page_that_is_built_later_is_served_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    async with gateway_harness(page_folder=folder) as gateway:
        status, headers, body = await fetch(gateway, "/")
        assert (status, headers["cache-control"], b"make page" in body) == (200, "no-store", True)
        assert headers["content-security-policy"] == security_headers(INDEX)["content-security-policy"]
        assert (await fetch(gateway, "/page/assets/index-a1.js"))[0] == 404
        build(folder)
        assert (await fetch(gateway, "/"))[2] == PAGE.encode()
        build(folder, page="<!doctype html> newer", script="index-b2.js")
        os.utime(folder / INDEX, ns=(1, 1))  # a file system may tell two builds of one moment apart or not
        assert (await fetch(gateway, "/"))[2] == b"<!doctype html> newer"
        assert (await fetch(gateway, "/page/assets/index-b2.js"))[0] == 200


async def test_off_there_is_no_page(built: Path) -> None:
    async with gateway_harness(page=False, page_folder=built) as gateway:
        for path in ("/", "/page/assets/index-a1.js"):
            status, _, body = await fetch(gateway, path)
            assert (status, b"unknown_route" in body) == (404, True), path


async def test_it_is_served_by_https(built: Path, tmp_path: Path) -> None:
    certificate, private_key = make_certificate(tmp_path)
    async with gateway_harness(page_folder=built, tls_cert=certificate, tls_key=private_key) as gateway:
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as client,
            client.get(gateway.url + "/", headers={"accept-encoding": ""}) as answer,
        ):
            assert (answer.status, await answer.text()) == (200, PAGE)


@pytest.mark.parametrize("origins", [(), ("https://chat.example",), ("*",)])
async def test_its_files_open_no_answer_of_the_api(built: Path, origins: tuple[str, ...]) -> None:
    async with gateway_harness(page_folder=built, cors_origins=origins) as gateway:
        await gateway.publish(route("m"), keys=(key("alice"),))
        for origin in ("https://chat.example", "null"):
            _, headers, _ = await fetch(gateway, "/page/assets/index-a1.js", origin=origin)
            assert headers.getall(ALLOW) == ["*"], "two of them would be none"
            assert ALLOW not in (await fetch(gateway, "/", origin=origin))[1]
            _, headers, _ = await fetch(gateway, "/v1/models", origin=origin, authorization="Bearer secret-alice")
            is_named = "*" in origins or origin in origins
            assert headers.get(ALLOW) == (("*" if "*" in origins else origin) if is_named else None)
