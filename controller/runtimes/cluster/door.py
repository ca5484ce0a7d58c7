"""The door of a head, where a host asks whether it may join before it starts anything, and hears why not.

Both sides show that they have the token, by a code over what they say and the other's number, and never send it. One
JSON object a line: the head's number, the host's `JoinRequest`, the head's `JoinReply`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from contract.hosts import HOSTS_VERSION
from contract.status import Wire

log = logging.getLogger(__name__)

DOOR_VERSION: Final = 1
"""Version of these messages. Increase it when an older reader would misread the new format."""
CLOCK_S: Final = 60.0
"""Seconds by which the clock of a host may differ from the head's."""
ANSWER_S: Final = 15.0
"""Seconds in which the other side must have said everything."""
REACH_S: Final = 3.0
"""Seconds in which the head must be able to connect to a port of the host."""
JOINING_S: Final = 60.0
"""Seconds for which a host that was let in holds its name, unless the controller lists it before."""
_LINE_BYTES: Final = 65536
_MOST_ASKING: Final = 64
"""Hosts that may ask at a time."""
HOST_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


class JoinRequest(Wire):
    """A host's request to its head's door: to join, to be drained, or to be forgotten. `now`: Unix time in seconds by
    the host's clock. `instance`: the installation of its state folder; None: that is new."""

    door_version: int = DOOR_VERSION
    name: str
    address: str
    runtime: str | None
    """Kind of its runtime. None: it takes the head's."""
    schema_version: int = HOSTS_VERSION
    ray: str
    python: str
    roundhouse: str
    instance: str | None
    now: float
    ports: tuple[int, ...] = ()
    """Ports at its address where it listens now, to see whether the head reaches them."""
    intent: Literal["join", "drain", "left"] = "join"
    """`drain`: it is to be drained, because it wants to leave. `left`: it has, and is to be forgotten."""


class JoinReply(Wire):
    """The door's answer to a `JoinRequest`. `refusal`: why the head does not do what was asked, one sentence without an
    end; None: it does. `instance`, `address` (of Ray's head), `runtime` and `is_insecure`: what a host needs to
    join."""

    door_version: int = DOOR_VERSION
    refusal: str | None = None
    is_passing: bool = False
    """Whether the refusal may pass by itself."""
    instance: str = ""
    address: str = ""
    """Address of Ray's head, `ADDRESS:PORT`."""
    runtime: str = ""
    is_insecure: bool = False
    engines_left: int = 0
    """Engines on a host that is drained."""


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The installation, address and versions of a head, with which its door compares those of a host that asks."""

    instance: str
    address: str
    port: int
    """Port of Ray's head. The door's is `port + 1`."""
    runtime: str
    ray: str
    python: str
    is_insecure: bool


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A host that the controller lists. `is_live`: it is not lost."""

    name: str
    address: str | None
    state: str

    @property
    def is_live(self) -> bool:
        """Whether engines may run there: False for a host that is lost, whose name and address others may take."""
        return self.state != "lost"


class DoorError(Exception):
    """The head, or its controller, cannot be asked or refuses. The message has no end. `is_passing`: a
    later try may succeed."""

    def __init__(self, message: str, *, is_passing: bool) -> None:
        super().__init__(message)
        self.is_passing = is_passing


@dataclass(frozen=True, slots=True)
class HostRegister:
    """The controller's functions that a door calls: list the hosts, drain one, forget one. Each raises DoorError if the
    controller does not answer or refuses."""

    list_hosts: Callable[[], Awaitable[Iterable[KnownHost]]]
    """Returns the hosts that the controller lists."""
    drain_host: Callable[[str], Awaitable[int]]
    """Drains a host, and returns how many engines it has left."""
    remove_host: Callable[[str], Coroutine[Any, Any, None]]
    """Forgets a host, as soon as it no longer answers."""


