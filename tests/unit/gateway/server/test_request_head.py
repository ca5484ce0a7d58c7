"""What a request's target is read as."""

from __future__ import annotations

import pytest

from gateway.server.request_head import with_declared_path

READ_AS = {
    "/chat/completions": "/v1/chat/completions",
    "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
    "/completions": "/v1/completions",
    "/conversations/conv_1/items?limit=2": "/v1/conversations/conv_1/items?limit=2",
    "/embeddings": "/v1/embeddings",
    "/messages/count_tokens": "/v1/messages/count_tokens",
    "/models/org/m:8b": "/v1/models/org/m:8b",
    "/models/loaded": "/v1/models/loaded",
    "/responses": "/v1/responses",
    "/responses/resp_1/cancel": "/v1/responses/resp_1/cancel",
    "/responses?x=/health": "/v1/responses?x=/health",
    "/reranking": "/v1/rerank",
    "/v1/reranking?a": "/v1/rerank?a",
    "/v1/health": "/health",
    "/v1%2Fhealth": "/health",
    "/models/org%2Fm": "/v1/models/org%2Fm",
    "/chat%2fcompletions#x": "/v1/chat%2fcompletions#x",
}
UNCHANGED = (
    *(
        "/",
        "/v1",
        "/v1/",
        "*",
        "",
        "/health",
        "/models",
        "/models/",
        "/models//",
        "/models?x=1",
        "/models/load",
        "/models/sse",
        "/v1/models/m",
    ),
    *("/completion", "/embedding", "/rerank", "/v2/rerank", "/chat", "/chat/", "/completionsx", "/xcompletions"),
    *("/v1/chat/completions", "/v1/responses", "/v1/v1/health", "/v2/health", "/v1/health/", "/v1/admin/models"),
    *("/nowhere?/responses", "/nowhere#/responses", "/COMPLETIONS", "/%252Fcompletions", "//completions"),
)


@pytest.mark.parametrize("target", READ_AS)
def test_a_path_with_another_name(target: str) -> None:
    assert with_declared_path(b"GET", target.encode()) == READ_AS[target].encode()


@pytest.mark.parametrize("target", [*UNCHANGED, *READ_AS.values()])
def test_any_other_stays(target: str) -> None:
    assert with_declared_path(b"GET", target.encode()) == target.encode()
