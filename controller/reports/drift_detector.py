"""Detects drift: asks the runtime what replicas would be started with now, and remembers since when they differ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from contract.admin import Drift, DriftItem
from controller.model_status import Round
from controller.redaction import Redact
from controller.reports.drift import find_drift
from controller.runtimes.base import Rendered, Runtime, RuntimeUnavailableError, SeenReplica
from controller.state import DesiredModel, ObservedReplica, Phase

AT_A_TIME: Final = 4
"""Concurrent requests to the runtime at most, so that drift detection does not delay more important ones."""

Key: TypeAlias = tuple[str, str | None, str, str | None]
"""Model, replica, kind and field of a drift item. It identifies the same difference in two checks."""

log = logging.getLogger(__name__)


class DriftDetector:
    """Checks for drift (see `find_drift`), and remembers when it first saw each difference. A controller has one, whose
    memory ends with it. The `since` of an item that neither an edit of the files nor an operator's statement dates is
    the Unix time of the first check that saw it. `file_since` returns the Unix time of each model's last edit in the
    files, `clock` the Unix time now."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        file_since: Callable[[], Mapping[str, float]],
        clock: Callable[[], float],
        redact: Redact,
    ) -> None:
        self._redact = redact
        self._runtime = runtime
        self._file_since = file_since
        self._clock = clock
        self._first_seen: dict[Key, float] = {}
        self._rendered: dict[str, Rendered] = {}
        self._check_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_A_TIME)
        self.latest: Drift | None = None
        """Result of the last check; None: there was none yet."""

    async def check_drift(self, last_round: Round) -> Drift:
        """Compare what ran in a round with what is declared, return all differences, and keep them as `latest`.
        Concurrent calls run one after another, and each asks the runtime about every replica. Raises nothing if the
        runtime is unavailable: image and arguments of a replica are then compared with the runtime's last answer about
        it, or not at all if it never gave one."""
        async with self._check_lock:
            self._rendered = await self._render_replicas(last_round)
            now = self._clock()
            items = find_drift(
                last_round.desired,
                last_round.observed,
                self._rendered,
                file_since=self._file_since(),
                redact=self._redact,
                blocked=last_round.plan.blocked,
                now=now,
            )
            # Differences that are gone are forgotten: one that comes back counts as new.
            self._first_seen = {_item_key(item): self._first_seen.get(_item_key(item), item.since) for item in items}
            self.latest = Drift(items=[self._with_first_seen(item) for item in items], checked_at=now)
            return self.latest

    def _with_first_seen(self, item: DriftItem) -> DriftItem:
        if item.kind in ("declaration", "definition", "override", "statement"):
            return item
        return item.model_copy(update={"since": self._first_seen[_item_key(item)]})

    async def _render_replicas(self, last_round: Round) -> dict[str, Rendered]:
        replica_models = [
            (replica, model)
            for replica in last_round.observed.replicas
            if (model := last_round.desired.models.get(replica.id.model)) is not None
            and replica.phase is not Phase.EXITED
            and replica.id.spec_hash == model.spec_hash
        ]
        answers = await asyncio.gather(*(self._render_replica(replica, model) for replica, model in replica_models))
        return {
            replica.name: answer
            for (replica, _), answer in zip(replica_models, answers, strict=True)
            if answer is not None
        }

    async def _render_replica(self, replica: ObservedReplica, model: DesiredModel) -> Rendered | None:
        async with self._slots:
            try:
                return await self._runtime.render_replica(_to_seen_replica(replica), model.definition, model.image)
            except RuntimeUnavailableError as error:
                log.debug("whether %s has drifted is not known: %s", replica.name, error)
                # Unknown does not mean equal: go on with the last known answer.
                return self._rendered.get(replica.name)


def _item_key(item: DriftItem) -> Key:
    return item.model, item.replica, item.kind, item.field


def _to_seen_replica(replica: ObservedReplica) -> SeenReplica:
    return SeenReplica(
        id=replica.id,
        name=replica.name,
        phase=replica.phase,
        created_at=replica.created_at,
        started_at=replica.started_at,
        base_url=replica.base_url,
        claims=replica.claims if replica.start_claims is None else replica.start_claims,
        exit=replica.exit,
        image_id=replica.image_id,
        argv=replica.argv,
        host=replica.host,
    )
