"""The life of a worker process: listen, load, serve, stop."""

from __future__ import annotations

import asyncio
import os
import socket
from argparse import Namespace
from types import FrameType

import uvicorn
import uvloop

from worker.engine import Engine
from worker.errors import LoadError
from worker.preflight import open_listener
from worker.serving.app import Worker, create_app

TOKEN_ENV = "ROUNDHOUSE_ENGINE_TOKEN"  # noqa: S105 - the variable's name, not its value
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections. So the clients close them, and no request meets a closed one."""
STOP_SECONDS = 1
"""Seconds that answers have to end after SIGTERM, once their jobs are cancelled."""


class _Server(uvicorn.Server):
    """uvicorn with two differences. When it stops, running answers are cancelled, for which uvicorn would wait. A
    signal that stopped it is not raised again afterwards, so that the worker exits 0."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self._worker = worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.runner.stop_runs()
        await super().shutdown(sockets)


async def _serve(worker: Worker, listener: socket.socket, token: str | None) -> None:
    config = uvicorn.Config(
        create_app(worker, token),
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = _Server(config, worker)
    load = asyncio.create_task(worker.runner.call_function(worker.engine.load_model))

    def loaded(task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            server.should_exit = True
        else:
            worker.ready = True

    load.add_done_callback(loaded)
    await server.serve([listener])
    if load.done():
        load.result()
    else:
        load.cancel()


def run_server(engine: Engine, args: Namespace) -> None:
    """Serve in this thread, which must be the main one, until SIGTERM or SIGINT comes or the load fails. `args` has
    `host`, `port` and `served_name`. The bearer token comes from the variable ROUNDHOUSE_ENGINE_TOKEN; unset: none is
    required.

    Listens before it loads, so that `/health` answers meanwhile and a taken port is noticed first. Raises LoadError,
    also for an empty token, PortTakenError, and what `Engine.load_model` raises. Engine threads may still run when it
    returns.
    """
    token = os.environ.get(TOKEN_ENV)
    if token == "":
        raise LoadError(f"{TOKEN_ENV} is set and empty: set a token, or unset it to serve without one")
    listener = open_listener(args.host, args.port)
    worker = Worker(engine, args.served_name)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(worker, listener, token))
