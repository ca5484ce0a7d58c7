"""Messages between the controller and its hosts: what a host is asked to do, and what it answers.

They travel as JSON, and unknown fields are ignored, so that a host may be one version behind or ahead. Times are Unix
seconds by the clock of the host, memory is in MiB. Main memory has the key `host` in claims, whatever the host's name.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from contract.status import Wire

HOSTS_VERSION: Final = 1
"""Version of these messages. Increase it when an older reader would misread the new format."""


class EngineTls(Wire):
    """How to open a connection to an engine of another host: with TLS, to the host's relay, whose address is the base
    URL's."""

    server_name: str = Field(description="Server name to ask for and to find in the certificate. It names the replica.")
    authority: str = Field(default="", description="Path of the certificate authority's file, on the head.")
    certificate: str = Field(default="", description="Path of the certificate that is shown, on the head.")
    key: str = Field(default="", description="Path of its key, on the head.")


class HostMessage(Wire):
    """Base of requests to a host, and of its answers. Without fields of its own: nothing is to be said."""

    schema_version: int = HOSTS_VERSION


class HostError(Wire):
    """Why a host did not do what it was asked to. `start`: a start or pull failed. `unavailable`: its runtime does not
    answer, or could not. `refused`: it has no such method, or cannot read the request. `value`: a wrong name.
    `internal`: a fault of the host's program."""

    kind: Literal["start", "unavailable", "refused", "value", "internal"]
    message: str
    permanent: bool = False
    plain: str | None = None


class HostReply(HostMessage):
    """A host's answer to any request. `result`: the fields of the method's own answer. `error` None: it was done."""

    error: HostError | None = None
    result: dict[str, Any] = {}


class HostDefinition(Wire):
    """A definition: the name of its backend, and the fields that differ from their defaults."""

    backend: str
    fields: dict[str, Any]


class HostReplicaId(Wire):
    """Identity of one attempt to run one replica: model, index, spec hash and attempt number, as in `ReplicaId`."""

    model: str
    index: int
    spec_hash: str
    attempt: int


class HostExit(Wire):
    """How a replica ended: exit code (None: not known), lack of memory, last log lines, as in `Exit`."""

    code: int | None = None
    oom: bool = False
    log_tail: str = ""


class HostReplica(Wire):
    """One replica that the host's runtime lists, as in `SeenReplica`. `claims`: MiB by GPU uuid, and by `host`."""

    id: HostReplicaId
    name: str
    phase: str
    created_at: float
    started_at: float | None = None
    base_url: str | None = None
    tls: EngineTls | None = None
    """Through a relay with TLS; `base_url` is the relay's then. None: `base_url` is opened as it is."""
    claims: dict[str, int] = {}
    exit: HostExit | None = None
    image_id: str | None = None
    argv: tuple[str, ...] = ()


class HostReplicas(HostMessage):
    """What was seen on each host last, by its name: kept in a file, for the next controller."""

    hosts: dict[str, tuple[HostReplica, ...]] = {}


class HostGpuProcess(Wire):
    """A process that uses memory of a GPU, as in `GpuProcess`. `mib`, `name`, `replica` None: not known."""

    pid: int
    mib: int | None = None
    name: str | None = None
    replica: str | None = None


class HostGpu(Wire):
    """One GPU that can be read, or one MIG instance, as in `Gpu`. Sizes are MiB."""

    uuid: str
    index: int
    name: str
    total_mib: int
    used_mib: int = 0
    utilization_percent: int | None = None
    processes: tuple[HostGpuProcess, ...] | None = None
    mig: int | None = None
    is_unified: bool = False


class HostUnreadGpu(Wire):
    """A GPU that the driver lists and cannot read, with the reason, as in `UnreadGpu`."""

    index: int
    reason: str
    uuid: str | None = None
    pci_address: str | None = None
    mig: int | None = None


class HostGpuDriver(Wire):
    """The host's NVIDIA driver, as in `GpuDriver`. None in a field: the driver does not report it."""

    version: str | None = None
    cuda_version: str | None = None
    brands: tuple[str, ...] = ()


class ObserveRequest(HostMessage):
    """Asks for all that a round needs to know of a host."""

    model_paths: tuple[str, ...] = ()
    """Model paths of which it is to say whether they are missing."""
    known_files: str = ""
    """The last `files_mark` of the host."""


