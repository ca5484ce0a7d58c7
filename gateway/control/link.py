"""The link to the controller: a WebSocket, routing tables down, reports up, by a gateway with an identity of its own.

Without the link, the gateway goes on by the last table that it received.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from common.atomic_write import write_atomic
from common.internal_tokens import LINK_TOKEN
from common.processes import read_host, read_own_start, without_tracebacks
from common.program_client import ProgramAddress, ProgramAnswer, ProgramGoneError, open_connector
from contract.routing import GatewayProcess, LinkRefusal, RoutingTable
from contract.status import SCHEMA_VERSION
from contract.tools import ToolCallRecord
from gateway.control.inflight import InflightCounts, ReportSchedule
from gateway.control.remote_prober import RemoteProber
from gateway.protocols.common.hiding import hide_addresses
from gateway.routing.table import LiveRoutes, Routes

logger = logging.getLogger(__name__)


FILE_NAME: Final = "gateway.json"


class GatewayFile(BaseModel):
    """The file gateway.json: the gateway's id, and the number of its last start."""

    schema_version: int = 1
    id: str = Field(pattern=r"^gw-[0-9a-f]{16}$")
    epoch: int = Field(ge=0)


def take_identity(folder: Path) -> GatewayProcess:
    """Return this process's identity, and count its start in `folder`/gateway.json. Blocks. Call once per process.

    If `folder` does not exist (a gateway that stores nothing), or cannot be written, which is logged, the id is new,
    and the number of the start is 0. The controller then takes the process for another gateway: if the one before was
    killed, it may refuse this one until it has seen the other gone. A damaged file is replaced, which is logged, too.
    """
    try:
        counted = _count_start(folder) if folder.exists() else GatewayFile(id=_new_id(), epoch=0)
    except OSError as error:
        logger.warning(
            "%s cannot be written (%s): this gateway has another id after each restart, and the controller may refuse "
            "it for half a minute after it was killed. Set ROUNDHOUSE_STATE to a folder that can be written",
            folder / FILE_NAME,
            error.strerror or error,
        )
        counted = GatewayFile(id=_new_id(), epoch=0)
    return GatewayProcess(
        id=counted.id, epoch=counted.epoch, pid=os.getpid(), start_ticks=read_own_start(), host=read_host()
    )


def _count_start(folder: Path) -> GatewayFile:
    path = folder / FILE_NAME
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that start at once get two numbers
        try:
            known = GatewayFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            known = GatewayFile(id=_new_id(), epoch=0)
        except ValidationError:
            logger.warning("%s is damaged: this gateway has another id from now on", path)
            known = GatewayFile(id=_new_id(), epoch=0)
        counted = known.model_copy(update={"epoch": known.epoch + 1})
        _write_count(path, counted.model_dump_json().encode())
    finally:
        os.close(lock)
    return counted


def _write_count(path: Path, content: bytes) -> None:
    """Replace the file, also on a full disk, where a new one finds no room: there the old one is written over."""
    try:
        write_atomic(path, content)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


def _new_id() -> str:
    return f"gw-{secrets.token_hex(8)}"


LINK_PATH = "/internal/link"
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 0.5
"""Short, because a table that is older than the last kills names engines that are gone."""
REFUSED_RETRY_S = 3.0
"""Longest delay before a gateway that is refused asks again: it may be the only one by then."""
PING_S = 10.0
"""Seconds between pings. A controller that does not answer one for half of this time is taken for gone."""
STARTING_ATTEMPTS = 5
"""Attempts, in about two seconds, before the log says that a controller was never reached; it may start just now."""
HANDSHAKE_S = 5.0
GOODBYE_S = 1.0
"""Seconds that the controller may take to answer a closing frame."""
MAX_TABLE_BYTES = 64 * 1024 * 1024
TOKEN_REFUSED = 401
"""HTTP status with which the controller refuses a gateway's token, and nothing else."""
REFUSED_WORDS = f"it refuses this gateway's token ({LINK_TOKEN.variable})"
MOST_PROBLEMS = 5
"""Maximum number of problems of an unreadable table that the log names."""


