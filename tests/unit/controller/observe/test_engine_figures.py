"""What engines report of their own configuration, in answers as the engines give them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.observe.engine_figures import MODELS_PATH, PROPS_PATH, SLOTS_PATH, parse_figures
from controller.schema.applied_figures import AppliedFigures

METRICS = "/metrics"
VLLM_METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.85",kv_cache_memory_bytes="None",num_gpu_blocks="512",prefix_caching_hash_algo="sha256"} 1.0
vllm:num_requests_running{engine="0",model_name="m"} 0.0
"""


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ('{"data": [{"id": "m", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}}]}', 4096),
        ('{"data": [{"id": "m", "max_model_len": 32768}]}', 32768),
        ('{"data": [{"id": "m", "max_model_len": null, "meta": {"n_ctx": 4096}}]}', 4096),
        ('{"data": [{"id": "m"}]}', None),
        ('{"data": [{"id": "m", "meta": null}]}', None),
        ('{"data": []}', None),
        ('{"data": [5]}', None),
        ('{"data": [{"meta": {"n_ctx": true}}]}', None),
        ('{"data": [{"meta": {"n_ctx": 0}}]}', None),
        ('{"data": [{"meta": {"n_ctx": "4096"}}]}', None),
        ("[]", None),
        ("<html>", None),
        ("[" * 100_000, None),
    ],
)
def test_the_context_length_in_a_list_of_models(text: str, length: int | None) -> None:
    assert parse_figures(MODELS_PATH, text).context_length == length


def test_a_list_of_models_tells_what_a_worker_or_llama_server_applies() -> None:
    worker = '{"data": [{"meta": {"n_ctx": 512, "slots": 1, "cache_type_k": "q8_0", "cache_type_v": "f16"}}]}'
    assert parse_figures(MODELS_PATH, worker) == AppliedFigures(
        context_length=512, slots=1, cache_type_k="q8_0", cache_type_v="f16"
    )
    llama = '{"data": [{"id": "m", "meta": {"n_ctx": 4096, "n_ctx_train": 4096, "n_embd": 128}}]}'
    assert parse_figures(MODELS_PATH, llama) == AppliedFigures(context_length=4096, trained_context_length=4096)


def test_llama_server_tells_its_slots_and_whether_they_speculate() -> None:
    settings = '{"params": {"speculative.types": "none"}, "n_ctx": 4096}'
    props = f'{{"default_generation_settings": {settings}, "total_slots": 4}}'
    assert parse_figures(PROPS_PATH, props) == AppliedFigures(context_length=4096, slots=4)
    slots = '[{"id": 0, "n_ctx": 4096, "speculative": true}, {"id": 1, "n_ctx": 4096, "speculative": true}]'
    assert parse_figures(SLOTS_PATH, slots) == AppliedFigures(speculates=True)
    assert parse_figures(SLOTS_PATH, slots.replace("true", "false")) == AppliedFigures(speculates=False)


@pytest.mark.parametrize("text", ["[]", "{}", "[5]", '[{"speculative": "yes"}]', '[{"speculative": []}]', "<html>"])
def test_slots_that_do_not_tell_whether_they_speculate_are_unknown(text: str) -> None:
    assert parse_figures(SLOTS_PATH, text) == AppliedFigures()


def test_vllm_tells_its_cache_and_that_it_speculates_but_never_that_it_does_not() -> None:
    figures = AppliedFigures(cache_type_k="fp8", cache_type_v="fp8", prefix_caching=True, gpu_share=0.85)
    assert parse_figures(METRICS, VLLM_METRICS) == figures
    speculating = VLLM_METRICS + 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0\n'
    assert parse_figures(METRICS, speculating).speculates is True
    sized = VLLM_METRICS.replace('kv_cache_memory_bytes="None"', 'kv_cache_memory_bytes="1073741824"')
    assert parse_figures(METRICS, sized).kv_cache_bytes == 2**30


@given(path=st.sampled_from([MODELS_PATH, PROPS_PATH, SLOTS_PATH, METRICS]), text=st.text())
def test_any_text_is_read_without_an_error(path: str, text: str) -> None:
    assert parse_figures(path, text) == AppliedFigures()


NAMES = st.sampled_from(["data", "meta", "n_ctx", "slots", "total_slots", "default_generation_settings", "speculative"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(path=st.sampled_from([MODELS_PATH, PROPS_PATH, SLOTS_PATH]), answer=JSON)
def test_any_json_gives_positive_counts_or_none(path: str, answer: object) -> None:
    figures = parse_figures(path, json.dumps(answer))
    assert all(count is None or count > 0 for count in (figures.context_length, figures.slots))
    assert figures.speculates in (None, True, False)
