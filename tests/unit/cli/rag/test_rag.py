"""`roundhouse rag`: files, attributes, questions and exports; and a gateway of another version, or none."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cli.gateway_client import GatewayAddress
from cli.output import CommandError, ExitCode
from cli.rag.client import (
    AddedFiles,
    FileToAdd,
    RagClient,
    document_id_of,
    find_files,
    follow_files,
    parse_questions,
    rank_documents,
)
from cli.rag.command import parse_attributes
from cli.rag.ranking import (
    Question,
    RankingScores,
    WayResult,
    build_result,
    find_missed,
    render_json,
    render_markdown,
    table_rows,
)
from cli.rag.transferring import (
    ExportDescription,
    ExportedChunking,
    ExportedDocument,
    ExportError,
    ExportReader,
    ExportWriter,
)
from contract.documents import DOCUMENT_ID_PATTERN
from contract.errors import RoundhouseError
from tests.support.cli import Cli, Roundhouse
from tests.support.ports import free_port
from tests.support.small_disk import mount_small_disk
from tests.support.wait import until


def test_a_pipe_below_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    os.mkfifo(tmp_path / "b")
    assert [file.path.name for file in find_files([tmp_path])] == ["a.txt"]


def test_a_documents_path_names_no_folder_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yard" / "north").mkdir(parents=True)
    (tmp_path / "yard" / "north" / "a.txt").write_text("a")
    for given, shown in ((tmp_path / "yard", "yard/north/a.txt"), (tmp_path / "yard/north/a.txt", "a.txt")):
        assert [file.shown_path for file in find_files([given])] == [shown]
    monkeypatch.chdir(tmp_path / "yard")
    assert [file.shown_path for file in find_files([Path("north")])] == ["north/a.txt"], "as it was given"


@pytest.mark.parametrize(
    ("path", "document_id"),
    [("__init__.py", "init__.py"), ("_drafts/a.md", "drafts:a.md"), ("../a b.md", "a-b.md"), ("/", "document")],
)
def test_a_documents_id_is_one_that_retrieval_takes(path: str, document_id: str) -> None:
    assert document_id_of(Path(path)) == document_id
    assert re.fullmatch(DOCUMENT_ID_PATTERN, document_id)


DOCUMENT = {"id": "d", "status": "ready", "filename": None, "error": None, "bytes": 1}
"""A document without the fields that a later version knows, or an earlier one does not."""


@asynccontextmanager
async def gateway_of_another_version(answer: dict[str, Any], seen: list[str] | None = None) -> AsyncIterator[str]:
    """One that answers every request alike; yields its address. `seen` gets the paths."""

    async def respond(request: web.Request) -> web.Response:
        if seen is not None:
            seen.append(request.path)
        return web.json_response(answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("words", "answer", "missing"),
    [
        (["ls"], {}, "data"),
        (["ls"], {"data": [DOCUMENT], "has_more": False}, "chunks"),
        (["show", "d"], DOCUMENT, "data"),
        (["search", "fox"], {"results": []}, "data"),
        (["search", "fox"], {"data": [{"text": "fox"}]}, "filename"),
        (["status"], {"index": {}}, "vector_store"),
        (["add", "FILE"], {"id": "d", "metadata": {}, "data": [], "has_more": False}, "status"),
        (["add", "FILE"], {**DOCUMENT, "metadata": {}, "data": [], "has_more": False}, "chunks"),
        (["export", "TAR"], {"data": [DOCUMENT], "has_more": False}, "sha256"),
    ],
)
async def test_a_gateway_of_another_version_is_said(
    words: list[str], answer: dict[str, Any], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fox.txt").write_text("fox")
    paths = {"FILE": str(tmp_path / "fox.txt"), "TAR": str(tmp_path / "documents.tar")}
    async with gateway_of_another_version(answer) as url:
        code, _, err = await Cli(capsys)("rag", *(paths.get(word, word) for word in words), "--gateway", url)
    assert code == ExitCode.FAILED
    assert "the gateway is of another version than this command" in err
    assert f"`{missing}`" in err


async def test_what_searches_do_not_find_of_a_document_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    notice = "1 of 3 chunks are found by their words"
    document = {**DOCUMENT, "filename": "fox.txt", "media_type": "text/plain", "chunks": 3, "notice": notice}
    for words, data in ((["ls"], [document]), (["show", "d"], [])):
        async with gateway_of_another_version({**document, "data": data, "has_more": False}) as url:
            shown = await Cli(capsys)("rag", *words, "--gateway", url)
        assert shown.code == ExitCode.DONE
        assert notice in shown.out
        assert ("fox.txt" in shown.out) is (words == ["ls"])


async def test_documents_that_cannot_be_exported_or_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = {**DOCUMENT, "declared_media_type": None, "sha256": 3, "metadata": {}, "chunking": {}}
    async with gateway_of_another_version({"data": [document], "has_more": False}) as url:
        code, _, err = await Cli(capsys)("rag", "export", str(tmp_path / "documents.tar"), "--gateway", url)
    assert code == ExitCode.FAILED
    assert "another version" in err
    (tmp_path / "fox.txt").write_text("fox")
    none: dict[str, Any] = {"metadata": {}, "data": [], "has_more": False}
    failed = {**DOCUMENT, "status": "failed", "chunks": None, "error": {"message": "It is empty."}, **none}
    async with gateway_of_another_version(failed) as url:
        assert (await Cli(capsys)("rag", "add", str(tmp_path), "--gateway", url)).code == ExitCode.FAILED


def test_files_that_no_gateway_takes(tmp_path: Path, roundhouse: Roundhouse) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("fox")
    code, out, err = roundhouse("rag", "add", str(tmp_path), "--gateway", f"http://127.0.0.1:{free_port()}")
    assert (code, out) == (ExitCode.NO_CONTROLLER, "")
    assert "no gateway answers" in err
    assert len(err.splitlines()) == 1, "not one for each file"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("true", True), ("7", 7), ("-1.5", -1.5), ("1e3", 1000.0)),
        *((text, text) for text in ("nan", "inf", "1e999", "0123", "1_000", "12345678901234567890123", "")),
    ],
)
def test_numbers_are_those_of_json(text: str, value: object) -> None:
    [(name, found)] = parse_attributes([f"a={text}"]).items()
    assert (name, found, type(found)) == ("a", value, type(value))


QUESTIONS = [Question("where is the coal?", {"yard": 1.0}), Question("who\n| drives?", {"crew": 2.0, "yard": 1.0})]
HIT, MISS = RankingScores(1.0, 1.0, 1.0), RankingScores(0.0, 0.0, 0.0)
RESULTS = [
    WayResult("sparse", RankingScores(0.5, 0.5, 0.5), None, [HIT, MISS], is_complete=False),
    WayResult("dense", None, "no embedding model is set", (), is_complete=True),
]


def test_questions_name_documents_or_grades() -> None:
    lines = ['{"query": "a", "relevant": ["x", "y"], "note": 1}', "", '{"query": "b", "relevant": {"x": 2, "z": 0}}']
    assert parse_questions(lines, "q") == [Question("a", {"x": 1.0, "y": 1.0}), Question("b", {"x": 2.0, "z": 0.0})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "this is no JSON"),
        ("[]", "a question is an object"),
        ('{"relevant": ["x"]}', "`query` must be a text"),
        ('{"query": "a"}', "`relevant` must be a list"),
        ('{"query": "a", "relevant": []}', "a grade above 0"),
        ('{"query": "a", "relevant": [1]}', "`relevant` holds 1"),
        ('{"query": "a", "relevant": {"x": -1}}', "the grade of x"),
        ('{"query": "a", "relevant": {"x": NaN}}', "the grade of x"),
        ('{"query": "a", "relevant": {"x": true}}', "the grade of x"),
    ],
)
def test_a_line_that_is_no_question_is_named(line: str, message: str) -> None:
    with pytest.raises(CommandError, match=message) as raised:
        parse_questions(['{"query": "a", "relevant": ["x"]}', line], "q.jsonl")
    assert str(raised.value).startswith("q.jsonl, line 2: ")
    assert raised.value.code is ExitCode.USAGE


def test_a_file_without_questions_is_refused() -> None:
    with pytest.raises(CommandError, match="holds no question"):
        parse_questions(["", " "], "q")


def test_a_document_stands_where_its_best_hit_is() -> None:
    assert rank_documents([{"document_id": each} for each in "abac"]) == ["a", "b", "c"]


def test_reports_say_what_was_measured_and_what_was_not() -> None:
    assert table_rows(RESULTS) == [("sparse", "0.500", "0.500", "0.500"), ("dense", "-", "-", "-")]
    assert find_missed(QUESTIONS, RESULTS) == [QUESTIONS[1]]
    assert find_missed(QUESTIONS, RESULTS[1:]) == []
    summary = build_result("q", QUESTIONS, RESULTS, ["crew"], 50)
    text = render_markdown(summary, QUESTIONS, RESULTS, "2026-11-23 14:05:09")
    assert "| sparse | 0.500 | 0.500 | 0.500 |\n| dense | - | - | - |\n" in text
    assert "- dense: no embedding model is set\n- sparse: an index was being rebuilt\n" in text
    assert "crew (1 in all)" in text
    assert "- who | drives? (crew, yard)\n" in text
    report = json.loads(render_json(summary, QUESTIONS, RESULTS, "now"))
    assert report["searches"]["dense"] == {
        "recall@5": None, "mrr": None, "ndcg@10": None, "reason": "no embedding model is set", "complete": True
    }  # fmt: skip
    assert report["by_question"][1]["scores"] == {
        "sparse": {"recall_at_5": 0.0, "reciprocal_rank": 0.0, "ndcg_at_10": 0.0}
    }


DESCRIPTION = ExportDescription(version="1", tenant="alice")
ORIGINALS = {hashlib.sha256(content).hexdigest(): content for content in (b"A fox.", b"x" * 512, b"y" * 1300)}
DOCUMENTS = [
    ExportedDocument(
        id=f"d{number}",
        sha256=sha256,
        bytes=len(content),
        filename=None,
        declared_media_type="text/plain",
        metadata={"n": number},
        chunking=ExportedChunking(max_tokens=400, overlap_tokens=60),
        created_at=1,
    )
    for number, (sha256, content) in enumerate(ORIGINALS.items())
]
LINES = b"".join(document.model_dump_json().encode() + b"\n" for document in DOCUMENTS)


async def parts_of(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 400):
        yield content[start : start + 400]


async def add_originals(writer: ExportWriter) -> None:
    for sha256, content in ORIGINALS.items():
        if not writer.has_original(sha256):
            assert await writer.add_original(sha256, len(content), parts_of(content))


async def write_export(path: Path) -> None:
    with ExportWriter(path, DESCRIPTION) as writer:
        await add_originals(writer)
        writer.finish(io.BytesIO(LINES))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A whole export."""
    await write_export(tmp_path / "e.tar")
    return tmp_path / "e.tar"