def retry_delay(attempt: int, jitter: float) -> float:
    """Return the seconds to wait before reconnection `attempt`, counted from 0.

    The longest delay doubles from `FIRST_RETRY_S` (0.1) to `LONGEST_RETRY_S` (0.5); `jitter`, in [0, 1),
    chooses between half of it and all of it, so that several gateways do not reconnect at the same time.
    """
    longest_s: float = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(attempt, 16))
    return longest_s * (0.5 + jitter / 2)


class TableVerdict(Enum):
    """What the gateway does with a received table: it applies the table (`APPLY`), or ignores it because of its stamp
    (`REPEATED`, `OLDER`) or its instance (`OTHER_INSTANCE`)."""

    APPLY = "apply"
    REPEATED = "repeated"
    OLDER = "older"
    OTHER_INSTANCE = "of another instance"


def judge_table(current: Routes | None, table: RoutingTable, *, first_of_connection: bool) -> TableVerdict:
    """Decide whether `table` replaces `current`, and change nothing. `current` None: there is no table yet.

    Stamps order the tables of one controller instance: a table with an equal stamp is `REPEATED`, one with a lower
    stamp is `OLDER`. A table of another instance is applied, whatever its stamp, only if it is the first of a
    connection: then the controller at this address was replaced by one with another state folder. A change of instance
    within a connection is an error of the sender.
    """
    if current is None:
        return TableVerdict.APPLY
    if table.instance != current.instance:
        return TableVerdict.APPLY if first_of_connection else TableVerdict.OTHER_INSTANCE
    if current.stamp < table.stamp:
        return TableVerdict.APPLY
    return TableVerdict.REPEATED if table.stamp == current.stamp else TableVerdict.OLDER


class LinkState:
    """State of the link to the controller: not connected at first. `ControllerLink` sets it; `/health` and the metrics
    read it. While the controller refuses this gateway, it is not connected."""

    def __init__(self) -> None:
        self.is_connected = False
        """Whether the WebSocket is open now, and its controller has not refused this gateway."""
        self.refusal: str | None = None
        """Why the controller refuses this gateway, in one sentence with addresses; None: it does not, as far as is
        known."""
        self.was_ever_connected = False
        self.table_at: float | None = None
        """Monotonic seconds when the last table arrived that was applied or repeated the one in force; None: none has
        arrived."""

    @property
    def status_word(self) -> str:
        """`refused`, `connected`, `lost` (it was connected before), or `never` (it was not connected since the
        start)."""
        if self.refusal is not None:
            return "refused"
        if self.is_connected:
            return "connected"
        return "lost" if self.was_ever_connected else "never"


@dataclass(frozen=True, slots=True)
class OwnIdentity:
    """What a gateway says of itself: which process it is, by `take`, and the URLs that it listens on (`addresses`)."""

    take: Callable[[], GatewayProcess]
    """Returns which process it is. Called once, after the first connection was opened; it may block. A controller that
    shares the state folder has created the folder by then."""
    addresses: tuple[str, ...]
    """URLs that it listens on."""
    takes_over: bool = False
    """Whether an older process of this gateway serves, and is told to end as soon as this one serves."""


