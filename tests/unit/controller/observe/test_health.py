"""From probes to health, and what engines report of themselves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.observe.health import (
    MODELS_PATH,
    PREEMPTION_HOLD_S,
    PROPS_PATH,
    SLOTS_PATH,
    STALL_S,
    UNHEALTHY_AFTER_S,
    ProbedHealth,
    ProbeOutcome,
    RuntimeSilence,
    apply_outcome,
    extend_silence,
    judge_rendering,
    metric_sum,
    parse_cache_tokens,
    parse_figures,
)
from controller.state import AppliedFigures, Health, IdleSpan

WELL = ProbeOutcome(healthy=True, generated=True, busy_requests=0, progress=10)
BUSY = ProbeOutcome(healthy=True, busy_requests=2, progress=10)
UNTOLD = ProbeOutcome(healthy=True, generated=True, busy_requests=0)
MUTE = ProbeOutcome(healthy=False, error="health: refused")
AWAY = ProbeOutcome(healthy=False, reached=False)
ASLEEP = ProbeOutcome(healthy=True, asleep=True)


def probe(*steps: tuple[ProbeOutcome, float], first: ProbeOutcome = WELL) -> ProbedHealth:
    """The health after probes at these times, the first of which was at 0."""
    health = apply_outcome(ProbedHealth(), first, 0.0)
    for outcome, now in steps:
        health = apply_outcome(health, outcome, now)
    return health


STEPS: dict[str, tuple[list[tuple[ProbeOutcome, float]], Health]] = {
    "one failed probe": ([(MUTE, 1.0)], Health.FAILING),
    "a good one after it": ([(MUTE, 1.0), (WELL, 2.0)], Health.READY),
    "silent": ([(MUTE, STALL_S - 1)], Health.FAILING),
    "silent for long": ([(MUTE, STALL_S)], Health.STALLED),
    "busy": ([(BUSY, STALL_S - 1)], Health.READY),
    "busy with progress": ([(BUSY, STALL_S - 1), (replace(BUSY, progress=11), STALL_S)], Health.READY),
    "busy without progress": ([(BUSY, STALL_S - 1), (BUSY, STALL_S)], Health.STALLED),
    "idle": ([(WELL, minute * 60.0) for minute in range(1, 10)], Health.READY),
    "away": ([(AWAY, STALL_S - 1)], Health.FAILING),
    "away for long": ([(AWAY, STALL_S - 1), (AWAY, 10 * STALL_S)], Health.FAILING),
    "asleep": ([(ASLEEP, 1.0)], Health.SLEEPING),
    "asleep for long": ([(ASLEEP, minute * 60.0) for minute in range(1, 10)], Health.SLEEPING),
    "awake again": ([(ASLEEP, 2 * STALL_S), (BUSY, 2 * STALL_S + 1)], Health.READY),
    "silent after a long sleep": ([(ASLEEP, 2 * STALL_S), (MUTE, 3 * STALL_S - 1)], Health.FAILING),
    "silent for long after a sleep": ([(ASLEEP, 2 * STALL_S), (MUTE, 3 * STALL_S)], Health.STALLED),
    "dead and asleep": ([(replace(ASLEEP, dead=True), 1.0)], Health.DEAD),
    "dead by its own word": ([(ProbeOutcome(healthy=False, dead=True), 1.0)], Health.DEAD),
}


@pytest.mark.parametrize(("steps", "health"), STEPS.values(), ids=STEPS)
def test_health_of_what_was_ready(steps: list[tuple[ProbeOutcome, float]], health: Health) -> None:
    probed = probe(*steps)
    assert probed.health is health
    if steps[-1][0] is MUTE:
        assert probed.ready_since == 0.0


def test_ready_takes_health_and_one_token() -> None:
    waiting = probe(first=ProbeOutcome(healthy=True, generated=False, error="first token: HTTP 500"))
    assert (waiting.health, waiting.error) == (Health.STARTING, "first token: HTTP 500")
    ready = apply_outcome(waiting, WELL, 2.0)
    assert (ready.health, ready.ready_since) == (Health.READY, 2.0)


def test_a_clock_that_is_set_makes_no_engine_stalled_and_hides_none() -> None:
    probed = apply_outcome(probe(), BUSY, 0, uptime=0)
    ahead = apply_outcome(probed, BUSY, 40 * 86_400, uptime=5)
    assert ahead.health is Health.READY
    assert apply_outcome(ahead, BUSY, -3600, uptime=STALL_S).health is Health.STALLED


def test_an_engine_found_asleep_was_not_ready_for_this_controller_and_keeps_its_canary() -> None:
    found = probe(first=ASLEEP)
    assert (found.health, found.ready_since, found.canary, found.idle) == (Health.SLEEPING, None, None, None)
    loaded = probe((ASLEEP, 1.0), (WELL, 2.0), first=replace(WELL, canary="2, 3"))
    assert (loaded.health, loaded.ready_since, loaded.canary) == (Health.READY, 0.0, "2, 3")
    assert probe((replace(WELL, canary="5"), 1.0), first=replace(WELL, canary="2, 3")).canary == "5"


def test_how_long_it_is_idle_counts_from_when_its_probes_began() -> None:
    first = apply_outcome(probe(), WELL, 9.0, began_at=8.0)
    assert (first.idle, first.idle_span, first.probed_at) == (True, IdleSpan(0.0, 8.0), 8.0)
    assert apply_outcome(first, WELL, 12.5, began_at=12.0).idle_span == IdleSpan(0.0, 12.0)
    set_back = apply_outcome(apply_outcome(ProbedHealth(), WELL, 500.0), WELL, 100.0)
    assert set_back.idle_span == IdleSpan(100.0, 100.0), "from now on, where the clock was set back"
    assert probe((UNTOLD, 3.0), first=UNTOLD).idle_span == IdleSpan(0.0, 3.0), "without a figure of its work"


@pytest.mark.parametrize(
    ("outcome", "span"),
    [
        (replace(BUSY, busy_requests=1), None),
        (ProbeOutcome(healthy=True, progress=10), None),
        (ProbeOutcome(healthy=False), None),
        (AWAY, None),
        (replace(BUSY, busy_requests=0, progress=11), IdleSpan(1.0, 1.0)),
        (ProbeOutcome(healthy=True, busy_requests=0), IdleSpan(1.0, 1.0)),  # nobody knows what it did
    ],
    ids=["busy", "does not tell", "unwell", "away", "worked between two probes", "may have worked"],
)
def test_one_probe_that_does_not_find_it_idle_ends_that(outcome: ProbeOutcome, span: IdleSpan | None) -> None:
    broken = probe((outcome, 1.0))
    assert broken.idle_span == span
    if span is None:
        assert apply_outcome(broken, WELL, 2.0).idle_span == IdleSpan(2.0, 2.0)


def test_unknown_figures_are_not_idle() -> None:
    assert probe((ProbeOutcome(healthy=True, generated=True), 1.0)).idle is None


def test_metrics_are_summed_over_names_and_labels() -> None:
    text = '# HELP a x\na{slot="0"} 1\na{slot="1"} 2.5\nb 4\nab 100\n'
    assert metric_sum(text, ("a", "b")) == 7.5
    assert metric_sum(text, ("c",)) is None
    assert metric_sum("a nonsense\na 2e1\n", ("a",)) == 20.0, "what is no number is left out"


def test_a_figure_that_was_told_once_stays_until_another_is_told() -> None:
    first = probe(first=replace(UNTOLD, figures=AppliedFigures(context_length=4096, slots=4)))
    assert first.figures == AppliedFigures(context_length=4096, slots=4)
    assert apply_outcome(first, WELL, 1.0).figures == first.figures
    second = apply_outcome(first, replace(UNTOLD, figures=AppliedFigures(context_length=512)), 1.0)
    assert second.figures == AppliedFigures(context_length=512, slots=4)


def test_an_engine_counts_as_preempting_when_two_probes_in_a_row_see_it_and_ten_minutes_longer() -> None:
    health = probe()
    rounds: list[tuple[float, float | None, bool]] = [
        (2.0, 5.0, False),  # from before it was watched
        (4.0, 6.0, False),  # one burst
        (6.0, 6.0, False),
        (8.0, 9.0, False),
        (10.0, 9.5, True),
        (12.0, None, True),
        (12.0 + PREEMPTION_HOLD_S / 2, 10.0, True),  # and so the time begins again
        (11.0 + PREEMPTION_HOLD_S, 10.0, True),
        (12.0 + 1.5 * PREEMPTION_HOLD_S, 10.0, False),
    ]
    for now, preemptions, is_preempting in rounds:
        health = apply_outcome(health, replace(WELL, preemptions=preemptions, kv_cache_tokens=3072), now)
        assert health.is_preempting is is_preempting, now
    assert apply_outcome(health, WELL, 2000.0).kv_cache_tokens == 3072, "it holds for an engine's life"


VLLM_INFO = (
    'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",kv_cache_max_concurrency="3.0",'
    'kv_cache_size_tokens="%s",num_cpu_blocks="None",num_gpu_blocks="%s",sliding_window="None"} 1.0\n'
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (VLLM_INFO % ("3072", "24"), 3072),
        (VLLM_INFO % ("None", "24"), 3072),
        (VLLM_INFO % ("None", "None"), None),
        (VLLM_INFO % ("3072", "24") + VLLM_INFO % ("1024", "8"), 4096),
        ("# HELP vllm:cache_config_info Information\n", None),
        ("", None),
    ],
)
def test_the_tokens_of_a_cache_are_labels_of_an_info_metric(text: str, tokens: int | None) -> None:
    assert parse_cache_tokens(text, "vllm:cache_config_info") == tokens


METRICS = "/metrics"
VLLM_METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.85",kv_cache_memory_bytes="None",num_gpu_blocks="512",prefix_caching_hash_algo="sha256"} 1.0
vllm:num_requests_running{engine="0",model_name="m"} 0.0
"""