def check_request(request: JoinRequest, head: HeadFacts, hosts: Iterable[KnownHost], now: float) -> str | None:
    """Return why a host may not join, a sentence without an end, which both sides show; None: it may. `now`: Unix time
    by the head's clock. Whether the head reaches its ports is not checked."""
    host = f"host {request.name}"
    if HOST_NAME.fullmatch(request.name) is None:
        return f"{request.name!r:.80} is no name of a host: lower case letters, digits, dots and dashes (--name)"
    # An upgrade begins with the head, so that the hosts are one version behind for a while.
    if request.door_version != DOOR_VERSION or abs(request.schema_version - HOSTS_VERSION) > 1:
        return (
            f"{host} speaks version {request.schema_version} of the hosts' messages (Roundhouse {request.roundhouse}), "
            f"and the head version {HOSTS_VERSION}: install the head's version of Roundhouse there"
        )
    if request.ray != head.ray:
        return f"Ray is {request.ray} on {host} and {head.ray} on the head: `pip install ray=={head.ray}` there"
    if _minor(request.python) != _minor(head.python):
        return (
            f"Python is {request.python} on {host} and {head.python} on the head: both must be of the same minor "
            f"version, {_minor(head.python)}"
        )
    if request.runtime not in (None, head.runtime):
        return (
            f"the runtime is {request.runtime} on {host} and {head.runtime} on the head, and all hosts have one kind: "
            f"`--runtime {head.runtime}`"
        )
    if request.instance not in (None, head.instance):
        return (
            f"the state folder of {host} is of installation {request.instance}, and the head's is {head.instance}: "
            "name another folder with --state"
        )
    if abs(request.now - now) > CLOCK_S:
        return (
            f"the clock of {host} is {abs(request.now - now):.0f} s {'ahead of' if request.now > now else 'behind'} "
            "the head's: let both follow a time server"
        )
    return _check_place(request, head, hosts)


def _check_place(request: JoinRequest, head: HeadFacts, hosts: Iterable[KnownHost]) -> str | None:
    if request.address == head.address:
        return (
            f"{request.address} is the head's own address: the head runs engines by itself, and another machine is "
            "named with --address"
        )
    for each in hosts:
        if not each.is_live or (each.name == request.name and each.address == request.address):
            continue
        if each.name == request.name:
            where = f" at {each.address}" if each.address else ""
            return f"there is a host {each.name}{where} already, and it is {each.state}: choose another --name"
        if each.address == request.address:
            return (
                f"{request.address} is host {each.name} already, which is {each.state}: `roundhouse leave` there first"
            )
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


