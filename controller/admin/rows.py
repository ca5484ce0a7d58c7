"""Rows of the admin API, built from one round and the gateways' reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from controller.engines import REPLICA_ENGINES
from controller.engines.load_fields import list_constraints
from controller.planning.draining import (
    GatewayView,
    count_inflight,
    counts_unknown_since,
    present_gateways,
    proves_idle,
)
from controller.planning.model_traffic import joint_idle_span
from controller.redaction.patterns import mask_fields
from controller.schema.admin import GpuMemory, GpuModel, HeldBy, ModelConfigured, ModelLive
from controller.schema.desired import Definition
from controller.schema.routing import PrefillTokens
from controller.schema.status import GpuStatus, ModelState, ModelStatus
from controller.sizing.estimator import Estimate, estimate_replicas
from controller.state import DesiredModel, IdleSpan


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts of running and queued requests, from the gateways' reports at Unix time `now`. `gateways` are all that may
    hold requests, lost ones included."""

    gateways: tuple[GatewayView, ...]
    now: float
    idle_spans: Mapping[str, IdleSpan] = field(default_factory=dict)
    """Replica name to the time for which its engine has reported that it is idle. Absent means that it has not."""

    def count_inside(self, replicas: Iterable[str]) -> int | None:
        """Return the number of running requests of these replicas, named by `replicas`; 0 for none.

        None means unknown: a gateway is lost or there is none, and the probes of at least one of these replicas do not
        prove that it has been idle since (`planning.draining.proves_idle`).
        """
        counts = [count_inflight(name, self.gateways, self.now, self.idle_spans.get(name)) for name in replicas]
        return sum(count for count in counts if count is not None) if None not in counts else None

    def count_queued(self, model: str, replicas: Sequence[str]) -> int | None:
        """Return the number of requests that wait for a model. `replicas` names all replicas of the model.

        None means unknown: a gateway is lost or there is none, and probes do not prove that every one of the replicas
        has been idle since (`planning.draining.proves_idle`).
        """
        unknown_since = counts_unknown_since(self.gateways, self.now)
        idle_span = joint_idle_span(map(self.idle_spans.get, replicas))
        if unknown_since is not None and not proves_idle(idle_span, unknown_since):
            return None
        views = present_gateways(self.gateways, self.now)
        return sum(view.report.queued.get(model, 0) for view in views if view.lost_at is None)

    def sum_prefill(self, model: str) -> PrefillTokens:
        """Return how far engines are in reading prompts of a model: requests, tokens processed and tokens in total,
        summed over the requests whose clients asked for that progress. All are 0 where there is none. Requests at lost
        gateways are left out."""
        views = present_gateways(self.gateways, self.now)
        prefills = [view.report.prefill.get(model) for view in views if view.lost_at is None]
        total = PrefillTokens()
        for prefill in prefills:
            if prefill is not None:
                total = total.add_request(prefill.processed, prefill.total, prefill.requests)
        return total

    def requests_holding(self, replicas: Iterable[str]) -> list[HeldBy]:
        """Return the requests that are still running in draining replicas, oldest first. `replicas` are the replicas'
        names. Requests at lost gateways are those of their last reports."""
        names = list(replicas)
        holders = [
            HeldBy(request_id=request, replica=name, gateway=view.report.gateway_id, since=since)
            for view in present_gateways(self.gateways, self.now)
            for name in names
            for request, since in view.report.leaving.get(name, {}).items()
        ]
        return sorted(holders, key=lambda each: each.since)


def configured_row(want: DesiredModel) -> ModelConfigured:
    """Return the part of a model's row that only an edit or a load changes, with secrets masked."""
    engine, declared_definition = REPLICA_ENGINES[want.backend], want.declared_definition
    return ModelConfigured(
        name=want.name,
        resolved_backend=want.backend,
        configured_enabled=declared_definition.enabled,
        replica_max=declared_definition.replica_max or declared_definition.replicas,
        configured_target_inflight=engine.configured_inflight(want.definition),
        effective_target_inflight=engine.target_inflight(want.definition),
        load_constraints=list_constraints(engine.load_fields),
        load_recommendations=dict(engine.load_recommendations),
        capabilities=engine.derive_capabilities(want.definition),
        definition=shown_definition(declared_definition),
        aliases=list(declared_definition.aliases),
        declared_by="runtime" if want.is_runtime_declared else "files",
    )


