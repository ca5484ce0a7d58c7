"""GPUs, and memory: in use, predicted, observed."""

from __future__ import annotations

from grafana.generator.panels import COLUMNS, GPU, MODEL, Board, Query, Section, Stat, StateTimeline, TimeSeries

_OF_GPU = 'gpu=~"$gpu"'
_USED, _TOTAL = (f"roundhouse_gpu_{name}_mib{{{_OF_GPU}}}" for name in ("used", "total"))
_OF_BOTH = f'{_OF_GPU},model=~"$model"'
_HOST_STATES = {
    0: ("ready", "green"),
    1: ("draining", "blue"),
    2: ("silent", "yellow"),
    3: ("lost", "red"),
    4: ("refused", "orange"),
}
_HOST_EXPR = (
    "max by (host) ("
    + " or ".join(f'roundhouse_host_state{{state="{state}"}} * {number}' for number, (state, _) in _HOST_STATES.items())
    # The only host of an installation has no name and no series.
    + ') or (label_replace(vector(0), "host", "this host", "", "") unless on () roundhouse_host_state)'
)

BOARD = Board(
    name="gpus",
    uid="roundhouse-gpus",
    title="Roundhouse: GPUs and memory",
    description="What GPUs do, who holds their memory, and whether predictions of memory are right.",
    variables=(GPU, MODEL),
    sections=(
        Section(
            "Now",
            (
                Stat("GPUs", "GPUs that can be read.", (Query(f"count({_TOTAL})"),), width=6),
                Stat(
                    "GPUs that cannot be read",
                    "They fell off the bus, or must be reset. `roundhouse gpu` says why.",
                    (Query("sum(roundhouse_gpu_unread) or vector(0)"),),
                    width=6,
                    red_from=1,
                ),
                Stat(
                    "Memory in use",
                    "Share in use, of all GPUs.",
                    (Query(f"sum({_USED}) / sum({_TOTAL})"),),
                    "percentunit",
                    width=6,
                ),
                Stat(
                    "Memory free", "MiB that nobody uses.", (Query(f"sum({_TOTAL}) - sum({_USED})"),), "mbytes", width=6
                ),
            ),
        ),
        Section(
            "GPUs",
            (
                TimeSeries("Memory in use, MiB", "By GPU.", (Query(_USED, "GPU {{gpu}}"),), "mbytes"),
                TimeSeries(
                    "Memory in use, share",
                    "By GPU.",
                    (Query(f"{_USED} / {_TOTAL}", "GPU {{gpu}}"),),
                    "percentunit",
                    most=1,
                ),
                TimeSeries(
                    "Utilization",
                    "Share of the driver's last sample period in which the GPU was busy. MIG instances have none.",
                    (Query(f"roundhouse_gpu_utilization_ratio{{{_OF_GPU}}}", "GPU {{gpu}}"),),
                    "percentunit",
                    most=1,
                ),
                TimeSeries(
                    "Memory by model",
                    "MiB that a model's engines hold, if the driver reports it.",
                    (Query(f"roundhouse_gpu_model_used_mib{{{_OF_BOTH}}}", "{{model}} on {{gpu}}"),),
                    "mbytes",
                    is_stacked=True,
                ),
                TimeSeries(
                    "Memory that no model holds",
                    "MiB in use by other programs, the desktop and the driver, as far as the driver reports processes.",
                    (
                        Query(
                            f"sum by (gpu) ({_USED}) - (sum by (gpu) (roundhouse_gpu_model_used_mib{{{_OF_GPU}}})"
                            f" or 0 * sum by (gpu) ({_USED}))",
                            "GPU {{gpu}}",
                        ),
                    ),
                    "mbytes",
                    width=COLUMNS,
                ),
            ),
        ),
        Section(
            "Hosts",
            (
                StateTimeline(
                    "States of hosts",
                    "The state of each host over time. What runs on a lost one is started on others.",
                    (Query(_HOST_EXPR, "{{host}}"),),
                    states=_HOST_STATES,
                ),
            ),
        ),
        Section(
            "Predicted and observed",
            (
                TimeSeries(
                    "Memory of one replica",
                    "MiB that one replica is predicted to take, and was seen to take at most.",
                    (
                        Query('roundhouse_model_predicted_mib{model=~"$model"}', "{{model}} {{place}} predicted"),
                        Query('roundhouse_model_observed_mib{model=~"$model"}', "{{model}} {{place}} observed"),
                    ),
                    "mbytes",
                ),
                TimeSeries(
                    "Observed / predicted",
                    "Above 1: the prediction was too low, and a placement by it may not fit.",
                    (
                        Query(
                            'model_place:roundhouse_model_memory:observed_ratio{model=~"$model"}', "{{model}} {{place}}"
                        ),
                    ),
                    "percentunit",
                ),
            ),
        ),
    ),
)
