"""Starting one replica: its backoff, its place, its files, its preflight and its image. Pure."""

from __future__ import annotations

from controller.planning.actions import WAITING_FOR_ROOM, DownloadSource, FetchFiles, Preflight, PullImage, Start, Wake
from controller.planning.hosts import HEAD, find_file_sources
from controller.planning.model_turn import ModelTurn
from controller.planning.placement import (
    ClaimLedger,
    NoRoom,
    Placement,
    StartHistory,
    find_backoff,
    place_or_wait,
    place_sleeper,
    usable_hosts,
)
from controller.state import (
    DesiredModel,
    FetchKey,
    ObservedState,
    OpKind,
    PreflightKey,
    PullKey,
    ReplicaId,
    ReplicaKey,
)


def start_replica(turn: ModelTurn, model: DesiredModel, index: int) -> None:
    """Add the action that starts the missing replica at `index`, or the action that must come before it (download,
    preflight, image pull), and note in the turn what the replica waits for. A replica that sleeps at `index` and is to
    wake is woken instead, which needs nothing but room."""
    if backs_off(turn, model, index):
        return
    if _falls_asleep(turn.observed, ReplicaKey(model.name, index, model.spec_hash)):
        turn.add_blocked(index, f"{WAITING_FOR_ROOM}: it falls asleep, and is woken then", None)
        return
    placement = place_index(turn, model, index, turn.ledger)
    if isinstance(placement, Placement) and placement.sleeper is not None and turn.wait_reason is None:
        sleeper = placement.sleeper
        turn.ledger.book_wake(sleeper, placement.claims)
        turn.actions.append(Wake(sleeper.id, sleeper.name, "it sleeps at this index", placement.claims))
        return
    if not has_files(turn, model, index):
        return
    if turn.wait_reason is not None:
        wait_for_room(turn, model, index, turn.wait_reason)
    elif isinstance(placement, NoRoom):
        turn.add_blocked(index, placement.reason, None, failed=not placement.waiting)
    elif is_start_checked(turn, model, index, placement.host):
        issue_start(turn, model, index, placement, "no replica at this index")


def _falls_asleep(observed: ObservedState, key: ReplicaKey) -> bool:
    """Return whether a replica with this key is being put to sleep, on a host that is not lost."""
    names = [name for name, each in observed.pending.items() if each.kind is OpKind.SLEEP and each.id.key == key]
    lost = {each.name for each in observed.replicas if each.silent == "lost"} if names else ()
    return any(name not in lost for name in names)


def place_index(turn: ModelTurn, model: DesiredModel, index: int, ledger: ClaimLedger) -> Placement | NoRoom:
    """Find room for the missing replica at `index`: that of the sleeping one which is to wake there, else any. Nothing
    is booked."""
    sleeper = turn.buckets.asleep.get(index)
    if sleeper is not None and sleeper.name in turn.waking:
        placement = place_sleeper(sleeper, turn.observed, ledger)
        if isinstance(placement, NoRoom) and not placement.waiting:
            # It got the room of others, which have not left yet.
            return NoRoom(f"{WAITING_FOR_ROOM}: {placement.reason}", waiting=True)
        return placement
    return place_or_wait(model, turn.observed, ledger, history_of(turn, model, index))


def history_of(turn: ModelTurn, model: DesiredModel, index: int) -> StartHistory:
    """Return what earlier tries say of the hosts for the replica at `index`, this plan's failures too."""
    return StartHistory(model, index, turn.observed, turn.now, turn.preflight_recheck_s, turn.failed_keys)


def has_files(turn: ModelTurn, model: DesiredModel, index: int) -> bool:
    """Return whether the model names no source, or the files of its source are in the models folder. Otherwise add to
    the turn the download of the files, or note in the turn that the replica at `index` waits for the download, or why
    the download failed. A download does not wait for room, because the memory that the model takes is known only
    afterwards."""
    source = model.missing_source
    if source is None:
        return True
    failure = turn.observed.downloads.get(source)
    if failure is not None and failure.must_wait(turn.now):
        turn.add_failure(index, failure)
    elif source in turn.observed.downloads and failure is None:
        fraction = turn.observed.download_fractions.get(source)
        words = "" if fraction is None else f" ({fraction:.0%})"
        turn.add_blocked(index, f"{source} is being downloaded{words}", None)
    else:
        turn.add_once(DownloadSource(model.name, source, "its files are not in the models folder"))
    return False


def backs_off(turn: ModelTurn, model: DesiredModel, index: int) -> bool:
    """Return whether the replica at `index` has failed on every host that it may use, and must wait before its next
    attempt. If so, note it in the turn as blocked, with the error and the time of the retry. A failure that this same
    plan reports also gives True, but is not noted: only the next plan knows its retry time."""
    if turn.failed_keys and _has_failed_everywhere(turn, model, index):
        return True
    failure = find_backoff(model, index, turn.observed, turn.now)
    if failure is None:
        return False
    turn.add_failure(index, failure)
    return True