async def test_what_was_written_is_read(path: Path, tmp_path: Path) -> None:
    with ExportReader(path) as reader:
        assert reader.description == DESCRIPTION
        assert list(reader.read_documents()) == DOCUMENTS
        for sha256, content in ORIGINALS.items():
            assert reader.is_original_whole(sha256)
            assert b"".join([part async for part in reader.read_original(sha256)]) == content
        assert not reader.is_original_whole("00" * 32)
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["export.json", *(f"originals/{each}" for each in ORIGINALS), "documents.jsonl"]
    assert [each.name for each in tmp_path.iterdir()] == ["e.tar"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_an_export_goes_on_from_wherever_it_was_killed_and_what_is_damaged_is_written_anew(path: Path) -> None:
    whole, partial = path.read_bytes(), path.with_name("e.tar.partial")
    damaged = whole.index(b"x" * 512)
    lengths = (0, *range(1024, len(whole) + 1, 128))
    left = [*(whole[:length] for length in lengths), whole[:damaged] + bytes(512) + whole[damaged + 512 :]]
    for content in left:
        partial.write_bytes(content)
        await write_export(path)
        assert path.read_bytes() == whole, len(content)
        assert not partial.exists()


async def test_content_that_is_not_the_one_expected_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "e.tar"
    sha256, content = next(iter(ORIGINALS.items()))

    async def break_off() -> AsyncIterator[bytes]:
        yield content[:1]
        raise ConnectionError

    with ExportWriter(path, DESCRIPTION) as writer:
        for other in (content + b"!", content[:-1], b"B fox."):
            assert not await writer.add_original(sha256, len(content), parts_of(other))
        with pytest.raises(ConnectionError):
            await writer.add_original(sha256, len(content), break_off())
        assert (writer.originals, writer.has_original(sha256)) == (0, False)
        await add_originals(writer)
        writer.finish(io.BytesIO(LINES))
    with ExportReader(path) as reader:
        assert all(map(reader.is_original_whole, ORIGINALS))


async def test_another_tenants_unfinished_export_stays(tmp_path: Path) -> None:
    path, partial = tmp_path / "e.tar", tmp_path / "e.tar.partial"
    with ExportWriter(path, DESCRIPTION):
        before = partial.read_bytes()
        with pytest.raises(ExportError, match="another export writes"):
            ExportWriter(path, DESCRIPTION)
    with pytest.raises(ExportError, match=r"is of the tenant alice: finish that export, or delete the file"):
        ExportWriter(path, DESCRIPTION.model_copy(update={"tenant": "bob"}))
    assert partial.read_bytes() == before
    partial.write_bytes(b"a file of somebody")
    with pytest.raises(ExportError, match="is no unfinished export: move it away"):
        ExportWriter(path, DESCRIPTION)
    assert partial.read_bytes() == b"a file of somebody"
    with pytest.raises(ExportError, match="cannot be written"):
        ExportWriter(tmp_path / "none" / "e.tar", DESCRIPTION)


async def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 64) as disk:
        path = disk.folder / "e.tar"
        with ExportWriter(path, DESCRIPTION) as writer:
            await add_originals(writer)
            large = b"z" * 100_000
            with pytest.raises(ExportError, match="the same command goes on"):
                await writer.add_original(hashlib.sha256(large).hexdigest(), len(large), parts_of(large))
            assert writer.originals == 3
        await write_export(path)
        with ExportReader(path) as reader:
            assert list(reader.read_documents()) == DOCUMENTS


