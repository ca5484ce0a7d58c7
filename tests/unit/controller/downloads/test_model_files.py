"""What lies in the models folders, and what of it may be removed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contract.downloads import DownloadOrder
from contract.errors import RoundhouseError
from contract.model_files import ModelFile
from controller.artifacts.model_roots import ModelRoots
from controller.downloads.file_service import list_models
from controller.hosts import Host
from controller.state import ObservedReplica, Phase, ReplicaId
from controller.transfers_client import TransfersClient, transfers_address
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.controller_app import Running, running
from tests.support.gguf_files import write_llama
from tests.support.wait import until

REFERENCE = "hf:user/tiny-GGUF:Q8_0"
PINNED = "hf:user/tiny-GGUF/tiny-Q8_0.gguf@abc123"
MAIN = "user/tiny-GGUF/tiny-Q8_0.gguf"
PROJECTOR = "user/tiny-GGUF/mmproj-F16.gguf"


def put(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"12345")


def test_files_sets_and_folders(tmp_path: Path) -> None:
    put(tmp_path, "one.gguf", "notes.txt", ".roundhouse/records/dl_1.json", "u/.cache/x")
    put(tmp_path, os.fsdecode(b"\xff.gguf"), os.fsdecode(b"caf\xe9/model.gguf"))  # no JSON can hold such a name
    put(tmp_path / "u/r", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "config.json")
    put(tmp_path / "hf", "config.json", "model.safetensors", "sub/tokenizer.json", "extra.gguf")
    (tmp_path / "broken.gguf").symlink_to(tmp_path / "nowhere")
    found = list_models(ModelRoots((tmp_path, tmp_path / "missing")))
    assert found.is_complete
    assert [(each.path, each.is_folder, len(each.files), each.size) for each in found.models] == [
        ("hf", True, 3, 15),
        ("hf/extra.gguf", False, 1, 5),
        ("notes.txt", False, 1, 5),
        ("one.gguf", False, 1, 5),
        ("u/r/big-00001-of-00002.gguf", False, 2, 10),
        ("u/r/config.json", False, 1, 5),
    ]


def test_a_list_of_too_many_files_is_incomplete(tmp_path: Path) -> None:
    put(tmp_path, "a.gguf", "b.gguf", "c.gguf")
    found = list_models(ModelRoots((tmp_path,)), most_files=2)
    assert ([each.path for each in found.models], found.is_complete) == (["a.gguf", "b.gguf"], False)


@dataclass
class Site:
    """A controller whose models folder has a download, and a file that somebody put there."""

    running: Running
    transfers: FakeTransfers
    root: Path

    async def rows(self) -> dict[str, ModelFile]:
        return {each.path: each for each in (await self.running.controller.model_files.list_files()).models}

    async def order(self, reference: str = REFERENCE) -> None:
        async with TransfersClient(transfers_address(self.transfers.url, None)) as client:
            download, _ = await client.order_download(DownloadOrder(reference=reference))
        self.transfers.set_state(download.id, "finished")

    def use(self, **fields: Any) -> None:
        service = self.running.controller.declaration_service
        service.put_declaration("models", "tiny", {"enabled": False, **fields}, actor="ada")

    async def removal(self, name: str) -> tuple[list[str], list[str]]:
        removal = await self.running.controller.model_files.remove_model(name, actor="ada")
        return removal.removed, removal.kept

    async def refuse(self, name: str) -> RoundhouseError:
        before = sorted(path for path in self.root.rglob("*.gguf"))
        with pytest.raises(RoundhouseError) as refused:
            await self.removal(name)
        assert sorted(path for path in self.root.rglob("*.gguf")) == before
        return refused.value


@pytest.fixture
async def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr("controller.downloads.file_service.DISCOVER_EVERY_S", 0.05)
    write_llama(folder / "hand.gguf", layers=1)
    content = (folder / "hand.gguf").read_bytes()
    async with FakeTransfers(folder, folder) as transfers:
        transfers.sources[REFERENCE] = FakeSource({MAIN: content, PROJECTOR: b"x"}, MAIN, PINNED, PROJECTOR)
        models = {"mine": {"model_path": "hand.gguf", "enabled": False}}
        async with running(folder, models, transfers_url=transfers.url) as started:
            site = Site(started, transfers, folder)
            await site.order()
            yield site


async def test_the_list_says_who_put_it_there_who_uses_it_and_what_it_takes(site: Site) -> None:
    rows = await site.rows()
    mine, tiny = rows["hand.gguf"], rows[MAIN]
    assert (mine.origin, mine.used_by, mine.reference, mine.download) == ("hand", ["mine"], None, None)
    assert (tiny.origin, tiny.used_by, tiny.reference) == ("download", [], PINNED)
    assert (tiny.memory_on, tiny.memory_source) == ("host", "predicted")
    assert tiny.memory_mib == mine.memory_mib
    site.use(model_path=MAIN, llama_server_n_ctx=512, llama_server_mmproj=PROJECTOR)
    rows = await site.rows()
    assert (rows[MAIN].used_by, rows[PROJECTOR].used_by) == (["tiny"], ["tiny"])


async def test_models_that_share_a_file_have_each_their_own_memory(site: Site) -> None:
    """A longer context takes more. Nothing is said by model where one uses the file, or all take the same."""
    site.use(model_path="hand.gguf")
    row = (await site.rows())["hand.gguf"]
    assert (row.used_by, row.memory_by_model) == (["mine", "tiny"], {})
    site.use(model_path="hand.gguf", llama_server_n_ctx=65536)
    row = (await site.rows())["hand.gguf"]
    small, large = (row.memory_by_model[name] for name in ("mine", "tiny"))
    assert (small.memory_on, small.memory_source) == (large.memory_on, large.memory_source) == ("host", "predicted")
    assert small.memory_mib is not None
    assert large.memory_mib is not None
    assert small.memory_mib < large.memory_mib
    assert row.memory_mib == large.memory_mib, "the most"
    site.use(model_path="hand.gguf", llama_server_n_ctx=65536, gpus=1)
    row = (await site.rows())["hand.gguf"]
    assert [row.memory_by_model[name].memory_on for name in row.used_by] == ["host", "gpu"]


async def test_a_download_is_removed_as_a_whole_but_a_file_beside_it_alone(site: Site) -> None:
    for name in (MAIN, REFERENCE, PINNED, "user/tiny-GGUF:Q8_0", "user/tiny-GGUF/"):
        assert await site.removal(name) == ([PROJECTOR, MAIN], [])
        assert not (site.root / MAIN).exists()
        entry = site.running.controller.journal.read_page(("download",), None, None, 1)[0]
        assert (entry.actor, entry.details["step"]) == ("ada", "removed")
        site.transfers.set_state(next(iter(site.transfers.downloads)), "finished")
    assert await site.removal(PROJECTOR) == ([PROJECTOR], [])


async def test_what_two_downloads_have_goes_with_the_path_and_stays_with_one_reference(site: Site) -> None:
    other = "hf:user/tiny-GGUF"
    site.transfers.sources[other] = site.transfers.sources[REFERENCE]
    await site.order(other)
    assert await site.removal(other) == ([], [PROJECTOR, MAIN])
    await site.order(other)
    assert await site.removal(MAIN) == ([PROJECTOR, MAIN], [])


async def test_what_a_model_names_stays(site: Site) -> None:
    uses = {"model_path": MAIN, "llama_server_mmproj": PROJECTOR, "llama_server_draft_model_path": MAIN}
    for field, path in uses.items():
        site.use(**{"model_path": "hand.gguf", field: path})
        for name in (path, MAIN, REFERENCE, "user"):
            error = await site.refuse(name)
            assert error.entry.code == "models_file_in_use"
            assert "tiny" in error.message
    site.running.controller.declaration_service.drop_declaration("models", "tiny", actor="ada")
    (site.root / "link.gguf").symlink_to(site.root / MAIN)
    site.use(model_path="link.gguf")
    assert (await site.refuse(MAIN)).entry.code == "models_file_in_use", "the same file through a link"
    site.running.controller.declaration_service.drop_declaration("models", "tiny", actor="ada")
    assert await site.removal(REFERENCE) == ([PROJECTOR, MAIN], [])


@pytest.mark.parametrize(
    ("argument", "is_used"),
    [("/models/o/r/config.json", True), ("/models/o/r", True), ("--model=/models/o/r", True), ("/models/o", False)],
)
async def test_what_an_engine_still_has_stays(
    site: Site, argument: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the engine got a file, or the folder with it."""
    replica = ObservedReplica(ReplicaId("gone", 0, "hash"), "gone-0", Phase.RUNNING, 1.0, argv=(argument,))
    site.transfers.sources["hf:o/r"] = FakeSource({"o/r/config.json": b"{}"}, "o/r", "hf:o/r@abc123")
    await site.order("hf:o/r")
    files = site.running.controller.model_files
    found = files._read_round()
    current_round = replace(found, observed=replace(found.observed, replicas=(replica,)))
    monkeypatch.setattr(files, "_read_round", lambda: current_round)
    if is_used:
        assert (await site.refuse("hf:o/r")).entry.code == "models_file_in_use"
        assert (await site.refuse("o/r/config.json")).entry.code == "models_file_in_use"
    else:
        assert await site.removal("hf:o/r") == (["o/r/config.json"], [])


