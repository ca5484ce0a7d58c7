"""A model file is declared with what it says of itself: by the route, and because it is there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.artifacts.heads import Gguf, HfFolder
from controller.artifacts.model_roots import ModelRoots
from controller.downloads import file_service
from controller.downloads.serving import FoundModel, ModelFolders, declare_file, name_models
from controller.hosts import Gpu, Host
from controller.state import ObservedState
from tests.support.controller_app import Running, running
from tests.support.gguf_files import write_bert, write_llama, write_projector
from tests.support.http_client import HttpClient
from tests.support.wait import until

FILES = "/v1/admin/models/files"


@dataclass
class Site:
    running: Running
    client: HttpClient
    root: Path

    async def declare(self, model: str, **order: Any) -> Any:
        return (await self.client.post(FILES, {"model": model, **order})).success

    async def refusal(self, model: str, **order: Any) -> str:
        reply = await self.client.post(FILES, {"model": model, **order})
        assert reply.refusal == (400, "invalid_declaration")
        return str(reply.body["error"]["message"])

    async def rows(self) -> dict[str, Any]:
        return {each["path"]: each for each in (await self.client.get(FILES)).success["models"]}

    async def models(self) -> dict[str, Any]:
        return {each["name"]: each for each in (await self.client.get("/v1/admin/models")).success["models"]}


@asynccontextmanager
async def site_of(folder: Path, models: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Site]:
    async with running(folder, models or {}, **settings) as started, aiohttp.ClientSession() as session:
        yield Site(started, HttpClient(started.url, session), folder)


async def test_a_file_is_declared_with_what_it_says_of_itself(folder: Path) -> None:
    (folder / "seer").mkdir()
    write_llama(folder / "seer/Seer-1B-Q8_0.gguf", layers=1, context=131072)
    write_projector(folder / "seer/mmproj-F16.gguf", side=28, width=64, inner=128, heads=2, out=64)
    write_bert(folder / "bert.gguf", layers=1, width=64, inner=128, heads=2, vocabulary=100)
    async with site_of(folder) as site:
        asked = await site.declare("seer/Seer-1B-Q8_0.gguf", dry_run=True)
        assert (asked["declared"], asked["trained_context"], list(await site.models())) == (None, 131072, [])
        declared = await site.declare(str(folder / "seer/Seer-1B-Q8_0.gguf"))
        assert declared == {**asked, "declared": "new"}
        assert declared["fields"] == {
            "model_path": "seer/Seer-1B-Q8_0.gguf",
            "backend": "llama_server",
            "llama_server_n_ctx": 32768,
            "llama_server_mmproj": "seer/mmproj-F16.gguf",
        }
        row = (await site.models())["Seer-1B-Q8_0"]
        assert (row["declared_by"], row["configured_enabled"]) == ("runtime", True)
        again = await site.declare("seer/Seer-1B-Q8_0.gguf")
        assert (again["name"], again["declared"]) == ("Seer-1B-Q8_0", "before")
        other = await site.declare("seer/Seer-1B-Q8_0.gguf", name="seer")
        assert (other["name"], other["declared"], list(await site.models())) == (
            "seer",
            "new",
            ["Seer-1B-Q8_0", "seer"],
        )
        assert "another model is named seer: choose another name" in await site.refusal("bert.gguf", name="seer")
        bert = await site.declare("bert.gguf", name="vectors")
        assert bert["fields"]["llama_server_embedding"] is True


async def test_the_list_says_what_can_be_served_and_why_the_rest_cannot(folder: Path) -> None:
    write_llama(folder / "good.gguf", layers=1)
    (folder / "cut.gguf").write_bytes((folder / "good.gguf").read_bytes()[:50_000])
    write_projector(folder / "mmproj-x.gguf", side=28, width=64, inner=128, heads=2, out=64)
    (folder / "part-00001-of-00002.gguf").write_bytes((folder / "good.gguf").read_bytes())
    (folder / "notes.txt").write_text("x")
    (folder / "hf").mkdir()
    (folder / "hf/config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "hf/model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (folder / "link.gguf").symlink_to(folder / "good.gguf")
    async with site_of(folder) as site:
        rows = await site.rows()
        assert (rows["good.gguf"]["serve_as"], rows["good.gguf"]["reason"]) == ("good", None)
        reasons = {path: row["reason"] for path, row in rows.items() if row["serve_as"] is None}
        assert reasons == {
            "cut.gguf": reasons["cut.gguf"],
            "desired/models.yaml": "no backend is known for files named *.yaml; declare it with `backend` in a "
            "desired-state file if one serves it",
            "hf": "vllm_serve needs a GPU, and this host has none that can be read",
            "link.gguf": "it is the same file as good.gguf",
            "mmproj-x.gguf": "it reads images or sound for the model that lies beside it, and is served with that",
            "notes.txt": "no backend is known for files named *.txt; declare it with `backend` in a desired-state "
            "file if one serves it",
            "part-00001-of-00002.gguf": "it is one of 2 parts, of which 1 are here",
        } | {path: reason for path, reason in reasons.items() if path.startswith("state/")}
        assert "was it copied to the end?" in reasons["cut.gguf"]
        assert "was it copied to the end?" in await site.refusal("cut.gguf")
        assert (await site.declare(str(folder / "hf/config.json"), dry_run=True))["path"] == "hf"
        assert f"Nothing lies at 'away.gguf' in the models folder {folder}" in await site.refusal("away.gguf")


async def test_the_context_is_what_fits_and_without_room_the_memory_is_said(folder: Path) -> None:
    write_llama(folder / "wide.gguf", layers=32, width=256, heads=8, kv_heads=8, head=128, context=65536)
    async with site_of(folder, engines_memory_mib=2500) as site:
        declared = await site.declare("wide.gguf", dry_run=True)
        assert declared["context"] == 16384
        assert declared["forecast"]["devices"][0]["fits"]
    (folder / "two").mkdir()
    (folder / "wide.gguf").rename(folder / "two/wide.gguf")
    async with site_of(folder / "two", engines_memory_mib=100) as site:
        asked = await site.declare("wide.gguf", dry_run=True)
        assert (asked["fields"], asked["declared"]) == ({}, None)
        assert asked["reason"].startswith("does not fit: ")
        assert (await site.rows())["wide.gguf"]["reason"].startswith("does not fit: ")


async def test_the_log_names_a_model_that_never_has_room_here_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that only a request would load."""
    write_llama(folder / "m.gguf", layers=32, width=256, heads=8, kv_heads=8, head=128, context=65536)
    large = {"model_path": "m.gguf", "llama_server_n_ctx": 32768, "enabled": False, "autoload": True}
    models = {"fits": {**large, "llama_server_n_ctx": 512}, "large": large}
    async with running(folder, models, engines_memory_mib=1000) as site:
        for _ in range(3):
            await site.controller._reconciler.wait_for_round()
            site.controller._wake.set()
    logged = [each for each in caplog.messages if "can never be loaded" in each]
    place = re.escape(str(folder / "desired" / "models.yaml"))
    words = rf"large \({place}:1\) can never be loaded here: it needs \d+ MiB of main memory; free: 1000 of the .*"
    assert len(logged) == 1
    assert re.fullmatch(words, logged[0]), logged


