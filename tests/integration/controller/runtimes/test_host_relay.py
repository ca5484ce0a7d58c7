"""The relay of a host as its own process: who reaches which engine through it, and what happens to bytes, ends and
failures on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import aiohttp
import httpx2
import psutil
import pytest

from assistant.tools.mcp_client.bounded_transport import BoundedTransport, RunningCalls
from common.atomic_write import write_atomic
from common.host_tls import HostContexts
from common.host_tls import is_cut_off as is_cut_off_for_gateways
from contract.hosts import EngineTls
from contract.routing import Endpoint, RoutingTable, Stamp
from contract.tools import McpServerRoute
from controller.engines.base import Probe
from controller.observe.prober import Prober, ProbeTarget
from controller.runtimes.cluster.host_relay import MOST_HANDSHAKES, Relay, _ClientSide, is_cut_off, keep_watch
from controller.runtimes.cluster.material import ensure_material, write_credentials
from controller.runtimes.cluster.relay_keeper import (
    RelayKeeper,
    check_relay,
    describe_tls,
    end_relay,
    list_relay_names,
    relay_folder,
)
from gateway.control.inflight import InflightCounts
from gateway.metrics.engine_scraper import EngineScraper
from gateway.routing.table import LiveRoutes
from gateway.upstream.connection import ConnectionPool, EngineConnection
from gateway.upstream.target import Address
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import OK, script, scripted
from tests.support.engine_calls import client_of, post
from tests.support.ports import free_port
from tests.support.relays import HOST, RelaySite, replica, running
from tests.support.wait import until


@dataclass
class Engine:
    """Takes connections, and keeps what comes. `answer` None: it sends back whatever it gets."""

    port: int = 0
    answer: bytes | None = None
    taken: list[bytes] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    connections: int = 0
    is_reading: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def kill(self) -> None:
        for each in self.writers:
            each.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        await self.is_reading.wait()
        try:
            while data := await reader.read(65536):
                self.taken.append(data)
                if self.answer is None:
                    writer.write(data)
                    await writer.drain()
            self.ends.append("end")
            if self.answer is not None:
                writer.write(self.answer)
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            self.ends.append("reset")


@contextlib.asynccontextmanager
async def engine(answer: bytes | None = None) -> AsyncIterator[Engine]:
    served = Engine(answer=answer)
    served.is_reading.set()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[RelaySite]:
    made = RelaySite(tmp_path)
    async with running(made):
        yield made


async def test_the_server_name_chooses_the_replica_and_bytes_arrive_as_they_were_sent(site: RelaySite) -> None:
    content = os.urandom(9_000_000)
    async with engine() as one, engine(b"two") as two:
        first, second = await site.publish(replica("rh-1", one.port), replica("rh-2", two.port))
        assert first.base_url == f"https://{HOST}:{site.port}"
        assert first.tls is not None
        assert first.tls.server_name == "rh-1.b.roundhouse.internal"
        reader, writer = await site.open(first.tls)
        writer.write(content)
        assert hashlib.sha256(await reader.readexactly(len(content))).digest() == hashlib.sha256(content).digest()
        writer.close()
        await until("the engine saw the end", lambda: one.ends)
        assert two.connections == 0
        _, writer = await site.open(second.tls)
        writer.write(b"x")
        await until("the other one is asked", lambda: two.taken == [b"x"])
        writer.transport.abort()
        await until("an abort reaches the engine", lambda: two.ends)


async def test_what_was_published_last_is_what_counts(tmp_path: Path) -> None:
    site = RelaySite(tmp_path)
    many = [replica(f"rh-{number}", 1000 + number) for number in range(20)]
    tasks = [asyncio.create_task(site.publish(*many[:count])) for count in range(20, -1, -1)]
    async with running(site):
        await asyncio.gather(*tasks)
        table = json.loads((relay_folder(tmp_path) / "relay.json").read_bytes())
    assert table["replicas"] == {}


async def test_strangers_and_unknown_names_are_refused_in_the_handshake(site: RelaySite, tmp_path: Path) -> None:
    async with engine() as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        assert there.tls is not None
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await site.open(EngineTls(server_name="rh-2.b.roundhouse.internal"))
        # A certificate of another authority, and none.
        bare = ssl.create_default_context(cafile=site.files.authority)
        for own in (None, RelaySite(tmp_path / "other").files):
            if own is not None:
                bare.load_cert_chain(own.certificate, own.key)
            with pytest.raises(ssl.SSLError, match="ALERT"):
                await ask(site, there.tls, bare)
        await site.publish()
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await site.open(there.tls)
        assert one.connections == 0


async def test_a_replica_that_is_gone_closes_its_connections_at_once(site: RelaySite) -> None:
    async with engine() as one:
        there, gone = await site.publish(replica("rh-1", one.port), replica("rh-2", free_port()))
        reader, _ = await site.open(gone.tls)
        assert await reader.read() == b""
        reader, writer = await site.open(there.tls)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        one.kill()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_the_end_of_a_host_ends_its_relay_with_what_is_open(tmp_path: Path) -> None:
    site = RelaySite(tmp_path)
    async with running(site), engine() as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        reader, _ = await site.open(there.tls)
        await site.keeper.close()
        assert await site.is_up(), "it runs on, as engines do"
        end_relay(tmp_path)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await until("it has ended", lambda: site.pid() is None)


async def test_a_relay_that_somebody_ends_is_started_again_and_keeps_nobody_out(site: RelaySite) -> None:
    async with engine() as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        reader, _ = await site.open(there.tls)
        pid = site.pid()
        os.kill(pid or 0, signal.SIGTERM)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 2) == b"", "it serves what was open no longer"
        await until("another one serves", lambda: site.pid() not in (None, pid))
        await until("it answers", site.is_up)


async def test_each_side_may_end_before_the_other(tmp_path: Path) -> None:
    """Of TLS the same, by its own end; Python's streams cannot send that alone."""
    site = RelaySite(tmp_path, is_insecure=True)
    async with running(site), engine(b"answer" * 100_000) as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        assert (there.base_url, there.tls) == (f"http://{HOST}:{site.port + 1}", None)
        reader, writer = await until("its port is open", lambda: connect(site.port + 1))
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read() == b"answer" * 100_000
        assert one.taken == [b"question"]
        # A further relay of this host knows the ports of the one before.
        await site.keeper.close()
        later = RelayKeeper(relay_folder(tmp_path), "b", HOST, site.port, None)
        first, second = await later.publish([replica("rh-1", one.port), replica("rh-2", one.port)])
        assert (first.base_url, second.base_url) == (there.base_url, f"http://{HOST}:{site.port + 2}")
        (third,) = await later.publish([replica("rh-3", one.port)])
        assert third.base_url == f"http://{HOST}:{site.port + 3}", "not one that was just given back"
        await later.close()
        latest = RelayKeeper(relay_folder(tmp_path), "b", HOST, site.port, None)
        (fourth,) = await latest.publish([replica("rh-4", one.port)])
        assert fourth.base_url == f"http://{HOST}:{site.port + 4}", "not that of the keeper before, either"
        await latest.close()


