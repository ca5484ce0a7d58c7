"""`hosts`, `drain` and `undrain`, and hosts in `status`, `gpu` and `top`, against a controller's interface."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from cli.load import describe_left
from cli.output import ExitCode, time_words
from cli.top_view import TopView
from contract.admin import GpuMemory, GpuMemoryAnswer, HostList
from contract.errors import RoundhouseError
from contract.status import GpuStatus, HostStatus, ReplicaStatus
from tests.fakes.fake_control_api import FakeControlApi, host, listed, model, row, status
from tests.support.cli import Cli, Output, started
from tests.support.wait import until

A = host(
    "a", since=1000.0, last_heard=1009.0, memory_mib=64_000, claimed_mib=500, gpu_count=2,
    engines=["rh-chat-0", "rh-chat-1"], versions={"roundhouse": "0.9.0"},
)  # fmt: skip
B = host("b", "lost", since=1000.0, last_heard=985.0, gpu_count=None, reason="no word for 15 s", engines=["rh-chat-2"])
TABLE = (
    "NAME  STATE  SINCE                GPUS  MEMORY                    ENGINES  VERSION  LAST HEARD\n"
    f"a     ready  {time_words(1000)}  2     500 of 64000 MiB claimed  2        0.9.0    {time_words(1009)}\n"
    f"b     lost   {time_words(1000)}  -     0 MiB claimed             1        -        {time_words(985)}\n"
    "host b is lost: no word for 15 s\n"
)
CUT_OFF = "the controller is cut off: 1 of 2 hosts do not answer, nothing is moved\n"


def replica(name: str, phase: str, inflight: int | None) -> ReplicaStatus:
    return ReplicaStatus(name=name, index=0, attempt=1, phase=phase, spec_hash="h", outdated=False, inflight=inflight)


async def test_hosts_are_a_table_with_what_is_wrong_below(api: FakeControlApi, cli: Cli) -> None:
    api.hosts = HostList(hosts=[A, B], is_cut_off=False)
    assert await cli("hosts") == Output(ExitCode.PENDING, TABLE)
    code, out, _ = await cli("hosts", "--json")
    assert (code, json.loads(out)["hosts"][1]["state"]) == (ExitCode.PENDING, "lost")


async def test_a_host_that_is_reached_without_tls_is_named(api: FakeControlApi, cli: Cli) -> None:
    api.hosts = HostList(hosts=[A.model_copy(update={"relay": "10.0.0.2:8143", "is_insecure": True})], is_cut_off=False)
    code, out, _ = await cli("hosts")
    assert (code, out.splitlines()[2:]) == (
        ExitCode.DONE,
        ["host a is reached without TLS: who is in that network reads and changes all it is sent"],
    )


async def test_the_only_host_is_one_plain_row(api: FakeControlApi, cli: Cli) -> None:
    code, out, _ = await cli("hosts")
    assert code == ExitCode.DONE
    assert out.splitlines()[1:] == ["this host  ready  -      0     0 MiB claimed  0        -        -"]


async def test_a_drain_says_what_is_left_and_an_undrain_what_it_is_then(api: FakeControlApi, cli: Cli) -> None:
    api.hosts = HostList(hosts=[A, B], is_cut_off=False)
    assert await cli("drain", "a") == Output(ExitCode.DONE, "host a: drained, 2 engines left\n")
    assert await cli("undrain", "a") == Output(ExitCode.DONE, "host a: not drained, ready\n")
    assert api.requests == [("drain", {"name": "a", "body": None}), ("undrain", {"name": "a", "body": None})]


async def test_a_refused_drain_says_what_to_do(api: FakeControlApi, cli: Cli) -> None:
    api.refusal = RoundhouseError("unknown_host", "There is no host named 'b', and no other host.")
    code, out, err = await cli("drain", "b")
    assert (code, out) == (ExitCode.FAILED, "")
    assert "no other host" in err


async def test_a_waiting_drain_says_what_is_left_and_why_and_ends_when_the_host_is_empty(
    api: FakeControlApi, cli: Cli
) -> None:
    draining = A.model_copy(update={"state": "draining"})
    details = [replica("rh-chat-0", "draining", 2), replica("rh-chat-1", "ready", 0)]
    api.rows = [row("chat", replica_details=details, blocked=["needs 9 MiB; no room"])]
    api.hosts = HostList(hosts=[draining, B], is_cut_off=False)
    code, out, err = await cli("drain", "a", "--wait", "--timeout", "0.2")
    left = [
        "rh-chat-0: draining, 2 running requests; needs 9 MiB; no room",
        "rh-chat-1: ready; needs 9 MiB; no room",
    ]
    assert list(describe_left(draining, api.rows)) == left
    assert (code, err) == (ExitCode.PENDING, f"roundhouse: host a: {'; '.join(left)}\n")
    assert out == "".join(["host a: drained, 2 engines left\n", *(f"  {line}\n" for line in left)])
    api.hosts = HostList(hosts=[draining.model_copy(update={"engines": []}), B], is_cut_off=False)
    assert await cli("drain", "a", "--wait") == Output(ExitCode.DONE, "host a: drained, and empty\n")


async def test_a_drain_that_was_taken_back_ends_the_waiting(api: FakeControlApi, cli: Cli) -> None:
    api.hosts = HostList(hosts=[A, B], is_cut_off=False)
    code, _, err = await cli("drain", "a", "--wait")
    assert (code, err) == (ExitCode.FAILED, "roundhouse: the drain of host a was taken back\n")


async def test_ctrl_c_leaves_a_host_draining(api: FakeControlApi) -> None:
    api.hosts = HostList(hosts=[A.model_copy(update={"state": "draining"}), B], is_cut_off=False)
    process = await started(api, "drain", "a", "--wait", stderr=asyncio.subprocess.PIPE)
    await until("it asks", lambda: ("hosts", None) in api.requests)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert err.decode().endswith("host a goes on draining; `roundhouse undrain a` takes it back\n")


async def test_a_host_is_forgotten_once_it_is_confirmed(api: FakeControlApi, cli: Cli, tmp_path: Path) -> None:
    api.hosts = HostList(hosts=[A, B], is_cut_off=False)
    code, _, err = await cli("hosts", "forget", "b")
    assert (code, err) == (ExitCode.USAGE, "roundhouse: forgetting host b must be confirmed: add --yes\n")
    assert api.requests == []
    assert await cli("hosts", "forget", "b", "--yes") == Output(0, "host b is forgotten, with 1 engine\n")
    assert api.requests == [("forget", {"name": "b", "body": {"confirm": "b"}})]


async def test_options_before_the_subcommand_hold_for_it(api: FakeControlApi) -> None:
    """Else a host of another installation were forgotten."""
    from cli.app import run

    api.hosts = HostList(hosts=[A, B], is_cut_off=False)
    code = await asyncio.to_thread(run, ["hosts", "--controller", api.url, "forget", "b", "--yes"])
    assert (code, [verb for verb, _ in api.requests]) == (0, ["forget"])


async def test_status_gpu_and_top_have_hosts_of_an_installation_with_several(api: FakeControlApi, cli: Cli) -> None:
    gpu = GpuStatus(uuid="GPU-b0", index=0, name="H200", total_mib=100, used_mib=7, host="b")
    hosts = [HostStatus(**each.model_dump(include=set(HostStatus.model_fields))) for each in (A, B)]
    api.status = status(model("chat"), hosts=hosts, is_cut_off=True, gpus=[gpu])
    _, out, _ = await cli("status")
    notes = TABLE.replace("host b is lost", f"{CUT_OFF}host b is lost")
    assert f"{notes}GPU b/0 H200: 7 of 100 MiB used, 0 claimed\n" in out
    shown = GpuMemory(**gpu.model_dump(), used_over_total="7MiB / 100MiB")
    api.memory = GpuMemoryAnswer(gpus=[shown], models=[], error=None, hosts=hosts, is_cut_off=True)
    _, out, _ = await cli("gpu")
    assert notes in out
    assert "b/0  H200" in out
    view = TopView(listed(), api.memory, None)
    assert view.gpu_lines() == ["host a: ready, 2 engines", "host b: lost, 1 engine", "GPU b/0 H200: 7MiB / 100MiB"]
    assert view.trouble_lines() == [CUT_OFF.strip(), "host b is lost: no word for 15 s"]
    assert view.as_json()["is_cut_off"] is True


@pytest.mark.parametrize("answer", [status(), GpuMemoryAnswer(gpus=[], models=[], error=None)])
def test_one_host_is_not_named_in_answers(answer: object) -> None:
    assert not {"hosts", "is_cut_off"} & answer.model_dump().keys()  # type: ignore[attr-defined]
