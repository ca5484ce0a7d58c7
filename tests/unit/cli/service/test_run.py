"""`roundhouse service run`: the real supervision, over stand-ins for the controller and the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
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
