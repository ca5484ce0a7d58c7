"""What a loaded engine reports, compared with what its definition declares."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contract.desired import Definition
from controller.engines import ENGINES
from controller.engines.base import Engine, FigureGap, pad_context
from controller.state import AppliedFigures

TOKENS = st.integers(1, 2**20)
SLOTS = st.integers(1, 64)
TYPES = st.sampled_from(["f16", "q8_0", "q4_0"])
FP8 = ("fp8", "fp8_e4m3")


def optional(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


def define(backend: str, **fields: Any) -> Definition:
    definition: Definition = ENGINES[backend].definition.model_validate(
        {"backend": backend, "model_path": "m"} | fields
    )
    return definition


def definitions(backend: str, **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Definition]:
    return optional(target_inflight=SLOTS, **strategies).map(lambda values: define(backend, **values))


DEFINITIONS = st.one_of(
    definitions(
        "llama_server",
        llama_server_n_ctx=TOKENS,
        llama_server_spec_type=st.sampled_from(["draft-mtp", "ngram-simple"]),
        llama_server_embedding=st.booleans(),
    ),
    definitions("llama_cpp", gguf_n_ctx=TOKENS, gguf_type_k=TYPES, gguf_type_v=TYPES),
    definitions(
        "exllamav3",
        exllama_cache_size=st.integers(1, 64).map(lambda pages: 256 * pages),
        exllama_max_rq_tokens=TOKENS,
        exllama_cache_quant=st.sampled_from(["8", "8,4"]),
    ),
    definitions("ct2", ct2_max_tokens=TOKENS, ct2_inter_threads=SLOTS),
    definitions("onnx", onnx_max_tokens=TOKENS),
    definitions("litert_lm", litert_lm_max_tokens=TOKENS),
    definitions(
        "vllm",
        vllm_max_model_len=TOKENS,
        vllm_kv_cache_dtype=st.sampled_from(["auto", "fp8", "fp8_e4m3", "bfloat16"]),
        vllm_kv_cache_memory_bytes=TOKENS,
        vllm_gpu_memory_utilization=st.sampled_from([0.5, 0.9]),
        vllm_enable_prefix_caching=st.booleans(),
        vllm_speculative_method=st.just("mtp"),
    ),
)
FIGURES = st.builds(
    AppliedFigures,
    context_length=st.none() | TOKENS,
    trained_context_length=st.none() | TOKENS,
    slots=st.none() | SLOTS,
    cache_type_k=st.none() | TYPES | st.sampled_from(["auto", "fp8", "8"]),
    cache_type_v=st.none() | TYPES | st.sampled_from(["auto", "fp8", "8"]),
    speculates=st.none() | st.booleans(),
    prefix_caching=st.none() | st.booleans(),
    kv_cache_bytes=st.none() | TOKENS,
    gpu_share=st.none() | st.sampled_from([0.5, 0.9, 0.92]),
)


def engine_of(definition: Definition) -> Engine[Any]:
    assert definition.backend is not None
    return ENGINES[definition.backend]


def compare(definition: Definition, applied: AppliedFigures) -> tuple[FigureGap, ...]:
    return engine_of(definition).compare_figures(definition, applied)


def as_declared(definition: Definition) -> AppliedFigures:
    """What an engine reports that applied all that is declared."""
    engine, values = engine_of(definition), definition.model_dump()
    context = engine.context_length(definition)
    if definition.backend in ("llama_server", "llama_cpp") and context is not None:
        context = pad_context(context)
    size, limit = values.get("exllama_cache_size"), values.get("exllama_max_rq_tokens")
    if size is not None:
        context = min(size - 1, limit or size)
    bits = (values.get("exllama_cache_quant") or "").partition(",")
    cache_type = values.get("vllm_kv_cache_dtype")
    method = values.get("vllm_speculative_method") or values.get("llama_server_spec_type")
    return AppliedFigures(
        context_length=context,
        slots=engine.target_inflight(definition),
        cache_type_k=values.get("gguf_type_k") or bits[0] or cache_type,
        cache_type_v=values.get("gguf_type_v") or bits[2] or bits[0] or cache_type,
        speculates=method is not None,
        prefix_caching=values.get("vllm_enable_prefix_caching"),
        kv_cache_bytes=values.get("vllm_kv_cache_memory_bytes"),
        gpu_share=values.get("vllm_gpu_memory_utilization"),
    )


@given(DEFINITIONS)
def test_an_engine_that_reports_nothing_makes_no_gap(definition: Definition) -> None:
    assert compare(definition, AppliedFigures()) == ()


@given(DEFINITIONS)
def test_an_engine_that_applies_what_is_declared_makes_no_gap(definition: Definition) -> None:
    assert compare(definition, as_declared(definition)) == ()


@given(DEFINITIONS, FIGURES)
def test_a_gap_names_a_field_of_the_definition_once_with_two_values_that_differ(
    definition: Definition, applied: AppliedFigures
) -> None:
    gaps = compare(definition, applied)
    assert compare(definition, applied) == gaps, "the same input, the same answer"
    names = [gap.field for gap in gaps]
    assert len(set(names)) == len(names)
    assert set(names) <= set(type(definition).model_fields)
    assert all(gap.declared != gap.applied and None not in (gap.declared, gap.applied) for gap in gaps)


@given(DEFINITIONS, FIGURES, st.data())
def test_an_engine_that_reports_less_never_makes_another_gap(
    definition: Definition, applied: AppliedFigures, data: st.DataObject
) -> None:
    names = [field.name for field in fields(AppliedFigures)]
    # What llama-server trains its model with only explains a context length that is too short.
    hidden = data.draw(st.sets(st.sampled_from([each for each in names if each != "trained_context_length"])))
    assume("slots" not in hidden or definition.backend != "llama_server")
    fewer = compare(definition, replace(applied, **dict.fromkeys(hidden)))
    assert set(fewer) <= set(compare(definition, applied))


@given(DEFINITIONS, st.data())
def test_a_context_length_below_the_declared_one_is_a_gap_with_both(
    definition: Definition, data: st.DataObject
) -> None:
    applied, declared = as_declared(definition), engine_of(definition).context_length(definition)
    assume(applied.context_length is not None and declared is not None)
    assert applied.context_length is not None
    assert declared is not None
    bound = min(applied.context_length, declared)
    told = data.draw(st.integers(0, bound - 1))
    [gap] = compare(definition, replace(applied, context_length=told))
    assert (gap.declared, gap.applied) == (bound, told)


@given(st.sampled_from(["llama_server", "exllamav3"]), st.integers(2, 16), st.data())
def test_fewer_slots_than_declared_are_a_gap(backend: str, declared: int, data: st.DataObject) -> None:
    definition = define(backend, target_inflight=declared)
    told = data.draw(st.integers(1, declared - 1))
    assert compare(definition, AppliedFigures(slots=told)) == (FigureGap("target_inflight", declared, told),)


@pytest.mark.parametrize(("slots", "is_gap"), [(1, True), (3, True), (4, False)])
def test_a_cache_beyond_the_training_context_is_applied_where_the_slots_can_fill_it(slots: int, is_gap: bool) -> None:
    definition = define("llama_server", llama_server_n_ctx=16384, target_inflight=slots)
    applied = AppliedFigures(context_length=4096, trained_context_length=4096, slots=slots)
    gaps = (FigureGap("llama_server_n_ctx", 16384, 4096),) if is_gap else ()
    assert compare(definition, applied) == gaps


@pytest.mark.parametrize(
    ("speculates", "fields_", "gap"),
    [
        (False, {"llama_server_spec_type": "draft-mtp"}, ("draft-mtp", "none")),
        (False, {"llama_server_draft_model_path": "d"}, ("draft-simple", "none")),
        (True, {}, ("none", "on")),
        (True, {"extra_args": ["--spec-type", "ngram-simple"]}, None),
        (True, {"env": {"LLAMA_ARG_SPEC_TYPE": "ngram-simple"}}, None),
        (False, {"llama_server_spec_type": "draft-mtp", "llama_server_embedding": True}, None),
    ],
)
def test_speculation_of_llama_server(speculates: bool, fields_: dict[str, Any], gap: tuple[str, str] | None) -> None:
    expected = () if gap is None else (FigureGap("llama_server_spec_type", *gap),)
    assert compare(define("llama_server", **fields_), AppliedFigures(speculates=speculates)) == expected


@pytest.mark.parametrize("declared", FP8)
@pytest.mark.parametrize("told", [*FP8, "auto"])
def test_two_words_of_vllm_for_one_data_type_are_equal(declared: str, told: str) -> None:
    gaps = (FigureGap("vllm_kv_cache_dtype", declared, told),) if told == "auto" else ()
    applied = AppliedFigures(cache_type_k=told, cache_type_v=told)
    assert compare(define("vllm", vllm_kv_cache_dtype=declared), applied) == gaps


def test_vllm_that_speculates_undeclared_is_a_gap() -> None:
    expected = (FigureGap("vllm_speculative_method", "none", "on"),)
    assert compare(define("vllm"), AppliedFigures(speculates=True)) == expected


@pytest.mark.parametrize(
    ("backend", "field", "declared", "extra_args", "applied"),
    [
        ("llama_server", "llama_server_n_ctx", 4096, ["-c", "512"], 512),
        ("llama_server", "llama_server_n_ctx", 4096, ["--no-kv-unified"], 1024),
        ("ct2", "ct2_max_tokens", 512, ["--max-tokens=64"], 64),
        ("vllm", "vllm_max_model_len", 512, ["--max_model_len=64"], 64),
        ("vllm", "vllm_max_model_len", 512, ["--config", "/f.yaml"], 64),
    ],
)
def test_what_extra_args_set_is_no_gap(
    backend: str, field: str, declared: int, extra_args: list[str], applied: int
) -> None:
    figures = AppliedFigures(context_length=applied)
    assert compare(define(backend, **{field: declared, "extra_args": extra_args}), figures) == ()
    assert compare(define(backend, **{field: declared}), figures) != ()
