"""`roundhouse service run`: the real supervision, over stand-ins for the controller and the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.output import ExitCode
from cli.up.supervisor import read_record
from tests.support.stand_in_up import Up, down, runs
from tests.support.wait import until

pytestmark = pytest.mark.slow
BOTH_ENDED = ["gateway got SIGTERM", "gateway ended", "controller got SIGTERM", "controller ended"]


@pytest.fixture
async def service(folder: Path) -> AsyncIterator[Up]:
    made = Up(folder)
    made.program = "service"
    yield made
    made.kill_all()


async def serve(service: Up) -> None:
    service.start()
    await until("the gateway answers", service.answers)
    await until("the controller runs", lambda: "controller started" in service.events())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_its_end_is_the_programs_and_not_the_engines(service: Up, number: signal.Signals) -> None:
    await serve(service)
    service.send(number)
    assert await service.ended() == ExitCode.DONE
    # A controller that was asked to end would stop the engines; one that gets SIGTERM leaves them.
    assert service.events()[2:] == BOTH_ENDED
    assert not any(runs(pid) for pid in service.pids())
    assert not (service.state / "up.json").exists()
    assert service.err.splitlines()[-1] == "roundhouse: stopped; engines go on, and `roundhouse down` ends them"


async def test_what_a_killed_run_left_is_ended_in_order_and_started_anew(service: Up) -> None:
    await serve(service)
    assert service.process is not None
    service.process.kill()
    service.process.wait()
    left = service.pids()
    assert all(runs(pid) for pid in left)
    service.start()
    await until("both were started again", lambda: len(service.pids()) == 4)
    await until("the gateway answers", service.answers)
    assert service.events()[2:6] == BOTH_ENDED
    assert not any(runs(pid) for pid in left)
    service.send(signal.SIGTERM)
    assert await service.ended() == ExitCode.DONE


async def test_a_program_that_dies_is_started_again(service: Up) -> None:
    await serve(service)
    os.kill(read_record(service.state).children["gateway"].pid, signal.SIGKILL)
    await until("it was started again", lambda: service.events().count("gateway started") == 2)
    assert "the gateway was ended by SIGKILL; it is started again in 0.5 s" in service.err
    assert service.events().count("controller started") == 1


def gateway_pid(service: Up) -> int:
    return read_record(service.state).children["gateway"].pid


async def test_sighup_replaces_the_gateway_which_ends_once_the_new_one_serves(service: Up) -> None:
    await serve(service)
    first = gateway_pid(service)
    service.send(signal.SIGHUP)
    await until("the old one has ended", lambda: "gateway ended" in service.events() and not runs(first))
    assert service.events()[2:] == ["gateway started", "gateway got SIGTERM", "gateway ended"]
    assert gateway_pid(service) != first
    assert await service.answers()
    assert "the gateway is restarted: the new process serves, the old one ends its requests" in service.err
    os.kill(gateway_pid(service), signal.SIGKILL)  # the new one is looked after like the one before
    await until("it was started again", lambda: service.events().count("gateway started") == 3)
    service.send(signal.SIGTERM)
    assert await service.ended() == ExitCode.DONE
    assert not any(runs(pid) for pid in service.pids())


async def test_a_new_gateway_that_does_not_come_up_leaves_the_old_one_serving(service: Up) -> None:
    service.start(GATEWAY_DOES="exit-second:2")
    await until("the gateway answers", service.answers)
    first = gateway_pid(service)
    service.send(signal.SIGHUP)
    words = "the gateway is not restarted, the old process serves on: the new one ended with exit code 2"
    await until("it is said", lambda: words in service.err)
    assert gateway_pid(service) == first
    assert await service.answers()
    assert "gateway got SIGTERM" not in service.events()


async def test_a_second_sighup_is_one_too_many_while_the_old_gateway_ends(service: Up, folder: Path) -> None:
    service.start(GATEWAY_DOES=f"until:{folder / 'end'}")
    await until("the gateway answers", service.answers)
    service.send(signal.SIGHUP)
    await until("the old one is asked to end", lambda: "gateway got SIGTERM" in service.events())
    service.send(signal.SIGHUP)
    words = "the gateway is being started or restarted now: it is not restarted once more"
    await until("it is said", lambda: words in service.err)
    service.send(signal.SIGTERM)
    await until("both are asked to end", lambda: service.events().count("gateway got SIGTERM") >= 2)
    (folder / "end").touch()
    assert await service.ended() == ExitCode.DONE
    assert not any(runs(pid) for pid in service.pids())


async def test_while_the_gateway_is_dead_connections_wait(service: Up) -> None:
    await serve(service)
    os.kill(gateway_pid(service), signal.SIGKILL)
    await until("it is noticed", lambda: "was ended by SIGKILL" in service.err)
    assert await service.answers()


async def test_what_systemd_keeps_of_it_lets_connections_wait_over_its_restart(service: Up, folder: Path) -> None:
    """systemd's part, by its protocol: FDSTORE of sd_notify(3), and what sd_listen_fds(3) gets back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(60)
        service.start(NOTIFY_SOCKET=str(folder / "notify"))
        assert (await asyncio.to_thread(manager.recv, 100)).decode() == "FDSTOREREMOVE=1\nFDNAME=listener"
        message, kept, _, _ = await asyncio.to_thread(socket.recv_fds, manager, 100, 8)
        assert message.decode() == "FDSTORE=1\nFDNAME=listener"
        await until("the gateway answers", service.answers)
        service.send(signal.SIGTERM)
        assert await service.ended() == ExitCode.DONE
        asked = asyncio.create_task(service.answers())  # nobody accepts it, and it is not refused
        service.passed = kept
        service.start()
        await until("the gateway runs", lambda: service.events().count("gateway started") == 2)
        assert await asked
        service.send(signal.SIGTERM)
        assert await service.ended() == ExitCode.DONE
        for descriptor in kept:
            os.close(descriptor)
    assert not await service.answers(), "nobody holds the sockets"


async def test_kept_sockets_of_another_port_are_left_for_the_ports_of_the_settings(service: Up) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        service.passed = [other.fileno()]
        service.start()
        await until("the gateway answers", service.answers)
        line = f"the sockets that were passed on listen on 127.0.0.1:{other.getsockname()[1]}, and the settings name"
        assert line in service.err


async def test_down_ends_it_for_good(service: Up, capsys: pytest.CaptureFixture[str]) -> None:
    await serve(service)
    ending = asyncio.create_task(service.ended())
    assert await down(service) == ExitCode.DONE
    # systemd starts again what ended otherwise (Restart=on-failure).
    assert await ending == ExitCode.DONE
    assert not any(runs(pid) for pid in service.pids())


async def test_a_wrong_setting_ends_it_with_the_code_that_the_unit_knows(service: Up) -> None:
    service.start(GATEWAY_DOES="exit:2")
    assert await service.ended() == ExitCode.USAGE
    assert "the gateway ended: a setting is wrong; stopping" in service.err


async def test_beside_an_up_it_is_refused(service: Up) -> None:
    other = Up(service.folder)
    other.start()
    try:
        await other.ready()
        service.log_folder = service.folder / "log"
        service.log_folder.mkdir()
        service.start()
        assert await service.ended() != ExitCode.DONE
        assert "another `roundhouse up`" in service.err
        assert all(runs(pid) for pid in other.pids())
    finally:
        other.kill_all()
