"""The controller: its rounds, what it does, and what stands in its way."""

from __future__ import annotations

from grafana.generator.panels import Board, Query, Section, Stat, TimeSeries, quantile, sum_rate

_ROUNDS = "roundhouse_controller_reconcile_seconds"

BOARD = Board(
    name="controller",
    uid="roundhouse-controller",
    title="Roundhouse: controller",
    description="Rounds of reconciling, what the controller does, and what stands in its way.",
    sections=(
        Section(
            "Now",
            (
                Stat(
                    "Controller", "1 while Prometheus can read it.", (Query('min(up{job="controller"})'),), green_from=1
                ),
                Stat(
                    "Observation",
                    "1 while the last observation was complete; the controller does nothing otherwise.",
                    (Query("min(roundhouse_controller_observation_ok)"),),
                    green_from=1,
                ),
                Stat(
                    "Paused",
                    "1 while the controller observes and never acts.",
                    (Query("max(roundhouse_controller_paused)"),),
                    red_from=1,
                ),
                Stat(
                    "Blocked",
                    "Wanted replicas that cannot be started now.",
                    (Query("sum(roundhouse_controller_blocked)"),),
                    red_from=1,
                ),
                Stat(
                    "Drift",
                    "Differences between what runs and what is declared.",
                    (Query("sum(roundhouse_controller_drift)"),),
                    red_from=1,
                ),
                Stat(
                    "Gateway link",
                    "1 while the gateway is connected.",
                    (Query("min(roundhouse_gateway_link_up)"),),
                    green_from=1,
                ),
            ),
        ),
        Section(
            "Rounds",
            (
                TimeSeries(
                    "Duration of rounds",
                    "Seconds for one round: observe, plan, publish.",
                    (Query(quantile(0.5, _ROUNDS, by=""), "p50"), Query(quantile(0.99, _ROUNDS, by=""), "p99")),
                    "s",
                ),
                TimeSeries(
                    "Rounds",
                    "Rounds per second, and rounds that were not complete.",
                    (
                        Query(sum_rate(f"{_ROUNDS}_count", by=""), "rounds"),
                        Query(sum_rate("roundhouse_controller_reconcile_errors_total", by=""), "not complete"),
                    ),
                    "ops",
                ),
                TimeSeries(
                    "Actions",
                    "Actions per second that the controller issued, by kind.",
                    (Query(sum_rate("roundhouse_controller_actions_total", by="kind"), "{{kind}}"),),
                    "ops",
                ),
                TimeSeries(
                    "Swaps and evictions",
                    "Per hour: plans that evicted a model to make room, and evicted models.",
                    (
                        Query("sum(increase(roundhouse_controller_swaps_total[1h]))", "swaps"),
                        Query("sum(increase(roundhouse_model_evictions_total[1h]))", "evictions"),
                    ),
                ),
                TimeSeries(
                    "Drift",
                    "Differences between what runs and what the files declare, by kind, at the last check.",
                    (Query("sum by (kind) (roundhouse_controller_drift)", "{{kind}}"),),
                    is_stacked=True,
                ),
                TimeSeries(
                    "Blocked starts",
                    "Wanted replicas that cannot be started: `roundhouse plan` says why.",
                    (Query("sum(roundhouse_controller_blocked)", "blocked"),),
                ),
            ),
        ),
        Section(
            "The controller itself",
            (
                TimeSeries(
                    "Processor",
                    "Share of one processor that the controller's process uses.",
                    (Query('rate(process_cpu_seconds_total{job="controller"}[$__rate_interval])', "controller"),),
                    "percentunit",
                ),
                TimeSeries(
                    "Memory",
                    "Resident memory of the controller's process.",
                    (Query('process_resident_memory_bytes{job="controller"}', "controller"),),
                    "bytes",
                ),
            ),
        ),
    ),
)