async def test_what_is_no_whole_export_is_refused(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:2048])
    with pytest.raises(ExportError, match="is not complete: run `roundhouse rag export` again"):
        ExportReader(path)
    newer = DESCRIPTION.model_copy(update={"schema_version": 2, "version": "9.9"})
    with ExportWriter(tmp_path / "n.tar", newer) as writer:
        writer.finish(io.BytesIO(b""))
    with pytest.raises(ExportError, match=r"a newer Roundhouse \(9.9\)"):
        ExportReader(tmp_path / "n.tar")
    for content in (b"", b"text", whole[1024:]):
        path.write_bytes(content)
        with pytest.raises(ExportError, match="is no export"):
            ExportReader(path)
    with pytest.raises(ExportError, match="No such file"):
        ExportReader(tmp_path / "none.tar")
    with ExportWriter(path, DESCRIPTION) as writer:
        writer.finish(io.BytesIO(LINES + b'{"id": 1}\n'))
    with ExportReader(path) as reader, pytest.raises(ExportError, match=r"line 4 of documents.jsonl is damaged: id"):
        list(reader.read_documents())


async def test_what_changes_while_no_gateway_answers_is_sent_once_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("A fox.")
    sent: list[str] = []

    async def add(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"id": "a", "status": "ready"})

    async def list_none(_: web.Request) -> web.Response:
        return web.json_response({"data": [], "has_more": False})

    async def find_none(_: web.Request) -> web.Response:
        envelope = RoundhouseError("document_not_found", "There is none.").build_envelope()
        return web.Response(text=envelope.model_dump_json(), status=404)

    port = free_port()
    app = web.Application()
    app.router.add_post("/v1/documents", add)
    app.router.add_get("/v1/documents", list_none)
    app.router.add_get("/v1/documents/{id}", find_none)
    async with RagClient(GatewayAddress(f"http://127.0.0.1:{port}", verifies=True), None) as client:
        added = AddedFiles((), began_at=0.0)
        following = asyncio.create_task(
            follow_files(client, [tmp_path], {}, added, lambda file, _: sent.append(file.path.name))
        )
        try:
            await until("it says so", lambda: "no gateway answers" in capsys.readouterr().err)
            async with TestServer(app, port=port):
                await until("it is sent", lambda: sent == ["a.txt"])
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    assert "no gateway answers" not in capsys.readouterr().err, "once"


