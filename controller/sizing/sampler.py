"""Looks at what replicas take: when each is ready, and every ten minutes from then on, for it grows with use.

On a GPU that is what its processes hold, where the driver tells; else by how much more of the GPU was in use once it
was ready than before it was started, which no other replica can have changed: one per GPU loads or stops at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from controller.runtimes.base import RuntimeUnavailableError
from controller.sizing.history import ObservedMemory, save
from controller.state import DesiredModel, Gpu, Health, ObservedReplica, OpKind, Phase
from controller.status.reconcile_round import Round

AGAIN_S: Final = 600.0

log = logging.getLogger(__name__)


class HostMemory(Protocol):
    """The part of a runtime that says what replicas hold."""

    async def host_mib(self, name: str) -> int | None:
        """MiB; None: not known."""


@dataclass(slots=True)
class _Growth:
    """Of one replica's GPUs, by uuid: what was in use before its start, and how much more was since."""

    before: dict[str, int]
    most: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    """It was read once it was ready, or another one begins to load or to stop there: more may be somebody else's."""


class MemoryWatch:
    """Follows the rounds of one reconciler; nothing that it does holds them up."""

    def __init__(self, observed: ObservedMemory, folder: Path, runtime: HostMemory, clock: Callable[[], float]) -> None:
        """`folder` is where `observed` is kept."""
        self._observed = observed
        self._folder = folder
        self._runtime = runtime
        self._clock = clock
        self._growth: dict[str, _Growth] = {}
        self._looked: dict[str, float] = {}
        self._round_at = 0.0
        self._saved = observed.revision
        self._saving = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, done: Round) -> None:
        """Take note of a round, and look at the replicas whose time has come."""
        self._note_growth(done)
        names = {replica.name for replica in done.observed.replicas}
        self._looked = {name: at for name, at in self._looked.items() if name in names}
        gpus = done.observed.gpus
        for replica in done.observed.replicas:
            want = done.desired.models.get(replica.id.model)
            if want is None or not _serves(replica, want) or (want.gpu_count and gpus is None):
                continue
            if self._is_due(replica, done.observed.at):
                self._spawn(replica.name, self._look(replica, want, gpus or ()))
        self._round_at = done.observed.at
        self._observed.keep_only(done.desired.models)
        if self._observed.revision != self._saved:
            self._spawn("save", self._save())

    async def close(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._tasks.values())
        await self._save()

    def _note_growth(self, done: Round) -> None:
        used = {gpu.uuid: gpu.used_mib for gpu in done.observed.gpus or ()}
        pending = done.observed.pending
        # Read after it was ready.
        ready = {
            replica.name
            for replica in done.observed.replicas
            if replica.ready_since is not None and replica.ready_since <= self._round_at
        }
        for name, growth in self._growth.items():
            if not growth.ended:
                more = {uuid: used[uuid] - before for uuid, before in growth.before.items() if uuid in used}
                growth.most = {uuid: max(mib, growth.most.get(uuid, 0)) for uuid, mib in more.items()}
                growth.ended = name in ready and more.keys() == growth.before.keys()
        for name, operation in pending.items():
            # Issued after the GPUs were read: what was in use then, was before the start.
            if operation.kind is OpKind.START and operation.began_at >= done.observed.at:
                before = {uuid: used[uuid] for uuid in operation.claims if uuid in used}
                self._growth.setdefault(name, _Growth(before))
        known = {replica.name for replica in done.observed.replicas} | pending.keys()
        self._growth = {name: growth for name, growth in self._growth.items() if name in known}
        for name, growth in self._growth.items():
            growth.ended |= any(
                other != name and operation.claims.keys() & growth.before.keys() for other, operation in pending.items()
            )

    def _is_due(self, replica: ObservedReplica, now: float) -> bool:
        if replica.name in self._tasks:
            return False
        last = self._looked.get(replica.name) or self._observed.knows(replica.name)
        if last is not None:
            return not last <= now < last + AGAIN_S
        growth = self._growth.get(replica.name)
        if growth is None or not growth.before or growth.ended:
            return True
        # The GPUs may have been read just before it was ready; before the next round they were read afterwards.
        return replica.ready_since is not None and replica.ready_since <= self._round_at

    async def _look(self, replica: ObservedReplica, want: DesiredModel, gpus: tuple[Gpu, ...]) -> None:
        claimed = [gpu for gpu in gpus if gpu.uuid in replica.claims]
        held = [self._held(gpu, replica.name) for gpu in claimed]
        per_gpu = max((mib for mib in held if mib is not None), default=None) if None not in held else None
        try:
            host = await self._runtime.host_mib(replica.name)
        except RuntimeUnavailableError as error:
            log.debug("what %s holds is not known: %s", replica.name, error)
            return
        now = self._clock()
        self._looked[replica.name] = now
        if per_gpu is None and host is None:
            return
        kind = ", ".join(sorted({gpu.name for gpu in claimed})) or None
        self._observed.took(want, replica.name, kind, per_gpu_mib=per_gpu, host_mib=host, at=now)
        log.debug("%s holds %s MiB on each GPU and %s MiB of main memory", replica.name, per_gpu, host)
        await self._save()

    def _held(self, gpu: Gpu, name: str) -> int | None:
        ours = [process.mib for process in gpu.processes or () if process.replica == name]
        known = [mib for mib in ours if mib is not None]
        if ours and len(known) == len(ours):
            return sum(known)
        growth = self._growth.get(name)
        return (growth.most.get(gpu.uuid) or None) if growth is not None else None

    async def _save(self) -> None:
        async with self._saving:
            if self._observed.revision == self._saved:
                return
            self._saved, content = self._observed.revision, self._observed.content()
            try:
                await asyncio.to_thread(save, self._folder, content)
            except OSError as error:
                log.warning("what models take is not stored, so a restart would not know it: %s", error)

    def _spawn(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        if key in self._tasks:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(self._guarded(key, work))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _guarded(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            # What only tells must not take away what acts; nor is it tried in every round.
            log.exception("the look at the memory of %s failed", key)
            self._looked[key] = self._clock()


def _serves(replica: ObservedReplica, want: DesiredModel) -> bool:
    """Whether it is ready, and is what `want` says: of another one the parameters are not known any more."""
    ready = replica.phase is Phase.RUNNING and replica.health is Health.READY
    return want.runs and want.replicas > 0 and ready and replica.id.spec_hash == want.spec_hash
