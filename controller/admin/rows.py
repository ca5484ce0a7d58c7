"""Rows of the admin API, from one round and what the gateways report. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from controller.drains import GatewayView, inflight, live
from controller.engines import ENGINES
from controller.engines.load_fields import constraints
from controller.estimates import estimate
from controller.masking import masked
from controller.schema.admin import AdminModel, GpuMemory, GpuModel, HeldBy
from controller.schema.desired import Definition
from controller.schema.status import GpuStatus, ModelState, ModelStatus
from controller.state import DesiredModel


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the gateways hold. `gateways` are all that may hold something."""

    gateways: tuple[GatewayView, ...]
    now: float

    @property
    def known(self) -> bool:
        """Whether every gateway's counts are known."""
        views = live(self.gateways, self.now)
        return bool(views) and all(view.lost_at is None for view in views)

    def inside(self, replicas: Iterable[str]) -> int | None:
        """Requests inside these replicas."""
        counts = [inflight(name, self.gateways, self.now) for name in replicas] if self.known else [None]
        return sum(count for count in counts if count is not None) if None not in counts else None

    def queued(self, model: str) -> int | None:
        """Requests that wait for the model."""
        if not self.known:
            return None
        return sum(view.report.queued.get(model, 0) for view in live(self.gateways, self.now))

    def holding(self, replicas: Iterable[str]) -> list[HeldBy]:
        """The requests inside replicas that are routed to no more, the oldest first."""
        names = list(replicas)
        held = [
            HeldBy(request_id=request, replica=name, gateway=view.report.gateway_id, since=since)
            for view in live(self.gateways, self.now)
            for name in names
            for request, since in view.report.leaving.get(name, {}).items()
        ]
        return sorted(held, key=lambda each: each.since)


def row(want: DesiredModel, status: ModelStatus, traffic: Traffic, mib_of_one: int | None) -> AdminModel:
    """One model's row. `mib_of_one`: estimated memory of one replica in MiB."""
    engine = ENGINES[want.backend]
    declared = want.declared
    replicas = want.replicas or declared.replicas
    serving = [each.name for each in status.replicas if each.phase == "ready"] if want.runs else [want.name]
    total, count, source = estimate(mib_of_one, replicas)
    return AdminModel(
        name=want.name,
        resolved_backend=want.backend,
        configured_enabled=declared.enabled,
        runtime_state=status.state,
        is_loaded=status.state is ModelState.LOADED,
        replicas=replicas,
        replica_max=declared.replica_max or declared.replicas,
        loaded_replicas=status.loaded_replicas,
        inflight_requests=traffic.inside(each.name for each in status.replicas)
        if want.runs
        else traffic.inside(serving),
        queue_depth=traffic.queued(want.name),
        runtime_inflight=traffic.inside(serving),
        configured_target_inflight=engine.configured_inflight(want.definition),
        effective_target_inflight=engine.target_inflight(want.definition),
        last_error=status.last_error,
        vram_estimate_mib=total,
        vram_estimate_replica_count=count,
        vram_estimate_source=source,
        load_constraints=constraints(engine.load_fields),
        load_recommendations=dict(engine.load_recommendations),
        load_override=dict(want.params) if want.replicas else {},
        capabilities=engine.capabilities(want.definition),
        definition=shown_definition(declared),
        aliases=list(declared.aliases),
        statement=status.statement,
        retry_at=status.retry_at,
        load_progress=status.progress,
        blocked=status.blocked,
        held_by=traffic.holding(each.name for each in status.replicas) if status.state is ModelState.UNLOADING else [],
        replica_details=status.replicas,
    )


def shown_definition(definition: Definition) -> dict[str, JsonValue]:
    """Every field of the definition, secrets masked."""
    fields: dict[str, Any] = definition.model_dump(mode="json")
    return masked(fields)


def gpu_model(model: AdminModel) -> GpuModel:
    """What the memory view shows of a row."""
    return GpuModel(
        name=model.name,
        runtime_state=model.runtime_state,
        is_loaded=model.is_loaded,
        configured_target_inflight=model.configured_target_inflight,
        effective_target_inflight=model.effective_target_inflight,
        vram_estimate_mib=model.vram_estimate_mib,
        vram_estimate_replica_count=model.vram_estimate_replica_count,
        vram_estimate_source=model.vram_estimate_source,
    )


def gpu_memory(gpu: GpuStatus) -> GpuMemory:
    """One GPU's figures."""
    return GpuMemory(
        index=gpu.index,
        name=gpu.name,
        used_mib=gpu.used_mib,
        total_mib=gpu.total_mib,
        used_over_total=f"{gpu.used_mib}MiB / {gpu.total_mib}MiB",
        uuid=gpu.uuid,
        claimed_mib=gpu.claimed_mib,
    )
