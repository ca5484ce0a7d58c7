"""Sources, over real sockets: Hugging Face's (by the real `huggingface_hub`), registries, addresses, local files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.network.address_rule import AllowedHosts
from contract.errors import RoundhouseError
from contract.model_reference import HubReference, LocalReference, RegistryReference, UrlReference, parse_reference
from tests.support.transfers_harness import Answer, FileServer, file_server, refused
from transfers.network import NetworkOptions, RetryPolicy, SourceClient
from transfers.sources.base import Resolution, read_range
from transfers.sources.direct import LocalSource, UrlSource
from transfers.sources.hub import HubSource
from transfers.sources.registry import RegistrySource

COMMIT = "c" * 40
SHA256 = "a" * 64
BLOB = "b" * 40
LFS = {"sha256": SHA256, "size": 9, "pointerSize": 1}
WEIGHTS = {"rfilename": "m-Q8_0.gguf", "size": 9, "blobId": BLOB, "lfs": LFS}
README = {"rfilename": "README.md", "size": 3, "blobId": BLOB}


def resolve(
    server: FileServer, text: str, token: Callable[[], str | None] = lambda: None, attempts: int = 1, **more: Any
) -> Resolution:
    """What the hub says of a reference."""
    reference, policy = parse_reference(text), RetryPolicy(attempts=attempts, first_delay_s=0.0)
    assert isinstance(reference, HubReference)
    source = HubSource(server.url, NetworkOptions(allowed=server.allowed), token, policy)
    return source.resolve(reference, include_pickle=False, **more)


def describe(*siblings: object, sha: object = COMMIT) -> Callable[[dict[str, str]], Answer]:
    body = json.dumps({"id": "u/r", "sha": sha, "siblings": list(siblings)}).encode()
    return lambda headers: (200, {"content-type": "application/json"}, body)


def test_a_reference_is_pinned_to_the_commit_and_each_file_to_its_hash(server: FileServer) -> None:
    server.answers["/api/models/u/r"] = describe(README, WEIGHTS)
    found = resolve(server, "u/r:Q8_0")
    assert (found.pinned, found.revision) == (f"hf:u/r:Q8_0@{COMMIT}", COMMIT)
    assert found.main == "u/r/m-Q8_0.gguf"
    (file,) = found.files
    assert (file.size, file.sha256, file.git_sha1, file.commit) == (9, SHA256, None, COMMIT)
    assert file.url == f"{server.url}/u/r/resolve/{COMMIT}/m-Q8_0.gguf"


def test_a_small_file_has_its_hash_as_a_git_object(server: FileServer) -> None:
    server.answers["/api/models/u/r/revision/v1"] = describe(README, WEIGHTS)
    found = resolve(server, "u/r/README.md@v1")
    assert (found.files[0].sha256, found.files[0].git_sha1) == (None, BLOB)


def test_the_token_is_shown_where_there_is_one(server: FileServer) -> None:
    server.answers["/api/models/u/r"] = describe(WEIGHTS)
    resolve(server, "u/r", token=lambda: "hf_secret")
    resolve(server, "u/r")
    shown = [headers.get("authorization") for _, headers in server.requests]
    assert shown == ["Bearer hf_secret", None]


def test_the_token_is_not_shown_behind_a_redirect_to_another_host(server: FileServer) -> None:
    with file_server() as elsewhere:
        elsewhere.answers["/list"] = describe(WEIGHTS)
        server.answers["/api/models/u/r"] = lambda headers: (307, {"location": f"{elsewhere.url}/list"}, b"")
        options = NetworkOptions(allowed=AllowedHosts(server.allowed.hosts | elsewhere.allowed.hosts))
        source_of_both = HubSource(server.url, options, lambda: "hf_secret", RetryPolicy(attempts=1))
        source_of_both.resolve(HubReference("u/r"), include_pickle=False)
        ((_, headers),) = elsewhere.requests
        assert "authorization" not in headers
        assert "hf_secret" not in str(headers)


def test_a_busy_hub_is_asked_again(server: FileServer) -> None:
    answers: list[Answer] = [(429, {"retry-after": "3"}, b""), (503, {}, b""), describe(WEIGHTS)({})]
    server.answers["/api/models/u/r"] = lambda headers: answers.pop(0)
    waits: list[float] = []
    resolve(server, "u/r", attempts=5, wait=waits.append)
    assert waits == [3.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda headers: (404, {"x-error-code": "RepoNotFound"}, b""), "source_not_found"),
        (lambda headers: (404, {"x-error-code": "RevisionNotFound"}, b""), "source_not_found"),
        (lambda headers: (403, {"x-error-code": "GatedRepo"}, b""), "source_forbidden"),
        (lambda headers: (500, {}, b""), "source_unavailable"),
        (lambda headers: (200, {}, b"no JSON"), "source_mismatch"),
        (lambda headers: (302, {"location": "http://localhost:1/"}, b""), "source_address_refused"),
        (describe(WEIGHTS, sha="main"), "source_mismatch"),
        (describe({**WEIGHTS, "size": None, "lfs": None}), "source_mismatch"),
        (describe({**WEIGHTS, "lfs": {"sha256": "x", "size": 9, "pointerSize": 1}}), "source_mismatch"),
        (describe({**WEIGHTS, "rfilename": "../m-Q8_0.gguf"}), "source_mismatch"),
        (describe(README), "source_not_found"),
    ],
)
def test_a_hub_that_lists_no_files_is_refused(
    server: FileServer, answer: Callable[[dict[str, str]], Answer], code: str
) -> None:
    server.answers["/api/models/u/r"] = answer
    with refused(code):
        resolve(server, "u/r")


def test_a_hub_that_nobody_answers_for_is_told_at_once() -> None:
    with file_server() as gone:
        pass
    with refused("source_unavailable"):
        resolve(gone, "u/r")


GGUF = b"GGUF" + b"x" * 96
DIGEST = f"sha256:{hashlib.sha256(GGUF).hexdigest()}"
MANIFEST = json.dumps(
    {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": DIGEST, "size": len(GGUF)}]}
).encode()
MANIFEST_DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
TOKEN = "anonymous-token"


@pytest.fixture
def registry() -> Iterator[FileServer]:
    with file_server() as running:
        running.files["/v2/library/m/manifests/1b"] = MANIFEST
        yield running


def resolve_model(registry: FileServer, text: str = "ollama:m:1b", attempts: int = 1, **more: Any) -> Resolution:
    """What the registry says of a reference."""
    reference, policy = parse_reference(text), RetryPolicy(attempts=attempts, first_delay_s=0.0)
    assert isinstance(reference, RegistryReference)
    source = RegistrySource(registry.url, NetworkOptions(allowed=registry.allowed), policy)
    return source.resolve(reference, include_pickle=False, **more)


def test_a_model_of_ollama_is_pinned_by_its_manifest(registry: FileServer) -> None:
    found = resolve_model(registry)
    assert (found.reference, found.pinned) == ("ollama:m:1b", f"ollama:m:1b@{MANIFEST_DIGEST}")
    assert found.main == "ollama/library/m/m-1b.gguf"
    (file,) = found.files
    assert (file.size, file.sha256) == (len(GGUF), DIGEST.removeprefix("sha256:"))
    assert file.url == f"{registry.url}/v2/library/m/blobs/{DIGEST}"
    assert "application/vnd.oci.image.manifest.v1+json" in registry.requests[0][1]["accept"]


@pytest.mark.parametrize("kind", ["manifests", "blobs"])
def test_a_pinned_model_is_asked_for_by_its_digest(registry: FileServer, kind: str) -> None:
    registry.files = {f"/v2/library/m/{kind}/{MANIFEST_DIGEST}": MANIFEST}
    pinned = f"ollama:m:1b@{MANIFEST_DIGEST}"
    assert resolve_model(registry, pinned).pinned == pinned


def test_another_manifest_than_the_digest_names_is_refused(registry: FileServer) -> None:
    registry.files = {f"/v2/library/m/manifests/{MANIFEST_DIGEST}": MANIFEST + b" "}
    with refused("source_mismatch"):
        resolve_model(registry, f"ollama:m:1b@{MANIFEST_DIGEST}")


def test_a_registry_of_ones_own_may_be_asked_without_encryption(registry: FileServer) -> None:
    registry.files["/v2/team/m/manifests/1"] = MANIFEST
    found = resolve_model(registry, f"oci:127.0.0.1:{registry.port}/team/m:1")
    assert found.main == f"oci/127.0.0.1_{registry.port}/team/m/1/m-1.gguf"


def test_an_index_is_followed_to_its_only_manifest(registry: FileServer) -> None:
    registry.files["/v2/library/m/manifests/1b"] = json.dumps({"manifests": [{"digest": MANIFEST_DIGEST}]}).encode()
    registry.files[f"/v2/library/m/manifests/{MANIFEST_DIGEST}"] = MANIFEST
    assert resolve_model(registry).files[0].size == len(GGUF)


def test_everybodys_token_is_asked_for_and_shown_to_the_registry_alone(registry: FileServer) -> None:
    """The blob is behind a redirect to a host that must not see the token."""
    with file_server() as elsewhere:
        elsewhere.files["/cdn"] = GGUF

        def guard(answer: Answer) -> object:
            def check(headers: dict[str, str]) -> Answer:
                if headers.get("authorization") == f"Bearer {TOKEN}":
                    return answer
                realm = f'Bearer realm="{registry.url}/token?a=b",service="reg",scope="repository:*:push"'
                return 401, {"www-authenticate": realm}, b""

            return check

        blob = f"/v2/library/m/blobs/{DIGEST}"
        registry.answers = {
            "/v2/library/m/manifests/1b": guard((200, {}, MANIFEST)),  # type: ignore[dict-item]
            blob: guard((307, {"location": f"{elsewhere.url}/cdn"}, b"")),  # type: ignore[dict-item]
            "/token": lambda headers: (200, {}, json.dumps({"token": TOKEN}).encode()),
        }
        both = type(registry.allowed)(registry.allowed.hosts | elsewhere.allowed.hosts)
        options = NetworkOptions(allowed=both)
        source = RegistrySource(registry.url, options, RetryPolicy(attempts=1))
        found = source.resolve(RegistryReference(None, "m", "1b"), include_pickle=False)
        client = SourceClient(options)
        try:
            with read_range(client, str(found.files[0].url), 0, 4) as answer:
                assert b"".join(answer.chunks) == b"GGUF"
            with read_range(client, str(found.files[0].url), 4, 8) as answer:
                assert b"".join(answer.chunks) == b"xxxx"
        finally:
            client.close()
        asked = [path for path, _ in registry.requests if path.startswith("/token")]
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
def test_a_registry_that_gives_no_manifest_is_told(registry: FileServer, answer: Answer, code: str) -> None:
    registry.answers["/v2/library/m/manifests/1b"] = lambda headers: answer
    with refused(code):
        resolve_model(registry)


def test_a_token_server_that_fails_is_no_refusal(registry: FileServer) -> None:
    challenge = {"www-authenticate": 'Bearer realm="/token"'}
    registry.answers["/v2/library/m/manifests/1b"] = lambda headers: (401, challenge, b"")
    for status, code in ((503, "source_unavailable"), (404, "source_forbidden")):
        registry.answers["/token"] = lambda headers, status=status: (status, {}, b"")  # type: ignore[misc]
        with refused(code):
            resolve_model(registry)


def test_a_busy_registry_is_asked_again(registry: FileServer) -> None:
    answers: list[Answer] = [(503, {}, b""), (429, {"retry-after": "7"}, b""), (200, {}, MANIFEST)]
    registry.answers["/v2/library/m/manifests/1b"] = lambda headers: answers.pop(0)
    waits: list[float] = []
    resolve_model(registry, attempts=5, wait=waits.append)
    assert waits == [0.0, 7.0]


def test_a_registry_on_this_machine_is_refused_unless_it_is_named(registry: FileServer) -> None:
    stranger = RegistrySource("https://registry.example", NetworkOptions(), RetryPolicy(attempts=1))
    with refused("source_address_refused"):
        stranger.resolve(RegistryReference(f"127.0.0.1:{registry.port}", "m", "1"), include_pickle=False)
    assert not registry.requests


HASH = "a" * 64


@pytest.fixture
def host() -> Iterator[FileServer]:
    with file_server() as running:
        running.files["/d/m%20x.gguf"] = b"0123456789"
        yield running


def resolve_url(host: FileServer, path: str = "/d/m%20x.gguf") -> Resolution:
    options = NetworkOptions(allowed=host.allowed)
    source = UrlSource(options, RetryPolicy(attempts=1))
    return source.resolve(UrlReference(f"{host.url}{path}", HASH))


def test_the_size_is_the_servers_and_the_hash_the_references(host: FileServer) -> None:
    found = resolve_url(host)
    assert found.main == "url/127.0.0.1/m x.gguf"
    assert found.reference == found.pinned == f"{host.url}/d/m%20x.gguf#sha256={HASH}"
    assert (found.files[0].size, found.files[0].sha256) == (10, HASH)


def test_a_server_without_ranges_tells_the_size_too(host: FileServer) -> None:
    host.answers["/whole.gguf"] = lambda headers: (200, {}, b"0123456")
    assert resolve_url(host, "/whole.gguf").files[0].size == 7


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((404, {}, b""), "source_not_found"),
        ((401, {}, b""), "source_forbidden"),
        ((418, {}, b""), "source_unavailable"),
        ((500, {}, b""), "source_unavailable"),
        ((206, {"content-range": "bytes 5-6/9"}, b"ab"), "source_unavailable"),
        ((200, {"content-encoding": "gzip"}, b"ab"), "source_mismatch"),
        ((302, {"location": "http://[::1]:1/"}, b""), "source_address_refused"),
        ((302, {"location": "ftp://a/"}, b""), "source_address_refused"),
    ],
)
def test_a_server_that_names_no_size_is_told(host: FileServer, answer: Answer, code: str) -> None:
    host.answers["/m.gguf"] = lambda headers: answer
    with refused(code):
        resolve_url(host, "/m.gguf")


def resolve_local(root: Path | None, path: Path) -> Resolution:
    source = LocalSource([] if root is None else [root])
    return source.resolve(LocalReference(str(path)), include_pickle=False)


def code_of(root: Path | None, path: Path) -> str:
    with pytest.raises(RoundhouseError) as caught:
        resolve_local(root, path)
    return caught.value.entry.code


def test_a_file_of_a_named_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"12345")
    found = resolve_local(tmp_path, tmp_path / "m.gguf")
    assert (found.main, found.files[0].size) == ("local/m.gguf", 5)
    assert found.files[0].local_path == tmp_path / "m.gguf"


def test_a_folder_is_taken_as_a_repository_is(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "README.md", "pytorch_model.bin"):
        (folder / name).write_bytes(b"1")
    found = resolve_local(tmp_path, folder)
    assert (found.main, found.is_folder) == ("local/qwen", True)
    assert {each.path for each in found.files} == {"config.json", "model.safetensors"}


def test_nothing_is_taken_from_elsewhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "m.gguf").write_bytes(b"1")
    (inside / "link.gguf").symlink_to(outside / "m.gguf")
    assert code_of(inside, outside / "m.gguf") == "source_forbidden"
    assert code_of(inside, inside / "link.gguf") == "source_forbidden"
    assert code_of(None, outside / "m.gguf") == "source_forbidden"


def test_links_in_a_folder_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret.gguf").write_bytes(b"1")
    (folder / "m.gguf").symlink_to(tmp_path / "secret.gguf")
    assert code_of(folder, folder) == "source_not_found"


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    assert code_of(tmp_path, tmp_path / "x.gguf") == "source_not_found"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert code_of(tmp_path, tmp_path / "loop") == "source_not_found"
    (tmp_path / "empty").mkdir()
    assert code_of(tmp_path, tmp_path / "empty") == "source_not_found"
