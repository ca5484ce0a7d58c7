"""Replicas onto GPUs. Pure.

Invariant: on no GPU do the claims ever exceed its memory, and a replica that declares no `vram_mib` shares its GPUs
with nobody. One replica per GPU loads or stops at a time, because engines that size themselves by free memory
mis-measure each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.state import DesiredModel, Gpu

FOREIGN_USE = 0.1
"""Share of a GPU's memory that others may use while the GPU still counts as empty for a whole-GPU claim."""


@dataclass(slots=True)
class Ledger:
    """Claims as they add up while one plan is made."""

    claimed: dict[str, int] = field(default_factory=dict)
    """GPU uuid to MiB."""
    busy: dict[str, str] = field(default_factory=dict)
    """GPU uuid to the replica that loads or stops there."""
    released: dict[str, int] = field(default_factory=dict)
    """GPU uuid to MiB still in use by replicas that are counted as gone."""

    def add(self, claims: Mapping[str, int], *, busy_with: str | None = None) -> None:
        """Book a replica's claims."""
        for uuid, mib in claims.items():
            self.claimed[uuid] = self.claimed.get(uuid, 0) + mib
            if busy_with is not None:
                self.busy[uuid] = busy_with

    def without(self, claims: Iterable[Mapping[str, int]]) -> Ledger:
        """This ledger as if some replicas were gone."""
        copy = Ledger(dict(self.claimed), dict(self.busy))
        for each in claims:
            for uuid, mib in each.items():
                copy.claimed[uuid] = copy.claimed.get(uuid, 0) - mib
                copy.released[uuid] = copy.released.get(uuid, 0) + mib
        return copy


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one replica goes: GPU uuid to MiB; empty for a replica without GPUs."""

    claims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a replica goes nowhere now. `waiting`: it only has to wait for its turn."""

    reason: str
    waiting: bool = False


def place(model: DesiredModel, gpus: tuple[Gpu, ...] | None, ledger: Ledger) -> Placed | NoRoom:
    """Best fit: the GPUs with the least room that is still enough, those first where nothing is loading."""
    if model.gpu_count == 0:
        return Placed({})
    if gpus is None:
        return NoRoom("the GPUs cannot be read now, so nothing is placed on them", waiting=True)
    if model.gpu_count > len(gpus):
        return NoRoom(f"needs {_gpus(model.gpu_count)}, this host has {len(gpus) or 'none'}")
    allowed = _allowed(model, gpus)
    if isinstance(allowed, NoRoom):
        return allowed
    fitting = sorted(
        (gpu for gpu in allowed if _fits(model, gpu, ledger)),
        key=lambda gpu: (gpu.uuid in ledger.busy, _room(gpu, ledger), gpu.index),
    )
    if len(fitting) < model.gpu_count:
        # Whoever loads or leaves there may make room, so this is no failure yet.
        return NoRoom(_shortage(model, allowed, ledger), waiting=any(gpu.uuid in ledger.busy for gpu in allowed))
    chosen = sorted(fitting[: model.gpu_count], key=lambda gpu: gpu.index)
    for gpu in chosen:
        if gpu.uuid in ledger.busy:
            return NoRoom(f"GPU {gpu.index} is busy with {ledger.busy[gpu.uuid]}", waiting=True)
    return Placed({gpu.uuid: model.vram_mib or gpu.total_mib for gpu in chosen})


def _allowed(model: DesiredModel, gpus: tuple[Gpu, ...]) -> list[Gpu] | NoRoom:
    if not model.gpu_choice:
        return list(gpus)
    by_name = {gpu.uuid: gpu for gpu in gpus} | {str(gpu.index): gpu for gpu in gpus}
    missing = [name for name in model.gpu_choice if name not in by_name]
    if missing:
        return NoRoom(f"this host has no GPU {', '.join(missing)}")
    return list({by_name[name].uuid: by_name[name] for name in model.gpu_choice}.values())


def _room(gpu: Gpu, ledger: Ledger) -> int:
    # Memory that is used and not claimed belongs to others, or to an engine that is gone and has not released it yet.
    return gpu.total_mib - max(ledger.claimed.get(gpu.uuid, 0), _used(gpu, ledger))


def _used(gpu: Gpu, ledger: Ledger) -> int:
    return max(0, gpu.used_mib - ledger.released.get(gpu.uuid, 0))


def _fits(model: DesiredModel, gpu: Gpu, ledger: Ledger) -> bool:
    if model.vram_mib is not None:
        return _room(gpu, ledger) >= model.vram_mib
    return not ledger.claimed.get(gpu.uuid) and _used(gpu, ledger) <= gpu.total_mib * FOREIGN_USE


def _shortage(model: DesiredModel, allowed: list[Gpu], ledger: Ledger) -> str:
    rooms = ", ".join(f"GPU {gpu.index} has {max(0, _room(gpu, ledger))} of {gpu.total_mib} MiB" for gpu in allowed)
    if model.vram_mib is None:
        return f"needs {_gpus(model.gpu_count)} of its own, for it declares no vram_mib; free: {rooms}"
    return f"needs {model.vram_mib} MiB on each of {_gpus(model.gpu_count)}; free: {rooms}"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
