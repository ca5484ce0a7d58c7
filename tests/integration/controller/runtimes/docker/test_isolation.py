"""What an engine's container may and may not do, as the daemon says and as a program inside finds."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.docker_engine import DockerEngines
from tests.support.runtime_contract import RUN, ended, exited, only, start_shell, wait_for_log

pytestmark = [
    pytest.mark.engines,
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root"),
]

READ_MODEL = "cat /models/m.gguf; echo; id -u"
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def status_of(text: str) -> dict[str, str]:
    """/proc/<pid>/status."""
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


async def test_the_restrictions_are_set(containers: DockerEngines) -> None:
    runtime = containers.runtime(log_mib=2)
    request = containers.request(containers.shell(RUN, memory_mib=256))
    await runtime.start_replica(request)
    inspected = containers.inspect(request.name)
    host: dict[str, Any] = inspected["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["ReadonlyRootfs"], host["Privileged"], host["Init"]) == (True, False, True)
    assert host["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}
    assert (host["Memory"], host["MemorySwap"]) == (256 * 2**20, 256 * 2**20)
    assert host["PidsLimit"] == 4096
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "2", "max-size": "1m"}}
    assert host["PortBindings"]["8000/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": ""}]
    mounts = {each["Destination"]: each for each in inspected["Mounts"]}
    assert set(mounts) == {"/models", "/cache"}
    assert (mounts["/models"]["Source"], mounts["/models"]["RW"]) == (str(containers.models), False)
    assert (mounts["/cache"]["Name"], mounts["/cache"]["RW"]) == (f"rh-{containers.instance}-cache", True)
    assert list(inspected["NetworkSettings"]["Networks"]) == [containers.network]
    assert request.token not in str({**inspected, "Config": {**inspected["Config"], "Env": []}})


async def test_nothing_but_its_own_folders_is_writable_from_inside(containers: DockerEngines) -> None:
    _, request = await start_shell(containers)
    status = status_of(containers.inside(request.name, "cat", "/proc/1/status")[1])
    assert [int(status[each], 16) for each in CAPABILITIES] == [0, 0, 0, 0, 0]
    assert (status["NoNewPrivs"], status["Uid"].split()) == ("1", ["10001"] * 4)
    assert containers.inside(request.name, "test", "-u", "/bin/su")[0] == 0, "a set-uid program to be refused"
    assert containers.inside(request.name, "su", "-c", "id")[0] != 0

    for path in ("/models/x", "/x", "/etc/x", "/app/x", "/cache/x"):
        code, output = containers.inside(request.name, "touch", path)
        assert code != 0, path
        assert "Read-only file system" in output or "Permission denied" in output
    for path in ("/tmp/x", "/dev/shm/x", "/cache/10001/x"):
        assert containers.inside(request.name, "touch", path) == (0, "")
    assert containers.inside(request.name, "sh", "-c", "echo $HOME; cd && pwd")[1].split() == ["/cache/10001"] * 2


async def test_the_variables_that_choose_gpus_are_ours(containers: DockerEngines) -> None:
    body = f"env; echo end; {RUN}"
    env = {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "all", "OTHER": "a=b c"}
    runtime, request = await start_shell(containers, body, env=env)
    await wait_for_log(runtime, request.name, "end")
    words = (await runtime.read_log_tail(request.name)).splitlines()
    assert "NVIDIA_VISIBLE_DEVICES=void" in words
    assert "OTHER=a=b c" in words
    assert not any(word.startswith("CUDA_VISIBLE_DEVICES") for word in words)


async def test_a_model_is_read_as_its_owner(containers: DockerEngines) -> None:
    path = containers.file("m.gguf", b"GGUF private", 0o600)
    os.chown(path, 4321, 8765)
    runtime, request = await start_shell(containers, READ_MODEL)
    assert containers.inspect(request.name)["Config"]["User"] == "4321:8765"
    exit_ = await ended(runtime)
    assert exit_.log_tail.splitlines() == ["GGUF private", "4321"]


async def test_root_s_private_model_is_read_by_root_without_capabilities(containers: DockerEngines) -> None:
    containers.file("m.gguf", b"GGUF of root", 0o600)
    runtime, request = await start_shell(containers, f"{READ_MODEL}; grep CapEff /proc/self/status")
    exit_ = await ended(runtime)
    lines = exit_.log_tail.splitlines()
    assert lines[:2] == ["GGUF of root", "0"]
    assert int(lines[2].split()[1], 16) == 0
    assert not containers.inspect(request.name)["HostConfig"]["CapAdd"]


async def test_models_that_no_one_user_may_read_are_read_with_dac_override(containers: DockerEngines) -> None:
    folder = containers.file("set/a.gguf", b"GGUF a", 0o600).parent
    os.chown(folder / "a.gguf", 4321, 4321)
    os.chown(containers.file("set/b.gguf", b"GGUF b", 0o600), 5432, 5432)
    runtime, request = await start_shell(
        containers, "cat /models/set/a.gguf /models/set/b.gguf", model_path="set", backend="llama_server"
    )
    exit_ = await ended(runtime)
    assert (exit_.code, exit_.log_tail) == (0, "GGUF aGGUF b")
    assert containers.inspect(request.name)["HostConfig"]["CapAdd"] == ["DAC_OVERRIDE"]


async def test_what_an_engine_compiled_is_there_for_the_next_one_of_its_user_alone(containers: DockerEngines) -> None:
    runtime = containers.runtime()
    first = containers.request(containers.shell("echo kernel > $XDG_CACHE_HOME/k"))
    await runtime.start_replica(first)
    await exited(runtime)
    await runtime.remove_replica(first.name)

    second = containers.request(containers.shell("cat $XDG_CACHE_HOME/k; ls -ldn /cache /cache/10001"))
    await runtime.start_replica(second)
    exit_ = await ended(runtime)
    lines = exit_.log_tail.splitlines()
    assert lines[0] == "kernel"
    assert lines[1].split()[:4:2] == ["drwxr-xr-x", "0"]
    assert lines[2].split()[:4:2] == ["drwx------", "10001"]
    await runtime.remove_replica(second.name)

    os.chown(containers.file("m.gguf", b"GGUF", 0o600), 4321, 4321)
    third = containers.request(containers.shell("echo other > $HOME/k; cat /cache/10001/k"), attempt=2)
    await runtime.start_replica(third)
    exit_ = await ended(runtime)
    assert "Permission denied" in exit_.log_tail
    volumes = containers.client.volumes.list(filters={"label": f"dev.roundhouse.instance={containers.instance}"})
    assert [volume.name for volume in volumes] == [f"rh-{containers.instance}-cache"]


async def test_the_network_lets_nothing_out(containers_alone: DockerEngines) -> None:
    containers = containers_alone
    runtime = containers.runtime()
    await runtime.start_replica(containers.request(containers.shell(RUN)))
    assert (await only(runtime)).base_url is not None
    (network,) = containers.client.networks.list(names=[containers.network])
    network.reload()
    assert network.attrs["Options"] == {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    assert network.attrs["Labels"]["dev.roundhouse.instance"] == containers.instance
