"""What happened between two rounds, as entries of the journal. Pure.

Levels, not events, are compared, so nothing is told twice and nothing that lasts is missed; what came and went between
two rounds is not told. Texts are without secrets, and short: `CHARS` per line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from controller.journal.entry import NewEntry
from controller.planning.actions import Action, Drain, Preflight, PullImage, Remove, Start, Stop
from controller.redaction.patterns import masked_text
from controller.redaction.redactor import Conceal
from controller.schema.status import ModelState, ModelStatus, Problem
from controller.state import (
    Failure,
    ObservedReplica,
    OpKind,
    PendingOp,
    Phase,
    ReplicaKey,
)
from controller.status.reconcile_round import Round

CHARS: Final = 500
HOLDERS: Final = 100
"""Requests named of those that an unload waits for."""
_TAIL: Final = " Last log lines:"

Leaving = Mapping[str, Mapping[str, float]]
"""Replica that leaves, to its requests, each with the Unix time since when: every gateway's `leaving`."""


def happenings(before: Round | None, after: Round, leaving: Leaving, conceal: Conceal) -> list[NewEntry]:
    """Entries in the order in which one reads them: failures, what was done about them, the states that this gave.

    `before` None: the controller's first round. Then no state is a change.
    """
    texts = _Texts(conceal)
    return [
        *_failures(before, after, texts),
        *_refusals(before, after, texts),
        *_actions(before, after, texts),
        *(_states(before.statuses, after.statuses, texts) if before is not None else ()),
        *_overdue(before, after, leaving),
    ]


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts as they may be shown."""

    conceal: Conceal

    def line(self, model: str, text: str | None) -> str | None:
        """The first line of an error: the plain words."""
        if text is None:
            return None
        first = self.conceal(model, text).strip().partition("\n")[0]
        return first.removesuffix(_TAIL).removesuffix(".")[:CHARS]

    def tail(self, model: str, text: str) -> list[JsonValue]:
        """The lines after the first: the engine's last log lines."""
        return [line[:CHARS] for line in self.conceal(model, text).strip().splitlines()[1:]]


# States.


def _states(before: Collection[ModelStatus], after: Collection[ModelStatus], texts: _Texts) -> Iterator[NewEntry]:
    known = {status.name: status.state for status in before}
    now = {status.name: status for status in after}
    for name in sorted(known.keys() | now.keys()):
        status = now.get(name)
        old, new = known.get(name), status.state if status is not None else None
        if old is new:
            continue
        error = texts.line(name, status.last_error) if status is not None else None
        details: dict[str, JsonValue] = {"from": old and old.value, "to": new and new.value, "last_error": error}
        yield NewEntry("state", "controller", _state_words(old, new, error), name, details)


def _state_words(old: ModelState | None, new: ModelState | None, error: str | None) -> str:
    if new is None:
        return "is gone"
    words = f"is {new.value}" if old is None else f"{old.value} -> {new.value}"
    return f"{words}: {error}" if new is ModelState.FAILED and error else words


# Actions.


def _actions(before: Round | None, after: Round, texts: _Texts) -> Iterator[NewEntry]:
    """An end that the runtime refuses is issued again and again, and told once."""
    told = {_same(action) for action in _issued(before)} if before is not None else set()
    ending = before.observed.pending if before is not None else {}
    for action in _issued(after):
        if isinstance(action, Preflight) or _same(action) in told:
            continue
        if isinstance(action, Stop | Remove) and _ends(ending.get(action.name), action):
            continue
        what = _what(action)
        details: dict[str, JsonValue] = {"action": action.kind, **what}
        subject = what.get("replica", what.get("image"))
        words = texts.line(action.model, f"{action.kind} {subject}: {action.reason}") or ""
        yield NewEntry("action", "controller", words, action.model, details)


def _issued(done: Round) -> tuple[Action, ...]:
    return () if done.desired.paused else done.plan.actions


def _same(action: Action) -> tuple[object, ...]:
    """What makes it the same action as one of the round before."""
    match action:
        case Preflight():
            return action.kind, action.model, action.spec_hash, action.reason
        case PullImage():
            return action.kind, action.model, action.image, action.reason
        case _:
            return action.kind, action.id, action.reason


def _ends(pending: PendingOp | None, action: Stop | Remove) -> bool:
    """Whether it was under way, which was told: between two tries there may be rounds that have nothing to do."""
    return pending is not None and pending.kind is (OpKind.STOP if isinstance(action, Stop) else OpKind.REMOVE)


def _what(action: Action) -> dict[str, JsonValue]:
    match action:
        case Start():
            return {"replica": f"{action.model}/{action.id.index}", "attempt": action.id.attempt}
        case Drain():
            return {"replica": action.name, "deadline": action.deadline}
        case PullImage():
            return {"image": action.image}
        case Preflight():
            return {}
        case _:
            return {"replica": action.name}


# Failures.


