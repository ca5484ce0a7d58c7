"""From a request to the container that the daemon is asked for."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from controller.engines import ENGINES, get_engine
from controller.engines.base import Launch
from controller.engines.litert_lm import LiteRTLMDefinition
from controller.engines.llama_server import LlamaServerDefinition
from controller.gpus import Gpu
from controller.runtimes.base import StartRequest
from controller.runtimes.claimed_gpus import visible_gpus
from controller.runtimes.docker.container_spec import (
    HostContext,
    bounded_log,
    cache_folder_archive,
    container_config,
    render_context,
)
from controller.runtimes.docker.user import UserIdentity
from controller.state import ReplicaId

HOST = HostContext(
    "one", "engines", publishes_ports=False, models=({"Type": "bind", "Source": "/srv/models"},), log_mib=16
)
USER = UserIdentity(1000, 1001)
DEFINITION = LlamaServerDefinition(model_path="m.gguf", image="engine:1", memory_mib=512, env={"A": "b=c"})
REQUEST = StartRequest(
    ReplicaId("a/b:c", 0, "0123456789abcdef", 2), "rh-one-x-0-01234567-2", DEFINITION, "a/b:c", "engine:1", "SECRET"
)


def config(
    request: StartRequest = REQUEST, host: HostContext = HOST, visible: Mapping[str, str] | None = None, **launch: Any
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
    assert made["Image"] == "engine:1"
    assert made["User"] == "1000:1001"


def test_the_token_is_in_the_environment_and_nowhere_else() -> None:
    made = config()
    assert "LLAMA_API_KEY=SECRET" in made["Env"]
    assert "SECRET" not in str(without(made, "Env"))
    assert "SECRET" not in str(config(token_env=None))


def test_definitions_set_variables_but_not_which_gpus_are_seen() -> None:
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


def test_limits_follow_the_definition() -> None:
    host = config()["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (512 * 2**20, 512 * 2**20)
    assert "ShmSize" not in host
    assert config(shm_bytes=10 * 2**30)["HostConfig"]["ShmSize"] == 10 * 2**30
    free = replace(REQUEST, definition=LlamaServerDefinition(model_path="m.gguf", image="engine:1"))
    assert "Memory" not in config(free)["HostConfig"]


def test_everything_is_restricted() -> None:
    host = config()["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["SecurityOpt"]) == (["ALL"], [], ["no-new-privileges"])
    assert host["ReadonlyRootfs"]
    assert host["RestartPolicy"] == {"Name": "no"}
    assert [(mount["Target"], mount.get("ReadOnly", False)) for mount in host["Mounts"]] == [
        ("/models", True),
        ("/cache", False),
    ]
    cap_added = container_config(REQUEST, Launch(("x",), image="i"), UserIdentity(0, 0, ("DAC_OVERRIDE",)), HOST, 0.0)
    assert cap_added["HostConfig"]["CapAdd"] == ["DAC_OVERRIDE"]


def test_every_models_folder_is_mounted_beside_the_first_one_and_read_only() -> None:
    folders = [{"Type": "bind", "Source": "/srv/models"}, None, {"Type": "volume", "Source": "hub"}]
    mounts = config(host=replace(HOST, models=folders))["HostConfig"]["Mounts"]
    assert mounts[:-1] == [
        {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True},
        {"Type": "volume", "Source": "hub", "Target": "/models-3", "ReadOnly": True},
    ]
    paths = {"m.gguf": "/models-3/m.gguf"}
    assert render_context("m", USER, {}, model_paths=paths).resolve_path("m.gguf") == "/models-3/m.gguf"


def test_logs_are_bounded_whatever_is_asked() -> None:
    assert bounded_log(16)["Config"] == {"max-size": "8m", "max-file": "2"}
    assert bounded_log(1)["Config"] == {"max-size": "1m", "max-file": "2"}


def test_the_cache_s_archive_holds_one_folder_of_the_user_s_own() -> None:
    with tarfile.open(fileobj=io.BytesIO(cache_folder_archive(1000, 1001))) as tar:
        (folder,) = tar.getmembers()
    assert (folder.name, folder.isdir(), folder.mode, folder.uid, folder.gid) == ("1000", True, 0o700, 1000, 1001)


def test_the_cache_s_archive_holds_the_engine_s_folders_and_those_that_they_lie_in() -> None:
    wanted = [PurePosixPath("/cache/1000/slots/a%2Fb/0"), PurePosixPath("/cache/1000/x")]
    with tarfile.open(fileobj=io.BytesIO(cache_folder_archive(1000, 1001, wanted))) as tar:
        folders = tar.getmembers()
    names = ["1000", "1000/slots", "1000/slots/a%2Fb", "1000/slots/a%2Fb/0", "1000/x"]
    assert [(each.name, each.isdir(), each.mode, each.uid, each.gid) for each in folders] == [
        (name, True, 0o700, 1000, 1001) for name in names
    ]
