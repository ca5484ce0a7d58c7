"""What runs on a host: it answers the requests of a fixed table of methods with the runtime there. A request names no
command and no file to be run: only a method of the table, and definitions as desired-state files may have them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from contract.desired import Definition
from contract.hosts import (
    CancelFetchRequest,
    FetchFilesRequest,
    FilesReply,
    HostDefinition,
    HostError,
    HostGpu,
    HostGpuDriver,
    HostMessage,
    HostObservation,
    HostReplica,
    HostReply,
    HostUnreadGpu,
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
from contract.status import Wire
from controller import __version__
from controller.artifacts.model_roots import ModelRoots
from controller.engines import REPLICA_ENGINES, get_engine
from controller.runtimes.base import Runtime, RuntimeUnavailableError, SeenReplica, StartError, StartRequest
from controller.runtimes.cluster.carrier import HostRefusedError
from controller.runtimes.cluster.host_files import HostFiles
from controller.runtimes.cluster.relay_keeper import RelayKeeper
from controller.state import ReplicaId
from controller.transfers_client import TransfersClient

log = logging.getLogger(__name__)

AnyWire = TypeVar("AnyWire", bound=Wire)
AnyReply = TypeVar("AnyReply", bound=HostMessage)
AnyValue = TypeVar("AnyValue")


def to_message(model: type[AnyWire], value: object) -> AnyWire:
    """Return a value of the controller, such as a SeenReplica, as a message with the same fields."""
    return model.model_validate(value, from_attributes=True)


@cache
def _adapter_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def from_message(kind: Callable[..., AnyValue], message: Wire) -> AnyValue:
    """Return a message as a value of the class `kind`. What that has no field for is left out. Raises
    ValidationError."""
    value: AnyValue = _adapter_of(kind).validate_python(message.model_dump(exclude={"schema_version"}))
    return value


def pack_definition(definition: Definition) -> HostDefinition:
    """Return a definition as a message. It has the fields that are not at their defaults, so that a host of an older
    version refuses only what it does not know."""
    fields = definition.model_dump(mode="json", exclude_defaults=True)
    return HostDefinition(backend=get_engine(definition).name, fields=fields)


def unpack_definition(message: HostDefinition) -> Definition:
    """Return the definition of a message. Raises StartError, a permanent one, if this version does not know its backend
    or one of its fields."""
    try:
        kind: type[Definition] = REPLICA_ENGINES[message.backend].definition
        return kind.model_validate_json(TypeAdapter(dict[str, Any]).dump_json(message.fields))
    except (KeyError, ValidationError) as error:
        problem = f"no backend {error}" if isinstance(error, KeyError) else str(error).replace("\n", " ")
        raise StartError(f"Roundhouse {__version__} there cannot read the definition: {problem}") from error


def _refuse(problem: str) -> HostError:
    return HostError(kind="refused", message=f"Roundhouse {__version__} there cannot read the request: {problem}")


class _Method(NamedTuple):
    """A method of the table: what its request must be, and what answers it."""

    request: type[HostMessage]
    answer: Callable[[Any], Awaitable[HostMessage]]


class _Stop(NamedTuple):
    """A stop under way."""

    task: asyncio.Task[None]
    grace_s: float


class HostService:
    """Answers requests of the controller with the runtime of this host. Use one object in one event loop. Does not
    close the runtime."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        models: ModelRoots | None = None,
        transfers: TransfersClient | None = None,
        memory_mib: int | None = None,
        is_memory_limited: bool = False,
        relay: RelayKeeper | None = None,
    ) -> None:
        """`models`: the models folders of this host; None: nothing is said of files and free space. `transfers`: asks
        the program there that fetches files of other hosts; None: there is none. `memory_mib` and `is_memory_limited`:
        as in `Host`. `relay`: that of this host, which `close` closes; None: the controller and the gateway reach the
        engines where they listen."""
        self.runtime = runtime
        self._models = models
        self._relay = relay
        self._memory_mib = memory_mib
        self._is_memory_limited = is_memory_limited
        self._unified: frozenset[str] = frozenset()
        self._stops: dict[str, _Stop] = {}
        self._files = None if models is None else HostFiles(models, transfers)
        self._methods: Mapping[str, _Method] = {
            "observe": _Method(ObserveRequest, self._observe),
            "check_preflight": _Method(PreflightRequest, self._check_preflight),
            "fetch_files": _Method(FetchFilesRequest, self._fetch_files),
            "cancel_fetch": _Method(CancelFetchRequest, self._cancel_fetch),
            "pull_image": _Method(NameRequest, self._pull_image),
            "start_replica": _Method(StartReplicaRequest, self._start_replica),
            "stop_replica": _Method(ReplicaRequest, self._stop_replica),
            "remove_replica": _Method(ReplicaRequest, self._remove_replica),
            "read_log_tail": _Method(ReplicaRequest, self._read_log_tail),
            "list_ended_logs": _Method(NameRequest, self._list_ended_logs),
            "read_log_after": _Method(ReplicaRequest, self._read_log_after),
            "render_replica": _Method(RenderRequest, self._render_replica),
            "read_host_mib": _Method(ReplicaRequest, self._read_host_mib),
        }

    async def answer_request(self, method: str, payload: bytes) -> bytes:
        """Do what a request asks, and return the answer, a HostReply as JSON, which says also what failed. Raises
        nothing but CancelledError."""
        reply = HostReply(error=_refuse(f"there is no method {method!r}"))
        if (known := self._methods.get(method)) is not None:
            try:
                answer = await known.answer(known.request.model_validate_json(payload))
                reply = HostReply(result=answer.model_dump(mode="json"))
            except StartError as error:
                failure = HostError(kind="start", message=str(error), permanent=error.permanent, plain=error.plain)
                reply = HostReply(error=failure)
            except RuntimeUnavailableError as error:
                reply = HostReply(error=HostError(kind="unavailable", message=str(error)))
            except ValidationError as error:
                reply = HostReply(error=_refuse(f"{method}: {error}".replace("\n", " ")))
            except ValueError as error:
                reply = HostReply(error=HostError(kind="value", message=str(error)))
            except Exception as error:
                log.exception("%s failed", method)
                reply = HostReply(error=HostError(kind="internal", message=f"{method} failed: {error!r}"))
        return reply.model_dump_json().encode()

    async def close(self) -> None:
        """Close the relay's keeper, and end the connection to `transfers`. The relay runs on as long as engines do, and
        the runtime stays open."""
        if self._relay is not None:
            await self._relay.close()
        if self._files is not None:
            await self._files.close()

    async def _observe(self, request: ObserveRequest) -> HostObservation:
        runtime = self.runtime
        replicas, error = None, None
        try:
            replicas = await runtime.list_replicas()
        except RuntimeUnavailableError as problem:
            error = str(problem)
        try:
            gpus = await runtime.read_gpus()
        except RuntimeUnavailableError as problem:
            gpus, error = None, error or str(problem)
        listed = None if replicas is None else tuple(to_message(HostReplica, each) for each in replicas)
        if self._relay is not None and listed is not None:
            try:
                listed = await self._relay.publish(listed)
            except OSError as problem:
                listed, error = None, f"its relay cannot be told of its engines: {problem}"
        self._unified |= {gpu.uuid for gpu in gpus or () if gpu.is_unified}
        driver = runtime.get_gpu_driver()
        files = self._files
        if files is not None:
            await files.look(request.model_paths)
        return HostObservation(
            runtime=runtime.kind,
            versions={"roundhouse": __version__},
            replicas=listed,
            error=error,
            gpus=None if gpus is None else tuple(to_message(HostGpu, each) for each in gpus),
            gpu_error=runtime.get_gpu_error(),
            unread_gpus=tuple(to_message(HostUnreadGpu, each) for each in runtime.list_unread_gpus()),
            unified_gpus=tuple(sorted(self._unified)),
            driver=None if driver is None else to_message(HostGpuDriver, driver),
            memory_mib=self._memory_mib,
            is_memory_limited=self._is_memory_limited,
            models_free_mib=await asyncio.to_thread(self._read_free_mib),
            relay=None if self._relay is None else self._relay.address,
            is_insecure=self._relay is not None and self._relay.is_insecure,
            missing_paths=() if files is None else tuple(sorted(files.missing)),
            files_url=None if files is None else files.url,
            files_mark="" if files is None else files.mark,
            file_stamps=None if files is None or files.mark == request.known_files else dict(files.stamps),
            fetch_fractions={} if files is None else dict(files.fractions),
        )

    def _read_free_mib(self) -> int | None:
        try:
            return None if self._models is None else shutil.disk_usage(self._models.first).free // 2**20
        except OSError:
            return None

    async def _check_preflight(self, request: PreflightRequest) -> PreflightReply:
        try:
            definition = unpack_definition(request.definition)
        except StartError as error:
            return PreflightReply(ok=False, error=str(error))
        return to_message(PreflightReply, await self.runtime.check_preflight(request.model, definition, request.image))

    async def _fetch_files(self, request: FetchFilesRequest) -> FilesReply:
        if self._files is None:
            raise StartError("there is no models folder")
        await self._files.fetch(request.paths, request.peers)
        stamps = self._files.stamps
        return FilesReply(file_stamps={path: stamps[path] for path in request.paths if path in stamps})

    async def _cancel_fetch(self, request: CancelFetchRequest) -> HostMessage:
        if self._files is not None:
            await self._files.cancel(request.paths)
        return HostMessage()

    async def _pull_image(self, request: NameRequest) -> HostMessage:
        await self.runtime.pull_image(request.name)
        return HostMessage()

    async def _start_replica(self, request: StartReplicaRequest) -> HostMessage:
        start = StartRequest(
            id=from_message(ReplicaId, request.id),
            name=request.name,
            definition=unpack_definition(request.definition),
            served_name=request.served_name,
            image=request.image,
            token=request.token,
            claims=request.claims,
        )
        await self.runtime.start_replica(start)
        return HostMessage()

    async def _stop_replica(self, request: ReplicaRequest) -> HostMessage:
        stop = self._stops.get(request.name)
        if stop is None or request.grace_s < stop.grace_s:
            # The caller of the earlier one may be gone, with a grace period that nobody wants any more.
            task = asyncio.create_task(self.runtime.stop_replica(request.name, request.grace_s))
            if stop is not None:
                stop.task.cancel()
            stop = self._stops[request.name] = _Stop(task, request.grace_s)
        try:
            await asyncio.wait({stop.task})
        finally:
            if self._stops.get(request.name) is stop:
                del self._stops[request.name]
        if stop.task.cancelled():
            raise RuntimeUnavailableError(f"the stop of {request.name} gave way to another one")
        await stop.task
        return HostMessage()

    async def _remove_replica(self, request: ReplicaRequest) -> HostMessage:
        await self.runtime.remove_replica(request.name)
        return HostMessage()

    async def _read_log_tail(self, request: ReplicaRequest) -> TextReply:
        return TextReply(text=await self.runtime.read_log_tail(request.name, request.lines))

    async def _list_ended_logs(self, request: NameRequest) -> NamesReply:
        return NamesReply(names=tuple(await self.runtime.list_ended_logs(request.name)))

    async def _read_log_after(self, request: ReplicaRequest) -> LogReply:
        part = await self.runtime.read_log_after(request.name, request.cursor, request.lines)
        return LogReply() if part is None else to_message(LogReply, part)

    async def _render_replica(self, request: RenderRequest) -> RenderReply:
        try:
            definition = unpack_definition(request.definition)
        except StartError:
            return RenderReply()
        replica = from_message(SeenReplica, request.replica)
        rendered = await self.runtime.render_replica(replica, definition, request.image)
        return RenderReply() if rendered is None else to_message(RenderReply, rendered)

    async def _read_host_mib(self, request: ReplicaRequest) -> MemoryReply:
        return MemoryReply(mib=await self.runtime.read_host_mib(request.name))


def read_reply(host: str, content: bytes, kind: type[AnyReply]) -> AnyReply:
    """Return the answer in a HostReply of a host (empty: that without a name). Raises what it says that was raised
    there, and HostRefusedError if it cannot be read."""
    try:
        reply = HostReply.model_validate_json(content)
        if (error := reply.error) is None:
            return kind.model_validate(reply.result)
    except ValueError as problem:
        raise HostRefusedError(f"the answer of host {host} cannot be read: {problem}".replace("\n", " ")) from problem
    if error.kind == "start":
        raise StartError(error.message, permanent=error.permanent, plain=error.plain)
    if error.kind == "value":
        raise ValueError(error.message)
    message = f"host {host}: {error.message}" if host else error.message
    raise (HostRefusedError if error.kind == "refused" else RuntimeUnavailableError)(message)