def _failures(before: Round | None, after: Round, texts: _Texts) -> Iterator[NewEntry]:
    """Engines that ended or never became ready, and starts that the runtime refused."""
    known = before.observed.failures if before is not None else {}
    seen = [*after.observed.replicas, *(before.observed.replicas if before is not None else ())]
    for key, failure in sorted(after.observed.failures.items()):
        if not _is_new(known.get(key), failure):
            continue
        words, tail = texts.line(key.model, failure.error) or "", texts.tail(key.model, failure.error)
        details: dict[str, JsonValue] = {
            "replica": f"{key.model}/{key.index}",
            "attempt": failure.attempt,
            "failures": failure.count,
            "retry_at": failure.retry_at,
            "was_ready": _was_ready(key, failure, seen),
            "log": tail,
        }
        # What an engine says last is mostly why.
        yield NewEntry("failure", "engine", f"{words}: {tail[-1]}" if tail else words, key.model, details)


def _is_new(known: Failure | None, failure: Failure) -> bool:
    return known is None or (known.count, known.at) != (failure.count, failure.at)


def _was_ready(key: ReplicaKey, failure: Failure, seen: Collection[ObservedReplica]) -> bool:
    """True: an engine that served crashed; False: a load failed."""
    return any(
        each.id.key == key and each.id.attempt == failure.attempt and each.ready_since is not None for each in seen
    )


def _refusals(before: Round | None, after: Round, texts: _Texts) -> Iterator[NewEntry]:
    """Models that cannot be started as they are declared, and images that cannot be pulled. Looked at again and again,
    told once.
    """
    checked = before.observed.preflights if before is not None else {}
    for (model, spec_hash), result in sorted(after.observed.preflights.items(), key=lambda item: item[0]):
        known = checked.get((model, spec_hash))
        told = known is not None and known.error == result.error
        if not result.ok and result.missing_image is None and not told:
            words = f"cannot be started: {texts.line(model, result.error) or 'preflight failed'}"
            yield NewEntry("failure", "controller", words, model)
    pulled = before.observed.pulls if before is not None else {}
    for image, failure in sorted(after.observed.pulls.items()):
        if failure is None or not _is_new(pulled.get(image), failure):
            continue
        users = [each.name for each in after.desired.models.values() if each.image == image and each.replicas]
        for model in users:
            details: dict[str, JsonValue] = {
                "image": image,
                "failures": failure.count,
                "retry_at": failure.retry_at,
            }
            yield NewEntry("failure", "controller", texts.line(model, failure.error) or "", model, details)


# Unloads that do not come to an end.


def _overdue(before: Round | None, after: Round, leaving: Leaving) -> Iterator[NewEntry]:
    """Operators' unloads whose drain deadline has passed. It only reports: requests are never cut off by it."""
    told = {replica.name for replica in _late(before)} if before is not None else set()
    fresh: dict[str, list[str]] = {}
    for replica in _late(after):
        if replica.name not in told:
            fresh.setdefault(replica.id.model, []).append(replica.name)
    for model, replicas in sorted(fresh.items()):
        held_by: list[JsonValue] = [
            {"request_id": request, "replica": replica, "since": since}
            for replica in sorted(replicas)
            for request, since in sorted(leaving.get(replica, {}).items(), key=lambda item: (item[1], item[0]))
        ]
        timeout = after.desired.models[model].drain_timeout_s
        what = f"{len(held_by)} running request(s)" if held_by else "requests that no gateway names"
        words = f"the unload has waited longer than {timeout:g} s, for {what}"
        details: dict[str, JsonValue] = {"replicas": list[JsonValue](sorted(replicas)), "held_by": held_by[:HOLDERS]}
        yield NewEntry("overdue", "controller", words, model, details)


def _late(done: Round) -> Iterator[ObservedReplica]:
    for replica in done.observed.replicas:
        want = done.desired.models.get(replica.id.model)
        if want is None or want.statement.kind != "unload" or replica.draining is None:
            continue
        if replica.phase is not Phase.EXITED and replica.draining.since + want.drain_timeout_s <= done.observed.at:
            yield replica


# What is wrong with the files, and with looking at engines.


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps the controller from its work, beside models."""

    problems: tuple[Problem, ...] = ()
    """Of the files, which show no secrets: what was last good rules."""
    error: str | None = None
    """Of the last observation: nothing is changed meanwhile."""


def troubles(before: Trouble, after: Trouble) -> list[NewEntry]:
    """Entries for files that became broken, otherwise broken, or good again; for observations that began to fail, or to
    succeed.
    """
    entries = []
    if after.problems and after.problems != before.problems:
        listed: list[JsonValue] = [str(problem)[:CHARS] for problem in after.problems]
        more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
        words = f"the files have problems; what was last good rules: {listed[0]}{more}"
        entries.append(NewEntry("problem", "files", words, details={"problems": listed}))
    elif before.problems and not after.problems:
        entries.append(NewEntry("problem", "files", "the files are good again", details={"problems": []}))
    if after.error is not None and before.error is None:
        error = masked_text(after.error)[:CHARS]
        words = f"engines cannot be observed, so nothing is changed: {error}"
        entries.append(NewEntry("problem", "controller", words, details={"error": error}))
    elif after.error is None and before.error is not None:
        entries.append(NewEntry("problem", "controller", "engines are observed again", details={"error": None}))
    return entries
