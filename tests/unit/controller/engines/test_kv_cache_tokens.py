"""How many tokens engines hold, where requests get into each other's way."""

from __future__ import annotations

from typing import Any

import pytest

from controller.engines import ENGINES
from controller.engines.base import EngineFigures


def tokens_of(backend: str, told: EngineFigures, **fields: Any) -> int | None:
    engine = ENGINES[backend]
    return engine.kv_cache_tokens(engine.definition.model_validate({"backend": backend, **fields}), told)


@pytest.mark.parametrize(
    ("fields", "told", "tokens"),
    [
        ({}, None, None),
        ({}, 4096, 4096),
        ({"llama_server_n_ctx": 4000}, None, 4000),
        ({"llama_server_n_ctx": 4000}, 4096, 4096),  # rounded up
        ({"llama_server_n_ctx": 65536}, 8192, 65536),  # one request has what the model was trained for
        ({"extra_args": ["-c", "16384"]}, 8192, 16384),
        ({"llama_server_n_ctx": 4096, "extra_args": ["--ctx-size", "8192"]}, 8192, 8192),
        ({"extra_args": ["-c"]}, 4096, 4096),
        ({"extra_args": ["--no-kv-unified"]}, 1024, None),
        ({"llama_server_embedding": True}, 512, None),
        ({"llama_server_reranking": True}, 512, None),
    ],
)
def test_all_slots_of_a_llama_server_share_one_cache(
    fields: dict[str, Any], told: int | None, tokens: int | None
) -> None:
    assert tokens_of("llama_server", EngineFigures(context_length=told), model_path="m.gguf", **fields) == tokens


@pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])
def test_a_vllm_holds_nobody_back_until_it_preempts(backend: str) -> None:
    told = EngineFigures(1024, 3072, is_preempting=False)
    assert tokens_of(backend, told, model_path="m") is None
    assert tokens_of(backend, EngineFigures(1024, 3072, is_preempting=True), model_path="m") == 3072
    assert ENGINES[backend].preempts_when_full


def test_workers_answer_one_after_the_other() -> None:
    assert tokens_of("llama_cpp", EngineFigures(context_length=4096), model_path="m.gguf") is None
