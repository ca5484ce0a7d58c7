"""What operators say of hosts is in force at once, and what would leave the models nowhere to go is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contract.errors import RoundhouseError
from controller.admin.hosts import HostService
from controller.artifacts.model_roots import ModelRoots
from controller.desired.file_source import DesiredOptions
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredStateSource
from controller.hosts import Gpu, GpuDriver, Host, HostState, UnreadGpu
from controller.journal import EventLog, Recorder
from controller.redaction import redact_nothing
from controller.state import ObservedReplica, ObservedState, Phase, ReplicaId
from controller.state_dir import StateDir

REPLICA = ObservedReplica(
    ReplicaId("m", 0, "h"), "rh-m-0", Phase.RUNNING, 1.0, claims={"GPU-b": 70, "host:b": 30}, host="b"
)
ENDED = replace(REPLICA, name="rh-m-1", phase=Phase.EXITED)
A = Host("a", since=5.0, memory_mib=1_000)
B = Host(
    "b", last_heard=9.0, gpus=(Gpu("GPU-b", 0, "H200", 100, 80, host="b"),), driver=GpuDriver("580.1", "13.0"),
    unread_gpus=(UnreadGpu(1, "it has fallen off the bus", "GPU-c", host="b"),), memory_mib=500,
)  # fmt: skip
C = Host("c", HostState.LOST, since=7.0, reason="no word for 15 s", gpus=None, gpu_error="it is lost")


class Site:
    """Three hosts as last seen, and the service of a controller that does not run."""

    def __init__(self, root: Path) -> None:
        self.observed = ObservedState(10.0, (REPLICA, ENDED), hosts=(A, B, C))
        self.forgotten: list[str] = []
        self.woken = 0
        store = StateDir.open_folder(root / "state")
        options = DesiredOptions(root / "desired", ModelRoots((root,)), Defaults(), 1.0)
        self.files = DesiredStateSource(options, store, lambda: 11.0)
        self.journal = EventLog(root / "state" / "journal.db", keep=100)
        self.service = HostService(
            self._read_round,
            self.files,
            Recorder(self.journal, lambda: 12.0, redact_nothing),
            expel_host=self._forget,
            wake=self._wake,
        )

    def _read_round(self) -> Any:
        return SimpleNamespace(observed=self.observed)

    async def _forget(self, name: str) -> None:
        self.forgotten.append(name)

    def _wake(self) -> None:
        self.woken += 1

    def states(self) -> dict[str, str]:
        return {host.name: host.state for host in self.service.list_hosts().hosts}

    def told(self) -> list[str]:
        return [entry.message for entry in self.journal.read_after(0, 10)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()


def code_of(error: pytest.ExceptionInfo[RoundhouseError]) -> tuple[str, int, str]:
    return error.value.entry.code, error.value.entry.status, error.value.message


def test_a_host_is_shown_with_its_gpus_its_memory_and_what_runs_there(site: Site) -> None:
    a, b, c = site.service.list_hosts().hosts
    assert (a.since, a.engines, a.claimed_mib, a.gpu_count) == (5.0, [], 0, 0)
    assert (b.since, b.engines, b.claimed_mib, b.memory_mib, b.driver_version) == (None, ["rh-m-0"], 30, 500, "580.1")
    assert b.gpus is not None
    assert [(gpu.uuid, gpu.claimed_mib, gpu.host) for gpu in b.gpus] == [("GPU-b", 70, "b")]
    assert [gpu.description for gpu in b.unread_gpus] == ["GPU b/1 (GPU-c) is left out: it has fallen off the bus"]
    assert (c.state, c.reason, c.gpus, c.gpu_count, c.gpu_error) == ("lost", C.reason, None, None, "it is lost")


def test_a_drain_is_in_force_at_once_and_until_it_is_taken_back(site: Site) -> None:
    drained = site.service.drain_host("b", actor="ada")
    assert (drained.state, drained.since, drained.engines) == ("draining", 11.0, ["rh-m-0"])
    site.service.drain_host("b", actor="bob")
    assert (site.states()["b"], dict(site.files.drained_hosts()), site.woken) == ("draining", {"b": 11.0}, 1)
    site.observed = replace(site.observed, hosts=(A, replace(B, state=HostState.DRAINING), C))
    assert site.service.undrain_host("b", actor="ada").state == "ready"
    assert site.service.undrain_host("b", actor="ada").state == "ready"
    assert (dict(site.files.drained_hosts()), site.woken) == ({}, 2)
    assert site.told() == ["drain of host b ordered by ada", "undrain of host b ordered by ada"]


def test_the_last_ready_host_is_not_drained_even_before_a_round_has_seen_the_others_drain(site: Site) -> None:
    site.service.drain_host("a", actor="ada")
    with pytest.raises(RoundhouseError) as error:
        site.service.drain_host("b", actor="ada")
    words = "No other host than b is ready, so that what runs there could move nowhere."
    assert code_of(error) == ("last_host", 409, words)
    assert dict(site.files.drained_hosts()) == {"a": 11.0}


async def test_a_host_that_is_gone_is_forgotten_and_one_that_answers_is_not(site: Site) -> None:
    site.files.set_drained("c", True)
    with pytest.raises(RoundhouseError) as error:
        await site.service.remove_host("c", "b", actor="ada")
    assert code_of(error) == ("invalid_request", 400, "`confirm` must be the host's name, c, and is 'b'.")
    with pytest.raises(RoundhouseError) as error:
        await site.service.remove_host("b", "b", actor="ada")
    assert code_of(error)[:2] == ("host_answers", 409)
    assert site.forgotten == []
    assert (await site.service.remove_host("c", "c", actor="ada")).name == "c"
    assert (site.forgotten, dict(site.files.drained_hosts()), site.told()) == (
        ["c"],
        {},
        ["host c forgotten by ada"],
    )


async def test_an_unknown_host_is_refused_with_the_known_ones(site: Site) -> None:
    site.observed = replace(site.observed, hosts=(replace(A, name="alpha"), B))
    for ask in (site.service.drain_host, site.service.undrain_host):
        with pytest.raises(RoundhouseError) as error:
            ask("alpa", actor="ada")
        words = "There is no host named 'alpa'; the hosts are alpha, b; did you mean `alpha`?."
        assert code_of(error) == ("unknown_host", 404, words)
    site.observed = replace(site.observed, hosts=(Host(),))
    with pytest.raises(RoundhouseError) as error:
        await site.service.remove_host("b", "b", actor="ada")
    words = "There is no host named 'b', and no other host: this installation has one, which has no name."
    assert code_of(error) == ("unknown_host", 404, words)
