"""The gateway's settings: environment variables, read once at start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from common.controller_address import ControllerAddress
from common.listening import is_loopback, split_hosts

MIB = 1024 * 1024


class GatewaySettings(BaseSettings):
    """Every setting of the gateway, read from environment variables when it is made. Immutable.

    The variable is `ROUNDHOUSE_` and the field's name in upper case; an empty one counts as unset, and unknown ones are
    ignored. Making it raises pydantic's ValidationError for invalid values.
    """

    model_config = SettingsConfigDict(env_prefix="ROUNDHOUSE_", env_ignore_empty=True, extra="ignore", frozen=True)

    host: str = Field(
        "127.0.0.1",
        description="Addresses or names, comma-separated, that the gateway listens on. A name stands for all its "
        "addresses of this machine.",
    )
    port: int = Field(8080, ge=0, le=65535, description="Port that the gateway listens on; 0 takes a free one.")
    controller_url: str = Field(
        "unix:state/controller.sock",
        description="Where the controller is: `http://host:port` or `unix:/path/controller.sock`.",
    )
    gateway_token_file: Path | None = Field(
        None,
        description="File with the token that is shown to a controller at `http://host:port`, which makes it. Read "
        "anew for each connection.",
    )
    open: bool = Field(
        False, description="Serve without keys on an address that is not loopback. Everybody who reaches it may use it."
    )
    open_admin: bool | None = Field(
        None,
        description="Whether requests without keys may use admin routes while no keys are declared; default: where "
        "only loopback addresses are listened on.",
    )
    admin_host: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Addresses or names, comma-separated: admin requests are taken only on connections to these "
        "addresses of this machine, with keys too. Empty: to any.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Further names, comma-separated, that Host and Origin headers may carry while there are no keys.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins, comma-separated, whose pages may read answers (CORS), such as `https://chat.example`; "
        "`*`: all. Empty: none.",
    )
    tls_cert: Path | None = Field(None, description="Certificate file (PEM, with its chain). Set: HTTPS is served.")
    tls_key: Path | None = Field(None, description="Private key file of the certificate (PEM).")
    engine_state_routes: bool = Field(
        False,
        description="Serve the routes that change or reveal an engine's inner state: /slots, POST /props, "
        "POST /lora-adapters. With keys they need the scope `admin`.",
    )
    state: Path = Field(
        Path("state"),
        description="Folder that responses, conversations and chat completions are stored in, as `responses.db`. One "
        "gateway at a time holds it.",
    )
    responses_retention_h: float = Field(
        720,
        ge=0,
        description="Hours that responses, conversations and chat completions are stored after they were made or last "
        "continued; 0: none is stored.",
    )
    responses_max_mib: int = Field(
        1024, ge=1, description="Most MiB of what is stored; what was used longest ago makes room."
    )
    client_requests_per_minute: int | None = Field(
        None,
        ge=1,
        description="While no keys are declared: requests per minute of each client, by its `X-Client-Id`, else its "
        "`User-Agent`; default: no limit.",
    )
    client_tokens_per_minute: int | None = Field(
        None, ge=1, description="The same for tokens per minute, prompt and answer; default: no limit."
    )
    client_concurrency: int | None = Field(
        None, ge=1, description="The same for requests at a time, waiting ones included; default: no limit."
    )
    queue_limit: int | None = Field(
        None,
        ge=0,
        description="Requests that may wait for each replica of a model that does not say `queue_limit`; "
        "default: 8 for each of its slots (`target_inflight`).",
    )
    max_header_kib: int = Field(32, ge=1, description="Largest request line and headers in KiB; more is refused.")
    client_timeout_s: float = Field(
        60,
        gt=0,
        description="Seconds that a client may take for its headers, between parts of its body, and to take what it "
        "is sent.",
    )
    keep_alive_s: float = Field(75, gt=0, description="Seconds that a connection stays open between requests.")
    max_body_mib: int = Field(64, ge=1, description="Largest request body in MiB; more is refused with 413.")
    body_memory_mib: int = Field(
        512,
        ge=1,
        description="Most MiB of large request bodies (above 256 KiB) that are held at a time, until their engine "
        "answers; further ones are read when there is room.",
    )
    answer_buffer_mib: int = Field(
        16,
        ge=1,
        description="A blocking answer up to this many MiB is held until it is whole, so that an engine that dies "
        "on the way gives an error; a longer one flows through.",
    )
    request_timeout_s: float = Field(
        1800, gt=0, description="Seconds from a request's first byte to its answer's last, waiting for a load included."
    )
    connect_timeout_s: float = Field(2, gt=0, description="Seconds to wait for an engine to accept a connection.")
    heartbeat_s: float = Field(10, gt=0, description="Seconds of silence in a stream after which a comment is sent.")
    hold_headers_s: float = Field(
        10,
        gt=0,
        description="Seconds that a stream's headers are held while the engine has sent nothing, so that errors can "
        "still have their own status.",
    )
    gather_after_s: float = Field(
        2,
        ge=0,
        description="A blocking call of llama-server that may take longer is asked for as a stream and gathered, so "
        "that the engine stops when the client leaves; one that is expected to take less, by what the model's answers "
        "took and the request's own limit, is asked for as it is, which costs half. 0: all are gathered.",
    )
    autoload_timeout_s: float = Field(
        600, gt=0, description="Seconds that a request waits for an `autoload` model to be loaded."
    )
    shutdown_grace_s: float = Field(
        30, ge=0, description="Seconds that running requests have left when the gateway is told to stop."
    )
    stream_ring_kib: int = Field(
        4096,
        ge=1,
        le=65536,
        description="Most KiB of a stream with `X-Conversation-Id` that are kept to be read again: the newest ones.",
    )
    stream_ttl_s: float = Field(300, gt=0, description="Seconds that such a stream is kept after its end.")
    stream_gc_s: float = Field(
        60, gt=0, description="Seconds between looks for streams whose time after their end is over."
    )
    streams_max_mib: int = Field(
        256,
        ge=1,
        description="Most MiB of all such streams together. Those that ended longest ago make room for others; while "
        "none has ended, further ones are refused.",
    )
    stream_files: bool = Field(
        True,
        description="Keep such streams in files of the state folder, too (`streams/`): they survive a gateway that is "
        "killed.",
    )
    log_mib: int = Field(
        10,
        ge=0,
        description="Most MiB of the gateway's own log kept as `logs/gateway.log` in its state folder, if there is "
        "one; 0: none.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severity logged.")

    @field_validator("admin_host", "allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip().lower() for name in value.split(",") if name.strip())
        return value

    @field_validator("host")
    @classmethod
    def _names_an_address(cls, value: str) -> str:
        split_hosts(value)
        return value

    @field_validator("controller_url")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        address = ControllerAddress.parse(value)
        return value if address.socket_path is not None else address.base_url

    @field_validator("tls_cert", "tls_key")
    @classmethod
    def _is_there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"there is no file {value}")
        return value

    @model_validator(mode="after")
    def _whole_tls(self) -> GatewaySettings:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("ROUNDHOUSE_TLS_KEY is set and ROUNDHOUSE_TLS_CERT is not: set both, or neither")
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses and names of `host`, at least one."""
        return split_hosts(self.host)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs that the gateway listens on, one per entry of `hosts`, without a path.

        Wildcard addresses stay as they are, and so does port 0 until `main` has put the port in its place.
        """
        scheme = "http" if self.tls_cert is None else "https"
        return tuple(f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}" for host in self.hosts)

    @property
    def is_local(self) -> bool:
        """Whether the gateway listens on loopback addresses only, so that no other machine reaches it."""
        return all(map(is_loopback, self.hosts))

    @property
    def serves_everybody(self) -> bool:
        """Whether requests without a key are served while no keys are declared: `open`, or loopback addresses only."""
        return self.open or self.is_local

    @property
    def opens_admin(self) -> bool:
        """Whether admin requests without a key are served while no keys are declared: `open_admin`, else `is_local`."""
        return self.is_local if self.open_admin is None else self.open_admin

    @property
    def body_memory_bytes(self) -> int:
        """`body_memory_mib` in bytes."""
        return self.body_memory_mib * MIB

    @property
    def max_body_bytes(self) -> int:
        """Largest request body, in bytes."""
        return self.max_body_mib * MIB

    @property
    def responses_retention_s(self) -> float:
        """Seconds that a response, conversation or chat completion is stored; 0: none is stored."""
        return self.responses_retention_h * 3600

    @property
    def stream_ring_bytes(self) -> int:
        """`stream_ring_kib` in bytes."""
        return self.stream_ring_kib * 1024

    @property
    def answer_buffer_bytes(self) -> int:
        """Maximum number of bytes of a blocking answer that are held until it is complete."""
        return self.answer_buffer_mib * MIB
