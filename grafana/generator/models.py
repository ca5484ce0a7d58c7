"""Models and their replicas: states, loads, speed, and what the engines say of themselves."""

from __future__ import annotations

from grafana.generator.overview import STATE_EXPR, STATES
from grafana.generator.panels import (
    COLUMNS,
    MODEL,
    OF_MODEL,
    REPLICA,
    Board,
    Query,
    Section,
    StateTimeline,
    TimeSeries,
    quantiles,
    rate_by_model,
    sum_rate,
)

OF_REPLICA = 'model=~"$model",replica=~"$replica"'
_CACHE_HITS = (
    f"{sum_rate('roundhouse_gateway_cached_tokens_total', OF_MODEL)}"
    f""" / {sum_rate("roundhouse_gateway_tokens_total", f'{OF_MODEL},direction="in"')}"""
)


def _either(llama: str, vllm: str) -> Query:
    """What both kinds of engines tell, each under a name of its own."""
    return Query(f"llamacpp:{llama}{{{OF_REPLICA}}} or vllm:{vllm}{{{OF_REPLICA}}}", "{{replica}}")


def _either_rate(llama: str, vllm: str) -> Query:
    ours, theirs = (sum_rate(name, OF_REPLICA, "replica") for name in (f"llamacpp:{llama}", f"vllm:{vllm}"))
    return Query(f"{ours} or {theirs}", "{{replica}}")


