"""Compares two rounds of reconciling and makes journal entries of the differences. Pure.

It compares states, not events: nothing is recorded twice, and nothing that lasts is missed, but what came and went
between two rounds leaves no entry. Secrets are masked in all texts, and each line has at most `CHARS` characters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import JsonValue

from contract.journal import EventKind
from contract.status import ModelState, ModelStatus, Problem
from controller.engines.base import FigureGap
from controller.hosts import Host, HostState
from controller.model_status import Round, describe_gap, list_gaps
from controller.planning.actions import (
    Action,
    DownloadSource,
    Drain,
    FetchFiles,
    Preflight,
    PullImage,
    Remove,
    Start,
    Stop,
)
from controller.redaction import Redact, mask_text
from controller.state import (
    Failure,
    FetchKey,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PullKey,
    ReplicaKey,
)

CHARS: Final = 500
"""Characters of one line of an entry at most."""
HOLDERS: Final = 100
"""Requests that an entry about an overdue unload names at most."""
_TAIL: Final = " Last log lines:"


@dataclass(frozen=True, slots=True)
class NewEntry:
    """Something that happened, before the journal gave it its id and time. Must hold no secret. `model` None: it is
    about no single model."""

    kind: EventKind
    actor: str
    """`files`, `controller`, `engine`, or who asked for it."""
    message: str
    """What happened, in words for the operator."""
    model: str | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)


Leaving = Mapping[str, Mapping[str, float]]
"""Name of a replica that is no longer routed to, to the requests still running on it at any gateway: request id to
Unix time since which it runs there."""


def round_events(before: Round | None, after: Round, leaving_requests: Leaving, redact: Redact) -> list[NewEntry]:
    """Return the entries for what differs between two complete rounds, in reading order: failures, then the actions
    taken, then the changes of state, then overdue unloads, drift, hosts and GPUs. Empty if nothing differs.

    `before` is None for the controller's first round; then no state counts as changed. `leaving_requests` names the
    requests that an overdue unload waits for. `redact(model, text)` masks the secrets of a model in a text. Lines are
    cut to 500 characters (`CHARS`).
    """
    texts = _TextRedactor(redact)
    return [
        *_failure_events(before, after, texts),
        *_refusal_events(before, after, texts),
        *_action_events(before, after, texts),
        *(_state_events(before.statuses, after.statuses, texts) if before is not None else ()),
        *_overdue_events(before, after, leaving_requests),
        *_drift_events(before, after),
        *(_host_events(before.observed, after.observed) if before is not None else ()),
        *_gpu_events(before.observed if before is not None else None, after.observed),
    ]


@dataclass(frozen=True, slots=True)
class _TextRedactor:
    """Masks the secrets in texts of engines and runtimes, and shortens the texts."""

    redact: Redact

    def redact_first_line(self, model: str, text: str | None) -> str | None:
        """Return the first line of an error, which says what happened in plain words. None for None."""
        if text is None:
            return None
        first_line = self.redact(model, text).strip().partition("\n")[0]
        return first_line.removesuffix(_TAIL).removesuffix(".")[:CHARS]

    def redact_tail(self, model: str, text: str) -> list[JsonValue]:
        """Return the other lines of an error, which are the engine's last log lines."""
        return [line[:CHARS] for line in self.redact(model, text).strip().splitlines()[1:]]


# States.


def _state_events(
    before: Collection[ModelStatus], after: Collection[ModelStatus], texts: _TextRedactor
) -> Iterator[NewEntry]:
    states_before = {status.name: status.state for status in before}
    statuses_after = {status.name: status for status in after}
    for name in sorted(states_before.keys() | statuses_after.keys()):
        status = statuses_after.get(name)
        old_state, new_state = states_before.get(name), status.state if status is not None else None
        if old_state is new_state:
            continue
        error = texts.redact_first_line(name, status.last_error) if status is not None else None
        details: dict[str, JsonValue] = {
            "from": old_state and old_state.value,
            "to": new_state and new_state.value,
            "last_error": error,
        }
        yield NewEntry("state", "controller", _state_words(old_state, new_state, error), name, details)


def _state_words(old_state: ModelState | None, new_state: ModelState | None, error: str | None) -> str:
    if new_state is None:
        return "is gone"
    words = f"is {new_state.value}" if old_state is None else f"{old_state.value} -> {new_state.value}"
    return f"{words}: {error}" if new_state is ModelState.FAILED and error else words


# Actions.


