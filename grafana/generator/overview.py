"""The first dashboard: is it well, what does it do, and who is waiting."""

from __future__ import annotations

from grafana.generator.panels import (
    MODEL,
    OF_MODEL,
    REQUESTS_INSIDE,
    Board,
    Query,
    Section,
    Stat,
    StateTimeline,
    TimeSeries,
    quantile,
    rate_by_model,
    sum_rate,
)

STATES = {
    0: ("unloaded", "text"),
    1: ("loading", "yellow"),
    2: ("loaded", "green"),
    3: ("unloading", "orange"),
    4: ("failed", "red"),
    5: ("sleeping", "blue"),
}
"""Numbers that stand for a model's state in `STATE_EXPR`, with names and colors."""
STATE_EXPR = (
    "max by (model) ("
    + " or ".join(
        f'roundhouse_model_state{{{OF_MODEL},state="{state}"}} * {number}' for number, (state, _) in STATES.items()
    )
    + ")"
)

_NOW = (
    Stat("Gateway", "1 while Prometheus can read the gateway.", (Query('min(up{job="gateway"})'),), green_from=1),
    Stat(
        "Controller", "1 while the controller is connected.", (Query("min(roundhouse_gateway_link_up)"),), green_from=1
    ),
    Stat("Models loaded", "Models that serve now.", (Query('sum(roundhouse_model_state{state="loaded"})'),)),
    Stat(
        "Models failed",
        "Models of which no replica can be started.",
        (Query('sum(roundhouse_model_state{state="failed"})'),),
        red_from=1,
    ),
    Stat("In flight", "Requests that engines serve now.", (Query("sum(roundhouse_gateway_inflight) or vector(0)"),)),
    Stat("Queued", "Requests that wait for a load or a slot.", (Query("sum(roundhouse_gateway_queued) or vector(0)"),)),
    Stat("Requests", "Requests per second.", (Query(sum_rate("roundhouse_gateway_requests_total", by="")),), "reqps"),
    Stat(
        "Tokens per second",
        "Tokens generated per second, of all models.",
        (Query(sum_rate("roundhouse_gateway_tokens_total", 'direction="out"', by="")),),
    ),
    Stat(
        "First token, p95",
        "Seconds to the first token of streams, the 95th percentile of the last five minutes.",
        (Query("max(model:roundhouse_time_to_first_token_seconds:p95_5m)"),),
        "s",
    ),
    Stat(
        "Errors, worst model",
        "Share of requests that ended with a status of 500 or above in the last five minutes, of the worst model.",
        (Query("max(model:roundhouse_request_errors:ratio_rate5m)"),),
        "percentunit",
        red_from=0.05,
    ),
    Stat(
        "Starts blocked", "Replicas that cannot be started.", (Query("sum(roundhouse_controller_blocked)"),), red_from=1
    ),
    Stat(
        "GPU memory",
        "Share in use, of all GPUs.",
        (Query("sum(roundhouse_gpu_used_mib) / sum(roundhouse_gpu_total_mib)"),),
        "percentunit",
    ),
)

BOARD = Board(
    name="overview",
    uid="roundhouse",
    title="Roundhouse: overview",
    description="Whether it is well, what it does, and who is waiting.",
    variables=(MODEL,),
    sections=(
        Section("Now", _NOW),
        Section(
            "Traffic",
            (
                TimeSeries(
                    "Requests",
                    "Requests per second, by model. `unknown` stands for requests that name no declared model.",
                    (rate_by_model("roundhouse_gateway_requests_total"),),
                    "reqps",
                ),
                TimeSeries(
                    "How requests end",
                    "Ended requests per second: completed, with an error, or cancelled by the client.",
                    (rate_by_model("roundhouse_gateway_request_outcomes_total", "{{outcome}}", "outcome"),),
                    "reqps",
                    is_stacked=True,
                ),
                TimeSeries(
                    "Tokens generated per second",
                    "Tokens of answers per second.",
                    (rate_by_model("roundhouse_gateway_tokens_total", more='direction="out"'),),
                ),
                TimeSeries(
                    "Time to the first token, p95",
                    "Seconds from a request's headers to the first event of its stream.",
                    (Query(quantile(0.95, "roundhouse_gateway_time_to_first_token_seconds", OF_MODEL), "{{model}}"),),
                    "s",
                ),
                TimeSeries(
                    "In flight and queued",
                    "Requests that engines serve, and requests that wait.",
                    REQUESTS_INSIDE,
                ),
                TimeSeries(
                    "GPU memory in use",
                    "Share of each GPU's memory.",
                    (Query("gpu:roundhouse_gpu_memory:used_ratio", "GPU {{gpu}}"),),
                    "percentunit",
                    most=1,
                ),
            ),
        ),
        Section(
            "Models",
            (
                StateTimeline(
                    "States of models",
                    "The state of each model over time.",
                    (Query(STATE_EXPR, "{{model}}"),),
                    states=STATES,
                ),
            ),
        ),
    ),
)
