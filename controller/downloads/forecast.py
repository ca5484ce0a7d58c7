"""Where a model will fit that is not here yet: its heads are read at the source, its memory is predicted and placed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from pydantic import JsonValue

from contract.downloads import LONGEST_RANGE, Inspection, RangeOrder, RemoteFile
from contract.errors import RoundhouseError
from contract.model_files import DeviceFit, MemoryForecast
from controller.artifacts.heads import (
    HEAD_LENGTH,
    Artifact,
    ArtifactError,
    GgufHead,
    HfFolder,
    SizedArtifact,
    TooShort,
    UnreadArtifact,
    build_gguf,
    head_length,
    measure_tensors,
    parse_head,
    show_text,
    tensor_bytes,
    text_config,
)
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import FIRST_READ, LONGEST_GGUF_HEAD, LONGEST_JSON, SPLIT_FILE
from controller.config.validate import validate_models
from controller.config.yaml12 import SourcePlace, Table, with_place
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.engines import ENGINES, REPLICA_ENGINES, resolve_backend
from controller.hosts import Gpu, Host
from controller.memory_estimator import Estimate, estimate_model
from controller.planning.placement import ClaimLedger, NoRoom, place_replica
from controller.state import DesiredModel, ObservedState, Phase
from controller.state_dir import StoredState

MOST_FILES: Final = 256
"""Files of one model whose heads are read."""
PARALLEL: Final = 4
"""Heads that are read at the same time."""
_CONFIG: Final = "config.json"


class RangeReader(Protocol):
    """Reads parts of files at their source. `controller.transfers_client.TransfersClient` does."""

    async def read_range(self, order: RangeOrder) -> bytes:
        """Return the bytes of a file at its source that `order` names; fewer where the file ends. Raises
        RoundhouseError where they cannot be read."""


async def read_remote_artifacts(reader: RangeReader, inspection: Inspection) -> dict[str, Artifact]:
    """Return what the heads of the model's files say, by model path: of the main file or folder, and of the projector.
    Never raises for what cannot be read: UnreadArtifact says why. SizedArtifact is for kinds that are not read."""
    artifacts = {inspection.main: await _read_model(reader, inspection, inspection.main)}
    if inspection.projector is not None:
        artifacts[inspection.projector] = await _read_model(reader, inspection, inspection.projector)
    return artifacts


async def _read_model(reader: RangeReader, inspection: Inspection, path: str) -> Artifact:
    files = select_files(path, inspection.files)
    if not files:
        return UnreadArtifact(f"{path}: the source lists no such file")
    size = sum(file.size for file in files)
    heads = _HeadReader(reader, inspection.pinned)
    try:
        if path.lower().endswith(".gguf"):
            return await heads.read_gguf(files)
        names = {
            PurePosixPath(file.target).name: file for file in files if str(PurePosixPath(file.target).parent) == path
        }
        if _CONFIG in names and any(name.endswith(".safetensors") for name in names):
            return await heads.read_folder(names, size)
    except ArtifactError as error:
        return UnreadArtifact(f"{path} {error}", size)
    except RoundhouseError as error:
        return UnreadArtifact(f"{path}: {error.message.rstrip('.')}", size)
    return SizedArtifact(size)


def select_files(path: str, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Return the files of the model at `path`, a path below the models folder: the file, its split set, or all files of
    the folder. They are sorted by their target path."""
    if split := SPLIT_FILE.fullmatch(path):
        stem, end = f"{split['stem']}-", f"-of-{split['count']}.gguf"
        return sorted(
            (each for each in files if each.target.startswith(stem) and each.target.endswith(end)),
            key=lambda each: each.target,
        )
    return sorted(
        (each for each in files if each.target == path or each.target.startswith(f"{path}/")),
        key=lambda each: each.target,
    )


