"""`roundhouse rag` where the gateway is not what the command expects: of another version, or not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from tests.support.ports import free_port

DOCUMENT = {"id": "d", "status": "ready", "filename": None, "error": None, "bytes": 1}
"""A document without the fields that a later version knows, or an earlier one does not."""


@asynccontextmanager
async def gateway_of_another_version(answer: dict[str, Any]) -> AsyncIterator[str]:
    """One that answers every request alike; yields its address."""

    async def respond(_: web.Request) -> web.Response:
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
        (["add", "FILE"], {"id": "d"}, "status"),
        (["add", "FILE"], DOCUMENT, "chunks"),
        (["export", "TAR"], {"data": [DOCUMENT], "has_more": False}, "sha256"),
    ],
)
async def test_a_gateway_of_another_version_is_said(
    words: list[str], answer: dict[str, Any], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fox.txt").write_text("fox")
    paths = {"FILE": str(tmp_path / "fox.txt"), "TAR": str(tmp_path / "documents.tar")}
    words = [paths.get(word, word) for word in words]
    async with gateway_of_another_version(answer) as url:
        assert await asyncio.to_thread(run, ["rag", *words, "--gateway", url]) == ExitCode.FAILED
    error = capsys.readouterr().err
    assert "the gateway is of another version than this command" in error
    assert f"`{missing}`" in error


async def test_what_searches_do_not_find_of_a_document_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    noticed = {**DOCUMENT, "media_type": "text/plain", "chunks": 3, "notice": "1 of 3 chunks are found by their words"}
    async with gateway_of_another_version({**noticed, "data": [noticed], "has_more": False}) as url:
        assert await asyncio.to_thread(run, ["rag", "ls", "--gateway", url]) == ExitCode.DONE
    assert "1 of 3 chunks are found by their words" in capsys.readouterr().out
    async with gateway_of_another_version({**noticed, "data": [], "has_more": False}) as url:
        assert await asyncio.to_thread(run, ["rag", "show", "d", "--gateway", url]) == ExitCode.DONE
    assert "\n1 of 3 chunks are found by their words" in capsys.readouterr().out


async def test_a_document_that_cannot_be_exported_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = {**DOCUMENT, "declared_media_type": None, "sha256": 3, "metadata": {}, "chunking": {}}
    async with gateway_of_another_version({"data": [document], "has_more": False}) as url:
        done = await asyncio.to_thread(run, ["rag", "export", str(tmp_path / "documents.tar"), "--gateway", url])
    assert done == ExitCode.FAILED
    assert "another version" in capsys.readouterr().err


def test_files_that_no_gateway_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fox.txt").write_text("fox")
    words = ["rag", "add", str(tmp_path), "--gateway", f"http://127.0.0.1:{free_port()}"]
    assert run(words) == ExitCode.NO_CONTROLLER
    assert "no gateway answers" in capsys.readouterr().err


async def test_a_file_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text("fox")
    failed = {**DOCUMENT, "status": "failed", "chunks": None, "error": {"message": "It is empty."}}
    async with gateway_of_another_version(failed) as url:
        assert await asyncio.to_thread(run, ["rag", "add", str(tmp_path), "--gateway", url]) == ExitCode.FAILED
