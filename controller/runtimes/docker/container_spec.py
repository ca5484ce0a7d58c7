"""Containers as Docker's API has them: their labels, the only record of what runs; their user, the one with the
fewest rights that can read the model; the body of `POST /containers/create`; and the result of `docker inspect` as a
replica. Pure.

Field names are those of the Docker Engine API, 1.41 (https://docs.docker.com/reference/api/engine/version/v1.41/).
"""

from __future__ import annotations

import io
import json
import re
import stat
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from contract.status import SCHEMA_VERSION
from controller.engines import get_engine
from controller.engines.base import ClaimedGpu, Launch, RenderContext
from controller.hosts import HOST
from controller.runtimes.base import SeenReplica, StartRequest
from controller.state import Exit, Phase, ReplicaId

PREFIX: Final = "dev.roundhouse."
MANAGED_BY: Final = PREFIX + "managed-by"
INSTANCE: Final = PREFIX + "instance"
ROLE: Final = PREFIX + "role"
SCHEMA: Final = PREFIX + "schema_version"
MODEL: Final = PREFIX + "model"
REPLICA: Final = PREFIX + "replica"
SPEC_HASH: Final = PREFIX + "spec-hash"
ATTEMPT: Final = PREFIX + "attempt"
CLAIMS: Final = PREFIX + "claims"
CREATED: Final = PREFIX + "created"

REPLICA_ROLE: Final = "replica"
PROBE_ROLE: Final = "gpu-probe"
NETWORK_ROLE: Final = "engines"
CACHE_ROLE: Final = "cache"

_MANAGER: Final = "roundhouse"


class UnreadableLabelsError(ValueError):
    """A container has labels of Roundhouse that this version cannot read: a newer version wrote them, or they are
    damaged. It is a ValueError."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The replica's id and claims (MiB by GPU uuid or HOST), as `read_labels` reads them from the labels of its
    container."""

    id: ReplicaId
    claims: Mapping[str, int]


def own_labels(instance: str, role: str) -> dict[str, str]:
    """Return the labels of everything that this instance creates: containers, networks and volumes. `role` is one of
    the constants `..._ROLE`."""
    return {MANAGED_BY: _MANAGER, INSTANCE: instance, ROLE: role, SCHEMA: str(SCHEMA_VERSION)}


def own_filter(instance: str) -> list[str]:
    """Return the label filter, for requests to the daemon, that selects what this instance created."""
    return [f"{MANAGED_BY}={_MANAGER}", f"{INSTANCE}={instance}"]


def is_own(labels: Mapping[str, str] | None, instance: str, role: str) -> bool:
    """Return whether labels are those of something that this instance created for this role. False for None. The
    version of the labels is not checked."""
    label_map = labels or {}
    return label_map.get(MANAGED_BY) == _MANAGER and label_map.get(INSTANCE) == instance and label_map.get(ROLE) == role


def write_labels(instance: str, request: StartRequest, now: float) -> dict[str, str]:
    """Return the labels of a replica's container. They hold no secret. `now` is a Unix time in seconds."""
    return {
        **own_labels(instance, REPLICA_ROLE),
        MODEL: request.id.model,
        REPLICA: str(request.id.index),
        SPEC_HASH: request.id.spec_hash,
        ATTEMPT: str(request.id.attempt),
        CLAIMS: json.dumps(dict(request.claims), sort_keys=True, separators=(",", ":")),
        CREATED: f"{now:.3f}",
    }


def read_labels(labels: Mapping[str, str]) -> Labels:
    """Read the labels that `write_labels` made. Other labels are ignored. Raises UnreadableLabelsError if one is
    missing or damaged, or if a newer version wrote them. Which instance and role they name is not checked: see
    `is_own`."""
    try:
        _check_version(int(labels[SCHEMA]))
        replica = ReplicaId(
            model=labels[MODEL],
            index=int(labels[REPLICA]),
            spec_hash=labels[SPEC_HASH],
            attempt=int(labels[ATTEMPT]),
        )
        return Labels(replica, _claims(labels[CLAIMS]))
    except KeyError as error:
        raise UnreadableLabelsError(f"label {error.args[0]} is missing") from error
    except UnreadableLabelsError:
        raise
    except ValueError as error:
        raise UnreadableLabelsError(str(error)) from error


def _check_version(version: int) -> None:
    if version > SCHEMA_VERSION:
        raise UnreadableLabelsError(f"they are of schema_version {version}, this Roundhouse knows {SCHEMA_VERSION}")


def _claims(text: str) -> dict[str, int]:
    claims = json.loads(text)
    if not isinstance(claims, dict) or not all(type(mib) is int for mib in claims.values()):
        raise UnreadableLabelsError(f"label {CLAIMS} is not a mapping of GPU uuids to MiB: {text!r}")
    return claims


UNPRIVILEGED: Final = 10001
"""User id and group id of engines whose models everybody may read. They are the same in Roundhouse's images."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Owner, group and mode (`st_mode`) of a file or folder that an engine must read: see `entries_to_read`."""

    uid: int
    gid: int
    mode: int

    def readable_by(self, uid: int, gid: int) -> bool:
        """Return whether a process of this user and group without capabilities can read it, and enter it if it is a
        folder. Root (0) gets no exception; further groups and access lists do not count."""
        needed_bits = 0o5 if stat.S_ISDIR(self.mode) else 0o4
        shift = 6 if uid == self.uid else 3 if gid == self.gid else 0
        return (self.mode >> shift) & needed_bits == needed_bits


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """User, group and capabilities of an engine's container, as `choose_identity` returns them."""

    uid: int
    gid: int
    cap_add: tuple[str, ...] = ()
    """Capabilities that the container keeps, by Docker's names; all others are dropped."""

    @property
    def user(self) -> str:
        """`uid:gid`, as Docker takes it."""
        return f"{self.uid}:{self.gid}"


