"""`python -m gateway`: run the gateway until SIGTERM or SIGINT.

It takes listening sockets that are passed on as systemd does it (sd_listen_fds(3)), and binds its own where there are
none. With them comes a descriptor named `ready` where the gateway takes over from an older process, which serves
until the new one has written a line there: it serves then.

Exit codes: 0 after such a signal, 1 if it takes over and gets no routing table, 2 for invalid settings, 3 if the
gateway cannot listen on its address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

import uvicorn
from prometheus_client import disable_created_metrics
from pydantic import ValidationError

from common.line_writer import end_program, open_missing_streams
from common.listening import BACKLOG, LISTENER, READY, ListenError, open_listeners, take_passed_files
from common.processes import return_freed_memory
from common.program import EXIT_ADDRESS, EXIT_USAGE, explain_settings, refuse_start
from common.program_logs import configure_logging, keep_log_file
from common.trusted_clock import TrustedClock
from common.unread_input import LingeringApp
from contract.errors import RoundhouseError
from gateway.app import AdminHostError, Gateway, create_gateway, open_certificate, open_clock
from gateway.extension import Extend, ExtensionError, open_extension
from gateway.server.call import header_lines
from gateway.server.connection import ClientConnection, last_answer
from gateway.server.request_reader import ClientLimits
from gateway.server.tls_certificate import CertificateError, TlsCertificate
from gateway.settings import GatewaySettings

_refuse = functools.partial(refuse_start, "gateway")
UNSENT_BYTES = 128 * 1024
"""Bytes of an answer that the operating system buffers per connection before they are sent."""
FIRST_TABLE_S: Final = 5.0
"""Seconds that connections wait at sockets which were passed on, at most, for the first routing table."""
LOCK_WAIT_S: Final = 60.0
"""Seconds, beyond its grace period, that the process before this one may take to release the state folder."""
FRESH_S: Final = 1.0
"""Seconds that a connection without a request has for its first one when a stop begins: the client has just opened it,
and may not have heard that the gateway ends."""


class Server(uvicorn.Server):
    """uvicorn's server for one `Gateway`: it serves a certificate that is renewed, and stops by the gateway's
    `begin_stop` and `end_all`.

    SIGTERM and SIGINT end `run` without an exception, while uvicorn would raise the signal again.
    """

    def __init__(
        self, config: uvicorn.Config, gateway: Gateway, grace_s: float, certificate: TlsCertificate | None
    ) -> None:
        """`grace_s`: seconds that running requests have left after a signal. `certificate` None: serve HTTP."""
        self.waits_for_table = False
        """Whether clients may wait at the sockets already, so that nothing is accepted before there is a table."""
        self.ready_file: int | None = None
        """Descriptor that is written to and closed once the server serves. Not None: without a table it does not."""
        self._is_ending = False
        self._end = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(config)
        self.gateway = gateway
        self._grace_s = grace_s
        self._certificate = certificate

    @property
    def should_exit(self) -> bool:
        """Whether the server is to end. Set it in any thread, or in a signal handler."""
        return self._is_ending

    @should_exit.setter
    def should_exit(self, is_ending: bool) -> None:
        self._is_ending = is_ending
        if is_ending and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)

    async def main_loop(self) -> None:
        """Renew the date of answers once a second, until `should_exit` is set. Called by uvicorn, whose own loop looks
        for the end ten times a second."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._end.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on `sockets`, over TLS if there is a certificate; plain HTTP is answered with `https_required` then.
        Called by uvicorn."""
        if self._certificate is not None:
            self.config.ssl = self._certificate.listening_context
            self._certificate.listening_context.answer_plain_http = self._refuse_plain_http
        if not self.waits_for_table:
            await super().startup(sockets)
            return
        await super().startup([])  # all but the listening
        has_table = await self.gateway.link.wait_for_table(FIRST_TABLE_S)
        if self.ready_file is not None and not has_table:
            self.should_exit = True
            return
        loop = asyncio.get_running_loop()
        new_connection = functools.partial(
            cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for each in sockets or ():
            server = await loop.create_server(new_connection, sock=each, ssl=self.config.ssl, backlog=BACKLOG)
            self.servers.append(server)
        if self.ready_file is not None:
            os.write(self.ready_file, b"\n")
            os.close(self.ready_file)

    def _refuse_plain_http(self) -> bytes:
        error = RoundhouseError("https_required", "This port speaks HTTPS, and the request came as plain HTTP.")
        request_id = self.gateway.inference.next_request_id()
        return last_answer(error, request_id, header_lines(self.server_state.default_headers))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: accept no connections, wait for running requests, and end the rest with `gateway_stopping`.

        Called by uvicorn after a signal. Waits for requests until about a second after the grace period at most, and
        then for the end of the gateway's lifespan; after a second SIGINT (`force_exit`) for neither.
        """
        self.gateway.begin_stop()
        end_timer = asyncio.get_running_loop().call_later(self._grace_s, self.gateway.end_all)
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        try:
            async with asyncio.timeout(math.ceil(self._grace_s) + 1):  # `end_all` has ended all that is well by then
                await self._wait_for_requests()
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        end_timer.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _wait_for_requests(self) -> None:
        """Wait also for requests without a connection, such as background responses."""
        state, loop = self.server_state, asyncio.get_running_loop()
        fresh_until = loop.time() + FRESH_S
        told: set[object] = set()
        # Nothing signals that uvicorn's sets are empty.
        while not self.force_exit:
            is_over = loop.time() >= fresh_until
            for connection in state.connections - told:
                if is_over or getattr(connection, "cycle", connection) is not None:
                    told.add(connection)
                    connection.shutdown()
            # A connection whose TLS handshake is under way is in no set yet.
            is_shaking_hands = self._certificate is not None and not is_over
            if not (state.connections or state.tasks or self.gateway.is_busy or is_shaking_hands):
                break
            await asyncio.sleep(0.02)
        for server in self.servers:
            await server.wait_closed()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT within the context, and restore the former handlers after it.

        A second SIGINT does not wait for running requests. Enter it in the main thread.
        """
        previous_handlers = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)


def main() -> int:
    """Run the gateway until it is stopped by a signal, or write to stderr why it cannot start.

    Returns the exit code: 0 after a signal, `EXIT_USAGE` (2) for settings or a state folder that cannot be used,
    `EXIT_ADDRESS` (3) if it cannot listen. Blocks; call it in the main thread of a process of its own, whose limits and
    garbage collector and memory allocator it changes.
    """
    passed = take_passed_files(os.environ)
    try:
        settings = GatewaySettings()
    except ValidationError as error:
        return _refuse(EXIT_USAGE, explain_settings(error))
    try:
        certificate = open_certificate(settings)
    except CertificateError as error:
        return _refuse(EXIT_USAGE, str(error))
    note = functools.partial(print, "gateway:", file=sys.stderr)
    try:
        listeners = open_listeners(settings.hosts, settings.port, passed.get(LISTENER, ()), note)
        limit_unsent(listeners)
    except ListenError as error:
        address = f"{error.host}:{settings.port}"
        return _refuse(EXIT_ADDRESS, f"cannot listen on {address}: {error}. Choose another ROUNDHOUSE_HOST or _PORT.")
    settings = settings.model_copy(update={"port": listeners[0].getsockname()[1]})  # 0 took a free port
    ready_file = next(iter(passed.get(READY, ())), None)
    takes_over = ready_file is not None
    try:
        trusted_clock = open_clock(settings)
        extend = open_extension(settings, trusted_clock, settings.shutdown_grace_s + LOCK_WAIT_S if takes_over else 0.0)
    except ExtensionError as error:
        return _refuse(EXIT_USAGE, str(error))
    try:
        server = server_of(settings, extend, certificate, trusted_clock, takes_over=takes_over)
    except AdminHostError as error:
        return _refuse(EXIT_USAGE, f"ROUNDHOUSE_ADMIN_HOST: {error}")
    except OSError as error:
        return _refuse(EXIT_USAGE, f"{error.filename}: {error.strerror}. Set ROUNDHOUSE_STATE")
    configure_logging(settings.log_level, settings.log_format)
    keep_log_file(settings.state, "gateway", settings.log_mib, settings.log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs every request
    logging.getLogger("mcp.client").setLevel(logging.CRITICAL)  # it logs what foreign servers send
    _open_listeners(settings, listeners)
    raise_file_limit()
    tune_garbage_collector()
    return_freed_memory()
    if server.gateway.extension.has_thread:
        shorten_switch_interval()
    server.ready_file, server.waits_for_table = ready_file, LISTENER in passed
    server.run(sockets=listeners)
    if takes_over and not server.servers:
        return _refuse(1, "no routing table came from the controller: nothing is taken over")
    return 0


def _open_listeners(settings: GatewaySettings, listeners: Sequence[socket.socket]) -> None:
    """Accept connections at the bound sockets, and log their addresses."""
    for listener in listeners:
        listener.listen(BACKLOG)  # before the log says so: clients that read it may connect
    scheme = "https" if settings.tls_cert else "http"
    log = logging.getLogger("gateway")
    for listener in listeners:
        host, port = listener.getsockname()[:2]
        log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
    if settings.serves_everybody and not settings.opens_admin:
        log.info("admin requests are refused while no keys are declared (ROUNDHOUSE_OPEN_ADMIN)")


def raise_file_limit() -> None:
    """Raise this process's soft limit of open files to its hard limit: a stream takes two files, and the usual limit is
    1024."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def tune_garbage_collector() -> None:
    """Exclude all objects that exist now from cyclic garbage collection, and collect more rarely. Call once, when the
    program is assembled.

    Measured: a tenth more requests per second. Requests leave no reference cycles, even when they fail: a cycle would
    keep what it holds, such as a body, for minutes (see common/processes.py).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def shorten_switch_interval() -> None:
    """Set this process's thread switch interval to 0.5 ms, so that the thread that stores responses gets its turn soon
    while the event loop is busy.

    The thread needs Python's lock again after each SQLite statement. Measured on an event loop without pauses, with
    1800 responses per second: at Python's default of 5 ms half are written, and requests wait for seconds; at 0.5 ms
    all are written, and requests wait for 40 ms.
    """
    sys.setswitchinterval(0.0005)


def limit_unsent(listeners: Sequence[socket.socket]) -> None:
    """Have the system buffer `UNSENT_BYTES` of an answer at most, on each connection that `listeners` accept."""
    for listener in listeners:
        # Connections inherit the option. Without it, the system buffers megabytes, and asks for more only when a third
        # of them is sent: a client that reads slowly would seem to take nothing.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def server_of(
    settings: GatewaySettings,
    extend: Extend,
    certificate: TlsCertificate | None,
    trusted_clock: TrustedClock,
    *,
    takes_over: bool = False,
) -> Server:
    """Return the server of a new gateway, which is not started: call its `run` with bound sockets. Blocks, as
    `create_gateway` does.

    `extend`: adds another package's features, see `open_extension`. `certificate` None: it serves HTTP.
    `trusted_clock`: the one that `extend` was opened with. `takes_over`: an older process of this gateway serves, and
    is told to end as soon as this one serves.

    Raises:
        AdminHostError: the setting `admin_host` has an entry that is no usable address.
        OSError: `extend` cannot read its files.
    """
    gateway = create_gateway(settings, extend, certificate, trusted_clock, takes_over=takes_over)
    limits = ClientLimits(
        settings.max_header_kib * 1024,
        settings.client_timeout_s,
        settings.keep_alive_s,
        settings.max_body_bytes,
        settings.path_prefix.encode(),
    )
    protocol = functools.partial(ClientConnection, direct=gateway.inference, limits=limits)
    config = uvicorn.Config(
        LingeringApp(gateway.app),
        loop="uvloop",
        http=cast("type[asyncio.Protocol]", protocol),  # uvicorn only calls it
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    return Server(config, gateway, settings.shutdown_grace_s, certificate)


if __name__ == "__main__":
    open_missing_streams()
    end_program(main())
