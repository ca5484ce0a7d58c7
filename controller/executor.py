"""Carries out the plan's actions, as tasks, and knows what is under way.

The reconciler starts each task and never awaits it. What no observation shows is known here alone: operations,
failures, drains. That knowledge is lost when the controller dies, except what `controller.state_dir.StoredState` keeps.
The plan of a new controller then finds the same replicas and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from controller.downloads.service import SourceDownloader, SourceDownloadError
from controller.engines import REPLICA_ENGINES
from controller.engines.base import Verdict
from controller.hosts import is_memory_key
from controller.observe.sleep import Sleeper, SleepError, SleepTarget
from controller.planning.actions import (
    Action,
    DownloadSource,
    Drain,
    FetchFiles,
    Preflight,
    PullImage,
    PutToSleep,
    Remove,
    Start,
    Stop,
    Undrain,
    Wake,
)
from controller.planning.backoff import has_recovered, next_failure, with_log_tail
from controller.planning.draining import DrainState
from controller.redaction import Redact, redact_nothing
from controller.runtimes.base import (
    Runtime,
    RuntimeUnavailableError,
    StartError,
    StartRequest,
    replica_name,
    replica_token,
)
from controller.state import (
    AttemptNumbers,
    DesiredModel,
    DesiredState,
    Failure,
    FetchKey,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    PullKey,
    ReplicaId,
    ReplicaKey,
    StartFailure,
)
from controller.state_dir import SleepRecord

log = logging.getLogger(__name__)


UNAVAILABLE: Final = "what runs the engines cannot be asked now"
"""In place of a runtime's own words, for clients."""
INTERNAL: Final = "internal error"

FIRST_REMINDER_S: Final = 60.0
"""Seconds until the log first repeats an error that stays the same. Each later pause is twice as long."""
LONGEST_REMINDER_S: Final = 3600.0
"""Seconds between two repetitions at most."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A run of failed preflights of one definition with the same error. Times are Unix times in seconds."""

    error: str
    since: float
    """When the log first had this error."""
    mentioned_at: float
    """When the log last had this error."""
    mentions: int = 1
    """How often the log had this error."""


def decide_mention(known: Refusal | None, error: str, now: float) -> Refusal | None:
    """Decide whether the log mentions a failed preflight now, at Unix time `now`. Return what to pass as `known` next
    time; None: do not mention it, and keep `known`. This function logs nothing. A new error is to be logged at once;
    the same error again after 60 s, then after pauses that double up to an hour. `known` is the last result that was
    not None; None: there was none since a preflight of the definition succeeded."""
    if known is None or known.error != error:
        return Refusal(error, since=now, mentioned_at=now)
    wait_s = min(LONGEST_REMINDER_S, FIRST_REMINDER_S * 2.0 ** min(known.mentions - 1, 20))
    # If `now` is before `mentioned_at`, the clock was set back.
    if known.mentioned_at <= now < known.mentioned_at + wait_s:
        return None
    return replace(known, mentioned_at=now, mentions=known.mentions + 1)


async def run_preflight(
    runtime: Runtime, model: DesiredModel, *, host: str = "", redact: Redact, clock: Callable[[], float]
) -> PreflightResult:
    """Check on a host whether the model could start, and return the result, with secrets masked. Starts nothing. An
    exception of the runtime is not raised: it becomes a failed result, dated by `clock` (Unix time in seconds)."""
    try:
        result = await runtime.check_preflight(model.name, model.definition, model.image, host)
    except RuntimeUnavailableError as error:
        result = PreflightResult(False, clock(), str(error), plain=UNAVAILABLE)
    except Exception as fault:
        log.exception("the preflight of %s failed", model.name)
        result = PreflightResult(False, clock(), f"{INTERNAL}: {fault!r}", plain=INTERNAL)
    if result.error is None:
        return result
    return replace(result, error=redact(model.name, result.error))


MOST_START_FAILURES = 4
"""Failed starts that are kept of each replica key."""
MOST_FAILED_SLEEPS = 2
"""Failed sleeps and wakes in a row after which a definition sleeps no more."""
CLOCK_SLACK_S = 60.0
"""An operation whose end lies more than this many seconds in the future ended before the clock was set back."""