def _action_events(before: Round | None, after: Round, texts: _TextRedactor) -> Iterator[NewEntry]:
    """Report each action once, although rounds repeat it: a stop that the runtime refuses is issued in every round."""
    reported_actions = {_action_identity(action) for action in _issued_actions(before)} if before is not None else set()
    pending_operations = before.observed.pending if before is not None else {}
    for action in _issued_actions(after):
        if isinstance(action, Preflight) or _action_identity(action) in reported_actions:
            continue
        if isinstance(action, Stop | Remove) and _is_under_way(pending_operations.get(action.name), action):
            continue
        target = _target_fields(action)
        details: dict[str, JsonValue] = {"action": action.kind, **target}
        subject = target.get("replica", target.get("image", target.get("source", action.model)))
        words = texts.redact_first_line(action.model, f"{action.kind} {subject}: {action.reason}") or ""
        yield NewEntry("action", "controller", words, action.model, details)


def _issued_actions(finished_round: Round) -> tuple[Action, ...]:
    return () if finished_round.desired.paused else finished_round.plan.actions


def _action_identity(action: Action) -> tuple[object, ...]:
    """Return a key that is equal for the same action in two rounds."""
    match action:
        case Preflight():
            return action.kind, action.model, action.spec_hash, action.reason
        case PullImage():
            return action.kind, action.model, action.image, action.reason
        case DownloadSource():
            return action.kind, action.model, action.source, action.reason
        case FetchFiles():
            return action.kind, action.model, action.spec_hash, action.host, action.reason
        case _:
            return action.kind, action.id, action.reason


def _is_under_way(pending: PendingOp | None, action: Stop | Remove) -> bool:
    """Return whether this stop or removal was already under way, and so already reported. Rounds between two tries of
    it may issue no action, so the previous round's actions alone do not tell."""
    return pending is not None and pending.kind is (OpKind.STOP if isinstance(action, Stop) else OpKind.REMOVE)


def _target_fields(action: Action) -> dict[str, JsonValue]:
    match action:
        case Start():
            return {"replica": f"{action.model}/{action.id.index}", "attempt": action.id.attempt}
        case Drain():
            return {"replica": action.name, "deadline": action.deadline}
        case PullImage():
            return {"image": action.image}
        case DownloadSource():
            return {"source": action.source}
        case FetchFiles():
            return {"host": action.host}
        case Preflight():
            return {}
        case _:
            return {"replica": action.name}


# Failures.


def _failure_events(before: Round | None, after: Round, texts: _TextRedactor) -> Iterator[NewEntry]:
    """Report engines that exited or never became ready, and starts that the runtime refused."""
    for key, failure, was_ready in list_new_failures(before, after):
        words, tail = (
            texts.redact_first_line(key.model, failure.error) or "",
            texts.redact_tail(key.model, failure.error),
        )
        details: dict[str, JsonValue] = {
            "replica": f"{key.model}/{key.index}",
            "attempt": failure.attempt,
            "failures": failure.count,
            "retry_at": failure.retry_at,
            "was_ready": was_ready,
            "log": tail,
        }
        # The last line of an engine's log mostly says why it failed.
        yield NewEntry("failure", "engine", f"{words}: {tail[-1]}" if tail else words, key.model, details)


def list_new_failures(before: Round | None, after: Round) -> Iterator[tuple[ReplicaKey, Failure, bool]]:
    """Yield each failure of an engine that `before` does not have, and whether the engine had been ready: True where it
    crashed, False where a load failed. `before` None: there was no round before."""
    known_failures = before.observed.failures if before is not None else {}
    observed_replicas = [*after.observed.replicas, *(before.observed.replicas if before is not None else ())]
    for key, failure in sorted(after.observed.failures.items()):
        if _is_new(known_failures.get(key), failure):
            yield key, failure, _was_ready(key, failure, observed_replicas)


def _is_new(known_failure: Failure | None, failure: Failure) -> bool:
    return known_failure is None or (known_failure.count, known_failure.at) != (failure.count, failure.at)


def _was_ready(key: ReplicaKey, failure: Failure, observed_replicas: Collection[ObservedReplica]) -> bool:
    """Return True where an engine that had been ready crashed, False where a load failed."""
    return any(
        each.failure_key == key and each.id.attempt == failure.attempt and each.ready_since is not None
        for each in observed_replicas
    )


