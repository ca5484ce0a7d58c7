"""From an order to a listed model with the real `transfers`, asked through the controller."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest

from cli.app import run
from cli.output import ExitCode
from contract.downloads import DownloadOrder
from contract.errors import RoundhouseError
from controller.transfers_client import TransfersClient, transfers_address
from tests.campaigns.record import REPOSITORY
from tests.support.controller_app import running
from tests.support.gguf_files import write_llama
from tests.support.wait import until


async def listens(path: Path) -> bool:
    """Whether a socket takes connections."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def transfers(folder: Path, source: Path) -> AsyncIterator[str]:
    """`python -m transfers`, which writes `folder / "models"`. Gives its address."""
    address = f"unix:{folder}/t.sock"
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "transfers",
        cwd=REPOSITORY,
        env=own
        | {
            "ROUNDHOUSE_MODELS": str(folder),
            "ROUNDHOUSE_TRANSFERS_LISTEN": address,
            "ROUNDHOUSE_TRANSFERS_LOCAL_FOLDERS": str(source),
        },
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await until("transfers listens", lambda: listens(folder / "t.sock"))
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        _, words = await process.communicate()
    assert b"Traceback" not in words
    assert b"ERROR" not in words


async def test_pull_list_and_remove(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_llama(tmp_path / "tiny-Q8_0.gguf", layers=1)
    reference = f"file:{tmp_path}/tiny-Q8_0.gguf"
    async with (
        transfers(folder, tmp_path) as address,
        running(folder, {}, transfers_url=address, trusted_declarations="source") as here,
    ):

        async def ask(*arguments: str) -> int:
            return await asyncio.to_thread(run, [*arguments, "--controller", here.url])

        assert await ask("pull", reference, "--declare", "--json") == ExitCode.DONE
        told = capsys.readouterr()
        pulled = json.loads(told.out)
        main = pulled["download"]["main"]
        assert (folder / main).read_bytes() == (tmp_path / "tiny-Q8_0.gguf").read_bytes()
        assert pulled["forecast"]["backend"] == "llama_server"
        assert pulled["forecast"]["devices"][-1]["needed_mib"] > 0
        assert await ask("models", "--json") == ExitCode.DONE
        [row] = [each for each in json.loads(capsys.readouterr().out)["models"] if each["path"] == main]
        assert (row["origin"], row["used_by"]) == ("download", [pulled["name"]])
        assert row["memory_source"] == "predicted"
        needed = {tuple(each["gpus"]): each["needed_mib"] for each in pulled["forecast"]["devices"]}
        assert row["memory_mib"] == needed[()], "what was said before is what is said of the file"
        assert await ask("rm", main) == ExitCode.FAILED
        assert await ask("declarations", "rm", pulled["name"]) == ExitCode.DONE
        assert await ask("rm", reference) == ExitCode.DONE
        assert not (folder / main).exists()
        assert f"{main}: removed" in capsys.readouterr().out
        steps = [each.details["step"] for each in here.controller.journal.read_page(("download",), None, None, 10)]
        assert steps == ["removed", "finished", "started"]


async def test_transfers_ends_without_a_complaint_while_it_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"x")
    async with AsyncExitStack() as stack:
        async with transfers(folder, tmp_path) as address:
            client = await stack.enter_async_context(TransfersClient(transfers_address(address, None)))
            await client.order_download(DownloadOrder(reference=f"file:{tmp_path}/a.gguf"))
            downloads = await stack.enter_async_context(aclosing(client.follow_downloads()))
            assert (await anext(downloads)).reference == f"file:{tmp_path}/a.gguf"
        with suppress(RoundhouseError):
            async for _ in downloads:
                pass
