"""Every command line that is rendered for vLLM is taken by vLLM's own parser, and means what the definition says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.desired.resolve import with_params
from controller.engines import ENGINES
from controller.engines.base import ClaimedGpu, RenderContext
from controller.engines.memory import beside_share_mib
from controller.engines.options import Flag, JsonFlag, PathFlag, Switch, list_options
from controller.engines.vllm_fields import VllmFields
from tests.support.campaign import campaign_count
from tests.support.installed_engines import Parser, parser
from tests.support.option_values import CONTENT, NAMES, TEXTS, WORDS, tried_options

pytestmark = [pytest.mark.engines, pytest.mark.vllm]

MODELS = PurePosixPath("/models")
CACHE_TYPES = st.sampled_from(["auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16"])
COUNTS = st.integers(1, 2**40)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    **tried_options(VllmFields),
    "vllm_kv_cache_dtype": CACHE_TYPES,
    "vllm_kv_cache_memory_bytes": COUNTS,
    "vllm_mm_processor_kwargs": st.dictionaries(TEXTS, CONTENT, max_size=3),
    "vllm_limit_mm_per_prompt": st.dictionaries(st.sampled_from(["image", "video", "audio"]), st.integers(0, 9)),
    "vllm_speculative_model": NAMES,
    "vllm_speculative_config": st.dictionaries(WORDS.map("x_{}".format), CONTENT, max_size=3),
    "vllm_num_speculative_tokens": st.integers(1, 64),
    "prompt_format": st.sampled_from(["generic", "qwen3_template"]),
    "target_inflight": st.integers(1, 4096),
    "gpus": st.integers(0, 64),
    "vram_mib": st.integers(5_000, 200_000),
}
LOADS: dict[str, st.SearchStrategy[Any]] = {
    "vllm_max_model_len": st.integers(256, 2**40),
    "vllm_kv_cache_dtype": CACHE_TYPES,
    "vllm_kv_cache_memory_bytes": st.integers(2**28, 2**50),
    "vllm_max_pixels": st.integers(200704, 2**40),
    "vllm_speculative_method": st.none() | WORDS,
    "vllm_speculative_model": st.none() | NAMES,
    "vllm_num_speculative_tokens": st.integers(1, 64),
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    with parser(tmp_path_factory.mktemp("parser")) as started:
        yield started


def test_every_field_of_a_load_is_tried() -> None:
    assert set(LOADS) == {field.name for field in ENGINES["vllm"].load_fields}


@st.composite
def definitions(draw: st.DrawFn) -> VllmFields:
    backend = draw(st.sampled_from(["vllm", "vllm_serve"]))
    fields = draw(st.fixed_dictionaries({}, optional=SHARED))
    if gpus := fields.get("gpus", 0):
        for name in ("vllm_tensor_parallel_size", "vllm_pipeline_parallel_size"):
            if name in fields:
                fields[name] = min(fields[name], gpus)
        if fields.get("vllm_tensor_parallel_size", 1) * fields.get("vllm_pipeline_parallel_size", 1) > gpus:
            del fields["vllm_pipeline_parallel_size"]
    named = draw(st.fixed_dictionaries({"model_path": NAMES}) | st.fixed_dictionaries({"vllm_model": NAMES}))
    declared = ENGINES[backend].definition.model_validate({"backend": backend, **named, **fields})
    load = draw(st.fixed_dictionaries({}, optional=LOADS))
    if load.get("vllm_speculative_method", "") is None:
        load = {
            name: each for name, each in load.items() if name == "vllm_speculative_method" or "speculat" not in name
        }
    assert ENGINES[backend].load_faults(load) == []
    loaded = with_params(declared, load)
    assert isinstance(loaded, VllmFields)
    return loaded


@settings(max_examples=campaign_count(30, 2_000))
@given(definition=definitions(), runtime=st.sampled_from(["docker", "process"]), served=NAMES, data=st.data())
def test_the_parser_takes_it_and_means_the_same(
    real: Parser, definition: VllmFields, runtime: Any, served: str, data: st.DataObject
) -> None:
    served = f"m/{served}"  # no name of a LoRA module
    claim = definition.vram_mib or 1000
    count = definition.gpu_count or 0
    totals = data.draw(st.lists(st.integers(claim, 4 * claim), min_size=count, max_size=count))
    gpus = tuple(ClaimedGpu(f"GPU-{number}", claim, total) for number, total in enumerate(totals))
    programs = {"python": "/bin/python"}
    ctx = RenderContext(
        runtime, served, MODELS, "0.0.0.0", 8000, PurePosixPath("/cache"), programs, MappingProxyType({}), gpus
    )
    assert definition.backend is not None
    argv = list(ENGINES[definition.backend].render_command(definition, ctx).argv)
    start = argv.index("serve") if definition.backend == "vllm_serve" else argv.index("--")
    told = real.parse(["serve", *argv[start + 1 :]])
    assert isinstance(told, dict), told
    assert told["model_tag"] == (definition.vllm_model or str(MODELS / str(definition.model_path)))
    assert (told["host"], told["port"], told["served_model_name"]) == ("0.0.0.0", 8000, [served])
    assert told["max_num_seqs"] == (definition.target_inflight or 64)
    groups = definition.vllm_pipeline_parallel_size or 1
    assert told["tensor_parallel_size"] == (
        definition.vllm_tensor_parallel_size or (definition.gpu_count or groups) // groups
    )
    assert_same_values(definition, told, min(totals, default=None))
    assert_same_modules(definition.vllm_lora_modules or {}, told)
    assert_same_content(definition, told)


def assert_same_modules(modules: dict[str, str], told: dict[str, Any]) -> None:
    """LoRA modules, which the parser turns into objects of its own."""
    starts = [f"LoRAModulePath(name={name!r}, path={str(MODELS / path)!r}, " for name, path in modules.items()]
    found = told["lora_modules"] or []
    assert [each[: len(start)] for each, start in zip(found, starts, strict=True)] == starts
    assert told["enable_lora"] is (True if modules else None)


def assert_same_values(definition: VllmFields, told: dict[str, Any], smallest_mib: int | None) -> None:
    for option in list_options(type(definition)):
        said = getattr(definition, option.name)
        match option.flag:
            case Flag(name) if said is not None:
                assert told[_destination(name)] == said, name
            case Switch(on) if said is not None:
                assert told[_destination(on)] == said, on
            case JsonFlag(name) if said and name != "--limit-mm-per-prompt":
                assert told[_destination(name)] == said, name
            case PathFlag(name) if isinstance(said, str):
                assert told[_destination(name)] == str(MODELS / said), name
    declared, share = definition.vllm_gpu_memory_utilization, told["gpu_memory_utilization"]
    if not definition.gpu_count:
        assert share == (0.92 if declared is None else declared)
    elif definition.vllm_kv_cache_memory_bytes is not None:
        assert share == (0.01 if declared is None else declared)
    else:
        assert smallest_mib is not None
        by_vram = definition.vram_mib is not None and declared is None
        ceiling_mib = definition.vram_mib if by_vram else int((declared or 0.92) * smallest_mib)
        assert ceiling_mib is not None
        sequences, eager = definition.target_inflight or 64, bool(definition.vllm_enforce_eager)
        beside_mib = beside_share_mib(
            ceiling_mib, definition.gpu_count, definition.env, sequences=sequences, eager=eager
        )
        most = (ceiling_mib - beside_mib) / smallest_mib
        assert max(most - 0.0001, 0.00005) < share <= max(most, 0.0001)
    assert told["enable_auto_tool_choice"] == (definition.vllm_tool_call_parser is not None)
    assert told["runner"] == ("pooling" if definition.vllm_embedding else "auto")


def _destination(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def assert_same_content(definition: VllmFields, told: dict[str, Any]) -> None:
    processor = dict(definition.vllm_mm_processor_kwargs or {})
    if definition.vllm_max_pixels is not None:
        processor["max_pixels"] = definition.vllm_max_pixels
    assert (told["mm_processor_kwargs"] or {}) == processor
    limits = told["limit_mm_per_prompt"]
    assert {kind: limit if isinstance(limit, int) else limit["count"] for kind, limit in limits.items()} == (
        definition.vllm_limit_mm_per_prompt or {}
    )
    speculation = told["speculative_config"]
    if definition.vllm_speculative_method is None:
        assert speculation is None
    else:
        assert speculation["method"] == definition.vllm_speculative_method
        assert speculation["num_speculative_tokens"] == (definition.vllm_num_speculative_tokens or 1)
        assert speculation.get("model") == definition.vllm_speculative_model
        assert speculation.items() >= (definition.vllm_speculative_config or {}).items()


def test_extra_arguments_rule(real: Parser) -> None:
    fields = {"backend": "vllm_serve", "model_path": "m", "extra_args": ["--max-num-seqs", "7", "--seed", "3"]}
    ctx = RenderContext("docker", "m", PurePosixPath("/m"), "h", 1, PurePosixPath("/c"))
    argv = ENGINES["vllm_serve"].render_command(ENGINES["vllm_serve"].definition.model_validate(fields), ctx).argv
    told = real.parse(argv[1:])
    assert isinstance(told, dict)
    assert (told["max_num_seqs"], told["seed"]) == (7, 3)


def test_the_parser_refuses_what_is_wrong(real: Parser) -> None:
    refused = real.parse(["serve", "m", "--no-such-flag"])
    assert refused == "unrecognized arguments: --no-such-flag"