class ControllerLink:
    """Keeps the WebSocket to the controller open, applies received routing tables and sends reports.

    One per gateway. Run `run` as a task for the life of the gateway, and call `say_goodbye` before cancelling it. While
    the controller is away, the last table stays in force; while it refuses this gateway, because it works with another
    one, none does.
    """

    def __init__(
        self,
        address: ProgramAddress,
        own: OwnIdentity,
        *,
        live: LiveRoutes,
        ledger: InflightCounts,
        remotes: RemoteProber,
        state: LinkState,
        now: Callable[[], float],
    ) -> None:
        """`now`: monotonic seconds.

        Sets `on_change` of `ledger` and `remotes`, and `on_demand` of `ledger`, so that their changes cause reports.
        """
        self._address = address
        self._own = own
        self._process: GatewayProcess | None = None
        self._live = live
        self._ledger = ledger
        self._remotes = remotes
        self.list_tool_calls: Callable[[], tuple[ToolCallRecord, ...]] = tuple
        """Returns the latest calls of tools, for reports. Who sets it calls `request_report` after each call."""
        self._state = state
        self._now = now
        self._timer = ReportSchedule(now)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_draining = False
        self._is_ending = False
        self._is_refused = False
        """Whether the controller refused the token at the last attempt."""
        ledger.on_change = self._timer.request_report
        ledger.on_demand = self._timer.request_report_now
        remotes.on_change = self._timer.request_report_now

    def request_report(self) -> None:
        """Have a report sent soon, because something that reports tell has changed."""
        self._timer.request_report()

    async def run(self) -> None:
        """Connect, serve the connection, and reconnect, until cancelled. Never returns, and failures are only
        logged."""
        attempt = 0
        while True:
            try:
                async with aiohttp.ClientSession(connector=open_connector(self._address)) as session:
                    tables = await self._connect_and_serve(session)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                tables = 0
                self._state.refusal = None  # of whom, nobody knows now
                self._log_unreachable(attempt, without_tracebacks(error))
            except Exception:  # applying a table calls much of the gateway: a bug there must not end the link
                tables = 0
                logger.exception("the connection to the controller failed; trying on")
            attempt = 0 if tables else attempt + 1
            jitter = random.random()  # noqa: S311 - no secret
            delay = retry_delay(attempt, jitter) if self._state.refusal is None else REFUSED_RETRY_S
            await asyncio.sleep(delay)

    async def wait_for_table(self, within_s: float) -> bool:
        """Wait for a routing table, and return whether one is in force; False after `within_s` seconds."""
        deadline = self._now() + within_s
        while self._live.current_or_none is None and self._now() < deadline:  # noqa: ASYNC110 - only at the start
            await asyncio.sleep(0.01)
        return self._live.current_or_none is not None

    def begin_drain(self) -> None:
        """Report at once, and in each later report, that the gateway accepts no new requests: the controller then takes
        a successor. Call when a stop begins."""
        self._is_draining = True
        self._timer.request_report_now()

    async def say_goodbye(self) -> None:
        """Send a last report that no request is in flight and none will be, so that drains need not wait.

        Sends nothing without a connection, or while requests are in flight. A failure is logged, not raised; takes
        `GOODBYE_S` (1) seconds at most. Call when the gateway takes no new requests any more.
        """
        self._is_ending = not self._ledger.inflight
        if self._socket is not None and self._is_ending:
            try:
                async with asyncio.timeout(GOODBYE_S):
                    await self._socket.send_str(self._report())
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                logger.info("the controller was not told of the end: %s", error or type(error).__name__)

    def _report(self) -> str:
        assert self._process is not None, "there was a connection"
        report = self._ledger.make_report(self._process.name, self._live.current_or_none)
        update = {
            "process": self._process,
            "draining": self._is_draining,
            "takes_over": self._own.takes_over,
            "addresses": self._own.addresses,
            "ending": self._is_ending,
            "remotes": self._remotes.results,
            "tool_calls": self.list_tool_calls(),
        }
        return report.model_copy(update=update).model_dump_json()

    async def _connect_and_serve(self, session: aiohttp.ClientSession) -> int:
        """Connect, and serve the connection to its end. Returns the number of tables received."""
        async with asyncio.timeout(HANDSHAKE_S):
            socket = await session.ws_connect(
                self._address.base_url + LINK_PATH,
                headers=self._address.read_headers(),
                heartbeat=PING_S,
                max_msg_size=MAX_TABLE_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=GOODBYE_S),
            )
        self._is_refused = False
        if self._process is None:
            self._process = self._own.take()
        if self._state.refusal is None:  # else not before a table
            self._note_connected()
        self._socket = socket
        self._timer.request_report_now()
        sender = asyncio.create_task(self._send_reports(socket))
        try:
            return await self._receive_tables(socket)
        finally:
            self._socket = None
            self._state.is_connected = False
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            await socket.close()
            if self._state.refusal is None:
                logger.warning("the connection to the controller ended; requests go on by the last table")

    def _note_connected(self) -> None:
        self._state.is_connected = self._state.was_ever_connected = True
        self._state.refusal = None
        logger.info("connected to the controller")

    async def _receive_tables(self, socket: aiohttp.ClientWebSocketResponse) -> int:
        tables = 0
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            received = read_message(message.data)
            if isinstance(received, LinkRefusal):
                self._take_refusal(received.reason)
            elif received is not None:
                if self._state.refusal is not None:
                    self._note_connected()
                self._take_table(received, first_of_connection=tables == 0)
                tables += 1
        return tables

    def _take_refusal(self, reason: str) -> None:
        if reason != self._state.refusal:
            logger.warning("%s; asking again every %g s", reason, REFUSED_RETRY_S)
        self._state.refusal, self._state.is_connected = reason, False
        self._live.drop_table(hide_addresses(f"{reason[:1].upper()}{reason[1:]}."))

    def _take_table(self, table: RoutingTable, *, first_of_connection: bool) -> None:
        current = self._live.current_or_none
        verdict = judge_table(current, table, first_of_connection=first_of_connection)
        if verdict in (TableVerdict.OLDER, TableVerdict.OTHER_INSTANCE):
            logger.warning("ignored a routing table that is %s: %s %s", verdict.value, table.instance, table.stamp)
            return
        if verdict is TableVerdict.APPLY:
            if current is not None and current.instance != table.instance:
                logger.warning("the controller is another instance now: %s, was %s", table.instance, current.instance)
            try:
                self._live.apply_table(table)
            finally:  # after the connection that a failure ends, the table is a repeated one
                self._ledger.forget_absent(self._live.current)
                self._remotes.follow_table(self._live.current)
        self._state.table_at = self._now()
        self._timer.request_report_now()  # drains wait for it

    async def _send_reports(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            while True:
                await self._timer.wait_until_due()
                await socket.send_str(self._report())
        except (aiohttp.ClientError, OSError):
            pass  # the connection ended, which whoever receives sees too
        except Exception:
            logger.exception("a report to the controller failed; connecting anew")
            await socket.close()

    def _log_unreachable(self, attempt: int, error: Exception) -> None:
        # Once per absence; it is tried every half second after that. One that is just starting too is not absent.
        is_due = attempt == (0 if self._state.was_ever_connected else STARTING_ATTEMPTS)
        was_refused, self._is_refused = self._is_refused, is_token_refusal(error)
        if (is_due or self._is_refused) and not (was_refused and self._is_refused):
            address = self._address.socket_path or self._address.base_url + LINK_PATH
            reason = REFUSED_WORDS if self._is_refused else error or type(error).__name__
            logger.warning("no controller at %s (%s); trying on", address, reason)


def check_token_taken(answer: ProgramAnswer) -> None:
    """Raise ProgramGoneError if a controller's answer refuses the gateway's token (status 401); else do nothing."""
    if answer.status == TOKEN_REFUSED:
        raise ProgramGoneError(REFUSED_WORDS)


def is_token_refusal(error: Exception) -> bool:
    """Return whether `error` says that the controller refused the gateway's token: a WebSocket handshake with 401."""
    return isinstance(error, aiohttp.WSServerHandshakeError) and error.status == TOKEN_REFUSED


def read_message(text: str) -> RoutingTable | LinkRefusal | None:
    """Return the routing table or the refusal in a message; None if it holds neither, or one that this gateway cannot
    read.

    Messages that are malformed or of a newer schema version are logged, without secrets. Raises nothing.
    """
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.get("kind") not in {"table", "refusal"}:
            return None
        version = fields.get("schema_version")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            logger.error(
                "the controller speaks schema version %s and this gateway %s: upgrade the gateway. "
                "Requests go on by the last table.",
                version,
                SCHEMA_VERSION,
            )
            return None
        message = RoutingTable if fields["kind"] == "table" else LinkRefusal
        return message.model_validate(fields)
    except ValidationError as error:
        logger.error("unreadable message: %s", _plain_text(error))  # noqa: TRY400 - a traceback would show tokens
    except (ValueError, RecursionError) as error:
        logger.error("unreadable message: %s", error)  # noqa: TRY400 - the traceback would say no more
    return None


def _plain_text(error: ValidationError) -> str:
    """Return what is wrong and where, without the input, which may hold an engine's token."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:MOST_PROBLEMS]]
    return "; ".join(lines) + (f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else "")
