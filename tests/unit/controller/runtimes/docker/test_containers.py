"""From a request to the container that the daemon is asked for, and what the daemon says of containers, as replicas."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import requests
from docker.errors import APIError, DockerException

from controller.artifacts.model_roots import ModelRoots
from controller.engines import ENGINES, get_engine
from controller.engines.base import Launch
from controller.engines.litert_lm import LiteRTLMDefinition
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.hosts import Gpu
from controller.runtimes.base import LogPart, RuntimeUnavailableError, StartRequest
from controller.runtimes.docker.client import (
    NEWEST_API,
    OLDEST_API,
    DaemonRefusedError,
    DockerSetupError,
    host_mount,
    negotiate_version,
    own_container_ids,
    plain_reason,
)
from controller.runtimes.docker.container_spec import (
    UNPRIVILEGED,
    FileEntry,
    HostContext,
    UnreadableLabelsError,
    UserIdentity,
    bounded_log,
    cache_folder_archive,
    choose_identity,
    container_config,
    parse_time,
    render_context,
    seen_replica,
    write_labels,
)
from controller.runtimes.docker.containers import (
    DockerLogCursor,
    build_command,
    is_built_here,
    mapped_bytes,
    read_log_part,
)
from controller.runtimes.docker.runtime import entries_to_read
from controller.runtimes.gpus import visible_gpus
from controller.state import Exit, Phase, ReplicaId

HOST = HostContext(
    "one", "engines", publishes_ports=False, models=({"Type": "bind", "Source": "/srv/models"},), log_mib=16
)
USER = UserIdentity(1000, 1001)
LLAMA = LlamaServerDefinition(model_path="m.gguf", image="engine:1", memory_mib=512, env={"A": "b=c"})
REQUEST = StartRequest(
    ReplicaId("a/b:c", 0, "0123456789abcdef", 2), "rh-one-x-0-01234567-2", LLAMA, "a/b:c", "engine:1", "SECRET"
)


def config(
    request: StartRequest = REQUEST,
    host: HostContext = HOST,
    visible: Mapping[str, str] | None = None,
    **launch: Any,
) -> dict[str, Any]:
    rendered = get_engine(request.definition).render_command(request.definition, render_context("a/b:c", USER, {}))
    return container_config(request, replace(rendered, **launch), USER, host, 12.5, visible or {})


def without(content: object, *keys: str) -> object:
    """A copy without some keys, at any depth."""
    if isinstance(content, dict):
        return {key: without(value, *keys) for key, value in content.items() if key not in keys}
    return [without(each, *keys) for each in content] if isinstance(content, list) else content


def test_an_engine_sees_its_own_world() -> None:
    context = render_context("a/b:c", USER, {"worker": "w:1"})
    assert (context.runtime, context.host, context.port) == ("docker", "0.0.0.0", 8000)
    assert context.resolve_path("sub/m.gguf") == "/models/sub/m.gguf"
    assert str(context.cache_dir) == "/cache/1000"
    made = config()
    assert made["Entrypoint"] == ["/app/llama-server"]
    assert made["Cmd"][:2] == ["--model", "/models/m.gguf"]
    assert (made["Image"], made["User"]) == ("engine:1", "1000:1001")


def test_the_environment_has_the_token_and_what_is_declared_but_not_which_gpus_are_seen() -> None:
    made = config()
    assert "LLAMA_API_KEY=SECRET" in made["Env"]
    assert "SECRET" not in str(without(made, "Env"))
    assert "SECRET" not in str(config(token_env=None))
    env = {"CUDA_VISIBLE_DEVICES": "3", "NVIDIA_VISIBLE_DEVICES": "all", "HOME": "/elsewhere"}
    words = config(env=env)["Env"]
    assert "HOME=/elsewhere" in words
    assert words[-2:] == ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES=void"]
    assert not [word for word in words if word.startswith("CUDA_VISIBLE_DEVICES=")]


def test_claims_are_gpus_by_uuid_and_without_claims_there_are_none() -> None:
    made = config(replace(REQUEST, claims={"GPU-b": 10, "GPU-a": 20}))
    assert made["HostConfig"]["DeviceRequests"] == [
        {"DeviceIDs": ["GPU-a", "GPU-b"], "Capabilities": [["gpu", "compute", "utility"]]}
    ]
    assert not [word for word in made["Env"] if word.startswith("NVIDIA_VISIBLE_DEVICES")]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in made["Env"], "CUDA's own order is another one"
    assert made["Labels"]["dev.roundhouse.claims"] == '{"GPU-a":20,"GPU-b":10}'
    assert "DeviceRequests" not in config()["HostConfig"]


def test_where_a_container_sees_all_gpus_its_claims_are_named_to_cuda() -> None:
    # docker/for-win#12677: on WSL2 every GPU is in the container, whatever was asked for.
    made = config(
        replace(REQUEST, claims={"GPU-b": 10}), visible=visible_gpus([Gpu("GPU-b", 2, "fake", 1)]), env={"A": "b"}
    )
    variables = [word for word in made["Env"] if word.startswith(("CUDA", "NVIDIA"))]
    assert variables == ["CUDA_VISIBLE_DEVICES=2", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    assert made["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["GPU-b"]


def test_an_engine_that_computes_with_vulkan_gets_the_driver_s_part_for_graphics() -> None:
    """The Docker Engine makes NVIDIA_DRIVER_CAPABILITIES of these words (moby's daemon/nvidia_linux.go, which knows
    compute, compat32, graphics, utility, video and display). A Vulkan driver is there with `graphics` alone.
    """
    definition = LiteRTLMDefinition(model_path="m.litertlm", image="worker:1", gpus=1)
    made = config(replace(REQUEST, definition=definition, claims={"GPU-a": 20}))
    [request] = made["HostConfig"]["DeviceRequests"]
    assert request["Capabilities"] == [["gpu", "compute", "utility", "graphics"]]
    others = {name: engine.gpu_capabilities for name, engine in ENGINES.items() if name != "litert_lm"}
    assert set(others.values()) == {("compute", "utility")}


def test_a_port_is_published_on_loopback_only_where_names_do_not_reach() -> None:
    inside = config()
    assert "ExposedPorts" not in inside
    assert "PortBindings" not in inside["HostConfig"]
    outside = config(host=replace(HOST, publishes_ports=True))
    assert outside["HostConfig"]["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    assert outside["HostConfig"]["NetworkMode"] == "engines"


def test_limits_follow_the_definition_and_everything_is_restricted() -> None:
    host = config()["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (512 * 2**20, 512 * 2**20)
    assert "ShmSize" not in host
    assert config(shm_bytes=10 * 2**30)["HostConfig"]["ShmSize"] == 10 * 2**30
    free = replace(REQUEST, definition=LlamaServerDefinition(model_path="m.gguf", image="engine:1"))
    assert "Memory" not in config(free)["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["SecurityOpt"]) == (["ALL"], [], ["no-new-privileges"])
    assert (host["ReadonlyRootfs"], host["RestartPolicy"]) == (True, {"Name": "no"})
    mounts = [(mount["Target"], mount.get("ReadOnly", False)) for mount in host["Mounts"]]
    assert mounts == [("/models", True), ("/cache", False)]
    user = UserIdentity(0, 0, ("DAC_OVERRIDE",))
    cap_added = container_config(REQUEST, Launch(("x",), image="i"), user, HOST, 0.0)
    assert cap_added["HostConfig"]["CapAdd"] == ["DAC_OVERRIDE"]


def test_logs_are_bounded_whatever_is_asked() -> None:
    assert bounded_log(16)["Config"] == {"max-size": "8m", "max-file": "2"}
    assert bounded_log(1)["Config"] == {"max-size": "1m", "max-file": "2"}


def test_every_models_folder_is_mounted_beside_the_first_one_and_read_only() -> None:
    folders = [{"Type": "bind", "Source": "/srv/models"}, None, {"Type": "volume", "Source": "hub"}]
    mounts = config(host=replace(HOST, models=folders))["HostConfig"]["Mounts"]
    assert mounts[:-1] == [
        {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True},
        {"Type": "volume", "Source": "hub", "Target": "/models-3", "ReadOnly": True},
    ]
    paths = {"m.gguf": "/models-3/m.gguf"}
    assert render_context("m", USER, {}, model_paths=paths).resolve_path("m.gguf") == "/models-3/m.gguf"


@pytest.mark.parametrize(
    ("wanted", "below"), [([], []), (["slots/a%2Fb/0", "x"], ["slots", "slots/a%2Fb", "slots/a%2Fb/0", "x"])]
)
def test_the_cache_s_archive_holds_the_user_s_folder_and_the_engine_s(wanted: list[str], below: list[str]) -> None:
    paths = [PurePosixPath("/cache/1000", each) for each in wanted]
    with tarfile.open(fileobj=io.BytesIO(cache_folder_archive(1000, 1001, paths))) as tar:
        folders = [(each.name, each.isdir(), each.mode, each.uid, each.gid) for each in tar.getmembers()]
    assert folders == [(name, True, 0o700, 1000, 1001) for name in ("1000", *(f"1000/{each}" for each in below))]


def test_the_cache_s_archive_holds_the_engine_s_files_for_its_user_alone() -> None:
    folder = PurePosixPath("/cache/1000/guard")
    archive = cache_folder_archive(1000, 1001, [folder], {folder / "a.py": "é = 1\n"})
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert [each.name for each in tar.getmembers()] == ["1000", "1000/guard", "1000/guard/a.py"]
        file = tar.getmember("1000/guard/a.py")
        assert (file.isfile(), file.mode, file.uid, file.gid) == (True, 0o400, 1000, 1001)
        content = tar.extractfile(file)
        assert content is not None
        assert content.read().decode() == "é = 1\n"
    with pytest.raises(ValueError, match="/etc/a"):
        cache_folder_archive(1000, 1001, [], {PurePosixPath("/etc/a"): "x"})


BY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root")
FILE, FOLDER = stat.S_IFREG, stat.S_IFDIR


def file_entry(uid: int, mode: int, gid: int | None = None) -> FileEntry:
    return FileEntry(uid, uid if gid is None else gid, FILE | mode)


def folder_entry(uid: int, mode: int) -> FileEntry:
    return FileEntry(uid, uid, FOLDER | mode)


@pytest.mark.parametrize(
    ("entries", "identity"),
    [
        ([], UserIdentity(UNPRIVILEGED, UNPRIVILEGED)),
        ([file_entry(1000, 0o600), folder_entry(1000, 0o700)], UserIdentity(1000, 1000)),
        ([file_entry(1000, 0o644), folder_entry(0, 0o755)], UserIdentity(1000, 1000)),
        ([file_entry(0, 0o644), folder_entry(0, 0o755)], UserIdentity(UNPRIVILEGED, UNPRIVILEGED)),
        ([file_entry(0, 0o600), folder_entry(0, 0o755)], UserIdentity(0, 0)),
        ([file_entry(0, 0o644), folder_entry(0, 0o700)], UserIdentity(0, 0)),
        # readable, but a folder above it cannot be entered
        ([file_entry(1000, 0o644), folder_entry(0, 0o754)], UserIdentity(0, 0)),
        ([file_entry(1000, 0o600), folder_entry(2000, 0o700)], UserIdentity(0, 0, ("DAC_OVERRIDE",))),
        ([file_entry(1000, 0o600), file_entry(2000, 0o600)], UserIdentity(0, 0, ("DAC_OVERRIDE",))),
        ([file_entry(1000, 0o600), file_entry(0, 0o600)], UserIdentity(0, 0, ("DAC_OVERRIDE",))),
        # the second owner can read what the first one cannot
        ([file_entry(1000, 0o644), file_entry(2000, 0o600)], UserIdentity(2000, 2000)),
        ([file_entry(0, 0o640, gid=50), file_entry(1000, 0o644, gid=50)], UserIdentity(1000, 50)),
        # an owner without the right, although everybody else has it
        ([file_entry(1000, 0o044)], UserIdentity(UNPRIVILEGED, UNPRIVILEGED)),
    ],
)
def test_the_least_rights_that_suffice(entries: list[FileEntry], identity: UserIdentity) -> None:
    assert choose_identity(entries) == identity
    assert identity.user == f"{identity.uid}:{identity.gid}"


@BY_ROOT
def test_what_must_be_read_is_the_model_all_below_it_and_the_way_to_it(tmp_path: Path) -> None:
    inside = tmp_path / "org" / "model"
    inside.mkdir(parents=True)
    for uid, path in enumerate((tmp_path, tmp_path / "org", inside), start=1):
        os.chown(path, uid, uid)
    for uid, name in ((10, "a"), (11, "b")):
        (inside / name).write_bytes(b"x")
        os.chown(inside / name, uid, uid)
    (tmp_path / "other").write_bytes(b"x")
    os.chown(tmp_path / "other", 99, 99)
    found = [entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), ["org/model"])]
    assert found[0] == 3, "the model's own folder first"
    assert sorted(found[1:3]) == [10, 11]
    assert sorted(found[3:]) == [1, 2]
    assert [entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), [])] == [1]
    assert [entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), ["missing"])] == [1]


@BY_ROOT
def test_links_are_followed_to_what_they_name(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "1").write_bytes(b"x")
    os.chown(blobs / "1", 10, 10)
    os.chown(blobs, 5, 5)
    (tmp_path / "m.gguf").symlink_to("blobs/1")
    assert {entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), ["m.gguf"])} == {10, 5, 0}


@BY_ROOT
def test_only_the_folders_on_the_way_count_and_those_on_both_sides_of_a_link(tmp_path: Path) -> None:
    first, hub = tmp_path / "first", tmp_path / "hub"
    snapshot, blobs = hub / "snapshots" / "1", hub / "blobs"
    for folder in (first, snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "b").write_bytes(b"x")
    (snapshot / "m.gguf").symlink_to("../../blobs/b")
    for uid, path in enumerate((first, hub, hub / "snapshots", snapshot, blobs, blobs / "b"), start=1):
        os.chown(path, uid, uid)
    roots = ModelRoots((first, hub))
    for declared in ("snapshots/1/m.gguf", "snapshots/1"):
        assert {entry.uid for entry in entries_to_read(roots, [declared])} == {2, 3, 4, 5, 6}
    assert {entry.uid for entry in entries_to_read(roots, [])} == {1}


ID = "4f9f0c2d1e8b7a6d5c4b3a29181706f5e4d3c2b1a0918273645546372819a0bc"
MOUNTINFO = f"""\
611 600 0:45 / / ro,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/AAAA
620 611 254:0 /var/lib/docker/containers/{ID}/resolv.conf /etc/resolv.conf rw - ext4 /dev/vda rw
621 611 254:0 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw
622 611 254:0 /srv/models /models ro - ext4 /dev/vda rw
"""
ON_A_HOST = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"


def test_the_id_is_found_in_the_mounts_and_else_in_the_host_name() -> None:
    assert own_container_ids(MOUNTINFO, "controller") == [ID]
    assert own_container_ids(MOUNTINFO, ID[:12]) == [ID]
    assert own_container_ids(ON_A_HOST, "0123456789ab") == ["0123456789ab"]
    assert own_container_ids(ON_A_HOST, "my-machine") == []


def mount(kind: str, target: str, source: str = "/host", **more: str) -> dict[str, Any]:
    return {"Type": kind, "Destination": target, "Source": source, **more}


@pytest.mark.parametrize(
    ("mounts", "models", "found"),
    [
        ([mount("bind", "/models", "/srv/m")], "/models", {"Type": "bind", "Source": "/srv/m"}),
        ([mount("bind", "/srv", "/data")], "/srv/a/b", {"Type": "bind", "Source": "/data/a/b"}),
        (
            [mount("bind", "/", "/rootfs"), mount("bind", "/models", "/srv/m"), mount("bind", "/mod", "/x")],
            "/models/sub",
            {"Type": "bind", "Source": "/srv/m/sub"},
        ),
        (
            [mount("volume", "/models", "/var/lib/docker/volumes/v/_data", Name="v")],
            "/models",
            {"Type": "volume", "Source": "v"},
        ),
        (
            [mount("volume", "/data", "/var/lib/docker/volumes/v/_data", Name="v")],
            "/data/models",
            {"Type": "bind", "Source": "/var/lib/docker/volumes/v/_data/models"},
        ),
    ],
)
def test_the_nearest_mount_above_the_models_is_their_host_side(
    mounts: list[dict[str, Any]], models: str, found: dict[str, str]
) -> None:
    assert host_mount(mounts, PurePosixPath(models)) == found


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ([], "is not a mount of the controller's container"),
        ([mount("bind", "/model"), mount("bind", "/models-old")], "is not a mount"),
        ([mount("tmpfs", "/models", "")], "a mount of type tmpfs"),
    ],
)
def test_models_that_engines_cannot_be_given_are_refused(mounts: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(DockerSetupError, match=words):
        host_mount(mounts, PurePosixPath("/models"))


REPLICA_ID = ReplicaId("m", 1, "0123456789abcdef", 3)
START = StartRequest(REPLICA_ID, "rh-x", StubDefinition(backend="stub"), "m", None, "t", {"GPU-a": 7})
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


def inspected(**state: object) -> dict[str, Any]:
    return {
        "Id": "abc",
        "Name": "/rh-x",
        "Created": "2026-11-21T12:00:00.123456789Z",
        "Path": "/app/engine",
        "Args": ["--flag", "", "value"],
        "Image": "sha256:1",
        "Config": {"Labels": write_labels("one", START, 0.0)},
        "State": {"Status": "running", "Running": True, "StartedAt": "2026-11-21T12:00:01Z", **state},
        "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}]}},
    }


def test_a_running_container() -> None:
    seen = seen_replica(inspected(), "", publishes_ports=True)
    assert (seen.id, seen.name, seen.phase, seen.claims) == (REPLICA_ID, "rh-x", Phase.RUNNING, {"GPU-a": 7})
    assert seen.created_at == pytest.approx(NOON + 0.123456789)
    assert seen.started_at == NOON + 1
    assert seen.base_url == "http://127.0.0.1:32768"
    assert (seen.image_id, seen.argv) == ("sha256:1", ("/app/engine", "--flag", "", "value"))
    assert seen.exit is None
    assert seen_replica(inspected(), "", publishes_ports=False).base_url == "http://rh-x:8000"


@pytest.mark.parametrize(
    "ports",
    [None, {}, {"8000/tcp": None}, {"8000/tcp": []}, {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}],
)
def test_no_port_is_no_address(ports: object) -> None:
    found = inspected() | {"NetworkSettings": {"Ports": ports}}
    assert seen_replica(found, "", publishes_ports=True).base_url is None


@pytest.mark.parametrize(
    ("status", "running", "phase"),
    [
        ("created", False, Phase.CREATED),
        *((status, True, Phase.RUNNING) for status in ("running", "paused", "restarting", "of a later version")),
        *((status, False, Phase.EXITED) for status in ("exited", "dead", "removing", "of a later version", "")),
    ],
)
def test_the_phase_of_a_replica_follows_from_its_containers_status(status: str, running: bool, phase: Phase) -> None:
    seen = seen_replica(inspected(Status=status, Running=running), "tail", publishes_ports=True)
    assert seen.phase is phase
    assert (seen.exit is not None) is (phase is Phase.EXITED)
    assert (seen.base_url is not None) is (phase is Phase.RUNNING)


def test_an_end_and_a_half_created_container() -> None:
    ended = inspected(Status="exited", Running=False, ExitCode=137, OOMKilled=True)
    assert seen_replica(ended, "last line", publishes_ports=True).exit == Exit(137, oom=True, log_tail="last line")
    created = inspected(Status="created", Running=False, StartedAt="0001-01-01T00:00:00Z")
    assert seen_replica(created, "", publishes_ports=False).started_at is None


def test_labels_of_somebody_else_are_refused() -> None:
    with pytest.raises(UnreadableLabelsError):
        seen_replica(inspected() | {"Config": {"Labels": None}}, "", publishes_ports=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T12:00:00Z", 0.0),
        ("2026-11-21T12:00:00.5Z", 0.5),
        ("2026-11-21T12:00:00.000000001Z", 1e-9),
        ("2026-11-21T13:30:00.25+01:30", 0.25),
        ("2026-11-21T11:00:00-0100", 0.0),
        ("2026-11-21 12:00:00", 0.0),
    ],
)
def test_times_are_read_to_the_nanosecond_in_any_zone(text: str, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(NOON + seconds)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "", "soon", "2026-13-01T00:00:00Z", None, 5, "0"])
def test_what_is_no_time_is_none(text: object) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(
    ("image", "command"),
    [
        ("roundhouse/llama-server:latest", "make images"),
        ("roundhouse/worker:latest", "make images"),
        ("roundhouse/worker-exllamav3:latest", "make images ENGINES=exllamav3"),
        ("roundhouse/worker-vllm", "make images ENGINES=vllm"),
        ("roundhouse/worker-vllm-old:1", "make images"),
    ],
)
def test_what_builds_an_image_of_ours(image: str, command: str) -> None:
    assert is_built_here(image)
    assert build_command(image) == command


@pytest.mark.parametrize(
    ("newest", "oldest", "version"),
    [
        *(("1.41", "1.12", "1.41"), ("1.43", "1.12", "1.43"), ("1.41", None, "1.41")),
        *((NEWEST_API, "1.24", NEWEST_API), ("1.54", "1.24", NEWEST_API), ("1.99", "1.60", "1.60")),
    ],
)
def test_the_newest_version_that_both_know_is_spoken(newest: str, oldest: str | None, version: str) -> None:
    assert negotiate_version({"ApiVersion": newest, "MinAPIVersion": oldest}) == version


@pytest.mark.parametrize(("server", "words"), [({}, "not a Docker daemon"), ({"ApiVersion": "1.40"}, "is too old")])
def test_what_is_too_old_or_no_daemon_is_refused(server: dict[str, str], words: str) -> None:
    with pytest.raises(RuntimeUnavailableError, match=words):
        negotiate_version(server)
    assert OLDEST_API == "1.41", "Docker Engine 20.10"


def test_the_system_s_reason_is_found_wherever_the_library_hides_it() -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
    hidden = requests.ConnectionError(("Connection aborted.", missing))
    hidden.__cause__ = OSError("aborted")
    hidden.__cause__.__context__ = missing
    outer = DockerException("Error while fetching server API version")
    outer.__cause__ = hidden
    assert plain_reason(outer).startswith("there is no such socket")
    assert plain_reason(PermissionError(errno.EACCES, "x")).startswith("this user may not use it")
    assert plain_reason(requests.ReadTimeout("x")) == "it hangs"
    assert plain_reason(DockerException("something new")) == "something new"


def test_an_unexpected_refusal_counts_as_unavailable() -> None:
    refused = DaemonRefusedError(500, "out of order")
    assert isinstance(refused, RuntimeUnavailableError)
    assert (refused.status, refused.message) == (500, "out of order")


def test_both_kinds_of_control_groups_are_read() -> None:
    first = {"rss": 1, "total_rss": 300, "total_mapped_file": 70, "total_cache": 5000}
    second = {"anon": 300, "file": 5000, "file_mapped": 70, "inactive_file": 4000}
    assert (mapped_bytes(first), mapped_bytes(second), mapped_bytes({})) == (370, 370, 0)


ENDED = {"Id": "c" * 64, "State": {"Status": "exited"}}


class LoggingDaemon:
    """A daemon that has what a container wrote so far, or is removing the container."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def logs(self, *_: object, **__: object) -> bytes:
        """All of it: more than was asked for."""
        if self.data is None:
            raise APIError("can not get logs from container which is dead or marked for removal")
        return self.data