class _HeadReader:
    def __init__(self, reader: RangeReader, reference: str) -> None:
        self._reader = reader
        self._reference = reference
        self._limit = asyncio.Semaphore(PARALLEL)

    async def read_gguf(self, files: Sequence[RemoteFile]) -> Artifact:
        _check_count(files)
        heads = await asyncio.gather(*(self._read_gguf_head(file) for file in files))
        return build_gguf([(head, file.size) for head, file in zip(heads, files, strict=True)])

    async def read_folder(self, files: dict[str, RemoteFile], size: int) -> Artifact:
        config = text_config(await self._read(files[_CONFIG], LONGEST_JSON))
        shards = [file for name, file in sorted(files.items()) if name.endswith(".safetensors")]
        _check_count(shards)
        weights: dict[str, int] = {}
        for lengths in await asyncio.gather(*(self._read_tensor_bytes(file) for file in shards)):
            for kind, length in lengths.items():
                weights[kind] = weights.get(kind, 0) + length
        return HfFolder(size, config, weights)

    async def _read_gguf_head(self, file: RemoteFile) -> GgufHead:
        data, length = b"", FIRST_READ
        async with self._limit:
            while True:
                data += await self._read_range(file, len(data), length - len(data))
                try:
                    # A vocabulary takes a while, which must not hold up the controller.
                    head = await asyncio.to_thread(parse_head, data)
                except TooShort:
                    if len(data) < length:
                        raise ArtifactError("ends within its head") from None
                else:
                    measure_tensors(head, file.size)
                    return head
                if length >= LONGEST_GGUF_HEAD:
                    raise ArtifactError(f"has a head of more than {LONGEST_GGUF_HEAD // 2**20} MiB: it is damaged")
                length *= 4

    async def _read_tensor_bytes(self, file: RemoteFile) -> dict[str, int]:
        async with self._limit:
            data = await self._read_range(file, 0, FIRST_READ)
            length = head_length(data[:HEAD_LENGTH], file.size)
            if (missing := HEAD_LENGTH + length - len(data)) > 0:
                data += await self._read_range(file, len(data), missing)
        head = data[HEAD_LENGTH : HEAD_LENGTH + length]
        return await asyncio.to_thread(tensor_bytes, head, file.size - HEAD_LENGTH - length)

    async def _read(self, file: RemoteFile, max_bytes: int) -> bytes:
        if file.size > max_bytes:
            raise ArtifactError(f"has a {show_text(file.path)} of more than {max_bytes // 2**20} MiB")
        async with self._limit:
            return await self._read_range(file, 0, max(1, file.size))

    async def _read_range(self, file: RemoteFile, start: int, length: int) -> bytes:
        """Return up to `length` bytes, in as many answers as they need."""
        parts: list[bytes] = []
        while length > 0:
            asked = min(length, LONGEST_RANGE)
            order = RangeOrder(reference=self._reference, path=file.path, start=start, length=asked)
            part = (await self._reader.read_range(order))[:asked]
            parts.append(part)
            start, length = start + len(part), length - len(part)
            if len(part) < asked:
                break
        return b"".join(parts)


def _check_count(files: Sequence[RemoteFile]) -> None:
    if len(files) > MOST_FILES:
        raise ArtifactError(f"has {len(files)} files, more than are read")


NAME: Final = "the-model-that-is-asked-about"
"""Name of the model in the forecast's own plan; no declared one has it."""
_PLACE: Final = SourcePlace("the download")
_PROJECTOR_FIELDS: Final[Mapping[str, str]] = {"llama_server": "llama_server_mmproj"}
"""Field of the projector's path, by backend."""
_MOST_TOLD: Final = 3
"""Devices and models that a summary names."""


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """Paths below the models folder that the definition of a downloaded model names. `projector` None: the model has
    none. `backend` None: the files decide which backend serves them. `options`: further fields of the definition."""

    main: str
    projector: str | None = None
    backend: str | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)


class UnknownModelError(Exception):
    """No backend is known that serves the files without further options. The message says why, as half a sentence."""


def build_model(paths: ModelPaths, roots: ModelRoots, gpus: int, *, name: str = NAME) -> DesiredModel:
    """Return the model of these files with default options and the given name, with replicas on `gpus` GPUs (0: in main
    memory). `roots` are absolute. Raises UnknownModelError if no backend serves the files without further options."""
    fields: dict[str, Any] = {"model_path": paths.main, "gpus": gpus, **paths.options}
    backend = paths.backend or resolve_backend(paths.main)
    if backend is None:
        raise UnknownModelError("the files do not tell which backend serves them; name it with `--backend`")
    fields["backend"] = backend
    if paths.projector is not None and (projector_field := _PROJECTOR_FIELDS.get(backend)) is not None:
        fields[projector_field] = paths.projector
    models = with_place({name: fields}, _PLACE)
    assert isinstance(models, Table)
    validated = validate_models(models, roots)
    if validated.problems or name not in validated.definitions:
        raise UnknownModelError(_explain(backend, [each.message for each in validated.problems]))
    declared = DeclaredModel(validated.definitions[name], fields, 0.0)
    return resolve_desired({name: declared}, StoredState(), Defaults(), generation=0).models[name]