async def test_a_port_that_another_replica_gets_reaches_that_one(tmp_path: Path) -> None:
    own_port, path = free_port(), tmp_path / "relay.json"

    def publish(name: str, port: int) -> None:
        listens = {"address": HOST, "port": 1, "authority": None}
        content = json.dumps({**listens, "replicas": {name: ("127.0.0.1", port, own_port)}})
        write_atomic(path, content.encode(), durable=False)

    async with engine() as one, engine() as two:
        publish("rh-1", one.port)
        serving = asyncio.create_task(Relay(path, socket.create_server((HOST, 0))).serve())
        _, writer = await until("it listens", lambda: connect(own_port))
        publish("rh-2", two.port)

        async def reaches_two() -> bool:
            if opened := await connect(own_port):
                opened[1].close()
            return two.connections > 0

        await until("it leads to the other one", reaches_two)
        assert one.connections == 1
        writer.close()
        path.unlink()
        await serving


async def test_tls_ends_in_one_direction_at_a_time(site: RelaySite) -> None:
    async with engine(b"answer" * 100_000) as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        assert there.tls is not None
        assert await asyncio.to_thread(ask_and_end, site, there.tls, b"question") == b"answer" * 100_000
        assert one.taken == [b"question"]
        assert one.ends == ["end"]


