"""The source of Hugging Face repositories, through the real `huggingface_hub`, asked over real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from common.model_reference import HubReference, parse_reference
from common.network.address_rule import AllowedHosts
from tests.support.file_server import Answer, FileServer, file_server
from tests.support.transfers_harness import refused
from transfers.network.client import NetworkOptions
from transfers.network.retry import RetryPolicy
from transfers.sources.hub import HubSource

COMMIT = "c" * 40
SHA256 = "a" * 64
BLOB = "b" * 40
WEIGHTS = {
    "rfilename": "m-Q8_0.gguf",
    "size": 9,
    "blobId": BLOB,
    "lfs": {"sha256": SHA256, "size": 9, "pointerSize": 1},
}
README = {"rfilename": "README.md", "size": 3, "blobId": BLOB}


def source(server: FileServer, token: Callable[[], str | None] = lambda: None, attempts: int = 1) -> HubSource:
    options = NetworkOptions(allowed=server.allowed)
    return HubSource(server.url, options, token, RetryPolicy(attempts=attempts, first_delay_s=0.0))


def hub_reference(text: str) -> HubReference:
    found = parse_reference(text)
    assert isinstance(found, HubReference)
    return found


def describe(*siblings: object, sha: object = COMMIT) -> Callable[[dict[str, str]], Answer]:
    body = json.dumps({"id": "u/r", "sha": sha, "siblings": list(siblings)}).encode()
    return lambda headers: (200, {"content-type": "application/json"}, body)


def test_a_reference_is_pinned_to_the_commit_and_each_file_to_its_hash(server: FileServer) -> None:
    server.answers["/api/models/u/r"] = describe(README, WEIGHTS)
    found = source(server).resolve(hub_reference("u/r:Q8_0"), include_pickle=False)
    assert (found.pinned, found.revision) == (f"hf:u/r:Q8_0@{COMMIT}", COMMIT)
    assert found.main == "u/r/m-Q8_0.gguf"
    (file,) = found.files
    assert (file.size, file.sha256, file.git_sha1, file.commit) == (9, SHA256, None, COMMIT)
    assert file.url == f"{server.url}/u/r/resolve/{COMMIT}/m-Q8_0.gguf"


def test_a_small_file_has_its_hash_as_a_git_object(server: FileServer) -> None:
    server.answers["/api/models/u/r/revision/v1"] = describe(README, WEIGHTS)
    found = source(server).resolve(hub_reference("u/r/README.md@v1"), include_pickle=False)
    assert (found.files[0].sha256, found.files[0].git_sha1) == (None, BLOB)


def test_the_token_is_shown_where_there_is_one(server: FileServer) -> None:
    server.answers["/api/models/u/r"] = describe(WEIGHTS)
    source(server, token=lambda: "hf_secret").resolve(hub_reference("u/r"), include_pickle=False)
    source(server).resolve(hub_reference("u/r"), include_pickle=False)
    shown = [headers.get("authorization") for _, headers in server.requests]
    assert shown == ["Bearer hf_secret", None]


def test_the_token_is_not_shown_behind_a_redirect_to_another_host(server: FileServer) -> None:
    with file_server() as elsewhere:
        elsewhere.answers["/list"] = describe(WEIGHTS)
        server.answers["/api/models/u/r"] = lambda headers: (307, {"location": f"{elsewhere.url}/list"}, b"")
        options = NetworkOptions(allowed=AllowedHosts(server.allowed.hosts | elsewhere.allowed.hosts))
        source_of_both = HubSource(server.url, options, lambda: "hf_secret", RetryPolicy(attempts=1))
        source_of_both.resolve(hub_reference("u/r"), include_pickle=False)
        ((_, headers),) = elsewhere.requests
        assert "authorization" not in headers
        assert "hf_secret" not in str(headers)


def test_a_busy_hub_is_asked_again(server: FileServer) -> None:
    answers: list[Answer] = [(429, {"retry-after": "3"}, b""), (503, {}, b""), describe(WEIGHTS)({})]
    server.answers["/api/models/u/r"] = lambda headers: answers.pop(0)
    waits: list[float] = []
    source(server, attempts=5).resolve(hub_reference("u/r"), include_pickle=False, wait=waits.append)
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
def test_a_hub_that_lists_no_files_is_told(
    server: FileServer, answer: Callable[[dict[str, str]], Answer], code: str
) -> None:
    server.answers["/api/models/u/r"] = answer
    with refused(code):
        source(server).resolve(hub_reference("u/r"), include_pickle=False)


def test_a_hub_that_nobody_answers_for_is_told_at_once() -> None:
    with file_server() as gone:
        pass
    with refused("source_unavailable"):
        source(gone).resolve(hub_reference("u/r"), include_pickle=False)
