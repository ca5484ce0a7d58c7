"""How many sessions a replica of each backend keeps, and how its engine is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from controller.engines import ENGINES, spec_hash
from controller.engines.memory import Prediction
from controller.schema.desired import Definition
from tests.unit.controller.engines.test_memory_formulas import llama_3_8b


def definition_of(backend: str, **fields: Any) -> Definition:
    definition: Definition = ENGINES[backend].definition.model_validate(
        {"backend": backend, "model_path": "m", **fields}
    )
    return definition


def remote(**fields: Any) -> Definition:
    address = {"backend": "openai_remote", "base_url": "http://phone", "remote_model": "m"}
    definition: Definition = ENGINES["openai_remote"].definition.model_validate(address | fields)
    return definition


@pytest.mark.parametrize(
    ("backend", "fields", "count", "binding"),
    [
        ("llama_server", {}, 4, "slot"),
        ("llama_server", {"target_inflight": 9}, 9, "slot"),
        ("llama_server", {"session_cache": 2}, 2, "slot"),
        ("llama_server", {"session_cache": 0}, 0, "slot"),
        ("llama_server", {"llama_server_cache_ram_mib": 100}, 4, None),
        ("llama_server", {"extra_args": ["--parallel", "2"]}, 4, None),
        ("llama_server", {"env": {"LLAMA_ARG_CACHE_RAM": "100"}}, 4, None),
        ("llama_server", {"llama_server_embedding": True}, 0, "slot"),
        ("vllm", {"target_inflight": 32}, 32, None),
        ("vllm_serve", {}, 64, None),
        ("exllamav3", {}, 4, None),
        ("litert_lm", {}, 4, "conversation"),
        ("litert_lm", {"session_cache": 7}, 7, "conversation"),
        ("llama_cpp", {}, 0, None),
        ("llama_cpp", {"session_cache": 3}, 3, "name"),
        ("llama_cpp", {"session_cache": 3, "gguf_embedding": True}, 0, None),
        ("ct2", {"session_cache": 3}, 0, None),
    ],
)
def test_what_a_backend_keeps(backend: str, fields: dict[str, Any], count: int, binding: str | None) -> None:
    engine, definition = ENGINES[backend], definition_of(backend, **fields)
    assert (engine.session_cache(definition), engine.session_binding(definition)) == (count, binding)


def test_a_remote_keeps_sessions_if_it_takes_their_names() -> None:
    engine = ENGINES["openai_remote"]
    plain, told = remote(), remote(remote_fields=["session_id"], session_cache=5)
    assert (engine.session_cache(plain), engine.session_binding(plain)) == (0, None)
    assert (engine.session_cache(told), engine.session_binding(told)) == (5, "conversation")


@pytest.mark.parametrize("backend", sorted(ENGINES))
def test_engines_are_replaced_for_it_only_where_they_are_told(backend: str) -> None:
    if backend in ("openai_remote", "stub"):
        return
    hashes = {spec_hash(definition_of(backend, **fields), None, "m") for fields in ({}, {"session_cache": 3})}
    assert len(hashes) == (2 if backend in ("litert_lm", "llama_cpp") else 1)


def test_kept_states_are_predicted_as_a_second_cache_in_main_memory() -> None:
    engine, artifacts = ENGINES["llama_cpp"], {"m": llama_3_8b()}
    plain, keeping = (
        engine.predict_memory(definition_of("llama_cpp", gguf_n_ctx=4096, gpus=1, **fields), artifacts)
        for fields in ({}, {"session_cache": 3})
    )
    assert isinstance(plain, Prediction)
    assert isinstance(keeping, Prediction)
    assert keeping.gpu == plain.gpu
    assert keeping.host.total - plain.host.total == plain.gpu.kv_cache > 0
    assert (plain.host_grows, keeping.host_grows) == (False, True)