def _refusal_events(before: Round | None, after: Round, texts: _TextRedactor) -> Iterator[NewEntry]:
    """Report models that cannot start as declared, and images and models that cannot be fetched. Every round checks
    these again; each failure is reported once."""
    known_preflights = before.observed.preflights if before is not None else {}
    for key, result in sorted(after.observed.preflights.items(), key=lambda item: item[0]):
        model, known_preflight = key.model, known_preflights.get(key)
        is_reported = known_preflight is not None and known_preflight.error == result.error
        if not result.ok and result.missing_image is None and not is_reported:
            where = f" on host {key.host}" if key.host else ""
            words = f"cannot be started{where}: {texts.redact_first_line(model, result.error) or 'preflight failed'}"
            yield NewEntry("failure", "controller", words, model)
    known_pulls = before.observed.pulls if before is not None else {}
    users = [each for each in after.desired.models.values() if each.replicas]
    for pull, failure in _list_new_fetch_failures(known_pulls, after.observed.pulls):
        names = [each.name for each in users if each.image == pull.image]
        subject = {"image": pull.image, "host": pull.host} if pull.host else {"image": pull.image}
        yield from _fetch_failure_entries(names, subject, failure, texts)
    known_downloads = before.observed.downloads if before is not None else {}
    for source, failure in _list_new_fetch_failures(known_downloads, after.observed.downloads):
        names = [each.name for each in users if each.missing_source == source]
        yield from _fetch_failure_entries(names, {"source": source}, failure, texts)
    known_fetches = before.observed.fetches if before is not None else {}
    for fetch, failure in _list_new_fetch_failures(known_fetches, after.observed.fetches):
        yield from _fetch_failure_entries([fetch.model], {"host": fetch.host}, failure, texts)


K = TypeVar("K", str, PullKey, FetchKey)


def _list_new_fetch_failures(
    known: Mapping[K, Failure | None], current: Mapping[K, Failure | None]
) -> Iterator[tuple[K, Failure]]:
    for name, failure in sorted(current.items()):
        if failure is not None and _is_new(known.get(name), failure):
            yield name, failure


def _fetch_failure_entries(
    models: Iterable[str], subject: Mapping[str, JsonValue], failure: Failure, texts: _TextRedactor
) -> Iterator[NewEntry]:
    for model in models:
        details = {**subject, "failures": failure.count, "retry_at": failure.retry_at}
        yield NewEntry("failure", "controller", texts.redact_first_line(model, failure.error) or "", model, details)


# Unloads that do not come to an end.


def _overdue_events(before: Round | None, after: Round, leaving_requests: Leaving) -> Iterator[NewEntry]:
    """Report operators' unloads whose drain deadline has passed. Nothing else follows: no request is cut off."""
    reported_names = {replica.name for replica in _late_replicas(before)} if before is not None else set()
    overdue_replicas: dict[str, list[str]] = {}
    for replica in _late_replicas(after):
        if replica.name not in reported_names:
            overdue_replicas.setdefault(replica.id.model, []).append(replica.name)
    for model, replicas in sorted(overdue_replicas.items()):
        holders: list[JsonValue] = [
            {"request_id": request, "replica": replica, "since": since}
            for replica in sorted(replicas)
            for request, since in sorted(leaving_requests.get(replica, {}).items(), key=lambda item: (item[1], item[0]))
        ]
        timeout = after.desired.models[model].drain_timeout_s
        holder_words = f"{len(holders)} running request(s)" if holders else "requests that no gateway names"
        words = f"the unload has waited longer than {timeout:g} s, for {holder_words}"
        details: dict[str, JsonValue] = {"replicas": list[JsonValue](sorted(replicas)), "held_by": holders[:HOLDERS]}
        yield NewEntry("overdue", "controller", words, model, details)


def _late_replicas(finished_round: Round) -> Iterator[ObservedReplica]:
    for replica in finished_round.observed.replicas:
        desired_model = finished_round.desired.models.get(replica.id.model)
        if desired_model is None or desired_model.statement.kind != "unload" or replica.draining is None:
            continue
        if (
            replica.phase is not Phase.EXITED
            and replica.draining.since + desired_model.drain_timeout_s <= finished_round.observed.at
        ):
            yield replica


# Engines that applied something otherwise than declared.


def _drift_events(before: Round | None, after: Round) -> Iterator[NewEntry]:
    """Report each option that a loaded engine applied otherwise than declared, once for each engine."""
    reported = set(_applied_gaps(before)) if before is not None else set()
    for (model, replica), gap in _applied_gaps(after):
        if ((model, replica), gap) not in reported:
            details: dict[str, JsonValue] = {
                "replica": replica,
                "field": gap.field,
                "declared": gap.declared,
                "applied": gap.applied,
            }
            yield NewEntry("drift", "engine", describe_gap(replica, gap), model, details)


def _applied_gaps(finished_round: Round) -> Iterator[tuple[tuple[str, str], FigureGap]]:
    """Yield each gap with its replica, as the model's and the replica's name."""
    models = finished_round.desired.models
    for replica in sorted(finished_round.observed.replicas, key=lambda each: each.id):
        for gap in list_gaps(models.get(replica.id.model), replica):
            yield (replica.id.model, replica.name), gap


# Hosts with a name.


