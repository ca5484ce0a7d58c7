"""What programs' settings share: their base and the settings that several of them have; and the environment variables
`ROUNDHOUSE_*` that this version reads, by program.

`roundhouse upgrade --check` compares an environment with the list of these, because it may import neither the gateway
nor the worker. A test compares the list with the programs' settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from common.log_formats import LogFormat

PREFIX: Final = "ROUNDHOUSE_"
"""Prefix of every environment variable of Roundhouse."""


class ProgramSettings(BaseSettings):
    """The settings of a program, read from environment variables when the object is made. Immutable.

    The variable is `ROUNDHOUSE_` and the field's name in upper case; an empty one counts as unset, and unknown ones are
    ignored. Making the object raises pydantic's ValidationError for invalid values.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)


StateFolder: TypeAlias = Annotated[
    Path,
    Field(
        description="State folder: the controller's records and engines' logs, the gateway's `responses.db` and "
        "identity, retrieval's catalog, original files and embedded vector store. Only one program of each kind at a "
        "time can use it."
    ),
]
GatewayHosts: TypeAlias = Annotated[
    str,
    Field(
        description="Addresses or names, comma-separated, that the gateway listens on. A name means all of its "
        "addresses on this machine."
    ),
]
GatewayPort: TypeAlias = Annotated[
    int, Field(ge=0, le=65535, description="Port that the gateway listens on; 0: any free port.")
]
GatewayTokenFile: TypeAlias = Annotated[
    Path | None,
    Field(
        description="File with the token that gateways and the command line send to a controller that listens on "
        "`host:port`. The controller creates the file; gateways read it for each connection. Keep it in a folder that "
        "no other user can enter."
    ),
]
ServesRetrieval: TypeAlias = Annotated[
    bool,
    Field(
        description="Whether documents and searches are served (`/v1/documents`, `/v1/search`, `/v1/tenants`, "
        "`/v1/files`, `/v1/vector_stores`), by the retrieval program that `roundhouse up` starts."
    ),
]
RetrievalTokenFile: TypeAlias = Annotated[
    Path | None,
    Field(
        description="File with the token that retrieval and the gateway show to each other. Retrieval creates the "
        "file; default: `retrieval-token` in the state folder."
    ),
]
RetrievalConcurrency: TypeAlias = Annotated[
    int,
    Field(
        ge=2,
        le=1024,
        description="Maximum requests for embeddings and rankings that retrieval has at the gateway at a time, "
        "waiting ones included. At most half of them are for documents.",
    ),
]
TransfersTokenFile: TypeAlias = Annotated[
    Path | None,
    Field(
        description="File with the token that the controller shows to a transfers program that listens on "
        "`host:port`. Transfers creates the file."
    ),
]
LogMib: TypeAlias = Annotated[
    int,
    Field(
        ge=0,
        description="Maximum size in MiB of the program's own log, `logs/<program>.log` in its state folder; 0: no "
        "log file.",
    ),
]
_LOG_LEVEL: Final = Field(description="Lowest severity that is logged: debug, info, warning or error.")
LogLevel: TypeAlias = Annotated[Literal["debug", "info", "warning", "error"], _LOG_LEVEL]
AnyLogLevel: TypeAlias = Annotated[str, _LOG_LEVEL]
"""Also a level of Python's own, such as `CRITICAL`, in any case."""
LogForm: TypeAlias = Annotated[
    LogFormat, Field(description="Form of log lines: `human`, or `json` for one JSON object per line.")
]