class HostObservation(HostMessage):
    """What runs on a host, and its GPUs and memory, as in `Host`. Sizes are MiB."""

    runtime: str
    versions: dict[str, str] = {}
    replicas: tuple[HostReplica, ...] | None = None
    """None: its runtime does not answer, so that it is not known."""
    error: str | None = None
    """Why `replicas` is None."""
    gpus: tuple[HostGpu, ...] | None = None
    gpu_error: str | None = None
    unread_gpus: tuple[HostUnreadGpu, ...] = ()
    unified_gpus: tuple[str, ...] = ()
    driver: HostGpuDriver | None = None
    memory_mib: int | None = None
    is_memory_limited: bool = False
    models_free_mib: int | None = None
    relay: str | None = None
    """Address and port of its relay. None: it has none, and its engines are reached where they listen."""
    is_insecure: bool = False
    """Whether the relay has no TLS."""
    missing_paths: tuple[str, ...] = ()
    files_url: str | None = None
    """Address at which other hosts get its model files. None: it gives none, and fetches none."""
    files_mark: str = ""
    """Changes with the files at the paths that are not missing."""
    file_stamps: dict[str, str] | None = None
    """By path, a text that is the same where names, sizes and times of the files are the same. None: nothing has
    changed since `known_files`."""
    fetch_fractions: dict[str, float] = {}
    """By path, the part (0 to 1) of the files that is there, while they are fetched."""


class FetchFilesRequest(HostMessage):
    """Asks for the files at these model paths, as the first of `peers` has them, to be fetched from there and from the
    others: addresses as in `HostObservation.files_url`."""

    paths: tuple[str, ...]
    peers: tuple[str, ...]


class CancelFetchRequest(HostMessage):
    """Asks that the files at these model paths are not fetched any more. Of those that are there, all stay."""

    paths: tuple[str, ...]


class FilesReply(HostMessage):
    """The files that are there after a fetch, as in `HostObservation.file_stamps`."""

    file_stamps: dict[str, str] = {}


class PreflightRequest(HostMessage):
    """Asks whether a replica of this definition could be started: the arguments of `Runtime.check_preflight`."""

    model: str
    definition: HostDefinition
    image: str | None = None


class PreflightReply(HostMessage):
    """Whether the replica could be started, and what stands in the way: `PreflightResult` without its time."""

    ok: bool
    error: str | None = None
    missing_image: str | None = None
    plain: str | None = None


class NameRequest(HostMessage):
    """Names what a request is about: an image that is to be pulled, or a model."""

    name: str


class StartReplicaRequest(HostMessage):
    """Asks for the start of one replica, as in `StartRequest`. `claims`: MiB by GPU uuid, and by `host`."""

    id: HostReplicaId
    name: str
    definition: HostDefinition
    served_name: str
    image: str | None = None
    token: str
    claims: dict[str, int] = {}


class ReplicaRequest(HostMessage):
    """Names the replica that a request is about. `grace_s`: of a stop, from SIGTERM to SIGKILL. `lines` and `cursor`:
    of a log."""

    name: str
    grace_s: float = 0.0
    lines: int = 50
    cursor: str | None = None


class RenderRequest(HostMessage):
    """Asks with what a running replica would be started now: the arguments of `Runtime.render_replica`."""

    replica: HostReplica
    definition: HostDefinition
    image: str | None = None


class RenderReply(HostMessage):
    """The command line and image id with which it would be started now. `argv` None: not known."""

    argv: tuple[str, ...] | None = None
    image_id: str | None = None


class TextReply(HostMessage):
    """The last lines of a replica's log, as one text; empty: there are none."""

    text: str = ""


class NamesReply(HostMessage):
    """Names of replicas whose logs are kept, newest first."""

    names: tuple[str, ...] = ()


class LogReply(HostMessage):
    """Lines of a replica's log and the position after them, as in `LogPart`. `cursor` None: no such log is known."""

    lines: tuple[str, ...] = ()
    cursor: str | None = None
    running: bool = False


class MemoryReply(HostMessage):
    """Main memory that a replica holds, in MiB. None: not known, or it does not run."""

    mib: int | None = None
