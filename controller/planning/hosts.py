"""Deciding which hosts are silent, lost or back, and from which a host gets model files. Pure.

A host that does not answer is unknown, not empty: what runs there may serve. Only after `lost_after_s` without a word
do others take over, of one host at a time, and of none while so many are silent that the controller is rather the one
that is cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from controller.hosts import Host, HostState
from controller.state import ObservedState

MOST_AWAY: Final = 0.5
"""Share of the hosts above which their silence or refusal, if it is that of two or more, is taken for the controller's
own fault."""
_AWAY: Final = (HostState.SILENT, HostState.REFUSED)
_UNHEARD: Final = (HostState.SILENT, HostState.LOST)


def is_silent(last_heard: float, call_failed: bool, now: float, heartbeat_s: float) -> bool:
    """Return whether a host counts as silent at `now`: three heartbeats are missing, and a call has failed since its
    last word. Times are Unix seconds."""
    return call_failed and now - last_heard > 3 * heartbeat_s


def judge_hosts(
    heard: Iterable[Host],
    known: Mapping[str, Host],
    drained: Collection[str],
    now: float,
    *,
    lost_after_s: float,
) -> tuple[tuple[Host, ...], bool]:
    """Return the hosts with their states, in the order of their names, and whether the controller is cut off.

    `heard`: each `ready`, `silent` or `refused`, with what was last heard of it. `known`: by name, as this function
    returned them last. `drained`: names of the hosts that an operator drains. `now`: Unix time in seconds.

    A silent host is lost after `lost_after_s` seconds without a word, and others take over what runs on a refused one
    after that time: at most one host within that time. If more than half of the hosts, and two at least, are silent at
    once, none is declared lost, and if so many are refused, as after an upgrade, none of them is taken over: those that
    were before stay so.
    """
    hosts = sorted(heard, key=lambda each: each.name)
    counts = {state: sum(host.state is state for host in hosts) for state in _AWAY}
    most = {state for state, count in counts.items() if count >= 2 and count > MOST_AWAY * len(hosts)}
    # The loss of one must have been made good before the next: whoever takes over may be overloaded, and so silent.
    last_loss = max((each.taken_over_at or 0.0 for each in known.values()), default=0.0)
    may_lose = not last_loss or not 0 <= now - last_loss < lost_after_s
    judged = []
    for host in sorted(hosts, key=lambda each: (each.last_heard or 0.0, each.name)):
        before = known.get(host.name)
        new = _with_state(host, _state_of(host, before, drained), before, now)
        is_away = new.state in _AWAY and new.state not in most and new.taken_over_at is None
        if is_away and may_lose and _is_due(new, now, lost_after_s):
            may_lose = False
            if new.state is HostState.SILENT:
                new = replace(new, state=HostState.LOST, since=now)
            new = replace(new, taken_over_at=now)
        judged.append(new)
    return tuple(sorted(judged, key=lambda each: each.name)), HostState.SILENT in most


def _is_due(host: Host, now: float, lost_after_s: float) -> bool:
    useful_until = host.since if host.state is HostState.REFUSED else host.last_heard
    return useful_until is None or not 0 <= now - useful_until < lost_after_s


def _state_of(host: Host, before: Host | None, drained: Collection[str]) -> HostState:
    if host.state is HostState.SILENT and before is not None and before.taken_over_at is not None:
        return HostState.LOST
    return HostState.DRAINING if host.state is HostState.READY and host.name in drained else host.state


def _with_state(host: Host, state: HostState, before: Host | None, now: float) -> Host:
    since = before.since if before is not None and before.state is state else now
    reached_since = 0.0 if before is None else before.reached_since
    if before is not None and before.state in _UNHEARD and state not in _UNHEARD:
        reached_since = now
    stays_away = before is not None and state in (*_UNHEARD, HostState.REFUSED)
    taken_over_at = before.taken_over_at if before is not None and stays_away else None
    return replace(host, state=state, since=since, reached_since=reached_since, taken_over_at=taken_over_at)


HEAD: Final = ""
"""The controller's own machine among the hosts to fetch from."""
MOST_SOURCES: Final = 16
"""Hosts that are asked for one model's files."""


def find_file_sources(model: str, host: Host, observed: ObservedState) -> tuple[str, ...]:
    """Return the names of the hosts from which `host` gets the files of a model that it lacks. The first has all of
    them, and says which: the head (`HEAD`), or where that has none of them another host. The others may have them, or
    a part while they fetch them, too. Empty: the host lacks nothing, as far as is known, or nobody has the files, or
    the host fetches none."""
    if model not in host.missing_models or host.files_url is None:
        return ()
    others = [each for each in observed.hosts if each.answers and each.files_url is not None and each.name != host.name]
    others.sort(key=lambda each: (model in each.missing_models, each.name))
    names = [each.name for each in others]
    if model in observed.head_models:
        return (HEAD, *names)[:MOST_SOURCES]
    return tuple(names[:MOST_SOURCES]) if others and model not in others[0].missing_models else ()