def live_row(
    want: DesiredModel,
    status: ModelStatus,
    traffic: Traffic,
    replica_estimate: Estimate | None,
    observed_mib: int | None = None,
    gpu_mib: int | None = None,
) -> ModelLive:
    """Return the part of a model's row that changes while the model runs, with secrets masked. `status` is that of the
    same model.

    `replica_estimate` is the estimated memory of one replica, `observed_mib` the most MiB of GPU memory that one
    replica was seen to use, `gpu_mib` the total MiB of the largest GPU that a replica may use. None means unknown. The
    figures of the row are for all replicas that are wanted, or declared while none is wanted.
    """
    replicas = want.replicas or want.declared_definition.replicas
    replica_names = [each.name for each in status.replicas] if want.runs else [want.name]
    ready_names = [each.name for each in status.replicas if each.phase == "ready"] if want.runs else replica_names
    total, count, source = estimate_replicas(
        replica_estimate, replicas, declared_mib=_declared_mib(want), observed_mib=observed_mib, gpu_mib=gpu_mib
    )
    prefill = traffic.sum_prefill(want.name)
    return ModelLive(
        runtime_state=status.state,
        is_loaded=status.state is ModelState.LOADED,
        replicas=replicas,
        loaded_replicas=status.loaded_replicas,
        inflight_requests=traffic.count_inside(replica_names),
        queue_depth=traffic.count_queued(want.name, replica_names),
        runtime_inflight=traffic.count_inside(ready_names),
        last_error=status.last_error,
        exit_code=status.exit_code,
        vram_estimate_mib=total,
        vram_estimate_replica_count=count,
        vram_estimate_source=source,
        vram_observed_mib=None if observed_mib is None else observed_mib * replicas,
        drift=status.drift,
        vram_warning=status.vram_warning,
        load_override=mask_fields(want.params) if want.replicas else {},
        statement=status.statement,
        retry_at=status.retry_at,
        load_progress=status.progress,
        prefill_requests=prefill.requests,
        prefill_progress=prefill.processed / prefill.total if prefill.total else None,
        blocked=status.blocked,
        held_by=traffic.requests_holding(replica_names) if status.state is ModelState.UNLOADING else [],
        replica_details=status.replicas,
    )


def _declared_mib(want: DesiredModel) -> int | None:
    """Return the declared MiB of one replica on all its GPUs. None means that `vram_mib` is not declared."""
    return want.vram_mib * max(1, want.gpu_count) if want.vram_mib is not None else None


def shown_definition(definition: Definition) -> dict[str, JsonValue]:
    """Return every field of the definition as JSON values, with secrets masked."""
    fields: dict[str, Any] = definition.model_dump(mode="json")
    return mask_fields(fields)


def gpu_model(want: DesiredModel, model: ModelLive) -> GpuModel:
    """Return the entry of a model in the GPU memory view. `model` is the live part of its row."""
    engine = REPLICA_ENGINES[want.backend]
    return GpuModel(
        name=want.name,
        runtime_state=model.runtime_state,
        is_loaded=model.is_loaded,
        configured_target_inflight=engine.configured_inflight(want.definition),
        effective_target_inflight=engine.target_inflight(want.definition),
        vram_estimate_mib=model.vram_estimate_mib,
        vram_estimate_replica_count=model.vram_estimate_replica_count,
        vram_estimate_source=model.vram_estimate_source,
        vram_observed_mib=model.vram_observed_mib,
        vram_warning=model.vram_warning,
    )


def gpu_memory(gpu: GpuStatus) -> GpuMemory:
    """Return the entry of a GPU in the GPU memory view; sizes are in MiB."""
    return GpuMemory(
        index=gpu.index,
        name=gpu.name,
        used_mib=gpu.used_mib,
        total_mib=gpu.total_mib,
        used_over_total=f"{gpu.used_mib}MiB / {gpu.total_mib}MiB",
        uuid=gpu.uuid,
        claimed_mib=gpu.claimed_mib,
        utilization_percent=gpu.utilization_percent,
        processes=gpu.processes,
        mig=gpu.mig,
        is_unified=gpu.is_unified,
    )