def _explain(backend: str, problems: Sequence[str]) -> str:
    if backend not in ENGINES:
        return f"there is no backend {backend!r:.100}; there are {', '.join(ENGINES)}"
    return f"{backend} needs more than the files tell: {'; '.join(problems)}"


def forecast_memory(
    paths: ModelPaths, artifacts: Mapping[str, Artifact], roots: ModelRoots, observed: ObservedState | None
) -> MemoryForecast:
    """Return the memory that a model of these files takes with default options, and where one replica fits beside what
    is loaded now: for each GPU, for several GPUs together if one is not enough, and for main memory. `artifacts`: what
    the heads of the files say, by model path. `roots` are absolute. `observed` None: nothing was observed yet. Raises
    nothing: where the memory is not known, the result has the reason, and no devices."""
    try:
        return _Forecaster(paths, artifacts, roots, observed).run()
    except UnknownModelError as error:
        return _unknown(paths.backend, str(error))


class _Forecaster:
    def __init__(
        self,
        paths: ModelPaths,
        artifacts: Mapping[str, Artifact],
        roots: ModelRoots,
        observed: ObservedState | None,
    ) -> None:
        self._paths = paths
        self._artifacts = artifacts
        self._roots = roots
        self._observed = observed

    def run(self) -> MemoryForecast:
        model = self._build_any()
        if not model.runs:
            return _unknown(model.backend, f"{model.backend} loads no files")
        if self._observed is None:
            return _unknown(model.backend, "the controller has not made its first observation yet")
        fits = self._list_fits(self._observed)
        if not fits:
            return _unknown(model.backend, self._explain_unpredicted(model, self._observed))
        why_no_gpus = "the GPUs cannot be read now" if self._observed.gpus is None else None
        return MemoryForecast(summary=summarize_fits(fits, why_no_gpus), backend=model.backend, devices=fits)

    def _build_any(self) -> DesiredModel:
        """Return the model in main memory, or on a GPU where its backend needs one."""
        try:
            return build_model(self._paths, self._roots, 0)
        except UnknownModelError:
            return build_model(self._paths, self._roots, 1)

    def _explain_unpredicted(self, model: DesiredModel, observed: ObservedState) -> str:
        if model.gpu_count and not observed.gpus:
            return f"{model.backend} needs a GPU, and this host has none that can be read"
        estimate = self._estimate(model)
        return (estimate.reason if estimate is not None else None) or "the backend has no formula for it"

    def _list_fits(self, observed: ObservedState) -> list[DeviceFit]:
        fits, in_main_memory = [], []
        for host in observed.hosts:
            gpus = host.gpus or ()
            on_gpus = [fit for gpu in gpus if (fit := self._judge(observed, host, (gpu,))) is not None]
            if not any(fit.fits_alone for fit in on_gpus):
                # The largest first: engines on several GPUs take as much of each.
                by_size = sorted((gpu for gpu in gpus if gpu.mig is None), key=lambda gpu: (-gpu.total_mib, gpu.index))
                for count in range(2, len(by_size) + 1):
                    chosen = tuple(sorted(by_size[:count], key=lambda gpu: gpu.index))
                    together = self._judge(observed, host, chosen)
                    if together is not None and together.fits_alone:
                        on_gpus.append(together)
                        break
            fits += on_gpus
            if (without := self._judge(observed, host, ())) is not None:
                in_main_memory.append(without)
        # Of several hosts, the one with the most room.
        return fits + sorted(in_main_memory, key=lambda fit: -(fit.free_mib or 0))[:1]

    def _judge(self, observed: ObservedState, host: Host, gpus: tuple[Gpu, ...]) -> DeviceFit | None:
        """Return whether a replica fits on these GPUs of the host together, or in its main memory without any. None:
        not known."""
        try:
            model = build_model(self._paths, self._roots, len(gpus))
        except UnknownModelError:
            return None
        hosts = (host.name,) if host.name else ()
        model = replace(model, gpu_choice=tuple(gpu.uuid for gpu in gpus), hosts=hosts)
        estimate = self._estimate(model)
        if estimate is None or estimate.source != "predicted":
            return None
        observed = replace(observed, requirements={**observed.requirements, NAME: estimate.as_requirement()})
        ledger = ClaimLedger.of(observed)
        # That somebody loads there just now says nothing about the room.
        ledger.busy_replicas.clear()
        alone = ledger.copy_without_replicas(_claiming(observed), observed)
        placed = place_replica(model, observed, ledger)
        keys = [gpu.uuid for gpu in gpus] or [host.memory_key]
        free = [max(0, gpu.total_mib - max(ledger.claimed_on(gpu.uuid), gpu.used_mib)) for gpu in gpus]
        if not gpus and host.memory_mib is not None:
            free = [max(0, host.memory_mib - ledger.claimed_on(host.memory_key))]
        return DeviceFit(
            gpus=[gpu.label for gpu in gpus],
            needed_mib=max((estimate.mib_on_gpu(gpu.total_mib) for gpu in gpus), default=estimate.host_mib),
            free_mib=min(free, default=None),
            total_mib=min((gpu.total_mib for gpu in gpus), default=host.memory_mib),
            fits=not isinstance(placed, NoRoom),
            fits_alone=not isinstance(place_replica(model, observed, alone), NoRoom),
            beside=sorted({name for key in keys for name in ledger.models_by_gpu.get(key, ())}),
            reason=placed.reason if isinstance(placed, NoRoom) else None,
        )

    def _estimate(self, model: DesiredModel) -> Estimate | None:
        paths = REPLICA_ENGINES[model.backend].list_artifacts(model.definition)
        return estimate_model(model, {path: self._artifacts[path] for path in paths if path in self._artifacts})


