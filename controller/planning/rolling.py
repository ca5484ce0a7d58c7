"""The replicas that a declared model shall have: missing ones start, outdated ones are replaced one at a time. Pure."""

from __future__ import annotations

from controller.planning.model_turn import ModelTurn
from controller.planning.placement import NoRoom, Placement, find_backoff, place_or_wait, place_replica
from controller.planning.starting import (
    backs_off,
    has_copy,
    has_files,
    history_of,
    is_start_checked,
    issue_start,
    place_index,
    start_replica,
    wait_for_room,
)
from controller.state import DesiredModel, Health, ObservedReplica, PreflightKey


def fill_replicas(turn: ModelTurn) -> None:
    """Add the actions that start a replica at every wanted index without one, and replace outdated replicas one at a
    time. Note in the turn what blocks a start. Do nothing for a model that is not declared or is remote.

    A model of several replicas gets all of them or none until it was loaded once, unless outdated ones still run: while
    it waits for the room of other models, none is started; where one has failed or has no room, those that run already
    are retired. Call it after `clear_replicas`.
    """
    model = turn.model
    if model is None or not model.runs or _holds_together(turn, model):
        return
    _keep_current(turn, model)
    is_rolling = _is_rolling(turn, model)
    for index in range(model.replicas):
        old_replica = turn.buckets.outdated.get(index)
        if index in turn.buckets.current:
            if old_replica is not None:
                _retire_replaced(turn, turn.buckets.current[index], old_replica)
                is_rolling = True
        elif old_replica is None:
            start_replica(turn, model, index)
            is_rolling = True
        elif not is_rolling:
            _replace(turn, model, index, old_replica)
            is_rolling = True


def _is_rolling(turn: ModelTurn, model: DesiredModel) -> bool:
    """Whether a replica is on its way, or failed on it. Until it serves, no other one is replaced."""
    buckets = turn.buckets
    if any(replica is None or replica.health is not Health.READY for replica in buckets.current.values()):
        return True
    if not turn.observed.failures:
        return False
    missing_indices = set(range(model.replicas)) - buckets.outdated.keys() - buckets.current.keys()
    return any(find_backoff(model, index, turn.observed, turn.now) is not None for index in missing_indices)


def _keep_current(turn: ModelTurn, model: DesiredModel) -> None:
    for current in filter(None, turn.buckets.current.values()):
        if current.draining is not None:
            turn.undrain_replica(current, "wanted again")
        elif current.ready_since is None and current.started_at is not None:
            turn.wake_times.append(current.started_at + model.start_timeout_s)


def _holds_together(turn: ModelTurn, model: DesiredModel) -> bool:
    """Whether the model's replicas may not come yet: until a model was loaded once, all of them come or none."""
    if model.replicas < 2 or model.name in turn.observed.loaded_once or turn.buckets.outdated:
        return False
    for index in range(model.replicas if turn.observed.failures else 0):
        failure = find_backoff(model, index, turn.observed, turn.now)
        if failure is None:
            continue
        turn.retire_current(f"all or nothing: replica {index} failed")
        turn.add_failure(index, failure)
        return True
    return _exceeds_room(turn, model)


def _exceeds_room(turn: ModelTurn, model: DesiredModel) -> bool:
    missing_indices = [index for index in range(model.replicas) if index not in turn.buckets.current]
    if not missing_indices or model.missing_source is not None:
        return False
    scratch = turn.ledger.copy_without(())
    for index in missing_indices:
        placement = place_index(turn, model, index, scratch)
        if turn.wait_reason is not None:
            wait_for_room(turn, model, index, turn.wait_reason)
            return True
        if isinstance(placement, Placement) and placement.sleeper is not None:
            scratch.book_wake(placement.sleeper, placement.claims)
            scratch.busy_replicas = dict(turn.ledger.busy_replicas)
        elif isinstance(placement, Placement):
            scratch.add_claims(placement.claims, model=model.name, host=placement.host)
        elif not placement.waiting:
            turn.retire_current(f"all or nothing: no room for replica {index}")
            turn.add_blocked(index, placement.reason, None, failed=True)
            return True
    return False


def _retire_replaced(turn: ModelTurn, current: ObservedReplica | None, old_replica: ObservedReplica) -> None:
    if current is not None and current.health is Health.READY:
        reason = turn.moving.get(old_replica.name)
        words = "replaced by a replica of the edited definition" if reason is None else f"{reason}, and it has moved"
        turn.retire_replica(old_replica, words)


def _replace(turn: ModelTurn, model: DesiredModel, index: int, old_replica: ObservedReplica) -> None:
    """Start the new replica first where memory allows both; otherwise drain the old one first. One that serves and must
    move is not drained first: its own room is no use to the new one."""
    if backs_off(turn, model, index) or not has_files(turn, model, index):
        _let_serve(turn, old_replica)
        return
    # One failed probe does not make an engine useless: what has served may serve again.
    is_serving = old_replica.ready_since is not None and old_replica.draining is None
    cause = turn.moving.get(old_replica.name, "the definition was edited")
    history = history_of(turn, model, index)
    placement_alongside = place_replica(model, turn.observed, turn.ledger, history)
    placement_instead = placement_alongside
    if isinstance(placement_alongside, NoRoom):
        ledger_instead = turn.ledger.copy_without([old_replica.claims])
        placement_instead = place_or_wait(model, turn.observed, ledger_instead, history)
    if is_serving and isinstance(placement_alongside, NoRoom) and placement_alongside.waiting:
        turn.add_blocked(index, placement_alongside.reason, None)
    elif isinstance(placement_instead, NoRoom):
        turn.add_blocked(index, placement_instead.reason, None, failed=not placement_instead.waiting)
        _let_serve(turn, old_replica)
    elif not is_start_checked(turn, model, index, placement_instead.host):
        host = placement_instead.host
        result = turn.observed.preflights.get(PreflightKey(model.name, model.spec_hash, host))
        if (result is not None and not result.ok) or not has_copy(turn, model, host):
            _let_serve(turn, old_replica)
    elif is_serving and isinstance(placement_alongside, Placement):
        issue_start(turn, model, index, placement_alongside, f"{cause}; the old replica serves until then")
    else:
        turn.retire_replica(old_replica, cause + ("; no room for both" if is_serving else ""))


def _let_serve(turn: ModelTurn, old_replica: ObservedReplica) -> None:
    turn.undrain_replica(old_replica, "what was to replace it cannot start")
