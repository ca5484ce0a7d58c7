"""Builds the body of `POST /containers/create` from a start request and a rendered launch. Pure.

Field names are those of the Docker Engine API, 1.41 (https://docs.docker.com/reference/api/engine/version/v1.41/).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
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
"""Port on which every engine listens in its container."""
MODELS: Final = PurePosixPath("/models")
"""Path at which engines see the first models folder."""
CACHE: Final = PurePosixPath("/cache")
"""Path at which engines see the cache volume, with one folder per user."""
PIDS_LIMIT: Final = 4096
"""Processes and threads that one engine may have. vLLM on many cores has some hundreds."""
TMP: Final = PurePosixPath("/tmp")  # noqa: S108 - the container's own
TMP_BYTES: Final = 2**30
"""Size of an engine's `/tmp`, which is in memory."""

_RESERVED_ENV: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Variables that a definition cannot set, because only claims decide which GPUs an engine sees."""
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class HostContext:
    """What all engines' containers of one runtime have in common, for `container_config`."""

    instance: str
    network: str
    """Name of the Docker network that the containers join."""
    publishes_ports: bool
    """True: engines are reached by a port on 127.0.0.1. False: by their container's name on the network."""
    models: Sequence[Mapping[str, Any] | None]
    """`Type` and `Source` of each models folder's mount, in the folders' order. None: the folder is missing now."""
    log_mib: int
    """MiB of each engine's output that are kept, 2 at least."""

    @property
    def cache_volume(self) -> str:
        """Name of the Docker volume that keeps what engines compile and download, one for all engines."""
        return f"rh-{self.instance}-cache"


def cache_dir(identity: UserIdentity) -> PurePosixPath:
    """Return the path of a user's folder in the cache volume, as the user's engines see it: `/cache/<uid>`. Nothing is
    created."""
    return CACHE / str(identity.uid)


def models_targets(count: int) -> tuple[PurePosixPath, ...]:
    """Return the paths at which engines see `count` models folders: `/models`, `/models-2`, and so on, always at least
    `/models`.

    They are not nested, because Docker cannot create a folder for a mount inside a read-only mount.
    """
    return (MODELS, *(MODELS.with_name(f"{MODELS.name}-{number}") for number in range(2, count + 1)))