async def test_a_slow_client_gets_the_end_of_an_answer_after_the_engine_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.runtimes.cluster.host_relay.LINGER_S", 0.01)
    transport = MagicMock(spec=asyncio.Transport)
    transport.get_write_buffer_size.return_value = 1
    client = _ClientSide(cast("Relay", SimpleNamespace(context=None)), ("127.0.0.1", 1))
    client.transport = transport
    client.end_answer()
    await asyncio.sleep(0.05)
    transport.abort.assert_not_called()
    transport.get_write_buffer_size.return_value = 0
    await until("it ends one that stays without a reason", lambda: transport.abort.called)


async def test_a_slow_reader_holds_the_engine_and_a_slow_engine_the_sender(site: RelaySite) -> None:
    async with engine(bytes(80_000_000)) as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        assert there.tls is not None
        before = resident_mib(site)
        reader, writer = await site.open(there.tls)
        one.is_reading.clear()
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 80_000_000:
                writer.write(bytes(1_000_000))
                await asyncio.wait_for(writer.drain(), 0.3)
                sent += 1_000_000
        assert sent < 40_000_000
        assert resident_mib(site) - before < 20
        one.is_reading.set()
        await writer.drain()
        writer.transport.abort()
        del reader
        await until("the engine sees the end", lambda: one.ends)


@pytest.mark.parametrize("accepts", [False, True])
async def test_without_tls_a_sender_is_held_from_the_first_byte(tmp_path: Path, accepts: bool) -> None:
    """`accepts`: the engine's kernel does, and takes little. Else the connection to it is not made."""
    site, sent = RelaySite(tmp_path, is_insecure=True), 0
    async with running(site):
        with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            listener.bind(("127.0.0.1", 0))
            listener.listen(100 if accepts else 0)
            if not accepts:
                for each in (first, second):  # these are all that wait there
                    each.setblocking(False)
                    each.connect_ex(listener.getsockname())
            await site.publish(replica("rh-1", listener.getsockname()[1]))
            _, writer = await until("its port is open", lambda: connect(site.port + 1))
            # On a busy machine the relay may have given up the engine (`CONNECT_S`) before 0.3 s went by without room.
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while sent < 80_000_000:
                    writer.write(bytes(1_000_000))
                    await asyncio.wait_for(writer.drain(), 0.3)
                    sent += 1_000_000
            assert sent < 40_000_000
            writer.transport.abort()


async def test_another_keeper_finds_the_relay_and_a_new_certificate_ends_it(site: RelaySite, tmp_path: Path) -> None:
    async with engine() as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        reader, writer = await site.open(there.tls)
        pid = site.pid()
        await site.keeper.close()
        site.keeper = RelayKeeper(relay_folder(tmp_path), "b", HOST, site.port, site.files)
        assert await site.publish(replica("rh-1", one.port)) == (there,)
        await until("its own listens", lambda: site.pid() != pid)
        await until("it answers", site.is_up)
        pid = site.pid()
        material = ensure_material(tmp_path, "i", is_insecure=False, now=time.time())
        write_credentials(material, tmp_path, list_relay_names("b"), [HOST], now=time.time())
        await site.publish(replica("rh-1", one.port))
        await until("another one listens", lambda: site.pid() not in (None, pid))
        await until("it answers", site.is_up)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x", "what was open goes on in the old one"


async def test_handshakes_that_stand_still_keep_nobody_out(site: RelaySite) -> None:
    async with engine() as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        idle = [await asyncio.open_connection(HOST, site.port) for _ in range(MOST_HANDSHAKES + 5)]
        reader, writer = await site.open(there.tls)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        for early, _ in idle[:5]:
            with contextlib.suppress(ConnectionError):
                assert await early.read() == b"", "the oldest gave way"
        for _, each in idle:
            each.transport.abort()