@dataclass(slots=True)
class OperationState:
    """The operations, results and failures of one controller. Use it on the controller's event loop only."""

    pending: dict[str, PendingOp] = field(default_factory=dict)
    """The operation of each replica, by replica name, until an observation that began after its end."""
    preflights: dict[PreflightKey, PreflightResult] = field(default_factory=dict)
    """The last results."""
    preflighting: dict[PreflightKey, object] = field(default_factory=dict)
    """Preflights under way, each with a unique mark. A result whose mark is no longer here is
    dropped, because its preflight was forgotten or issued again meanwhile."""
    refusals: dict[PreflightKey, Refusal] = field(default_factory=dict)
    """What the log last said about failing preflights."""
    pulls: dict[PullKey, Failure | None] = field(default_factory=dict)
    """Image and host to the failed pull; None: its pull is under way."""
    downloads: dict[str, Failure | None] = field(default_factory=dict)
    """Source to its failed download; None: its download is under way."""
    fetches: dict[FetchKey, Failure | None] = field(default_factory=dict)
    """Model and host to the failed fetch of its files from other hosts; None: it is under way."""
    failures: dict[ReplicaKey, Failure] = field(default_factory=dict)
    """Consecutive failures by replica key, which decide when the next start may be tried."""
    start_failures: dict[ReplicaKey, tuple[StartFailure, ...]] = field(default_factory=dict)
    """The last `MOST_START_FAILURES` failed starts by replica key, oldest first."""
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    """The highest attempt number of every replica ever started, also by earlier controllers."""
    drains: dict[str, DrainState] = field(default_factory=dict)
    """Drains under way, by replica name."""
    loaded_once: set[str] = field(default_factory=set)
    """Models that were `loaded` since they were last wanted. Such a model stays `loaded` with one ready replica."""
    left_at: dict[str, float] = field(default_factory=dict)
    """GPU uuid to Unix time at which a replica on that GPU was last found gone."""
    sleepers: dict[str, SleepRecord] = field(default_factory=dict)
    """Replicas that can sleep, by name, also of earlier controllers."""
    asleep_mib: dict[tuple[str, str], int] = field(default_factory=dict)
    """(Model, spec hash) to the MiB that a replica of it held of one GPU, the fullest, when one was last seen
    asleep."""
    faults: dict[str, str] = field(default_factory=dict)
    """Replica name to why its sleep or wake failed, so that it must be stopped."""
    failed_sleeps: dict[tuple[str, str], int] = field(default_factory=dict)
    """(Model, spec hash) to how many sleeps and wakes of its replicas failed since the last wake that went well."""
    counted_failures: set[str] = field(default_factory=set)
    """Names of replicas whose failure was counted. A stop that is issued again must not count it a second time."""

    def with_operations(self, observed: ObservedState) -> ObservedState:
        """Return a copy of the observation with the operations, preflights, pulls, downloads, failures, attempts,
        `loaded_once` and `left_at` that are known here. `observed` is not changed. Drains are not added: the reconciler
        sets them per replica."""
        return replace(
            observed,
            pending=dict(self.pending),
            preflights=dict(self.preflights),
            preflighting=frozenset(self.preflighting),
            pulls=dict(self.pulls),
            downloads=dict(self.downloads),
            fetches=dict(self.fetches),
            failures=dict(self.failures),
            start_failures=dict(self.start_failures),
            attempts=self.attempts,
            loaded_once=frozenset(self.loaded_once),
            left_at=dict(self.left_at),
        )

    def note_released_gpus(
        self, previous_replicas: Iterable[ObservedReplica], replicas: Iterable[ObservedReplica], now: float
    ) -> None:
        """Note in `left_at` that replicas left their GPUs at `now`, Unix time: those that ran in the previous
        observation and no longer run in this one, and those that this one is the first to show and that have ended."""
        previous, current = ({each.name: each for each in seen} for seen in (previous_replicas, replicas))
        for name, replica in (current | previous).items():
            had_ended = name in previous and replica.phase is Phase.EXITED
            if not had_ended and (name not in current or current[name].phase is Phase.EXITED):
                self.left_at.update(dict.fromkeys((uuid for uuid in replica.claims if not is_memory_key(uuid)), now))

    def note_attempts(self, replicas: Iterable[ReplicaId]) -> None:
        """Raise the attempt numbers in `attempts` to those of replicas that are being started or were seen, so that no
        name is used twice. A lower number than the known one changes nothing. The caller must store `attempts`."""
        for replica in replicas:
            self.attempts = self.attempts.with_attempt(replica.key.text, replica.attempt)

    def begin_operation(self, name: str, operation: PendingOp) -> None:
        """Record an operation that is being issued for the replica `name`. Raises AssertionError if another operation
        of the replica is under way: there is at most one at a time."""
        previous_operation = self.pending.get(name)
        assert previous_operation is None or previous_operation.finished_at is not None, (
            f"{name} has an operation under way"
        )
        self.pending[name] = operation

    def finish_operation(self, name: str, now: float) -> None:
        """Record that the operation of the replica `name` ended at `now` (Unix time), successfully or not. It stays
        known until `forget_finished` drops it. Raises KeyError if there is no operation of that replica."""
        self.pending[name] = replace(self.pending[name], finished_at=now)

    def forget_finished(self, began_at: float, silent_hosts: Collection[str] = ()) -> None:
        """Drop the operations that ended before `began_at`, the Unix time at which an observation began: it shows their
        effects, except on the hosts that did not answer it. Also drop those whose end lies more than 60 s
        (`CLOCK_SLACK_S`) after it: the clock was set back."""
        finished_names = [
            name
            for name, operation in self.pending.items()
            if operation.finished_at is not None
            and operation.host not in silent_hosts
            and (operation.finished_at < began_at or operation.finished_at > began_at + CLOCK_SLACK_S)
        ]
        for name in finished_names:
            del self.pending[name]

    def record_failure(
        self,
        replica: ReplicaId,
        verdict: Verdict,
        now: float,
        *,
        host: str = "",
        ready_for_s: float | None = None,
        began_at: float | None = None,
    ) -> Failure:
        """Count a failure of a replica on `host` towards the backoff of its key there, and return the key's failures so
        far. `now` is Unix time. `ready_for_s` says for how many seconds the replica had been ready; None: never, or its
        ready time does not count. `began_at` is the Unix time of the start that failed; None: the engine had been
        ready, so that its start did not fail."""
        if began_at is not None:
            failed_starts = self.start_failures.get(replica.key, ())
            words = verdict.message if verdict.plain is None else verdict.plain
            failed_start = StartFailure(words, max(0.0, now - began_at))
            self.start_failures[replica.key] = (*failed_starts, failed_start)[-MOST_START_FAILURES:]
        key = replace(replica.key, host=host)
        failure = next_failure(self.failures.get(key), verdict, replica.attempt, now, ready_for_s=ready_for_s)
        self.failures[key] = failure
        return failure

    def prune_state(self, desired: DesiredState, replicas: Iterable[ObservedReplica], now: float) -> None:
        """Forget what no longer matters. `replicas` are all that were observed, `now` is Unix time.

        That is: failures and preflights of definitions that were edited or are no longer wanted (those of an evicted
        model stay), failures of replicas that have recovered, failed pulls of images and failed downloads of sources
        that no model uses, drains of replicas that are gone, drains of wanted replicas while the controller is paused,
        and `loaded_once` of models that are neither wanted nor still serve.
        """
        replicas = list(replicas)
        wanted_models = {name for name, model in desired.models.items() if model.replicas}
        # An evicted model keeps its failures: they count again when a request loads it.
        current_specs = {
            (name, model.spec_hash) for name, model in desired.models.items() if model.replicas or model.demand_replicas
        }
        proven_keys = {replica.failure_key for replica in replicas if has_recovered(replica, now)}
        self.failures = {
            key: failure
            for key, failure in self.failures.items()
            if (key.model, key.spec_hash) in current_specs and key not in proven_keys
        }
        self.start_failures = {
            key: failed_starts
            for key, failed_starts in self.start_failures.items()
            if (key.model, key.spec_hash) in current_specs
        }
        self.preflights = {key: result for key, result in self.preflights.items() if key[:2] in current_specs}
        self.refusals = {key: refusal for key, refusal in self.refusals.items() if key[:2] in current_specs}
        replica_names = {replica.name for replica in replicas}
        staying_names = {each.name for each in replicas if desired.paused and _is_wanted(each, desired)}
        self.drains = {name: drain for name, drain in self.drains.items() if name in replica_names - staying_names}
        self.counted_failures &= replica_names
        self.sleepers = {name: record for name, record in self.sleepers.items() if name in replica_names}
        self.faults = {name: fault for name, fault in self.faults.items() if name in replica_names}
        self.asleep_mib = {key: mib for key, mib in self.asleep_mib.items() if key in current_specs}
        self.failed_sleeps = {key: count for key, count in self.failed_sleeps.items() if key in current_specs}
        images = {model.image for model in desired.models.values()}
        self.pulls = {
            key: failure_state
            for key, failure_state in self.pulls.items()
            if failure_state is None or key.image in images
        }
        sources = {model.missing_source for model in desired.models.values()}
        self.downloads = {
            source: failure_state
            for source, failure_state in self.downloads.items()
            if failure_state is None or source in sources
        }
        self.fetches = {
            key: failure for key, failure in self.fetches.items() if failure is None or key[:2] in current_specs
        }
        # A model whose unload is revoked during the drain goes on serving with the replicas that are left.
        serving_models = {each.id.model for each in replicas if each.ready_since is not None and not each.is_asleep}
        self.loaded_once &= wanted_models | serving_models

    def reset_failures(self, model: DesiredModel) -> None:
        """Forget a model's failures as `forget_failures` does, because it is loaded anew. It counts as loaded again
        only once all replicas are ready."""
        self.forget_failures(model)
        self.loaded_once.discard(model.name)

    def forget_failures(self, model: DesiredModel) -> None:
        """Forget a model's failures, preflights, failed pull and failed download, so that the next try need not wait
        for a backoff. The result of a preflight under way will be dropped; a pull or download under way goes on.
        `start_failures` stays. Nothing is started: the next plan does that."""
        self.failures = {key: failure for key, failure in self.failures.items() if key.model != model.name}
        self.preflights = {key: result for key, result in self.preflights.items() if key[0] != model.name}
        self.preflighting = {key: mark for key, mark in self.preflighting.items() if key[0] != model.name}
        self.refusals = {key: refusal for key, refusal in self.refusals.items() if key[0] != model.name}
        self.pulls = {
            key: failure for key, failure in self.pulls.items() if failure is None or key.image != model.image
        }
        self.fetches = {
            key: failure for key, failure in self.fetches.items() if failure is None or key.model != model.name
        }
        if model.missing_source is not None and self.downloads.get(model.missing_source) is not None:
            del self.downloads[model.missing_source]

    def list_failed(self, models: Iterable[DesiredModel]) -> list[DesiredModel]:
        """Return those of the models whose last check or start failed, of their present definition: they wait for the
        next try, or for nothing but an edit."""
        failed_keys = {(key.model, key.spec_hash) for key, result in self.preflights.items() if not result.ok}
        failed_keys |= {(key.model, key.spec_hash) for key in self.failures}
        return [model for model in models if (model.name, model.spec_hash) in failed_keys]

    def is_stopping(self, name: str) -> bool:
        """Return whether a stop or removal of the replica of this name is under way, or has ended and not yet been
        dropped by `forget_finished`. False for an unknown name."""
        operation = self.pending.get(name)
        return operation is not None and operation.kind is not OpKind.START

    def note_asleep(self, name: str, claims: Iterable[str], now: float) -> None:
        """Record that the replica `name` sleeps since `now`, Unix time, and has let go of memory on the GPUs among
        `claims`. Its drain is over."""
        self.sleepers[name] = self.sleepers[name].model_copy(update={"since": now})
        self.left_at.update(dict.fromkeys((uuid for uuid in claims if not is_memory_key(uuid)), now))
        self.drains.pop(name, None)

    def note_awake(self, name: str, began_at: float, now: float) -> None:
        """Record that a wake of the replica `name` began at `began_at` and ended well at `now`, Unix times."""
        update = {"since": None, "woken_at": now, "wake_s": max(0.0, now - began_at)}
        self.sleepers[name] = self.sleepers[name].model_copy(update=update)
        self.drains.pop(name, None)


