"""Settings of the controller and of the command line: environment variables, read once at start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode, SettingsConfigDict

from common.internal_tokens import LINK_TOKEN
from common.listening import is_loopback, pick_local_host, split_hosts, split_listen_address
from common.program_client import ProgramAddress
from common.settings import (
    PREFIX,
    GatewayHosts,
    GatewayPort,
    GatewayTokenFile,
    LogForm,
    LogLevel,
    LogMib,
    ProgramSettings,
    ServesRetrieval,
    StateFolder,
    TransfersTokenFile,
)
from controller.artifacts.model_roots import ModelRoots, split_folders
from controller.config.messages import explain_errors, suggest_name

VARIABLE: Final = "ROUNDHOUSE_DOWNLOADS"
"""Environment variable of the setting."""


@dataclass(frozen=True, slots=True)
class DownloadPermission:
    """Whether models may be downloaded, and why: half a sentence."""

    is_allowed: bool
    reason: str


def decide_downloads(
    setting: Literal["on", "off"] | None, *, has_keys: bool, hosts: Sequence[str]
) -> DownloadPermission:
    """Return whether models may be downloaded. `setting`: the operator's decision; None: the operator made none.
    Downloads are then allowed if it is known who may order one: if keys are declared (`has_keys`), or if the gateway
    listens on loopback addresses alone. `hosts`: the addresses that the gateway listens on."""
    if setting is not None:
        return DownloadPermission(setting == "on", f"{VARIABLE} is `{setting}`")
    if has_keys:
        return DownloadPermission(True, "keys are declared")
    open_hosts = [host for host in hosts if not is_loopback(host)]
    if not open_hosts:
        return DownloadPermission(True, "the gateway listens on this machine alone")
    return DownloadPermission(
        False, f"{VARIABLE} is not set, no key is declared, and the gateway listens on {', '.join(open_hosts)}"
    )


SOCKET_NAME = "controller.sock"
"""Name of the controller's unix socket in the state folder."""
TRANSFERS_SOCKET = "transfers.sock"
"""Name of the unix socket of the transfers program in the state folder."""
MAX_SOCKET_PATH_BYTES = 107
"""Maximum length of a unix socket's path: `sun_path` without the final null byte (unix(7))."""


class SettingsError(Exception):
    """One or more settings are wrong. The message is one line that names each one's environment variable."""


def _read_folders(value: str | Path | ModelRoots) -> ModelRoots:
    return value if isinstance(value, ModelRoots) else split_folders(str(value))


_Folders: TypeAlias = Annotated[
    ModelRoots,
    NoDecode,
    PlainValidator(_read_folders),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "path"}),
]


def _read_fields(value: str | Iterable[str]) -> frozenset[str]:
    """Return the names of fields in a comma-separated list. Raises ValueError for a name that no definition has."""
    names = value.split(",") if isinstance(value, str) else value
    fields = frozenset(filter(None, map(str.strip, names)))
    if fields:
        from controller.engines import ENGINES  # the classes of all definitions take a while

        known = {name for engine in ENGINES.values() for name in engine.definition.model_fields}
        for name in sorted(fields - known):
            raise ValueError(f"there is no field `{name}`{suggest_name(name, known)}")
    return fields


_Fields: TypeAlias = Annotated[
    frozenset[str],
    NoDecode,
    PlainValidator(_read_fields),
    PlainSerializer(lambda names: ",".join(sorted(names))),
    WithJsonSchema({"type": "string"}),
]


_HOST_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


_RAY: Final = "ray:"


