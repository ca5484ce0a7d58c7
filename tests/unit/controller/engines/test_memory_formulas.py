"""Formulas of memory against models whose figures are known, and what single options change in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.artifacts.heads import Artifact, Ct2, Gguf, HfFolder, SizedArtifact, UnreadArtifact
from controller.engines import ENGINES
from controller.engines.memory import (
    CUDA_OVERHEAD,
    GPU_OVERHEAD,
    MIB,
    WORKER_OVERHEAD,
    Forecast,
    HfShape,
    LlamaLoad,
    MemoryParts,
    Prediction,
    Unpredicted,
    hf_shape,
    kv_bytes_per_token,
    predict_llama,
)
from controller.hosts import Gpu, Host
from controller.planning.placement import ClaimLedger, Placement, place_replica
from controller.state import DesiredModel, ObservedState, Requirement, Statement
from tests.support.definitions import define

KIB = 1024
GIB = 1024 * MIB
# As published: https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json
LLAMA_3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
BLOCK = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336) * 2


def gguf(architecture: str, fields: Mapping[str, Any], blocks: tuple[int, ...], **more: Any) -> Gguf:
    named = {f"{architecture}.{name}": value for name, value in fields.items()}
    sizes: dict[str, Any] = {**dict.fromkeys(("embedding", "output", "rest", "vocabulary"), 0), **more}
    return Gguf(GIB, architecture, named, blocks, **{"has_tied_embeddings": True, **sizes})


def llama_3_8b(**more: Any) -> Gguf:
    fields = {"context_length": 8192, "embedding_length": 4096, "feed_forward_length": 14336}
    heads = {"attention.head_count": 32, "attention.head_count_kv": 8}
    vocabulary = {"vocabulary": 128256, "embedding": 128256 * 4096 * 2, "output": 128256 * 4096 * 2 + 16384}
    return gguf("llama", fields | heads, (BLOCK,) * 32, **vocabulary, **{"has_tied_embeddings": False, **more})


def forecast_of(backend: str, artifact: Artifact | Mapping[str, Artifact] | None, **fields: Any) -> Forecast | None:
    """Of one artifact for every path of the definition, or of those that are named."""
    engine, definition = ENGINES[backend], define(backend, **fields)
    if artifact is None or not isinstance(artifact, Mapping):
        artifact = {path: artifact for path in engine.list_artifacts(definition) if artifact is not None}
    return engine.predict_memory(definition, artifact)


def predicted(backend: str, artifact: Artifact | Mapping[str, Artifact] | None, **fields: Any) -> Prediction:
    forecast = forecast_of(backend, artifact, **fields)
    assert isinstance(forecast, Prediction), forecast
    return forecast


def reason(backend: str, artifact: Artifact | None, **fields: Any) -> str:
    forecast = forecast_of(backend, artifact, **fields)
    assert isinstance(forecast, Unpredicted), forecast
    return forecast.reason


def server(artifact: Artifact | Mapping[str, Artifact] | None = None, **fields: Any) -> Prediction:
    return predicted("llama_server", artifact or llama_3_8b(), **fields)


def test_llama_3_8b_keeps_128_kib_of_a_token() -> None:
    shape = hf_shape(LLAMA_3_8B)
    assert isinstance(shape, HfShape)
    assert kv_bytes_per_token(shape) == 128 * KIB
    for context in (512, 8192):
        assert server(llama_server_n_ctx=context).host.kv_cache == context * 128 * KIB
    assert server().host.kv_cache == 8192 * 128 * KIB, "its own context"
    assert server(llama_server_n_ctx=300).host.kv_cache == 512 * 128 * KIB, "a multiple of 256"
    quantised = server(llama_server_cache_type_k="q8_0", llama_server_cache_type_v="q4_0")
    assert quantised.host.kv_cache == 8192 * 32 * 1024 * (34 + 18) // 32


def test_what_llama_cpp_computes_with() -> None:
    # llama.cpp of 2024 reports 560 MiB for an 8B at 8192 on CUDA without flash attention: scores of 32 heads x 8192
    # tokens for each of 512, 512 MiB; what is left is a mask and activations.
    assert 550 * MIB < server(llama_server_flash_attn="off", llama_server_n_ctx=8192).host.compute < 600 * MIB
    flash = server(llama_server_n_ctx=8192).host.compute
    assert flash == 8192 * 512 * 2 + 512 * (3 * 4096 + 3 * 14336) * 4 + 4 * 128256 * 4


def test_a_whole_model_on_a_gpu_leaves_the_embeddings_on_the_host() -> None:
    on_gpu = server(gpus=1, llama_server_n_ctx=8192)
    facts = llama_3_8b()
    assert on_gpu.gpu.weights == 32 * BLOCK + facts.output
    assert on_gpu.gpu.kv_cache == GIB
    assert on_gpu.gpu.overhead == GPU_OVERHEAD
    assert on_gpu.host.weights == facts.embedding
    assert on_gpu.host.kv_cache == 0
    tied = replace(facts, has_tied_embeddings=True, output=16384)
    assert server(tied, gpus=1).gpu.weights == 32 * BLOCK + facts.embedding + 16384, "loaded twice"


QWEN3_NEXT = {
    # https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct/blob/main/config.json, as llama.cpp converts it
    "context_length": 262144,
    "embedding_length": 2048,
    "attention.head_count": 16,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4096,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 32,
    "ssm.group_count": 16,
    "expert_used_count": 10,
    "expert_feed_forward_length": 512,
}


def test_a_state_is_as_large_for_one_token_as_for_all() -> None:
    model = gguf("qwen3next", QWEN3_NEXT, (MIB,) * 48, vocabulary=151936)
    state = 36 * 4 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096)  # 75 MiB
    for context, slots in ((4096, 1), (4096, 4), (262144, 4)):
        host = server(model, llama_server_n_ctx=context, target_inflight=slots).host
        assert host.kv_cache == 12 * context * 2 * 2 * 2 * 256 + slots * state
    # A block that predicts further tokens is loaded for drafts alone.
    drafting = gguf("qwen3next", {**QWEN3_NEXT, "nextn_predict_layers": 1}, (MIB,) * 49, vocabulary=151936)
    assert server(drafting, llama_server_n_ctx=4096) == server(model, llama_server_n_ctx=4096)
    named = {**QWEN3_NEXT, "attention.recurrent_layers": (True,) * 47 + (False,)}
    model = gguf("qwen3next", named, (MIB,) * 48, vocabulary=151936)
    fewer = server(model, llama_server_n_ctx=4096, target_inflight=1).host
    assert fewer.kv_cache == 4096 * 2 * 2 * 2 * 256 + state // 36 * 47, "where the file says which"


Q8 = {"llama_server_cache_type_k": "q8_0", "llama_server_cache_type_v": "q8_0"}


@pytest.mark.parametrize(
    ("context", "fields", "buffers_mib", "held_mib"),
    [
        (8192, {}, (14315, 1024, 116), 16160),
        (65536, {}, (14315, 8192, 172), 23384),
        (65536, Q8, (14315, 4352, 352), 19724),
        (8192, {"llama_server_n_ubatch": 2048}, (14315, 1024, 464), 16562),
    ],
)
def test_an_h200_takes_no_more_than_is_predicted(
    context: int, fields: dict[str, Any], buffers_mib: tuple[int, int, int], held_mib: int
) -> None:
    """docs/gpu_figures.md: this shape with weights of zeros, llama-server's own buffers, and what NVML reported of
    its process after a prompt of half the context."""
    gpu = server(gpus=1, llama_server_n_ctx=context, **fields).gpu
    predicted_mib = [each / MIB for each in (gpu.weights, gpu.kv_cache, gpu.compute)]
    assert predicted_mib == pytest.approx(buffers_mib, rel=0.04, abs=2)
    assert held_mib <= gpu.total / MIB < held_mib * 1.01


@pytest.mark.parametrize(("layers", "blocks"), [(0, 0), (1, 0), (9, 8), (33, 32), (99, 32), (-1, 32)])
def test_layers_on_the_gpu_take_their_cache_along(layers: int, blocks: int) -> None:
    split = server(gpus=1, llama_server_n_gpu_layers=layers)
    output = llama_3_8b().output if layers else 0
    assert split.gpu.weights == blocks * BLOCK + output
    assert split.gpu.kv_cache == blocks * GIB // 32
    assert split.host.kv_cache == (32 - blocks) * GIB // 32
    assert split.host.weights == llama_3_8b().weights - split.gpu.weights
    assert split.gpu.overhead == GPU_OVERHEAD, "a context is made whatever it holds"


@pytest.mark.parametrize("gpus", [0, 1])
def test_prompts_in_main_memory_count_as_full(gpus: int) -> None:
    plain = server(gpus=gpus)
    kept = server(gpus=gpus, llama_server_cache_ram_mib=2048)
    assert kept.host.kv_cache == plain.host.kv_cache + 2048 * MIB
    assert replace(kept, host=plain.host, host_grows=False) == plain
    assert kept.host_grows, "what a load is seen to take does not hold it"
    for args in (["--cache-ram", "2048"], ["-cram", "2048"]):
        assert server(gpus=gpus, extra_args=args) == kept
    for args in (["--cache-ram", "-1"], ["-cram"]):
        fields = {"extra_args": args}
        assert "sets no limit" in reason("llama_server", llama_3_8b(), **fields), "-1 is no limit"


@pytest.mark.parametrize(
    ("gpus", "context", "blocks", "has_output"),
    # 33 layers, the output the last of them: 17 and 16, 11 each, or 9, 8, 8 and 8. A block weighs 416 MiB, the output
    # 1002, and a block's cache takes 4 KiB for each token.
    [(2, 8192, 15, True), (2, 262144, 17, False), (3, 8192, 10, True), (4, 8192, 7, True), (4, 262144, 9, False)],
)
def test_several_gpus_share_layers_and_the_fullest_counts(
    gpus: int, context: int, blocks: int, has_output: bool
) -> None:
    forecast = server(gpus=gpus, llama_server_n_ctx=context)
    assert forecast.gpu.weights == blocks * BLOCK + (llama_3_8b().output if has_output else 0)
    assert forecast.gpu.kv_cache == blocks * context * 4 * KIB
    assert forecast.host == replace(server(gpus=1, llama_server_n_ctx=context).host, compute=forecast.host.compute), (
        "what stays in main memory stays"
    )


def test_whole_models_on_several_gpus_have_their_inputs_four_times() -> None:
    # For pipeline parallelism, GGML_SCHED_MAX_COPIES: https://github.com/ggml-org/llama.cpp/issues/24355. As measured
    # (unslothai/unsloth#7637): at a context of 1M the masks take 4.0 GiB on each of 4 GPUs, 4 x 2**20 x 512 x 2 bytes.
    inputs = 8192 * 512 * 2 + 512 * 4096 * 4
    one, two = (server(gpus=gpus, llama_server_n_ctx=8192) for gpus in (1, 2))
    assert two.gpu.compute == one.gpu.compute - 8192 * 512 * 2 + 4 * inputs
    assert two.host.compute == one.host.compute + 3 * inputs
    parts: dict[str, Any] = {"llama_server_n_ctx": 8192, "llama_server_n_gpu_layers": 32}
    assert server(gpus=2, **parts).gpu.compute == server(gpus=1, **parts).gpu.compute, "not where a layer stays behind"
    assert server(gpus=2, **parts).gpu.weights == 15 * BLOCK + llama_3_8b().output


def test_logits_are_computed_where_the_output_is() -> None:
    embedding: dict[str, Any] = {"llama_server_embedding": True, "llama_server_n_ctx": 262144}
    one, two = server(gpus=1, **embedding), server(gpus=2, **embedding)
    assert two.gpu.weights == 17 * BLOCK, "the fullest holds no output"
    masks = 262144 * 512 * 2
    assert one.gpu.compute - masks == 512 * (4096 + 128256) * 4
    assert two.gpu.compute - 4 * (masks + 512 * 4096 * 4) == 512 * (3 * 4096 + 3 * 14336) * 4


# https://github.com/ggml-org/llama.cpp/pull/23907: behind the result of flash attention CUDA keeps an f16 copy of those
# of the layer's K and V that are not f16 already, for the whole cache (#24166); before, it grew with what was in use
# (#23446). As measured (unslothai/unsloth#6718): Qwen3.5-4B, whose K and V are 1024 wide each, computes at 256k in
# 0.31 GiB with f16 and in 1.30 with q8_0; 262144 x 2048 x 2 bytes are 1 GiB.
@pytest.mark.parametrize(
    ("type_k", "type_v", "widths"),
    [("q8_0", "q8_0", 2048), ("bf16", "f16", 1024), ("f16", "q4_0", 1024), ("f16", "f16", 0)],
)
def test_cuda_keeps_an_f16_copy_of_one_layers_quantised_cache(type_k: str, type_v: str, widths: int) -> None:
    types: dict[str, Any] = {"llama_server_cache_type_k": type_k, "llama_server_cache_type_v": type_v}
    context: dict[str, Any] = {"llama_server_n_ctx": 131072}
    plain, typed = server(gpus=1, **context), server(gpus=1, **context, **types)
    attention = 512 * (3 * 4096 + 2 * 4096 + 2 * 1024) * 4
    feed_forward = plain.gpu.compute - 131072 * 512 * 2
    assert typed.gpu.compute == 131072 * 512 * 2 + max(feed_forward, attention + 131072 * widths * 2)
    assert server(**context, **types).host.compute == server(**context).host.compute, "nothing of the kind on a CPU"
    off: dict[str, Any] = {"llama_server_flash_attn": "off", "llama_server_n_ctx": 4096, "gpus": 1}
    assert server(**off, llama_server_cache_type_k=type_k).gpu.compute == server(**off).gpu.compute


def test_the_largest_layer_on_the_gpu_counts_for_that_copy() -> None:
    quantised: dict[str, Any] = {"type_k": "q8_0", "type_v": "q8_0"}
    load = LlamaLoad(context=131072, gpus=1, outputs=1, **quantised)
    windows, none_there = predict_llama(gemma(), load), predict_llama(gemma(), replace(load, gpu_layers=1))
    assert isinstance(windows, Prediction)
    assert isinstance(none_there, Prediction)
    scratch = windows.gpu.compute - none_there.gpu.compute
    assert scratch == 131072 * 2048 * 2 - 512 * (3 * 10240 - 2 * 2048 - 2048) * 4


def gemma(**more: Any) -> Gguf:
    fields = {"context_length": 131072, "embedding_length": 2560, "feed_forward_length": 10240}
    heads = {"head_count": 8, "head_count_kv": 4, "key_length": 256, "value_length": 256, "sliding_window": 1024}
    attention = {f"attention.{name}": value for name, value in heads.items()}
    return gguf("gemma3", {**fields, **attention, **more}, (1,) * 34, vocabulary=262144)


def test_layers_with_a_window_keep_no_more_than_it() -> None:
    # Gemma 3 4B: 34 layers, of which each sixth sees all: 5. A layer keeps 4 KiB of a token.
    assert (
        server(gemma(), target_inflight=1, llama_server_n_ctx=32768).host.kv_cache
        == (5 * 32768 + 29 * (1024 + 512)) * 4 * KIB
    )
    four = server(gemma(), target_inflight=4, llama_server_n_ctx=32768)
    assert four.host.kv_cache == (5 * 32768 + 29 * (4 * 1024 + 512)) * 4 * KIB, "a window for each slot"
    full = server(gemma(), llama_server_n_ctx=32768, extra_args=["--swa-full"])
    assert full.host.kv_cache == 34 * 32768 * 4 * KIB
    told_by_file = gemma(**{"attention.sliding_window_pattern": (True, False) * 17})
    assert (
        server(told_by_file, target_inflight=1, llama_server_n_ctx=32768).host.kv_cache == 17 * (32768 + 1536) * 4 * KIB
    )


def test_extra_arguments_count_in_the_memory_formula() -> None:
    wider = server(llama_server_n_ctx=8192, extra_args=["-ub", "1024"])
    assert wider.host.compute > 1.9 * server(llama_server_n_ctx=8192).host.compute
    assert server(extra_args=["--ctx-size", "512"]).host.kv_cache == 512 * 128 * KIB
    for args in (["-ot", "exps=CPU"], ["--n-cpu-moe", "3"], ["-c", "many"], ["--ctx-size"]):
        assert reason("llama_server", llama_3_8b(), extra_args=args).startswith("extra_args holds")


OF_IMAGES = {"image_size": 896, "patch_size": 14, "embedding_length": 1152, "feed_forward_length": 4304}
HEADS_OF_IMAGES = {"attention.head_count": 16}
PROJECTOR = gguf("clip", {f"vision.{name}": value for name, value in (OF_IMAGES | HEADS_OF_IMAGES).items()}, (5 * MIB,))


def test_a_draft_model_and_a_projector_are_added() -> None:
    alone = server(llama_server_n_ctx=8192)
    both = server(llama_server_n_ctx=8192, llama_server_draft_model_path="draft.gguf")
    assert both.host.weights == 2 * alone.host.weights
    assert both.host.kv_cache == 2 * alone.host.kv_cache
    assert both.host.overhead == alone.host.overhead
    seeing = server({"m": llama_3_8b(), "b": PROJECTOR}, llama_server_mmproj="b", llama_server_n_ctx=8192)
    assert seeing.host.weights == alone.host.weights + 5 * MIB
    assert seeing.host.compute == alone.host.compute + (3 * 896**2 + (64 * 64 + 1) * 6 * 1152) * 4


@pytest.mark.parametrize(
    ("artifact", "words"),
    [
        (replace(llama_3_8b(), architecture="mamba"), "m: how the architecture 'mamba' keeps its context"),
        (replace(llama_3_8b(), architecture="rwkv7"), "how the architecture 'rwkv7'"),
        (replace(llama_3_8b(), fields={}), "does not tell its width, heads and blocks"),
        (replace(llama_3_8b(), fields={**llama_3_8b().fields, "llama.nextn_predict_layers": 1}), "several tokens"),
        (UnreadArtifact("a.gguf is not a GGUF file"), "a.gguf is not a GGUF file"),
        (SizedArtifact(5), "m is not a GGUF file"),
        (None, "m: was not read yet"),
    ],
)
def test_what_is_not_known_is_said(artifact: Artifact | None, words: str) -> None:
    assert words in reason("llama_server", artifact)
    assert words in reason("llama_cpp", artifact)


def test_a_context_that_nobody_tells_is_not_guessed() -> None:
    fields = {key: value for key, value in llama_3_8b().fields.items() if not key.endswith("context_length")}
    assert isinstance(predict_llama(replace(llama_3_8b(), fields=fields), LlamaLoad()), Unpredicted)
    assert isinstance(predict_llama(replace(llama_3_8b(), fields=fields), LlamaLoad(context=512)), Prediction)


FOLDER = HfFolder(17 * GIB, LLAMA_3_8B, {"bf16": 16 * GIB})


def test_vllm_takes_its_share_of_each_gpu() -> None:
    plain = predicted("vllm_serve", FOLDER, gpus=2)
    assert (plain.gpu_share, plain.gpus, plain.gpu.weights) == (0.92, 2, 8 * GIB)
    assert predicted("vllm", FOLDER, gpus=1, vllm_gpu_memory_utilization=0.3).gpu_share == 0.3
    assert predicted("vllm", None, vllm_model="org/name", gpus=1).gpu_share == 0.92, "whatever the model"


def test_vllm_with_a_cache_in_bytes_takes_what_it_needs() -> None:
    fields: dict[str, Any] = {"vllm_kv_cache_memory_bytes": 4 * GIB}
    one = predicted("vllm", FOLDER, gpus=1, **fields)
    assert (one.gpu_share, one.gpu.weights, one.gpu.kv_cache) == (None, 16 * GIB, 4 * GIB)
    two = predicted("vllm", FOLDER, gpus=2, **fields)
    assert (two.gpu.weights, two.gpu.kv_cache) == (8 * GIB, 4 * GIB), "the cache is each GPU's"
    assert two.gpu.compute < one.gpu.compute
    eager = predicted("vllm", FOLDER, gpus=1, vllm_enforce_eager=True, **fields)
    assert one.gpu.compute - eager.gpu.compute == 512 * MIB
    wide = predicted("vllm", HfFolder(GIB, LLAMA_3_8B, {"f32": GIB, "i32": MIB}), gpus=1, **fields)
    assert wide.gpu.weights == GIB // 2 + MIB
    assert predicted("vllm", FOLDER, gpus=1, vllm_dtype="float32", **fields).gpu.weights == 32 * GIB
    shared = predicted("vllm", FOLDER, gpus=1, vllm_gpu_memory_utilization=0.9, **fields)
    assert (shared.gpu_share, shared.gpu) == (0.9, one.gpu), "so much must be free, or vLLM does not start"
    assert "hub" in reason("vllm", None, vllm_model="org/name", gpus=1, vllm_kv_cache_memory_bytes=GIB)
    lora = {"vllm_lora_modules": {"french": "l"}}
    assert "vllm_lora_modules" in reason("vllm", FOLDER, gpus=1, **lora, **fields)
    assert predicted("vllm", FOLDER, gpus=1, **lora).gpu_share == 0.92, "they are within the share"
    draft = {"vllm_speculative_method": "draft_model", "vllm_speculative_model": "org/draft"}
    assert "org/draft" in reason("vllm", FOLDER, gpus=1, **draft, **fields)
    assert "extra_args" in reason("vllm", FOLDER, gpus=1, extra_args=["--gpu-memory-utilization=0.5"], **fields)


def test_gpus_that_share_layers_have_buffers_between_them() -> None:
    fields: dict[str, Any] = {"vllm_kv_cache_memory_bytes": 4 * GIB}
    alone = predicted("vllm", FOLDER, gpus=1, **fields).gpu
    apart = predicted("vllm", FOLDER, gpus=2, vllm_tensor_parallel_size=1, **fields).gpu
    assert alone.overhead == apart.overhead
    for count in (2, 4):
        # vllm-project/vllm#10511: 1.79 GiB beside PyTorch's own with one GPU, 3.58 with two, on H100s.
        assert predicted("vllm", FOLDER, gpus=count, **fields).gpu.overhead - alone.overhead == 1792 * MIB
    share = predicted("vllm", FOLDER, gpus=2)
    assert share.gpu.overhead - alone.overhead == 1792 * MIB, "they count against its share"


def test_vllm_without_a_gpu() -> None:
    assert "share of main memory" in reason("vllm", FOLDER)
    for fields in ({"vllm_kv_cache_memory_bytes": 2 * GIB}, {"env": {"VLLM_CPU_KVCACHE_SPACE": "2"}}):
        host = predicted("vllm", FOLDER, **fields).host
        assert (host.weights, host.kv_cache) == (16 * GIB, 2 * GIB)


def test_exllama_keeps_a_cache_of_fixed_size() -> None:
    fields: dict[str, Any] = {"gpus": 1, "exllama_cache_size": 16384}
    assert predicted("exllamav3", FOLDER, **fields).gpu.kv_cache == 16384 * 128 * KIB
    assert predicted("exllamav3", FOLDER, gpus=1).gpu.kv_cache == 8192 * 128 * KIB
    # 8 bits and a scale of 2 bytes for each 32 elements: 34 bytes, of 4 bits 18.
    quantised = predicted("exllamav3", FOLDER, exllama_cache_quant="8,4", **fields)
    assert quantised.gpu.kv_cache == 16384 * 32 * 1024 * (34 + 18) // 32
    assert predicted("exllamav3", FOLDER, exllama_cache_quant="8", **fields).gpu.kv_cache == 16384 * 32 * 2 * 1088
    two = predicted("exllamav3", FOLDER, **fields | {"gpus": 2, "exllama_tensor_parallel": True}).gpu
    assert (two.weights, two.kv_cache) == (8 * GIB, GIB)
    deepseek = LLAMA_3_8B | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    latent = HfFolder(GIB, deepseek, {"bf16": GIB})
    assert predicted("exllamav3", latent, **fields).gpu.kv_cache == 16384 * 32 * 576 * 2
    assert "latent" in reason("exllamav3", latent, exllama_cache_quant="8", **fields)


def test_exllama_divides_whole_layers_over_gpus() -> None:
    fields: dict[str, Any] = {"exllama_cache_size": 16384}
    one, two = (predicted("exllamav3", FOLDER, gpus=gpus, **fields).gpu for gpus in (1, 2))
    assert (one.weights, one.kv_cache) == (16 * GIB, 2 * GIB)
    assert two.weights == 8 * GIB + 16 * GIB // 32, "a GPU may be left by one of the 32 layers too early"
    assert two.kv_cache == GIB + 2 * GIB // 32
    assert (two.compute, two.overhead) == (one.compute, one.overhead), "each GPU computes its layers by itself"


def test_a_model_of_exllama_that_no_gpu_could_hold_alone_is_placed_on_two() -> None:
    forecast = predicted("exllamav3", FOLDER, gpus=2, exllama_cache_size=16384)
    needed_mib = -(-forecast.gpu.total // MIB)
    gpus = tuple(Gpu(f"GPU-{index}", index, "RTX", 12 * 1024) for index in (0, 1))
    definition = ENGINES["exllamav3"].definition.model_validate({"backend": "exllamav3", "model_path": "m", "gpus": 2})
    model = DesiredModel("m", definition, "exllamav3", "h", 1, Statement("file", 0.0, ""), gpu_count=2)
    observed = ObservedState(1.0, hosts=(Host(gpus=gpus),), requirements={"m": Requirement(needed_mib)})
    assert place_replica(model, observed, ClaimLedger()) == Placement({"GPU-0": needed_mib, "GPU-1": needed_mib})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        ({"mamba_d_state": 16}, "'mamba_d_state'"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": "32"}, "num_attention_heads"),
    ],
)
def test_layers_that_keep_something_else_are_not_guessed(change: dict[str, Any], words: str) -> None:
    folder = HfFolder(GIB, LLAMA_3_8B | change, {"bf16": GIB})
    assert words in reason("exllamav3", folder)


def test_a_file_that_is_kept_as_it_is() -> None:
    for backend, path in (("onnx", "a.onnx"), ("litert_lm", "a.litertlm")):
        assert predicted(backend, SizedArtifact(GIB), model_path=path).host == MemoryParts(
            GIB, overhead=WORKER_OVERHEAD
        )
        assert reason(backend, UnreadArtifact("gone"), model_path=path) == "gone"
    on_gpu = predicted("litert_lm", SizedArtifact(GIB), model_path="a.litertlm", gpus=1)
    assert (on_gpu.gpu, on_gpu.host.total) == (MemoryParts(GIB, overhead=CUDA_OVERHEAD), WORKER_OVERHEAD)


def test_ctranslate2_converts_what_it_loads() -> None:
    half = Ct2(GIB, {"f16": 2000}, {"f16": 200, "i32": 4})

    def weights(artifact: Artifact, **fields: Any) -> int:
        forecast = predicted("ct2", artifact, **fields)
        return forecast.gpu.weights or forecast.host.weights

    assert weights(half) == 4000 + 400 + 4, "a CPU computes with floats of 4 bytes"
    assert weights(half, gpus=1) == 2000 + 200 + 4
    assert weights(half, ct2_compute_type="int8") == 1000 + 400 + 4
    assert weights(half, ct2_compute_type="int8_float16", gpus=1) == 1000 + 200 + 4
    assert weights(half, ct2_compute_type="float32", gpus=1) == 4000 + 400 + 4
    assert weights(half, ct2_compute_type="auto") == 1000 + 400 + 4
    assert weights(Ct2(GIB, {"i8": 1000}, {"f32": 400}), ct2_compute_type="default") == 1400
    assert "model.bin" in reason("ct2", SizedArtifact(5))


# Single options.


def test_batches_and_whole_windows_count_as_their_arguments_do() -> None:
    for name, flag, value in (("n_batch", "-b", 256), ("n_ubatch", "-ub", 2048)):
        option: dict[str, Any] = {f"llama_server_{name}": value}
        by_argument = server(llama_server_n_ctx=8192, extra_args=[flag, str(value)])
        assert server(llama_server_n_ctx=8192, **option) == by_argument
    assert server(llama_server_n_ubatch=2048).host.compute > server().host.compute
    windows: dict[str, Any] = {"llama_server_n_ctx": 32768, "artifact": gemma()}
    assert server(**windows, llama_server_swa_full=True) == server(**windows, extra_args=["--swa-full"])


def test_an_adapter_is_beside_the_model() -> None:
    adapter = Gguf(50 * MIB, "llama", {}, (MIB,) * 32, 0, 0, 0, 0, False)
    artifacts = {"m": llama_3_8b(), "b.gguf": adapter, "c.gguf": adapter}
    fields: dict[str, Any] = {"llama_server_lora": ["b.gguf", "c.gguf"]}
    assert ENGINES["llama_server"].list_artifacts(define("llama_server", **fields)) == ("m", "b.gguf", "c.gguf")
    for gpus in (0, 1, 2):
        adapted, alone = server(artifacts, gpus=gpus, **fields), server(gpus=gpus)
        gpu, host = adapted.gpu.total - alone.gpu.total, adapted.host.total - alone.host.total
        assert (gpu, host) == ((64 * MIB, 0) if gpus else (0, 64 * MIB))
        scaled = server(artifacts, gpus=gpus, llama_server_lora_scales=[0.0, 2.0], **fields)
        assert scaled == adapted, "an adapter is loaded whatever its scale"
    unread = forecast_of("llama_server", {"m": llama_3_8b()}, gpus=1, **fields)
    assert "b.gguf: was not read yet" in str(unread)


def test_a_draft_model_has_layers_and_a_cache_of_its_own() -> None:
    fields: dict[str, Any] = {"gpus": 1, "llama_server_n_ctx": 8192, "llama_server_draft_model_path": "draft.gguf"}
    whole = server(**fields)
    assert server(**fields, llama_server_draft_n_gpu_layers=0).gpu.weights < whole.gpu.weights
    small = server(**fields, llama_server_draft_cache_type_k="q8_0", llama_server_draft_cache_type_v="q8_0")
    assert small.gpu.kv_cache == whole.gpu.kv_cache - GIB + GIB * 34 // 64
    simple = server(**fields, llama_server_spec_type="draft-simple")
    assert simple.gpu.weights == whole.gpu.weights


def test_a_projector_may_stay_on_the_host() -> None:
    artifacts = {"m": llama_3_8b(), "b": PROJECTOR}
    on_gpu, on_host = (
        server(artifacts, gpus=1, llama_server_mmproj="b", llama_server_mmproj_offload=offload)
        for offload in (True, False)
    )
    assert on_gpu.gpu.weights - on_host.gpu.weights == on_host.host.weights - on_gpu.host.weights == 5 * MIB


def test_speculation_without_a_draft_model_verifies_more_tokens_and_takes_no_weights() -> None:
    fields: dict[str, Any] = {"llama_server_n_ctx": 8192, "llama_server_n_ubatch": 2048}
    plain, repeating = server(**fields), server(**fields, llama_server_spec_type="ngram-mod")
    assert repeating.host.weights == plain.host.weights
    assert repeating.host.compute >= plain.host.compute
    for kind in ("draft-mtp", "draft-eagle3"):
        draft = {"llama_server_draft_model_path": "d.gguf", "llama_server_spec_type": kind}
        assert reason("llama_server", llama_3_8b(), **draft) == f"what the layers of {kind} take is not known"


@pytest.mark.parametrize(
    ("backend", "fields"),
    [
        ("llama_server", {"llama_server_n_cpu_moe": 3}),
        ("llama_server", {"llama_server_cpu_moe": True}),
        ("llama_server", {"llama_server_override_tensor": "exps=CPU"}),
        ("llama_server", {"llama_server_split_mode": "row"}),
        ("llama_server", {"llama_server_main_gpu": 1}),
        ("llama_server", {"llama_server_tensor_split": [3, 1]}),
        ("llama_server", {"llama_server_kv_offload": False}),
        ("vllm", {"vllm_cpu_offload_gb": 4}),
        ("vllm_serve", {"vllm_pipeline_parallel_size": 2}),
    ],
)
def test_options_that_no_formula_follows_leave_no_forecast(backend: str, fields: dict[str, Any]) -> None:
    artifact = llama_3_8b() if backend == "llama_server" else FOLDER
    assert reason(backend, artifact, gpus=2, **fields) == f"{next(iter(fields))} changes what is where"


def test_what_vllm_keeps_in_main_memory_and_computes_at_a_time_counts() -> None:
    fields: dict[str, Any] = {"vllm_kv_cache_memory_bytes": GIB}
    for gpus in (0, 1):
        plain = predicted("vllm", FOLDER, gpus=gpus, **fields)
        offloading = predicted("vllm", FOLDER, gpus=gpus, vllm_kv_offloading_size=2.5, **fields)
        assert offloading.host.kv_cache - plain.host.kv_cache == 5 * GIB // 2
    plain = predicted("vllm", FOLDER, gpus=1, **fields)
    wider = predicted("vllm", FOLDER, gpus=1, vllm_max_num_batched_tokens=16384, **fields)
    assert wider.gpu.compute - plain.gpu.compute == 8192 * 3 * (4096 + 14336) * 2


def test_a_shifted_context_cuts_off_the_beginning_of_prompts() -> None:
    engine, artifacts = ENGINES["llama_server"], {"m": llama_3_8b(longest_token=64)}
    plain, shifted = (define("llama_server", llama_server_context_shift=shift) for shift in (False, True))
    assert (engine.longest_token(plain, artifacts), engine.longest_token(shifted, artifacts)) == (64, None)


def test_kept_states_are_predicted_as_a_second_cache_in_main_memory() -> None:
    fields: dict[str, Any] = {"gguf_n_ctx": 4096, "gpus": 1}
    plain, keeping = (predicted("llama_cpp", llama_3_8b(), session_cache=kept, **fields) for kept in (None, 3))
    assert keeping.gpu == plain.gpu
    assert keeping.host.total - plain.host.total == plain.gpu.kv_cache > 0
    assert (plain.host_grows, keeping.host_grows) == (False, True)
