"""The one way from other machines to the engines of a host: a program that pipes bytes, and reads no HTTP.

It listens on one port, with TLS on both sides: a client shows a certificate of the installation's authority, and the
server name of its hello chooses the replica. A name that is not in the table is refused in the handshake, and a replica
that accepts no connection closes the client's at once. Nobody without a certificate makes it connect to an engine.
Without TLS each replica has a port of its own.

    python -I host_relay.py TABLE FD     serves until TABLE is gone, or is another relay's

TABLE is a JSON file that is only ever replaced as a whole (`relay_keeper` writes it); it is looked at before each
connection, so that it is never stale. FD is the listening socket, which the keeper has, too: while a killed relay is
started again, connections wait there. Imports nothing of the project, so that it is back soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

log = logging.getLogger("host_relay")

CHECK_NAME: Final = "relay.roundhouse.internal"
"""Server name with which the relay itself answers `CHECK_WORD`, and closes: for those that ask whether it is there."""
CHECK_WORD: Final = b"roundhouse relay\n"
HANDSHAKE_S: Final = 10.0
"""Seconds after which a handshake that has not ended is given up."""
MOST_HANDSHAKES: Final = 512
"""Handshakes at the same time. The oldest gives way to a further one, for whoever fills them has no certificate."""
CONNECT_S: Final = 5.0
"""Seconds in which an engine must accept a connection."""
BACKLOG: Final = 4096
"""Connections that wait until they are accepted, at most; a further one is tried again by its kernel after a second."""
LINGER_S: Final = 10.0
"""Seconds that a client may keep its side open after the engine has closed, and longer while it reads."""
RETIRED_S: Final = 3600.0
"""Seconds after which one that no longer listens cuts the connections that it still has."""
LOOK_S: Final = 0.2
"""Seconds between two looks at the table while nobody connects."""
PEERS_LOOK_S: Final = 5.0
"""Seconds between two looks whether clients are still reached."""
SILENT_MS: Final = 20_000
"""Milliseconds without a word of a client's kernel, while something is sent to it again and again, that end it."""
_READ_BYTES: Final = 65536
Address: TypeAlias = tuple[str, int]


class _Handshake(ssl.SSLObject):
    """The TLS of one connection, with what the server name has chosen. None: nothing yet, or the check."""

    chosen: Address | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """The routing table of a relay. `replicas`: server name to the engine's host and port. `ports`: port of the relay
    to server name, where there is no TLS; else empty. `listens`: the other fields of the file: the relay's address and
    TLS files; when they change, the table is another relay's."""

    listens: dict[str, Any]
    replicas: dict[str, Address]
    ports: dict[int, str]

    @classmethod
    def parse(cls, content: bytes) -> Table:
        """Return the table in a file. Raises ValueError, KeyError and TypeError."""
        fields = json.loads(content)
        replicas = fields.pop("replicas")
        return cls(
            fields,
            {name: (host, port) for name, (host, port, _) in replicas.items()},
            {own_port: name for name, (_, _, own_port) in replicas.items() if own_port},
        )


class _EngineSide(asyncio.Protocol):
    """The connection to an engine."""

    def __init__(self, client: _ClientSide) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.send(data)

    def eof_received(self) -> bool:
        self._client.end_answer()
        return True

    def pause_writing(self) -> None:
        self._client.is_engine_full = True
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        self._client.is_engine_full = False
        self._client.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lose_engine()


