"""No daemon, something else in its place, or one whose events break off. Needs no Docker Engine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import docker
import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.engines.stub import StubDefinition
from controller.runtimes.base import RuntimeGoneError, RuntimeUnavailableError, StartError, StartRequest
from controller.runtimes.docker import client as docker_client
from controller.runtimes.docker import runtime as docker_runtime
from controller.runtimes.docker.client import Daemon, EventWatch, Surroundings
from controller.runtimes.docker.runtime import DockerOptions, DockerRuntime, open_docker
from controller.state import ReplicaId
from tests.fakes.fake_scripted_engine import script, scripted


def options_at(url: str, root: Path) -> DockerOptions:
    return DockerOptions(
        instance="dead", models=ModelRoots((root,)), state=root, images={}, engines_network="none", docker_url=url
    )


def runtime_at(url: str, root: Path) -> DockerRuntime:
    """A runtime whose daemon is elsewhere."""
    return DockerRuntime(options_at(url, root))


async def test_a_daemon_that_is_not_there_is_unavailable_in_plain_words(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    runtime = runtime_at(url, tmp_path)
    for call in (
        runtime.list_replicas(),
        runtime.stop_replica("x", 1),
        runtime.read_gpus(),
        runtime.pull_image("x"),
        runtime.read_log_tail("x"),
    ):
        with pytest.raises(RuntimeUnavailableError, match="there is no such socket: is Docker installed"):
            await call
    await runtime.close()
    with pytest.raises(RuntimeUnavailableError, match="no such socket"):
        await open_docker(options_at(url, tmp_path))


async def test_a_socket_that_nobody_listens_on_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "old.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    runtime = runtime_at(f"unix://{path}", tmp_path)
    with pytest.raises(RuntimeGoneError, match="nothing listens there: is Docker running"):
        await runtime.list_replicas()
    await runtime.close()


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[tuple[str, list[bytes]]]:
    """A socket whose listener sends the bytes in the list to whoever connects, and nothing more."""
    path, answers = tmp_path / "odd.sock", list[bytes]()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    open_now: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                open_now.append(connection)
                for answer in answers:
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"unix://{path}", answers
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for connection in open_now:
        connection.close()


async def test_a_daemon_that_hangs_holds_up_its_callers_and_nobody_else(answering: tuple[str, list[bytes]]) -> None:
    url, _ = answering
    daemon = Daemon(url, timeout_s=0.2, threads=2)
    calls = [asyncio.create_task(daemon.call(lambda client: client.ping())) for _ in range(8)]
    assert await asyncio.to_thread(lambda: "another thread is free") == "another thread is free"
    for call in calls:
        with pytest.raises(RuntimeUnavailableError, match="hangs"):
            await call
    daemon.close()
    with pytest.raises(RuntimeUnavailableError, match="was closed"):
        await daemon.call(lambda client: client.ping())


async def test_something_that_is_no_docker_daemon_is_unavailable(answering: tuple[str, list[bytes]]) -> None:
    url, answers = answering
    answers.append(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
    daemon = Daemon(url, timeout_s=5, threads=2)
    with pytest.raises(RuntimeUnavailableError, match="is not a Docker daemon"):
        await daemon.call(lambda client: client.ping())
    daemon.close()


async def test_a_model_that_cannot_be_read_fails_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_daemon() -> Surroundings:
        return Surroundings(container_id=None, publishes_ports=True, models=({},))

    def unreadable(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", "/models/secret")

    runtime = runtime_at(f"unix://{tmp_path}/none.sock", tmp_path)
    monkeypatch.setattr(runtime, "get_surroundings", no_daemon)
    monkeypatch.setattr(docker_runtime, "entries_to_read", unreadable)
    request = StartRequest(ReplicaId("m", 0, "0" * 8), "rh-dead-m-0", StubDefinition(backend="stub"), "m", None, "t")
    with pytest.raises(StartError, match=r"m cannot be started: .*Permission denied: '/models/secret'"):
        await runtime.start_replica(request)
    await runtime.close()


CUT_OFF = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{"Type":\r\n0\r\n\r\n'
)


async def test_a_stream_that_ends_within_an_event_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_client, "FIRST_BACKOFF_S", 0.0)
    async with scripted(*[script(CUT_OFF)] * 3) as daemon, asyncio.timeout(30):
        watch = EventWatch(lambda: docker.APIClient(daemon.url, version="1.41"), [])
        async for _ in watch.watch_wakeups():
            if len(daemon.requests) > 1:
                await watch.close()