async def test_a_download_that_is_served_because_it_is_there_is_removed_and_so_is_its_model(site: Site) -> None:
    (site.root / "desired/discover.yaml").write_text("discover: true\n")

    async def is_discovered() -> bool:
        return (await site.rows())[MAIN].used_by == ["tiny-Q8_0"]

    await until("the download is served", is_discovered)
    assert await site.removal(MAIN) == ([PROJECTOR, MAIN], [])

    models = site.running.controller.get_status
    await until("its model is gone", lambda: [each.name for each in models().models] == ["mine"])


async def test_what_no_download_put_there_stays(site: Site) -> None:
    for name in ("hand.gguf", "nothing.gguf", "", "/", "..", "hf:other/repo", "user/tiny"):
        assert (await site.refuse(name)).entry.code == "models_file_kept", name


async def test_without_transfers_nothing_is_removed(site: Site) -> None:
    await site.transfers.close()
    assert (await site.rows())[MAIN].origin == "download", "the list needs none"
    assert (await site.refuse(MAIN)).entry.code == "transfers_unreachable"
    await site.transfers.open()


async def test_nothing_is_discovered_while_the_gpus_of_one_host_are_unknown(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = site.running.controller.model_files
    current = service._read_round()

    async def discovered(*hosts: Host) -> object:
        observed = replace(current.observed, hosts=hosts)
        monkeypatch.setattr(service, "_read_round", lambda: replace(current, observed=observed))
        return await service.discover_models({})

    assert await discovered(Host("a", gpus=()), Host("b", gpus=())) is not None
    assert await discovered(Host("a", gpus=()), Host("b", gpus=None)) is None
    assert await discovered() is None
