"""Faults of a host and an installation, each prepared: `roundhouse doctor` finds it, and nothing else. What a test
cannot prepare for real (GPUs, a daemon, a full disk, memory) is a fact."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web

from controller.cli.app import run
from controller.cli.doctor.command import check_facts
from controller.cli.doctor.fact_reader import read_facts
from controller.cli.doctor.facts import DockerFacts, GpuFacts, HostFacts, MemoryFacts
from controller.cli.doctor.gpu_facts import count_on_bus, read_toolkit_version
from controller.cli.exit_codes import ExitCode
from controller.schema.errors import RoundhouseError
from controller.settings import ControllerSettings, load_settings
from tests.support.clockwork_folders import make_hf

NOBODY = 65534
"""User id without rights."""
URL = "unix:///var/run/docker.sock"
GPU_HOST = GpuFacts(on_bus=1, readable=1, driver_version="580.95.05", toolkit_version="1.18.0")
DOCKER_HOST = DockerFacts(URL, "docker", version="29.0.0", has_gpu_support=True, daemon_ahead_s=0.1)


@dataclass
class Place:
    """The folders of an installation with one model that is well."""

    folder: Path
    port: int

    def path(self, name: str) -> Path:
        return self.folder / name

    def declare(self, text: str) -> None:
        self.path("desired").joinpath("models.yaml").write_text(text)

    def settings(self, **values: object) -> ControllerSettings:
        folders = {name: str(self.path(name)) for name in ("desired", "state", "models")}
        return load_settings(**{"port": self.port, "runtime": "process", **folders, **values})

    def facts(self, **settings: object) -> HostFacts:
        """Read what is prepared. What the tests' machine decides is that of a well host."""
        facts = read_facts(self.settings(**settings), {})
        models = facts.desired.models
        if os.geteuid() == NOBODY:  # who may not read the packages of this test's own interpreter
            models = tuple(replace(model, program_problem=None) for model in models)
        return replace(
            facts,
            desired=replace(facts.desired, models=models),
            disks=tuple(replace(disk, free_mib=100_000, free_inodes=None) for disk in facts.disks),
            gpus=GpuFacts(problem="no NVIDIA driver"),
            clock=replace(facts.clock, is_synchronised=True),
            memory=MemoryFacts(64_000, 60_000, facts.memory.engines_mib),
        )


