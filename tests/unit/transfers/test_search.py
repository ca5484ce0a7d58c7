"""A search of the hub, by the whole program: what it finds, and what it says of a hub that does not answer as it
should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from contract.downloads import FoundModels, RepositoryFacts, SearchOrder
from contract.model_reference import parse_reference
from tests.support.fake_hub import FakeHub, Fault, HubRepository
from tests.support.transfers_harness import FileServer, file_server, make_transfers, refused
from transfers.assembly import Transfers
from transfers.downloads.inspection import choose_found

SHARDS = tuple(f"Q8_0/big-Q8_0-{number:05d}-of-00002.gguf" for number in (1, 2))


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def program(tmp_path: Path, hub: FakeHub, server: FileServer) -> Iterator[Transfers]:
    settings = {"hub_endpoint": hub.endpoint, "transfers_allow_hosts": "127.0.0.1"}
    with make_transfers(tmp_path, server, **settings) as transfers:
        yield transfers


def search(program: Transfers, words: str, limit: int = 10) -> FoundModels:
    return program.inspector.search(SearchOrder(words=words, limit=limit))


def list_found(found: FoundModels) -> dict[str, list[str]]:
    """References by repository."""
    return {each.repository: [choice.reference for choice in each.choices] for each in found.repositories}


def test_each_repository_has_its_quantisations_or_its_folder(program: Transfers, hub: FakeHub) -> None:
    hub.add(HubRepository("most/tiny-GGUF", {"t-Q4_0.gguf": b"GGUF"}, downloads=900, licence="mit", gated=True))
    found = search(program, "tiny")
    assert list_found(found) == {
        "most/tiny-GGUF": ["hf:most/tiny-GGUF:Q4_0"],
        "tiny/llama-GGUF": ["hf:tiny/llama-GGUF:Q4_K_M", "hf:tiny/llama-GGUF:Q8_0", "hf:tiny/llama-GGUF:BF16"],
        "tiny/split-GGUF": ["hf:tiny/split-GGUF:Q8_0"],
        "tiny/vision-GGUF": ["hf:tiny/vision-GGUF:Q4_K_M", "hf:tiny/vision-GGUF:Q8_0"],
        "tiny/gated-GGUF": ["hf:tiny/gated-GGUF:Q4_K_M"],
        "tiny/folder": ["hf:tiny/folder"],
    }, "neither pickles nor what a token alone shows"
    by_name = {each.repository: each for each in found.repositories}
    most = by_name["most/tiny-GGUF"]
    assert (most.downloads, most.licence, most.is_gated) == (900, "mit", True)
    for each in found.repositories:
        for choice in each.choices:
            if each.is_gated:
                continue
            inspection = program.inspector.inspect(parse_reference(choice.reference), include_pickle=False)
            said = (choice.main, choice.projector, choice.size, choice.file_count)
            files = inspection.files
            assert said == (inspection.main, inspection.projector, inspection.total_bytes, len(files))
    assert by_name["tiny/vision-GGUF"].choices[0].projector == "tiny/vision-GGUF/mmproj-vision-F16.gguf"


def test_two_lists_and_one_request_for_each_repository_that_is_shown(program: Transfers, hub: FakeHub) -> None:
    assert len(list_found(search(program, "GGUF tiny", limit=2))) == 2
    asked = [each.target for each in hub.requests]
    assert [each.partition("?")[0] for each in asked[:2]] == ["/api/models"] * 2
    assert "search=GGUF+tiny" in asked[0]
    assert [each.endswith("?blobs=true") for each in asked[2:]] == [True, True]
    assert list_found(search(program, "nothing that has this name")) == {}


def test_half_of_what_is_found_is_gguf_where_there_is_as_much() -> None:
    gguf = [RepositoryFacts(repository=f"g/{number}", downloads=9 - number) for number in range(4)]
    tensors = [RepositoryFacts(repository=f"s/{number}", downloads=90) for number in range(4)]

    def chosen(first: list[RepositoryFacts], second: list[RepositoryFacts], limit: int) -> list[str]:
        return [each.repository for each in choose_found(first, second, limit)]

    assert chosen(gguf, tensors, 4) == ["s/0", "s/1", "g/0", "g/1"]
    assert chosen(gguf, tensors, 1) == ["g/0"]
    assert chosen(gguf[:1], tensors, 4) == ["s/0", "s/1", "s/2", "g/0"]
    assert chosen(gguf, tensors[:1], 4) == ["s/0", "g/0", "g/1", "g/2"]
    assert chosen(gguf[:1], gguf[:1], 4) == ["g/0"]
    assert chosen([], [], 4) == []


def test_one_repository_that_cannot_be_listed_says_so_and_the_others_are_there(
    program: Transfers, hub: FakeHub, server: FileServer
) -> None:
    hub.faults.add(Fault("status", site="api", status=403, skip=2))
    found = search(program, "tiny")
    reasons = [each.reason for each in found.repositories if each.reason is not None]
    assert len(reasons) == 1
    assert "status 403" in reasons[0]
    assert len([each for each in found.repositories if each.choices]) == 4


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "source_forbidden", "does not show models with 'tiny' in their names"),
        (429, "source_unavailable", "asks to wait 60 s"),
        (500, "source_unavailable", "asks to wait"),
        (404, "source_unavailable", "status 404"),
    ],
)
def test_a_hub_that_refuses_the_search(program: Transfers, hub: FakeHub, status: int, code: str, words: str) -> None:
    hub.faults.add(
        Fault("status", site="api", status=status, retry_after="60" if status in (429, 500) else None, times=0)
    )
    with refused(code, words):
        search(program, "tiny")


def test_a_hub_that_nobody_answers_for(tmp_path: Path) -> None:
    with file_server() as gone:
        pass
    with make_transfers(tmp_path, gone) as program, refused("source_unavailable", "No connection to the hub"):
        search(program, "tiny")


def answer(server: FileServer, body: bytes, siblings: object = ()) -> None:
    """Have the server answer each list of models with a body, and the repository `u/r` with files."""
    server.answers["/api/models"] = lambda headers: (200, {"content-type": "text/html"}, body)
    described = json.dumps({"id": "u/r", "sha": "c" * 40, "siblings": siblings}).encode()
    server.answers["/api/models/u/r"] = lambda headers: (200, {}, described)


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b'{"error": "no"}', b"[" * 100 + b"]" * 100, b"\xff"])
def test_an_answer_that_is_no_list(transfers: Transfers, server: FileServer, body: bytes) -> None:
    answer(server, body)
    with refused("source_mismatch"):
        search(transfers, "tiny")


def file(path: object, size: object = 9) -> dict[str, Any]:
    return {"rfilename": path, "size": size, "blobId": "b" * 40}


def test_rows_that_name_no_repository_are_left_out(transfers: Transfers, server: FileServer) -> None:
    good = {"id": "u/r", "downloads": True, "tags": [7, "license:" + "x" * 100], "gated": "auto"}
    rows: list[object] = [
        *({"id": name} for name in ("gpt2", "../..", "u/r:Q4_0", "u/r/x", "u/r@main", "a/" + "b" * 100)),
        *({"id": name} for name in (7, None, "u/\x1b", ["u/r"])),
        *({}, "u/r", 5, None, {"id": "u/disabled", "disabled": True}),
        good,
    ]  # fmt: skip
    answer(server, json.dumps(rows).encode(), [file("m-Q8_0.gguf")])
    found = search(transfers, "tiny", limit=20)
    assert list_found(found) == {"u/r": ["hf:u/r:Q8_0"]}
    assert (found.repositories[0].downloads, found.repositories[0].licence) == (None, None)


@pytest.mark.parametrize(
    "wrong", [file("m-Q8_0.gguf", None), file("m-Q8_0.gguf", -1), file("../m-Q8_0.gguf"), file(7), {"size": 7}, 5]
)
def test_files_that_cannot_be_are_told(transfers: Transfers, server: FileServer, wrong: object) -> None:
    answer(server, b'[{"id": "u/r"}]', [wrong])
    (found,) = search(transfers, "tiny").repositories
    assert found.choices == []
    assert found.reason is not None


def test_a_repository_with_thousands_of_files(transfers: Transfers, server: FileServer) -> None:
    names = [f"{number:04d}/m-Q4_K_M.gguf" for number in range(3000)]
    answer(server, b'[{"id": "u/r"}]', [*map(file, names), file("an@sign-Q2_K.gguf"), *map(file, SHARDS[:1])])
    (found,) = search(transfers, "tiny").repositories
    assert len(found.choices) == 40
    assert found.left_out == 3002 - 40
    assert found.choices[0].reference == "hf:u/r:Q4_K_M"
    assert found.choices[1].reference == "hf:u/r/0001/m-Q4_K_M.gguf", "the quantisation names the first one"
    assert found.choices[1].quantisation == "Q4_K_M"


def test_a_part_that_is_missing_and_a_name_that_no_reference_has(transfers: Transfers, server: FileServer) -> None:
    names = ("a@b.gguf", *SHARDS[:1], "mmproj-F16.gguf", "m-imatrix.gguf", "plain.gguf", "m-UD-Q4_K_XL.gguf")
    answer(server, b'[{"id": "u/r"}]', [file(name, size) for size, name in enumerate(names)])
    (found,) = search(transfers, "tiny").repositories
    assert [(each.reference, each.quantisation) for each in found.choices] == [
        ("hf:u/r/plain.gguf", None),
        ("hf:u/r:UD-Q4_K_XL", "UD-Q4_K_XL"),
    ]


@pytest.mark.parametrize("words", ["", "  \t ", "x" * 201, "a\nb", "a\x1b[2Jb", "a\u202eb"])
def test_words_that_are_none(words: str) -> None:
    with pytest.raises(ValidationError):
        SearchOrder(words=words)


def test_words_lose_the_white_space_around_them() -> None:
    assert SearchOrder(words=f"  {'x' * 200} ").words == "x" * 200