class _ClientSide(asyncio.Protocol):
    """The connection of a client, and the TLS on it."""

    def __init__(self, relay: Relay, address: Address | None) -> None:
        """`address`: the engine's; None: the handshake chooses it."""
        self.transport: asyncio.Transport
        self._relay = relay
        self._address = address
        self._tls: _Handshake | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        if relay.context is not None:
            tls = relay.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._tls = cast("_Handshake", tls)
        self._engine: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """What arrived before the engine was connected."""
        self.is_engine_full = False
        """Whether the engine must read before more is passed on."""
        self._is_shaking = self._tls is not None
        self._has_ended_request = self._has_ended_answer = False

    # From the client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        keep_watch(transport.get_extra_info("socket"))
        self._relay.add_client(self, is_shaking=self._is_shaking)
        if self._tls is None:
            self._connect()

    def data_received(self, data: bytes) -> None:
        if self._tls is None:
            self._pass_on(data)
            return
        self._incoming.write(data)
        if not self._is_shaking or self._shake(self._tls):
            self._read(self._tls)

    def _shake(self, tls: _Handshake) -> bool:
        """Go on with the handshake, and return whether it has just ended."""
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            log.debug("a handshake was refused: %s", error)
            self._flush()  # the alert
            self.transport.close()
            return False
        self._flush()
        self._is_shaking = False
        self._relay.end_handshake(self)
        self._address = tls.chosen
        if self._address is None:
            self.send(CHECK_WORD)
            self.transport.close()
            return False
        self._connect()
        return True

    def _read(self, tls: _Handshake) -> None:
        parts, has_ended = [], False
        try:
            while not has_ended:
                part = tls.read(_READ_BYTES)
                has_ended = not part
                parts.append(part)
                if not self._incoming.pending and not tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            has_ended = True
        except ssl.SSLError as error:
            log.debug("a connection is broken: %s", error)
            self.transport.abort()
            return
        if self._outgoing.pending:
            self._flush()
        if data := b"".join(parts):
            self._pass_on(data)
        if has_ended:
            self._end_request()

    def _pass_on(self, data: bytes) -> None:
        if self._engine is None:
            self._early.append(data)
            self.transport.pause_reading()  # without TLS, reading began after `connection_made`
        else:
            self._engine.write(data)

    def _end_request(self) -> None:
        """Take the end of what the client sends. The answer may go on."""
        if self._has_ended_request:
            return
        self._has_ended_request = True
        if self._engine is not None:
            self._engine.write_eof()
        if self._has_ended_answer:
            self.transport.close()

    def eof_received(self) -> bool:
        if self._tls is not None and not self._has_ended_request:
            return False  # without the end that TLS has: it is gone
        self._end_request()
        return True

    def pause_writing(self) -> None:
        if self._engine is not None:
            self._engine.pause_reading()

    def resume_writing(self) -> None:
        if self._engine is not None:
            self._engine.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.remove_client(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._engine is not None:
            self._engine.abort()

    # From the engine

    def _connect(self) -> None:
        self.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._open_engine())

    async def _open_engine(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            assert self._address is not None
            async with asyncio.timeout(CONNECT_S):
                engine, _ = await loop.create_connection(lambda: _EngineSide(self), *self._address)
        except OSError as error:
            log.debug("no connection to %s: %s", self._address, error)
            self.transport.abort()
            return
        self._connecting, self._engine = None, engine
        engine.writelines(self._early)
        self._early.clear()
        if self._has_ended_request:
            engine.write_eof()
        if not self.is_engine_full:
            self.transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send bytes of the engine to the client, encrypted if there is TLS. `pause_writing` bounds what is not sent
        yet."""
        if self._tls is None:
            self.transport.write(data)
            return
        count = self._tls.write(data)
        while count < len(data):
            count += self._tls.write(memoryview(data)[count:])
        self._flush()

    def end_answer(self) -> None:
        """Tell the client that no more comes. It may send on, for a while."""
        self._has_ended_answer = True
        if self._tls is not None:
            with contextlib.suppress(ssl.SSLError):  # it would wait for the client's
                self._tls.unwrap()
            self._flush()
        if self._has_ended_request:
            self.transport.close()
        else:
            self.transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self._stop_lingering)

    def _stop_lingering(self) -> None:
        if self.transport.get_write_buffer_size():  # a slow client has yet to take the answer
            asyncio.get_running_loop().call_later(LINGER_S, self._stop_lingering)
        else:
            self.transport.abort()

    def lose_engine(self) -> None:
        """Close the client's connection once it has what the engine sent. Without the end that TLS has, it sees an
        answer that broke off."""
        self._engine = None
        self.transport.close()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self.transport.write(data)


class Relay:
    """Listens as its table says, and follows the table. Use one object in one event loop."""

    def __init__(self, path: Path, listener: socket.socket) -> None:
        """`path`: of the table. Raises OSError and ValueError if it cannot be read, or the TLS files in it cannot."""
        self._path = path
        self._listener = listener
        self._stamp: tuple[int, ...] | None = None
        self._table: Table | None = None
        self._first = self._look()
        if self._first is None:
            raise FileNotFoundError(f"there is no table {path}")
        self.context = _open_context(self._first.listens, self._choose)
        """None: without TLS."""
        self._clients: set[_ClientSide] = set()
        self._shaking: dict[_ClientSide, float] = {}
        """When each handshake under way has begun, the oldest first."""
        self._peers_seen_at = time.monotonic()
        self._servers: dict[tuple[int, str | None], asyncio.Server] = {}
        """By port, and the server name of its replica; None: the relay's own port."""

    async def serve(self) -> None:
        """Serve until the table is gone; or until it says that another one serves from now on, and all connections
        have ended."""
        assert self._first is not None
        loop, listens = asyncio.get_running_loop(), self._first.listens
        self._servers[listens["port"], None] = await loop.create_server(
            lambda: self._accept(None), sock=self._listener, backlog=BACKLOG
        )
        log.info("listening on %s:%s", listens["address"], listens["port"])
        while (table := self._look()) is not None and table.listens == listens:
            if self.context is None:
                await self._listen_ports(table)
            await asyncio.sleep(LOOK_S)
            self._give_up_clients()
        for server in self._servers.values():
            server.close()
        ends_at = time.monotonic() + RETIRED_S
        while self._clients and self._path.exists() and time.monotonic() < ends_at:
            await asyncio.sleep(LOOK_S)
            self._give_up_clients()
        for client in self._clients:
            client.transport.abort()

    async def _listen_ports(self, table: Table) -> None:
        for key in self._servers.keys() - table.ports.items() - {(table.listens["port"], None)}:
            self._servers.pop(key).close()
        for port, name in table.ports.items() - self._servers.keys():
            accept = partial(self._accept, name)
            try:
                self._servers[port, name] = await asyncio.get_running_loop().create_server(
                    accept, table.listens["address"], port, reuse_address=True, reuse_port=True, backlog=BACKLOG
                )
            except OSError as error:  # it is tried again
                log.warning("%s: %s", name, error)

    def _accept(self, name: str | None) -> asyncio.Protocol:
        if self.context is not None:
            return _ClientSide(self, None)
        table = self._look()
        address = table.replicas.get(name) if table is not None and name is not None else None
        return _Checked(name is None) if address is None else _ClientSide(self, address)

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        """Choose the engine for a server name. Returns the alert for one that is not in the table."""
        if name == CHECK_NAME:
            return None
        table = self._look()
        chosen = table.replicas.get(name.lower()) if table is not None and name is not None else None
        if chosen is None:
            log.debug("no replica %s", name)
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        cast("_Handshake", connection).chosen = chosen
        return None

    def _look(self) -> Table | None:
        """Return the table as it is now; None: it is gone."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                self._table = Table.parse(self._path.read_bytes())
                self._stamp = stamp
        except FileNotFoundError:
            return None
        return self._table

    # From the connections

    def add_client(self, client: _ClientSide, *, is_shaking: bool) -> None:
        """Count a connection, and its handshake if there is one."""
        self._clients.add(client)
        if is_shaking:
            if len(self._shaking) >= MOST_HANDSHAKES:
                oldest = next(iter(self._shaking))
                del self._shaking[oldest]
                oldest.transport.abort()
            self._shaking[client] = time.monotonic()

    def end_handshake(self, client: _ClientSide) -> None:
        """Take a client out of those whose handshake is under way, which are bounded in number and time."""
        self._shaking.pop(client, None)

    def remove_client(self, client: _ClientSide) -> None:
        """Stop counting a connection."""
        self._clients.discard(client)
        self._shaking.pop(client, None)

    def _give_up_clients(self) -> None:
        """End handshakes that take too long, and the connections of clients that are no longer reached."""
        now = time.monotonic()
        for client, begun_at in list(self._shaking.items()):
            if now - begun_at < HANDSHAKE_S:
                break
            del self._shaking[client]
            client.transport.abort()
        if now - self._peers_seen_at >= PEERS_LOOK_S:
            self._peers_seen_at = now
            for client in list(self._clients):
                connection = client.transport.get_extra_info("socket")
                if is_cut_off(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)):
                    client.transport.abort()


class _Checked(asyncio.Protocol):
    """A connection without TLS that reaches no engine: to the relay itself, which answers, or to a replica that is
    gone."""

    def __init__(self, is_answered: bool) -> None:
        self._is_answered = is_answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._is_answered:
            cast("asyncio.Transport", transport).write(CHECK_WORD)
        transport.close()


def keep_watch(connection: socket.socket) -> None:
    """Let a connection on which nothing is on its way end within 20 seconds after its peer is no longer reached. One on
    which something is has no such option: TCP_USER_TIMEOUT would end a peer, too, that only does not read."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 8)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def is_cut_off(info: bytes) -> bool:
    """Return whether a peer is no longer reached, by the first 60 bytes of Linux' `tcp_info`: something was sent again,
    or two probes of a full window were, and nothing came back for 20 seconds. Pure."""
    retransmits, probes, last_ack_ms = info[2], info[3], int.from_bytes(info[56:60], sys.byteorder)
    return (retransmits > 0 or probes > 1) and last_ack_ms > SILENT_MS


def _open_context(listens: dict[str, Any], choose: Any) -> ssl.SSLContext | None:
    if listens["authority"] is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(listens["authority"])
    context.load_cert_chain(listens["certificate"], listens["key"])
    context.num_tickets = 0
    context.sslobject_class = _Handshake
    context.sni_callback = choose
    return context


async def _main(path: Path, listener: socket.socket) -> None:
    await Relay(path, listener).serve()


def main() -> int:
    """Serve the table that the first argument names. Returns the exit code: 1 if it or its TLS cannot be read."""
    import uvloop  # not for those who only want a name of this file

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two for each connection
    try:
        uvloop.run(_main(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"{error}\n")  # the keeper reads the last line
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
