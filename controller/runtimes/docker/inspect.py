"""Converts the result of `docker inspect` into a replica. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from controller.runtimes.base import SeenReplica
from controller.runtimes.docker.container_spec import PORT
from controller.runtimes.docker.labels import read_labels
from controller.state import Exit, Phase

_PHASES: Final[Mapping[str, Phase]] = {
    "created": Phase.CREATED,
    "running": Phase.RUNNING,
    "paused": Phase.RUNNING,
    "restarting": Phase.RUNNING,
    "exited": Phase.EXITED,
    "dead": Phase.EXITED,
    "removing": Phase.EXITED,
}
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:?\d\d)?")


def phase_of(container: Mapping[str, Any]) -> Phase:
    """Return the phase of an inspected container. A paused or restarting one counts as running. For a status that is
    not known here, its `Running` flag decides."""
    state = container.get("State") or {}
    phase = _PHASES.get(str(state.get("Status", "")).lower())
    return phase or (Phase.RUNNING if state.get("Running") else Phase.EXITED)


def seen_replica(container: Mapping[str, Any], log_tail: str, *, publishes_ports: bool) -> SeenReplica:
    """Return the replica that a container with Roundhouse's labels runs.

    `container` is the result of an inspection. `log_tail` is used only for an exited one. `publishes_ports`: the engine
    is reached by a port on 127.0.0.1; False: by its container's name. Raises UnreadableLabelsError if the labels are
    missing, damaged, or of a newer version.
    """
    labels = read_labels(container["Config"].get("Labels") or {})
    state = container.get("State") or {}
    name = str(container["Name"]).removeprefix("/")
    phase = phase_of(container)
    return SeenReplica(
        id=labels.id,
        name=name,
        phase=phase,
        created_at=parse_time(container.get("Created")) or 0.0,
        started_at=parse_time(state.get("StartedAt")),
        base_url=_base_url(container, name, publishes_ports=publishes_ports) if phase is Phase.RUNNING else None,
        claims=labels.claims,
        exit=_exit(state, log_tail) if phase is Phase.EXITED else None,
        image_id=container.get("Image") or None,
        argv=tuple(word for word in (container.get("Path"), *(container.get("Args") or ())) if word is not None),
    )


def _exit(state: Mapping[str, Any], log_tail: str) -> Exit:
    code = state.get("ExitCode")
    return Exit(code if isinstance(code, int) else None, oom=bool(state.get("OOMKilled")), log_tail=log_tail)


def _base_url(container: Mapping[str, Any], name: str, *, publishes_ports: bool) -> str | None:
    if not publishes_ports:
        return f"http://{name}:{PORT}"
    ports = (container.get("NetworkSettings") or {}).get("Ports") or {}
    for binding in ports.get(f"{PORT}/tcp") or ():
        if binding.get("HostPort"):
            return f"http://127.0.0.1:{binding['HostPort']}"
    return None


def parse_time(text: object) -> float | None:
    """Convert an RFC 3339 time, which may have nanoseconds, to Unix time in seconds. A time without a zone is UTC.

    None for the daemon's zero time (year 1), and for anything that is not such a time.
    """
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    date_and_time, fraction, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        moment = datetime.fromisoformat(f"{date_and_time.upper().replace(' ', 'T')}{zone}")
    except ValueError:
        return None
    if moment.year <= 1:
        return None
    return moment.astimezone(UTC).timestamp() + float(fraction or 0)
