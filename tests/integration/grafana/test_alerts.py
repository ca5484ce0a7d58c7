"""Every alert fires when it should and is silent when it should: `promtool`, on series that are made here."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.ci_cache import cached_build
from tests.support.require import require

pytestmark = pytest.mark.slow

RULES = Path(__file__).parents[3] / "grafana" / "prometheus"
MINUTES = 180
"""After which an alert must fire, or still be silent: longer than any rule waits."""
Series = Mapping[str, str]
"""Values by series, in promtool's form, one a minute: `1x180` is 1 and 180 times the same, `0+5x180` rises by 5."""


@dataclass(frozen=True, slots=True)
class Case:
    """What makes an alert fire, and what does not."""

    bad: Series
    good: Series
    alerts: int = 1
    """Alerts of that name that fire."""
    waits: bool = True
    """Whether the rule has a `for`, so that it is silent in the first minute."""


def gauge(series: str, bad: float, good: float, *, waits: bool = True) -> Case:
    """A gauge that has one value or the other all the time."""
    return Case({series: f"{bad}x{MINUTES}"}, {series: f"{good}x{MINUTES}"}, waits=waits)


def counter(series: str, bad: float, good: float = 0, *, waits: bool = True) -> Case:
    """A counter that rises by that much a minute."""
    return Case({series: f"0+{bad}x{MINUTES}"}, {series: f"5+{good}x{MINUTES}"}, waits=waits)


FIRST_TOKEN = 'roundhouse_gateway_time_to_first_token_seconds_bucket{model="m",le="%s"}'
REQUESTS = 'roundhouse_gateway_requests_total{model="m",route="r",status="%s"}'
WANTED, LOADED = (f'roundhouse_model_replicas_{word}{{model="m"}}' for word in ("wanted", "loaded"))
PREDICTED, OBSERVED = (f'roundhouse_model_{word}_mib{{model="m",place="gpu"}}' for word in ("predicted", "observed"))
USED, TOTAL = (f'roundhouse_gpu_{word}_mib{{gpu="0",uuid="u"}}' for word in ("used", "total"))
CASES: dict[str, Case] = {
    "GatewayDown": gauge('up{job="gateway"}', 0, 1),
    "ControllerDown": gauge('up{job="controller"}', 0, 1),
    "ControllerLinkDown": gauge("roundhouse_gateway_link_up", 0, 1),
    "ObservationFailing": gauge("roundhouse_controller_observation_ok", 0, 1),
    "ModelFailed": gauge('roundhouse_model_state{model="m",state="failed"}', 1, 0),
    "ModelCrashLooping": Case(
        {'roundhouse_model_crashes_total{model="m"}': f"0+0.2x{MINUTES}"},
        {'roundhouse_model_crashes_total{model="m"}': f"0+0.05x{MINUTES}"},
        waits=False,
    ),
    "ReplicasMissing": Case(
        {WANTED: f"2x{MINUTES}", LOADED: f"1x{MINUTES}"}, {WANTED: f"2x{MINUTES}", LOADED: f"2x{MINUTES}"}
    ),
    "StartsBlocked": gauge("roundhouse_controller_blocked", 1, 0),
    "ReconcileErrors": counter("roundhouse_controller_reconcile_errors_total", 1),
    "DriftFound": gauge('roundhouse_controller_drift{kind="applied"}', 1, 0),
    "EvictionsThrash": Case(
        {'roundhouse_model_evictions_total{model="a"}': f"0+0.3x{MINUTES}",
         'roundhouse_model_evictions_total{model="b"}': f"0+0.3x{MINUTES}"},
        {'roundhouse_model_evictions_total{model="a"}': f"0+0.1x{MINUTES}"},
        waits=False,
    ),
    "MemoryAbovePrediction": Case(
        {PREDICTED: f"1000x{MINUTES}", OBSERVED: f"1300x{MINUTES}"},
        {PREDICTED: f"1000x{MINUTES}", OBSERVED: f"1100x{MINUTES}"},
    ),
    "GpuMemoryFull": Case(
        {USED: f"990x{MINUTES}", TOTAL: f"1000x{MINUTES}"}, {USED: f"900x{MINUTES}", TOTAL: f"1000x{MINUTES}"}
    ),
    "GpuUnread": gauge('roundhouse_gpu_unread{gpu="0",uuid="u"}', 1, 0),
    "ManyServerErrors": Case(
        {REQUESTS % 200: f"0+90x{MINUTES}", REQUESTS % 503: f"0+10x{MINUTES}"},
        {REQUESTS % 200: f"0+99x{MINUTES}", REQUESTS % 503: f"0+1x{MINUTES}", REQUESTS % 429: f"0+50x{MINUTES}"},
    ),
    "BrokenAnswers": counter('roundhouse_gateway_broken_answers_total{model="m",code="engine_disconnected"}', 1),
    "ControllerPaused": gauge("roundhouse_controller_paused", 1, 0),
    "QueueFull": Case(
        {'roundhouse_gateway_refusals_total{model="m",code="queue_full"}': f"0+1x{MINUTES}"},
        {'roundhouse_gateway_refusals_total{model="m",code="model_not_loaded"}': f"0+1x{MINUTES}"},
    ),
    "SlowFirstToken": Case(
        {FIRST_TOKEN % 10: f"0x{MINUTES}", FIRST_TOKEN % 30: f"0+9x{MINUTES}", FIRST_TOKEN % "+Inf": f"0+9x{MINUTES}"},
        {FIRST_TOKEN % 1: f"0+9x{MINUTES}", FIRST_TOKEN % 10: f"0+9x{MINUTES}", FIRST_TOKEN % "+Inf": f"0+9x{MINUTES}"},
    ),
    "EngineSilent": gauge('roundhouse_engine_up{model="m",replica="m-0"}', 0, 1),
    "CertificateProblem": gauge("roundhouse_gateway_tls_certificate_problem", 1, 0),
    "StoreFailing": counter("roundhouse_gateway_store_failures_total", 1, waits=False),
    "StreamFilesLost": counter("roundhouse_gateway_stream_files_lost_total", 1, waits=False),
    "RetrievalDown": gauge('up{job="retrieval"}', 0, 1),
    "IngestionLags": gauge("roundhouse_retrieval_ingest_lag_seconds", 4000, 3000),
    "DocumentsFail": counter("roundhouse_retrieval_failed_total", 1, 0.1, waits=False),
    "IndexIncomplete": gauge("roundhouse_retrieval_unindexed_documents", 1, 0),
}  # fmt: skip