LENGTHS: dict[str, int | None] = {
    '{"data": [{"id": "m", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}}]}': 4096,
    '{"data": [{"id": "m", "max_model_len": 32768}]}': 32768,
    '{"data": [{"id": "m", "max_model_len": null, "meta": {"n_ctx": 4096}}]}': 4096,
    **{
        f'{{"data": [{{"meta": {meta}}}]}}': None
        for meta in ("null", '{"n_ctx": true}', '{"n_ctx": 0}', '{"n_ctx": "9"}')
    },
    **dict.fromkeys(('{"data": [{"id": "m"}]}', '{"data": []}', '{"data": [5]}', "[]", "<html>", "[" * 100_000)),
}


def test_the_context_length_in_a_list_of_models() -> None:
    assert {text: parse_figures(MODELS_PATH, text).context_length for text in LENGTHS} == LENGTHS


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


RENDERINGS: dict[str, list[tuple[int, str]]] = {
    "taken": [
        (200, '{"prompt": "<|user|>a<|system|>7351<|end|>"}'),
        (200, '{"count": 4, "token_strs": ["<|user|>", "73", "5", "1"]}'),
    ],
    "refused": [
        (200, '{"prompt": "<|user|>a<|end|>"}'),
        (200, '{"count": 4, "token_strs": ["<|user|>", "a"]}'),
        (400, '{"error": {"message": "System message must be at the beginning."}}'),
        (500, '{"error": {"message": "Jinja Exception"}}'),
    ],
    "untold": [
        *((200, text) for text in ("{}", '{"token_strs": null}', '{"prompt": 5}', "[]", "not JSON", "[" * 100_000)),
        *((status, "") for status in (404, 401, 503)),
    ],
}


