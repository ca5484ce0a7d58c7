"""Laws of the formulas of memory, for models of any shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.artifacts.heads import Gguf
from controller.engines import ENGINES
from controller.engines.base import ClaimedGpu, RenderContext
from controller.engines.memory import GGML_BLOCKS, LlamaLoad, Prediction, beside_share_mib, predict_llama, row_bytes
from tests.support.campaign import campaign_count

BLOCK: Final = 1_000_003
ORDER: Final = ("q4_0", "q5_0", "q8_0", "f16", "f32")


@st.composite
def models(draw: st.DrawFn) -> Gguf:
    name = draw(st.sampled_from(["llama", "qwen3moe", "gemma2", "gemma3"]))
    heads, group, head = draw(st.tuples(st.integers(1, 16), st.sampled_from([1, 2, 4]), st.sampled_from([32, 64, 128])))
    fields = {
        "context_length": 4096,
        "embedding_length": draw(st.integers(1, 32)) * 64,
        "feed_forward_length": draw(st.integers(1, 64)) * 64,
        "attention.head_count": heads * group,
        "attention.head_count_kv": heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.sliding_window": 512,
        "expert_used_count": draw(st.integers(0, 8)),
    }
    embedding, output, rest = draw(st.tuples(*[st.integers(1, 10**9)] * 3))
    return Gguf(
        size=1,
        architecture=name,
        fields={f"{name}.{key}": value for key, value in fields.items()},
        blocks=(BLOCK,) * draw(st.integers(1, 40)),
        embedding=embedding,
        output=output,
        rest=rest,
        vocabulary=32000,
        has_tied_embeddings=draw(st.booleans()),
    )


loads = st.builds(
    LlamaLoad,
    context=st.integers(1, 200_000),
    sequences=st.integers(1, 8),
    outputs=st.sampled_from([None, 1, 8]),
    flash_attention=st.booleans(),
    type_k=st.sampled_from(ORDER),
    type_v=st.sampled_from(ORDER),
)


def told(model: Gguf, load: LlamaLoad) -> Prediction:
    forecast = predict_llama(model, load)
    assert isinstance(forecast, Prediction)
    return forecast


@settings(max_examples=campaign_count(40, 2_000))
@given(models(), loads, st.integers(1, 100_000))
def test_a_longer_context_never_takes_less(model: Gguf, load: LlamaLoad, more: int) -> None:
    shorter, longer = told(model, load).host, told(model, replace(load, context=(load.context or 0) + more)).host
    assert shorter.weights == longer.weights
    assert shorter.kv_cache <= longer.kv_cache
    assert shorter.compute <= longer.compute


@settings(max_examples=campaign_count(40, 2_000))
@given(models(), loads)
def test_weights_and_cache_grow_with_the_layers(model: Gguf, load: LlamaLoad) -> None:
    # Twelve layers are two periods of Gemma 3's pattern, and six of Gemma 2's.
    one, two, three = (told(replace(model, blocks=(BLOCK,) * count), load).host for count in (12, 24, 36))
    for part in ("weights", "kv_cache"):
        assert getattr(three, part) - getattr(two, part) == getattr(two, part) - getattr(one, part) > 0
    assert one.compute == two.compute == three.compute


@settings(max_examples=campaign_count(40, 2_000))
@given(models(), loads)
def test_a_finer_cache_takes_more(model: Gguf, load: LlamaLoad) -> None:
    sizes = [told(model, replace(load, type_k=kind, type_v=kind)).host.kv_cache for kind in ORDER]
    assert sizes == sorted(set(sizes))


@settings(max_examples=campaign_count(40, 2_000))
@given(models(), loads, st.integers(0, 50))
def test_what_leaves_the_host_is_on_the_gpu(model: Gguf, load: LlamaLoad, layers: int) -> None:
    alone = told(model, load).host
    split = told(model, replace(load, gpu_layers=layers, gpus=1))
    assert split.gpu.kv_cache + split.host.kv_cache == alone.kv_cache
    twice = model.embedding if model.has_tied_embeddings and layers else 0
    assert split.gpu.weights + split.host.weights == alone.weights + twice
    more = told(model, replace(load, gpu_layers=layers + 1, gpus=1))
    assert more.gpu.total >= split.gpu.total
    assert more.host.total <= split.host.total


@settings(max_examples=campaign_count(40, 2_000))
@given(models(), loads, st.integers(0, 50), st.integers(2, 5))
def test_the_fullest_of_several_gpus_holds_an_even_share_at_least_and_no_more_than_one_would(
    model: Gguf, load: LlamaLoad, layers: int, gpus: int
) -> None:
    one, several = (told(model, replace(load, gpu_layers=layers, gpus=count)) for count in (1, gpus))
    assert (several.host.weights, several.host.kv_cache) == (one.host.weights, one.host.kv_cache)
    assert several.gpu.weights <= one.gpu.weights
    assert several.gpu.kv_cache <= one.gpu.kv_cache
    assert gpus * several.gpu.total >= one.gpu.weights + one.gpu.kv_cache
    whole = layers > len(model.blocks)
    assert whole or several.gpu.compute <= one.gpu.compute, "only a whole model has its inputs several times"
    assert (several.host.compute > one.host.compute) is whole


def test_blocks_are_ggml_s() -> None:
    import gguf

    for name, block in GGML_BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]] == block
    assert row_bytes("q8_0", 64) == 68


@settings(max_examples=campaign_count(30, 2_000))
@given(
    claim=st.integers(1, 200_000),
    spare=st.integers(0, 300_000),
    gpus=st.integers(1, 8),
    sequences=st.integers(1, 300),
    eager=st.booleans(),
)
def test_the_share_of_vllm_and_what_is_beside_it_are_within_the_claim(
    claim: int, spare: int, gpus: int, sequences: int, eager: bool
) -> None:
    fields = {"backend": "vllm_serve", "model_path": "m", "gpus": gpus, "vram_mib": claim, "target_inflight": sequences}
    engine = ENGINES["vllm_serve"]
    definition = engine.definition.model_validate({**fields, "vllm_enforce_eager": eager})
    claimed = tuple(ClaimedGpu(f"GPU-{number}", claim, claim + spare + number) for number in range(gpus))
    root, cache = PurePosixPath("/models"), PurePosixPath("/cache")
    context = RenderContext("docker", "m", root, "0.0.0.0", 8000, cache, gpus=claimed)
    beside = beside_share_mib(claim, gpus, {}, sequences=sequences, eager=eager)
    assert beside <= beside_share_mib(claim + 1, gpus, {}, sequences=sequences + 1, eager=eager)
    if claim <= beside:
        with pytest.raises(ValueError, match=f"^vram_mib: {claim} MiB leave nothing .* up to {beside} MiB"):
            engine.render_command(definition, context)
        return
    argv = engine.render_command(definition, context).argv
    share, total = float(argv[argv.index("--gpu-memory-utilization") + 1]), claim + spare
    assert share == 0.0001 or share * total + beside <= claim
    assert share * total + beside > claim - total / 10_000, "rounded down by a step at most"


@settings(max_examples=campaign_count(60, 3_000))
@given(
    declared=st.none() | st.floats(0.01, 1),
    total=st.integers(4_000, 300_000),
    driver=st.integers(0, 1_000),
    gpus=st.integers(1, 8),
    sequences=st.integers(1, 300),
    eager=st.booleans(),
    env=st.sampled_from([{}, {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}]),
)
def test_a_declared_share_of_vllm_and_its_own_are_ceilings(
    declared: float | None, total: int, driver: int, gpus: int, sequences: int, eager: bool, env: dict[str, str]
) -> None:
    """`driver`: MiB of a GPU that CUDA does not count. What vLLM holds beside its share is not in it."""
    fields = {"backend": "vllm_serve", "model_path": "m", "gpus": gpus, "target_inflight": sequences, "env": env}
    fields |= {"vllm_enforce_eager": eager, "vllm_gpu_memory_utilization": declared}
    engine = ENGINES["vllm_serve"]
    definition = engine.definition.model_validate(fields)
    claimed = tuple(ClaimedGpu(f"GPU-{number}", total, total + number) for number in range(gpus))
    context = RenderContext("docker", "m", PurePosixPath("/m"), "0.0.0.0", 8000, PurePosixPath("/c"), gpus=claimed)
    ceiling = (0.92 if declared is None else declared) * total
    beside = beside_share_mib(int(ceiling), gpus, env, sequences=sequences, eager=eager)
    argv = engine.render_command(definition, context).argv
    assert argv.count("--gpu-memory-utilization") == 1
    share = float(argv[argv.index("--gpu-memory-utilization") + 1])
    assert share == 0.0001 or share * (total - driver) + beside <= ceiling
    assert share * total + beside > ceiling - 1 - total / 10_000, "rounded down by a step at most"
    predicted = engine.predict_memory(definition, {})
    assert isinstance(predicted, Prediction)
    assert predicted.gpu_share == (0.92 if declared is None else declared), "the replica claims what is declared"
    without = engine.render_command(definition, replace(context, gpus=())).argv
    compared = engine.compared_arguments(definition, argv)
    assert compared == engine.compared_arguments(definition, without), "no engine is replaced for it"
