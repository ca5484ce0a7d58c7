"""What an engine's container may and may not do, as the daemon says and as a program inside finds."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker_engine import RUN, Yard, exited, only, open_yard, said, shell

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root"),
]

READ_MODEL = "cat /models/m.gguf; echo; id -u"
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    yield yard
    await yard.close()


def status_of(text: str) -> dict[str, str]:
    """/proc/<pid>/status."""
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


async def test_the_restrictions_are_set(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN, memory_mib=256))
    await runtime.start(request)
    inspected = yard.inspect(request.name)
    host: dict[str, Any] = inspected["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["ReadonlyRootfs"], host["Privileged"], host["Init"]) == (True, False, True)
    assert host["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}
    assert (host["Memory"], host["MemorySwap"]) == (256 * 2**20, 256 * 2**20)
    assert host["PidsLimit"] == 4096
    assert host["PortBindings"]["8000/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": ""}]
    mounts = {each["Destination"]: each for each in inspected["Mounts"]}
    assert set(mounts) == {"/models", "/cache"}
    assert (mounts["/models"]["Source"], mounts["/models"]["RW"]) == (str(yard.models), False)
    assert (mounts["/cache"]["Name"], mounts["/cache"]["RW"]) == (f"rh-{yard.instance}-cache", True)
    assert list(inspected["NetworkSettings"]["Networks"]) == [yard.network]
    assert request.token not in str({**inspected, "Config": {**inspected["Config"], "Env": []}})


async def test_nothing_but_its_own_folders_is_writable_from_inside(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN))
    await runtime.start(request)
    status = status_of(yard.inside(request.name, "cat", "/proc/1/status")[1])
    assert [int(status[each], 16) for each in CAPABILITIES] == [0, 0, 0, 0, 0]
    assert (status["NoNewPrivs"], status["Uid"].split()) == ("1", ["10001"] * 4)
    assert yard.inside(request.name, "test", "-u", "/bin/su")[0] == 0, "a set-uid program to be refused"
    assert yard.inside(request.name, "su", "-c", "id")[0] != 0

    for path in ("/models/x", "/x", "/etc/x", "/app/x", "/cache/x"):
        code, output = yard.inside(request.name, "touch", path)
        assert code != 0, path
        assert "Read-only file system" in output or "Permission denied" in output
    for path in ("/tmp/x", "/dev/shm/x", "/cache/10001/x"):
        assert yard.inside(request.name, "touch", path) == (0, "")
    assert yard.inside(request.name, "sh", "-c", "echo $HOME; cd && pwd")[1].split() == ["/cache/10001"] * 2


async def test_the_variables_that_choose_gpus_are_ours(yard: Yard) -> None:
    runtime = yard.runtime()
    body = f"env; echo end; {RUN}"
    env = {"BODY": body, "CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "all", "OTHER": "a=b c"}
    request = yard.request(shell("", env=env))
    await runtime.start(request)
    await said(runtime, request.name, "end")
    words = (await runtime.log_tail(request.name)).splitlines()
    assert "NVIDIA_VISIBLE_DEVICES=void" in words
    assert "OTHER=a=b c" in words
    assert not any(word.startswith("CUDA_VISIBLE_DEVICES") for word in words)


async def test_a_model_is_read_as_its_owner(yard: Yard) -> None:
    path = yard.file("m.gguf", b"GGUF private", 0o600)
    os.chown(path, 4321, 8765)
    runtime = yard.runtime()
    request = yard.request(shell(READ_MODEL))
    await runtime.start(request)
    assert yard.inspect(request.name)["Config"]["User"] == "4321:8765"
    seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.log_tail.splitlines() == ["GGUF private", "4321"]


async def test_root_s_private_model_is_read_by_root_without_capabilities(yard: Yard) -> None:
    yard.file("m.gguf", b"GGUF of root", 0o600)
    runtime = yard.runtime()
    request = yard.request(shell(f"{READ_MODEL}; grep CapEff /proc/self/status"))
    await runtime.start(request)
    seen = await exited(runtime)
    assert seen.exit is not None
    lines = seen.exit.log_tail.splitlines()
    assert lines[:2] == ["GGUF of root", "0"]
    assert int(lines[2].split()[1], 16) == 0
    assert not yard.inspect(request.name)["HostConfig"]["CapAdd"]


async def test_models_that_no_one_user_may_read_are_read_with_dac_override(yard: Yard) -> None:
    folder = yard.file("set/a.gguf", b"GGUF a", 0o600).parent
    os.chown(folder / "a.gguf", 4321, 4321)
    os.chown(yard.file("set/b.gguf", b"GGUF b", 0o600), 5432, 5432)
    runtime = yard.runtime()
    request = yard.request(shell("cat /models/set/a.gguf /models/set/b.gguf", model_path="set", backend="llama_server"))
    await runtime.start(request)
    seen = await exited(runtime)
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.log_tail) == (0, "GGUF aGGUF b")
    assert yard.inspect(request.name)["HostConfig"]["CapAdd"] == ["DAC_OVERRIDE"]


async def test_what_an_engine_compiled_is_there_for_the_next_one_of_its_user_alone(yard: Yard) -> None:
    runtime = yard.runtime()
    first = yard.request(shell("echo kernel > $XDG_CACHE_HOME/k"))
    await runtime.start(first)
    await exited(runtime)
    await runtime.remove(first.name)

    second = yard.request(shell("cat $XDG_CACHE_HOME/k; ls -ldn /cache /cache/10001"))
    await runtime.start(second)
    seen = await exited(runtime)
    assert seen.exit is not None
    lines = seen.exit.log_tail.splitlines()
    assert lines[0] == "kernel"
    assert lines[1].split()[:4:2] == ["drwxr-xr-x", "0"]
    assert lines[2].split()[:4:2] == ["drwx------", "10001"]
    await runtime.remove(second.name)

    os.chown(yard.file("m.gguf", b"GGUF", 0o600), 4321, 4321)
    third = yard.request(shell("echo other > $HOME/k; cat /cache/10001/k"), attempt=2)
    await runtime.start(third)
    seen = await exited(runtime)
    assert seen.exit is not None
    assert "Permission denied" in seen.exit.log_tail
    volumes = yard.client.volumes.list(filters={"label": f"dev.roundhouse.instance={yard.instance}"})
    assert [volume.name for volume in volumes] == [f"rh-{yard.instance}-cache"]


async def test_the_network_lets_nothing_out(yard: Yard) -> None:
    runtime = yard.runtime()
    await runtime.start(yard.request(shell(RUN)))
    assert (await only(runtime)).base_url is not None
    (network,) = yard.client.networks.list(names=[yard.network])
    network.reload()
    assert network.attrs["Options"] == {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    assert network.attrs["Labels"]["dev.roundhouse.instance"] == yard.instance