def _host_events(before: ObservedState, after: ObservedState) -> Iterator[NewEntry]:
    """Report each host that joined, left or changed its state, and whether the controller is cut off from most."""
    known_hosts, hosts = ({host.name: host for host in each.hosts if host.name} for each in (before, after))
    for name in sorted(known_hosts.keys() | hosts.keys()):
        known, host = known_hosts.get(name), hosts.get(name)
        word = _host_word(known, host)
        if word is not None:
            reason = f": {mask_text(host.reason)}" if host is not None and host.reason else ""
            details: dict[str, JsonValue] = {
                "host": name,
                "from": known.state.value if known is not None else None,
                "to": host.state.value if host is not None else None,
            }
            yield NewEntry("host", "controller", f"host {name} {word}{reason}"[:CHARS], details=details)
    if before.is_cut_off != after.is_cut_off:
        away = sum(not host.answers for host in hosts.values())
        words = (
            f"the controller is cut off: {away} of {len(hosts)} hosts do not answer, nothing is moved"
            if after.is_cut_off
            else "the controller is not cut off any more"
        )
        yield NewEntry("host", "controller", words, details={"is_cut_off": after.is_cut_off})


def _host_word(known: Host | None, host: Host | None) -> str | None:
    """Return what became of a host; None: nothing. `known`: as it was; None: it was not there. `host`: as it is; None:
    it has left."""
    if host is None:
        return "has left"
    if known is not None and known.state is host.state:
        return None
    match host.state:
        case HostState.SILENT:
            return "is silent, and what runs there is unknown"
        case HostState.LOST:
            return "is lost, and others take over what ran there"
        case HostState.REFUSED:
            return "is refused"
        case _ if known is None:
            return "has joined" if host.state is HostState.READY else "has joined, and is drained"
        case HostState.DRAINING:
            return "is drained" if known.answers else "is back, and is drained"
        case _:
            return "is not drained any more" if known.state is HostState.DRAINING else "is back"


# GPUs that cannot be read.


def _gpu_events(before: ObservedState | None, after: ObservedState) -> Iterator[NewEntry]:
    """Report each GPU that cannot be read once, even if the reason changes later, and once more when it can be read
    again."""
    known_gpus = {gpu.label: gpu for gpu in before.unread_gpus} if before is not None else {}
    for gpu in after.unread_gpus:
        if gpu.label not in known_gpus:
            details: dict[str, JsonValue] = {"gpu": gpu.label, "uuid": gpu.uuid, "error": gpu.reason}
            yield NewEntry("problem", "controller", gpu.description[:CHARS], details=details)
    for read_gpu in after.gpus or ():
        if read_gpu.label in known_gpus:
            details = {"gpu": read_gpu.label, "uuid": read_gpu.uuid, "error": None}
            yield NewEntry("problem", "controller", f"GPU {read_gpu.label} is read again", details=details)


# What is wrong with the files, and with looking at engines.


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps the controller from its work, other than failures of models. `Trouble()`: nothing does."""

    problems: tuple[Problem, ...] = ()
    """Errors in the desired files, without secrets. The last good version of the files stays in force meanwhile."""
    error: str | None = None
    """Why the last observation failed. Nothing is changed until one succeeds; None means that it succeeded."""
    unsaved: tuple[str, ...] = ()
    """Names of the data that could not be written to the state folder."""


def trouble_events(before: Trouble, after: Trouble) -> list[NewEntry]:
    """Return entries for what changed between two states of trouble. There is an entry if the files get problems, get
    other problems or are good again; if observations begin to fail or to succeed; and if writing to the state folder
    begins to fail or to succeed."""
    entries = []
    if after.problems and after.problems != before.problems:
        problem_texts: list[JsonValue] = [str(problem)[:CHARS] for problem in after.problems]
        more_words = f" (and {len(problem_texts) - 1} more)" if len(problem_texts) > 1 else ""
        words = f"the files have problems; what was last good rules: {problem_texts[0]}{more_words}"
        entries.append(NewEntry("problem", "files", words, details={"problems": problem_texts}))
    elif before.problems and not after.problems:
        entries.append(NewEntry("problem", "files", "the files are good again", details={"problems": []}))
    if after.error is not None and before.error is None:
        error = mask_text(after.error)[:CHARS]
        words = f"engines cannot be observed, so nothing is changed: {error}"
        entries.append(NewEntry("problem", "controller", words, details={"error": error}))
    elif after.error is None and before.error is not None:
        entries.append(NewEntry("problem", "controller", "engines are observed again", details={"error": None}))
    if after.unsaved and not before.unsaved:
        words = f"the state folder cannot be written; a restart would not know: {', '.join(after.unsaved)}"
        entries.append(NewEntry("problem", "controller", words, details={"unsaved": list(after.unsaved)}))
    elif before.unsaved and not after.unsaved:
        entries.append(NewEntry("problem", "controller", "the state folder is written again", details={"unsaved": []}))
    return entries