async def test_what_a_model_serves_already_is_told_as_it_is_declared(folder: Path) -> None:
    write_llama(folder / "a.gguf", layers=1, context=8192)
    write_llama(folder / "draft.gguf", layers=1)
    for part in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf"):
        write_llama(folder / part, layers=1)
    write_projector(folder / "mmproj-F16.gguf", side=28, width=64, inner=128, heads=2, out=64)
    mine = {"model_path": "a.gguf", "llama_server_n_ctx": 2048, "llama_server_draft_model_path": "draft.gguf"}
    models = {"mine": {**mine, "enabled": False}, "big": {"model_path": "big-00001-of-00002.gguf", "enabled": False}}
    async with site_of(folder, models) as site:
        known = await site.declare("a.gguf")
        assert (known["name"], known["declared"], known["context"]) == ("mine", "before", 2048)
        assert (known["trained_context"], known["fields"]["llama_server_n_ctx"]) == (8192, 2048)
        assert (known["forecast"], known["projector"], known["has_chat_template"]) == (None, None, None)
        # Another model's draft model is served by nothing yet.
        draft = await site.declare("draft.gguf")
        assert (draft["name"], draft["declared"]) == ("draft", "new")
        for number in (1, 2):
            again = await site.declare(str(folder / f"big-0000{number}-of-00002.gguf"))
            assert (again["name"], again["declared"]) == ("big", "before")


