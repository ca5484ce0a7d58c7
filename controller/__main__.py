"""`python -m controller`: run one controller until SIGTERM. Engines keep running, unless a shutdown request asks to
stop them.

Exit codes: 0 ended as asked, 1 failed, 2 a setting is wrong, 3 the address is taken, 4 the state folder is in use, 5
the runtime does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

import aiohttp

from common.internal_server import ListeningServer, open_listener
from common.internal_tokens import LINK_TOKEN
from common.line_writer import end_program, open_missing_streams
from common.listening import split_listen_address
from common.processes import return_freed_memory
from common.program import (
    EXIT_ADDRESS,
    EXIT_FAILED,
    EXIT_LOCKED,
    EXIT_USAGE,
    AsgiApp,
    TokenCheck,
    call_at_end,
    refuse_start,
)
from common.program_logs import configure_logging, keep_log_file
from common.shared_token import SharedToken
from controller.api.app import create_app
from controller.api.requests import StopMiddleware
from controller.assembly import EXIT_RUNTIME_SILENT, Controller
from controller.runtimes import open_runtime
from controller.runtimes.base import RuntimeUnavailableError
from controller.settings import ControllerSettings, SettingsError, load_settings
from controller.state_dir import StateDir, StateError, StateLockedError

log = logging.getLogger("controller")
_refuse = partial(refuse_start, "controller")


def main() -> int:
    """Run one controller in this thread until SIGTERM, SIGINT, a shutdown request or a failure. Reads the settings from
    the environment, sets up logging, and keeps a log file in the state folder. Returns the program's exit code: 0 ended
    as asked, 1 failed (also where a file of the state folder is damaged), 2 a setting is wrong, 3 the address is taken,
    4 the state folder is in use, 5 the runtime does not answer, or nobody listens at the Docker socket any more. A
    failure at the start is one line on stderr, a later one is in the log. Blocks; call it in the main thread."""
    try:
        settings = load_settings()
    except SettingsError as error:
        return _refuse(EXIT_USAGE, str(error))
    return_freed_memory()
    configure_logging(settings.log_level, settings.log_format)
    for logger_name in ("watchfiles", "uvicorn.error"):
        logging.getLogger(logger_name).setLevel(logging.WARNING)
    try:
        store = StateDir.open_folder(settings.state, settings.instance)
    except StateLockedError as error:
        return _refuse(EXIT_LOCKED, str(error))
    except StateError as error:
        return _refuse(EXIT_FAILED, str(error))
    keep_log_file(settings.state, "controller", settings.log_mib, settings.log_format)
    try:
        return asyncio.run(_serve(settings, store))
    except StateError as error:  # a file of the folder is damaged
        return _refuse(EXIT_FAILED, str(error))
    finally:
        store.close()


async def _serve(settings: ControllerSettings, store: StateDir) -> int:
    token = open_token(settings)  # before anybody can connect: who does has read it
    address = split_listen_address(settings.listen)
    try:
        listener = open_listener(address)
    except OSError as error:
        return _refuse(EXIT_ADDRESS, f"cannot listen on {settings.listen}: {error.strerror or error}")
    try:
        runtime = await open_runtime(settings, store.instance)
    except RuntimeUnavailableError as error:
        listener.close()
        return _refuse(EXIT_RUNTIME_SILENT, str(error))
    except OSError as error:
        listener.close()
        return _refuse(EXIT_FAILED, f"the folders of engines' processes cannot be made: {error}")
    timeout = aiohttp.ClientTimeout(sock_connect=settings.connect_timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        Controller(settings, store, runtime, session) as controller,
    ):
        call_at_end(lambda: controller.shut_down(stop_engines=False))
        app: AsgiApp = StopMiddleware(create_app(controller, controller.registry), controller.wait_for_end)
        if token is not None:
            app = TokenCheck(app, token, LINK_TOKEN)
        server = ListeningServer(app, address, listener)
        log.info("instance %s, runtime %s, listening on %s", store.instance, runtime.kind, settings.listen)
        await controller.wait_for_end()
        await server.close()
    return controller.exit_code


def open_token(settings: ControllerSettings) -> SharedToken | None:
    """Open the token that clients of a controller on a TCP port must send. Creates the token file if it is missing or
    holds no token. A failure of that is logged and raises nothing; until a later try succeeds, every client is refused.
    None means that no token is needed: the controller listens on a unix socket, whose file mode decides who may
    connect, or the settings name no token file."""
    if settings.gateway_token_file is None or isinstance(split_listen_address(settings.listen), Path):
        return None
    token = SharedToken(settings.gateway_token_file, "the gateways' token")
    token.ensure_token()
    return token


if __name__ == "__main__":
    open_missing_streams()
    end_program(main())