def choose_identity(entries: Sequence[FileEntry]) -> UserIdentity:
    """Return the first user that can read all entries: an owner among the entries that is not root, in their order,
    then the unprivileged user, then root. Without entries, the unprivileged user. If none can, return root with
    DAC_OVERRIDE, since root without capabilities cannot read others' files."""
    owners = dict.fromkeys((entry.uid, entry.gid) for entry in entries if entry.uid != 0)
    for uid, gid in (*owners, (UNPRIVILEGED, UNPRIVILEGED), (0, 0)):
        if all(entry.readable_by(uid, gid) for entry in entries):
            return UserIdentity(uid, gid)
    return UserIdentity(0, 0, ("DAC_OVERRIDE",))


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
    `/models`. They are not nested, because Docker cannot create a folder for a mount inside a read-only mount."""
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
    port 8000 (`PORT`), and has its home in the cache volume. `images` are the default images by kind, `model_paths`
    maps model paths to those in the container. `gpus` must be in PCI order. `index`: the replica's number among those
    of its model."""
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
    they are dropped without an error. `launch.image` must not be None."""
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
    """Return the part of HostConfig with the restrictions of every container that Roundhouse creates. `cap_add` are
    capabilities to give back after all were dropped."""
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


def cache_folder_archive(
    uid: int, gid: int, folders: Iterable[PurePosixPath] = (), files: Mapping[PurePosixPath, str] = MappingProxyType({})
) -> bytes:
    """Return a tar archive (bytes) of folders with mode 0700, owned by `uid`: the user's own in the cache volume, named
    by `uid`, and `folders` below it with those that they lie in; and of text `files` in them, with mode 0400. Unpack it
    at `CACHE`.

    `folders`, `files`: as the engine sees them; ValueError is raised for one that is not below `CACHE` (`/cache`).
    Folders that exist keep what is in them, files are replaced.

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
        for path, text in files.items():
            file, content = tarfile.TarInfo(str(path.relative_to(CACHE))), text.encode()
            file.mode, file.uid, file.gid, file.size = 0o400, uid, gid, len(content)
            tar.addfile(file, io.BytesIO(content))
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
        sleep = get_engine(request.definition).describe_sleep(request.definition)
        keeps_weights = sleep is not None and sleep.keeps_weights
        # No more weights than it claims of its GPUs.
        kept_mib = sum(mib for key, mib in request.claims.items() if key != HOST) if keeps_weights else 0
        limit = (request.definition.memory_mib + kept_mib) * _MIB
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


_PHASES: Final[Mapping[str, Phase]] = {
    "created": Phase.CREATED,
    "running": Phase.RUNNING,
    "paused": Phase.RUNNING,
    "restarting": Phase.RUNNING,
    "exited": Phase.EXITED,
    "dead": Phase.EXITED,
    "removing": Phase.EXITED,
}
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:?\d\d)?")


def phase_of(container: Mapping[str, Any]) -> Phase:
    """Return the phase of an inspected container. A paused or restarting one counts as running. For a status that is
    not known here, its `Running` flag decides."""
    state = container.get("State") or {}
    phase = _PHASES.get(str(state.get("Status", "")).lower())
    return phase or (Phase.RUNNING if state.get("Running") else Phase.EXITED)


def seen_replica(container: Mapping[str, Any], log_tail: str, *, publishes_ports: bool) -> SeenReplica:
    """Return the replica that a container with Roundhouse's labels runs. `container` is the result of an inspection.
    `log_tail` is used only for an exited one. `publishes_ports`: the engine is reached by a port on 127.0.0.1; False:
    by its container's name. Raises UnreadableLabelsError if the labels are missing, damaged, or of a newer version."""
    labels = read_labels(container["Config"].get("Labels") or {})
    state = container.get("State") or {}
    name = str(container["Name"]).removeprefix("/")
    phase = phase_of(container)
    return SeenReplica(
        id=labels.id,
        name=name,
        phase=phase,
        created_at=parse_time(container.get("Created")) or 0.0,
        started_at=parse_time(state.get("StartedAt")),
        base_url=_base_url(container, name, publishes_ports=publishes_ports) if phase is Phase.RUNNING else None,
        claims=labels.claims,
        exit=_exit(state, log_tail) if phase is Phase.EXITED else None,
        image_id=container.get("Image") or None,
        argv=tuple(word for word in (container.get("Path"), *(container.get("Args") or ())) if word is not None),
    )


def _exit(state: Mapping[str, Any], log_tail: str) -> Exit:
    code = state.get("ExitCode")
    return Exit(code if isinstance(code, int) else None, oom=bool(state.get("OOMKilled")), log_tail=log_tail)


def _base_url(container: Mapping[str, Any], name: str, *, publishes_ports: bool) -> str | None:
    if not publishes_ports:
        return f"http://{name}:{PORT}"
    ports = (container.get("NetworkSettings") or {}).get("Ports") or {}
    for binding in ports.get(f"{PORT}/tcp") or ():
        if binding.get("HostPort"):
            return f"http://127.0.0.1:{binding['HostPort']}"
    return None


def parse_time(text: object) -> float | None:
    """Convert an RFC 3339 time, which may have nanoseconds, to Unix time in seconds. A time without a zone is UTC. None
    for the daemon's zero time (year 1), and for anything that is not such a time."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    date_and_time, fraction, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        moment = datetime.fromisoformat(f"{date_and_time.upper().replace(' ', 'T')}{zone}")
    except ValueError:
        return None
    if moment.year <= 1:
        return None
    return moment.astimezone(UTC).timestamp() + float(fraction or 0)