def _is_wanted(replica: ObservedReplica, desired: DesiredState) -> bool:
    model = desired.models.get(replica.id.model)
    return model is not None and replica.id.index < model.replicas


Clock = Callable[[], float]

REFUSED_PAUSE_S = 2.0
"""Seconds for which a stop or removal that the runtime refused still counts as under way, so that the next round does
not issue it again at once."""


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """`instance` and `secret` are the installation's, for the names and tokens of replicas. `stop_timeout_s` is the
    grace period of stops. `redact` masks secrets in errors and logs; by default nothing is masked. `fetch_files` has
    the files of a model (its name) fetched by a host from others, all named, and `cancel_fetch` ends that for a model
    and a host, and is told whether the model is wanted by another definition; None: there is one host."""

    instance: str
    secret: bytes
    stop_timeout_s: float
    redact: Redact = redact_nothing
    fetch_files: Callable[[str, str, Sequence[str]], Awaitable[None]] | None = None
    cancel_fetch: Callable[[str, str, bool], Awaitable[None]] | None = None


class Executor:
    """Carries out a plan's actions on one runtime, each in an asyncio task, and records in `memory` which operations
    are under way and which failed. The reconciler issues the actions. Use it on one event loop; before that
    loop ends, call `wait_until_idle`."""

    def __init__(
        self,
        runtime: Runtime,
        memory: OperationState,
        downloader: SourceDownloader,
        sleeper: Sleeper,
        *,
        options: ExecutorOptions,
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`wake` is called whenever an action has ended, to wake the reconciler. `clock` returns
        Unix time in seconds."""
        self._redact = options.redact
        self._sleeper = sleeper
        self._runtime = runtime
        self._downloader = downloader
        self._memory = memory
        self._options = options
        self._wake = wake
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulls: set[asyncio.Task[None]] = set()
        self._sleeps: set[asyncio.Task[None]] = set()
        self._downloads: dict[str, asyncio.Task[None]] = {}
        self._fetches: dict[FetchKey, asyncio.Task[None]] = {}
        self._issued_counts: Counter[str] = Counter()

    def count_issued(self) -> dict[str, int]:
        """Return how many actions this object issued, by kind, whether or not they succeeded. Kinds without one are
        absent."""
        return dict(self._issued_counts)

    def replica_token(self, name: str) -> str:
        """Return the bearer token that only the replica of this name accepts. It is derived from the name, not stored,
        so there is one for every name."""
        return replica_token(self._options.secret, name)

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
            case PullImage() | DownloadSource() | FetchFiles():
                self._bring(action)
            case Start():
                self._start(action, desired)
            case Drain():
                self._memory.drains[action.name] = DrainState(since=self._clock())
            case Undrain():
                self._memory.drains.pop(action.name, None)
            case Stop() | Remove():
                self._end(action, replicas[action.name])
            case PutToSleep():
                self._put_to_sleep(action, desired, replicas[action.name])
            case Wake():
                self._wake_replica(action, desired, replicas[action.name])

    async def wait_until_idle(self) -> None:
        """Wait until no operation, preflight, download or image pull is under way, however long that takes; also for
        those that are issued meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel_pulls(self) -> None:
        """Cancel all image pulls, and stop waiting for downloads and for copies to hosts, which go on in `transfers`,
        and for sleeps and wakes. Returns at once. Call it when the controller ends, then `wait_until_idle`. What is
        cancelled stays recorded as under way; of a sleep or wake, the next controller's probes tell how it ended."""
        for task in (*self._pulls, *self._sleeps, *self._downloads.values()):
            task.cancel()

    def cancel_unused_downloads(self, desired: DesiredState) -> None:
        """End the downloads of sources that no declared model waits for any more, and the copies for models that are
        not wanted. Returns at once; a download that cannot be cancelled is logged, and goes on."""
        if self._fetches:
            self._cancel_fetches(desired)
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
        key = PreflightKey(action.model, action.spec_hash, action.host)
        mark = self._memory.preflighting[key] = object()

        async def work() -> None:
            result = await run_preflight(self._runtime, model, host=action.host, redact=self._redact, clock=self._clock)
            if self._memory.preflighting.get(key) is not mark:
                return
            del self._memory.preflighting[key]
            self._memory.preflights[key] = result
            self._log_preflight(key, result)
            self._wake()

        self._spawn(work())

    def _log_preflight(self, key: PreflightKey, result: PreflightResult) -> None:
        model = f"{key.model} on host {key.host}" if key.host else key.model
        now = self._clock()
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

    def _bring(self, action: PullImage | DownloadSource | FetchFiles) -> None:
        if isinstance(action, PullImage):
            self._pull(action)
        elif isinstance(action, DownloadSource):
            self._download(action)
        else:
            self._fetch(action)

    def _pull(self, action: PullImage) -> None:
        key = PullKey(action.image, action.host)
        previous_failure = self._memory.pulls.get(key)
        if key in self._memory.pulls and previous_failure is None:
            return  # under way for another model
        self._memory.pulls[key] = None

        async def work() -> None:
            try:
                await self._runtime.pull_image(action.image, action.host)
                self._memory.pulls.pop(key, None)
                preflights = self._memory.preflights
                self._memory.preflights = {each: preflights[each] for each in preflights if each.host != action.host}
            except Exception as error:
                if not isinstance(error, StartError | RuntimeUnavailableError):
                    log.exception("the pull of %s failed", action.image)
                plain = f"image {action.image} is missing and cannot be pulled"
                self._memory.pulls[key] = self._count_failure(previous_failure, action.model, plain, error)
            self._wake()

        task = self._spawn(work())
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)

    def _fetch(self, action: FetchFiles) -> None:
        key = FetchKey(action.model, action.spec_hash, action.host)
        previous_failure, fetch_files = self._memory.fetches.get(key), self._options.fetch_files
        assert fetch_files is not None, "an only host has its files from nobody"
        self._memory.fetches[key] = None

        async def work() -> None:
            try:
                await fetch_files(action.model, action.host, action.sources)
                self._memory.fetches.pop(key, None)
                if self._fetches.get(key) is task:
                    del self._fetches[key]  # a failed one stays: what it has left is removed when nobody wants it
                preflights = self._memory.preflights
                checked = PreflightKey(*key)
                self._memory.preflights = {each: preflights[each] for each in preflights if each != checked}
            except Exception as error:
                if not isinstance(error, StartError | RuntimeUnavailableError):
                    log.exception("the copy of the files of %s to host %s failed", action.model, action.host)
                plain = f"the files of {action.model} cannot be copied to host {action.host}"
                self._memory.fetches[key] = self._count_failure(previous_failure, action.model, plain, error)
            self._wake()

        task = self._fetches[key] = self._spawn(work())
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)

    def _cancel_fetches(self, desired: DesiredState) -> None:
        """End the copies, also failed ones, for definitions that are not declared or wanted any more."""
        for key in list(self._fetches):
            model = desired.models.get(key.model)
            is_wanted = model is not None and bool(model.replicas or model.demand_replicas)
            if not is_wanted or (model is not None and model.spec_hash != key.spec_hash):
                self._fetches.pop(key).cancel()
                self._memory.fetches.pop(key, None)
                self._spawn(self._cancel_fetch(key, is_wanted))

    async def _cancel_fetch(self, key: FetchKey, is_wanted: bool) -> None:
        assert self._options.cancel_fetch is not None, "what was begun can be ended"
        try:
            await self._options.cancel_fetch(key.model, key.host, is_wanted)
        except (StartError, RuntimeUnavailableError) as error:
            log.warning("the copy of the files of %s to host %s cannot be ended: %s", key.model, key.host, error)

    def _count_failure(self, previous: Failure | None, model: str, plain: str, error: Exception) -> Failure:
        """Return the failures of a pull or a download by now, and log the last one."""
        verdict = Verdict(self._redact(model, f"{plain}: {error}"), plain=plain)
        log.warning("%s", verdict.message)
        return next_failure(previous, verdict, 0, self._clock(), ready_for_s=None)

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
                failure = self._count_failure(previous_failure, action.model, f"{source} cannot be downloaded", error)
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
        name = replica_name(self._options.instance, action.id)
        self._memory.begin_operation(
            name, PendingOp(OpKind.START, action.id, action.claims, self._clock(), host=action.host)
        )
        request = StartRequest(
            id=action.id,
            name=name,
            definition=model.definition,
            served_name=model.name,
            image=model.image,
            token=self.replica_token(name),
            claims=action.claims,
            host=action.host,
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
        self._memory.record_failure(action.id, verdict, self._clock(), host=action.host, began_at=began_at)

    def _end(self, action: Stop | Remove, replica: ObservedReplica) -> None:
        """Stop or remove a replica. A failed one counts as a failure when its end is first issued, and only once."""
        now = self._clock()
        kind = OpKind.STOP if isinstance(action, Stop) else OpKind.REMOVE
        if action.failure is not None and action.name not in self._memory.counted_failures:
            self._memory.counted_failures.add(action.name)
            ready_since = replica.ready_since if isinstance(action, Remove) or action.served else None
            ready_for_s = None if ready_since is None else now - ready_since
            began_at = replica.created_at if replica.ready_since is None else None
            self._memory.record_failure(
                action.id, action.failure, now, host=replica.host, ready_for_s=ready_for_s, began_at=began_at
            )
            log.warning("%s failed: %s", action.name, action.failure.message)
            # The next plan decides when to start again, which may be at once.
            self._wake()
        self._memory.begin_operation(action.name, PendingOp(kind, action.id, replica.claims, now, host=replica.host))

        async def work() -> None:
            try:
                if isinstance(action, Stop):
                    await self._add_log_tail(action, replica.failure_key)
                    await self._runtime.stop_replica(action.name, self._options.stop_timeout_s)
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

    def _put_to_sleep(self, action: PutToSleep, desired: DesiredState, replica: ObservedReplica) -> None:
        model = desired.models[action.model]
        self._memory.begin_operation(
            action.name, PendingOp(OpKind.SLEEP, action.id, action.claims, self._clock(), host=replica.host)
        )

        async def work() -> None:
            await self._sleeper.put_to_sleep(self._sleep_target(model, replica))
            self._memory.note_asleep(action.name, replica.claims, self._clock())

        self._spawn_sleep(self._change_sleep(action, work(), "it could not be put to sleep"))

    def _wake_replica(self, action: Wake, desired: DesiredState, replica: ObservedReplica) -> None:
        model, began_at = desired.models[action.model], self._clock()
        self._memory.begin_operation(
            action.name, PendingOp(OpKind.WAKE, action.id, action.claims, began_at, host=replica.host)
        )

        async def work() -> None:
            canary = await self._sleeper.wake_engine(self._sleep_target(model, replica))
            if canary != self._memory.sleepers[action.name].canary:
                raise SleepError("it answers the canary otherwise than when it was loaded")
            self._memory.note_awake(action.name, began_at, self._clock())
            log.info("%s is awake after %.2f s", action.name, self._memory.sleepers[action.name].wake_s)

        self._spawn_sleep(self._change_sleep(action, work(), "it could not be woken"))

    def _spawn_sleep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._spawn(work)
        self._sleeps.add(task)
        task.add_done_callback(self._sleeps.discard)

    def _sleep_target(self, model: DesiredModel, replica: ObservedReplica) -> SleepTarget:
        calls = REPLICA_ENGINES[model.backend].describe_sleep(model.definition)
        assert calls is not None, "only a replica that can sleep is asked to"
        if replica.base_url is None:
            raise SleepError("it has no address")
        return SleepTarget(replica.base_url, calls, self.replica_token(replica.name), replica.tls)

    async def _change_sleep(self, action: PutToSleep | Wake, work: Coroutine[Any, Any, None], failure: str) -> None:
        """Do a sleep or a wake. One that fails leaves a fault, for which the next plan stops the replica."""
        error: str | None = None
        key, failed_sleeps = (action.model, action.id.spec_hash), self._memory.failed_sleeps
        try:
            await work
            if isinstance(action, Wake):
                failed_sleeps.pop(key, None)
        except SleepError as fault:
            error = str(fault)
        except Exception as fault:
            log.exception("%s of %s failed", action.kind, action.name)
            error = f"{INTERNAL}: {fault!r}"
        finally:
            if error is not None:
                failed_sleeps[key] = failed_sleeps.get(key, 0) + 1
                self._memory.faults[action.name] = self._redact(action.model, f"{failure}: {error}", action.name)
            self._memory.finish_operation(action.name, self._clock())
            self._wake()

    async def _add_log_tail(self, action: Stop, key: ReplicaKey) -> None:
        """Add the engine's last log lines to its recorded failure. Must run before the stop, which may delete them."""
        failure = self._memory.failures.get(key)
        if action.failure is None or failure is None or failure.error != action.failure.message:
            return
        log_tail = self._redact(action.model, await self._runtime.read_log_tail(action.name), action.name)
        if self._memory.failures.get(key) is not failure:
            return  # it was forgotten meanwhile, as by a load
        plain = failure.error if failure.plain is None else failure.plain
        error = with_log_tail(failure.error, log_tail)
        self._memory.failures[key] = replace(failure, error=error, plain=plain)


def _action_subject(action: Action) -> str:
    return f"{action.id.model}/{action.id.index}" if isinstance(action, Start) else action.model