@pytest.fixture
def place() -> Iterator[Place]:
    """An installation in a folder that every user may enter, so that a test may take another user's rights."""
    with tempfile.TemporaryDirectory(prefix="rh-doctor-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for each, mode in (("desired", 0o755), ("models", 0o755), ("state", 0o700)):
            folder.joinpath(each).mkdir()
            folder.joinpath(each).chmod(mode)
        folder.joinpath("models", "a.gguf").write_bytes(b"GGUF and more")
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            port = server.getsockname()[1]
        place = Place(folder, port)
        place.declare("models: {a: {model_path: a.gguf, memory_mib: 1000}}")
        yield place


@contextmanager
def unprivileged(place: Place) -> Iterator[None]:
    """Run as a user that owns nothing in the place, where the tests may; else as the one that runs them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def found(facts: HostFacts) -> list[tuple[str, str, str]]:
    """Check, severity and message of every finding. Each has something to do."""
    findings = [(result.name, finding) for result in check_facts(facts) for finding in result.findings]
    assert all(finding.remedy for _, finding in findings)
    return [(name, finding.severity, finding.message) for name, finding in findings]


def only(facts: HostFacts, check: str, severity: str = "fault") -> str:
    """The message of the only finding."""
    [(name, found_severity, message)] = found(facts)
    assert (name, found_severity) == (check, severity), message
    return message


def test_a_well_installation_has_no_finding(place: Place) -> None:
    assert found(place.facts()) == []
    assert found(replace(place.facts(), gpus=GPU_HOST, docker=DOCKER_HOST)) == []


def test_docker_does_not_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place.path('no.sock')}")
    assert "there is no such socket" in only(place.facts(runtime="docker"), "docker")
    assert found(place.facts(runtime="auto")) == [], "then engines run as processes"


def test_a_user_may_not_use_docker(place: Place) -> None:
    docker = DockerFacts(URL, "auto", problem="the Docker daemon does not answer: this user may not use it")
    assert "run as processes" in only(replace(place.facts(), docker=docker), "docker", "warning")


def test_gpus_without_a_driver(place: Place) -> None:
    gpus = GpuFacts(on_bus=2, problem="no NVIDIA driver: libnvidia-ml.so.1 was not found")
    assert only(replace(place.facts(), gpus=gpus), "driver").startswith("2 NVIDIA GPUs are in this host")


def test_a_model_names_gpus_that_are_not_there(place: Place) -> None:
    place.declare("models: {a: {model_path: a.gguf, gpus: 1}}")
    assert only(place.facts(), "driver").startswith("a: runs on GPUs")


def test_a_gpu_that_cannot_be_read(place: Place) -> None:
    gpus = replace(GPU_HOST, unread=("GPU 1 is left out: it has fallen off the bus",))
    assert "fallen off the bus" in only(replace(place.facts(), gpus=gpus), "driver")


def test_an_old_driver(place: Place) -> None:
    gpus = replace(GPU_HOST, driver_version="470.256.02")
    assert "470.256.02 is older than 525" in only(replace(place.facts(), gpus=gpus), "driver")


def test_docker_without_the_container_toolkit(place: Place) -> None:
    docker = replace(DOCKER_HOST, has_gpu_support=False)
    facts = replace(place.facts(), docker=docker, gpus=replace(GPU_HOST, toolkit_version=None))
    assert "cannot give GPUs to containers" in only(facts, "toolkit")


@pytest.mark.parametrize(
    ("program", "version", "holes"),
    [
        ("nvidia-ctk", "1.13.5", "CVE-2024-0132, CVE-2025-23359, CVE-2025-23266"),
        ("nvidia-ctk", "1.17.4", "CVE-2025-23266"),
        ("nvidia-container-cli", "1.17.7", "CVE-2025-23266"),
        ("nvidia-ctk", "1.17.8", None),
        ("nvidia-ctk", "1.18.0-rc.1", None),
    ],
)
def test_an_old_container_toolkit(
    place: Place, monkeypatch: pytest.MonkeyPatch, program: str, version: str, holes: str | None
) -> None:
    words = f"NVIDIA Container Toolkit CLI version {version}" if program == "nvidia-ctk" else f"cli-version: {version}"
    script = place.path(program)
    script.write_text(f"#!/bin/sh\necho '{words}'\necho 'commit: 1234567'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.folder}:/usr/bin:/bin")
    gpus = replace(GPU_HOST, toolkit_version=read_toolkit_version())
    facts = replace(place.facts(), docker=DOCKER_HOST, gpus=gpus)
    if holes is None:
        assert found(facts) == []
    else:
        assert only(facts, "toolkit").endswith(f"{version} lets a container take over the host: {holes}")


def test_packages_that_the_toolkit_replaced(place: Place) -> None:
    gpus = replace(GPU_HOST, replaced_packages=("nvidia-docker2",))
    facts = replace(place.facts(), docker=DOCKER_HOST, gpus=gpus)
    assert only(facts, "toolkit", "warning").startswith("nvidia-docker2:")


def test_only_display_controllers_of_nvidia_count(tmp_path: Path) -> None:
    devices = {"gpu": ("0x10de", "0x030200"), "audio": ("0x10de", "0x040300"), "other": ("0x8086", "0x030000")}
    for name, (vendor, device_class) in devices.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{device_class}\n")
    assert count_on_bus(tmp_path) == 1
    assert count_on_bus(tmp_path / "missing") == 0


@pytest.mark.parametrize(
    ("free_mib", "free_inodes", "severity", "words"),
    [(12, None, "fault", "12 MiB left"), (1500, 9999, "warning", "1500 MiB left"), (9999, 3, "fault", "3 inodes left")],
)
def test_a_full_disk(place: Place, free_mib: int, free_inodes: int | None, severity: str, words: str) -> None:
    facts = place.facts()
    [disk] = facts.disks
    facts = replace(facts, disks=(replace(disk, free_mib=free_mib, free_inodes=free_inodes),))
    assert words in only(facts, "disk", severity)


def test_a_taken_port(place: Place) -> None:
    with closing(socket.create_server(("127.0.0.1", place.port))):
        assert f"cannot listen on 127.0.0.1:{place.port}" in only(place.facts(), "ports")


@pytest.mark.parametrize("has_metrics_key", [True, False])
async def test_a_port_that_a_gateway_of_ours_has(place: Place, has_metrics_key: bool) -> None:
    async def answer(_: web.Request) -> web.Response:
        if has_metrics_key:
            error = RoundhouseError("invalid_api_key", "It needs a key.")
            return web.Response(body=error.json_bytes(), status=401, content_type="application/json")
        return web.json_response({"service": "roundhouse"})

    app = web.Application()
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", place.port).start()
    try:
        assert found(await asyncio.to_thread(place.facts)) == []
    finally:
        await runner.cleanup()


def test_beyond_loopback_without_keys(place: Place) -> None:
    facts = place.facts(host="0.0.0.0")
    assert "no keys are declared" in only(facts, "ports")
    assert found(replace(facts, ports=replace(facts.ports, is_open=True))) == []


def test_a_missing_desired_state_folder(place: Place) -> None:
    facts = place.facts(desired=str(place.path("away")))
    assert only(facts, "folders").endswith("away does not exist")


def test_a_wrong_desired_state_file(place: Place) -> None:
    place.declare("models:\n  a:\n    backend: stub\n    replica: 2\n")
    message = only(place.facts(), "desired state")
    assert message.endswith("models.yaml:4: models.a.replica: unknown field; did you mean `replicas`?")


def test_a_missing_models_folder(place: Place) -> None:
    place.declare("models: {a: {backend: stub}}")
    place.path("models").rename(place.path("elsewhere"))
    assert only(place.facts(), "folders").endswith("models does not exist")


def test_a_models_folder_that_is_a_file(place: Place) -> None:
    place.declare("models: {a: {backend: stub}}")
    place.path("models").rename(place.path("elsewhere"))
    place.path("models").write_text("")
    assert only(place.facts(), "folders").endswith("models is not a folder")


@pytest.mark.parametrize("content", [None, b"", b"version https://git-lfs.github.com/spec/v1\n", b"zip"])
def test_a_model_file_that_is_missing_or_wrong(place: Place, content: bytes | None) -> None:
    file = place.path("models") / "a.gguf"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert only(place.facts(), "model files").startswith("a: model_path: a.gguf ")


def test_a_state_folder_that_this_user_may_not_write(place: Place) -> None:
    place.path("state").chmod(0o555)
    with unprivileged(place):
        findings = found(place.facts())
    assert ("folders", "fault") in [(check, severity) for check, severity, _ in findings]
    assert any("may not write to it" in message for _, _, message in findings)


def test_a_state_folder_that_this_user_may_not_make(place: Place) -> None:
    place.path("state").rmdir()
    place.folder.chmod(0o555)
    with unprivileged(place):
        facts = place.facts()
    place.folder.chmod(0o755)
    assert only(facts, "folders").endswith("does not exist, and this user may not make it")


def test_a_state_file_of_another_user(place: Place) -> None:
    state = place.path("state")
    state.joinpath("identity.json").write_text("{}")
    state.joinpath("identity.json").chmod(0o400)
    if os.geteuid() == 0:
        os.chown(state, NOBODY, NOBODY)
    with unprivileged(place):
        facts = place.facts()
    assert only(facts, "folders").endswith("may not write its file identity.json")


def test_a_state_folder_for_everybody(place: Place) -> None:
    place.path("state").chmod(0o777)
    assert "every user of this host may write to it" in only(place.facts(), "folders")
    place.path("state").chmod(0o755)
    assert "other users of this host may look into it" in only(place.facts(), "folders", "warning")


def test_a_clock_that_is_behind(place: Place) -> None:
    file = place.path("state") / "epoch.json"
    file.write_text("{}")
    os.utime(file, (time.time(), time.time() + 86_400))
    assert only(place.facts(), "clock").startswith(f"the clock is behind: {file} was written 8")


def test_clocks_that_differ_or_are_not_kept_right(place: Place) -> None:
    facts = place.facts()
    docker = replace(DOCKER_HOST, daemon_ahead_s=-400.0)
    assert "400 s behind this one" in only(replace(facts, docker=docker), "clock")
    clock = replace(facts.clock, is_synchronised=False)
    assert only(replace(facts, clock=clock), "clock", "warning") == "no time service keeps the clock right"


def test_more_memory_declared_than_there_is(place: Place) -> None:
    place.declare("models: {a: {model_path: a.gguf, memory_mib: 50000, replicas: 2}}")
    assert only(place.facts(), "memory").startswith("a: declares 100000 MiB of main memory")
    place.declare("models: {a: {model_path: a.gguf, memory_mib: 40000}, b: {model_path: a.gguf, memory_mib: 40000}}")
    assert "together declare 80000 MiB" in only(place.facts(), "memory")
    place.declare("models: {a: {model_path: a.gguf, memory_mib: 40000}, b: {model_path: a.gguf, autoload: true}}")
    assert found(place.facts()) == []


def test_too_little_free_memory_and_a_limit_beyond_it(place: Place) -> None:
    facts = place.facts(engines_memory_mib=70_000)
    assert "ROUNDHOUSE_ENGINES_MEMORY_MIB is 70000" in only(facts, "memory")
    facts = replace(facts, memory=MemoryFacts(64_000, 100))
    assert only(facts, "memory", "warning").startswith("only 100 of 64000 MiB")


def test_an_engine_without_its_program(place: Place) -> None:
    make_hf(place.path("models") / "m")
    place.declare("models: {a: {model_path: m, backend: vllm_serve, memory_mib: 1000, vllm_serve_binary: /no/vllm}}")
    message = only(place.facts(), "programs")
    assert message == "a: program /no/vllm does not exist"
    assert found(replace(place.facts(), docker=DOCKER_HOST)) == [], "the image has its programs"


def test_an_mcp_server_without_its_program(place: Place) -> None:
    place.declare("models: {}\nmcp_servers: {time: {command: [/no/mcp-server-time]}, web: {url: 'https://x.org/mcp'}}")
    assert only(place.facts(), "programs") == "mcp:time: program /no/mcp-server-time does not exist"
    assert found(replace(place.facts(), docker=DOCKER_HOST)) == [], "the image has its programs"


def test_missing_images(place: Place) -> None:
    docker = replace(DOCKER_HOST, missing_images=(("roundhouse/worker:latest", "`make images`"),))
    message = only(replace(place.facts(), docker=docker), "images", "warning")
    assert message == "image roundhouse/worker:latest is not on this host"


def test_a_variable_that_nothing_reads(place: Place) -> None:
    problems = read_facts(place.settings(), {"ROUNDHOUSE_PROT": ""}).setting_problems
    facts = replace(place.facts(), setting_problems=problems)
    assert "ROUNDHOUSE_PROT: this version does not read it" in only(facts, "settings", "warning")


def test_the_command_says_what_is_wrong_and_what_to_do(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_PORT", str(place.port))
    options = [f"--{name}={place.path(name)}" for name in ("desired", "state", "models")]
    place.declare("models: {a: {model_path: b.gguf}}")
    assert run(["doctor", *options, "--runtime", "process"]) == ExitCode.FAILED
    text = capsys.readouterr().out
    assert "fault: model files: a: model_path: b.gguf is missing from" in text
    assert "    to do: put the file there" in text
    assert run(["doctor", *options, "--runtime", "process", "--json"]) == ExitCode.FAILED
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    [check] = [each for each in answer["checks"] if each["name"] == "model files"]
    assert check["status"] == "fault"
    assert set(check["findings"][0]) == {"severity", "message", "remedy"}


@pytest.mark.parametrize(
    ("status", "code"), [("ok", ExitCode.DONE), ("warning", ExitCode.PENDING), ("fault", ExitCode.FAILED)]
)
def test_the_exit_code_is_of_the_worst_finding(
    place: Place, monkeypatch: pytest.MonkeyPatch, status: str, code: ExitCode
) -> None:
    facts = place.facts()
    prepared: dict[str, Callable[[], HostFacts]] = {
        "ok": lambda: facts,
        "warning": lambda: replace(facts, clock=replace(facts.clock, is_synchronised=False)),
        "fault": lambda: replace(facts, docker=DockerFacts(URL, "docker", problem="it hangs")),
    }
    monkeypatch.setattr("controller.cli.doctor.fact_reader.read_facts", lambda *_: prepared[status]())
    assert run(["doctor"]) == code
