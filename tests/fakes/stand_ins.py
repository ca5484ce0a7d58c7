"""Stand-ins for the two programs of `roundhouse up`, and an `up` that starts them.

`python -m tests.fakes.stand_ins controller|gateway|up|service`. `controller` answers the internal interface on the
socket that its settings name, and ends when it is asked to or told to; `gateway` lists one loaded model. Both append
what happens to the file $EVENTS. $CONTROLLER_DOES and $GATEWAY_DOES make one misbehave: `exit:N` ends at once with that
code, `exit-once:N` only the first time, `exit-second:N` only the second, `deaf` ignores SIGTERM and requests to end,
`until:FILE` heeds them once that file is there; a gateway with `keys` asks for one. `up` is the real `UpRun` over both,
`service` the real `ServiceRun`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from aiohttp import web

from cli.output import CommandError, print_error
from cli.up.run import CONTROLLER_ENDS, GATEWAY_ENDS, UpRun, lock_and_check, program_specs
from cli.up.service import ServiceRun
from cli.up.supervisor import Announcer, ChildSpec, listen_at, lock_state
from common.listening import LISTENER, split_listen_address, take_passed_files
from controller.settings import ControllerSettings, load_settings
from tests.fakes.fake_control_api import FakeControlApi
from tests.support.wait import until


def note(event: str) -> None:
    """Append a line to $EVENTS, whole."""
    descriptor = os.open(os.environ["EVENTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{event}\n".encode())
    os.close(descriptor)


def misbehave(program: str) -> str:
    """End as the environment says; what else it says."""
    note(f"{program} started {os.getpid()}")
    does = os.environ.get(f"{program.upper()}_DOES", "")
    what, _, code = does.partition(":")
    starts = Path(os.environ["EVENTS"]).read_text().count(f"{program} started")
    if what == "exit" or (what, starts) in (("exit-once", 1), ("exit-second", 2)):
        sys.exit(int(code))
    return does


def note_signals(program: str) -> asyncio.Event:
    """What SIGTERM, SIGINT and SIGHUP set from now on: before it answers anybody, who may send one at once."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        note(f"{program} got {number.name}")
        signalled.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    return signalled


async def until_told(program: str, does: str, signalled: asyncio.Event, requested: asyncio.Event) -> None:
    """Return when `told` or `asked` is set; a deaf one never does."""
    waits = [asyncio.create_task(signalled.wait()), asyncio.create_task(requested.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if requested.is_set():
        note(f"{program} was asked to end")
    what, _, file = does.partition(":")
    if what == "deaf":
        await asyncio.Event().wait()
    if what == "until":
        await until(f"{file} is there", Path(file).exists)
    note(f"{program} ended")


async def controller(does: str) -> None:
    address = split_listen_address(load_settings().listen)
    assert isinstance(address, Path)
    signalled = note_signals("controller")
    address.unlink(missing_ok=True)
    async with FakeControlApi(address) as api:
        await until_told("controller", does, signalled, api.changed)


async def gateway(does: str) -> None:
    signalled, passed = note_signals("gateway"), take_passed_files(os.environ)

    async def models(_request: web.Request) -> web.Response:
        if does == "keys":
            return web.json_response({"error": {"code": "invalid_api_key"}}, status=401)
        model = {"id": "chat", "state": "loaded", "apis": ["/v1/chat/completions"]}
        return web.json_response({"object": "list", "data": [model]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        for descriptor in passed[LISTENER]:
            await web.SockSite(runner, socket.socket(fileno=descriptor)).start()
    except OSError:
        sys.exit(3)  # as the gateway does
    for ready in passed.get("ready", ()):
        os.write(ready, b"\n")
        os.close(ready)
    await until_told("gateway", does, signalled, asyncio.Event())
    await runner.cleanup()


def stand_in_specs(settings: ControllerSettings) -> tuple[ChildSpec, ChildSpec]:
    """The two stand-ins as `up` starts its programs."""
    env = program_specs(settings, os.environ)[0].env
    program = (sys.executable, "-m", "tests.fakes.stand_ins")
    return (
        ChildSpec("controller", (*program, "controller"), env, CONTROLLER_ENDS),
        ChildSpec("gateway", (*program, "gateway"), env, GATEWAY_ENDS),
    )


def service() -> int:
    """What systemd starts, over the two stand-ins."""
    settings = load_settings()
    lock = lock_state(settings.state)
    try:
        passed = take_passed_files(os.environ).get(LISTENER, ())
        return asyncio.run(ServiceRun(settings, stand_in_specs(settings), Announcer(False), passed).run())
    finally:
        os.close(lock)


def up() -> int:
    """The real supervision of the two stand-ins."""
    settings = load_settings()
    specs = stand_in_specs(settings)
    try:
        lock = lock_and_check(settings.state)
        listeners = listen_at(settings.gateway_hosts, settings.port)
    except CommandError as error:
        print_error(str(error))
        return error.code
    try:
        run = UpRun(settings, specs, Announcer("--json" in sys.argv))
        run.hold_listeners(listeners)
        return asyncio.run(run.run())
    finally:
        os.close(lock)


if __name__ == "__main__":
    which = sys.argv[1]
    if which == "up":
        sys.exit(up())
    if which == "service":
        sys.exit(service())
    asyncio.run({"controller": controller, "gateway": gateway}[which](misbehave(which)))
