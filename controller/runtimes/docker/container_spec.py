"""From a request and a rendered launch to the body of `POST /containers/create`. Pure.

Field names are those of the Docker Engine API, 1.41 (https://docs.docker.com/reference/api/engine/version/v1.41/).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from controller.engines import get_engine
from controller.engines.base import ClaimedGpu, Launch, RenderContext
from controller.runtimes.base import StartRequest
from controller.runtimes.docker.labels import CACHE_ROLE, own_labels, write_labels
from controller.runtimes.docker.user import UserIdentity

PORT: Final = 8000
"""Where every engine listens, in its container."""
MODELS: Final = PurePosixPath("/models")
"""Where engines see the first models folder."""
CACHE: Final = PurePosixPath("/cache")
PIDS_LIMIT: Final = 4096
"""Processes and threads of one engine. vLLM on many cores has some hundreds."""
TMP_BYTES: Final = 2**30

_RESERVED_ENV: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Which GPUs an engine sees follows from its claims and from nothing else."""
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class HostContext:
    """What all containers of one runtime share."""

    instance: str
    network: str
    publishes_ports: bool
    """True: engines are reached by a port on 127.0.0.1; false: by their container's name on the network."""
    models: Sequence[Mapping[str, Any] | None]
    """Each models folder, in their order, as the daemon must be told of it: `Type` and `Source` of a mount. None: it is
    not there now."""
    log_mib: int

    @property
    def cache_volume(self) -> str:
        """The volume that keeps what engines compile."""
        return f"rh-{self.instance}-cache"


def cache_dir(identity: UserIdentity) -> PurePosixPath:
    """A user's own folder in the cache volume, as its engines see it."""
    return CACHE / str(identity.uid)


def models_targets(count: int) -> tuple[PurePosixPath, ...]:
    """Where engines see so many models folders: `/models`, `/models-2`, and so on.

    Beside each other: inside a mount that is read-only Docker could make no folder for another one.
    """
    return (MODELS, *(MODELS.with_name(f"{MODELS.name}-{number}") for number in range(2, count + 1)))


def render_context(
    served_name: str,
    identity: UserIdentity,
    images: Mapping[str, str],
    gpus: tuple[ClaimedGpu, ...] = (),
    model_paths: Mapping[str, str] = MappingProxyType({}),
) -> RenderContext:
    """The world as an engine in a container sees it."""
    return RenderContext(
        runtime="docker",
        served_name=served_name,
        models_root=MODELS,
        host="0.0.0.0",  # noqa: S104 - of the container; who reaches it is decided by its network
        port=PORT,
        cache_dir=cache_dir(identity),
        images=images,
        gpus=gpus,
        model_paths=model_paths,
    )


def container_config(
    request: StartRequest,
    launch: Launch,
    identity: UserIdentity,
    host: HostContext,
    now: float,
    gpu_env: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The whole container: what it runs, and all that it may not do. `gpu_env` names its GPUs to CUDA, where more than
    those are in the container."""
    assert launch.image is not None, "preflight refuses a definition without an image"
    config: dict[str, Any] = {
        "Image": launch.image,
        # The engine's own program, not an image's wrapper: drift compares it word by word.
        "Entrypoint": [launch.argv[0]],
        "Cmd": list(launch.argv[1:]),
        "Env": _environment(request, launch, identity, gpu_env),
        "User": identity.user,
        "Labels": write_labels(host.instance, request, now),
        # The controller probes; an image's own check would run a program in the container every few seconds.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(request, launch, identity, host),
    }
    if host.publishes_ports:
        config["ExposedPorts"] = {f"{PORT}/tcp": {}}
    return config


def hardened_host_config(cap_add: tuple[str, ...] = ()) -> dict[str, Any]:
    """The restrictions that every container of ours has, as part of its HostConfig."""
    return {
        "CapDrop": ["ALL"],
        "CapAdd": list(cap_add),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "RestartPolicy": {"Name": "no"},
        "Init": True,
    }


def bounded_log(mib: int) -> dict[str, Any]:
    """Two files that together hold at most `mib` MiB (2 at least), whatever the daemon's default driver is."""
    return {"Type": "json-file", "Config": {"max-size": f"{max(1, mib // 2)}m", "max-file": "2"}}


def cache_folder_archive(uid: int, gid: int) -> bytes:
    """A tar with one folder, the user's own, to be unpacked in the cache volume.

    The daemon unpacks it into a container that has not started yet. So a volume that only root may write to serves any
    user, without running anything as root, and whatever the image has in it.
    """
    folder = tarfile.TarInfo(str(uid))
    folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o700, uid, gid
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(folder)
    return archive.getvalue()


def _environment(
    request: StartRequest, launch: Launch, identity: UserIdentity, gpu_env: Mapping[str, str]
) -> list[str]:
    home = str(cache_dir(identity))
    env = {
        "HOME": home,
        "XDG_CACHE_HOME": home,
        # Libraries ask for the user's name, and /etc/passwd does not know every number.
        "USER": "roundhouse",
        "LOGNAME": "roundhouse",
        **launch.env,
    }
    if launch.token_env is not None:
        env[launch.token_env] = request.token
    # A word without "=" removes the image's own variable. With claims the daemon's GPU driver sets the other one.
    variables = [f"{key}={value}" for key, value in env.items() if key not in _RESERVED_ENV]
    # CUDA's own order is by speed, and what is rendered by GPU is in the order of PCI.
    gpu_variables = ["CUDA_DEVICE_ORDER=PCI_BUS_ID"] if request.gpus else ["NVIDIA_VISIBLE_DEVICES=void"]
    visible = gpu_env.get("CUDA_VISIBLE_DEVICES")
    return [
        *variables,
        "CUDA_VISIBLE_DEVICES" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}",
        *gpu_variables,
    ]


def _host_config(request: StartRequest, launch: Launch, identity: UserIdentity, host: HostContext) -> dict[str, Any]:
    config: dict[str, Any] = {
        **hardened_host_config(identity.cap_add),
        "PidsLimit": PIDS_LIMIT,
        "NetworkMode": host.network,
        "Mounts": [*_models_mounts(host), _cache_mount(host)],
        "Tmpfs": {"/tmp": f"rw,nosuid,nodev,exec,mode=1777,size={TMP_BYTES}"},  # noqa: S108 - the container's own
        "LogConfig": bounded_log(host.log_mib),
    }
    if host.publishes_ports:
        config["PortBindings"] = {f"{PORT}/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    if launch.shm_bytes is not None:
        config["ShmSize"] = launch.shm_bytes
    if request.definition.memory_mib is not None:
        # With no swap beyond it: an engine that swaps is slower than one that is started again.
        limit = request.definition.memory_mib * _MIB
        config.update(Memory=limit, MemorySwap=limit)
    if request.gpus:
        capabilities = get_engine(request.definition).gpu_capabilities
        # One list: all of these. A list beside it would be another choice.
        config["DeviceRequests"] = [{"DeviceIDs": sorted(request.gpus), "Capabilities": [["gpu", *capabilities]]}]
    return config


def _models_mounts(host: HostContext) -> list[dict[str, Any]]:
    return [
        {**mount, "Target": str(target), "ReadOnly": True}
        for mount, target in zip(host.models, models_targets(len(host.models)), strict=True)
        if mount is not None
    ]


def _cache_mount(host: HostContext) -> dict[str, Any]:
    # NoCopy: else the first image's /cache would decide who may write to the volume.
    options = {"NoCopy": True, "Labels": own_labels(host.instance, CACHE_ROLE)}
    return {"Type": "volume", "Source": host.cache_volume, "Target": str(CACHE), "VolumeOptions": options}