def _has_failed_everywhere(turn: ModelTurn, model: DesiredModel, index: int) -> bool:
    """Return whether the replica has failed, by this plan or before, on every host that it may use, and by this plan
    on one at least."""
    keys = [ReplicaKey(model.name, index, model.spec_hash, host.name) for host in usable_hosts(model, turn.observed)]
    earlier = (turn.observed.failures.get(key) for key in keys if key not in turn.failed_keys)
    return not turn.failed_keys.isdisjoint(keys) and all(
        failure is not None and failure.must_wait(turn.now) for failure in earlier
    )


def wait_for_room(turn: ModelTurn, model: DesiredModel, index: int, reason: str) -> None:
    """Note that the replica waits for room, for `reason`, and add its preflight or image pull meanwhile: no model is
    evicted for a replica that cannot be started. After a failed preflight that failure is noted, not the room."""
    hosts = turn.checked_hosts or [host.name for host in usable_hosts(model, turn.observed)[:1]]
    for host in hosts:
        is_start_checked(turn, model, index, host)
    if not all(has_copy(turn, model, host) for host in hosts):
        return  # what is noted is that its files come
    results = [turn.observed.preflights.get(PreflightKey(model.name, model.spec_hash, host)) for host in hosts]
    if all(result is None or result.ok for result in results):
        turn.add_blocked(index, reason, None)


def is_start_checked(turn: ModelTurn, model: DesiredModel, index: int, host: str) -> bool:
    """Return whether a fresh preflight says that the start on `host` can succeed. Otherwise add to the turn the action
    that must come first (copy of files, preflight or image pull, unless it is under way), or note in the turn why the
    replica is blocked."""
    if not has_copy(turn, model, host):
        _fetch_files(turn, model, index, host)
        return False
    key = PreflightKey(model.name, model.spec_hash, host)
    result = turn.observed.preflights.get(key)
    is_fresh = result is not None and result.is_fresh(turn.now, turn.preflight_recheck_s)
    if not is_fresh and key not in turn.observed.preflighting:
        turn.add_once(Preflight(model.name, model.spec_hash, "before a start", host))
    if result is None:
        return False
    if result.missing_image is not None:
        _pull_image(turn, model, index, PullKey(result.missing_image, host))
    elif not result.ok:
        recheck_at = result.at + turn.preflight_recheck_s
        error = result.error or "preflight failed"
        turn.add_blocked(index, error, recheck_at, failed=True, plain=result.plain)
    return is_fresh and result.ok


def has_copy(turn: ModelTurn, model: DesiredModel, host: str) -> bool:
    """Return whether the host need not get the model's files from others: it has them, or nobody has."""
    if not host:  # the only one
        return True
    found = turn.observed.find_host(host)
    return found is None or not find_file_sources(model.name, found, turn.observed)


def _fetch_files(turn: ModelTurn, model: DesiredModel, index: int, host: str) -> None:
    key, found = FetchKey(model.name, model.spec_hash, host), turn.observed.find_host(host)
    assert found is not None, "only known hosts lack files"
    failure = turn.observed.fetches.get(key)
    if failure is not None and failure.must_wait(turn.now):
        turn.add_failure(index, failure)
    elif key in turn.observed.fetches and failure is None:
        fraction = found.fetch_fractions.get(model.name)
        words = "" if fraction is None else f" ({fraction:.0%})"
        turn.add_blocked(index, f"its files are being copied to {found.title}{words}", None)
    else:
        sources = find_file_sources(model.name, found, turn.observed)
        like = " as the head has them" if sources[0] == HEAD else ""
        turn.add_once(
            FetchFiles(model.name, model.spec_hash, host, sources, f"{found.title} does not have its files{like}")
        )


def _pull_image(turn: ModelTurn, model: DesiredModel, index: int, key: PullKey) -> None:
    failure = turn.observed.pulls.get(key)
    if failure is not None and failure.must_wait(turn.now):
        turn.add_failure(index, failure)
    elif key in turn.observed.pulls and failure is None:
        turn.add_blocked(index, f"image {key.image} is being pulled", None)
    else:
        where = f"host {key.host}" if key.host else "this host"
        turn.add_once(PullImage(model.name, key.image, f"the image is not on {where}", key.host))


def issue_start(turn: ModelTurn, model: DesiredModel, index: int, placement: Placement, reason: str) -> None:
    """Add the action that starts the replica at `index` as its next attempt, and book its claims in the turn's ledger.

    Nothing is checked: call it only after `is_start_checked`, with a placement from the same ledger.
    """
    key = ReplicaKey(model.name, index, model.spec_hash)
    attempt = 1 + turn.observed.attempts.highest_of(key.text)
    busy_with, replica = f"{model.name}/{index}", ReplicaId(model.name, index, model.spec_hash, attempt)
    turn.ledger.add_claims(placement.claims, model=model.name, host=placement.host, busy_with=busy_with)
    turn.actions.append(Start(replica, reason, placement.claims, placement.host))
