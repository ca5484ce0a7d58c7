"""The source of registries, asked over real sockets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

from common.model_reference import RegistryReference, parse_reference
from tests.support.file_server import Answer, FileServer, file_server
from tests.support.transfers_harness import refused
from transfers.network.client import NetworkOptions, SourceClient
from transfers.network.retry import RetryPolicy
from transfers.sources.range_request import read_range
from transfers.sources.registry import RegistrySource

GGUF = b"GGUF" + b"x" * 96
DIGEST = f"sha256:{hashlib.sha256(GGUF).hexdigest()}"
MANIFEST = json.dumps(
    {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": DIGEST, "size": len(GGUF)}]}
).encode()
MANIFEST_DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
TOKEN = "anonymous-token"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        running.files["/v2/library/m/manifests/1b"] = MANIFEST
        yield running


def source(server: FileServer, attempts: int = 1) -> RegistrySource:
    policy = RetryPolicy(attempts=attempts, first_delay_s=0.0)
    return RegistrySource(server.url, NetworkOptions(allowed=server.allowed), policy)


def reference(text: str) -> RegistryReference:
    found = parse_reference(text)
    assert isinstance(found, RegistryReference)
    return found


def test_a_model_of_ollama_is_pinned_by_its_manifest(server: FileServer) -> None:
    found = source(server).resolve(reference("ollama:m:1b"), include_pickle=False)
    assert (found.reference, found.pinned) == ("ollama:m:1b", f"ollama:m:1b@{MANIFEST_DIGEST}")
    assert found.main == "ollama/library/m/m-1b.gguf"
    (file,) = found.files
    assert (file.size, file.sha256) == (len(GGUF), DIGEST.removeprefix("sha256:"))
    assert file.url == f"{server.url}/v2/library/m/blobs/{DIGEST}"
    assert "application/vnd.oci.image.manifest.v1+json" in server.requests[0][1]["accept"]


@pytest.mark.parametrize("kind", ["manifests", "blobs"])
def test_a_pinned_model_is_asked_for_by_its_digest(server: FileServer, kind: str) -> None:
    server.files = {f"/v2/library/m/{kind}/{MANIFEST_DIGEST}": MANIFEST}
    pinned = reference(f"ollama:m:1b@{MANIFEST_DIGEST}")
    assert source(server).resolve(pinned, include_pickle=False).pinned == str(pinned)


def test_another_manifest_than_the_digest_names_is_refused(server: FileServer) -> None:
    server.files = {f"/v2/library/m/manifests/{MANIFEST_DIGEST}": MANIFEST + b" "}
    with refused("source_mismatch"):
        source(server).resolve(reference(f"ollama:m:1b@{MANIFEST_DIGEST}"), include_pickle=False)


def test_a_registry_of_ones_own_may_be_asked_without_encryption(server: FileServer) -> None:
    server.files["/v2/team/m/manifests/1"] = MANIFEST
    found = source(server).resolve(reference(f"oci:127.0.0.1:{server.port}/team/m:1"), include_pickle=False)
    assert found.main == f"oci/127.0.0.1_{server.port}/team/m/1/m-1.gguf"


def test_an_index_is_followed_to_its_only_manifest(server: FileServer) -> None:
    server.files["/v2/library/m/manifests/1b"] = json.dumps({"manifests": [{"digest": MANIFEST_DIGEST}]}).encode()
    server.files[f"/v2/library/m/manifests/{MANIFEST_DIGEST}"] = MANIFEST
    assert source(server).resolve(reference("ollama:m:1b"), include_pickle=False).files[0].size == len(GGUF)


def test_everybodys_token_is_asked_for_and_shown_to_the_registry_alone(server: FileServer) -> None:
    """The blob is behind a redirect to a host that must not see the token."""
    with file_server() as elsewhere:
        elsewhere.files["/cdn"] = GGUF

        def guard(answer: Answer) -> object:
            def check(headers: dict[str, str]) -> Answer:
                if headers.get("authorization") == f"Bearer {TOKEN}":
                    return answer
                realm = f'Bearer realm="{server.url}/token?a=b",service="reg",scope="repository:*:push"'
                return 401, {"www-authenticate": realm}, b""

            return check

        blob = f"/v2/library/m/blobs/{DIGEST}"
        server.answers = {
            "/v2/library/m/manifests/1b": guard((200, {}, MANIFEST)),  # type: ignore[dict-item]
            blob: guard((307, {"location": f"{elsewhere.url}/cdn"}, b"")),  # type: ignore[dict-item]
            "/token": lambda headers: (200, {}, json.dumps({"token": TOKEN}).encode()),
        }
        both = type(server.allowed)(server.allowed.hosts | elsewhere.allowed.hosts)
        options = NetworkOptions(allowed=both)
        found = RegistrySource(server.url, options, RetryPolicy(attempts=1)).resolve(
            reference("ollama:m:1b"), include_pickle=False
        )
        client = SourceClient(options)
        try:
            with read_range(client, str(found.files[0].url), 0, 4) as answer:
                assert b"".join(answer.chunks) == b"GGUF"
            with read_range(client, str(found.files[0].url), 4, 8) as answer:
                assert b"".join(answer.chunks) == b"xxxx"
        finally:
            client.close()
        asked = [path for path, _ in server.requests if path.startswith("/token")]
        assert asked == ["/token?a=b&service=reg&scope=repository%3Alibrary%2Fm%3Apull"] * 2, "one for each client"
        assert elsewhere.requests
        assert all("authorization" not in headers for _, headers in elsewhere.requests)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((404, {}, b""), "source_not_found"),
        ((401, {}, b""), "source_forbidden"),
        ((401, {"www-authenticate": 'Bearer realm="/token"'}, b""), "source_forbidden"),
        ((403, {}, b""), "source_forbidden"),
        ((500, {}, b""), "source_unavailable"),
        ((429, {"retry-after": "100000"}, b""), "source_unavailable"),
        ((200, {}, b"no manifest"), "source_mismatch"),
        ((200, {}, b"{}"), "source_mismatch"),
        ((200, {}, b'{"layers": []}'), "source_not_found"),
        ((200, {}, b" " * (5 * 1024 * 1024)), "source_mismatch"),
        ((302, {"location": "http://localhost/"}, b""), "source_address_refused"),
    ],
)
def test_a_registry_that_gives_no_manifest_is_told(server: FileServer, answer: Answer, code: str) -> None:
    server.answers["/v2/library/m/manifests/1b"] = lambda headers: answer
    with refused(code):
        source(server).resolve(reference("ollama:m:1b"), include_pickle=False)


def test_a_token_server_that_fails_is_no_refusal(server: FileServer) -> None:
    challenge = {"www-authenticate": 'Bearer realm="/token"'}
    server.answers["/v2/library/m/manifests/1b"] = lambda headers: (401, challenge, b"")
    for status, code in ((503, "source_unavailable"), (404, "source_forbidden")):
        server.answers["/token"] = lambda headers, status=status: (status, {}, b"")  # type: ignore[misc]
        with refused(code):
            source(server).resolve(reference("ollama:m:1b"), include_pickle=False)


def test_a_busy_registry_is_asked_again(server: FileServer) -> None:
    answers: list[Answer] = [(503, {}, b""), (429, {"retry-after": "7"}, b""), (200, {}, MANIFEST)]
    server.answers["/v2/library/m/manifests/1b"] = lambda headers: answers.pop(0)
    waits: list[float] = []
    source(server, attempts=5).resolve(reference("ollama:m:1b"), include_pickle=False, wait=waits.append)
    assert waits == [0.0, 7.0]


def test_a_registry_on_this_machine_is_refused_unless_it_is_named(server: FileServer) -> None:
    stranger = RegistrySource("https://registry.example", NetworkOptions(), RetryPolicy(attempts=1))
    with refused("source_address_refused"):
        stranger.resolve(reference(f"oci:127.0.0.1:{server.port}/m:1"), include_pickle=False)
    assert not server.requests
