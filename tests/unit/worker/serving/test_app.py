"""The worker's routes over an engine."""

from __future__ import annotations

import math

import pytest
from starlette.testclient import TestClient

from worker.__main__ import parse_engine
from worker.engine import Job
from worker.serving.app import Worker, create_app


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_vector_that_is_not_finite_is_the_engine_s_failure(
    number: float, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, args = parse_engine("stub", ["--host", "127.0.0.1", "--port", "1", "--served-name", "demo"])
    engine = module.create(args)

    def embed_texts(texts: list[str], job: Job) -> list[list[float]]:
        return [[0.5, 1.0], [0.5, number]]

    monkeypatch.setattr(engine, "embed_texts", embed_texts)
    worker = Worker(engine, "demo")
    worker.ready = True
    client = TestClient(create_app(worker, None))
    answer = client.post("/v1/embeddings", json={"input": ["a", "b"], "encoding_format": encoding})
    assert (answer.status_code, answer.json()) == (
        500,
        {
            "error": {
                "message": "The model gave a number that is not finite.",
                "type": "server_error",
                "code": "internal_error",
                "param": None,
            }
        },
    )
