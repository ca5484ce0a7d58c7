"""The contract of runtimes: an engine reads its model in whichever of the models folders it lies, and writes there
nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from tests.support.runtime_contract import RUN, ContractEngines, exited, only

pytestmark = pytest.mark.engines

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
