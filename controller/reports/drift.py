"""Finds what runs differently from what the files declare. Pure.

It compares definitions, fields that a load overrides, replica counts that an operator changed, images, arguments and
what engines report of their configuration, and finds missing and undeclared replicas.
`controller.reports.drift_detector` asks the runtime what each replica would be started with now (`Rendered`).
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from contract.admin import DriftItem
from controller.engines import REPLICA_ENGINES
from controller.model_status import describe_gap, list_gaps
from controller.planning.actions import Blocked
from controller.redaction import Redact, mask_fields, redact_words
from controller.runtimes.base import Rendered
from controller.state import DesiredModel, DesiredState, Health, ObservedReplica, ObservedState, Phase


def find_drift(
    desired: DesiredState,
    observed: ObservedState,
    rendered: Mapping[str, Rendered],
    *,
    file_since: Mapping[str, float],
    redact: Redact,
    blocked: Iterable[Blocked] = (),
    now: float,
) -> list[DriftItem]:
    """Return every difference, in order of model names; empty: there is none. Replicas that have ended are left out.

    `rendered` maps replica names to what each would be started with now; the image and the arguments of a replica that
    is absent there are not compared. `file_since` maps a model to the Unix time of its last edit in the files.
    `blocked` says why replicas are missing. `now` is Unix time. The `since` of an item is the time of the edit or of
    the operator's statement that caused it; where neither did, it is `now`. Secrets are masked, in messages by
    `redact`.
    """
    replicas: dict[str, list[ObservedReplica]] = defaultdict(list)
    for replica in observed.replicas:
        if replica.phase is not Phase.EXITED:
            replicas[replica.id.model].append(replica)
    reasons: dict[tuple[str, int | None], str] = {}
    for item in blocked:
        reasons.setdefault((item.model, item.index), item.reason)
    items: list[DriftItem] = []
    for name in sorted(desired.models.keys() | replicas.keys()):
        model = desired.models.get(name)
        alive_replicas = sorted(replicas[name], key=lambda each: (each.health is not Health.READY, each.id))
        if model is None:
            items += [_undeclared_item(replica, "the model is no longer declared", now) for replica in alive_replicas]
            continue
        since = file_since.get(name, model.statement.since)
        items += _declaration_items(model, since)
        items += _statement_items(model)
        items += _missing_items(model, alive_replicas, reasons, observed, redact, now)
        for replica, surplus in _assign_places(model, alive_replicas):
            items += (
                [_undeclared_item(replica, surplus, now)]
                if surplus
                else _replica_items(model, replica, rendered, since, redact, now)
            )
    return items


def _assign_places(
    model: DesiredModel, alive_replicas: Sequence[ObservedReplica]
) -> Iterator[tuple[ObservedReplica, str | None]]:
    """Yield each replica with the reason why it is surplus; None means that it fills one of the wanted indices. Those
    of an evicted model that sleep as they should are left out."""
    taken_indices: set[int] = set()
    for replica in sorted(alive_replicas, key=lambda each: each.id.spec_hash != model.spec_hash):
        index = replica.id.index
        if replica.is_asleep and replica.id.spec_hash == model.spec_hash and index < model.demand_replicas:
            continue  # an evicted model sleeps
        if not model.runs:
            yield replica, "the model is served elsewhere"
        elif model.replicas == 0:
            yield replica, f"the model is not wanted: {model.statement.reason}"
        elif index >= model.replicas:
            yield replica, f"more than the {model.replicas} wanted"
        elif index in taken_indices and replica.id.spec_hash == model.spec_hash:
            yield replica, "another replica stands at its place"
        else:
            yield replica, None
        taken_indices.add(index)


def _declaration_items(model: DesiredModel, since: float) -> Iterator[DriftItem]:
    """Yield that a model is declared at run time alone."""
    if model.is_runtime_declared:
        yield DriftItem(
            model=model.name,
            replica=None,
            kind="declaration",
            declared=None,
            running=mask_fields(model.declared_definition.model_dump(mode="json", exclude_unset=True)),
            since=since,
            message="declared at run time, and in no file; `roundhouse declarations export` prints what to commit",
        )


def _statement_items(model: DesiredModel) -> Iterator[DriftItem]:
    """Yield what an operator's load or unload changes: the replica count, and each overridden field."""
    statement, declared = model.statement, model.declared_definition
    if statement.kind not in ("load", "unload"):
        return
    declared_count = declared.replicas if declared.enabled else 0
    if model.replicas != declared_count:
        files = f"the files say replicas: {declared_count}" if declared.enabled else "the files say enabled: false"
        yield DriftItem(
            model=model.name,
            replica=None,
            kind="statement",
            declared=declared_count,
            running=model.replicas,
            since=statement.since,
            message=f"{statement.reason}, replicas wanted: {model.replicas}; {files}",
        )
    if not model.replicas:
        return
    declared_fields = declared.model_dump(mode="json")
    masked_declared, masked_params = mask_fields(declared_fields), mask_fields(dict(model.params))
    for field in sorted(model.params):
        if declared_fields.get(field) != model.params[field]:
            yield DriftItem(
                model=model.name,
                replica=None,
                kind="override",
                field=field,
                declared=masked_declared.get(field),
                running=masked_params[field],
                since=statement.since,
                message=f"{field} was set by a load: {statement.reason}",
            )


