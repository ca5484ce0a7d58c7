"""What the controller renders, the worker takes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest

from controller.engines import ENGINES
from controller.engines.base import RenderContext
from controller.engines.families import PromptFormat
from worker import __main__ as worker_main
from worker.llama_prompts import PROMPT_FORMATS
from worker.llama_server_flags import parse, value_of

LLAMA_SERVER = {
    "llama_server_n_ctx": 4096,
    "llama_server_n_gpu_layers": 0,
    "llama_server_flash_attn": "on",
    "llama_server_cache_type_k": "q8_0",
    "llama_server_cache_type_v": "q8_0",
    "llama_server_mmproj": "p.gguf",
    "llama_server_image_max_tokens": 1024,
    "llama_server_draft_model_path": "d.gguf",
    "llama_server_spec_type": "draft-mtp",
    "llama_server_spec_draft_n_max": 3,
    "llama_server_spec_draft_p_min": 0.5,
    "llama_server_embedding": True,
    "llama_server_pooling": "mean",
    "llama_server_reranking": True,
    "llama_server_threads": 2,
    "llama_server_reasoning_format": "none",
}
LLAMA_CPP = {
    "gguf_n_ctx": 4096,
    "gguf_n_gpu_layers": -1,
    "gguf_flash_attn": "auto",
    "gguf_type_k": "q8_0",
    "gguf_type_v": "f16",
    "gguf_embedding": True,
    "gguf_chat_format": "chatml",
}
PROMPT = {"prompt_format": "translategemma_template"}
STUB = {"stub_text": "-- hi", "stub_load_s": 0.5, "stub_token_delay_ms": 20, "stub_fail": "no"}


def rendered(backend: str, fields: dict[str, Any]) -> list[str]:
    """The command line after `python -m worker`, as the process runtime starts it."""
    engine = ENGINES[backend]
    model = {} if backend == "stub" else {"model_path": "m.gguf"}
    definition = engine.definition.model_validate({"backend": backend, **model, **fields})
    context = RenderContext(
        runtime="process",
        served_name="a/model:1",
        models_root=PurePosixPath("/models"),
        host="127.0.0.1",
        port=8099,
        cache_dir=PurePosixPath("/cache"),
        executables={"python": "python"},
    )
    python, dash_m, worker, *arguments = engine.render(definition, context).argv
    assert (python, dash_m, worker) == ("python", "-m", "worker")
    return arguments


@pytest.mark.parametrize("name", [*LLAMA_SERVER, None])
def test_every_llama_server_field_reaches_the_embedded_server(name: str | None) -> None:
    engine, dashes, *flags = rendered("llama_server", {name: LLAMA_SERVER[name]} if name else LLAMA_SERVER)
    assert (engine, dashes) == ("llama_server", "--")
    settings = parse(flags, {})
    assert value_of(settings, "model.path") == Path("/models/m.gguf")
    assert value_of(settings, "model_alias") == {"a/model:1"}
    assert value_of(settings, "fit_params") is False
    assert value_of(settings, "n_parallel") == 4


@pytest.mark.parametrize(
    ("backend", "fields"),
    [("stub", STUB), ("llama_cpp", LLAMA_CPP), ("stub", {}), ("llama_cpp", {}), ("llama_cpp", PROMPT)],
)
def test_every_field_of_a_worker_engine_is_taken(backend: str, fields: dict[str, Any]) -> None:
    engine, *flags = rendered(backend, fields)
    args = worker_main.parse_engine(engine, flags)[1]
    assert (args.host, args.port, args.served_name) == ("127.0.0.1", 8099, "a/model:1")


def test_the_worker_learns_what_the_template_is() -> None:
    engine, *flags = rendered("llama_cpp", PROMPT)
    assert worker_main.parse_engine(engine, flags)[1].prompt_format == "translategemma_template"


def test_the_worker_knows_every_prompt_format() -> None:
    assert get_args(PromptFormat) == PROMPT_FORMATS