def _read_hosts(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of the hosts in a comma-separated list such as `local:a,local:b`, or the only entry
    `ray:ADDRESS:PORT` as it is. Raises ValueError."""
    entries = [each for each in map(str.strip, value.split(",") if isinstance(value, str) else value) if each]
    if any(each.startswith(_RAY) for each in entries):
        address, _, port = entries[0].removeprefix(_RAY).rpartition(":")
        if len(entries) > 1 or not address or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"`{','.join(entries)}` is no `ray:ADDRESS:PORT`, which stands alone")
        return tuple(entries)
    for each in entries:
        if not each.startswith("local:") or _HOST_NAME.fullmatch(each.removeprefix("local:")) is None:
            raise ValueError(f"`{each}` is no `local:NAME`, with a name of lower case letters, digits, dots and dashes")
    if len(set(entries)) < len(entries):
        raise ValueError("names a host twice")
    return tuple(each.removeprefix("local:") for each in entries)


_Hosts: TypeAlias = Annotated[
    tuple[str, ...],
    NoDecode,
    PlainValidator(_read_hosts),
    PlainSerializer(lambda names: ",".join(name if name.startswith(_RAY) else f"local:{name}" for name in names)),
    WithJsonSchema({"type": "string"}),
]


class ControllerSettings(ProgramSettings):
    """All settings of the controller and of the command line, immutable. A setting's environment variable is
    `ROUNDHOUSE_` with its name in upper case; an empty one counts as not set. Make it with `load_settings`."""

    model_config = SettingsConfigDict(validate_default=False)

    desired: Path = Field(Path("desired-state"), description="Folder of the desired-state files.")
    state: StateFolder = Path("state")
    models: _Folders = Field(
        "models",
        validate_default=True,
        description="Folders with model files, comma-separated, read-only for engines. A relative "
        "`model_path` is searched in each, in this order. Downloads go into the first one.",
    )
    trusted_declarations: _Fields = Field(
        "",
        validate_default=True,
        description="Fields of a model, comma-separated, such as `env,image`, that runtime declarations "
        "and loads may give any value. With a field that runs a program or names a file or an "
        "address, the scope `admin` can run code as the controller's user.",
    )
    runtime: Literal["process", "docker", "auto"] = Field(
        "auto",
        description="Where engines run: `process`, `docker`, or `auto`: docker if a Docker Engine answers, else "
        "process.",
    )
    hosts: _Hosts = Field(
        "",
        validate_default=True,
        description="Hosts that engines run on: `ray:ADDRESS:PORT` are those that joined Ray's head there, on this "
        "machine; `roundhouse head` sets it. For tests: `local:a,local:b` are two hosts in the controller's own "
        "process, whose engines are processes of this machine; default: this machine alone.",
    )
    host_lost_s: float = Field(
        15,
        gt=0,
        le=86400,
        description="Seconds without a word from a host after which it counts as lost, and others take over its "
        "models. Only with several hosts.",
    )
    retrieval: ServesRetrieval = True
    downloads: Literal["on", "off"] | None = Field(
        None,
        description="Whether models may be downloaded: `on` or `off`; default: `on` where keys are "
        "declared or the gateway listens on loopback alone, else `off`.",
    )
    transfers_url: str | None = Field(
        None,
        description="Address of the transfers program: `http://host:port` or `unix:/path/transfers.sock`; "
        "default: `transfers.sock` in the state folder.",
    )
    transfers_token_file: TransfersTokenFile = None
    instance: str | None = Field(
        None,
        pattern=r"^[a-z0-9]{1,16}$",
        description="Name of this installation in labels and container names; default: a random name, "
        "kept in the state folder.",
    )
    controller_listen: str | None = Field(
        None,
        description="Address for gateways and the command line: `unix:<path>` or `host:port`; default: "
        "`unix:<state>/controller.sock`. Do not expose it to other users or networks.",
    )
    gateway_token_file: GatewayTokenFile = None
    host: GatewayHosts = "127.0.0.1"
    port: GatewayPort = 8080
    image_llama_server: str = Field(
        "roundhouse/llama-server:latest", min_length=1, description="Container image of llama-server."
    )
    image_worker: str = Field("roundhouse/worker:latest", min_length=1, description="Container image of the worker.")
    image_worker_exllamav3: str = Field(
        "roundhouse/worker-exllamav3:latest", min_length=1, description="Container image of the worker with ExLlamaV3."
    )
    image_worker_vllm: str = Field(
        "roundhouse/worker-vllm:latest", min_length=1, description="Container image of the worker with vLLM."
    )
    image_vllm: str = Field(
        "vllm/vllm-openai:v0.33.0",
        min_length=1,
        description="Container image of vLLM's own server, for drivers from 580 (CUDA 13); for older ones "
        "set `vllm/vllm-openai:v0.33.0-cu129`.",
    )
    image_controller: str = Field(
        "roundhouse/controller:latest",
        min_length=1,
        description="Container image of the controller. A container of it reads GPU figures if the controller cannot.",
    )
    engines_network: str = Field(
        "roundhouse_engines", min_length=1, description="Full name of the Docker network that engines join."
    )
    start_timeout_s: float | None = Field(
        None,
        gt=0,
        le=86400,
        description="Maximum seconds from an engine's start until it is ready, for models without "
        "`start_timeout_s`; default: the backend's, usually 600.",
    )
    drain_timeout_s: float = Field(
        300,
        ge=0,
        le=86400,
        description="Seconds that running requests have to finish before a replica stops, for models "
        "without `drain_timeout_s`.",
    )
    stop_timeout_s: float = Field(
        30, ge=0, le=3600, description="Seconds between SIGTERM and SIGKILL when an engine stops."
    )
    swap_wait_s: float = Field(
        30,
        ge=0,
        le=86400,
        description="Seconds that a request waits for memory of an `autoload` model in use. Then that "
        "model gets no new requests, so that it can be evicted.",
    )
    preflight_recheck_s: float = Field(
        30, gt=0, le=86400, description="Seconds between two checks for a missing file or image of a model."
    )
    engines_memory_mib: int | None = Field(
        None,
        ge=1,
        description="Main memory in MiB for all engines together; default: all memory of the machine.",
    )
    connect_timeout_s: float = Field(2, gt=0, description="Maximum seconds to connect to an engine.")
    probe_interval_s: float = Field(
        2, gt=0, description="Seconds between two health probes of a replica; for a remote model, the minimum."
    )
    resync_s: float = Field(
        10,
        gt=0,
        description="Maximum seconds between two complete observations of engines and files.",
    )
    docker_gone_s: float = Field(
        0,
        ge=0,
        le=86400,
        description="Seconds without an answer at the Docker socket after which the controller exits with "
        "code 5; 0: never. compose.yaml sets 30: a container sees a new Docker socket only "
        "after a restart.",
    )
    history_entries: int = Field(
        10_000,
        ge=100,
        le=1_000_000,
        description="Number of history entries to keep, and likewise of calls of tools, and of other events.",
    )
    engine_log_mib: int = Field(10, ge=1, description="Maximum size of each engine's log, in MiB.")
    log_mib: LogMib = 10
    log_level: LogLevel = "info"
    log_format: LogForm = "human"

    @field_validator("host")
    @classmethod
    def _names_an_address(cls, value: str) -> str:
        split_hosts(value)
        return value

    @field_validator("controller_listen")
    @classmethod
    def _known_address(cls, value: str | None) -> str | None:
        if value is not None:
            split_listen_address(value)
        return value

    @field_validator("transfers_url")
    @classmethod
    def _known_transfers(cls, value: str | None) -> str | None:
        if value is not None:
            ProgramAddress.parse(value)
        return value

    @model_validator(mode="after")
    def _port_has_token(self) -> Self:
        if self.gateway_token_file is None and not isinstance(split_listen_address(self.listen), Path):
            raise ValueError(
                f"{LINK_TOKEN.variable}: must be set where {PREFIX}CONTROLLER_LISTEN is `host:port`: a file that the "
                "controller writes, and that gateways and the command line read"
            )
        return self

    @model_validator(mode="after")
    def _socket_fits(self) -> Self:
        address = split_listen_address(self.listen)
        if isinstance(address, Path) and len(bytes(address)) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"{PREFIX}CONTROLLER_LISTEN: the socket's path {address} is longer than the {MAX_SOCKET_PATH_BYTES} "
                "bytes that a unix socket may have; set it to a shorter `unix:<path>`"
            )
        return self

    @property
    def listen(self) -> str:
        """Address that the controller listens on: `unix:<path>` or `host:port`. Without `controller_listen`, the socket
        in the state folder."""
        return self.controller_listen or f"unix:{self.state / SOCKET_NAME}"

    @property
    def controller_url(self) -> str:
        """Address of the controller for clients on this machine: `unix:<path>` or `http://host:port`, with a wildcard
        host replaced by the loopback address."""
        address = split_listen_address(self.listen)
        if isinstance(address, Path):
            return self.listen
        return url_of(*address)

    @property
    def transfers_address(self) -> str:
        """Address at which the transfers program is asked: `unix:<path>` or `http://host:port`. Without
        `transfers_url`, its socket in the state folder."""
        return self.transfers_url or f"unix:{self.state / TRANSFERS_SOCKET}"

    @property
    def is_ray(self) -> bool:
        """Whether the hosts are those that joined over Ray."""
        return any(each.startswith(_RAY) for each in self.hosts)

    @property
    def gateway_hosts(self) -> tuple[str, ...]:
        """Addresses and names that the gateway listens on, at least one."""
        return split_hosts(self.host)

    def gateway_url(self, *, is_tls: bool) -> str:
        """Return the URL of the gateway that `roundhouse up` starts, for clients on this machine. Its port is 0 where
        the setting is 0, though the gateway then takes a free one."""
        return url_of(pick_local_host(self.gateway_hosts), self.port, is_tls=is_tls)

    @property
    def images(self) -> dict[str, str]:
        """Container image by image kind (`llama-server`, `worker`, `vllm`, ...), as in `RenderContext.images`; not the
        controller's own."""
        return {
            "llama-server": self.image_llama_server,
            "worker": self.image_worker,
            "worker-exllamav3": self.image_worker_exllamav3,
            "worker-vllm": self.image_worker_vllm,
            "vllm": self.image_vllm,
        }


def url_of(host: str, port: int, *, is_tls: bool = False) -> str:
    """Return the http URL (https with `is_tls`), without a slash at its end, by which clients on this machine reach a
    server that listens on `host` and `port`: 0.0.0.0 and :: become the loopback address."""
    # An address that stands for all of the machine's cannot be connected to everywhere.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - replaced, not listened on
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def load_settings(**values: Any) -> ControllerSettings:
    """Load the settings, from the environment as it is now. `values` (by field name) override the environment, which
    overrides the defaults; a value of None means not given, and an unknown name is ignored. Raises SettingsError if a
    value is wrong, or if settings contradict each other."""
    try:
        return ControllerSettings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise SettingsError("; ".join(_line(each) for each in error.errors(include_url=False))) from None


def _line(error: Any) -> str:
    if not error["loc"]:
        return explain_errors(error)
    return f"{PREFIX}{str(error['loc'][0]).upper()}: {explain_errors(error)}"
