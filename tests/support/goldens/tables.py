"""Tables that others work by: error codes, metrics, settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.goldens.golden import without_prose
from tests.support.goldens.product import (
    ERROR_CODES,
    BaseModel,
    CollectorRegistry,
    ControllerSettings,
    DesiredModel,
    DesiredState,
    EngineWork,
    GatewayMetrics,
    GatewaySettings,
    Gpu,
    GpuProcess,
    InflightCounts,
    LinkState,
    LiveRoutes,
    LoadedEngine,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    RetrievalSettings,
    Round,
    Statement,
    StoredTotals,
    StubDefinition,
    TransfersSettings,
    Usage,
    assess_models,
    controller_registry,
    plan,
)


def make_errors() -> Any:
    """What a code always means to programs."""
    return {
        code: {"status": entry.status, "type": entry.type, "retry": entry.retry} for code, entry in ERROR_CODES.items()
    }


def make_settings() -> Any:
    """Every variable: type and bounds, default."""
    return {
        "controller": _settings(ControllerSettings),
        "gateway": _settings(GatewaySettings),
        "retrieval": _settings(RetrievalSettings),
        "transfers": _settings(TransfersSettings),
    }


def _settings(settings: type[BaseModel]) -> dict[str, Any]:
    prefix = str(settings.model_config.get("env_prefix"))
    schema = without_prose(settings.model_json_schema()["properties"], named=True)
    return {
        f"{prefix}{name.upper()}": {key: value for key, value in field.items() if key != "title"}
        for name, field in schema.items()
    }


def make_metrics() -> Any:
    """Families: type, labels, and the buckets of histograms."""
    return {"controller": _families(_controller()), "gateway": _families(_gateway())}


def _families(registry: CollectorRegistry) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for family in registry.collect():
        if family.name.startswith("process_"):
            continue  # the client library's, where the system has /proc
        labels = sorted({label for sample in family.samples for label in sample.labels if label != "le"})
        buckets = [sample.labels["le"] for sample in family.samples if "le" in sample.labels]
        samples = sorted({sample.name for sample in family.samples})
        found[family.name] = {"type": family.type, "labels": labels, "samples": samples}
        if buckets:
            found[family.name]["buckets"] = buckets
    return found


def _controller() -> CollectorRegistry:
    """Metrics of a round that has one of everything."""
    model = DesiredModel(
        "m", StubDefinition(backend="stub"), "stub", "h", 2, Statement("file", 0.0, "enabled"), gpu_count=3
    )
    desired = DesiredState(1, {"m": model})
    replica = ObservedReplica(ReplicaId("m", 0, "h"), "rh-i-m-0-h-1", Phase.RUNNING, 1.0)
    processes = (GpuProcess(7, 200, "python3", replica.name),)
    gpu = Gpu("GPU-a", 0, "fake", 1_000, 300, utilization_percent=40, processes=processes)
    observed = ObservedState(5.0, (replica,), gpus=(gpu,))
    made = plan(desired, observed, 5.0)
    done: Any = SimpleNamespace(
        round=Round(desired, observed, made, assess_models(desired, observed, made)), error=None
    )
    return controller_registry(done, lambda: {"start": 2})


def _gateway() -> CollectorRegistry:
    """Metrics that have counted one of everything."""
    metrics, link, ledger = GatewayMetrics(), LinkState(), InflightCounts(lambda: 0.0, {"m": 1})
    link.table_at = 1.0
    ledger.enter_replica("m", "r", "req-1")
    live: Any = SimpleNamespace(current_or_none=SimpleNamespace(models={"m": SimpleNamespace(endpoints=())}))
    assert hasattr(LiveRoutes, "current_or_none")
    metrics.show_state(live, ledger, link, lambda: 3.0)
    metrics.show_connections(count_idle=lambda: 3, count_busy=lambda: 2)
    metrics.show_mcp_servers(lambda: {"weather": True})
    metrics.show_stored(lambda: StoredTotals(5, 4096), lambda: 1)
    metrics.show_certificate(lambda: False)
    metrics.key_series_of("team-a").count_finished(Usage(3, 4))
    metrics.client_series_of(b"app/1.0").count_finished(0.5)
    work = EngineWork(inference_s=0.9, chunks=4, first_token_s=0.5, stream_s=0.3)
    metrics.model_series_of("m").count_finished("completed", work, Usage(3, 4), 0)
    metrics.show_localllm_names(ledger, lambda: [LoadedEngine("m_model_stub_0", "stub")])
    series = metrics.series_of("m", "/v1/chat/completions")
    series.count_finished(200, 1.0, 0.5, Usage(3, 4, 1))
    series.count_turn("reused", Usage(3, 4, 0))
    series.count_retries()
    series.count_client_left()
    series.count_broken_off("engine_disconnected")
    series.count_waited(0.2)
    series.count_refused("queue_full")
    return metrics.registry
