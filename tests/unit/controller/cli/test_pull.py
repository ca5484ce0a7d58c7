"""`pull`, `models` and `rm` against a whole controller, which asks a stand-in of `transfers`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from controller.cli.output import duration_words, size_words
from controller.cli.pull import following
from controller.downloads.declared_fields import build_fields
from controller.schema.downloads import Inspection
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import DeviceFit, MemoryForecast
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.cli import PROGRAM, Terminal
from tests.support.controller_app import Running, running
from tests.support.gguf_files import write_llama
from tests.support.wait import DEADLINE_S, until

REFERENCE = "hf:user/tiny-GGUF:Q8_0"
PINNED = "hf:user/tiny-GGUF/tiny-Q8_0.gguf@abc123"
MAIN = "user/tiny-GGUF/tiny-Q8_0.gguf"


@dataclass
class Site:
    """A controller, and the `transfers` that it asks."""

    running: Running
    transfers: FakeTransfers
    root: Path

    async def run(self, *arguments: str) -> int:
        """The exit code of a command."""
        return await asyncio.to_thread(run, [*arguments, "--controller", self.running.url])

    async def start(self, *arguments: str, **streams: Any) -> asyncio.subprocess.Process:
        """A command as a process of its own."""
        given = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **streams}
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        return await asyncio.create_subprocess_exec(
            PROGRAM, *arguments, "--controller", self.running.url, env=environment, **given
        )

    async def order(self) -> str:
        """The id of the download, once it is ordered."""
        await until("it is ordered", lambda: any(each.state == "queued" for each in self.transfers.downloads.values()))
        return next(iter(self.transfers.downloads))

    @property
    def size(self) -> int:
        """Bytes of the model."""
        return self.transfers.sources[REFERENCE].size_of(MAIN)


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    write_llama(folder / "hand.gguf", layers=1)
    async with FakeTransfers(folder, folder) as transfers:
        transfers.sources[REFERENCE] = FakeSource({MAIN: (folder / "hand.gguf").read_bytes()}, MAIN, PINNED)
        models = {"mine": {"model_path": "hand.gguf", "enabled": False}}
        async with running(folder, models, transfers_url=transfers.url) as made:
            yield Site(made, transfers, folder)


async def test_pull_declares_what_it_fetched(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    pulling = asyncio.create_task(site.run("pull", "user/tiny-GGUF:Q8_0", "--declare"))
    download = await site.order()
    site.transfers.set_state(download, "downloading", done=site.size // 2)
    site.transfers.set_state(download, "finished")
    assert await pulling == ExitCode.DONE
    told = capsys.readouterr()
    assert told.out == (
        f"model_path: {MAIN}\nsource: {PINNED}\ntiny: declared; `roundhouse status --wait` waits until it serves\n"
    )
    first, memory, *_ = told.err.splitlines()
    assert first.startswith(f"roundhouse: {REFERENCE}: 1 file, {size_words(site.size)}; ")
    assert memory.startswith("roundhouse: memory: ")
    assert memory.endswith("MiB, at the default context; fits in main memory")
    declared = site.running.controller.declaration_service.get_declaration("models", "tiny")
    assert declared.fields == {"source": PINNED, "backend": "llama_server"}
    again = asyncio.create_task(site.run("pull", REFERENCE, "--declare", "--json"))
    site.transfers.set_state(await site.order(), "finished")
    assert await again == ExitCode.DONE, "the same again changes nothing"
    printed = json.loads(capsys.readouterr().out)
    assert (printed["name"], printed["declared"], printed["download"]["pinned"]) == ("tiny", True, PINNED)
    assert printed["inspection"]["files"][0]["is_present"]


async def test_what_cannot_be_declared_is_said_before_anything_is_fetched(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.transfers.sources["hf:user/folder"] = FakeSource({"user/folder/x.safetensors": b"x"}, "user/folder", PINNED)
    registry = "oci:registry.example/tiny:latest"
    site.transfers.sources[registry] = FakeSource({MAIN: (site.root / "hand.gguf").read_bytes()}, MAIN, registry)
    for arguments, code, words in (
        (
            (registry, "--declare"),
            ExitCode.FAILED,
            "it cannot be declared: models.tiny.source: a request may name a model of the hub (`hf:`, `ollama:`): "
            "declare it in the desired-state files, or list `source` in ROUNDHOUSE_TRUSTED_DECLARATIONS",
        ),
        ((REFERENCE, "--declare", "--as", "mine"), ExitCode.FAILED, "a model mine is declared already"),
        ((REFERENCE, "--as", "other"), ExitCode.USAGE, "--as names the model of --declare"),
        (
            ("user/folder", "--declare"),
            ExitCode.USAGE,
            "it cannot be declared: the files do not tell which backend serves them; name it with `--backend`",
        ),
        (("",), ExitCode.USAGE, "REF is empty"),
        (("nothing",), ExitCode.FAILED, "a repository is named USER/REPO"),
        (("user/nothing",), ExitCode.FAILED, "There is no hf:user/nothing"),
    ):
        assert await site.run("pull", *arguments) == code
        assert words in capsys.readouterr().err
    assert site.transfers.downloads == {}


async def test_a_failed_download_is_told_with_what_to_do(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    pulling = asyncio.create_task(site.run("pull", REFERENCE))
    download = await site.order()
    site.transfers.set_state(download, "failed", error=RoundhouseError("models_disk_full", "It needs 5 GiB."))
    assert await pulling == ExitCode.FAILED
    assert capsys.readouterr().err.splitlines()[-1] == (
        "roundhouse: the download failed: It needs 5 GiB. Remove models with `roundhouse rm`, or enlarge the disk."
    )
    pulling = asyncio.create_task(site.run("pull", REFERENCE))
    await site.order()
    assert await site.run("pull", REFERENCE, "--cancel") == ExitCode.DONE
    assert await pulling == ExitCode.FAILED
    assert "the download was cancelled" in capsys.readouterr().err
    assert await site.run("pull", REFERENCE, "--cancel") == ExitCode.FAILED
    assert "is under way" in capsys.readouterr().err


async def test_pull_outlives_transfers(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    pulling = asyncio.create_task(site.run("pull", REFERENCE))
    download = await site.order()
    site.transfers.set_state(download, "downloading", done=10)
    await site.transfers.close()
    await site.transfers.open()
    site.transfers.set_state(download, "finished")
    assert await pulling == ExitCode.DONE
    assert capsys.readouterr().out.splitlines()[0] == f"model_path: {MAIN}"


async def test_a_download_that_is_forgotten_ends_pull(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    pulling = asyncio.create_task(site.run("pull", REFERENCE))
    await site.order()
    await site.transfers.close()
    site.transfers.downloads.clear()
    await site.transfers.open()
    assert await asyncio.wait_for(pulling, DEADLINE_S) == ExitCode.FAILED
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"roundhouse: the download of {REFERENCE} is listed no more: its files were removed"
    )


async def test_a_download_that_is_forgotten_while_it_is_followed_ends_pull(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LISTED_EVERY_S", 0.05)
    pulling = asyncio.create_task(site.run("pull", REFERENCE))
    await site.order()
    # No connection breaks, and no stream tells of it.
    site.transfers.downloads.clear()
    assert await asyncio.wait_for(pulling, DEADLINE_S) == ExitCode.FAILED
    assert f"the download of {REFERENCE} is listed no more" in capsys.readouterr().err


async def test_without_transfers_pull_says_so_and_models_lists_all_the_same(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    await site.transfers.close()
    assert await site.run("pull", REFERENCE) == ExitCode.FAILED
    assert "Models cannot be downloaded now: transfers accepts no connection" in capsys.readouterr().err
    assert await site.run("models") == ExitCode.DONE
    assert "hand.gguf" in capsys.readouterr().out
    await site.transfers.open()


async def test_ctrl_c_leaves_the_download(site: Site) -> None:
    async with Terminal() as terminal:
        process = await site.start("pull", REFERENCE, stderr=terminal.end)
        download = await site.order()
        site.transfers.set_state(download, "downloading", done=site.size // 2)
        await until("the bar is shown", lambda: "1000 B/s, 5 s left" in terminal.text)
        assert "tiny-Q8_0.gguf" in terminal.text
        process.send_signal(signal.SIGINT)
        assert await process.wait() == ExitCode.INTERRUPTED
        line = f"the download goes on; `roundhouse pull {REFERENCE} --cancel` ends it"
        await until("it says how to cancel", lambda: line in terminal.text)
    assert site.transfers.downloads[download].state == "downloading"


async def test_models_and_rm(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    pulling = asyncio.create_task(site.run("pull", REFERENCE, "--declare", "--as", "chat"))
    site.transfers.set_state(await site.order(), "finished")
    assert await pulling == ExitCode.DONE
    capsys.readouterr()
    assert await site.run("models") == ExitCode.DONE
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["hand.gguf"].split()[-3:] == ["mine", "by", "hand"]
    assert rows[MAIN].split()[-2:] == ["chat", PINNED]
    assert "MiB main memory" in rows[MAIN]
    assert await site.run("models", "--json") == ExitCode.DONE
    listed = json.loads(capsys.readouterr().out)
    assert [each["path"] for each in listed["models"] if each["path"].endswith(".gguf")] == ["hand.gguf", MAIN]
    for name, words in ((MAIN, "is of the model chat"), ("hand.gguf", "No download put 'hand.gguf'")):
        assert await site.run("rm", name) == ExitCode.FAILED
        assert words in capsys.readouterr().err
    assert await site.run("declarations", "rm", "chat") == ExitCode.DONE
    capsys.readouterr()
    assert await site.run("rm", REFERENCE) == ExitCode.DONE
    assert capsys.readouterr().out == f"{MAIN}: removed\n1 file removed, {size_words(site.size)} freed\n"
    assert not (site.root / MAIN).exists()


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1048575, "1.0 MiB"),
        (2.5 * 2**30, "2.50 GiB"),
        (2**41, "2.00 TiB"),
    ],
)
def test_sizes(size: float, words: str) -> None:
    assert size_words(size) == words


@pytest.mark.parametrize(("seconds", "words"), [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (4260, "1 h 11 min")])
def test_durations(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_the_declaration_names_gpus_only_where_it_fits() -> None:
    inspection = Inspection(
        reference=REFERENCE,
        pinned=PINNED,
        files=[],
        main=MAIN,
        projector="user/tiny-GGUF/mmproj.gguf",
        total_bytes=1,
        missing_bytes=1,
        free_bytes=1,
    )

    def fit(*gpus: str, fits: bool) -> DeviceFit:
        return DeviceFit(gpus=list(gpus), needed_mib=1, fits=fits, fits_alone=fits, beside=[])

    def fields(*devices: DeviceFit, backend: str | None = "llama_server") -> dict[str, Any]:
        return build_fields(inspection, MemoryForecast(summary="", backend=backend, devices=list(devices)))

    both = fields(fit("0", fits=False), fit("0", "1", fits=True), fit(fits=True))
    assert both == {"source": PINNED, "backend": "llama_server", "gpus": 2}
    assert "gpus" not in fields(fit("0", fits=False), fit(fits=True))
    assert fields(fit("0", fits=True), fit("0", "1", fits=True))["gpus"] == 1
    assert fields(backend=None) == {"source": PINNED}
