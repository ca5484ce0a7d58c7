"""The environment variables `ROUNDHOUSE_*` that this version reads, by program, and the deprecated ones.

`roundhouse upgrade --check` compares an environment with this list, because it may import neither the gateway nor the
worker. A test compares the list with the programs' settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PREFIX: Final = "ROUNDHOUSE_"

_CONTROLLER: Final = """
    CONNECT_TIMEOUT_S CONTROLLER_LISTEN DESIRED DOCKER_GONE_S DRAIN_TIMEOUT_S ENGINES_MEMORY_MIB ENGINES_NETWORK
    ENGINE_LOG_MIB GATEWAY_TOKEN_FILE HISTORY_ENTRIES HOST IMAGE_CONTROLLER IMAGE_LLAMA_SERVER IMAGE_VLLM
    IMAGE_WORKER IMAGE_WORKER_EXLLAMAV3 IMAGE_WORKER_VLLM INSTANCE LOG_LEVEL LOG_MIB MODELS PORT PREFLIGHT_RECHECK_S
    PROBE_INTERVAL_S RESYNC_S RUNTIME START_TIMEOUT_S STATE STOP_TIMEOUT_S SWAP_WAIT_S
"""
_GATEWAY: Final = """
    ADMIN_HOST ALLOWED_HOSTS ANSWER_BUFFER_MIB AUTOLOAD_TIMEOUT_S BODY_MEMORY_MIB CLIENT_CONCURRENCY
    CLIENT_REQUESTS_PER_MINUTE CLIENT_TIMEOUT_S CLIENT_TOKENS_PER_MINUTE CONNECT_TIMEOUT_S CONTROLLER_URL CORS_ORIGINS
    ENGINE_STATE_ROUTES GATEWAY_TOKEN_FILE GATHER_AFTER_S HEARTBEAT_S HOLD_HEADERS_S HOST KEEP_ALIVE_S LOG_LEVEL LOG_MIB
    MAX_BODY_MIB MAX_HEADER_KIB OPEN OPEN_ADMIN PORT QUEUE_LIMIT REQUEST_TIMEOUT_S RESPONSES_MAX_MIB
    RESPONSES_RETENTION_H SHUTDOWN_GRACE_S STATE TLS_CERT TLS_KEY
"""
_OTHERS: Final = """
    CACHE CAMPAIGN COVERAGE_BASE DESIRED_DIR DOCKER_SOCKET ENGINE_TOKEN IMAGE_GATEWAY KEY LLAMA_CMAKE MODELS_DIR PYTHON
    REPLICA SEED START TEST_REQUIRE UP_CHILD
"""


def _variables(names: str) -> frozenset[str]:
    return frozenset(f"{PREFIX}{name}" for name in names.split())


CONTROLLER_VARIABLES: Final = _variables(_CONTROLLER)
GATEWAY_VARIABLES: Final = _variables(_GATEWAY)
OTHER_VARIABLES: Final = _variables(_OTHERS)
"""Variables of the command line, of engines, of compose.yaml, and of development."""
KNOWN_VARIABLES: Final = CONTROLLER_VARIABLES | GATEWAY_VARIABLES | OTHER_VARIABLES
DEPRECATED_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})
"""Deprecated or removed variable to what to do instead. There is none so far."""
