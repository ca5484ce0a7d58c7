"""Answers of the admin API, made from rounds and the gateways' reports. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import JsonValue

from contract.admin import CommandLines, GpuMemory, GpuModel, HeldBy, HostDetails, ModelConfigured, ModelLive
from contract.desired import Definition
from contract.keys import Key
from contract.routing import PrefillTokens
from contract.status import (
    ActionView,
    BlockedView,
    ControllerStatus,
    GpuProcessView,
    GpuStatus,
    HostStatus,
    ModelState,
    ModelStatus,
    PlanView,
    UnreadGpuStatus,
)
from controller.engines import REPLICA_ENGINES
from controller.engines.options import list_constraints
from controller.hosts import Gpu, GpuDriver, Host, UnreadGpu
from controller.memory_estimator import Estimate, estimate_replicas
from controller.model_status import Round
from controller.planning.actions import Action, Start
from controller.planning.draining import (
    GatewayView,
    count_inflight,
    counts_unknown_since,
    present_gateways,
    proves_idle,
)
from controller.planning.model_traffic import joint_idle_span
from controller.planning.plan import plan
from controller.redaction import Redact, mask_fields, redact_words
from controller.state import (
    DesiredModel,
    IdleSpan,
    ObservedReplica,
    ObservedState,
    OpKind,
    Phase,
    PreflightKey,
    PreflightResult,
)


def list_command_lines(replicas: Iterable[ObservedReplica], redact: Redact) -> CommandLines:
    """Return the command line of each model's newest running engine, with its secrets masked by `redact`. A model
    without a running engine, or whose engine has no known command line, is left out."""
    newest = {
        replica.id.model: replica
        for replica in sorted(replicas, key=lambda each: each.created_at)
        if replica.phase is Phase.RUNNING and replica.argv
    }
    return CommandLines(models={name: _redacted(newest[name], redact) for name in sorted(newest)})


def _redacted(replica: ObservedReplica, redact: Redact) -> list[str]:
    return redact_words(replica.argv, lambda word: redact(replica.id.model, word, replica.name))


def status_view(
    status: ControllerStatus, last_round: Round | None, keys: Collection[Key], now: float
) -> ControllerStatus:
    """Return `status` with what a round knows, as `roundhouse status` shows it at Unix time `now`: the desired state,
    models, GPUs (None: no round was complete yet), and the names of the API keys that gateways check (`keys`, expired
    ones included)."""
    expired_keys = sorted(key.name for key in keys if key.expires_at is not None and key.expires_at <= now)
    known: dict[str, Any] = {
        "keys": sorted(key.name for key in keys if key.name not in expired_keys),
        "expired_keys": expired_keys,
    }
    if last_round is not None:
        known |= {
            "generation": last_round.desired.generation,
            "paused": last_round.desired.paused,
            "observed_at": last_round.observed.at,
            "models": list(last_round.statuses),
            "gpus": gpu_statuses(last_round.observed),
            "unread_gpus": unread_gpu_statuses(last_round.observed),
            "hosts": host_statuses(last_round.observed),
            "is_cut_off": last_round.observed.is_cut_off,
        }
    return status.model_copy(update=known)


def gpu_statuses(observed: ObservedState) -> list[GpuStatus] | None:
    """Return the status of each GPU that can be read, in the order of the observation; empty: there are none. None: it
    is unknown which GPUs there are, since they cannot be read now. `claimed_mib` sums the claims of the replicas that
    have not ended."""
    if observed.gpus is None:
        return None
    claimed_mib = _sum_claims(observed)
    return [_gpu_status(gpu, claimed_mib) for gpu in observed.gpus]


def _gpu_status(gpu: Gpu, claimed_mib: Mapping[str, int]) -> GpuStatus:
    return GpuStatus(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        total_mib=gpu.total_mib,
        used_mib=gpu.used_mib,
        claimed_mib=claimed_mib.get(gpu.uuid, 0),
        utilization_percent=gpu.utilization_percent,
        processes=_processes(gpu),
        mig=gpu.mig,
        is_unified=gpu.is_unified,
        host=gpu.host,
    )


def unread_gpu_statuses(observed: ObservedState) -> list[UnreadGpuStatus]:
    """Return the GPUs that cannot be read, each with the reason, and with the MiB that replicas claim of it (None if
    its uuid is unknown)."""
    claimed_mib = _sum_claims(observed)
    return [_unread_gpu_status(gpu, claimed_mib) for gpu in observed.unread_gpus]


def _unread_gpu_status(gpu: UnreadGpu, claimed_mib: Mapping[str, int]) -> UnreadGpuStatus:
    return UnreadGpuStatus(
        index=gpu.index,
        mig=gpu.mig,
        uuid=gpu.uuid,
        pci_address=gpu.pci_address,
        reason=gpu.reason,
        description=gpu.description,
        claimed_mib=None if gpu.uuid is None else claimed_mib.get(gpu.uuid, 0),
        host=gpu.host,
    )


def host_statuses(observed: ObservedState) -> list[HostStatus]:
    """Return the status of each host, by name. Empty for an installation with one host, which has no name."""
    claimed_mib = _sum_claims(observed)
    return [HostStatus(**_host_fields(host, observed, claimed_mib)) for host in observed.hosts if host.name]


def host_details(host: Host, observed: ObservedState) -> HostDetails:
    """Return a host with its GPUs, and with what runs there and claims memory as of the observation."""
    claimed_mib = _sum_claims(observed)
    return HostDetails(
        **_host_fields(host, observed, claimed_mib),
        gpus=None if host.gpus is None else [_gpu_status(gpu, claimed_mib) for gpu in host.gpus],
        unread_gpus=[_unread_gpu_status(gpu, claimed_mib) for gpu in host.unread_gpus],
    )


def _host_fields(host: Host, observed: ObservedState, claimed_mib: Mapping[str, int]) -> dict[str, Any]:
    driver = host.driver or GpuDriver()
    engines = {each.name for each in observed.replicas if each.host == host.name and each.phase is not Phase.EXITED}
    # Also what is just being started, and not seen yet.
    known = {each.name for each in observed.replicas}
    engines |= {
        name
        for name, operation in observed.pending.items()
        if operation.host == host.name and operation.kind is OpKind.START and name not in known
    }
    return {
        "name": host.name,
        "state": host.state.value,
        "since": host.since or None,
        "last_heard": host.last_heard,
        "reason": host.reason,
        "address": host.address,
        "runtime": host.runtime,
        "versions": dict(host.versions),
        "labels": dict(host.labels),
        "gpu_count": None if host.gpus is None else len(host.gpus),
        "gpu_error": host.gpu_error,
        "driver_version": driver.version,
        "cuda_version": driver.cuda_version,
        "memory_mib": host.memory_mib,
        "claimed_mib": claimed_mib.get(host.memory_key, 0),
        "models_free_mib": host.models_free_mib,
        "relay": host.relay,
        "is_insecure": host.is_insecure,
        "engines": sorted(engines),
    }


def _sum_claims(observed: ObservedState) -> dict[str, int]:
    """Return the MiB that replicas that have not ended claim, by GPU uuid and by the hosts' `memory_key`."""
    claimed_mib: dict[str, int] = {}
    for replica in observed.replicas:
        if replica.phase is Phase.EXITED:
            continue
        for uuid, mib in replica.claims.items():
            claimed_mib[uuid] = claimed_mib.get(uuid, 0) + mib
    return claimed_mib


