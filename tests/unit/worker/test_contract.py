"""What the controller renders, the worker takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest

from controller.engines import ENGINES
from controller.engines.base import ChatFormat, ClaimedGpu, PromptFormat, RenderContext
from controller.engines.ct2 import ComputeType
from worker import __main__ as worker_main
from worker.engines.ct2 import COMPUTE_TYPES
from worker.engines.exllamav3 import ExLlamaV3
from worker.launchers.llama_server_flags import parse_flags, value_of
from worker.text.prompt_form import CHAT_FORMATS, PROMPT_FORMATS

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
    "llama_server_cache_ram_mib": 512,
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
CT2 = {
    "ct2_tokenizer": "texts",
    "ct2_compute_type": "int8",
    "ct2_max_tokens": 1000,
    "ct2_inter_threads": 2,
    "ct2_intra_threads": 1,
    "prompt_format": "qwen3_template",
}
EXLLAMAV3 = {
    "exllama_cache_size": 4096,
    "exllama_cache_quant": "8,4",
    "exllama_max_rq_tokens": 2048,
    "exllama_tensor_parallel": True,
    "prompt_format": "gemma4_template",
}
PROMPT = {"prompt_format": "translategemma_template"}
STUB = {"stub_text": "-- hi", "stub_load_s": 0.5, "stub_token_delay_ms": 20, "stub_fail": "no"}


def rendered(backend: str, fields: dict[str, Any], gpus: tuple[ClaimedGpu, ...] = ()) -> list[str]:
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
        gpus=gpus,
    )
    python, dash_m, worker, *arguments = engine.render_command(definition, context).argv
    assert (python, dash_m, worker) == ("python", "-m", "worker")
    return arguments


@pytest.mark.parametrize("name", [*LLAMA_SERVER, None])
def test_every_llama_server_field_reaches_the_embedded_server(name: str | None) -> None:
    engine, dashes, *flags = rendered("llama_server", {name: LLAMA_SERVER[name]} if name else LLAMA_SERVER)
    assert (engine, dashes) == ("llama_server", "--")
    settings = parse_flags(flags, {})
    assert value_of(settings, "model.path") == Path("/models/m.gguf")
    assert value_of(settings, "model_alias") == {"a/model:1"}
    assert value_of(settings, "fit_params") is False
    assert value_of(settings, "n_parallel") == 4


@pytest.mark.parametrize(
    ("backend", "fields"),
    [
        ("stub", STUB),
        ("llama_cpp", LLAMA_CPP),
        ("stub", {}),
        ("llama_cpp", {}),
        ("llama_cpp", PROMPT),
        ("ct2", CT2),
        ("ct2", {}),
        ("exllamav3", EXLLAMAV3),
        ("exllamav3", {}),
    ],
)
def test_every_field_of_a_worker_engine_is_taken(backend: str, fields: dict[str, Any]) -> None:
    engine, *flags = rendered(backend, fields)
    args = worker_main.parse_engine(engine, flags)[1]
    assert (args.host, args.port, args.served_name) == ("127.0.0.1", 8099, "a/model:1")
    if "prompt_format" in fields:
        assert args.prompt_format == fields["prompt_format"]


def test_llama_cpp_learns_how_many_gpus_there_must_be() -> None:
    engine, *flags = rendered("llama_cpp", {"gpus": 3})
    assert worker_main.parse_engine(engine, flags)[1].gpu_count == 3
    _, _, *flags = rendered("llama_server", {"gpus": 2})
    assert value_of(parse_flags(flags, {}), "devices") == ["CUDA0", "CUDA1"]


def test_every_field_of_ct2_and_exllamav3_reaches_the_engine() -> None:
    ct2, *flags = rendered("ct2", CT2)
    args = vars(worker_main.parse_engine(ct2, flags)[1])
    assert (args["model"], args["tokenizer"]) == (Path("/models/m.gguf"), Path("/models/texts"))
    assert [args[name.removeprefix("ct2_")] for name in CT2 if name != "ct2_tokenizer"] == [*CT2.values()][1:]
    exllamav3, *flags = rendered("exllamav3", EXLLAMAV3)
    args = vars(worker_main.parse_engine(exllamav3, flags)[1])
    assert (args["cache_size"], args["cache_quant"], args["max_rq_tokens"]) == (4096, (8, 4), 2048)
    assert (args["tensor_parallel"], args["prompt_format"]) == (True, "gemma4_template")


@pytest.mark.parametrize("fields", [{}, {"exllama_tensor_parallel": True}])
def test_exllamav3_learns_how_much_of_each_of_several_gpus_it_may_take(fields: dict[str, Any]) -> None:
    gpus = (ClaimedGpu("GPU-b", 11_264, 24_000), ClaimedGpu("GPU-a", 5_000, 8_000))
    exllamav3, *flags = rendered("exllamav3", fields, gpus)
    # In GiB, as the library counts, without the CUDA context, which it does not count.
    assert worker_main.parse_engine(exllamav3, flags)[1].use_per_device == [10.5, 4.383]
    for few in ((), gpus[:1]):
        exllamav3, *flags = rendered("exllamav3", fields, few)
        assert worker_main.parse_engine(exllamav3, flags)[1].use_per_device is None, "one GPU is not divided"
    exllamav3, *flags = rendered("exllamav3", fields, tuple(replace(gpu, claim_mib=1) for gpu in gpus))
    assert min(worker_main.parse_engine(exllamav3, flags)[1].use_per_device) > 0, "0 would leave the GPU out"


def test_llama_cpp_learns_how_to_split_a_model_over_several_gpus() -> None:
    gpus = (ClaimedGpu("GPU-b", 12_000, 24_000), ClaimedGpu("GPU-a", 24_000, 24_000))
    engine, *flags = rendered("llama_cpp", {}, gpus)
    assert worker_main.parse_engine(engine, flags)[1].tensor_split == [12_000.0, 24_000.0]
    engine, *flags = rendered("llama_cpp", {}, gpus[:1])
    assert worker_main.parse_engine(engine, flags)[1].tensor_split is None
    with pytest.raises(SystemExit):
        worker_main.parse_engine(engine, [*flags, "--tensor-split", "1,x"])


def test_lists_that_both_sides_have() -> None:
    assert get_args(ChatFormat) == CHAT_FORMATS
    assert get_args(PromptFormat) == PROMPT_FORMATS
    assert get_args(ComputeType) == COMPUTE_TYPES
    assert ENGINES["exllamav3"].most_inflight == ExLlamaV3.slots