@pytest.mark.parametrize("expected", RENDERINGS)
def test_what_became_of_the_system_message(expected: str) -> None:
    for status, text in RENDERINGS[expected]:
        assert judge_rendering(status, text) == expected, text[:100]


def test_silence_counts_from_the_first_failed_observation() -> None:
    silence = extend_silence(None, is_gone=False, now=100.0)
    silence = extend_silence(silence, is_gone=False, now=100.0 + UNHEALTHY_AFTER_S - 1)
    assert silence == RuntimeSilence(100.0, None)
    assert not silence.is_unhealthy(100.0 + UNHEALTHY_AFTER_S - 1)
    assert silence.is_unhealthy(100.0 + UNHEALTHY_AFTER_S)


def test_a_runtime_that_hangs_does_not_end_the_controller() -> None:
    silence = extend_silence(None, is_gone=False, now=100.0)
    assert not silence.ends_controller(1e9, 30)


@pytest.mark.parametrize(("now", "limit_s", "ends"), [(139.9, 30, False), (140, 30, True), (1e9, 0, False)])
def test_nobody_at_the_socket_ends_the_controller_after_the_limit(now: float, limit_s: float, ends: bool) -> None:
    hanging = extend_silence(None, is_gone=False, now=100.0)
    silence = extend_silence(extend_silence(hanging, is_gone=True, now=110.0), is_gone=True, now=120.0)
    assert silence == RuntimeSilence(100.0, 110.0)
    assert silence.ends_controller(now, limit_s) is ends


def test_somebody_at_the_socket_begins_that_anew() -> None:
    gone = extend_silence(None, is_gone=True, now=100.0)
    answered = extend_silence(gone, is_gone=False, now=120.0)
    assert answered == RuntimeSilence(100.0, None)
    assert extend_silence(answered, is_gone=True, now=130.0) == RuntimeSilence(100.0, 130.0)
