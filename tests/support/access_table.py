"""What each of the gateway's routes must demand, written down by hand: nothing here is read from the gateway's own
table, which is held to it. A route that is added is added here, by somebody who thought of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from contract.route_spec import Access


class Family(NamedTuple):
    """Routes that demand the same."""

    methods: str
    """Separated by blanks; `*`: every one."""
    paths: str
    """Separated by blanks, as declared. `{...}` stands for one part of a path, `{...:path}` for any number of them."""
    access: Access


FAMILIES: Final = (
    Family("GET HEAD", "/health/live", "open"),
    # Open, unless ROUNDHOUSE_METRICS_KEY is set.
    Family("GET HEAD", "/health /health/ready /metrics /metrics/engines", "metrics"),
    # Files of the page, the same for everybody. They hold no data.
    Family("GET HEAD", "/ /page/{path:path}", "page"),
    Family("GET", "/openapi.json", "any_key"),
    Family("GET", "/v1/limits", "inference"),
    # What of it a key opens, its tools say: each has a scope.
    Family("POST", "/mcp", "any_key"),
    Family("POST", "/health/warm", "inference"),
    Family("GET", "/v1/aicore/status", "inference"),
    Family("GET POST", "/v1/aicore/benchmark", "inference"),
    Family("GET", "/v1/models/{name:path}/status", "inference"),
    Family("GET POST", "/v1/models/{name:path}/benchmark", "inference"),
    Family("GET", "/v1/models /models /models/sse /router/props /v1/models/{name:path}", "inference"),
    Family("POST", "/models /models/load /models/unload", "admin"),
    Family("DELETE", "/models", "admin"),
    Family("GET DELETE", "/v1/responses/{response_id}", "inference"),
    Family("GET", "/v1/responses/{response_id}/input_items", "inference"),
    Family("POST", "/v1/responses/{response_id}/cancel", "inference"),
    Family("GET DELETE", "/v1/stream /v1/stream/{conv_id:path}", "inference"),
    Family("POST", "/v1/streams/lookup", "inference"),
    Family("POST", "/v1/responses /v1/responses/compact /v1/responses/input_tokens", "inference"),
    Family("GET", "/v1/chat/completions /v1/chat/completions/{completion_id}/messages", "inference"),
    Family("GET POST DELETE", "/v1/chat/completions/{completion_id}", "inference"),
    Family("GET POST", "/v1/conversations", "inference"),
    Family("GET POST DELETE", "/v1/conversations/{conversation_id}", "inference"),
    Family("GET POST", "/v1/conversations/{conversation_id}/items", "inference"),
    Family("GET DELETE", "/v1/conversations/{conversation_id}/items/{item_id}", "inference"),
    Family("POST", "/v1/chat/completions /v1/chat/completions/input_tokens /v1/completions", "inference"),
    Family("POST", "/v1/messages /v1/messages/count_tokens", "inference"),
    Family("POST", "/v1/embeddings /v1/rerank /v2/rerank /rerank", "inference"),
    Family("GET POST", "/v1/documents /v1/files /v1/vector_stores", "inference"),
    Family("GET DELETE", "/v1/documents/{document_id} /v1/files/{file_id}", "inference"),
    Family(
        "GET",
        "/v1/documents/{document_id}/chunks /v1/documents/{document_id}/text /v1/documents/{document_id}/content "
        "/v1/documents/{document_id}/events /v1/files/{file_id}/content /v1/tenants",
        "inference",
    ),
    # Whose tenants these are, retrieval decides.
    Family("DELETE", "/v1/tenants/{tenant_id:path}", "inference"),
    Family("GET", "/v1/retrieval /v1/metrics/history", "admin"),
    Family("POST", "/v1/retrieval/reindex /v1/retrieval/clock/confirm /v1/clock/confirm", "admin"),
    Family("POST", "/v1/search /v1/vector_stores/{vector_store_id}/search", "inference"),
    Family("GET POST DELETE", "/v1/vector_stores/{vector_store_id}", "inference"),
    Family("GET POST", "/v1/vector_stores/{vector_store_id}/files", "inference"),
    Family("GET POST DELETE", "/v1/vector_stores/{vector_store_id}/files/{file_id}", "inference"),
    Family("GET", "/v1/vector_stores/{vector_store_id}/files/{file_id}/content", "inference"),
    Family("POST", "/v1/vector_stores/{vector_store_id}/file_batches", "inference"),
    Family("GET", "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}", "inference"),
    Family("POST", "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel", "inference"),
    Family("GET", "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files", "inference"),
    Family("GET POST", "/tools", "inference"),
    # Why a server is down, only who may administer is told.
    Family("GET", "/tools/servers", "inference"),
    # Which of them a key may use, its tools say.
    Family("POST", "/tools/servers/{server}/prompts/{name:path} /tools/servers/{server}/resources/read", "inference"),
    Family("POST", "/tokenize /detokenize /apply-template /infill /completion /embedding", "inference"),
    Family("GET", "/props /lora-adapters", "inference"),
    Family("GET", "/slots", "admin"),
    Family("POST", "/slots/{id} /props /lora-adapters", "admin"),
    Family("*", "/v1/admin/{rest:path}", "admin"),
)
OTHER_NAMES: Final = {"/reranking": "/v1/rerank", "/v1/reranking": "/v1/rerank", "/v1/health": "/health"}
"""Paths that are read as others, and those."""
WITHOUT_V1: Final = ("chat/completions", "completions", "conversations", "embeddings", "messages", "responses")
"""Paths that are read as those below `/v1`, with all that is below them; so is every one below `/models`."""
MAY_BE_OPEN: Final = re.compile(r"/health(/(?!warm$).*)?|/v1/health|/metrics(/engines)?")
"""Of all that come. The page has an access of its own."""


def list_expected() -> dict[tuple[str, str], Access]:
    return {
        (method, path): family.access
        for family in FAMILIES
        for method in family.methods.split()
        for path in family.paths.split()
    }


ANSWERED_BY_ENGINES: Final = ("/props", "/lora-adapters", "/slots")
"""Paths of GET for which there is no HEAD."""


def find_expected(method: str, path: str) -> Access:
    """What a request must show; of what is no route, any key. `path` is as the gateway reads it: decoded, and without
    the query. HEAD is served where GET is, and so are doubled slashes and one at the end, but not where a part of the
    path is empty that a PUT, DELETE or POST would change."""
    path = _read_as(re.sub("^//+", "/", path))
    first = _find(method, path)
    if first is not None and not (path.endswith("/") and first.lacks_part):
        return first.access
    is_kept = method in ("PUT", "DELETE") or (method == "POST" and first is not None)
    for spelled in (path, path if is_kept else _read_as(write_tidily(path))):
        for known in ("HEAD", "GET") if method == "HEAD" else (method,):
            found = _find(known, spelled)
            is_engines = known != method and spelled in ANSWERED_BY_ENGINES
            if found is not None and not found.lacks_part and not is_engines:
                return found.access
    return "any_key" if first is None else first.access


def write_tidily(path: str) -> str:
    """Without doubled slashes and the last one."""
    return re.sub("//+", "/", path).rstrip("/") or "/"


class _Found(NamedTuple):
    access: Access
    lacks_part: bool
    """Whether what the path leaves open is empty."""


def _find(method: str, path: str) -> _Found | None:
    for (known_method, known_path), access in list_expected().items():
        match = re.fullmatch(_pattern(known_path), path) if known_method in ("*", method) else None
        if match is not None:
            return _Found(access, not all(match.groups()))
    return None


def _read_as(path: str) -> str:
    is_bare = re.fullmatch(rf"/(({'|'.join(WITHOUT_V1)})(/.*)?|models/(?!(load|unload)$)[^/].*)", path, re.DOTALL)
    return OTHER_NAMES.get(path, f"/v1{path}" if is_bare else path)


def list_differences(declared: Iterable[tuple[str, str, Access]]) -> list[str]:
    """What the gateway declares and this table does not say, or says otherwise; and what only the table has."""
    expected, found = list_expected(), {(method, path): access for method, path, access in declared}
    routes = sorted(expected.keys() | found.keys())
    return [
        f"{method} {path}: declared {found.get((method, path))}, decided {expected.get((method, path))}"
        for method, path in routes
        if found.get((method, path)) != expected.get((method, path))
    ]


def _pattern(path: str) -> str:
    parts = re.split(r"(\{[^}]*\})", path)
    return "".join(_part_pattern(part) for part in parts)


def _part_pattern(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    return "(.*)" if part.endswith(":path}") else "([^/]+)"