class Door:
    """Answers the hosts that ask. Use one object in one event loop."""

    def __init__(
        self,
        head: HeadFacts,
        token: str,
        *,
        register: HostRegister,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        """`clock` returns Unix time. `say` takes a line for the operator."""
        self._head = head
        self._token = token
        self._register = register
        self._clock = clock
        self._say = say
        self._joining: dict[str, tuple[str, float]] = {}
        """Names that were let in last, to their addresses and until when they count (monotonic): the controller may not
        list them yet."""
        self._removing: asyncio.Task[None] | None = None
        self._asking = asyncio.Semaphore(_MOST_ASKING)

    async def serve(self) -> asyncio.Server:
        """Begin to listen at the head's address, and return the server, which the caller closes. Raises OSError."""
        return await asyncio.start_server(self._greet, self._head.address, self._head.port + 1, limit=_LINE_BYTES)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")[0]
        try:
            async with self._asking, asyncio.timeout(ANSWER_S):
                await self._answer(reader, writer, peer)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            log.debug("%s asked nothing", peer, exc_info=True)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        number = secrets.token_hex(16)
        writer.write(json.dumps({"roundhouse": "head", "number": number}).encode() + b"\n")
        line = await _read_line(reader)
        if (body := _open_line(line, JoinRequest, self._token, number)) is None:
            self._say(f"a host at {peer} may not join: it has another token (--token-file)")
            writer.write(b"{}\n")
            await writer.drain()
            return
        try:
            reply = await self._decide(JoinRequest.model_validate_json(body))
        except ValidationError:
            reply = JoinReply(refusal="the head cannot read what it is asked: install its version of Roundhouse")
            self._say(f"a host at {peer} may not join: its request cannot be read")
        writer.write(_seal_line(reply, self._token, str(line.get("number"))))
        await writer.drain()

    async def _decide(self, request: JoinRequest) -> JoinReply:
        try:
            if request.intent == "drain":
                return JoinReply(engines_left=await self._register.drain_host(request.name))
            if request.intent == "left":
                self._joining.pop(request.name, None)
                self._say(f"host {request.name} ({request.address}) has left")
                self._removing = asyncio.create_task(self._register.remove_host(request.name))
                return JoinReply()
            hosts = list(await self._register.list_hosts())
        except DoorError as error:
            return JoinReply(refusal=str(error), is_passing=error.is_passing)
        known, now = {each.name for each in hosts}, time.monotonic()
        self._joining = {
            name: (address, until)
            for name, (address, until) in self._joining.items()
            if name not in known and now < until
        }
        joining = [KnownHost(name, address, "joining") for name, (address, _) in self._joining.items()]
        refusal = check_request(request, self._head, [*hosts, *joining], self._clock())
        if refusal is None:
            # Before the first wait: of two of one name the second is refused.
            earlier = self._joining.get(request.name)
            self._joining[request.name] = request.address, now + JOINING_S
            is_in = False
            try:
                refusal = await self._find_unreached(request)
                is_in = refusal is None
            finally:  # also when it gives up meanwhile
                if not is_in:
                    self._joining.pop(request.name, None)
                    if earlier is not None:
                        self._joining[request.name] = earlier
        if refusal is not None:
            self._say(f"host {request.name} ({request.address}) may not join: {refusal}")
            return JoinReply(refusal=refusal)
        self._say(f"host {request.name} ({request.address}) joins")
        head = self._head
        address = f"{head.address}:{head.port}"
        return JoinReply(instance=head.instance, address=address, runtime=head.runtime, is_insecure=head.is_insecure)

    async def _find_unreached(self, request: JoinRequest) -> str | None:
        for port in request.ports:
            try:
                async with asyncio.timeout(REACH_S):
                    _, writer = await asyncio.open_connection(request.address, port)
                writer.close()
            except (OSError, TimeoutError) as error:
                reason = getattr(error, "strerror", None) or "no answer"
                return (
                    f"the head cannot reach {request.address} at port {port} ({reason}): open it to the head, or name "
                    "an address that the head reaches with --address"
                )
        return None


async def ask_door(host: str, port: int, token: str, request: JoinRequest) -> JoinReply:
    """Ask the head whose Ray has this address and port, and return its answer. Raises DoorError."""
    place = f"{host}:{port + 1}"
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port + 1, limit=_LINE_BYTES)
            try:
                return await _ask(reader, writer, place, token, request)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        reason = getattr(error, "strerror", None) or "it does not answer"
        raise DoorError(f"no head answers at {place} ({reason})", is_passing=True) from None


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: str, token: str, request: JoinRequest
) -> JoinReply:
    stranger = DoorError(
        f"what answers at {place} is no head of Roundhouse: give the address that `roundhouse head` prints",
        is_passing=False,
    )
    try:
        greeting = await _read_line(reader)
    except ValueError:
        raise stranger from None
    if greeting.get("roundhouse") != "head":
        raise stranger
    number = secrets.token_hex(16)
    writer.write(_seal_line(request, token, str(greeting.get("number")), number=number))
    try:
        body = _open_line(await _read_line(reader), JoinReply, token, number)
    except ValueError:
        raise stranger from None
    if body is None:
        raise DoorError(
            f"the head at {place} has another token: copy its state/cluster/join.json again", is_passing=False
        )
    try:
        return JoinReply.model_validate_json(body)
    except ValidationError:
        raise DoorError(
            f"the answer of the head at {place} cannot be read: install its version of Roundhouse", is_passing=False
        ) from None


async def _read_line(reader: asyncio.StreamReader) -> Mapping[str, Any]:
    """Raises ValueError for what is no JSON object, OSError, and IncompleteReadError."""
    try:
        content = json.loads(await reader.readuntil(b"\n"))
    except asyncio.LimitOverrunError as error:
        raise ValueError("a line that long") from error
    return {} if not isinstance(content, dict) else content


def _seal_line(message: Wire, token: str, their_number: str, **further: str) -> bytes:
    body = message.model_dump_json()
    code = _code(token, type(message), their_number, body)
    return json.dumps({"body": body, "code": code, **further}).encode() + b"\n"


def _open_line(line: Mapping[str, Any], kind: type[Wire], token: str, own_number: str) -> str | None:
    """Return the body; None: it was not sealed with this token for this number, as a message of this kind."""
    body, code = line.get("body"), line.get("code")
    if not isinstance(body, str) or not isinstance(code, str):
        return None
    return body if hmac.compare_digest(code.encode(), _code(token, kind, own_number, body).encode()) else None


def _code(token: str, kind: type[Wire], number: str, body: str) -> str:
    content = f"{kind.__name__}\n{number}\n{body}".encode(errors="replace")
    return hmac.new(token.encode(), content, hashlib.sha256).hexdigest()