def _processes(gpu: Gpu) -> list[GpuProcessView] | None:
    if gpu.processes is None:
        return None
    return [
        GpuProcessView(pid=each.pid, name=each.name, used_mib=each.mib, replica=each.replica) for each in gpu.processes
    ]


def plan_view(last_round: Round, now: float) -> PlanView:
    """Return what `roundhouse plan` shows: the actions that a plan made at `now`, Unix time, has for the last round's
    observation, thus without those that the round issued. Nothing is carried out. A definition whose preflight has not
    failed counts as startable. Otherwise the preflight would be the only visible action after an edit. While the
    controller is paused, the actions are what it would do."""
    model_keys = [
        PreflightKey(model.name, model.spec_hash, host.name)
        for model in last_round.desired.models.values()
        if model.runs and model.replicas
        for host in last_round.observed.hosts
    ]
    failed_results = {key: result for key, result in last_round.observed.preflights.items() if not result.ok}
    assumed_results = {key: PreflightResult(True, now) for key in model_keys} | failed_results
    next_plan = plan(last_round.desired, replace(last_round.observed, preflights=assumed_results), now)
    return PlanView(
        generation=last_round.desired.generation,
        paused=last_round.desired.paused,
        actions=[_action(action) for action in next_plan.actions],
        blocked=[BlockedView(model=item.model, index=item.index, reason=item.reason) for item in next_plan.blocked],
        wake_at=next_plan.wake_at,
    )


def _action(action: Action) -> ActionView:
    replica = f"{action.id.model}/{action.id.index}" if isinstance(action, Start) else getattr(action, "name", None)
    host = getattr(action, "host", "")
    return ActionView(kind=action.kind, model=action.model, replica=replica, reason=action.reason, host=host)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts of running and queued requests, from the gateways' reports at Unix time `now`. `gateways` are all that may
    hold requests, lost ones included."""

    gateways: tuple[GatewayView, ...]
    now: float
    idle_spans: Mapping[str, IdleSpan] = field(default_factory=dict)
    """Replica name to the time for which its engine has reported that it is idle. Absent means that it has not."""

    def count_inside(self, replicas: Iterable[str]) -> int | None:
        """Return the number of running requests of these replicas, named by `replicas`; 0 for none. None means unknown:
        a gateway is lost or there is none, and the probes of at least one of these replicas do not prove that it has
        been idle since (`planning.draining.proves_idle`)."""
        counts = [count_inflight(name, self.gateways, self.now, self.idle_spans.get(name)) for name in replicas]
        return sum(count for count in counts if count is not None) if None not in counts else None

    def count_queued(self, model: str, replicas: Sequence[str]) -> int | None:
        """Return the number of requests that wait for a model. `replicas` names all replicas of the model. None means
        unknown, as in `count_inside`, of any of the replicas."""
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
        declared_by="discovery" if want.is_discovered else "runtime" if want.is_runtime_declared else "files",
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
    same model. `replica_estimate` is the estimated memory of one replica, `observed_mib` the most MiB of GPU memory
    that one replica was seen to use, `gpu_mib` the total MiB of the largest GPU that a replica may use. None means
    unknown. The figures of the row are for all replicas that are wanted, or declared while none is wanted."""
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
        wake_s=status.wake_s,
        load_progress=status.progress,
        prefill_requests=prefill.requests,
        prefill_progress=prefill.processed / prefill.total if prefill.total else None,
        blocked=status.blocked,
        held_by=traffic.requests_holding(replica_names) if status.state is ModelState.UNLOADING else [],
        replica_details=status.replicas,
    )


def _declared_mib(want: DesiredModel) -> int | None:
    """Return the declared MiB of one replica, on all its GPUs or without any in main memory; None: not declared."""
    if want.gpu_count == 0 and want.memory_mib is not None:
        return want.memory_mib
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
        host=gpu.host,
    )