async def test_a_new_file_replaces_no_document_of_another_folder_while_it_is_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("A fox.")
    other: dict[str, Any] = {**DOCUMENT, "metadata": {"added_from": "elsewhere"}, "data": [], "has_more": False}
    sent: list[str] = []
    seen: list[str] = []
    async with (
        gateway_of_another_version(other, seen) as url,
        RagClient(GatewayAddress(url, verifies=True), None) as client,
    ):
        following = asyncio.create_task(
            follow_files(
                client, [tmp_path], {}, AddedFiles((), began_at=0.0), lambda file, _: sent.append(file.path.name)
            )
        )
        try:
            await until("it says so", lambda: "was added from another folder" in capsys.readouterr().err)
            asked = len(seen)
            await until("it looks again", lambda: len(seen) > asked + 1)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    assert (sent, capsys.readouterr().err) == ([], "")


async def test_what_changes_while_nothing_can_be_done_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.rag.client.SETTLE_MS", 50)
    for name in ("a.txt", "x y.txt"):
        (tmp_path / name).write_text("A fox.")
    known = AddedFiles(find_files([tmp_path]), began_at=time.time() + 1000)
    (tmp_path / "x-y.txt").write_text("of the same id")
    sent: list[str] = []
    looks: list[int] = []
    real_find = find_files

    def find(paths: Sequence[Path]) -> list[FileToAdd]:
        looks.append(1)
        return real_find(paths)

    monkeypatch.setattr("cli.rag.client.find_files", find)
    answer: dict[str, Any] = {**DOCUMENT, "data": [], "has_more": False}
    async with gateway_of_another_version(answer) as url, RagClient(GatewayAddress(url, verifies=True), None) as client:
        following = asyncio.create_task(
            follow_files(client, [tmp_path], {}, known, lambda file, _: sent.append(file.path.name))
        )
        try:
            await until("it looks", lambda: looks)
            (tmp_path / "a.txt").write_text("A dog.")
            looks.clear()
            await until("it has looked again", lambda: len(looks) > 5)
            (tmp_path / "x-y.txt").unlink()
            await until("it is sent", lambda: sent == ["a.txt"], deadline_s=10)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
