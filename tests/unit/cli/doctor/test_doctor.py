"""Faults of a host and an installation, each prepared: `roundhouse doctor` finds it, and nothing else. What a test
cannot prepare for real (GPUs, a daemon, a full disk, memory) is a fact."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cli.doctor import check_facts
from cli.doctor_checks import DockerFacts, GpuFacts, HostFacts, MemoryFacts
from cli.doctor_facts import count_on_bus, read_docker, read_facts, read_toolkit_version
from cli.output import ExitCode
from contract.errors import RoundhouseError
from controller.hosts import Gpu
from controller.settings import ControllerSettings, load_settings
from tests.fakes.fake_control_api import FakeControlApi
from tests.support.cli import Roundhouse
from tests.support.clockwork_folders import make_hf
from tests.support.gguf_files import write_llama

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
def unprivileged() -> Iterator[None]:
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


@asynccontextmanager
async def serving(routes: Mapping[str, Callable[[web.Request], web.Response]]) -> AsyncIterator[web.AppRunner]:
    """A server of GET requests by these routes, which listens nowhere yet."""

    def handler(respond: Callable[[web.Request], web.Response]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            return respond(request)

        return handle

    app = web.Application()
    for path, respond in routes.items():
        app.router.add_get(path, handler(respond))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


def test_a_well_installation_has_no_finding(place: Place) -> None:
    assert found(place.facts()) == []
    assert found(replace(place.facts(), gpus=GPU_HOST, docker=DOCKER_HOST)) == []


NOT_ALLOWED = DockerFacts(URL, "auto", problem="the Docker daemon does not answer: this user may not use it")
NO_DRIVER = GpuFacts(on_bus=2, problem="no NVIDIA driver: libnvidia-ml.so.1 was not found")
WITHOUT_TOOLKIT = {
    "docker": replace(DOCKER_HOST, has_gpu_support=False),
    "gpus": replace(GPU_HOST, toolkit_version=None),
}
REPLACED = {"docker": DOCKER_HOST, "gpus": replace(GPU_HOST, replaced_packages=("nvidia-docker2",))}
IMAGELESS = replace(DOCKER_HOST, missing_images=(("roundhouse/worker:latest", "`make images`"),))


@pytest.mark.parametrize(
    ("changes", "check", "severity", "words"),
    [
        ({"docker": NOT_ALLOWED}, "docker", "warning", "run as processes"),
        ({"docker": IMAGELESS}, "images", "warning", "image roundhouse/worker:latest is not on this host"),
        ({"docker": replace(DOCKER_HOST, daemon_ahead_s=-400.0)}, "clock", "fault", "400 s behind this one"),
        ({"gpus": NO_DRIVER}, "driver", "fault", "2 NVIDIA GPUs are in this host"),
        (
            {"gpus": replace(GPU_HOST, unread=("GPU 1 is left out: lost",))},
            "driver",
            "fault",
            "GPU 1 is left out: lost",
        ),
        ({"gpus": replace(GPU_HOST, driver_version="470.256.02")}, "driver", "fault", "470.256.02 is older than 525"),
        (WITHOUT_TOOLKIT, "toolkit", "fault", "cannot give GPUs to containers"),
        (REPLACED, "toolkit", "warning", "nvidia-docker2:"),
        ({"memory": MemoryFacts(64_000, 100)}, "memory", "warning", "only 100 of 64000 MiB"),
    ],
)
def test_a_fault_of_the_host(place: Place, changes: dict[str, Any], check: str, severity: str, words: str) -> None:
    assert words in only(replace(place.facts(), **changes), check, severity)


@pytest.mark.parametrize(
    ("declared", "check", "words"),
    [
        ("models: {a: {model_path: a.gguf, gpus: 1}}", "driver", "a: runs on GPUs"),
        (
            "models:\n  a:\n    backend: stub\n    replica: 2\n",
            "desired state",
            "models.yaml:4: models.a.replica: unknown field; did you mean `replicas`?",
        ),
        (
            "models: {a: {model_path: a.gguf, memory_mib: 50000, replicas: 2}}",
            "memory",
            "a: declares 100000 MiB of main memory",
        ),
        (
            "models: {a: {model_path: a.gguf, memory_mib: 40000}, b: {model_path: a.gguf, memory_mib: 40000}}",
            "memory",
            "together declare 80000 MiB",
        ),
        (
            "models: {a: {model_path: m, backend: vllm_serve, memory_mib: 1000, vllm_serve_binary: /no/vllm}}",
            "programs",
            "a: program /no/vllm does not exist",
        ),
        (
            "models: {}\nmcp_servers: {time: {command: [/no/mcp-server-time]}, web: {url: 'https://x.org/mcp'}}",
            "programs",
            "mcp:time: program /no/mcp-server-time does not exist",
        ),
    ],
)
def test_a_fault_of_the_desired_state(place: Place, declared: str, check: str, words: str) -> None:
    make_hf(place.path("models") / "m")
    place.declare(declared)
    assert words in only(place.facts(), check)
    if check == "programs":
        assert found(replace(place.facts(), docker=DOCKER_HOST)) == [], "the image has its programs"


def test_a_model_whose_predicted_memory_is_more_than_there_is(place: Place) -> None:
    """A warning, for the file is good. It names the line, what the model takes, what there is, and what to do."""
    write_llama(place.path("models") / "m.gguf", layers=32, width=256, heads=8, kv_heads=8, head=128, context=65536)
    place.declare(
        "models:\n  host: {model_path: m.gguf, llama_server_n_ctx: 32768, autoload: true}\n"
        "  gpu: {model_path: m.gguf, llama_server_n_ctx: 32768, gpus: 1, autoload: true}"
    )
    facts = place.facts()
    file = place.path("desired") / "models.yaml"
    small, large = (
        replace(facts, gpus=replace(facts.gpus, readable=1, problem=None, gpus=(Gpu("GPU-a", 0, "NVIDIA X", mib),)))
        for mib in (20, 20_000)
    )
    assert found(large) == []
    message = only(small, "memory", "warning")
    words = rf"gpu \({file}:3\): it can never be loaded here: it needs \d+ MiB on each of 1 GPU; free: GPU 0 has 20 .*"
    assert re.fullmatch(words, message), message
    message = only(replace(large, memory=MemoryFacts(64_000, 60_000, 1000)), "memory", "warning")
    words = rf"host \({file}:2\): it can never be loaded here: it needs \d+ MiB of main memory; free: 1000 of .*"
    assert re.fullmatch(words, message), message
    place.declare(
        "models:\n  there: {model_path: m.gguf, hosts: [b], autoload: true}\n  gpu: {model_path: m.gguf, gpus: [b/0]}"
    )
    assert found(replace(small, memory=place.facts().memory, desired=place.facts().desired)) == [], (
        "b may have the room"
    )


def test_models_that_are_not_loaded_together_count_apart(place: Place) -> None:
    place.declare("models: {a: {model_path: a.gguf, memory_mib: 40000}, b: {model_path: a.gguf, autoload: true}}")
    assert found(place.facts()) == []


def test_docker_does_not_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place.path('no.sock')}")
    assert "there is no such socket" in only(place.facts(runtime="docker"), "docker")
    assert found(place.facts(runtime="auto")) == [], "then engines run as processes"


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


def test_a_taken_port_and_one_beyond_loopback_without_keys(place: Place) -> None:
    with closing(socket.create_server(("127.0.0.1", place.port))):
        assert f"cannot listen on 127.0.0.1:{place.port}" in only(place.facts(), "ports")
    facts = place.facts(host="0.0.0.0")
    assert "no keys are declared" in only(facts, "ports")
    assert found(replace(facts, ports=replace(facts.ports, is_open=True))) == []


@pytest.mark.parametrize("has_metrics_key", [True, False])
async def test_a_port_that_a_gateway_of_ours_has(place: Place, has_metrics_key: bool) -> None:
    def respond(_: web.Request) -> web.Response:
        if has_metrics_key:
            error = RoundhouseError("invalid_api_key", "It needs a key.")
            return web.Response(body=error.json_bytes(), status=401, content_type="application/json")
        return web.json_response({"service": "roundhouse"})

    async with serving({"/health": respond}) as runner:
        await web.TCPSite(runner, "127.0.0.1", place.port).start()
        assert found(await asyncio.to_thread(place.facts)) == []


def test_folders_that_are_missing_or_files(place: Place) -> None:
    assert only(place.facts(desired=str(place.path("away"))), "folders").endswith("away does not exist")
    place.declare("models: {a: {backend: stub}}")
    place.path("models").rename(place.path("elsewhere"))
    assert only(place.facts(), "folders").endswith("models does not exist")
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
    with unprivileged():
        findings = found(place.facts())
    assert ("folders", "fault") in [(check, severity) for check, severity, _ in findings]
    assert any("may not write to it" in message for _, _, message in findings)


def test_a_state_folder_that_this_user_may_not_make(place: Place) -> None:
    place.path("state").rmdir()
    place.folder.chmod(0o555)
    with unprivileged():
        facts = place.facts()
    place.folder.chmod(0o755)
    assert only(facts, "folders").endswith("does not exist, and this user may not make it")


def test_a_state_file_of_another_user(place: Place) -> None:
    state = place.path("state")
    state.joinpath("identity.json").write_text("{}")
    state.joinpath("identity.json").chmod(0o400)
    if os.geteuid() == 0:
        os.chown(state, NOBODY, NOBODY)
    with unprivileged():
        facts = place.facts()
    assert only(facts, "folders").endswith("may not write its file identity.json")


def test_a_state_folder_for_everybody(place: Place) -> None:
    place.path("state").chmod(0o777)
    assert "every user of this host may write to it" in only(place.facts(), "folders")
    place.path("state").chmod(0o755)
    assert "other users of this host may look into it" in only(place.facts(), "folders", "warning")


def test_a_clock_that_is_behind_or_not_kept_right(place: Place) -> None:
    facts = place.facts()
    clock = replace(facts.clock, is_synchronised=False)
    assert only(replace(facts, clock=clock), "clock", "warning") == "no time service keeps the clock right"
    file = place.path("state") / "epoch.json"
    file.write_text("{}")
    os.utime(file, (time.time(), time.time() + 86_400))
    assert only(place.facts(), "clock").startswith(f"the clock is behind: {file} was written 8")


def test_settings_beyond_the_host_or_unknown(place: Place) -> None:
    assert "ROUNDHOUSE_ENGINES_MEMORY_MIB is 70000" in only(place.facts(engines_memory_mib=70_000), "memory")
    problems = read_facts(place.settings(), {"ROUNDHOUSE_PROT": ""}).setting_problems
    facts = replace(place.facts(), setting_problems=problems)
    assert "ROUNDHOUSE_PROT: this version does not read it" in only(facts, "settings", "warning")


def test_the_command_says_what_is_wrong_and_what_to_do(
    place: Place, monkeypatch: pytest.MonkeyPatch, roundhouse: Roundhouse
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_PORT", str(place.port))
    options = [f"--{name}={place.path(name)}" for name in ("desired", "state", "models")]
    place.declare("models: {a: {model_path: b.gguf}}")
    shown = roundhouse("doctor", *options, "--runtime", "process")
    assert shown.code == ExitCode.FAILED
    assert "fault: model files: a: model_path: b.gguf is missing from" in shown.out
    assert "    to do: put the file there" in shown.out
    as_json = roundhouse("doctor", *options, "--runtime", "process", "--json")
    assert (as_json.code, as_json.json["ok"]) == (ExitCode.FAILED, False)
    [check] = [each for each in as_json.json["checks"] if each["name"] == "model files"]
    assert check["status"] == "fault"
    assert set(check["findings"][0]) == {"severity", "message", "remedy"}


@pytest.mark.parametrize(
    ("status", "code"), [("ok", ExitCode.DONE), ("warning", ExitCode.PENDING), ("fault", ExitCode.FAILED)]
)
def test_the_exit_code_is_of_the_worst_finding(
    place: Place, monkeypatch: pytest.MonkeyPatch, status: str, code: ExitCode, roundhouse: Roundhouse
) -> None:
    facts = place.facts()
    prepared = {
        "ok": facts,
        "warning": replace(facts, clock=replace(facts.clock, is_synchronised=False)),
        "fault": replace(facts, docker=DockerFacts(URL, "docker", problem="it hangs")),
    }
    monkeypatch.setattr("cli.doctor_facts.read_facts", lambda *_: prepared[status])
    assert roundhouse("doctor").code == code


async def test_images_are_asked_for_only_where_the_running_controller_uses_docker(place: Place) -> None:
    async with FakeControlApi(Path(place.settings().controller_url.removeprefix("unix:"))) as api:
        assert (await asyncio.to_thread(place.facts, runtime="auto")).docker.runtime == "process"
        api.status = api.status.model_copy(update={"runtime": "docker"})
        assert (await asyncio.to_thread(place.facts, runtime="auto")).docker.runtime == "docker"
        assert (await asyncio.to_thread(place.facts, runtime="process")).docker.runtime == "process"
    assert (await asyncio.to_thread(place.facts, runtime="auto")).docker.runtime == "auto"


# Facts of a daemon that answers as Docker's API does.

NOW = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


async def read_daemon(folder: Path, info: Mapping[str, object], *images: str, api: str = "1.51") -> DockerFacts:
    def image(request: web.Request) -> web.Response:
        if request.match_info["name"] == "there:latest":
            return web.json_response({"Id": "sha256:1"})
        return web.json_response({"message": "no such image"}, status=404)

    version = {"Version": "29.0.0", "ApiVersion": api, "MinAPIVersion": "1.24"}
    routes: dict[str, Callable[[web.Request], web.Response]] = {
        "/version": lambda _: web.json_response(version),
        "/{v}/info": lambda _: web.json_response({"ServerVersion": "29.0.0", **info}),
        "/{v}/images/{name:.+}/json": image,
    }
    socket_path = folder / "docker.sock"
    socket_path.unlink(missing_ok=True)
    async with serving(routes) as runner:
        await web.UnixSite(runner, str(socket_path)).start()
        return await asyncio.to_thread(read_docker, "docker", images, url=f"unix://{socket_path}", now=NOW)


async def test_facts_of_a_daemon(tmp_path: Path) -> None:
    info = {"Runtimes": {"runc": {}, "nvidia": {}}, "SystemTime": "2027-01-02T03:06:05.123456789Z"}
    facts = await read_daemon(tmp_path, info, "there:latest", "roundhouse/worker:latest", "vllm/vllm-openai:v1")
    assert (facts.problem, facts.version, facts.has_gpu_support) == (None, "29.0.0", True)
    assert facts.daemon_ahead_s == 120
    assert facts.missing_images == (
        ("roundhouse/worker:latest", "`make images`"),
        ("vllm/vllm-openai:v1", "`docker pull vllm/vllm-openai:v1`; a start pulls it, too"),
    )
    by_cdi = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}
    assert (await read_daemon(tmp_path, by_cdi)).has_gpu_support
    assert not (await read_daemon(tmp_path, {"Runtimes": {"runc": {}}})).has_gpu_support
    old = await read_daemon(tmp_path, {}, api="1.39")
    assert "too old" in str(old.problem)
    assert not old.is_absent


@pytest.mark.parametrize(
    ("system_time", "ahead_s"), [("2027-01-02T04:04:05.5+01:00", 0), ("2027-01-02T03:04:05Z", 0), ("", None)]
)
async def test_the_forms_of_a_time(tmp_path: Path, system_time: str, ahead_s: float | None) -> None:
    assert (await read_daemon(tmp_path, {"SystemTime": system_time})).daemon_ahead_s == ahead_s
