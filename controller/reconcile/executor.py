"""Carries out the plan's actions. Each becomes a task that the reconciler starts and never awaits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from controller.downloads.source_downloads import SourceDownloader, SourceDownloadError
from controller.engines.base import Verdict
from controller.planning.actions import (
    Action,
    DownloadSource,
    Drain,
    Preflight,
    PullImage,
    Remove,
    Start,
    Stop,
    Undrain,
)
from controller.planning.backoff import next_failure, with_log_tail
from controller.planning.draining import DrainState as DrainUnderWay
from controller.reconcile.operation_state import OperationState
from controller.reconcile.preflight import INTERNAL, UNAVAILABLE, decide_mention, run_preflight
from controller.redaction.redactor import Redact, redact_nothing
from controller.runtimes.base import Runtime, RuntimeUnavailableError, StartError, StartRequest
from controller.runtimes.naming import replica_name, replica_token
from controller.state import DesiredState, Failure, ObservedReplica, OpKind, PendingOp, PreflightResult

log = logging.getLogger(__name__)

Clock = Callable[[], float]

REFUSED_PAUSE_S = 2.0
"""Seconds for which a stop or removal that the runtime refused still counts as under way, so that the next round does
not issue it again at once."""


class Executor:
    """Carries out a plan's actions on one runtime, each in an asyncio task, and records in `memory` which operations
    are under way and which failed. The reconciler issues the actions. Use it on one event loop; before that
    loop ends, call `wait_until_idle`."""

    def __init__(
        self,
        runtime: Runtime,
        memory: OperationState,
        downloader: SourceDownloader,
        *,
        instance: str,
        secret: bytes,
        stop_timeout_s: float,
        wake: Callable[[], None],
        clock: Clock,
        redact: Redact = redact_nothing,
    ) -> None:
        """`instance` and `secret` are the installation's, for the names and tokens of replicas. `stop_timeout_s` is the
        grace period of stops. `wake` is called whenever an action has ended, to wake the reconciler. `clock` returns
        Unix time in seconds. `redact` masks secrets in errors and logs; by default nothing is masked."""
        self._redact = redact
        self._runtime = runtime
        self._downloader = downloader
        self._memory = memory
        self._instance = instance
        self._secret = secret
        self._stop_timeout_s = stop_timeout_s
        self._wake = wake
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulls: set[asyncio.Task[None]] = set()
        self._downloads: dict[str, asyncio.Task[None]] = {}
        self._issued_counts: Counter[str] = Counter()

    def count_issued(self) -> dict[str, int]:
        """Return how many actions this object issued, by kind, whether or not they succeeded. Kinds without one are
        absent."""
        return dict(self._issued_counts)

    def replica_token(self, name: str) -> str:
        """Return the bearer token that only the replica of this name accepts. It is derived from the name, not stored,
        so there is one for every name."""
        return replica_token(self._secret, name)

    def issue_action(self, action: Action, desired: DesiredState, replicas: dict[str, ObservedReplica]) -> None:
        """Begin one action of a plan for `desired`, without waiting for it. `replicas`: those observed, by name. A
        drain or its end is only noted in `memory`; the routing table that the reconciler publishes next carries it out.

        Call it in the event loop. Nothing is raised for an action that fails later: the failure is logged and, except
        for a refused stop or removal, recorded. Raises AssertionError for a start, stop or removal of a replica with an
        operation under way, and KeyError for a model or replica that `desired` or `replicas` lacks; no plan has one of
        these.
        """
        # A preflight repeats often; only its outcome is worth the operator's log.
        level = logging.DEBUG if isinstance(action, Preflight) else logging.INFO
        log.log(
            level, "%s %s: %s", action.kind, getattr(action, "name", None) or _action_subject(action), action.reason
        )
        self._issued_counts[action.kind] += 1
        match action:
            case Preflight():
                self._preflight(action, desired)
            case PullImage():
                self._pull(action)
            case DownloadSource():
                self._download(action)
            case Start():
                self._start(action, desired)
            case Drain():
                self._memory.drains[action.name] = DrainUnderWay(since=self._clock())
            case Undrain():
                self._memory.drains.pop(action.name, None)
            case Stop() | Remove():
                self._end(action, replicas[action.name])

    async def wait_until_idle(self) -> None:
        """Wait until no operation, preflight, download or image pull is under way, however long that takes; also for
        those that are issued meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel_pulls(self) -> None:
        """Cancel all image pulls, and the waits for downloads, which themselves go on, without waiting for their end.
        Call it when the controller ends, before `wait_until_idle`. What is cancelled stays recorded as under way."""
        for task in (*self._pulls, *self._downloads.values()):
            task.cancel()

    def cancel_unused_downloads(self, desired: DesiredState) -> None:
        """End the downloads of sources that no declared model waits for any more. Returns at once; a download that
        cannot be cancelled is logged, and goes on."""
        waited_for = {model.missing_source for model in desired.models.values()}
        for source in [source for source in self._downloads if source not in waited_for]:
            self._memory.downloads.pop(source, None)
            self._spawn(self._cancel_download(source, self._downloads.pop(source)))

    async def _cancel_download(self, source: str, wait: asyncio.Task[None]) -> None:
        try:
            await self._downloader.cancel_source(source)
        except SourceDownloadError as error:
            log.warning("the download of %s cannot be cancelled: %s", source, error)
        except Exception:
            log.exception("the download of %s cannot be cancelled", source)
        wait.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _preflight(self, action: Preflight, desired: DesiredState) -> None:
        model = desired.models[action.model]
        key = (action.model, action.spec_hash)
        mark = self._memory.preflighting[key] = object()

        async def work() -> None:
            result = await run_preflight(self._runtime, model, redact=self._redact, clock=self._clock)
            if self._memory.preflighting.get(key) is not mark:
                return
            del self._memory.preflighting[key]
            self._memory.preflights[key] = result
            self._log_preflight(key, result)
            self._wake()

        self._spawn(work())

    def _log_preflight(self, key: tuple[str, str], result: PreflightResult) -> None:
        model, now = key[0], self._clock()
        if result.error is None:
            if self._memory.refusals.pop(key, None) is not None:
                log.info("%s can be started by now", model)
            return
        mention = decide_mention(self._memory.refusals.get(key), result.error, now)
        if mention is None:
            return
        self._memory.refusals[key] = mention
        if mention.mentions == 1:
            log.warning("%s cannot be started: %s", model, mention.error)
        else:
            minutes = max(0, round((now - mention.since) / 60))
            log.warning("%s still cannot be started, for %d min by now: %s", model, minutes, mention.error)

    def _pull(self, action: PullImage) -> None:
        previous_failure = self._memory.pulls.get(action.image)
        if action.image in self._memory.pulls and previous_failure is None:
            return  # under way for another model
        self._memory.pulls[action.image] = None

        async def work() -> None:
            try:
                await self._runtime.pull_image(action.image)
                self._memory.pulls.pop(action.image, None)
                self._memory.preflights.clear()
            except Exception as error:
                if not isinstance(error, StartError | RuntimeUnavailableError):
                    log.exception("the pull of %s failed", action.image)
                plain = f"image {action.image} is missing and cannot be pulled"
                verdict = Verdict(self._redact(action.model, f"{plain}: {error}"), plain=plain)
                log.warning("%s", verdict.message)
                self._memory.pulls[action.image] = next_failure(
                    previous_failure, verdict, 0, self._clock(), ready_for_s=None
                )
            self._wake()

        task = self._spawn(work())
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)

    def _download(self, action: DownloadSource) -> None:
        source, previous_failure = action.source, self._memory.downloads.get(action.source)
        if source in self._memory.downloads and previous_failure is None:
            return  # under way for another model
        self._memory.downloads[source] = None

        async def work() -> None:
            failure: Failure | None = None
            try:
                await self._downloader.download_source(source)
            except Exception as error:
                if not isinstance(error, SourceDownloadError):
                    log.exception("the download of %s failed", source)
                plain = f"{source} cannot be downloaded"
                verdict = Verdict(self._redact(action.model, f"{plain}: {error}"), plain=plain)
                log.warning("%s", verdict.message)
                failure = next_failure(previous_failure, verdict, 0, self._clock(), ready_for_s=None)
            if self._downloads.get(source) is not task:
                return  # nobody waits for it any more
            del self._downloads[source]
            if failure is None:
                del self._memory.downloads[source]
            else:
                self._memory.downloads[source] = failure
            self._wake()

        task = self._downloads[source] = self._spawn(work())

    def _start(self, action: Start, desired: DesiredState) -> None:
        model = desired.models[action.id.model]
        name = replica_name(self._instance, action.id)
        self._memory.begin_operation(name, PendingOp(OpKind.START, action.id, action.claims, self._clock()))
        request = StartRequest(
            id=action.id,
            name=name,
            definition=model.definition,
            served_name=model.name,
            image=model.image,
            token=self.replica_token(name),
            claims=action.claims,
        )

        async def work() -> None:
            try:
                await self._runtime.start_replica(request)
            except StartError as error:
                self._record_start_failure(action, name, Verdict(str(error), error.permanent, plain=error.plain))
            except RuntimeUnavailableError as error:
                self._record_start_failure(action, name, Verdict(str(error), plain=UNAVAILABLE))
            except Exception as fault:
                log.exception("start of %s failed", name)
                self._record_start_failure(action, name, Verdict(f"{INTERNAL}: {fault!r}", plain=INTERNAL))
            finally:
                self._memory.finish_operation(name, self._clock())
                self._wake()

        self._spawn(work())

    def _record_start_failure(self, action: Start, name: str, verdict: Verdict) -> None:
        verdict = replace(verdict, message=self._redact(action.model, verdict.message, name))
        log.warning("start of %s failed: %s", name, verdict.message)
        began_at = self._memory.pending[name].began_at
        self._memory.record_failure(action.id, verdict, self._clock(), began_at=began_at)

    def _end(self, action: Stop | Remove, replica: ObservedReplica) -> None:
        """Stop or remove a replica. A failed one counts as a failure when its end is first issued, and only once."""
        now = self._clock()
        kind = OpKind.STOP if isinstance(action, Stop) else OpKind.REMOVE
        if action.failure is not None and action.name not in self._memory.counted_failures:
            self._memory.counted_failures.add(action.name)
            ready_since = replica.ready_since if isinstance(action, Remove) or action.served else None
            ready_for_s = None if ready_since is None else now - ready_since
            began_at = replica.created_at if replica.ready_since is None else None
            self._memory.record_failure(action.id, action.failure, now, ready_for_s=ready_for_s, began_at=began_at)
            log.warning("%s failed: %s", action.name, action.failure.message)
            # The next plan decides when to start again, which may be at once.
            self._wake()
        self._memory.begin_operation(action.name, PendingOp(kind, action.id, replica.claims, now))

        async def work() -> None:
            try:
                if isinstance(action, Stop):
                    await self._add_log_tail(action)
                    await self._runtime.stop_replica(action.name, self._stop_timeout_s)
                else:
                    await self._runtime.remove_replica(action.name)
            except RuntimeUnavailableError as error:
                log.warning("%s of %s was refused and will be issued again: %s", action.kind, action.name, error)
                await asyncio.sleep(REFUSED_PAUSE_S)
            except Exception:
                log.exception("%s of %s failed and will be issued again", action.kind, action.name)
                await asyncio.sleep(REFUSED_PAUSE_S)
            finally:
                self._memory.finish_operation(action.name, self._clock())
                self._wake()

        self._spawn(work())

    async def _add_log_tail(self, action: Stop) -> None:
        """Add the engine's last log lines to its recorded failure. Must run before the stop, which may delete them."""
        failure = self._memory.failures.get(action.id.key)
        if action.failure is None or failure is None or failure.error != action.failure.message:
            return
        log_tail = self._redact(action.model, await self._runtime.read_log_tail(action.name), action.name)
        plain = failure.error if failure.plain is None else failure.plain
        error = with_log_tail(failure.error, log_tail)
        self._memory.failures[action.id.key] = replace(failure, error=error, plain=plain)


def _action_subject(action: Action) -> str:
    return f"{action.id.model}/{action.id.index}" if isinstance(action, Start) else action.model
