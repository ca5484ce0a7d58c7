"""From probes to health."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.observe.health import (
    PREEMPTION_HOLD_S,
    STALL_S,
    ProbedHealth,
    ProbeOutcome,
    apply_outcome,
    metric_sum,
    parse_cache_tokens,
)
from controller.schema.applied_figures import AppliedFigures
from controller.state import Health, IdleSpan

WELL = ProbeOutcome(healthy=True, generated=True, busy_requests=0, progress=10)


def _ready(now: float = 0.0) -> ProbedHealth:
    return apply_outcome(ProbedHealth(), WELL, now)


def test_ready_takes_health_and_one_token() -> None:
    waiting = apply_outcome(
        ProbedHealth(), ProbeOutcome(healthy=True, generated=False, error="first token: HTTP 500"), 1.0
    )
    assert waiting.health is Health.STARTING
    assert waiting.error == "first token: HTTP 500"
    ready = apply_outcome(waiting, WELL, 2.0)
    assert (ready.health, ready.ready_since) == (Health.READY, 2.0)


def test_a_failed_probe_unroutes_and_a_good_one_routes_again() -> None:
    failing = apply_outcome(_ready(), ProbeOutcome(healthy=False, error="health: refused"), 1.0)
    assert failing.health is Health.FAILING
    assert failing.ready_since == 0.0
    assert apply_outcome(failing, WELL, 2.0).health is Health.READY


def test_busy_without_progress_is_a_stall_and_progress_is_none() -> None:
    busy = ProbeOutcome(healthy=True, busy_requests=2, progress=10)
    probed_health = apply_outcome(_ready(), busy, STALL_S - 1)
    assert probed_health.health is Health.READY
    assert (
        apply_outcome(probed_health, ProbeOutcome(healthy=True, busy_requests=2, progress=11), STALL_S).health
        is Health.READY
    )
    assert apply_outcome(probed_health, busy, STALL_S).health is Health.STALLED


def test_a_clock_that_is_set_makes_no_engine_stalled_and_hides_none() -> None:
    busy = ProbeOutcome(healthy=True, busy_requests=2, progress=10)
    probed_health = apply_outcome(_ready(), busy, 0, uptime=0)
    ahead = apply_outcome(probed_health, busy, 40 * 86_400, uptime=5)
    assert ahead.health is Health.READY
    assert apply_outcome(ahead, busy, -3600, uptime=STALL_S).health is Health.STALLED


def test_an_idle_engine_never_stalls() -> None:
    probed_health = _ready()
    for minute in range(1, 10):
        probed_health = apply_outcome(probed_health, WELL, minute * 60.0)
    assert probed_health.health is Health.READY
    assert probed_health.idle is True


def test_an_engine_that_answers_nothing_stalls_after_the_same_time() -> None:
    mute = ProbeOutcome(healthy=False)
    assert apply_outcome(_ready(), mute, STALL_S - 1).health is Health.FAILING
    assert apply_outcome(_ready(), mute, STALL_S).health is Health.STALLED


def test_an_engine_that_cannot_be_reached_is_unrouted_and_not_restarted() -> None:
    probed_health = apply_outcome(_ready(), ProbeOutcome(healthy=False, reached=False), STALL_S - 1)
    assert probed_health.health is Health.FAILING
    assert (
        apply_outcome(probed_health, ProbeOutcome(healthy=False, reached=False), 10 * STALL_S).health is Health.FAILING
    )


def test_figures_that_are_no_numbers_are_left_out() -> None:
    assert metric_sum("a nonsense\na 2e1\n", ("a",)) == 20.0


def test_an_engine_that_says_it_is_dead_is() -> None:
    assert apply_outcome(_ready(), ProbeOutcome(healthy=False, dead=True), 1.0).health is Health.DEAD


def test_unknown_figures_are_not_idle() -> None:
    assert apply_outcome(_ready(), ProbeOutcome(healthy=True, generated=True), 1.0).idle is None


def test_how_long_it_says_that_it_is_idle_counts_from_when_its_probes_began() -> None:
    first = apply_outcome(_ready(), WELL, 9.0, began_at=8.0)
    assert (first.idle_span, first.probed_at) == (IdleSpan(0.0, 8.0), 8.0)
    assert apply_outcome(first, WELL, 12.5, began_at=12.0).idle_span == IdleSpan(0.0, 12.0)


@pytest.mark.parametrize(
    "outcome",
    [
        ProbeOutcome(healthy=True, busy_requests=1, progress=10),
        ProbeOutcome(healthy=True, progress=10),
        ProbeOutcome(healthy=False),
        ProbeOutcome(healthy=False, reached=False),
    ],
    ids=["busy", "does not tell", "unwell", "away"],
)
def test_one_probe_that_does_not_find_it_idle_ends_that(outcome: ProbeOutcome) -> None:
    broken = apply_outcome(_ready(), outcome, 1.0)
    assert broken.idle_span is None
    assert apply_outcome(broken, WELL, 2.0).idle_span == IdleSpan(2.0, 2.0)


def test_work_between_two_probes_ends_it_too() -> None:
    worked = ProbeOutcome(healthy=True, busy_requests=0, progress=11)
    assert apply_outcome(_ready(), worked, 1.0).idle_span == IdleSpan(1.0, 1.0)
    untold = ProbeOutcome(healthy=True, busy_requests=0)
    assert apply_outcome(_ready(), untold, 1.0).idle_span == IdleSpan(1.0, 1.0), "nobody knows what it did"


def test_an_engine_without_a_figure_of_its_work_is_idle_by_the_other_one() -> None:
    idle = ProbeOutcome(healthy=True, generated=True, busy_requests=0)
    assert apply_outcome(apply_outcome(ProbedHealth(), idle, 1.0), idle, 3.0).idle_span == IdleSpan(1.0, 3.0)


def test_it_is_idle_from_now_on_where_the_clock_was_set_back() -> None:
    assert apply_outcome(_ready(500.0), WELL, 100.0).idle_span == IdleSpan(100.0, 100.0)


def test_metrics_are_summed_over_names_and_labels() -> None:
    text = '# HELP a x\na{slot="0"} 1\na{slot="1"} 2.5\nb 4\nab 100\n'
    assert metric_sum(text, ("a", "b")) == 7.5
    assert metric_sum(text, ("c",)) is None


def test_a_figure_that_was_told_once_stays_until_another_is_told() -> None:
    first = ProbeOutcome(healthy=True, generated=True, figures=AppliedFigures(context_length=4096, slots=4))
    told = apply_outcome(ProbedHealth(), first, 0.0)
    assert told.figures == AppliedFigures(context_length=4096, slots=4)
    assert apply_outcome(told, WELL, 1.0).figures == told.figures
    second = ProbeOutcome(healthy=True, generated=True, figures=AppliedFigures(context_length=512))
    assert apply_outcome(told, second, 1.0).figures == AppliedFigures(context_length=512, slots=4)


def test_an_engine_counts_as_preempting_when_two_probes_in_a_row_see_it_and_ten_minutes_longer() -> None:
    health = _ready()
    told: list[tuple[float, float | None, bool]] = [
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
    for now, preemptions, is_preempting in told:
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
