"""Files that one host fetches from another: two real programs, each with a models folder of its own."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest

from contract.downloads import CopyOrder, Download, DownloadRecord, PlacedFile, SharedFile, SharedModel
from contract.errors import RoundhouseError
from contract.model_reference import HeadReference
from tests.support.host_transfers import TOKEN, HostProgram, running
from tests.support.ports import free_port
from tests.support.small_disk import mount_small_disk
from tests.support.transfers_harness import FileServer, file_server, make_transfers, wait_for_end
from tests.support.wait import until
from transfers.downloads.job import DownloadJob
from transfers.fetch import FetchJournal, FileHash
from transfers.models_folder import ModelsFolder
from transfers.sharing import DigestStore, SharedModels, derive_share_token
from transfers.sources.base import Resolution, SourceFile

MIB = 2**20


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def test_files_come_from_the_head_and_then_from_each_other(tmp_path: Path) -> None:
    with running(tmp_path, "head", "a", "b") as (head, a, b):
        (head.models / "m" / "sub").mkdir(parents=True)
        (head.models / "m" / "config.json").write_bytes(b"{}")
        (head.models / "m" / "sub" / "w.safetensors").write_bytes(content(3 * MIB))
        for name in ("x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "y.gguf"):
            (head.models / name).write_bytes(content(MIB, len(name)))
        (head.models / "o").mkdir()
        for name in ("z.onnx", "z.onnx_data", "tokenizer.json", "en-vocab.txt", "other.onnx"):
            (head.models / "o" / name).write_bytes(content(9, len(name)))
        for path in ("m", "x-00001-of-00002.gguf", "o/z.onnx"):
            assert (await a.fetch(path, head)).error is None
        assert {each.relative_to(a.models).as_posix() for each in a.models.rglob("*") if ".round" not in str(each)} == {
            "m",
            "m/config.json",
            "m/sub",
            "m/sub/w.safetensors",
            "o",
            "o/en-vocab.txt",
            "o/tokenizer.json",
            "o/z.onnx",
            "o/z.onnx_data",
            "x-00001-of-00002.gguf",
            "x-00002-of-00002.gguf",
        }
        copied = a.models / "m" / "sub" / "w.safetensors"
        assert copied.read_bytes() == content(3 * MIB)
        assert copied.stat().st_mtime_ns == (head.models / "m" / "sub" / "w.safetensors").stat().st_mtime_ns
        head.kill()
        found = await b.fetch("m", head, a)
        assert found.error is not None
        assert found.error.code == "source_unavailable", "a mirror may have a part, and does not say what belongs to it"
        found = await b.fetch("m", a)
        assert found.error is None, found.error
        assert (b.models / "m" / "sub" / "w.safetensors").read_bytes() == content(3 * MIB)


async def test_kill_in_the_middle_resumes_and_a_flipped_byte_is_fetched_again(tmp_path: Path) -> None:
    size = 34 * MIB  # two segments
    with running(tmp_path, "head", "a") as (head, a):
        (head.models / "x.gguf").write_bytes(content(size))
        async with a.client as client:

            async def order() -> Any:
                with contextlib.suppress(Exception):
                    return await client.order_download(CopyOrder(reference="head:x.gguf", peers=[head.url]))

            await until("the program listens", order)
            journals = a.models / ".roundhouse" / "partial"
            done = await until(
                "a part is here",
                lambda: [each for each in journals.rglob("*.journal") if each.read_text().count("\n") > 2],
            )
            a.kill()
        assert not (a.models / "x.gguf").exists()
        [journal] = done
        partial, before = journal.with_suffix(""), journal.read_text().split("\n\n")
        first, _, end = before[1].strip().partition(" ")
        with partial.open("r+b") as file:  # what a power cut does to bytes that were not on disk yet
            file.seek(int(first))
            file.write(b"\0" * 8)
        assert int(end) <= size
        a.start()
        assert (await a.fetch("x.gguf", head)).error is None
        assert (a.models / "x.gguf").read_bytes() == content(size)

        (head.models / "y.gguf").write_bytes(content(MIB))
        assert (await a.fetch("y.gguf", head)).error is None
        placed = a.models / "y.gguf"
        with placed.open("r+b") as file:
            file.seek(MIB // 2)
            file.write(bytes([content(MIB)[MIB // 2] ^ 1]))
        changed = placed.read_bytes()
        found = await a.fetch("y.gguf", head)
        assert found.error is not None
        assert found.error.code == "models_file_conflict"
        assert placed.read_bytes() == changed, "what was changed there since is somebody's own"
        placed.unlink()
        assert (await a.fetch("y.gguf", head)).error is None
        (head.models / "y.gguf").write_bytes(content(MIB, 1))
        assert (await a.fetch("y.gguf", head)).error is None
        assert placed.read_bytes() == content(MIB, 1), "the head's is another one now"


async def test_what_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "head", "a") as (head, a), mount_small_disk(tmp_path / "small", 2048) as disk:
        (tmp_path / "secret").write_bytes(b"s" * 64)
        (head.models / "big.gguf").write_bytes(content(3 * MIB))
        (head.models / "link.gguf").symlink_to("../../secret")
        (head.models / "f").mkdir()
        (head.models / "f" / "link").symlink_to("../big.gguf")
        (a.models / "big.gguf").write_bytes(b"somebody's own")
        found = await a.fetch("big.gguf", head)
        assert found.error is not None
        assert found.error.code == "models_file_conflict"
        assert (a.models / "big.gguf").read_bytes() == b"somebody's own"
        for path in ("link.gguf", "f"):
            found = await a.fetch(path, head)
            assert found.error is not None
            assert "symbolic link" in found.error.message
        small = HostProgram(disk.folder, free_port())
        try:
            small.start()
            found = await small.fetch("big.gguf", head)
            assert found.error is not None
            assert found.error.code == "models_disk_full"
        finally:
            small.kill()
        digest = hashlib.sha256(content(3 * MIB)).hexdigest()
        token = {"authorization": f"Bearer {derive_share_token(TOKEN)}"}
        with httpx2.Client(base_url=head.url) as client:
            for headers in ({}, {"authorization": f"Bearer {TOKEN}"}, {"x-roundhouse-transfers-token": TOKEN}):
                assert client.get("/models/big.gguf", headers=headers).status_code == 401
                assert client.get(f"/files/big.gguf?sha256={digest}", headers=headers).status_code == 401
            whole = client.get(f"/files/big.gguf?sha256={digest}", headers=token)
            assert (whole.status_code, whole.content) == (200, content(3 * MIB))
            assert client.get(f"/files/big.gguf?sha256={digest[::-1]}", headers=token).status_code == 404
            far = {"range": f"bytes={4 * MIB}-{5 * MIB}"}
            beyond = client.get(f"/files/big.gguf?sha256={digest}", headers=token | far)
            assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{3 * MIB}")
            outside = ("../secret", "%2e%2e/secret", "/etc/passwd", ".roundhouse/lock", "link.gguf", "f/link", "f/../f")
            for path in outside:
                for kind in ("models", "files"):
                    assert client.get(f"/{kind}/{path}", headers=token).status_code == 404, path
            assert client.post("/downloads", headers=token).status_code == 404, "the controller's routes are not here"


def test_each_range_is_asked_of_the_mirrors_first_and_what_is_wrong_is_fetched_again(tmp_path: Path) -> None:
    body = content(3 * MIB)
    digest = hashlib.sha256(body).hexdigest()
    (tmp_path / "token").write_text(TOKEN)
    with file_server() as head, file_server() as mirror, file_server() as poor:
        shown = SharedModel(files=[SharedFile(path="x.gguf", size=len(body), mtime_ns=7 * 10**9, sha256=digest)])
        head.answers["/models/x.gguf"] = lambda _: (200, {}, shown.model_dump_json().encode())
        head.files["/files/x.gguf"] = mirror.files["/files/x.gguf"] = body
        peers = (head.url, mirror.url, poor.url)  # the last one has nothing

        def fetch_into(name: str) -> Download:
            for server in (head, mirror, poor):
                server.requests.clear()
            (tmp_path / name).mkdir()
            with make_transfers(tmp_path / name, head, transfers_share_token_file=str(tmp_path / "token")) as program:
                order, _ = program.board.order(HeadReference("x.gguf"), include_pickle=False, peers=peers)
                return wait_for_end(program, order.id)

        assert fetch_into("a").error is None
        assert [path.partition("?")[0] for path, _ in head.requests] == ["/models/x.gguf"]
        shows = {headers.get("authorization") for path, headers in head.requests + mirror.requests + poor.requests}
        assert shows == {f"Bearer {derive_share_token(TOKEN)}"}, "nobody gets the installation's own"
        assert (tmp_path / "a" / "x.gguf").stat().st_mtime_ns == 7 * 10**9
        mirror.files["/files/x.gguf"] = bytes(len(body))
        assert fetch_into("b").error is None
        assert (tmp_path / "b" / "x.gguf").read_bytes() == body
        head.files["/files/x.gguf"] = bytes(len(body))
        found = fetch_into("c")
        assert found.error is not None
        assert found.error.code == "source_mismatch"
        assert not (tmp_path / "c" / "x.gguf").exists()


async def test_a_file_that_cannot_be_read_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"x")
    shared = SharedModels([ModelsFolder(tmp_path, 0)], DigestStore(), lambda *_: None)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with contextlib.closing(shared), monkeypatch.context() as patch:
        patch.setattr("transfers.sharing.hash_file", fail)
        assert shared.list_model("x.gguf").files[0].sha256 is None
        await until("it was tried", lambda: not shared._hashing)
        with pytest.raises(RoundhouseError, match=r"'x\.gguf' cannot be read: Input/output error"):
            shared.list_model("x.gguf")
        patch.undo()
        await until("it is read", lambda: shared.list_model("x.gguf").files[0].sha256)


def test_a_copy_replaces_only_what_it_put_there_itself(tmp_path: Path) -> None:
    tools = make_transfers(tmp_path / "models", FileServer(1))._tools
    target = tools.folder.path / "x"
    target.parent.mkdir(exist_ok=True)
    records: list[DownloadRecord] = []
    others: list[PlacedFile] = []

    def copy(body: bytes, during: bytes | None = None) -> None:
        before = records[-1] if records else DownloadRecord(id="dl", reference="head:x", created_at=0.0)
        listed = [*before.placed, *others]
        job = DownloadJob(tools, before, HeadReference("x"), records.append, lambda: listed)
        (tmp_path / "head").write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()

        def fetch(file: SourceFile, partial: Path) -> FileHash:
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(body)
            if during is not None:
                target.unlink(missing_ok=True)
                target.write_bytes(during)
            return FileHash(digest, "")

        job._fetch = fetch  # type: ignore[method-assign]
        resolution = Resolution("head:x", "head:x", None, (SourceFile("x", len(body), digest, url="u"),), "")
        job.progress.set_files(resolution)
        job._fetch_missing(resolution)

    copy(b"one")
    copy(b"two")
    assert target.read_bytes() == b"two"
    assert [len(each.placed) for each in records[-2:]] == [2, 1], "both, until the new one is there"
    records.append(records[-2])  # a kill after the move
    copy(b"three")
    for body, during in ((b"four", b"own"), (b"five", None)):
        with pytest.raises(RoundhouseError, match="in the models folder is"):
            copy(body, during)
        assert target.read_bytes() == b"own"
    records.clear()
    others.append(PlacedFile(path="x", size=3, sha256=hashlib.sha256(b"own").hexdigest(), mtime_ns=1))
    copy(b"own")
    assert records[-1].placed == [], "another download's"


def test_a_copy_of_one_file_does_not_wait_for_another_in_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with file_server() as head, make_transfers(tmp_path, head, transfers_share_token_file=str(tmp_path / "token")) as a:
        shown = SharedFile(path="x.gguf", size=1, mtime_ns=7, sha256=hashlib.sha256(b"x").hexdigest())
        answer = SharedModel(files=[shown]).model_dump_json().encode()
        head.answers["/models/x.gguf"] = lambda _: (200, {}, answer)
        head.files["/files/x.gguf"] = b"x"
        with a._tools.locks.hold("", lambda: None):
            order, _ = a.board.order(HeadReference("x.gguf"), include_pickle=False, peers=(head.url,))
            assert wait_for_end(a, order.id).error is None


def test_a_download_under_way_gives_others_what_it_has(tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    partial.write_bytes(b"0123456789")
    tools = make_transfers(tmp_path / "models", FileServer(1))
    record = DownloadRecord(id="dl", reference="head:x", created_at=0.0, peers=["http://127.0.0.1:1"])
    job = DownloadJob(tools._tools, record, HeadReference("x"), lambda _: None, list)
    file = SourceFile("x", 10, "hash", url="http://x")
    job._partials = {"x": (file, partial)}
    journal = FetchJournal.of_partial(partial)
    journal.begin(file.identity)
    journal.add((2, 5))
    journal.add((5, 10))
    given = [(2, 5), (3, 9), (2, 10), (4, 99)]
    assert [job.find_partial("x", "hash", *each) for each in given] == [partial] * 4
    for path, digest, start, end in (("x", "hash", 1, 3), ("x", "other", 2, 5), ("y", "hash", 2, 5)):
        assert job.find_partial(path, digest, start, end) is None