def find(*paths: str, root: str = "/m") -> ModelFolders:
    models = tuple(FoundModel(Path(root), path, not path.endswith(".gguf"), (path,), 1) for path in paths)
    return ModelFolders(models, ModelRoots((Path(root),)))


def test_a_projector_is_of_the_model_whose_whole_name_it_has() -> None:
    for projector, model, is_its in (
        ("mmproj-gemma-3-F16", "gemma-3-4b-it-Q4_K_M", True),
        ("mmproj-gemma-3", "gemma-3n-E2B-it", False),
        ("mmproj-gemma-3", "gemma-3", True),
        ("Qwen2-mmproj", "Qwen2.5-VL-7B-Q8_0", False),
        ("Qwen2.5-VL-7B.mmproj-f16", "Qwen2.5-VL-7B.Q4_K_M", True),
        ("Qwen2.5-VL-7B.mmproj-f16", "Qwen2.5-VL-7B.i1-IQ4_XS", True),
    ):
        folders = find(f"{projector}.gguf", f"{model}.gguf", "other.gguf")
        assert (folders.find_projector(folders.models[1]) is not None) == is_its, (projector, model)


def test_a_snapshot_of_the_hub_has_the_name_of_its_repository() -> None:
    hub = "models--{}/snapshots/0123abcd"
    paths = [
        hub.format("Qwen--Qwen3-8B"),
        hub.format("gpt2"),
        f"{hub.format('ann--Tiny-GGUF')}/tiny-Q8_0.gguf",
        f"{hub.format('ann--Both')}/left",
        hub.format("ann--Same"),
        hub.format("ben--Same"),
        hub.format("cat--Twice"),
        hub.format("cat--Twice").replace("0123", "4567"),
    ]
    names = {each.path: name for each, name in name_models(find(*paths).models, {}).items()}
    assert [names[path] for path in paths[:6]] == ["Qwen3-8B", "gpt2", "tiny-Q8_0", "Both", "ann/Same", "ben/Same"]
    assert len({names[path].partition("Twice-")[2] for path in paths[6:]} - {""}) == 2, "digests tell them apart"


def test_the_path_of_each_model_is_looked_up_and_not_searched_for() -> None:
    class Counted(tuple[FoundModel, ...]):
        looks = 0

        def __iter__(self) -> Iterator[FoundModel]:
            self.looks += 1
            return super().__iter__()

    one, other = find("a.gguf", "b.gguf"), find("b.gguf", root="/n")
    models = Counted((*one.models, *other.models))
    folders = ModelFolders(models, ModelRoots((Path("/m"), Path("/n"))))
    assert folders.find_names({}) == {}
    assert models.looks == 0
    assert [folders.name_path(models[n]) for n in range(3)] == ["a.gguf", "/m/b.gguf", "/n/b.gguf"]
    assert folders.find_names({"one": "/n/b.gguf"}) == {models[2]: "one"}
    assert models.looks == 2, "once to count, once to find"


def test_a_gpu_is_taken_where_one_has_room() -> None:
    folders = ModelFolders(
        (FoundModel(Path("/m"), "hf", True, ("hf/config.json",), 2**20),),
        ModelRoots((Path("/m"),)),
        {"hf": HfFolder(2**20, {"max_position_embeddings": 8192, "quantization_config": {"quant_method": "exl3"}}, {})},
    )
    gpu = Gpu("GPU-1", 0, "H200", 140_000, used_mib=1000)
    declared = declare_file(
        folders.models[0], "a", folders, ObservedState(0.0, hosts=(Host(gpus=(gpu,), memory_mib=2**17),))
    )
    assert (declared.reason, declared.fields["backend"], declared.fields["gpus"]) == (None, "exllamav3", 1)
    sizes = {"context_length": 4096, "embedding_length": 256, "block_count": 1, "attention.head_count": 4}
    head = Gguf(
        2**30,
        "llama",
        {f"llama.{key}": number for key, number in sizes.items()},
        (2**29,),
        2**20,
        0,
        0,
        100,
        has_tied_embeddings=True,
    )
    file = FoundModel(Path("/m"), "a.gguf", False, ("a.gguf",), 2**30)
    folders = ModelFolders((file,), folders.roots, {"a.gguf": head})
    fields = declare_file(file, "a", folders, ObservedState(0.0, hosts=(Host(gpus=(gpu,), memory_mib=2**17),))).fields
    assert (fields["gpus"], fields["llama_server_n_ctx"]) == (1, 4096)


