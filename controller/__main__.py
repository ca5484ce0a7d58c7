"""`python -m controller`: one controller until SIGTERM. Engines run on, unless it was asked to stop them.

Exit codes: 0 ended as asked, 1 failed, 2 a setting is wrong, 3 the address is taken, 4 the state folder is in use,
5 the runtime does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import uvicorn

from controller.api.app import create_app
from controller.api.stopping import AsgiApp, StopMiddleware
from controller.api.token_check import TokenCheck
from controller.assembly import EXIT_FAILED, EXIT_RUNTIME_SILENT, Controller
from controller.runtimes import open_runtime
from controller.runtimes.base import RuntimeUnavailableError
from controller.settings import ControllerSettings, SettingsError, load_settings, split_address
from controller.storage.gateway_token import GatewayToken
from controller.storage.state_dir import StateDir, StateError, StateLockedError

log = logging.getLogger("controller")


def main() -> int:
    """Run; the exit code."""
    try:
        settings = load_settings()
    except SettingsError as error:
        return _fail(2, str(error))
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    for logger_name in ("watchfiles", "uvicorn.error"):
        logging.getLogger(logger_name).setLevel(logging.WARNING)
    try:
        store = StateDir.open_folder(settings.state, settings.instance)
    except StateLockedError as error:
        return _fail(4, str(error))
    except StateError as error:
        return _fail(EXIT_FAILED, str(error))
    try:
        return asyncio.run(_serve(settings, store))
    finally:
        store.close()


def _fail(code: int, message: str) -> int:
    sys.stderr.write(f"roundhouse controller: {message}\n")
    return code


async def _serve(settings: ControllerSettings, store: StateDir) -> int:
    token = open_token(settings)  # before anybody can connect: who does has read it
    try:
        listener = _listen(settings)
    except OSError as error:
        return _fail(3, f"cannot listen on {settings.listen}: {error.strerror or error}")
    try:
        runtime = await open_runtime(settings, store.instance)
    except RuntimeUnavailableError as error:
        listener.close()
        return _fail(EXIT_RUNTIME_SILENT, str(error))
    timeout = aiohttp.ClientTimeout(sock_connect=settings.connect_timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        Controller(settings, store, runtime, session) as controller,
    ):
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, lambda: controller.shut_down(stop_engines=False))
        app: AsgiApp = StopMiddleware(create_app(controller, controller.registry), controller.wait_for_end)
        if token is not None:
            app = TokenCheck(app, token)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio")
        server = _Server(config)
        server_task = asyncio.create_task(server.serve(sockets=[listener]))
        log.info("instance %s, runtime %s, listening on %s", store.instance, runtime.kind, settings.listen)
        await controller.wait_for_end()
        server.should_exit = True
        server.force_exit = True
        await server_task
    return controller.exit_code


def open_token(settings: ControllerSettings) -> GatewayToken | None:
    """What must be shown to a controller that listens on a port; None: the mode of a socket's file says who may."""
    if settings.gateway_token_file is None or isinstance(split_address(settings.listen), Path):
        return None
    token = GatewayToken(settings.gateway_token_file)
    token.ensure_token()
    return token


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: ours ask the controller to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def _listen(settings: ControllerSettings) -> socket.socket:
    address = split_address(settings.listen)
    if isinstance(address, Path):
        # The state folder's lock is ours: whoever left this socket is gone.
        address.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        old_umask = os.umask(0o177)
        try:
            listener.bind(str(address))
        finally:
            os.umask(old_umask)
    else:
        listener = socket.create_server(address)
    listener.setblocking(False)
    return listener


if __name__ == "__main__":
    sys.exit(main())
