"""`python -m controller.runtimes.cluster.bridge FD`: the child process of a controller that owns Ray's driver.

Ray ends a driver's process when its head is lost, and may block for minutes; so it never is in the controller's. The
two speak over the socket FD: frames of four bytes of length and a JSON object. When the socket ends, so does the
bridge.

From the controller, first `{"address", "instance", "heartbeat_s"}`, then requests `{"id", "key", "host", "method",
"payload", "deadline_s"}`, and `{"withdraw"}`, the id of one that is given up. To it, each with `kind`:

    beat      the bridge lives; `is_connected`
    seen      every host that Ray knows was asked who it is, or could not be
    host      who a host is: `name`, `address`, `labels`, `versions`, `refusal`, `node`
    heard     a heartbeat of the host `name`; `is_changed`: something may have changed there
    gone      Ray says that the host `name` cannot be reached
    answer    of the request `id`: `payload`, or `silent` (why no answer will come)
    failed    `reason`: Ray cannot be used, and the bridge ends
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from controller.runtimes.cluster.host_actor import HostActor

log = logging.getLogger("bridge")

BEAT_S: Final = 0.5
"""Seconds between two beats of the bridge, and between two looks at Ray's list of nodes."""
ASK_S: Final = 10.0
"""Seconds that a node may take to make its actor, and the actor to say who the host is."""
CONNECT_S: Final = 30.0
"""Seconds that Ray may take to connect."""
HUNG_S: Final = 60.0
"""Seconds without a heartbeat after which an actor is ended and made anew, where Ray still reaches its node."""
LOOK_S: Final = 1.0
"""Seconds after which Ray's list of nodes is late."""
AGAIN_S: Final = 0.2
"""Seconds until a host's actor is made again, at first. They double up to `BEAT_S * 8`."""
ENGINES_LABEL: Final = "roundhouse/engines"
"""Label of a node: `no` on a head without engines."""
_LENGTH: Final = struct.Struct("!I")

Frame = Mapping[str, Any]


def pack_frame(frame: Frame) -> bytes:
    """Return a frame as the bytes that go over the socket: four bytes with the length of its JSON, in network order,
    and the JSON."""
    content = json.dumps(frame, separators=(",", ":")).encode()
    return _LENGTH.pack(len(content)) + content


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next frame; None: the other side has ended."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        frame: dict[str, Any] = json.loads(await reader.readexactly(length))
    except (OSError, asyncio.IncompleteReadError):
        return None
    return frame


class _NameTakenError(Exception):
    """Another host of the same name answers."""


