"""Converts rounds into the answers of the admin API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller import __version__
from controller.gpus import Gpu
from controller.planning.actions import Action, Start
from controller.planning.plan import plan
from controller.schema.keys import Key
from controller.schema.status import (
    ActionView,
    BlockedView,
    ControllerStatus,
    GpuProcessView,
    GpuStatus,
    PlanView,
    Problem,
    UnreadGpuStatus,
)
from controller.state import ObservedState, Phase, PreflightResult
from controller.status.reconcile_round import Round


def status_view(
    last_round: Round | None,
    *,
    instance: str,
    runtime: str,
    problems: list[Problem],
    error: str | None,
    gateways: list[str],
    gateway_addresses: list[str],
    refused_gateways: Sequence[str],
    keys: Sequence[Key],
    now: float,
    unsaved: list[str],
) -> ControllerStatus:
    """Return what `roundhouse status` shows at Unix time `now`.

    `last_round` None: no round was complete yet, so the result has the defaults for models, GPUs and what else is
    observed. `problems` are those of the desired files, `error` is why the last observation failed (None: it did not),
    `gateways` are the ids of the connected gateways, `refused_gateways` says why others are refused, `keys` are the API
    keys that gateways check, expired ones included, and `unsaved` names what could not be written to the state folder.
    """
    expired_keys = sorted(key.name for key in keys if key.expires_at is not None and key.expires_at <= now)
    status = ControllerStatus(
        instance=instance,
        version=__version__,
        runtime=runtime,
        generation=last_round.desired.generation if last_round else 0,
        observation_error=error,
        desired_problems=problems,
        gateways=gateways,
        gateway_addresses=gateway_addresses,
        refused_gateways=list(refused_gateways),
        keys=sorted(key.name for key in keys if key.name not in expired_keys),
        expired_keys=expired_keys,
        unsaved=unsaved,
    )
    if last_round is None:
        return status
    return status.model_copy(
        update={
            "paused": last_round.desired.paused,
            "observed_at": last_round.observed.at,
            "models": list(last_round.statuses),
            "gpus": gpu_statuses(last_round.observed),
            "unread_gpus": unread_gpu_statuses(last_round.observed),
        }
    )


def gpu_statuses(observed: ObservedState) -> list[GpuStatus] | None:
    """Return the status of each GPU that can be read, in the order of the observation; empty: there are none. None: it
    is unknown which GPUs there are, since they cannot be read now. `claimed_mib` sums the claims of the replicas that
    have not ended."""
    if observed.gpus is None:
        return None
    claimed_mib = _sum_claims(observed)
    return [
        GpuStatus(
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
        )
        for gpu in observed.gpus
    ]


def unread_gpu_statuses(observed: ObservedState) -> list[UnreadGpuStatus]:
    """Return the GPUs that cannot be read, each with the reason, and with the MiB that replicas claim of it (None if
    its uuid is unknown)."""
    claimed_mib = _sum_claims(observed)
    return [
        UnreadGpuStatus(
            index=gpu.index,
            mig=gpu.mig,
            uuid=gpu.uuid,
            pci_address=gpu.pci_address,
            reason=gpu.reason,
            description=gpu.description,
            claimed_mib=None if gpu.uuid is None else claimed_mib.get(gpu.uuid, 0),
        )
        for gpu in observed.unread_gpus
    ]


def _sum_claims(observed: ObservedState) -> dict[str, int]:
    """Return the MiB that replicas that have not ended claim, by GPU uuid, and under HOST for main memory."""
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
    observation, thus without those that the round issued. Nothing is carried out.

    A definition whose preflight has not failed counts as startable. Otherwise the preflight would be the only visible
    action after an edit. While the controller is paused, the actions are what it would do.
    """
    model_keys = [
        (model.name, model.spec_hash) for model in last_round.desired.models.values() if model.runs and model.replicas
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
    return ActionView(kind=action.kind, model=action.model, replica=replica, reason=action.reason)