def _missing_items(
    model: DesiredModel,
    alive_replicas: Sequence[ObservedReplica],
    reasons: Mapping[tuple[str, int | None], str],
    observed: ObservedState,
    redact: Redact,
    now: float,
) -> Iterator[DriftItem]:
    def absent(index: int, running_state: str | None, reason: str) -> DriftItem:
        message = redact(model.name, f"replica {index} does not serve: {reason}")
        return DriftItem(
            model=model.name,
            replica=f"{model.name}/{index}",
            kind="missing",
            declared="ready",
            running=running_state,
            since=now,
            message=message,
        )

    if not model.runs:
        error = observed.remotes.get(model.name)
        if model.replicas and error is not None:
            yield absent(0, "failing", error)
        return
    ready_indices = {
        each.id.index for each in alive_replicas if each.phase is Phase.RUNNING and each.health is Health.READY
    }
    for index in range(model.replicas):
        if index in ready_indices:
            continue
        replica = next((each for each in alive_replicas if each.id.index == index), None)
        running_state = (
            None if replica is None else replica.health.value if replica.phase is Phase.RUNNING else replica.phase.value
        )
        reason = reasons.get((model.name, index)) or reasons.get((model.name, None))
        yield absent(
            index, running_state, reason or ("no engine runs" if replica is None else f"it is {running_state}")
        )


def _replica_items(
    model: DesiredModel,
    replica: ObservedReplica,
    rendered: Mapping[str, Rendered],
    file_since: float,
    redact: Redact,
    now: float,
) -> Iterator[DriftItem]:
    """Compare what one wanted replica runs with what it would be started with now."""
    name = replica.name
    if replica.id.spec_hash != model.spec_hash:
        # A load changes the definition too, so the difference exists since the later of the edit and the load.
        since = max(file_since, model.statement.since) if model.statement.kind == "load" else file_since
        yield DriftItem(
            model=model.name,
            replica=name,
            kind="definition",
            declared=model.spec_hash,
            running=replica.id.spec_hash,
            since=since,
            message=f"{name} runs an older definition",
        )
        return
    yield from (
        DriftItem(
            model=model.name,
            replica=name,
            kind="applied",
            field=gap.field,
            declared=gap.declared,
            running=gap.applied,
            since=now,
            message=describe_gap(name, gap),
        )
        for gap in list_gaps(model, replica)
    )
    rendered_now = rendered.get(name)
    if rendered_now is None:
        return
    image = rendered_now.image_id
    if image is not None and replica.image_id is not None and image != replica.image_id:
        yield DriftItem(
            model=model.name,
            replica=name,
            kind="image",
            declared=image,
            running=replica.image_id,
            since=now,
            message=f"{model.image or 'its image'} names another image than the one that {name} runs",
        )
    engine = REPLICA_ENGINES[model.backend]
    declared_argv, running_argv = (
        engine.compared_arguments(model.definition, argv) for argv in (rendered_now.argv, replica.argv)
    )
    if running_argv and declared_argv != running_argv:
        declared_words, running_words = _differing_words(
            declared_argv, running_argv, lambda word: redact(model.name, word, name)
        )
        yield DriftItem(
            model=model.name,
            replica=name,
            kind="arguments",
            declared=declared_words,
            running=running_words,
            since=now,
            message=f"{name} was started with other arguments than it would be now",
        )


def _undeclared_item(replica: ObservedReplica, reason: str, now: float) -> DriftItem:
    return DriftItem(
        model=replica.id.model,
        replica=replica.name,
        kind="undeclared",
        declared=None,
        running=replica.health.value if replica.phase is Phase.RUNNING else replica.phase.value,
        since=now,
        message=f"{replica.name} runs, and {reason}",
    )


def _differing_words(
    declared: Sequence[str], running: Sequence[str], redact: Callable[[str], str]
) -> tuple[list[JsonValue], list[JsonValue]]:
    """Return the words of each command line that the other one lacks, with their flags and with secrets masked."""
    kept_places: tuple[set[int], set[int]] = (set(), set())
    for tag, a, b, c, d in difflib.SequenceMatcher(None, declared, running, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for words, places, begin, end in ((declared, kept_places[0], a, b), (running, kept_places[1], c, d)):
            if begin < end:
                places.update(range(begin, end))
                # A value alone says little: add the flag before it.
                if begin and not words[begin].startswith("-") and words[begin - 1].startswith("-"):
                    places.add(begin - 1)
    safe = redact_words(declared, redact), redact_words(running, redact)
    return [safe[0][place] for place in sorted(kept_places[0])], [safe[1][place] for place in sorted(kept_places[1])]
