"""The contract of runtimes, with real engines: preflight, serving behind a token, what would run now; from which models
folder an engine reads; and what memory of the host and of GPUs it is seen to hold."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from contract.desired import Definition
from controller.artifacts.model_roots import ModelRoots
from controller.engines.ct2 import CT2Definition
from controller.hosts import GpuDriver
from controller.runtimes.base import replica_name
from controller.runtimes.nvml import NvmlReader
from tests.fakes.fake_nvml import FakeNvml
from tests.support.clockwork_folders import make_ct2
from tests.support.docker_engine import DockerEngines
from tests.support.runtime_contract import RUN, ContractEngines, exited, only, serve_and_end, wait_for_log
from tests.support.wait import until
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
        f"model_path: n.gguf is missing from {engines.models}; did you mean `m.gguf`?"
    )
    assert "not a GGUF file" in (await error(engines.shell(RUN, model_path="bad.gguf")) or "")

    make_ct2(engines.models / "folder")
    folder = CT2Definition(backend="ct2", model_path="folder")
    for name in ("tokenizer.json", "model.bin"):
        (engines.models / "folder" / name).unlink()
        output = await error(folder, good.image)
        assert output is not None
        assert output.startswith(f"model_path: folder/{name} is missing from {engines.models}")
    assert await runtime.list_replicas() == []
    assert engines.left() == []


async def test_each_replica_finds_its_own_folder_and_what_it_wrote_there(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    definition = engines.shell(NOTES, llama_server_slot_save=True)
    output = []
    for attempt, index in enumerate((0, 1, 0), 1):
        first = engines.request(definition, attempt=attempt)
        where = replace(first.id, index=index)
        request = replace(first, id=where, name=replica_name(engines.instance, where))
        await runtime.start_replica(request)
        seen = await exited(runtime)
        rendered = await engines.runtime().render_replica(seen, definition, request.image)
        assert rendered is not None
        assert rendered.argv == seen.argv
        output.append((await runtime.read_log_tail(request.name)).strip())
        await runtime.remove_replica(request.name)
    assert output == ["drwx------ 0", "drwx------ 0", "drwx------ 1"]


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
    output = (await runtime.read_log_tail(request.name)).splitlines()
    assert sorted(output) == ["GGUF a blob", "GGUF data", "GGUF first", "GGUF linked to"]
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


async def test_a_missing_folder_stops_its_models_alone(
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


OWN_MIB = 96
SHARED_MIB = 64
CHILD_MIB = 32
MAPPED_MIB = 48
READ_MIB = 80
HELD_MIB = OWN_MIB + SHARED_MIB + CHILD_MIB + MAPPED_MIB
"""What counts, beside what Python takes itself. The shared part counts once, the file that was only read does not."""

BALLAST = f"""\
import mmap, os, pathlib, time
folder = pathlib.Path(os.environ["BALLAST"])
folder.joinpath("read").write_bytes(os.urandom(2**20) * {READ_MIB})
folder.joinpath("mapped").write_bytes(os.urandom(2**20) * {MAPPED_MIB})
folder.joinpath("read").read_bytes()
shared = bytearray(os.urandom(2**20)) * {SHARED_MIB}
child_holds, tell = os.pipe()
if os.fork() == 0:
    mine = bytearray(os.urandom(2**20)) * {CHILD_MIB}
    os.write(tell, b".")
    time.sleep(600)
own = bytearray(os.urandom(2**20)) * {OWN_MIB}
with folder.joinpath("mapped").open("rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
touched = sum(mapped[each] for each in range(0, len(mapped), 4096))
os.read(child_holds, 1)
print("holds it", flush=True)
time.sleep(600)
"""
"""A program that holds a known amount of memory, in the place of an engine."""
PYTHON_MIB = 40
"""More than two bare interpreters take."""


async def test_shared_memory_counts_once_and_the_cache_not_at_all(engines: ContractEngines) -> None:
    runtime = engines.runtime()
    # A container's folder is on its volume: what is written to /tmp there is memory.
    python, folder = ("python3", "$HOME") if isinstance(engines, DockerEngines) else (sys.executable, "$PWD")
    body = f'BALLAST="{folder}" exec {python} -S -c {shlex.quote(BALLAST)}'
    request = engines.request(engines.shell(body))
    assert await runtime.read_host_mib(request.name) is None
    await runtime.start_replica(request)
    await wait_for_log(runtime, request.name, "holds it")
    held = await runtime.read_host_mib(request.name)
    assert held is not None
    assert HELD_MIB <= held <= HELD_MIB + PYTHON_MIB
    assert await engines.runtime().read_host_mib(request.name) is not None, "another controller sees it too"
    if isinstance(engines, DockerEngines):
        usage = engines.client.api.stats(request.name, stream=False, one_shot=True)["memory_stats"]["usage"]
        assert usage / 2**20 > held, "the file that was only read is in the kernel's cache"
    await runtime.stop_replica(request.name, 0)
    assert await runtime.read_host_mib(request.name) is None


def _count_sleeping(pids: list[int]) -> int:
    return sum(each.pid in pids for each in psutil.process_iter(["name"]) if each.info["name"] == "sleep")


async def test_processes_on_gpus_are_told_with_their_replicas(engines: ContractEngines) -> None:
    fake = FakeNvml()
    card = fake.add(uuid="GPU-a", bus=1)
    runtime = engines.runtime(nvml=NvmlReader(fake, host_pids=True))
    first = engines.request(engines.shell(f"setsid sleep 600 & {RUN}"), "m")
    second = engines.request(engines.shell(RUN), "n")
    await runtime.start_replica(first)
    await runtime.start_replica(second)
    # Before `sleep` runs, a replica's processes still come and go.
    await until("the child of one", lambda: _count_sleeping(engines.pids(first.name)) == 2)
    await until("the other's process", lambda: _count_sleeping(engines.pids(second.name)) == 1)
    expected: dict[int, str | None] = {os.getpid(): None}
    for request in (first, second):
        expected |= dict.fromkeys(engines.pids(request.name), request.name)
    card.computing = {pid: 10 + number for number, pid in enumerate(expected)}
    [gpu] = await runtime.read_gpus() or ()
    assert {each.pid: each.replica for each in gpu.processes or ()} == expected
    assert {each.pid: each.mib for each in gpu.processes or ()} == card.computing
    assert all(each.name for each in gpu.processes or ())

    await runtime.stop_replica(first.name, 0)
    [gpu] = await runtime.read_gpus() or ()
    assert {each.pid: each.replica for each in gpu.processes or ()} == expected, "as long as they hold memory"


async def test_the_driver_is_told_once_the_gpus_were_read(engines: ContractEngines) -> None:
    fake = FakeNvml()
    fake.add(uuid="GPU-a", bus=1)
    runtime = engines.runtime(nvml=NvmlReader(fake))
    assert runtime.get_gpu_driver() is None
    assert len(await runtime.read_gpus() or ()) == 1
    assert runtime.get_gpu_driver() == GpuDriver("570.195.03", "12.8", ("geforce",))


async def test_why_there_are_no_gpus_is_said(engines: ContractEngines) -> None:
    fake = FakeNvml()
    fake.fail("LibraryNotFound")
    runtime = engines.runtime(nvml=NvmlReader(fake))
    assert await runtime.read_gpus() == ()
    assert runtime.get_gpu_error() == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
