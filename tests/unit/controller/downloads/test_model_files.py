"""What lies in the models folders, and what of it may be removed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.downloads.model_files import list_models
from controller.downloads.transfers_client import TransfersClient, transfers_address
from controller.schema.downloads import DownloadOrder
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import ModelFile
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.controller_app import Running, running
from tests.support.gguf_files import write_llama

REFERENCE = "hf:user/tiny-GGUF:Q8_0"
PINNED = "hf:user/tiny-GGUF/tiny-Q8_0.gguf@abc123"
MAIN = "user/tiny-GGUF/tiny-Q8_0.gguf"
PROJECTOR = "user/tiny-GGUF/mmproj-F16.gguf"


def put(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"12345")


def test_files_sets_and_folders(tmp_path: Path) -> None:
    put(
        tmp_path,
        "one.gguf",
        "u/r/big-00001-of-00002.gguf",
        "u/r/big-00002-of-00002.gguf",
        "u/r/config.json",
        "hf/config.json",
        "hf/model.safetensors",
        "hf/sub/tokenizer.json",
        "hf/extra.gguf",
        "notes.txt",
        ".roundhouse/records/dl_1.json",
        "u/.cache/x",
    )
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


def test_a_folder_with_too_many_files_is_told_to_be_incomplete(tmp_path: Path) -> None:
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
        """What is listed, by path."""
        return {each.path: each for each in (await self.running.controller.model_files.list_files()).models}

    async def remove(self, name: str) -> list[str]:
        """What is removed."""
        return (await self.running.controller.model_files.remove_model(name, actor="ada")).removed

    async def refuse(self, name: str) -> RoundhouseError:
        """Why nothing is removed."""
        before = sorted(path for path in self.root.rglob("*.gguf"))
        with pytest.raises(RoundhouseError) as refused:
            await self.remove(name)
        assert sorted(path for path in self.root.rglob("*.gguf")) == before
        return refused.value

    def declare(self, **models: dict[str, Any]) -> None:
        """Write the desired-state file."""
        (self.root / "desired" / "models.yaml").write_text(json.dumps({"models": models}))


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    write_llama(folder / "hand.gguf", layers=1)
    content = (folder / "hand.gguf").read_bytes()
    async with FakeTransfers(folder, folder) as transfers:
        transfers.sources[REFERENCE] = FakeSource({MAIN: content, PROJECTOR: b"x"}, MAIN, PINNED, PROJECTOR)
        async with TransfersClient(transfers_address(transfers.url, None)) as client:
            download, _ = await client.order_download(DownloadOrder(reference=REFERENCE))
        transfers.set_state(download.id, "finished")
        models = {"mine": {"model_path": "hand.gguf", "enabled": False}}
        async with running(folder, models, transfers_url=transfers.url) as made:
            yield Site(made, transfers, folder)


async def use(site: Site, **fields: Any) -> None:
    """Declare a model at run time."""
    site.running.controller.declaration_service.put_declaration(
        "models", "tiny", {"enabled": False, **fields}, actor="ada"
    )


async def test_the_list_says_who_put_it_there_who_uses_it_and_what_it_takes(site: Site) -> None:
    rows = await site.rows()
    mine, tiny = rows["hand.gguf"], rows[MAIN]
    assert (mine.origin, mine.used_by, mine.reference, mine.download) == ("hand", ["mine"], None, None)
    assert (tiny.origin, tiny.used_by, tiny.reference) == ("download", [], PINNED)
    assert (tiny.memory_on, tiny.memory_source) == ("host", "predicted")
    assert tiny.memory_mib == mine.memory_mib
    await use(site, model_path=MAIN, llama_server_n_ctx=512, llama_server_mmproj=PROJECTOR)
    rows = await site.rows()
    assert (rows[MAIN].used_by, rows[PROJECTOR].used_by) == (["tiny"], ["tiny"])


async def test_the_list_needs_no_transfers(site: Site) -> None:
    await site.transfers.close()
    assert (await site.rows())[MAIN].origin == "download"
    await site.transfers.open()


async def test_a_download_is_removed_as_a_whole_but_a_file_beside_it_alone(site: Site) -> None:
    for name in (MAIN, REFERENCE, PINNED, "user/tiny-GGUF:Q8_0", "user/tiny-GGUF/"):
        assert await site.remove(name) == [PROJECTOR, MAIN]
        assert not (site.root / MAIN).exists()
        entry = site.running.controller.journal.read_page(("download",), None, None, 1)[0]
        assert (entry.actor, entry.details["step"]) == ("ada", "removed")
        site.transfers.set_state(next(iter(site.transfers.downloads)), "finished")
    assert await site.remove(PROJECTOR) == [PROJECTOR]


async def test_what_two_downloads_have_goes_with_the_path_and_stays_with_one_reference(site: Site) -> None:
    other = "hf:user/tiny-GGUF"
    site.transfers.sources[other] = site.transfers.sources[REFERENCE]
    async with TransfersClient(transfers_address(site.transfers.url, None)) as client:
        second, _ = await client.order_download(DownloadOrder(reference=other))
    site.transfers.set_state(second.id, "finished")
    removal = await site.running.controller.model_files.remove_model(other, actor="ada")
    assert (removal.removed, removal.kept) == ([], [PROJECTOR, MAIN])
    site.transfers.set_state(second.id, "finished")
    removal = await site.running.controller.model_files.remove_model(MAIN, actor="ada")
    assert (removal.removed, removal.kept) == ([PROJECTOR, MAIN], [])


async def test_what_a_model_names_stays(site: Site) -> None:
    for field, path in (
        ("model_path", MAIN),
        ("llama_server_mmproj", PROJECTOR),
        ("llama_server_draft_model_path", MAIN),
    ):
        await use(site, **{"model_path": "hand.gguf", field: path})
        for name in (path, MAIN, REFERENCE, "user"):
            error = await site.refuse(name)
            assert error.entry.code == "models_file_in_use"
            assert "tiny" in error.message
    site.running.controller.declaration_service.drop_declaration("models", "tiny", actor="ada")
    assert await site.remove(REFERENCE) == [PROJECTOR, MAIN]


async def test_a_path_through_a_link_is_the_same_file(site: Site) -> None:
    (site.root / "link.gguf").symlink_to(site.root / MAIN)
    await use(site, model_path="link.gguf")
    assert (await site.refuse(MAIN)).entry.code == "models_file_in_use"


async def test_what_no_download_put_there_stays(site: Site) -> None:
    for name in ("hand.gguf", "nothing.gguf", "", "/", "..", "hf:other/repo", "user/tiny"):
        assert (await site.refuse(name)).entry.code == "models_file_kept", name


async def test_without_transfers_nothing_is_removed(site: Site) -> None:
    await site.transfers.close()
    assert (await site.refuse(MAIN)).entry.code == "transfers_unreachable"
    await site.transfers.open()