@pytest.mark.parametrize(
    ("retransmits", "probes", "last_ack_ms", "is_cut"),
    [(1, 0, 20_001, True), (0, 2, 20_001, True), (1, 0, 20_000, False), (0, 1, 90_000, False), (0, 0, 90_000, False)],
)
def test_a_peer_that_answers_nothing_is_cut_off_and_one_that_does_not_read_is_not(
    retransmits: int, probes: int, last_ack_ms: int, is_cut: bool
) -> None:
    info = bytes([1, 0, retransmits, probes]) + bytes(52) + last_ack_ms.to_bytes(4, sys.byteorder)
    assert is_cut_off(info) is is_cut
    assert is_cut_off_for_gateways(cast("socket.socket", SimpleNamespace(getsockopt=lambda *_: info))) is is_cut
    with socket.socket() as watched:
        keep_watch(watched)
        assert watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0, "it ends those that do not read"
        assert len(watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)) == 60


async def test_gateway_and_relay_end_what_is_cut_off(
    site: RelaySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(script(b"", "stall")) as served, client_of() as client:
        monkeypatch.setattr("gateway.upstream.connection.PEER_LOOK_S", 0.02)
        (there,) = await site.publish(replica("rh-1", served.port))
        got = post(client, site.endpoint(there))
        await until("the engine is asked", lambda: served.requests)
        monkeypatch.setattr("gateway.upstream.connection.is_cut_off", lambda _: True)
        assert await got.outcome() == "EngineBrokenError"
    monkeypatch.setattr("controller.runtimes.cluster.host_relay.PEERS_LOOK_S", 0)
    monkeypatch.setattr("controller.runtimes.cluster.host_relay.is_cut_off", lambda _: True)
    path, own_port = tmp_path / "relay.json", free_port()
    async with engine() as one:
        names = {"rh-1": ("127.0.0.1", one.port, own_port)}
        path.write_text(json.dumps({"address": HOST, "port": 1, "authority": None, "replicas": names}))
        serving = asyncio.create_task(Relay(path, socket.create_server((HOST, 0))).serve())
        reader, _ = await until("it listens", lambda: connect(own_port))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        path.unlink()
        await serving


async def test_hundreds_of_connections_pipe_at_once(site: RelaySite) -> None:
    async with engine() as one:
        (there,) = await site.publish(replica("rh-1", one.port))
        opened = []
        for _ in range(4):
            opened += await asyncio.gather(*(site.open(there.tls) for _ in range(100)))
        for number, (_, writer) in enumerate(opened):
            writer.write(b"%05d" % number)
        for number, (reader, writer) in enumerate(opened):
            assert await reader.readexactly(5) == b"%05d" % number
            writer.transport.abort()
        await until("the engine sees all ends", lambda: len(one.ends) == len(opened))


async def test_a_relay_that_does_not_answer_is_said_with_its_port(tmp_path: Path) -> None:
    site = RelaySite(tmp_path)
    found = await check_relay(site.keeper.address, describe_tls(site.files), HostContexts())
    assert found is not None
    assert found.words.startswith(f"the relay at {HOST}:{site.port} cannot be reached (")
    assert found.remedy == f"let the head connect to TCP port {site.port} there"
    async with engine() as other:
        found = await check_relay(f"127.0.0.1:{other.port}", describe_tls(site.files), HostContexts())
        assert found is not None
        assert "does not accept the head's certificate" in found.words


async def test_a_relay_that_cannot_listen_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = RelaySite(tmp_path)
    server = await asyncio.start_server(Engine().serve, HOST, site.port)
    async with server:
        await site.keeper.start()
        await until("it says why", lambda: "Address already in use" in caplog.text)
    async with running(site):
        assert await check_relay(site.keeper.address, describe_tls(site.files), HostContexts()) is None


async def test_a_gateway_asks_engines_through_it(site: RelaySite) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    until_eof = b"HTTP/1.1 200 OK\r\n\r\nok"
    scripts = [script(OK), script(chunked, cuts=range(60)), script(until_eof, "close"), script(OK)]
    async with scripted(*scripts) as served, client_of() as client:
        there, gone = await site.publish(replica("rh-1", served.port), replica("rh-2", free_port()))
        where, nowhere = site.endpoint(there), site.endpoint(gone)
        for number, connections in enumerate((1, 1, 1, 2)):
            got = post(client, where, body=b"x" * 100_000 * number)
            assert (await got.outcome(), got.body) == ("end", b"ok")
            assert served.connections == connections, "it is kept for the next request"
        assert client.idle_connections == 1
        assert await post(client, nowhere).outcome() == "EngineBrokenError"
        await site.publish(replica("rh-1", served.port))
        assert await post(client, nowhere).outcome() == "EngineRefusedError"
        os.kill(site.pid() or 0, signal.SIGKILL)
        await until("what was kept is closed", lambda: client.open_connections == 0)
        got = post(client, where)  # it waits until the relay is back
        assert (await got.outcome(), got.body) == ("end", b"ok")


async def test_a_connection_that_was_given_up_is_not_told_of_its_end(site: RelaySite) -> None:
    """As when a client leaves while TLS begins: uvloop tells of the end later."""
    pool = ConnectionPool[EngineConnection]()
    connection = EngineConnection(pool.origin_of(Address(True, HOST, site.port)), pool)
    connection.give_up()
    connection.eof_received()
    assert pool.open_count == 0


async def test_metrics_and_mcp_servers_are_asked_through_it(site: RelaySite) -> None:
    async with scripted(script(OK), script(OK)) as served:
        (there,) = await site.publish(replica("rh-1", served.port))
        where = site.endpoint(there)
        live = LiveRoutes()
        asked = route("m").model_copy(update={"endpoints": (where,)})
        live.apply_table(RoutingTable(stamp=Stamp(epoch=1, seq=1), instance="i", models=(asked,)))
        async with EngineScraper(live, time.monotonic) as scraper:
            assert 'roundhouse_engine_up{model="m",replica="rh-1"} 1' in await scraper.read_engines()
        assert where.tls is not None
        inner = httpx2.AsyncHTTPTransport(verify=HostContexts().find_context(where.tls), trust_env=False)
        calls = RunningCalls(None, InflightCounts(time.time, {}))
        transport = BoundedTransport(
            inner, max_output_kib=1, within_s=10, calls=calls, server_name=where.tls.server_name
        )
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.post(f"{where.base_url}/mcp")).text == "ok"


