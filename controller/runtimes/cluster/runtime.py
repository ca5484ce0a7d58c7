"""The runtime of an installation with several hosts: it asks them over a carrier, all at the same time, and remembers
what each said last. What runs on a host that does not answer is unknown, not empty.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from common.atomic_write import write_atomic
from common.host_tls import HostContexts
from contract.desired import Definition
from contract.hosts import (
    HOSTS_VERSION,
    CancelFetchRequest,
    FetchFilesRequest,
    FilesReply,
    HostGpuDriver,
    HostMessage,
    HostObservation,
    HostReplica,
    HostReplicaId,
    HostReplicas,
    LogReply,
    MemoryReply,
    NameRequest,
    NamesReply,
    ObserveRequest,
    PreflightReply,
    PreflightRequest,
    RenderReply,
    RenderRequest,
    ReplicaRequest,
    StartReplicaRequest,
    TextReply,
)
from controller.hosts import HOST, Gpu, GpuDriver, Host, HostState, UnreadGpu, memory_key
from controller.planning.hosts import HEAD, is_silent
from controller.runtimes.base import (
    LogPart,
    Rendered,
    RuntimeUnavailableError,
    SeenReplica,
    StartError,
    StartRequest,
)
from controller.runtimes.cluster.carrier import (
    CarriedHost,
    CarrierDownError,
    HostCarrier,
    HostRefusedError,
    HostSilentError,
    repeat_work,
)
from controller.runtimes.cluster.host_files import HostFiles
from controller.runtimes.cluster.host_service import from_message, pack_definition, read_reply, to_message
from controller.runtimes.cluster.relay_keeper import check_relay, describe_tls
from controller.state import Phase, PreflightResult

if TYPE_CHECKING:
    from controller.runtimes.cluster.material import HostCredentials

log = logging.getLogger(__name__)

NO_HOST: Final = "no host answers"
"""Beginning of the reason why nothing was observed, where no host was ever heard."""
ROUND_WAIT_S: Final = 1.0
"""Seconds that a round waits for the word of a host. A slower one answers for a later round."""
OVERDUE_WAIT_S: Final = 0.25
"""Seconds that a request waits for a host whose heartbeats are missing."""
LOOK_S: Final = 15.0
"""Seconds after which a request that only reads has failed."""
START_S: Final = 300.0
"""Seconds after which a start has failed, and what a stop may take beyond its grace period."""
PULL_S: Final = 86_400.0
"""Seconds after which the pull of an image has failed."""
_CURSOR_MARK: Final = "|"
"""Between the host's name and its cursor, in a log's cursor. No host's name has it."""

_ABSOLUTE: Final = ("/", "~")
"""Beginnings of model paths that may mean another file on another host."""

AnyReply = TypeVar("AnyReply", bound=HostMessage)
AnyAnswer = TypeVar("AnyAnswer")


@dataclass(slots=True)
class _KnownHost:
    """What a host said last, and what was done there since. Times are monotonic but for `heard_at`, a Unix time, all by
    the clocks of the controller."""

    seen: HostObservation | None = None
    """Its last word on what runs there. None: it never said one."""
    asked_at: float = 0.0
    """When that was asked for."""
    said_at: float = 0.0
    """When that arrived (monotonic)."""
    replicas: dict[str, SeenReplica] = field(default_factory=dict)
    """What runs there, as seen last, with what was started and ended since."""
    changed: dict[str, tuple[float, SeenReplica | None]] = field(default_factory=dict)
    """Starts (the replica) and ends (None) that were done, by name, with the time of it, until a look that began later
    shows them."""
    heard_at: float = 0.0
    """When it last answered anything."""
    word: tuple[float | None, float] = (None, 0.0)
    """When it was last heard by the carrier, and `heard_at`, as seen last."""
    word_at: float = field(default_factory=time.monotonic)
    """When these last changed. Wall clocks may be set back, and may then not hide a silence."""
    problem: str | None = None
    """Why it cannot say what runs there, or may not be used."""
    is_refused: bool = False
    reached_relay: str | None = None
    """Address of its relay, if that has answered once."""
    look: asyncio.Task[None] | None = None
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Its `file_stamps`, as said last."""
    compared: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By path, a stamp of the head's files and one of the host's that have the same content."""

    def take_word(self, seen: HostObservation, name: str, asked_at: float, files: HostCredentials | None) -> None:
        """Take what the host said when it was asked at `asked_at`. Raises ValueError, with nothing changed, if it
        cannot be read."""
        self.replicas = {each.name: _place_replica(each, name, files) for each in seen.replicas or ()}
        self.changed = {each: change for each, change in self.changed.items() if change[0] >= asked_at}
        for each, (_, replica) in self.changed.items():
            if replica is None:
                self.replicas.pop(each, None)
            else:
                self.replicas.setdefault(each, replica)
        self.seen, self.asked_at = seen, asked_at
        if seen.file_stamps is not None:
            self.stamps = seen.file_stamps
        self.note_problem(None)

    def note_problem(self, problem: str | None, *, is_refused: bool = False) -> None:
        """Note why the host cannot say what runs there; None: it did."""
        self.problem, self.is_refused = problem, is_refused

    def note_change(self, name: str, replica: SeenReplica | None) -> None:
        """Take into account that a replica was started (`replica`) or ended (None) just now."""
        self.changed[name] = (time.monotonic(), replica)
        if replica is None:
            self.replicas.pop(name, None)
        else:
            self.replicas.setdefault(name, replica)