MARGIN_MIB: Final = 1024
"""MiB that an engine is taken to need beside a model's files, where nothing else is known, and a tenth of their size:
cache, buffers, the driver's own."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """The room of one device: a GPU, or main memory. Sizes are MiB."""

    label: str | None
    """Label of the GPU; None: main memory."""
    total: int
    free: int
    """Free now."""
    free_alone: int
    """Free once no model of Roundhouse is loaded."""
    beside: tuple[str, ...] = ()
    """Names of the models that are loaded there."""
    is_mig: bool = False


def measure_rooms(observed: ObservedState) -> list[DeviceRoom]:
    """Return the room of each GPU that can be read, and of main memory if its size is known."""
    ledger = ClaimLedger.of(observed)
    alone = ledger.copy_without_replicas(_claiming(observed), observed)
    rooms = []
    for gpu in observed.gpus or ():
        used_alone = max(alone.claimed_on(gpu.uuid), gpu.used_mib - alone.released_on(gpu.uuid))
        rooms.append(
            DeviceRoom(
                gpu.label,
                gpu.total_mib,
                max(0, gpu.total_mib - max(ledger.claimed_on(gpu.uuid), gpu.used_mib)),
                max(0, gpu.total_mib - used_alone),
                tuple(sorted(ledger.models_by_gpu.get(gpu.uuid, ()))),
                gpu.mig is not None,
            )
        )
    main_memories = []
    for host in observed.hosts:
        if host.memory_mib is not None:
            claimed, claimed_alone = (each.claimed_on(host.memory_key) for each in (ledger, alone))
            free, free_alone = (max(0, host.memory_mib - each) for each in (claimed, claimed_alone))
            beside = tuple(sorted(ledger.models_by_gpu.get(host.memory_key, ())))
            main_memories.append(DeviceRoom(None, host.memory_mib, free, free_alone, beside))
    # Of several hosts, the one with the most room.
    rooms += sorted(main_memories, key=lambda room: -room.free)[:1]
    return rooms


def forecast_size(size: int, rooms: Sequence[DeviceRoom], why_no_gpus: str | None = None) -> MemoryForecast:
    """Return about the memory that a model with files of `size` bytes takes, and where it fits, as `forecast_memory`
    does, without a look into the files: their size, a tenth of it, and `MARGIN_MIB`. `rooms`: see `measure_rooms`;
    empty: nothing is known of them. `why_no_gpus`: as in `summarize_fits`."""
    if not rooms:
        return _unknown(None, why_no_gpus or "the controller has not made its first observation yet")
    needed = -(-size * 11 // (10 * 2**20)) + MARGIN_MIB
    fits = [_judge_rooms(needed, (room,)) for room in rooms if room.label is not None]
    if not any(fit.fits_alone for fit in fits):
        largest = sorted((each for each in rooms if each.label is not None and not each.is_mig), key=lambda e: -e.total)
        together = (_judge_rooms(needed, largest[:count]) for count in range(2, len(largest) + 1))
        fits.extend([each for each in together if each.fits_alone][:1])
    fits.extend(_judge_rooms(needed, (room,)) for room in rooms if room.label is None)
    return MemoryForecast(summary=f"about {needed} MiB; {summarize_fits(fits, why_no_gpus)}", devices=fits)


def _judge_rooms(needed: int, rooms: Sequence[DeviceRoom]) -> DeviceFit:
    """Return whether a replica fits on these GPUs together, in equal parts, or in main memory."""
    each = -(-needed // len(rooms))
    free = min(room.free for room in rooms)
    return DeviceFit(
        gpus=sorted(room.label for room in rooms if room.label is not None),
        needed_mib=each,
        free_mib=free,
        total_mib=min(room.total for room in rooms),
        fits=each <= free,
        fits_alone=all(each <= room.free_alone for room in rooms),
        beside=sorted({name for room in rooms for name in room.beside}),
        reason=None if each <= free else f"{free} of {min(room.total for room in rooms)} MiB are free",
    )


def _claiming(observed: ObservedState) -> list[Any]:
    """Return the replicas whose claims are in the ledger of an observation."""
    return [
        each
        for each in observed.replicas
        if each.phase is Phase.RUNNING or (each.phase is Phase.CREATED and each.name in observed.pending)
    ]


def choose_gpu_count(forecast: MemoryForecast) -> int:
    """Return the smallest number of GPUs on which one replica fits, now or without the models that are loaded now; 0:
    it fits on none, or it is not known whether it does."""
    return min((len(fit.gpus) for fit in forecast.devices if fit.gpus and (fit.fits or fit.fits_alone)), default=0)


def summarize_fits(fits: Sequence[DeviceFit], why_no_gpus: str | None = None) -> str:
    """Return in words where a model fits: on a GPU if it can, else in main memory. `why_no_gpus`: why nothing is known
    of GPUs; None: they are known, also where there are none."""
    now = [fit for fit in fits if fit.gpus and fit.fits]
    later = [fit for fit in fits if fit.gpus and not fit.fits and fit.fits_alone]
    host = next((fit for fit in fits if not fit.gpus), None)
    in_host = host is not None and host.fits
    suffix = f"; {why_no_gpus}" if why_no_gpus is not None else ""
    if now:
        return f"fits on {', or on '.join(f'{_name(fit)}{_beside(fit)}' for fit in now[:_MOST_TOLD])}"
    if later:
        others = f", and now {_describe_host(host)}" if host is not None and in_host else ""
        return f"fits on {_name(later[0])} once {_list(later[0].beside) or 'its memory'} is gone{others}"
    if host is not None and in_host:
        without = "; no GPU has room for it" if any(fit.gpus for fit in fits) else ""
        return f"fits {_describe_host(host)}{without}{suffix}"
    if host is not None and host.fits_alone:
        return f"fits in main memory once {_list(host.beside) or 'other memory'} is gone{suffix}"
    reasons = [fit.reason for fit in fits if fit.reason is not None]
    return f"does not fit: {reasons[0]}{suffix}" if reasons else f"not known where it fits{suffix}"


def _describe_host(fit: DeviceFit) -> str:
    return f"in main memory{_beside(fit)}"


def _beside(fit: DeviceFit) -> str:
    return f" beside {_list(fit.beside)}" if fit.beside else ""


def _name(fit: DeviceFit) -> str:
    return f"GPU {fit.gpus[0]}" if len(fit.gpus) == 1 else f"GPUs {', '.join(fit.gpus)} together"


def _list(names: Sequence[str]) -> str:
    told = list(names[:_MOST_TOLD])
    if len(names) > _MOST_TOLD:
        told.append(f"{len(names) - _MOST_TOLD} more")
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}" if told else ""


def _unknown(backend: str | None, reason: str) -> MemoryForecast:
    return MemoryForecast(summary=f"what it takes is not known: {reason}", backend=backend, reason=reason)