_CONTROLLER: Final = """
    CONNECT_TIMEOUT_S CONTROLLER_LISTEN DESIRED DOCKER_GONE_S DOWNLOADS DRAIN_TIMEOUT_S ENGINES_MEMORY_MIB
    ENGINES_NETWORK ENGINE_LOG_MIB GATEWAY_TOKEN_FILE HISTORY_ENTRIES HOST HOSTS HOST_LOST_S HOST_RELAY_PORT
    IMAGE_CONTROLLER IMAGE_LLAMA_SERVER IMAGE_VLLM IMAGE_WORKER IMAGE_WORKER_EXLLAMAV3 IMAGE_WORKER_VLLM
    INSECURE_PRIVATE_NETWORK INSTANCE LOG_FORMAT LOG_LEVEL LOG_MIB MODELS PORT PREFLIGHT_RECHECK_S PROBE_INTERVAL_S
    RESYNC_S RETRIEVAL RUNTIME START_TIMEOUT_S STATE STOP_TIMEOUT_S SWAP_WAIT_S TRANSFERS_TOKEN_FILE TRANSFERS_URL
    TRUSTED_DECLARATIONS
"""
_GATEWAY: Final = """
    ACCESS_LOG_MIB ADMIN_HOST ADVERTISE_ADDRESS ALLOWED_HOSTS ANSWER_BUFFER_MIB ASSISTANT AUTOLOAD_TIMEOUT_S
    BODY_MEMORY_MIB CLIENT_CONCURRENCY CLIENT_REQUESTS_PER_MINUTE CLIENT_TIMEOUT_S CLIENT_TOKENS_PER_MINUTE
    CONNECT_TIMEOUT_S CONTROLLER_URL CORS_ORIGINS DEFAULT_MODEL ENGINE_STATE_ROUTES GATEWAY_TOKEN_FILE GATHER_AFTER_S
    HEARTBEAT_S HOLD_HEADERS_S HOST KEEP_ALIVE_S LOG_FORMAT LOG_LEVEL LOG_MIB MAX_BODY_MIB MAX_CHOICES MAX_HEADER_KIB
    MAX_IMAGES MAX_INPUTS MAX_TOOL_CALLS MCP MDNS METRICS_KEY METRICS_KEY_FILE OPEN OPEN_ADMIN PAGE PAGE_FOLDER
    PATH_PREFIX PORT QUEUE_LIMIT REQUEST_TIMEOUT_S RESPONSES_MAX_MIB RESPONSES_RETENTION_H RETRIEVAL
    RETRIEVAL_CONCURRENCY RETRIEVAL_MAX_FILE_MIB RETRIEVAL_TOKEN_FILE RETRIEVAL_URL SHUTDOWN_GRACE_S STATE
    STREAMS_MAX_MIB STREAM_FILES STREAM_GC_S STREAM_RING_KIB STREAM_TTL_S TLS_CERT TLS_KEY
"""
_RETRIEVAL: Final = """
    GATEWAY_URL LOG_FORMAT LOG_LEVEL LOG_MIB QDRANT_API_KEY QDRANT_URL RETRIEVAL_CHUNK_OVERLAP_TOKENS
    RETRIEVAL_CHUNK_TOKENS RETRIEVAL_CONCURRENCY RETRIEVAL_EMBEDDING_MODEL RETRIEVAL_EMBED_BATCH RETRIEVAL_LANGUAGE
    RETRIEVAL_LISTEN RETRIEVAL_MAX_FILE_MIB RETRIEVAL_PARSERS
    RETRIEVAL_PARSE_MEMORY_MIB RETRIEVAL_PARSE_TIMEOUT_S RETRIEVAL_PASSAGE_PREFIX RETRIEVAL_QUERY_PREFIX
    RETRIEVAL_RERANK_MODEL RETRIEVAL_TOKEN_FILE STATE
"""
_TRANSFERS: Final = """
    HOST_ADDRESS HUB_ENDPOINT HUB_TOKEN HUB_TOKEN_FILE LOG_FORMAT LOG_LEVEL MODELS TRANSFERS_ALLOW_HOSTS
    TRANSFERS_CONNECTIONS TRANSFERS_KEEP_FREE_GB TRANSFERS_LISTEN TRANSFERS_LOCAL_FOLDERS TRANSFERS_OLLAMA_REGISTRY
    TRANSFERS_PARALLEL TRANSFERS_SHARE_CERTIFICATES TRANSFERS_SHARE_LISTEN TRANSFERS_SHARE_TOKEN_FILE
    TRANSFERS_TOKEN_FILE
"""
_OTHERS: Final = """
    CACHE CAMPAIGN COVERAGE_BASE DESIRED_DIR DOCKER_SOCKET ENGINE_TOKEN HOST_LABELS HOST_NAME IMAGE_GATEWAY
    KEY LLAMA_CMAKE MODELS_DIR PYTHON REPLICA SEED START TEST_REQUIRE UP_CHILD
"""


def _variables(names: str) -> frozenset[str]:
    return frozenset(f"{PREFIX}{name}" for name in names.split())


CONTROLLER_VARIABLES: Final = _variables(_CONTROLLER)
GATEWAY_VARIABLES: Final = _variables(_GATEWAY)
RETRIEVAL_VARIABLES: Final = _variables(_RETRIEVAL)
TRANSFERS_VARIABLES: Final = _variables(_TRANSFERS)
OTHER_VARIABLES: Final = _variables(_OTHERS)
"""Variables of the command line, of engines, of compose.yaml, and of development."""
KNOWN_VARIABLES: Final = (
    CONTROLLER_VARIABLES | GATEWAY_VARIABLES | RETRIEVAL_VARIABLES | TRANSFERS_VARIABLES | OTHER_VARIABLES
)