def _place_replica(message: HostReplica, host: str, files: HostCredentials | None) -> SeenReplica:
    replica = from_message(SeenReplica, message)
    tls = None if replica.tls is None or files is None else describe_tls(files, replica.tls.server_name)
    return replace(replica, host=host, tls=tls, claims=_rename_key(replica.claims, HOST, memory_key(host)))


def _rename_key(claims: Mapping[str, int], old: str, new: str) -> dict[str, int]:
    return {new if key == old else key: mib for key, mib in claims.items()}


class ClusterRuntime:
    """Starts, lists and stops replicas on the hosts of a carrier. Its methods promise what those of
    `controller.runtimes.base.Runtime` do, with these differences: one silent host lets no method fail but those about a
    replica or a host that is that one; those raise HostSilentError. The carrier is started at the first use, and closed
    by `close`. Use one object in one event loop."""

    def __init__(
        self,
        carrier: HostCarrier,
        *,
        kind: str,
        file: Path | None = None,
        relay_files: HostCredentials | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`kind`: that of the hosts' runtimes. A host of another kind is refused, because the image of a container is
        part of the spec hash: the hosts would replace each other's replicas for ever. `file`: where it is kept what
        runs on each host, because the next controller must know that of a host that is silent when it starts; None: it
        is not kept. `relay_files`: with what the hosts' relays are reached, by the controller and by gateways; None:
        without TLS, and a host whose relay has it is refused. `clock` returns Unix time."""
        self.kind = kind
        self.list_model_paths: Callable[[], Mapping[str, Sequence[str]]] = dict
        """Returns the model paths of each declared model, by its name. Each host says which are missing there."""
        self.head: HostFiles | None = None
        """Files that the hosts get from the controller's own machine. None: they get none."""
        self._fetched_paths: dict[tuple[str, str], tuple[str, ...]] = {}
        """By model and host, what was asked for, is not there yet, and was not cancelled."""
        self._file = file
        self._relay_files = relay_files
        self._contexts = HostContexts()
        self._kept = HostReplicas()
        self._file_lock = asyncio.Lock()
        self._model_paths: Mapping[str, Sequence[str]] = {}
        self._carrier = carrier
        self._clock = clock
        self._hosts: dict[str, _KnownHost] = {}
        self._began_at = clock()
        self._opening: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: set[asyncio.Event] = set()
        self._closed = False

    # Hearing the hosts

    async def _open(self) -> None:
        """Start the carrier, once, and wait until every host was heard, or has had the time for it."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._start_carrier())
        await asyncio.shield(self._opening)

    async def _start_carrier(self) -> None:
        await self._carrier.start()
        await asyncio.to_thread(self._read_file)
        self._began_at = self._clock()
        works = {"hearing of hosts": self._follow_carrier, "the look at heartbeats": self._follow_heartbeats}
        pause_s = self._carrier.heartbeat_s
        self._tasks = [asyncio.create_task(repeat_work(work, name, pause_s)) for name, work in works.items()]
        for _ in range(60):
            if all(host.last_heard is not None or host.refusal is not None for host in self._carrier.list_hosts()):
                break
            await asyncio.sleep(self._carrier.heartbeat_s / 20)

    def _read_file(self) -> None:
        if self._file is None:
            return
        try:
            kept = HostReplicas.model_validate_json(self._file.read_bytes())
            placed = {
                host: [_place_replica(each, host, self._relay_files) for each in replicas]
                for host, replicas in kept.hosts.items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("what ran on silent hosts is not known: %s cannot be read: %s", self._file, error)
            return
        self._kept = kept
        for host, replicas in placed.items():
            self._hosts[host] = _KnownHost(replicas={each.name: each for each in replicas})

    async def _keep_replicas(self) -> None:
        """Write to the file what runs on each host, if it is not what it says."""
        hosts = {
            host: tuple(
                to_message(HostReplica, replace(each, claims=_rename_key(each.claims, memory_key(host), HOST)))
                for _, each in sorted(known.replicas.items())
                if each.phase is not Phase.EXITED
            )
            for host, known in sorted(self._hosts.items())
        }
        if self._file is None or hosts == self._kept.hosts:
            return
        kept = HostReplicas(hosts=hosts)
        try:
            # Not durable: after a power cut the hosts have to say it anew anyway.
            content = kept.model_dump_json().encode()
            async with self._file_lock:
                await asyncio.to_thread(write_atomic, self._file, content, durable=False)
                self._kept = kept
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)

    async def _follow_carrier(self) -> None:
        try:
            async for _ in self._carrier.watch():
                self._notify()
        finally:
            self._notify()  # of what is missed until it is followed again

    async def _follow_heartbeats(self) -> None:
        """Wake the rounds as soon as a host's heartbeats are missing, and then from time to time until it is heard
        again: nobody else tells that the time has come at which it is lost."""
        overdue: frozenset[str] = frozenset()
        told_at = 0.0
        while True:
            await asyncio.sleep(self._carrier.heartbeat_s / 10)
            now = self._clock()
            before, overdue = overdue, frozenset(each.name for each in self._list_hosts() if self._is_overdue(each))
            if overdue != before or (overdue and not 0 <= now - told_at < self._carrier.heartbeat_s):
                told_at = now
                self._notify()

    def _notify(self) -> None:
        for changed in self._listeners:
            changed.set()

    def watch_events(self) -> AsyncIterator[None]:
        """Yield whenever something may have changed on a host, or with a host, until `close`."""
        changed = asyncio.Event()
        self._listeners.add(changed)
        return self._events(changed)

    async def _events(self, changed: asyncio.Event) -> AsyncIterator[None]:
        try:
            await self._open()
            while not self._closed:
                await changed.wait()
                changed.clear()
                if not self._closed:
                    yield
        finally:
            self._listeners.discard(changed)

    def _list_hosts(self) -> tuple[CarriedHost, ...]:
        """Return the carrier's hosts, and forget what is known of others."""
        carried = self._carrier.list_hosts()
        names = {each.name for each in carried}
        self._hosts = {name: self._hosts.get(name) or _KnownHost() for name in names}
        return carried

    def _last_word(self, carried: CarriedHost) -> float:
        """Return the Unix time of the host's last word, by the present clock."""
        known, now = self._hosts.setdefault(carried.name, _KnownHost()), time.monotonic()
        if (carried.last_heard, known.heard_at) != known.word:
            known.word, known.word_at = (carried.last_heard, known.heard_at), now
        return self._clock() - (now - known.word_at)

    def _is_overdue(self, carried: CarriedHost) -> bool:
        return is_silent(self._last_word(carried), True, self._clock(), self._carrier.heartbeat_s)

    async def _ask(
        self, host: str, method: str, message: HostMessage, reply: type[AnyReply], deadline_s: float = LOOK_S
    ) -> AnyReply:
        """Send a request to a host, and return its answer. Gives up when the host's heartbeats are missing, also before
        the deadline. Raises what the host's runtime raised, HostSilentError and HostRefusedError."""
        await self._open()
        carried = next((each for each in self._list_hosts() if each.name == host), None)
        if carried is None:
            names = ", ".join(each.name for each in self._list_hosts())
            raise HostRefusedError(f"there is no host {host}; the hosts are {names}")
        known = self._hosts[host]
        asking = asyncio.create_task(self._carrier.call(host, method, message.model_dump_json().encode(), deadline_s))
        try:
            while not (await asyncio.wait({asking}, timeout=OVERDUE_WAIT_S))[0]:
                if all(each.name != host or self._is_overdue(each) for each in self._list_hosts()):
                    break
            content = await asking if asking.done() else None
        finally:
            asking.cancel()
        if content is None:
            raise HostSilentError(f"host {host} does not answer: its heartbeats are missing")
        known.heard_at = self._clock()
        return read_reply(host, content, reply)

    # Seeing

    async def list_replicas(self) -> list[SeenReplica]:
        """Return every replica of every host, each with its host. Of a host that does not answer in time, those that
        were seen last; see `read_hosts`. Raises RuntimeUnavailableError only if no host was ever heard."""
        await self._open()
        asked_at, self._model_paths = time.monotonic(), self.list_model_paths()
        hosts = [each.name for each in self._list_hosts() if each.refusal is None]
        await asyncio.gather(*(self._look_at(name, asked_at) for name in hosts))
        if self.head is not None and any(each.files_url is not None for each in self._list_seen()):
            await self.head.look_within({path for each in self._model_paths.values() for path in each}, ROUND_WAIT_S)
        if all(each.seen is None for each in self._hosts.values()):
            known_problems = sorted((name, each.problem) for name, each in self._hosts.items() if each.problem)
            problems = "; ".join(f"host {name}: {problem}" for name, problem in known_problems)
            raise RuntimeUnavailableError(f"{NO_HOST}: {problems or 'none has joined'}")
        await self._keep_replicas()
        return [replica for _, known in sorted(self._hosts.items()) for replica in known.replicas.values()]

    async def _look_at(self, host: str, asked_at: float) -> None:
        """Ask a host for its word, not before `asked_at`, and wait for it as long as a round may."""
        known, loop = self._hosts[host], asyncio.get_running_loop()
        ends_at = loop.time() + ROUND_WAIT_S
        if known.look is not None:  # begun for another caller, perhaps before `asked_at`
            await asyncio.wait({known.look}, timeout=ROUND_WAIT_S)
        if known.look is None or (known.look.done() and known.asked_at < asked_at):
            known.look = asyncio.create_task(self._look(host, known))
        await asyncio.wait({known.look}, timeout=max(0.0, ends_at - loop.time()))

    async def _look(self, host: str, known: _KnownHost) -> None:
        asked_at = time.monotonic()
        paths = {path for paths in self._model_paths.values() for path in paths}
        try:
            mark = known.seen.files_mark if known.seen is not None else ""
            request = ObserveRequest(model_paths=tuple(sorted(paths)), known_files=mark)
            seen = await self._ask(host, "observe", request, HostObservation)
        except CarrierDownError:
            return  # says nothing of the host
        except (RuntimeUnavailableError, ValueError) as error:
            # A reason is a sentence without its subject.
            known.note_problem(str(error).removeprefix(f"host {host} "), is_refused=isinstance(error, HostRefusedError))
            return
        except Exception as error:
            log.exception("the look at host %s failed", host)
            known.note_problem(f"asking it failed: {error!r}")
            return
        if seen.replicas is None:
            known.note_problem(f"its runtime does not answer: {seen.error}")
            return
        problem = None
        try:
            if seen.relay is not None and known.reached_relay != seen.relay and not self._is_other_relay(seen):
                tls = None if self._relay_files is None else describe_tls(self._relay_files)
                problem = await check_relay(seen.relay, tls, self._contexts)
            known.take_word(seen, host, asked_at, self._relay_files)  # only now, for it makes the host ready
        except ValueError as error:  # of a newer version
            known.note_problem(f"what it says cannot be read: {error}".replace("\n", " "), is_refused=True)
            return
        if problem is not None:
            known.note_problem(f"{problem.words}: {problem.remedy}", is_refused=True)
        elif not self._is_other_relay(seen):
            known.reached_relay = seen.relay
        known.said_at = time.monotonic()
        if known.said_at - asked_at > ROUND_WAIT_S:
            self._notify()  # no round has waited for it

    def _is_other_relay(self, seen: HostObservation) -> bool:
        """Return whether a host's relay has TLS and this head has not, or the other way round."""
        return seen.relay is not None and seen.is_insecure is not (self._relay_files is None)

    async def read_hosts(self) -> tuple[Host, ...]:
        """Return every host, as `list_replicas` saw it last, `ready`, `silent` or `refused`. Asks only if nobody has
        called `list_replicas` yet. Raises RuntimeUnavailableError only if no host was ever heard."""
        if all(each.seen is None for each in self._hosts.values()):
            await self.list_replicas()
        now = self._clock()
        return tuple(self._describe_host(each, now) for each in self._list_hosts())

    def _describe_host(self, carried: CarriedHost, now: float) -> Host:
        name, known = carried.name, self._hosts[carried.name]
        state, reason, last_heard = self._judge_host(carried, known, now)
        host = Host(
            name=name,
            state=state,
            last_heard=last_heard,
            reason=reason,
            address=carried.address,
            versions=carried.versions,
            labels=carried.labels,
            gpus=None,
        )
        if (seen := known.seen) is None:
            return host
        return replace(
            host,
            runtime=seen.runtime,
            versions={**carried.versions, **seen.versions},
            gpus=self._list_gpus(name),
            gpu_error=seen.gpu_error,
            unread_gpus=self._list_unread(name),
            unified_gpus=frozenset(seen.unified_gpus),
            driver=None if seen.driver is None else from_message(GpuDriver, seen.driver),
            memory_mib=seen.memory_mib,
            is_memory_limited=seen.is_memory_limited,
            models_free_mib=seen.models_free_mib,
            relay=seen.relay,
            is_insecure=seen.is_insecure,
            missing_models=self._list_lacking(known, seen),
            files_url=seen.files_url,
            fetch_fractions={
                model: min(seen.fetch_fractions[path] for path in paths if path in seen.fetch_fractions)
                for model, paths in (self._model_paths.items() if seen.fetch_fractions else ())
                if not seen.fetch_fractions.keys().isdisjoint(paths)
            },
        )

    def _list_lacking(self, known: _KnownHost, seen: HostObservation) -> frozenset[str]:
        """Return the models whose files are missing on a host, or may be others than the head's."""
        lacking = set(seen.missing_paths)
        head = self.head.stamps if self.head is not None and seen.files_url is not None else {}
        if head and head != known.stamps:
            lacking |= {
                path
                for path, stamp in known.stamps.items()
                if head.get(path, stamp) != stamp
                and known.compared.get(path) != (head[path], stamp)
                and not path.startswith(_ABSOLUTE)
            }
        if not lacking:
            return frozenset()
        return frozenset(model for model, paths in self._model_paths.items() if not lacking.isdisjoint(paths))

    def list_head_models(self) -> frozenset[str]:
        """Return the models whose files hosts can get from the controller's own machine: all are there, and named by
        paths that are the same on every host."""
        if self.head is None or self.head.url is None:
            return frozenset()
        there = {path for path in self.head.stamps if not path.startswith(_ABSOLUTE)}
        return frozenset(model for model, paths in self._model_paths.items() if paths and there.issuperset(paths))

    def _judge_host(self, carried: CarriedHost, known: _KnownHost, now: float) -> tuple[HostState, str | None, float]:
        """Return the host's state, the reason of it, and when it was last heard."""
        last_word = self._last_word(carried)
        if (refusal := self._find_refusal(carried, known)) is not None:
            if self._is_overdue(carried):
                return HostState.SILENT, f"it does not answer; before, it was refused: {refusal}", last_word
            return HostState.REFUSED, refusal, last_word
        if known.seen is None:
            return HostState.SILENT, known.problem or "it has not said yet what runs there", last_word
        heard_at = last_word
        if known.problem is not None and not carried.is_excused and not self._is_overdue(carried):
            # Where the host is heard and does not say what runs there, that is not known either.
            heard_at = now - (time.monotonic() - known.said_at)
        if is_silent(heard_at, known.problem is not None, now, self._carrier.heartbeat_s):
            return HostState.SILENT, known.problem, heard_at
        return HostState.READY, None, heard_at

    def _find_refusal(self, carried: CarriedHost, known: _KnownHost) -> str | None:
        """Return why the host may not be used, as known last; None: it may."""
        if carried.refusal is not None or known.is_refused:
            return carried.refusal or known.problem
        if (seen := known.seen) is None:
            return None
        if seen.runtime != self.kind:
            return f"its runtime is {seen.runtime}, and that of this installation is {self.kind}"
        if self._is_other_relay(seen):
            there, here = ("without", "with") if seen.is_insecure else ("with", "without")
            return f"its relay is {there} TLS, and this head {here}: join it anew with the head's join file of today"
        if seen.relay is not None and known.reached_relay != seen.relay:
            return known.problem or "its relay has not been reached yet"
        if abs(seen.schema_version - HOSTS_VERSION) > 1:
            versions = f"its messages are of version {seen.schema_version}, the controller's of {HOSTS_VERSION}"
            return f"{versions}: give both the same version of Roundhouse"
        return None

    def _list_gpus(self, host: str) -> tuple[Gpu, ...] | None:
        seen = self._hosts[host].seen
        if seen is None or seen.gpus is None:
            return None
        return tuple(replace(from_message(Gpu, each), host=host) for each in seen.gpus)

    def _list_unread(self, host: str) -> tuple[UnreadGpu, ...]:
        seen = self._hosts[host].seen
        return tuple(replace(from_message(UnreadGpu, each), host=host) for each in (seen.unread_gpus if seen else ()))

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """Return the GPUs of all hosts; None if those of one are not known."""
        await self.list_replicas()
        gpus = [self._list_gpus(name) for name in sorted(self._hosts)]
        known_gpus = [each for each in gpus if each is not None]
        return None if len(known_gpus) < len(gpus) else tuple(gpu for each in known_gpus for gpu in each)

    def get_gpu_error(self) -> str | None:
        """Return why the first host without GPUs has none, as it said last. None: none said so."""
        return next((each.gpu_error for each in self._list_seen() if each.gpu_error is not None), None)

    def get_gpu_driver(self) -> GpuDriver | None:
        """Return the NVIDIA driver of the first host that has one; None: none has, or it is not known."""
        driver: HostGpuDriver | None = next((each.driver for each in self._list_seen() if each.driver), None)
        return None if driver is None else from_message(GpuDriver, driver)

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """Return the GPUs of all hosts that cannot be read, as they said last."""
        return tuple(gpu for name in sorted(self._hosts) for gpu in self._list_unread(name))

    def _list_seen(self) -> builtins.list[HostObservation]:
        return [known.seen for _, known in sorted(self._hosts.items()) if known.seen is not None]

    # Finding the host

    def _find_host(self, name: str) -> str | None:
        """Return the host of a replica; None: it is in no list. Attempts never repeat: no name is on two hosts."""
        return next((host for host, known in self._hosts.items() if name in known.replicas), None)

    def _choose_host(self, host: str) -> str:
        names = [each.name for each in self._list_hosts()]
        if host or host in names:
            return host
        if len(names) == 1:
            return names[0]
        raise RuntimeUnavailableError(f"it is not said on which host; the hosts are {', '.join(names)}")

    async def _ask_about(
        self, method: str, message: ReplicaRequest, reply: type[AnyReply], is_found: Callable[[AnyReply], object]
    ) -> tuple[str, AnyReply] | None:
        """Ask the host of a replica. If it is in no list, as when it has ended, ask every host at the same time, and
        return the first answer that has found it; None: none has. Raises what the hosts raised, if none has found it
        and one could not be asked."""
        await self._open()
        if all(each.seen is None for each in self._hosts.values()):
            await self.list_replicas()
        host = self._find_host(message.name)
        hosts = [host] if host is not None else [each.name for each in self._list_hosts() if each.refusal is None]
        answers = await _gather(self._ask(each, method, message, reply) for each in hosts)
        for each, answer in zip(hosts, answers, strict=True):
            if not isinstance(answer, Exception) and is_found(answer):
                return each, answer
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return None

    # Reading

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """Return the last lines of a replica's log, on whichever host it is; empty: there is none."""
        message = ReplicaRequest(name=name, lines=lines)
        found = await self._ask_about("read_log_tail", message, TextReply, lambda answer: answer.text)
        return found[1].text if found is not None else ""

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Return the names of the model's removed replicas on all hosts that answer, the highest attempts first. Raises
        RuntimeUnavailableError if none answers."""
        await self._open()
        hosts = [each.name for each in self._list_hosts() if each.refusal is None]
        message = NameRequest(name=model)
        answers = await _gather(self._ask(host, "list_ended_logs", message, NamesReply) for host in hosts)
        lists = [each.names for each in answers if not isinstance(each, Exception)]
        for each in answers if not lists else ():
            if isinstance(each, Exception):
                raise each
        if len(lists) == 1:
            return list(lists[0])
        return sorted((name for names in lists for name in names), key=_attempt_of, reverse=True)

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """Return what a replica wrote after `cursor`, which names its host, too. None: no host knows a log of it."""
        await self._open()
        host, mark, inner = (cursor or "").partition(_CURSOR_MARK)
        message = ReplicaRequest(name=name, lines=lines, cursor=inner if mark else None)
        found: tuple[str, LogReply] | None
        if mark and any(each.name == host for each in self._list_hosts()):
            found = host, await self._ask(host, "read_log_after", message, LogReply)
        else:
            message = message.model_copy(update={"cursor": None})
            found = await self._ask_about("read_log_after", message, LogReply, lambda answer: answer.cursor is not None)
        if found is None or found[1].cursor is None:
            return None
        host, answer = found
        return LogPart(answer.lines, f"{host}{_CURSOR_MARK}{answer.cursor}", answer.running)

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """Return what a replica would be started with now on its host."""
        host = self._choose_host(replica.host or self._find_host(replica.name) or "")
        there = replace(replica, claims=_rename_key(replica.claims, memory_key(host), HOST))
        message = RenderRequest(
            replica=to_message(HostReplica, there), definition=pack_definition(definition), image=image
        )
        answer = await self._ask(host, "render_replica", message, RenderReply)
        return None if answer.argv is None else Rendered(answer.argv, answer.image_id)

    async def read_host_mib(self, name: str) -> int | None:
        """Return the MiB of main memory that a replica holds on its host. None: not known, or it does not run."""
        message = ReplicaRequest(name=name)
        found = await self._ask_about("read_host_mib", message, MemoryReply, lambda answer: answer.mib)
        return found[1].mib if found is not None else None

    # Starting and ending

    async def check_preflight(
        self, model: str, definition: Definition, image: str | None, host: str = ""
    ) -> PreflightResult:
        """Check whether a replica could be started on `host`."""
        await self._open()
        message = PreflightRequest(model=model, definition=pack_definition(definition), image=image)
        answer = await self._ask(self._choose_host(host), "check_preflight", message, PreflightReply)
        return PreflightResult(answer.ok, self._clock(), answer.error, answer.missing_image, answer.plain)

    async def fetch_files(self, model: str, host: str, sources: Sequence[str]) -> None:
        """Have `host` fetch the files of a model from the hosts of these names; the empty one is the head. The first
        has all files. Returns when they are there. Raises StartError, which says why, and as the other methods."""
        paths, head = tuple(self._model_paths.get(model, ())), self.head
        places = {name: known.seen.files_url for name, known in self._hosts.items() if known.seen is not None}
        places[HEAD] = None if head is None else head.url
        urls = [places.get(name) for name in sources]
        peers = tuple(dict.fromkeys(url for url in urls if url is not None))
        if (fixed := next((path for path in paths if path.startswith(_ABSOLUTE)), None)) is not None:
            raise StartError(f"{fixed} is absolute, and only what a relative path names is copied between hosts")
        if not paths or not peers or urls[0] is None:
            raise RuntimeUnavailableError("who has the files cannot be asked now")
        stamps = {} if head is None else {path: head.stamps[path] for path in paths if path in head.stamps}
        request = FetchFilesRequest(paths=paths, peers=peers)
        self._fetched_paths[model, host] = (*self._fetched_paths.get((model, host), ()), *paths)
        reply = await self._ask(host, "fetch_files", request, FilesReply, PULL_S)
        self._drop_fetched(model, host, paths)
        if (known := self._hosts.get(host)) is not None:
            there = reply.file_stamps
            known.compared.update({path: (stamp, there[path]) for path, stamp in stamps.items() if path in there})

    async def cancel_fetch(self, model: str, host: str, is_wanted: bool) -> None:
        """End the fetch of a model's files on a host, but for those that others need, or with `is_wanted` the model
        itself by its present definition. Raises as the other methods."""
        used = {path for name, each in self._model_paths.items() if is_wanted or name != model for path in each}
        paths = tuple(path for path in dict.fromkeys(self._fetched_paths.get((model, host), ())) if path not in used)
        self._drop_fetched(model, host, paths)
        await self._ask(host, "cancel_fetch", CancelFetchRequest(paths=paths), HostMessage)

    def _drop_fetched(self, model: str, host: str, paths: Collection[str]) -> None:
        rest = tuple(path for path in self._fetched_paths.pop((model, host), ()) if path not in paths)
        if rest:
            self._fetched_paths[model, host] = rest

    async def pull_image(self, image: str, host: str = "") -> None:
        """Pull an image on `host`."""
        await self._open()
        await self._ask(self._choose_host(host), "pull_image", NameRequest(name=image), HostMessage, PULL_S)

    async def start_replica(self, request: StartRequest) -> None:
        """Start a replica on the host that the request names."""
        await self._open()
        host = self._choose_host(request.host)
        message = StartReplicaRequest(
            id=to_message(HostReplicaId, request.id),
            name=request.name,
            definition=pack_definition(request.definition),
            served_name=request.served_name,
            image=request.image,
            token=request.token,
            claims=_rename_key(request.claims, memory_key(host), HOST),
        )
        started = SeenReplica(request.id, request.name, Phase.RUNNING, self._clock(), claims=request.claims, host=host)
        try:
            await self._ask(host, "start_replica", message, HostMessage, START_S)
        except HostSilentError:
            # It may run, until the host says that it does not.
            self._note_change(host, request.name, started)
            raise
        self._note_change(host, request.name, started)

    def _note_change(self, host: str, name: str, replica: SeenReplica | None) -> None:
        if (known := self._hosts.get(host)) is not None:
            known.note_change(name, replica)

    async def stop_replica(self, name: str, grace_s: float) -> None:
        """End a replica on its host, and remove it."""
        await self._end(name, "stop_replica", ReplicaRequest(name=name, grace_s=grace_s), grace_s + START_S)

    async def remove_replica(self, name: str) -> None:
        """Remove a replica that has ended from its host. One that runs is left as it is."""
        await self._end(name, "remove_replica", ReplicaRequest(name=name), START_S)

    async def _end(self, name: str, method: str, message: ReplicaRequest, deadline_s: float) -> None:
        if self._find_host(name) is None:
            await self.list_replicas()
        host = self._find_host(name)
        # Of a name that nobody knows, an only host says whether it is one of this instance.
        hosts = [host] if host is not None else [each.name for each in self._list_hosts()]
        if host is None and len(hosts) > 1:
            return
        await self._ask(hosts[0], method, message, HostMessage, deadline_s)
        if method == "stop_replica":
            self._note_change(hosts[0], name, None)

    async def expel_host(self, name: str) -> None:
        """Forget a host for good, with what ran there: it is no longer listed, and is refused if it comes back. Raises
        HostRefusedError if it says what runs there, or did less than three heartbeats ago, or if there is no such
        host."""
        await self._open()
        is_mute = False
        try:
            seen = await self._ask(name, "observe", ObserveRequest(), HostObservation, ROUND_WAIT_S)
        except (HostSilentError, HostRefusedError) as error:
            if name not in self._hosts:
                raise
            problem, is_refused = str(error).removeprefix(f"host {name}: "), isinstance(error, HostRefusedError)
        else:
            if seen.replicas is not None:
                words = "drain it, and end Roundhouse there, before it is forgotten"
                raise HostRefusedError(f"host {name} answers: {words}")
            problem, is_refused, is_mute = f"its runtime does not answer: {seen.error}", False, True
        carried = next((each for each in self._list_hosts() if each.name == name), None)
        if carried is not None:
            known = self._hosts[name]
            known.note_problem(problem, is_refused=is_refused)
            state = self._judge_host(carried, known, self._clock())[0]
            if state is not HostState.SILENT and not (state is HostState.REFUSED and is_mute):
                how = "refused" if state is HostState.REFUSED else "slow"
                raise HostRefusedError(f"host {name} is {how}, and its heartbeats arrive: it is not forgotten")
        await self._carrier.expel(name)
        self._list_hosts()
        log.warning("host %s is forgotten", name)
        self._notify()

    async def close(self) -> None:
        """End `watch_events`, and close the carrier. Engines go on running."""
        self._closed = True
        self._notify()
        looks = [known.look for known in self._hosts.values() if known.look is not None]
        tasks = [*self._tasks, *looks, *([self._opening] if self._opening is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.head is not None:
            await self.head.close()
        await self._carrier.close()


async def _gather(questions: Iterable[Awaitable[AnyAnswer]]) -> builtins.list[AnyAnswer | Exception]:
    """Return each answer, or the error in its place. Raises BaseException that is no Exception."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for each in answers:
        if isinstance(each, BaseException) and not isinstance(each, Exception):
            raise each
    return [each for each in answers if isinstance(each, Exception) or not isinstance(each, BaseException)]


def _attempt_of(name: str) -> int:
    attempt = name.rpartition("-")[2]
    return int(attempt) if attempt.isdecimal() else 0
