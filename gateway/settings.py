"""The gateway's settings: environment variables, read once at start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from common.listening import is_loopback, split_hosts
from common.program_client import ProgramAddress
from common.settings import (
    GatewayHosts,
    GatewayPort,
    GatewayTokenFile,
    LogForm,
    LogLevel,
    LogMib,
    ProgramSettings,
    RetrievalConcurrency,
    RetrievalTokenFile,
    ServesRetrieval,
    StateFolder,
)
from common.shared_token import read_token
from gateway.discovery.advert import AdvertisedAddress

MIB = 1024 * 1024


class GatewaySettings(ProgramSettings):
    """Every setting of the gateway."""

    host: GatewayHosts = "127.0.0.1"
    port: GatewayPort = 8080
    controller_url: str = Field(
        "unix:state/controller.sock",
        description="Address of the controller: `http://host:port` or `unix:/path/controller.sock`.",
    )
    gateway_token_file: GatewayTokenFile = None
    open: bool = Field(
        False,
        description="Allow requests without keys beyond loopback while no keys are declared. Everybody "
        "who can reach the address may then use the gateway.",
    )
    open_admin: bool | None = Field(
        None,
        description="Whether requests without keys may use admin routes while no keys are declared; "
        "default: true if the gateway listens on loopback alone.",
    )
    admin_host: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Addresses or names of this machine, comma-separated. Admin requests are accepted "
        "only on connections to them, also with a key; empty: on all.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Additional host names, comma-separated, accepted in Host and Origin headers while no "
        "keys are declared.",
    )
    path_prefix: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="Path under which a proxy serves the gateway, such as `/llm`, if the proxy does not take it off; "
        "requests without it are served, too.",
    )
    mdns: bool = Field(
        True,
        description="Advertise the gateway to the local network by mDNS (`_localllm._tcp`) if it listens "
        "beyond loopback.",
    )
    advertise_address: Annotated[AdvertisedAddress | None, NoDecode] = Field(
        None,
        description="IP address, or `address:port`, of the mDNS advert; default: the addresses that the "
        "gateway listens on, in a container no advert.",
    )
    metrics_key: str | None = Field(
        None,
        description="Key that `/metrics`, `/metrics/engines`, `/health` and `/health/ready` then need, as "
        "`Authorization: Bearer`, or a key with the scope `admin`; default: they are open. "
        "Prefer `ROUNDHOUSE_METRICS_KEY_FILE`.",
        repr=False,
    )
    metrics_key_file: Path | None = Field(
        None,
        description="File with that key, of 16 or more printable characters. It is read for each request.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins, comma-separated, whose web pages may read answers (CORS), such as "
        "`https://chat.example`; `*`: all; empty: none.",
    )
    tls_cert: Path | None = Field(
        None, description="Certificate file (PEM, with its chain). If it is set, the gateway serves HTTPS."
    )
    tls_key: Path | None = Field(None, description="Private key file of the certificate (PEM).")
    engine_state_routes: bool = Field(
        False,
        description="Serve the routes that change or reveal an engine's inner state (/slots, POST /props, "
        "POST /lora-adapters). With keys they need the scope `admin`.",
    )
    state: StateFolder = Path("state")
    responses_retention_h: float = Field(
        720,
        ge=0,
        description="Hours for which responses, conversations and chat completions are kept after their "
        "creation or last continuation; 0: nothing is stored.",
    )
    responses_max_mib: int = Field(
        1024, ge=1, description="Maximum size of stored data in MiB. The least recently used is deleted first."
    )
    client_requests_per_minute: int | None = Field(
        None,
        ge=1,
        description="Maximum requests per minute of one client (its `X-Client-Id` header, else its "
        "`User-Agent`) while no keys are declared; default: no limit.",
    )
    client_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Likewise, maximum tokens per minute, prompt and answer together; default: no limit.",
    )
    client_concurrency: int | None = Field(
        None,
        ge=1,
        description="Likewise, maximum requests at a time, including waiting ones; default: no limit.",
    )
    queue_limit: int | None = Field(
        None,
        ge=0,
        description="Maximum requests that wait per replica, for models without `queue_limit`; default: 8 "
        "times `target_inflight`.",
    )
    max_header_kib: int = Field(
        32, ge=1, description="Maximum size of the request line and headers in KiB; larger ones get status 431."
    )
    client_timeout_s: float = Field(
        60,
        gt=0,
        description="Maximum seconds for a client to send its headers, to pause within its body, and to "
        "pause in reading the answer.",
    )
    keep_alive_s: float = Field(75, gt=0, description="Seconds that an idle connection stays open between requests.")
    max_body_mib: int = Field(
        64, ge=1, description="Maximum size of a request body in MiB; a larger one gets status 413."
    )
    body_memory_mib: int = Field(
        512,
        ge=1,
        description="Maximum MiB of memory for request bodies above 256 KiB, all copies counted, until the "
        "engine answers and what is stored of them is written. Further bodies wait. Conversations of "
        "responses with tools have at most half of it.",
    )
    max_inputs: int = Field(
        2048,
        ge=1,
        description="Maximum prompts, texts to embed or documents to rerank in one request; more get status 400.",
    )
    max_choices: int = Field(
        128, ge=1, description="Maximum answers to one prompt (`n`, `n_cmpl`, `best_of`); more get status 400."
    )
    max_images: int = Field(
        100, ge=1, description="Maximum images in the messages or items of one request; more get status 400."
    )
    max_tool_calls: int = Field(
        128,
        ge=1,
        description="Maximum calls that the gateway runs after one round of a model; the model is told "
        "that further ones were not run.",
    )
    answer_buffer_mib: int = Field(
        16,
        ge=1,
        description="Maximum MiB of a non-streaming answer that the gateway holds until it is complete, "
        "so that an engine that fails midway yields an error. Longer answers are passed on as "
        "they arrive.",
    )
    request_timeout_s: float = Field(
        1800,
        gt=0,
        description="Maximum seconds from the first byte of a request to the last byte of its answer, a "
        "wait for a load included.",
    )
    connect_timeout_s: float = Field(2, gt=0, description="Maximum seconds to connect to an engine.")
    heartbeat_s: float = Field(10, gt=0, description="Seconds without data in a stream until a comment is sent.")
    hold_headers_s: float = Field(
        10,
        gt=0,
        description="Maximum seconds that the gateway holds a stream's headers until the engine sends "
        "data, so that an early error can have its own HTTP status.",
    )
    gather_after_s: float = Field(
        2,
        ge=0,
        description="Threshold in seconds for non-streaming requests to llama-server, estimated from past "
        "answers and the token limit. Above it, the gateway requests a stream and builds the "
        "answer from it, so that the engine stops when the client disconnects; a direct "
        "request costs half as much. 0: always a stream.",
    )
    autoload_timeout_s: float = Field(
        600, gt=0, description="Maximum seconds that a request waits for an `autoload` model to load."
    )
    shutdown_grace_s: float = Field(
        30,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that running requests have to finish when the gateway shuts down.",
    )
    stream_ring_kib: int = Field(
        4096,
        ge=1,
        le=65536,
        description="Maximum KiB in memory of one resumable stream (a request with `X-Conversation-Id`). "
        "The oldest events are dropped first.",
    )
    stream_ttl_s: float = Field(300, gt=0, description="Seconds that a resumable stream is kept after its end.")
    stream_gc_s: float = Field(60, gt=0, description="Seconds between two removals of expired resumable streams.")
    streams_max_mib: int = Field(
        256,
        ge=1,
        description="Maximum MiB of all resumable streams together. Those that ended longest ago go "
        "first; if none has ended, a new stream is refused.",
    )
    stream_files: bool = Field(
        True,
        description="Also write resumable streams to `streams/` in the state folder, so that they survive "
        "a crash of the gateway.",
    )
    default_model: str | None = Field(
        None,
        description="Model that the page's chat begins with, and that `POST /health/warm` warms up if the request "
        "names none; default: none, and the only declared one.",
    )
    mcp: bool = Field(
        True,
        description="Serve `/mcp`, by which agents list, load, unload and read models, with their key's rights.",
    )
    page: bool = Field(True, description="Serve the web page at `/`. It holds no data and uses the public API.")
    page_folder: Path | None = Field(
        None, description="Folder of the built page; default: the one that `make page` and the images build."
    )
    assistant: bool = Field(
        True,
        description="Whether the gateway does more than pass requests on: stored responses and conversations, "
        "resumable streams, tools, MCP, documents. Off: inference, the admin API, the page and metrics alone.",
    )
    retrieval: ServesRetrieval = True
    retrieval_url: str = Field(
        "unix:state/retrieval.sock",
        description="Address of the retrieval program: `http://host:port` or `unix:/path/retrieval.sock`.",
    )
    retrieval_token_file: RetrievalTokenFile = None
    retrieval_concurrency: RetrievalConcurrency = 8
    retrieval_max_file_mib: int = Field(64, ge=1, le=4096, description="Largest document in MiB.")
    access_log_mib: int = Field(
        0,
        ge=0,
        description="Maximum size in MiB of the access log, `logs/access.log` in the state folder: a line of JSON for "
        "each inference request, without its content; 0: no access log.",
    )
    log_mib: LogMib = 10
    log_level: LogLevel = "info"
    log_format: LogForm = "human"

    @field_validator("admin_host", "allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip().lower() for name in value.split(",") if name.strip())
        return value

    @field_validator("advertise_address", mode="before")
    @classmethod
    def _parse_address(cls, value: object) -> object:
        return AdvertisedAddress.parse(value) if isinstance(value, str) else value

    @field_validator("host")
    @classmethod
    def _names_an_address(cls, value: str) -> str:
        split_hosts(value)
        return value

    @field_validator("controller_url", "retrieval_url")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        address = ProgramAddress.parse(value)
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

        Wildcard addresses stay as they are. Port 0 stays, too, until `main` replaces the setting by the port that was
        bound.
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
        """Maximum bytes of large request bodies (above 256 KiB) in memory at a time: `body_memory_mib` in bytes."""
        return self.body_memory_mib * MIB

    @property
    def max_body_bytes(self) -> int:
        """Largest request body, in bytes."""
        return self.max_body_mib * MIB

    @property
    def retrieval_token_path(self) -> Path:
        """The file with the token of retrieval: `retrieval_token_file`, else `retrieval-token` in the state folder.

        It need not exist. Relative to the working directory if the setting is.
        """
        return self.retrieval_token_file or self.state / "retrieval-token"

    @property
    def has_metrics_key(self) -> bool:
        """Whether metrics and the gateway's state need a key."""
        return self.metrics_key is not None or self.metrics_key_file is not None

    def read_metrics_key(self) -> str | None:
        """Return the key of the metrics: `metrics_key`, else that in `metrics_key_file`; None: there is none, or the
        file cannot be read. Blocks for a read. Never raises."""
        if self.metrics_key is not None:
            return self.metrics_key.strip()
        return None if self.metrics_key_file is None else read_token(self.metrics_key_file)

    @property
    def responses_retention_s(self) -> float:
        """Seconds that a response, conversation or chat completion is stored; 0: none is stored."""
        return self.responses_retention_h * 3600

    @property
    def stream_ring_bytes(self) -> int:
        """Maximum size of the buffer of one resumable stream: `stream_ring_kib` in bytes."""
        return self.stream_ring_kib * 1024

    @property
    def answer_buffer_bytes(self) -> int:
        """Maximum number of bytes of a blocking answer that are held until it is complete."""
        return self.answer_buffer_mib * MIB