async def test_a_probe_asks_for_the_chat_template_through_it(site: RelaySite) -> None:
    async with scripted() as served, aiohttp.ClientSession() as session:
        (there,) = await site.publish(replica("rh-1", served.port))
        where = site.endpoint(there)
        probe = Probe("/health", "", {}, figure_paths=(), template_path="/apply-template")
        prober = Prober(session, interval_s=0.1, timeout_s=5, wake=lambda: None, clock=time.time)
        prober.track_targets({"m-0": ProbeTarget(where.base_url, probe, tls=where.tls)})
        await prober.wait_for_first_round()
        assert prober.get_health("m-0").system_first is False, "it answered"
        await prober.close()


def test_an_endpoint_without_a_relay_says_nothing_of_one() -> None:
    """What gateways of before read, byte for byte."""
    said = Endpoint(replica="m-0", base_url="http://h").model_dump_json()
    assert "tls" not in said
    assert "tls" not in McpServerRoute(name="s", url=None).model_dump_json()
    assert "tls" in Endpoint(replica="m-0", base_url="https://h", tls=EngineTls(server_name="x")).model_dump_json()


async def ask(site: RelaySite, tls: EngineTls, context: ssl.SSLContext) -> bytes:
    """Open, send and read: with TLS 1.3 a client learns only then that its certificate was refused."""
    reader, writer = await site.open(tls, context=context)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    return await reader.read()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        return await asyncio.open_connection(HOST, port)
    except ConnectionError:
        return None


def ask_and_end(site: RelaySite, tls: EngineTls, question: bytes) -> bytes:
    """Send a question, and the end of TLS, and read to the other end."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    channel = site.context.wrap_bio(incoming, outgoing, server_hostname=tls.server_name)
    answer = b""
    with socket.create_connection((HOST, site.port)) as connection:

        def turn(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    data = connection.recv(65536)
                    incoming.write(data) if data else incoming.write_eof()

        turn(channel.do_handshake)
        channel.write(question)
        with contextlib.suppress(ssl.SSLWantReadError):
            channel.unwrap()
        connection.sendall(outgoing.read())
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while part := turn(lambda: channel.read(65536)):
                answer += part
    return answer


def resident_mib(site: RelaySite) -> float:
    return psutil.Process(site.pid()).memory_info().rss / 2**20