class _Host:
    """One node of Ray, with its actor."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.name: str | None = None
        """None: its actor has not said yet."""
        self.actor: Any = None
        self.is_asked = False
        self.is_open = False
        self.heard_at = 0.0
        self.task: asyncio.Task[None] | None = None


class Bridge:
    """Makes an actor on each of Ray's nodes, hears its heartbeats, and hands requests to it. The methods of `ray` that
    block are called in threads."""

    def __init__(self, ray: Any, instance: str, heartbeat_s: float, send: Callable[[Frame], None]) -> None:
        """`ray`: the module, connected."""
        self._ray = ray
        self._instance = instance
        self._heartbeat_s = heartbeat_s
        self._send = send
        self._hosts: dict[str, _Host] = {}
        self._has_seen = False
        self._opened = asyncio.Event()

    async def follow_nodes(self) -> None:
        """Follow Ray's list of nodes, for ever. While its head is lost, the list stays as it was. Raises
        ConnectionError if this machine has lost its node, too: Ray tells its drivers late."""
        own = self._ray.get_runtime_context().get_node_id()
        while True:
            looking = asyncio.create_task(asyncio.to_thread(self._ray.nodes))
            while not (await asyncio.wait({looking}, timeout=LOOK_S))[0]:
                if (ours := self._hosts.get(own)) is not None and ours.is_asked and not ours.is_open:
                    raise ConnectionError("Ray is lost on this machine")
            nodes = looking.result()
            alive = {each["NodeID"] for each in nodes if each["Alive"] and each["Labels"].get(ENGINES_LABEL) != "no"}
            for node in self._hosts.keys() - alive:
                self._leave(self._hosts.pop(node))
            for node in alive - self._hosts.keys():
                host = self._hosts[node] = _Host(node)
                host.task = asyncio.create_task(self._follow_host(host))
            if not self._has_seen and all(host.is_asked for host in self._hosts.values()):
                self._has_seen = True
                self._send({"kind": "seen"})
            await asyncio.sleep(BEAT_S)

    def _leave(self, host: _Host) -> None:
        if host.task is not None:
            host.task.cancel()
        if host.name is not None:
            self._send({"kind": "gone", "name": host.name})

    async def _follow_host(self, host: _Host) -> None:
        """Have an actor on the host, and hear it, for ever."""
        pause_s = AGAIN_S
        while True:
            try:
                await self._open_host(host)
                pause_s = AGAIN_S
                await self._hear_host(host)
            except TimeoutError:
                log.warning("the actor of %s does not answer", host.name or host.node)
                if host.is_open:
                    await self._kill_actor(host)
            except self._ray.exceptions.RayError as error:
                log.warning("the actor of %s is lost: %s", host.name or host.node, _first_line(error))
                if host.name is not None and isinstance(error, self._ray.exceptions.ActorDiedError):
                    self._send({"kind": "gone", "name": host.name})
            except _NameTakenError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("host %s", host.name or host.node)
            host.is_open, host.is_asked = False, True
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BEAT_S * 8)

    async def _kill_actor(self, host: _Host) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                await asyncio.to_thread(self._ray.kill, host.actor)
        except Exception:  # the host is followed on
            log.exception("the actor of %s cannot be ended", host.name or host.node)

    async def _open_host(self, host: _Host) -> None:
        async with asyncio.timeout(ASK_S):
            host.actor = await asyncio.to_thread(self._make_actor, host.node)
            hello = json.loads(await host.actor.open_host.remote(self._instance))
        taken = self._find_host(hello["name"])
        if taken is not None and taken is not host and time.monotonic() - taken.heard_at < 3 * self._heartbeat_s:
            raise _NameTakenError(f"node {host.node} has the name of {taken.node}, which answers")
        host.name, host.is_asked = hello["name"], True
        hello["versions"] = {**hello.get("versions", {}), "ray": self._ray.__version__}
        self._send({"kind": "host", "node": host.node, **hello})
        if taken is not None and taken is not host:
            taken.is_open = False
        host.is_open = hello.get("refusal") is None
        self._opened.set()

    def _make_actor(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = self._ray.remote(HostActor).options(
            name=f"host-{node}",
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            num_gpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return options.remote()

    async def _hear_host(self, host: _Host) -> None:
        """Hear heartbeats, until the actor is lost. Where Ray only waits, as on a cut cable, so does this."""
        seen = -1
        while True:
            async with asyncio.timeout(HUNG_S):
                changes = await host.actor.wait_change.remote(seen, self._heartbeat_s)
            host.heard_at = time.monotonic()
            self._send({"kind": "heard", "name": host.name, "is_changed": changes != seen})
            seen = changes
            if not host.is_open:
                await self._open_host(host)

    async def answer_request(self, request: Frame) -> None:
        """Let a host answer a request, and send the answer."""
        answer: dict[str, Any] = {"kind": "answer", "id": request["id"]}
        name = request["host"]
        try:
            async with asyncio.timeout(request["deadline_s"]):
                while (host := self._find_host(name)) is None:
                    self._opened.clear()
                    await self._opened.wait()
                content = await host.actor.answer_request.remote(
                    request["key"], request["method"], request["payload"].encode()
                )
            answer["payload"] = content.decode()
        except TimeoutError:
            answer["silent"] = f"host {name} does not answer within {request['deadline_s']:g} s"
        except self._ray.exceptions.RayError as error:
            answer["silent"] = f"host {name} cannot be reached: {_first_line(error)}"
        self._send(answer)

    def _find_host(self, name: str) -> _Host | None:
        return next((host for host in self._hosts.values() if host.name == name and host.is_open), None)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[0]


async def run_bridge(channel: socket.socket) -> int:
    """Connect to Ray, and serve the controller at the other end of `channel`. Returns the exit code when that has
    ended, or Ray cannot be used."""
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    if (first := await read_frame(reader)) is None:
        return 0

    def send(frame: Frame) -> None:
        writer.write(pack_frame(frame))

    connecting = asyncio.create_task(_connect(first))
    beating = asyncio.create_task(_beat(connecting, send))
    serving = asyncio.create_task(_serve(connecting, first, reader, send))
    await asyncio.wait({beating, serving}, return_when=asyncio.FIRST_COMPLETED)
    error = (beating if beating.done() else serving).exception()
    if error is None:
        return 0
    log.error("Ray cannot be used", exc_info=error)
    send({"kind": "failed", "reason": _first_line(error)})
    with suppress(OSError):
        await writer.drain()
    return 1


async def _connect(first: Frame) -> Any:
    """Wait until somebody listens at Ray's address, connect, and return the module. Raises what Ray raises, and
    TimeoutError if it does not return: without a head it may never do."""
    host, _, port = first["address"].rpartition(":")
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
            break
        await asyncio.sleep(AGAIN_S)
    try:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.to_thread(connect_ray, first["address"], first["instance"])
    except TimeoutError:
        raise TimeoutError(f"{first['address']} listens, and does not answer within {CONNECT_S:g} s") from None


async def _beat(connecting: asyncio.Task[Any], send: Callable[[Frame], None]) -> None:
    """Say that the bridge lives, for ever. Raises what `connecting` raises."""
    while True:
        send({"kind": "beat", "is_connected": connecting.done() and connecting.result() is not None})
        await asyncio.wait({connecting}, timeout=BEAT_S)
        if connecting.done():
            await asyncio.sleep(BEAT_S)


async def _serve(
    connecting: asyncio.Task[Any], first: Frame, reader: asyncio.StreamReader, send: Callable[[Frame], None]
) -> None:
    """Answer requests until the controller has ended. Raises what ended the bridge before."""
    reading = asyncio.create_task(read_frame(reader))
    await asyncio.wait({connecting, reading}, return_when=asyncio.FIRST_COMPLETED)
    if not connecting.done():  # before that nothing is asked: the controller has ended
        return
    bridge = Bridge(connecting.result(), first["instance"], first["heartbeat_s"], send)
    following = asyncio.create_task(bridge.follow_nodes())
    answering: dict[int, asyncio.Task[None]] = {}
    send({"kind": "beat", "is_connected": True})
    while not following.done():
        await asyncio.wait({reading, following}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            if (request := reading.result()) is None:
                return
            answering = {number: task for number, task in answering.items() if not task.done()}
            if "withdraw" not in request:
                answering[request["id"]] = asyncio.create_task(bridge.answer_request(request))
            elif request["withdraw"] in answering:
                answering[request["withdraw"]].cancel()
            reading = asyncio.create_task(read_frame(reader))
    following.result()


def connect_ray(address: str, instance: str) -> Any:
    """Connect this process to Ray's head, and return the module. Blocks, for ever if there is no head."""
    import ray

    ray.init(
        address=address,
        namespace=f"roundhouse-{instance}",
        log_to_driver=False,
        logging_level="warning",
        _node_ip_address=address.rpartition(":")[0],
    )
    return ray


def main() -> None:
    """Run the bridge on the socket whose number is the only argument, and end this process."""
    logging.basicConfig(level="WARNING", format="%(name)s: %(message)s")
    loop = asyncio.new_event_loop()
    code = loop.run_until_complete(run_bridge(socket.socket(fileno=int(sys.argv[1]))))
    os._exit(code)  # Ray's own threads, and one that waits for a head, may not hold it up


if __name__ == "__main__":
    main()
