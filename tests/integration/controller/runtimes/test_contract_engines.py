"""The contract of runtimes, with real engines: preflight, serving behind a token, what would run now; and that an
engine reads its model in whichever of the models folders it lies, and writes nothing there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.engines.ct2 import CT2Definition
from controller.runtimes.naming import replica_name
from controller.schema.desired import Definition
from tests.support.clockwork_folders import make_ct2
from tests.support.runtime_contract import RUN, ContractEngines, exited, only, serve_and_end
from worker.clockwork import SENTENCE

pytestmark = pytest.mark.engines

NOTES = """while [ "$1" != --slot-save-path ]; do shift; done
cd "$2" && echo "$(stat -c %A .) $(ls | wc -l)" && : > note"""
"""Says the mode of the folder for saved slots and how many files it holds, and leaves one there."""


async def test_the_stub_serves(engines: ContractEngines) -> None:
    await serve_and_end(engines, engines.stub(stub_text="all is well"), "all is well")


@pytest.mark.embedded
async def test_llama_server_serves(
    engines: ContractEngines, clockwork: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a process it is the embedded one: no program of that name is to be found. Docker's command is another's affair.
    definition = engines.llama_server("clockwork.gguf")
    shutil.copy(clockwork, engines.models / "clockwork.gguf")
    monkeypatch.setenv("PATH", str(tmp_path))
    await serve_and_end(engines, definition, SENTENCE)


async def test_preflight_says_what_files_are_missing_and_starts_nothing(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    (engines.models / "m.gguf").write_bytes(b"GGUF")
    (engines.models / "bad.gguf").write_bytes(b"nonsense")

    async def error(definition: Definition, image: str | None = None) -> str | None:
        result = await runtime.check_preflight("m", definition, image or definition.image)
        assert result.ok == (result.error is None)
        assert result.missing_image is None
        return result.error

    good = engines.shell(RUN)
    assert await error(good) is None
    assert await error(engines.stub()) is None
    assert await error(engines.shell(RUN, model_path="n.gguf")) == (
        f'model_path: n.gguf is missing from {engines.models}; did you mean "m.gguf"?'
    )
    assert "not a GGUF file" in (await error(engines.shell(RUN, model_path="bad.gguf")) or "")

    make_ct2(engines.models / "folder")
    folder = CT2Definition(backend="ct2", model_path="folder")
    for name in ("tokenizer.json", "model.bin"):
        (engines.models / "folder" / name).unlink()
        said = await error(folder, good.image)
        assert said is not None
        assert said.startswith(f"model_path: folder/{name} is missing from {engines.models}")
    assert await runtime.list_replicas() == []
    assert engines.left() == []


async def test_each_replica_finds_its_own_folder_and_what_it_wrote_there(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    definition = engines.shell(NOTES, llama_server_slot_save=True)
    said = []
    for attempt, index in enumerate((0, 1, 0), 1):
        first = engines.request(definition, attempt=attempt)
        where = replace(first.id, index=index)
        request = replace(first, id=where, name=replica_name(engines.instance, where))
        await runtime.start_replica(request)
        seen = await exited(runtime)
        rendered = await engines.runtime().render_replica(seen, definition, request.image)
        assert rendered is not None
        assert rendered.argv == seen.argv
        said.append((await runtime.read_log_tail(request.name)).strip())
        await runtime.remove_replica(request.name)
    assert said == ["drwx------ 0", "drwx------ 0", "drwx------ 1"]


async def test_what_was_not_edited_renders_as_it_runs(engines: ContractEngines) -> None:
    definition = engines.stub(stub_text="hello")
    request = engines.request(definition)
    await engines.runtime().start_replica(request)
    later = engines.runtime()
    seen = await only(later)
    rendered = await later.render_replica(seen, definition, request.image)
    assert rendered is not None
    assert (rendered.argv, rendered.image_id) == (seen.argv, seen.image_id)
    edited = await later.render_replica(seen, definition.model_copy(update={"stub_text": "bye"}), request.image)
    assert edited is not None
    assert set(edited.argv) ^ set(seen.argv) == {"--text=hello", "--text=bye"}
    await later.stop_replica(seen.name, 0)


READ_ALL = 'for word in "$@"; do case "$word" in /*) cat "$word";; esac; done'


def write_files(folder: Path, **contents: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for name, content in contents.items():
        (folder / f"{name}.gguf").write_text(f"GGUF {content}\n")
        (folder / f"{name}.gguf").chmod(0o644)
    return folder


@pytest.fixture
def roots(engines: ContractEngines, tmp_path: Path) -> ModelRoots:
    """Three folders, of which the second is laid out as the Hugging Face cache."""
    first = write_files(engines.models, both="first")
    hub, data = tmp_path / "hub", write_files(tmp_path / "data", both="data", only="only data", linked="linked to")
    model = hub / "models--a--b"
    write_files(model / "blobs", blob="a blob")
    write_files(model / "snapshots" / "1")
    for folder in (hub, model, model / "snapshots"):
        folder.chmod(0o755)
    (model / "snapshots" / "1" / "hub.gguf").symlink_to("../../blobs/blob.gguf")
    (first / "link.gguf").symlink_to(data / "linked.gguf")
    return ModelRoots((first, hub, data))


async def test_an_engine_reads_its_files_from_every_models_folder(engines: ContractEngines, roots: ModelRoots) -> None:
    runtime = engines.runtime(models=roots)
    definition = engines.shell(
        READ_ALL,
        model_path="both.gguf",
        llama_server_mmproj="models--a--b/snapshots/1/hub.gguf",
        llama_server_draft_model_path="link.gguf",
        llama_server_chat_template_file=str(roots.folders[2] / "both.gguf"),
    )
    assert (await runtime.check_preflight("m", definition, definition.image)).error is None
    request = engines.request(definition)
    await runtime.start_replica(request)
    assert (await exited(runtime)).exit is not None
    said = (await runtime.read_log_tail(request.name)).splitlines()
    assert sorted(said) == ["GGUF a blob", "GGUF data", "GGUF first", "GGUF linked to"]
    await runtime.remove_replica(request.name)


async def test_further_folders_change_nothing_of_what_runs(engines: ContractEngines, roots: ModelRoots) -> None:
    before = engines.runtime(models=ModelRoots((roots.first,)))
    definition = engines.shell(RUN, model_path="both.gguf")
    request = engines.request(definition)
    await before.start_replica(request)
    seen = await only(before)
    after = engines.runtime(models=roots)
    assert (await only(after)).id == seen.id
    rendered = await after.render_replica(seen, definition, request.image)
    assert rendered is not None
    assert rendered.argv == seen.argv
    assert f"{engines.models_inside}/both.gguf" in seen.argv
    await after.stop_replica(seen.name, 0)


async def test_a_folder_that_is_away_keeps_only_its_own_models_from_their_start(
    engines: ContractEngines, roots: ModelRoots, tmp_path: Path
) -> None:
    runtime = engines.runtime(models=ModelRoots((*roots.folders, tmp_path / "away")))
    missing = engines.shell("exit 0", model_path=str(tmp_path / "away" / "m.gguf"))
    away = tmp_path / "away"
    assert (await runtime.check_preflight("m", missing, missing.image)).error == (
        f"model_path: {away}/m.gguf is missing from {away} (which does not exist)"
    )
    request = engines.request(engines.shell(READ_ALL, model_path="only.gguf"))
    await runtime.start_replica(request)
    await exited(runtime)
    assert "GGUF only data" in await runtime.read_log_tail(request.name)
    await runtime.remove_replica(request.name)