def render_context(
    served_name: str,
    identity: UserIdentity,
    images: Mapping[str, str],
    gpus: tuple[ClaimedGpu, ...] = (),
    model_paths: Mapping[str, str] = MappingProxyType({}),
    index: int = 0,
) -> RenderContext:
    """Return the context in which an engine's command line is rendered for a container: it listens on all addresses at
    port 8000 (`PORT`), and has its home in the cache volume.

    `images` are the default images by kind, `model_paths` maps model paths to those in the container. `gpus` must be in
    PCI order. `index`: the replica's number among those of its model.
    """
    return RenderContext(
        runtime="docker",
        served_name=served_name,
        models_root=MODELS,
        host="0.0.0.0",  # noqa: S104 - in the container, whose network decides who reaches it
        port=PORT,
        cache_dir=cache_dir(identity),
        images=images,
        index=index,
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
    """Return the body of `POST /containers/create` for a replica's container: its program, and its restrictions.

    `gpu_env` are the variables of `visible_gpus`; pass them where the container sees more GPUs than it may use. `now`
    is a Unix time in seconds for the labels. The definition cannot set CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES;
    they are dropped without an error. `launch.image` must not be None.
    """
    assert launch.image is not None, "preflight refuses a definition without an image"
    config: dict[str, Any] = {
        "Image": launch.image,
        # The engine's own program, not the image's wrapper: drift compares the command line word by word.
        "Entrypoint": [launch.argv[0]],
        "Cmd": list(launch.argv[1:]),
        "Env": _environment(request, launch, identity, gpu_env),
        "User": identity.user,
        "Labels": write_labels(host.instance, request, now),
        # The controller probes engines; the image's own check would run a program in the container every few seconds.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(request, launch, identity, host),
    }
    if host.publishes_ports:
        config["ExposedPorts"] = {f"{PORT}/tcp": {}}
    return config


def hardened_host_config(cap_add: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the part of HostConfig with the restrictions of every container that Roundhouse creates.

    `cap_add` are capabilities to give back after all were dropped.
    """
    return {
        "CapDrop": ["ALL"],
        "CapAdd": list(cap_add),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "RestartPolicy": {"Name": "no"},
        "Init": True,
    }


def bounded_log(mib: int) -> dict[str, Any]:
    """Return a LogConfig that keeps at most `mib` MiB in two files, whatever the daemon's default is. An odd `mib` is
    rounded down, and less than 2 counts as 2."""
    return {"Type": "json-file", "Config": {"max-size": f"{max(1, mib // 2)}m", "max-file": "2"}}


def cache_folder_archive(uid: int, gid: int, folders: Iterable[PurePosixPath] = ()) -> bytes:
    """Return a tar archive (bytes) of empty folders with mode 0700, owned by `uid`: the user's own in the cache volume,
    named by `uid`, and `folders` below it with those that they lie in. Unpack it at `CACHE`.

    `folders`: as the engine sees them; ValueError is raised for one that is not below `CACHE` (`/cache`). Folders that
    exist keep what is in them.

    The daemon unpacks the archive into a container that has not started yet. So any user can use a volume that only
    root may write to, without a program that runs as root, and whatever the image holds.
    """
    below = [folder.relative_to(CACHE) for folder in folders]
    names = dict.fromkeys((str(uid), *(str(each) for path in below for each in (*path.parents[-2::-1], path))))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in names:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o700, uid, gid
            tar.addfile(folder)
    return archive.getvalue()


def _environment(
    request: StartRequest, launch: Launch, identity: UserIdentity, gpu_env: Mapping[str, str]
) -> list[str]:
    # An engine without the cache volume has no other folder to write to.
    home = str(cache_dir(identity)) if launch.mounts is None else str(TMP)
    env = {
        "HOME": home,
        "XDG_CACHE_HOME": home,
        # Libraries ask for the user's name, which /etc/passwd of an image lacks for most user ids.
        "USER": "roundhouse",
        "LOGNAME": "roundhouse",
        **launch.env,
    }
    if launch.token_env is not None:
        env[launch.token_env] = request.token
    # An entry without "=" removes the image's variable. With claims, NVIDIA_VISIBLE_DEVICES is set by the daemon.
    variables = [f"{key}={value}" for key, value in env.items() if key not in _RESERVED_ENV]
    # By default CUDA orders GPUs by speed; command lines are rendered in PCI order.
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
        "Mounts": [*_models_mounts(host), _cache_mount(host)] if launch.mounts is None else _own_mounts(launch.mounts),
        "Tmpfs": {str(TMP): f"rw,nosuid,nodev,exec,mode=1777,size={TMP_BYTES}"},
        "LogConfig": bounded_log(host.log_mib),
    }
    if host.publishes_ports:
        config["PortBindings"] = {f"{PORT}/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    if launch.shm_bytes is not None:
        config["ShmSize"] = launch.shm_bytes
    if request.definition.memory_mib is not None:
        # Without swap: an engine that swaps is slower than one that is killed and started again.
        limit = request.definition.memory_mib * _MIB
        config.update(Memory=limit, MemorySwap=limit)
    if request.gpus:
        capabilities = get_engine(request.definition).gpu_capabilities
        # The inner list means "all of these"; several inner lists would be alternatives.
        config["DeviceRequests"] = [{"DeviceIDs": sorted(request.gpus), "Capabilities": [["gpu", *capabilities]]}]
    return config


def _models_mounts(host: HostContext) -> list[dict[str, Any]]:
    return [
        {**mount, "Target": str(target), "ReadOnly": True}
        for mount, target in zip(host.models, models_targets(len(host.models)), strict=True)
        if mount is not None
    ]


def _own_mounts(mounts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mounts of folders that a launch names, as `HOST:CONTAINER` or `HOST:CONTAINER:rw`."""
    parts = [mount.split(":") for mount in mounts]
    return [{"Type": "bind", "Source": part[0], "Target": part[1], "ReadOnly": part[2:] != ["rw"]} for part in parts]


def _cache_mount(host: HostContext) -> dict[str, Any]:
    # NoCopy: otherwise the /cache folder of the first image would decide who may write to the volume.
    options = {"NoCopy": True, "Labels": own_labels(host.instance, CACHE_ROLE)}
    return {"Type": "volume", "Source": host.cache_volume, "Target": str(CACHE), "VolumeOptions": options}