@functools.cache
def promtool() -> str:
    """The program."""
    unpacked = cached_build("prometheus") / "promtool"
    found = shutil.which("promtool") or (str(unpacked) if unpacked.exists() else None)
    require("prometheus", bool(found), "promtool is not on PATH, and .ci/prometheus has not unpacked it")
    assert found is not None
    return found


def run_promtool(*arguments: str) -> None:
    """Fail with its output unless it succeeds."""
    done = subprocess.run([promtool(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(alert: str, series: Series, minute: int, count: int) -> dict[str, Any]:
    """One test of promtool: how many alerts of that name fire at a minute."""
    samples = [{"labels": "{}", "value": count}] if count else []
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}],
    }


def write_tests(path: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """Write a file for `promtool test rules`."""
    YAML(typ="safe", pure=True).dump(
        {"rule_files": [str(RULES / "rules.yaml")], "evaluation_interval": "1m", "tests": list(tests)}, path
    )


def test_promtool_finds_nothing_wrong_with_rules_and_configuration() -> None:
    run_promtool("check", "rules", str(RULES / "rules.yaml"))
    run_promtool("check", "config", str(RULES / "prometheus.yaml"))


def test_there_is_a_case_for_each_alert() -> None:
    rules = YAML(typ="safe", pure=True).load(RULES / "rules.yaml")
    named = [(rule["alert"], "for" in rule) for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert [(name, case.waits) for name, case in CASES.items()] == named


def test_each_alert_fires_when_it_should_and_is_silent_when_it_should(tmp_path: Path) -> None:
    tests = []
    for name, case in CASES.items():
        tests += [firing(name, case.bad, MINUTES - 1, case.alerts), firing(name, case.good, MINUTES - 1, 0)]
        tests += [firing(name, case.bad, 0, 0)] if case.waits else []
        tests.append(firing(name, {}, MINUTES - 1, 0))
    write_tests(tmp_path / "tests.yaml", tests)
    run_promtool("test", "rules", str(tmp_path / "tests.yaml"))


def test_a_case_that_does_not_hold_is_found(tmp_path: Path) -> None:
    case = CASES["GatewayDown"]
    write_tests(tmp_path / "tests.yaml", [firing("GatewayDown", case.good, MINUTES - 1, 1)])
    with pytest.raises(AssertionError, match="GatewayDown"):
        run_promtool("test", "rules", str(tmp_path / "tests.yaml"))