async def test_what_is_there_is_served_until_it_goes_or_is_declared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.downloads.file_service.DISCOVER_EVERY_S", 0.05)
    write_llama(folder / "mine.gguf", layers=1)
    async with site_of(folder, {"own": {"model_path": "mine.gguf", "enabled": False}}) as site:
        write_llama(folder / "there.gguf", layers=2)
        assert set(await site.models()) == {"own"}

        async def expect(names: set[str]) -> None:
            async def has_them() -> bool:
                return set(await site.models()) == names

            await until(f"the models {names}", has_them)

        (folder / "desired/discover.yaml").write_text("discover: true\n")
        await expect({"own", "there"})
        row = (await site.models())["there"]
        assert (row["declared_by"], row["configured_enabled"], row["runtime_state"]) == ("discovery", False, "unloaded")
        assert row["statement"]["reason"] == "autoload: no request asked for it yet"
        assert (await site.rows())["there.gguf"]["used_by"] == ["there"]
        stored = json.loads((folder / "state/memory.json").read_text())["discovered"]
        assert stored["there"]["model_path"] == "there.gguf", "a restarted controller must not stop its engine"
        # Without a name, that model is the answer; with one, the file is the operator's.
        assert (await site.declare("there.gguf"))["declared"] == "before"
        await site.declare("there.gguf", name="kept")
        await expect({"own", "kept"})
        await site.client.request("DELETE", "/v1/admin/declarations/models/kept")
        await expect({"own", "there"})
        (folder / "there.gguf").unlink()
        await expect({"own"})
        write_llama(folder / "there.gguf", layers=2)
        await expect({"own", "there"})
        (folder / "desired/discover.yaml").write_text("discover: perhaps\n")
        problem = "must be true or false, is a string"
        controller = site.running.controller
        await until(
            "the problem", lambda: any(problem in str(each) for each in controller.get_status().desired_problems)
        )
        assert "there" in await site.models()
        (folder / "desired/discover.yaml").unlink()
        await expect({"own"})


async def test_a_look_at_files_that_did_not_change_reads_their_list_alone_and_a_slow_one_waits_longer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_service, "DISCOVER_EVERY_S", 0.05)
    lists, looks = [0.0], Counter[str]()

    def list_files(roots: ModelRoots) -> tuple[object, float]:
        looks["list"] += 1
        return file_service._list_files(roots), lists[0]

    def find_users(*arguments: Any) -> Any:
        looks["whole"] += 1
        return find(*arguments)

    find = file_service.find_users
    monkeypatch.setattr(file_service, "_time_listing", list_files)
    monkeypatch.setattr(file_service, "find_users", find_users)
    write_llama(folder / "there.gguf", layers=1)
    async with site_of(folder, {}) as site:
        (folder / "desired/discover.yaml").write_text("discover: true\n")
        files = site.running.controller.model_files

        async def is_served() -> bool:
            return set(await site.models()) == {"there"}

        await until("the file is served", is_served)

        async def are_lists_enough() -> bool:
            seen = looks.copy()
            await until("five more looks", lambda: looks["list"] >= seen["list"] + 5)
            return looks["whole"] == seen["whole"]

        # Not at once: the state folder lies in the models folder here, and is written.
        await until("looks at the list alone", are_lists_enough)
        seen = looks.copy()
        (folder / "there.gguf").touch()
        await until("a whole look", lambda: looks["whole"] > seen["whole"])
        lists[0] = 0.09
        await until("a longer pause", lambda: files.look_pause_s == 9.0)
