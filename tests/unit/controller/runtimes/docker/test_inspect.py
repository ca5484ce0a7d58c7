"""What the daemon says of a container, as a replica."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controller.engines.stub import StubDefinition
from controller.runtimes.base import StartRequest
from controller.runtimes.docker.inspect import parse_time, seen_replica
from controller.runtimes.docker.labels import UnreadableLabelsError, write_labels
from controller.state import Exit, Phase, ReplicaId

REPLICA = ReplicaId("m", 1, "0123456789abcdef", 3)
START = StartRequest(REPLICA, "rh-x", StubDefinition(backend="stub"), "m", None, "t", {"GPU-a": 7})
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


def inspected(**state: object) -> dict[str, Any]:
    return {
        "Id": "abc",
        "Name": "/rh-x",
        "Created": "2026-11-21T12:00:00.123456789Z",
        "Path": "/app/engine",
        "Args": ["--flag", "", "value"],
        "Image": "sha256:1",
        "Config": {"Labels": write_labels("one", START, 0.0)},
        "State": {"Status": "running", "Running": True, "StartedAt": "2026-11-21T12:00:01Z", **state},
        "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}]}},
    }


def test_a_running_container() -> None:
    seen = seen_replica(inspected(), "", publishes_ports=True)
    assert (seen.id, seen.name, seen.phase, seen.claims) == (REPLICA, "rh-x", Phase.RUNNING, {"GPU-a": 7})
    assert seen.created_at == pytest.approx(NOON + 0.123456789)
    assert seen.started_at == NOON + 1
    assert seen.base_url == "http://127.0.0.1:32768"
    assert (seen.image_id, seen.argv) == ("sha256:1", ("/app/engine", "--flag", "", "value"))
    assert seen.exit is None
    assert seen_replica(inspected(), "", publishes_ports=False).base_url == "http://rh-x:8000"


@pytest.mark.parametrize(
    "ports",
    [None, {}, {"8000/tcp": None}, {"8000/tcp": []}, {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}],
)
def test_no_port_is_no_address(ports: object) -> None:
    found = inspected() | {"NetworkSettings": {"Ports": ports}}
    assert seen_replica(found, "", publishes_ports=True).base_url is None


@pytest.mark.parametrize(
    ("status", "running", "phase"),
    [
        ("created", False, Phase.CREATED),
        ("running", True, Phase.RUNNING),
        ("paused", True, Phase.RUNNING),
        ("restarting", True, Phase.RUNNING),
        ("exited", False, Phase.EXITED),
        ("dead", False, Phase.EXITED),
        ("removing", False, Phase.EXITED),
        ("of a later version", True, Phase.RUNNING),
        ("of a later version", False, Phase.EXITED),
        ("", False, Phase.EXITED),
    ],
)
def test_phases(status: str, running: bool, phase: Phase) -> None:
    seen = seen_replica(inspected(Status=status, Running=running), "tail", publishes_ports=True)
    assert seen.phase is phase
    assert (seen.exit is not None) is (phase is Phase.EXITED)
    assert (seen.base_url is not None) is (phase is Phase.RUNNING)


def test_an_end() -> None:
    found = inspected(Status="exited", Running=False, ExitCode=137, OOMKilled=True)
    assert seen_replica(found, "last line", publishes_ports=True).exit == Exit(137, oom=True, log_tail="last line")


def test_a_half_created_container_has_not_started() -> None:
    found = inspected(Status="created", Running=False, StartedAt="0001-01-01T00:00:00Z")
    assert seen_replica(found, "", publishes_ports=False).started_at is None


def test_labels_of_somebody_else_are_refused() -> None:
    with pytest.raises(UnreadableLabelsError):
        seen_replica(inspected() | {"Config": {"Labels": None}}, "", publishes_ports=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T12:00:00Z", 0.0),
        ("2026-11-21T12:00:00.5Z", 0.5),
        ("2026-11-21T12:00:00.000000001Z", 1e-9),
        ("2026-11-21T13:30:00.25+01:30", 0.25),
        ("2026-11-21T11:00:00-0100", 0.0),
        ("2026-11-21 12:00:00", 0.0),
    ],
)
def test_times_are_read_to_the_nanosecond_in_any_zone(text: str, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(NOON + seconds)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "", "soon", "2026-13-01T00:00:00Z", None, 5, "0"])
def test_what_is_no_time_is_none(text: object) -> None:
    assert parse_time(text) is None
