"""`search`, `pull`, `models` and `rm` against a whole controller, which asks a stand-in of `transfers`; and how a
download is shown, on a terminal and without one."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from cli import following
from cli.following import BarView, LineView, open_view
from cli.output import ExitCode, duration_words, size_words
from contract.downloads import Download, DownloadFile, FoundRepository, Inspection, ModelChoice
from contract.errors import RoundhouseError
from contract.model_files import DeviceFit, MemoryForecast
from controller.downloads.service import build_fields
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.cli import PROGRAM, Cli, Output, Terminal
from tests.support.controller_app import Running, running
from tests.support.gguf_files import write_llama
from tests.support.wait import DEADLINE_S, until

REFERENCE = "hf:user/tiny-GGUF:Q8_0"
PINNED = "hf:user/tiny-GGUF/tiny-Q8_0.gguf@abc123"
MAIN = "user/tiny-GGUF/tiny-Q8_0.gguf"


@dataclass
class Site:
    """A controller, and the `transfers` that it asks. `run` runs a command."""

    running: Running
    transfers: FakeTransfers
    root: Path
    run: Cli

    async def start(self, *arguments: str, **streams: Any) -> asyncio.subprocess.Process:
        """A command as a process of its own."""
        given = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **streams}
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        return await asyncio.create_subprocess_exec(
            PROGRAM, *arguments, "--controller", self.running.url, env=environment, **given
        )

    def pull(self, *arguments: str) -> asyncio.Task[Output]:
        """Begin `pull` of the model."""
        return asyncio.create_task(self.run("pull", REFERENCE, *arguments))

    async def order(self) -> str:
        """The id of the download, once it is ordered."""
        await until("it is ordered", lambda: any(each.state == "queued" for each in self.transfers.downloads.values()))
        return next(iter(self.transfers.downloads))

    @property
    def size(self) -> int:
        """Bytes of the model."""
        return self.transfers.sources[REFERENCE].size_of(MAIN)


@pytest.fixture
async def site(folder: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Site]:
    write_llama(folder / "hand.gguf", layers=1)
    async with FakeTransfers(folder, folder) as transfers:
        transfers.sources[REFERENCE] = FakeSource({MAIN: (folder / "hand.gguf").read_bytes()}, MAIN, PINNED)
        models = {"mine": {"model_path": "hand.gguf", "enabled": False}}
        async with running(folder, models, transfers_url=transfers.url) as controller:
            yield Site(controller, transfers, folder, Cli(capsys, "--controller", controller.url))


async def test_search_lists_what_to_pull(site: Site) -> None:
    choice = ModelChoice(
        reference=REFERENCE, format="gguf", quantisation="Q8_0", main=MAIN, projector="p", file_count=2, size=2**30
    )
    hand = choice.model_copy(update={"reference": "hf:user/tiny-GGUF/a b.gguf", "main": "hand.gguf", "projector": None})
    site.transfers.found = [
        FoundRepository(repository="user/tiny-GGUF", is_gated=True, left_out=3, choices=[choice, hand]),
        FoundRepository(repository="user/tiny-GGUF-broken", reason="The hub does not show it."),
    ]
    code, out, err = await site.run("search", "tiny-GGUF")
    assert code == ExitCode.DONE
    head, first, second = out.splitlines()
    assert head.split() == ["REF", "QUANTISATION", "SIZE", "FITS", "HERE"]
    assert first.startswith(REFERENCE)
    assert "Q8_0 + mmproj" in first
    assert "1.00 GiB" in first
    assert "about 2151 MiB; fits in main memory" in first
    assert first.endswith("-")
    assert second.endswith("used by mine")
    assert err.splitlines() == [
        "roundhouse: user/tiny-GGUF: gated: accept its terms on the hub, and set `ROUNDHOUSE_HUB_TOKEN_FILE`",
        "roundhouse: user/tiny-GGUF: 3 more models, which the hub's page lists",
        "roundhouse: user/tiny-GGUF-broken: The hub does not show it.",
        f"roundhouse: `roundhouse pull {REFERENCE}` downloads one, `roundhouse serve {REFERENCE}` also serves it",
    ]
    printed = (await site.run("search", "tiny-GGUF", "--limit", "1", "--json")).json
    assert [each["repository"] for each in printed["repositories"]] == ["user/tiny-GGUF"]


async def test_a_search_that_finds_nothing_is_refused_or_cannot_be_asked(site: Site) -> None:
    code, out, err = await site.run("search", "no", "such")
    said = "roundhouse: the hub has no model in GGUF or safetensors with 'no such' in its name\n"
    assert (code, out, err) == (ExitCode.DONE, "", said)
    for words in ((" ",), ("x" * 201,), ("a\nb",)):
        code, _, err = await site.run("search", *words)
        assert code == ExitCode.USAGE
        assert "WORDS are empty, longer than 200 characters, or have control characters" in err
    site.transfers.refusal = RoundhouseError("source_unavailable", "No connection to the hub: no route.")
    code, out, err = await site.run("search", "tiny")
    assert (code, out, err.count("\n")) == (ExitCode.FAILED, "", 1)
    assert "No connection to the hub: no route." in err
    site.transfers.refusal = None


async def test_pull_declares_what_it_fetched(site: Site) -> None:
    pulling = asyncio.create_task(site.run("pull", "user/tiny-GGUF:Q8_0", "--declare"))
    download = await site.order()
    site.transfers.set_state(download, "downloading", done=site.size // 2)
    site.transfers.set_state(download, "finished")
    code, out, err = await pulling
    assert (code, out) == (
        ExitCode.DONE,
        f"model_path: {MAIN}\nsource: {PINNED}\ntiny: declared; `roundhouse status --wait` waits until it serves\n",
    )
    first, memory, *_ = err.splitlines()
    assert first.startswith(f"roundhouse: {REFERENCE}: 1 file, {size_words(site.size)}; ")
    assert memory.startswith("roundhouse: memory: ")
    assert memory.endswith("MiB, at the default context; fits in main memory")
    declared = site.running.controller.declaration_service.get_declaration("models", "tiny")
    assert declared.fields == {"source": PINNED, "backend": "llama_server"}
    again = site.pull("--declare", "--json")
    site.transfers.set_state(await site.order(), "finished")
    printed = (await again).json
    assert (await again).code == ExitCode.DONE, "the same again changes nothing"
    assert (printed["name"], printed["declared"], printed["download"]["pinned"]) == ("tiny", True, PINNED)
    assert printed["inspection"]["files"][0]["is_present"]


async def test_what_cannot_be_declared_is_said_before_anything_is_fetched(site: Site) -> None:
    site.transfers.sources["hf:user/folder"] = FakeSource({"user/folder/x.safetensors": b"x"}, "user/folder", PINNED)
    registry = "oci:registry.example/tiny:latest"
    site.transfers.sources[registry] = FakeSource({MAIN: (site.root / "hand.gguf").read_bytes()}, MAIN, registry)
    untrusted = (
        "it cannot be declared: models.tiny.source: a request may name a model of the hub (`hf:`, `ollama:`): "
        "declare it in the desired-state files, or list `source` in ROUNDHOUSE_TRUSTED_DECLARATIONS"
    )
    no_backend = "it cannot be declared: the files do not tell which backend serves them; name it with `--backend`"
    for arguments, code, words in (
        ((registry, "--declare"), ExitCode.FAILED, untrusted),
        ((REFERENCE, "--declare", "--as", "mine"), ExitCode.FAILED, "a model mine is declared already"),
        ((REFERENCE, "--as", "other"), ExitCode.USAGE, "--as names the model of --declare"),
        (("user/folder", "--declare"), ExitCode.USAGE, no_backend),
        (("",), ExitCode.USAGE, "REF is empty"),
        (("nothing",), ExitCode.FAILED, "a repository is named USER/REPO"),
        (("user/nothing",), ExitCode.FAILED, "There is no hf:user/nothing"),
    ):
        refused = await site.run("pull", *arguments)
        assert refused.code == code
        assert words in refused.err
    assert site.transfers.downloads == {}


async def test_a_failed_download_is_shown_with_what_to_do(site: Site) -> None:
    pulling = site.pull()
    error = RoundhouseError("models_disk_full", "It needs 5 GiB.")
    site.transfers.set_state(await site.order(), "failed", error=error)
    code, _, err = await pulling
    assert (code, err.splitlines()[-1]) == (
        ExitCode.FAILED,
        "roundhouse: the download failed: It needs 5 GiB. Remove models with roundhouse rm, or enlarge the disk.",
    )
    pulling = site.pull()
    await site.order()
    cancelling = await site.pull("--cancel")
    cancelled = await pulling
    assert (cancelling.code, cancelled.code) == (ExitCode.DONE, ExitCode.FAILED)
    assert "the download was cancelled" in cancelling.err + cancelled.err
    again = await site.pull("--cancel")
    assert again.code == ExitCode.FAILED
    assert "is under way" in again.err


async def test_pull_outlives_transfers(site: Site) -> None:
    pulling = site.pull()
    download = await site.order()
    site.transfers.set_state(download, "downloading", done=10)
    await site.transfers.close()
    await site.transfers.open()
    site.transfers.set_state(download, "finished")
    done = await pulling
    assert (done.code, done.lines[0]) == (ExitCode.DONE, f"model_path: {MAIN}")


@pytest.mark.parametrize("breaks", [True, False], ids=["its connection breaks", "no stream tells of it"])
async def test_a_download_that_is_listed_no_more_ends_pull(
    site: Site, breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not breaks:
        monkeypatch.setattr(following, "LISTED_EVERY_S", 0.05)
    pulling = site.pull()
    await site.order()
    if breaks:
        await site.transfers.close()
    site.transfers.downloads.clear()
    if breaks:
        await site.transfers.open()
    code, _, err = await asyncio.wait_for(pulling, DEADLINE_S)
    line = f"roundhouse: the download of {REFERENCE} is listed no more: its files were removed"
    assert (code, err.splitlines()[-1]) == (ExitCode.FAILED, line)


async def test_without_transfers_pull_says_so_and_models_lists_all_the_same(site: Site) -> None:
    await site.transfers.close()
    refused = await site.pull()
    assert refused.code == ExitCode.FAILED
    assert "Models cannot be downloaded now: transfers accepts no connection" in refused.err
    listed = await site.run("models")
    assert listed.code == ExitCode.DONE
    assert "hand.gguf" in listed.out
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
        line = f"the download goes on; roundhouse pull {REFERENCE} --cancel ends it"  # the command is bold
        await until("it says how to cancel", lambda: line in terminal.text)
    assert site.transfers.downloads[download].state == "downloading"


async def test_a_file_that_several_models_use_has_the_memory_of_each(site: Site) -> None:
    fields: dict[str, Any] = {"model_path": "hand.gguf", "llama_server_n_ctx": 65536, "enabled": False}
    site.running.controller.declaration_service.put_declaration("models", "wide", fields, actor="ada")
    [row] = [line for line in (await site.run("models")).lines if line.startswith("hand.gguf")]
    found = re.search(r"mine: (\d+)MiB main memory, wide: (\d+)MiB main memory  +mine wide  +by hand$", row)
    assert found is not None, row
    assert int(found[1]) < int(found[2])


async def test_models_and_rm(site: Site) -> None:
    pulling = site.pull("--declare", "--as", "chat")
    site.transfers.set_state(await site.order(), "finished")
    assert (await pulling).code == ExitCode.DONE
    models = await site.run("models")
    assert models.code == ExitCode.DONE
    rows = {line.split()[0]: line for line in models.lines}
    assert rows["hand.gguf"].split()[-3:] == ["mine", "by", "hand"]
    assert rows[MAIN].split()[-2:] == ["chat", PINNED]
    assert "MiB main memory" in rows[MAIN]
    listed = (await site.run("models", "--json")).json["models"]
    assert [each["path"] for each in listed if each["path"].endswith(".gguf")] == ["hand.gguf", MAIN]
    for name, words in (
        (MAIN, "is of the model chat"),
        ("hand.gguf", "by hand"),
        ("hnad.gguf", "There is no hnad.gguf"),
    ):
        refused = await site.run("rm", name)
        assert refused.code == ExitCode.FAILED
        assert words in refused.err
    assert (await site.run("declarations", "rm", "chat")).code == ExitCode.DONE
    out = f"{MAIN}: removed\n1 file removed, {size_words(site.size)} freed\n"
    assert await site.run("rm", REFERENCE) == Output(ExitCode.DONE, out)
    assert not (site.root / MAIN).exists()


SIZES = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1048575: "1.0 MiB", 2.5 * 2**30: "2.50 GiB", 2**41: "2.00 TiB"}


@pytest.mark.parametrize(("size", "words"), SIZES.items())
def test_sizes_are_said_in_words(size: float, words: str) -> None:
    assert size_words(size) == words


@pytest.mark.parametrize(("seconds", "words"), [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (4260, "1 h 11 min")])
def test_durations_are_said_in_words(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_the_declaration_names_gpus_only_where_it_fits() -> None:
    sizes: dict[str, Any] = {"total_bytes": 1, "missing_bytes": 1, "free_bytes": 1}
    paths: dict[str, Any] = {"main": MAIN, "projector": "user/tiny-GGUF/mmproj.gguf"}
    inspection = Inspection(reference=REFERENCE, pinned=PINNED, files=[], **paths, **sizes)

    def fit(*gpus: str, fits: bool) -> DeviceFit:
        return DeviceFit(gpus=list(gpus), needed_mib=1, fits=fits, fits_alone=fits, beside=[])

    def fields(*devices: DeviceFit, backend: str | None = "llama_server") -> dict[str, Any]:
        return build_fields(inspection, MemoryForecast(summary="", backend=backend, devices=list(devices)))

    both = fields(fit("0", fits=False), fit("0", "1", fits=True), fit(fits=True))
    assert both == {"source": PINNED, "backend": "llama_server", "gpus": 2}
    assert "gpus" not in fields(fit("0", fits=False), fit(fits=True))
    assert fields(fit("0", fits=True), fit("0", "1", fits=True))["gpus"] == 1
    assert fields(backend=None) == {"source": PINNED}


# What is shown of a download.

GIB = 2**30


def download(state: str, *done: int, **more: Any) -> Download:
    """A download of files of one GiB each."""
    files = [DownloadFile(path=f"u/r/file-{n}.gguf", size=GIB, done_bytes=each) for n, each in enumerate(done)]
    sums = {"total_bytes": len(files) * GIB, "done_bytes": sum(done), "main": files[0].path if files else None}
    given = {"id": "dl_1", "reference": "hf:u/r", "state": state, "files": files, "created_at": 1.0}
    return Download.model_validate(given | sums | more)


def test_lines_come_with_each_state_reason_and_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with open_view() as view:
        assert isinstance(view, LineView)
        for each in (
            download("resolving"),
            download("resolving"),
            download("downloading", 0),
            download("downloading", GIB // 100),
            download("downloading", GIB // 2, bytes_per_s=10 * 2**20, remaining_s=51.2),
            download("downloading", GIB // 2, waiting="the source asks to wait 20 s"),
            download("verifying", GIB),
            download("finished", GIB),
        ):
            view.show_download(each)
    assert capsys.readouterr().err.splitlines() == [
        "roundhouse: resolving",
        "roundhouse: downloading: 0 % of 1.00 GiB",
        "roundhouse: downloading: 50 % of 1.00 GiB, 10.0 MiB/s, 51 s left",
        "roundhouse: downloading: the source asks to wait 20 s",
        "roundhouse: verifying",
        "roundhouse: finished",
    ]


def shown(*downloads: Download) -> list[tuple[str, float, float | None, str]]:
    """Name, bytes and words of each bar in the end."""
    progress = Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO()))
    view = BarView(progress)
    for each in downloads:
        view.show_download(each)
    return [(task.description, task.completed, task.total, task.fields["words"]) for task in progress.tasks]


def test_bars_of_one_file_and_of_several() -> None:
    assert shown(download("resolving")) == [("r", 0, None, "resolving")]
    one = shown(download("resolving"), download("downloading", 7), download("verifying", GIB))
    assert one == [("file-0.gguf", GIB, GIB, "verifying")]
    two = download("downloading", GIB, 5, bytes_per_s=2048.0, remaining_s=3700.0)
    assert shown(download("resolving"), two) == [
        ("file-0.gguf", GIB, GIB, ""),
        ("file-1.gguf", 5, GIB, ""),
        ("all files", GIB + 5, 2 * GIB, "2.0 KiB/s, 1 h 1 min left"),
    ]


async def test_serve_declares_a_file_and_prints_the_lines_to_keep(site: Site, tmp_path: Path) -> None:
    write_llama(site.root / "there.gguf", layers=2, context=8192)
    asked = await site.run("serve", "there.gguf", "--as", "new", "--dry-run")
    lines = "models:\n  new:\n    model_path: there.gguf\n    backend: llama_server\n    llama_server_n_ctx: 8192\n"
    assert (asked.code, asked.out) == (ExitCode.DONE, lines)
    assert "context: 8192 of the 8192 tokens that it was trained for" in asked.err
    code, out, err = await site.run("models")
    assert (code, "there.gguf: unused; `roundhouse serve there.gguf` serves it" in err) == (ExitCode.DONE, True), out
    code, out, err = await site.run("serve", str(site.root / "there.gguf"), "--as", "new", "--no-wait")
    assert (code, out) == (ExitCode.PENDING, lines), err
    assert "these lines in a desired-state file declare it for good" in err
    definition = (await site.running.controller.admin_service.get_model("new")).definition
    assert (definition["model_path"], definition["llama_server_n_ctx"]) == ("there.gguf", 8192)
    again = await site.run("serve", "there.gguf", "--no-wait")
    assert (again.code, "there.gguf is declared already, as new" in again.err) == (ExitCode.PENDING, True)


async def test_serve_says_how_a_file_gets_there_and_why_one_is_not_served(site: Site, tmp_path: Path) -> None:
    outside = tmp_path / "my model.gguf"
    outside.write_bytes(b"x")
    code, _, err = await site.run("serve", str(outside), "--as", "mine")
    assert code == ExitCode.FAILED
    assert f"`cp '{outside}' {site.root}/ && roundhouse serve '{site.root}/my model.gguf' --as mine`" in err
    # Links of the Hugging Face cache, whose targets have no names; parts of a set; folders of links.
    snapshot = tmp_path / "models--a--b/snapshots/0123"
    snapshot.mkdir(parents=True)
    for part in ("one.gguf", "set-00001-of-00002.gguf", "set-00002-of-00002.gguf"):
        (snapshot / part).symlink_to(outside)
    for target, copying, name in (
        (snapshot / "one.gguf", f"cp {snapshot}/one.gguf", "one.gguf"),
        (snapshot, f"cp -rL {snapshot}", "0123"),
        (
            snapshot / "set-00002-of-00002.gguf",
            f"cp {snapshot}/set-00001-of-00002.gguf {snapshot}/set-00002-of-00002.gguf",
            "set-00001-of-00002.gguf",
        ),
    ):
        code, _, err = await site.run("serve", str(target))
        assert code == ExitCode.FAILED
        assert f"`{copying} {site.root}/ && roundhouse serve {site.root}/{name}`" in err
    (site.root / "bad.gguf").write_bytes(b"x")
    code, _, err = await site.run("serve", "bad.gguf")
    assert (code, err) == (
        ExitCode.FAILED,
        "roundhouse: bad.gguf is not served: bad.gguf ends within its head: was it copied to the end?\n",
    )
    code, _, err = await site.run("serve", "no such thing")
    assert (code, "is neither a file here or in a models folder" in err) == (ExitCode.USAGE, True)
    code, _, err = await site.run("serve", "hand.gguf", "--as", "-")
    assert (code, "is no name of a model" in err) == (ExitCode.USAGE, True)


async def test_serve_downloads_a_reference_first(site: Site) -> None:
    serving = asyncio.create_task(site.run("serve", REFERENCE, "--as", "tiny", "--no-wait"))
    download = await site.order()
    site.transfers.set_state(download, "finished")
    code, out, err = await serving
    assert (code, out.splitlines()[1:3]) == (ExitCode.PENDING, ["  tiny:", f"    model_path: {MAIN}"]), err
    again = asyncio.create_task(site.run("serve", REFERENCE, "--as", "tiny", "--no-wait"))
    site.transfers.set_state(await site.order(), "finished")
    assert "is declared already, as tiny" in (await again).err
    # What is declared by the reference has that model file, too.
    await site.run("declarations", "rm", "tiny")
    pulling = site.pull("--declare", "--as", "chat")
    site.transfers.set_state(await site.order(), "finished")
    assert (await pulling).code == ExitCode.DONE
    again = asyncio.create_task(site.run("serve", REFERENCE, "--as", "chat", "--no-wait"))
    site.transfers.set_state(await site.order(), "finished")
    assert "is declared already, as chat" in (await again).err


async def test_serve_says_what_a_reference_is_and_refuses_a_taken_name_before_it_downloads(site: Site) -> None:
    asked = await site.run("serve", REFERENCE, "--dry-run", "--json")
    assert asked.code == ExitCode.DONE, asked.err
    assert (asked.json["inspection"]["pinned"], asked.json["forecast"]["backend"]) == (PINNED, "llama_server")
    code, _, err = await site.run("serve", REFERENCE, "--as", "mine")
    assert (code, "a model mine is declared already: choose another name with --as" in err) == (ExitCode.FAILED, True)
    assert site.transfers.downloads == {}


async def test_ctrl_c_of_serve_leaves_the_download_and_says_so(site: Site) -> None:
    process = await site.start("serve", REFERENCE)
    await site.order()
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert f"the download goes on; `roundhouse pull {REFERENCE} --cancel` ends it" in err.decode()