BOARD = Board(
    name="models",
    uid="roundhouse-models",
    title="Roundhouse: models",
    description="States and loads of models, how fast they answer, and what their engines say.",
    variables=(MODEL, REPLICA),
    sections=(
        Section(
            "States and loads",
            (
                StateTimeline(
                    "States of models",
                    "The state of each model over time.",
                    (Query(STATE_EXPR, "{{model}}"),),
                    states=STATES,
                ),
                TimeSeries(
                    "Replicas",
                    "Replicas that are wanted, that serve, and that the gateway sends requests to.",
                    (
                        Query(f"roundhouse_model_replicas_wanted{{{OF_MODEL}}}", "{{model}} wanted"),
                        Query(f"roundhouse_model_replicas_loaded{{{OF_MODEL}}}", "{{model}} loaded"),
                        Query(f"roundhouse_gateway_replicas{{{OF_MODEL}}}", "{{model}} reached"),
                    ),
                ),
                TimeSeries(
                    "Loads",
                    "Starts of engines that came to an end, per hour, by result.",
                    (
                        Query(
                            f"sum by (model, result) (increase(roundhouse_model_loads_total{{{OF_MODEL}}}[1h]))",
                            "{{model}} {{result}}",
                        ),
                    ),
                ),
                TimeSeries(
                    "Duration of loads",
                    "Seconds from the start of an engine until it was ready.",
                    quantiles("roundhouse_model_load_seconds"),
                    "s",
                ),
                TimeSeries(
                    "Crashes, restarts, evictions",
                    "Per hour: ready engines that failed, starts after a failure, and models that made room.",
                    (
                        Query(
                            f"sum by (model) (increase(roundhouse_model_crashes_total{{{OF_MODEL}}}[1h]))",
                            "{{model}} crashes",
                        ),
                        Query(
                            f"sum by (model) (increase(roundhouse_model_restarts_total{{{OF_MODEL}}}[1h]))",
                            "{{model}} restarts",
                        ),
                        Query(
                            f"sum by (model) (increase(roundhouse_model_evictions_total{{{OF_MODEL}}}[1h]))",
                            "{{model}} evictions",
                        ),
                    ),
                ),
            ),
        ),
        Section(
            "Speed",
            (
                TimeSeries(
                    "Tokens per second",
                    "Tokens of all answers of a model per second.",
                    (
                        rate_by_model("roundhouse_gateway_tokens_total", "{{model}} out", more='direction="out"'),
                        rate_by_model("roundhouse_gateway_tokens_total", "{{model}} in", more='direction="in"'),
                    ),
                ),
                TimeSeries(
                    "Time per output token",
                    "Seconds for each token after the first, the mean of each complete stream.",
                    quantiles("roundhouse_gateway_time_per_output_token_seconds"),
                    "s",
                ),
                TimeSeries(
                    "Requests that engines work on",
                    "Seconds of work per second: how many requests are under way on average.",
                    (rate_by_model("roundhouse_gateway_inference_seconds_total"),),
                ),
                TimeSeries(
                    "Events per second of a stream",
                    "Events of an engine's stream, per second that streams last.",
                    (
                        Query(
                            f"{sum_rate('roundhouse_gateway_stream_chunks_total', OF_MODEL)}"
                            f" / {sum_rate('roundhouse_gateway_stream_seconds_total', OF_MODEL)}",
                            "{{model}}",
                        ),
                    ),
                ),
                TimeSeries(
                    "Length of prompts",
                    "Tokens of each request, as its engine counted them.",
                    quantiles("roundhouse_gateway_request_tokens", f'{OF_MODEL},direction="in"'),
                ),
                TimeSeries(
                    "Length of answers",
                    "Tokens of each answer, as its engine counted them.",
                    quantiles("roundhouse_gateway_request_tokens", f'{OF_MODEL},direction="out"'),
                ),
            ),
        ),
        Section(
            "Caches and sessions",
            (
                TimeSeries(
                    "Prompt tokens from the cache",
                    "Share of prompt tokens that engines had in their cache, where they tell.",
                    (Query(_CACHE_HITS, "{{model}}"),),
                    "percentunit",
                ),
                TimeSeries(
                    "Turns of sessions",
                    "Turns per second by what `X-Session` says; a miss was said to be reused, and nothing was cached.",
                    (
                        rate_by_model(
                            "roundhouse_gateway_session_turns_total", "{{model}} {{decision}}", "model, decision"
                        ),
                        rate_by_model("roundhouse_gateway_session_misses_total", "{{model}} missed"),
                    ),
                    "ops",
                ),
                TimeSeries(
                    "Completion tokens that the gateway counted",
                    "Tokens per second of streams that ended before the engine reported its count.",
                    (rate_by_model("roundhouse_gateway_unreported_tokens_total"),),
                    width=COLUMNS,
                ),
            ),
        ),
        Section(
            "Engines",
            (
                TimeSeries(
                    "Engines that can be read",
                    "1 while the engine's own metrics could be read.",
                    (Query(f"roundhouse_engine_up{{{OF_REPLICA}}}", "{{replica}}"),),
                ),
                TimeSeries(
                    "Duration of a reading",
                    "Seconds that reading the engine's own metrics took: an engine that is slow here is slow.",
                    (Query(f"roundhouse_engine_scrape_seconds{{{OF_REPLICA}}}", "{{replica}}"),),
                    "s",
                ),
                TimeSeries(
                    "Requests inside",
                    "Requests that the engine works for.",
                    (_either("requests_processing", "num_requests_running"),),
                ),
                TimeSeries(
                    "Requests that wait inside",
                    "Requests that wait for a slot of the engine.",
                    (_either("requests_deferred", "num_requests_waiting"),),
                ),
                TimeSeries(
                    "Tokens generated, by replica",
                    "Tokens per second, as the engine counts them.",
                    (_either_rate("tokens_predicted_total", "generation_tokens_total"),),
                ),
                TimeSeries(
                    "Prompt tokens, by replica",
                    "Tokens per second that the engine read, as it counts them.",
                    (_either_rate("prompt_tokens_total", "prompt_tokens_total"),),
                ),
                TimeSeries(
                    "KV cache in use (vLLM)",
                    "Share of vLLM's blocks for keys and values; llama-server does not tell it.",
                    (Query(f"vllm:kv_cache_usage_perc{{{OF_REPLICA}}}", "{{replica}}"),),
                    "percentunit",
                    most=1,
                ),
                TimeSeries(
                    "Prefix cache hits (vLLM)",
                    "Share of asked prefix tokens that vLLM had in its cache.",
                    (
                        Query(
                            f"{sum_rate('vllm:prefix_cache_hits_total', OF_REPLICA, 'replica')}"
                            f" / {sum_rate('vllm:prefix_cache_queries_total', OF_REPLICA, 'replica')}",
                            "{{replica}}",
                        ),
                    ),
                    "percentunit",
                ),
            ),
        ),
    ),
)