def read_part(daemon: LoggingDaemon, container: dict[str, Any], cursor: str | None) -> LogPart | None:
    client: Any = daemon
    return read_log_part(client, container, cursor, 5)


def test_a_container_that_is_being_removed_is_read_from_what_was_kept_and_followed_to_its_end() -> None:
    daemon = LoggingDaemon(None)
    assert read_part(daemon, ENDED, None) is None
    cursor = str(DockerLogCursor("2026-11-21T20:00:00.000000001Z"))
    assert read_part(daemon, ENDED, cursor) == LogPart((), cursor, running=True)


def test_a_line_that_is_still_being_written_is_given_once_it_is_whole() -> None:
    stamp = b"2026-11-21T20:00:00.00000000%dZ "
    daemon, running = LoggingDaemon(b""), {**ENDED, "State": {"Status": "running"}}
    cursor: str | None = None
    for written, container, line in (
        (stamp % 1 + b"one\n" + stamp % 2 + b"tw", running, "one"),
        (b"o\n", running, "two"),
        (stamp % 3 + b"thr", ENDED, "thr"),
    ):
        daemon.data = (daemon.data or b"") + written
        part = read_part(daemon, container, cursor)
        assert part is not None
        assert (part.lines, part.running) == ((line,), container is running)
        cursor = part.cursor


class FilteringDaemon(LoggingDaemon):
    """A daemon that leaves out records of before `since`."""

    def logs(self, *_: object, **limits: Any) -> bytes:
        since, tail = limits.get("since"), limits.get("tail")
        lines = (self.data or b"").splitlines(keepends=True)
        times = {line: parse_time(line.split()[0].decode()) or 0.0 for line in lines}
        found = [line for line in lines if since is None or times[line] >= since]
        return b"".join(found[-tail:] if tail else found)


def test_a_log_is_followed_while_the_clock_is_set_back() -> None:
    daemon, running = FilteringDaemon(b""), {**ENDED, "State": {"Status": "running"}}
    cursor: str | None = None
    for minutes in ((10, 11), (), (2,), (3, 4), (), (12, 13), (5,), (5, 14), (15,)):
        written = tuple(f"line of {minute:02}" for minute in minutes)
        for minute, line in zip(minutes, written, strict=True):
            daemon.data = (daemon.data or b"") + f"2026-11-21T20:{minute:02}:00.000000001Z {line}\n".encode()
        part = read_part(daemon, running, cursor)
        assert part is not None
        assert part.lines == written
        cursor = part.cursor
    assert str(cursor).startswith("2026-11-21T20:15")
