"""Declarations made from the model files that lie in the models folders: which file is a model that can be served,
under which name, with which fields. Pure.

`roundhouse serve`, the page's "Serve it" and `discover: true` all declare what `declare_file` returns.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from pydantic import JsonValue

from contract.model_files import FileDeclaration, MemoryForecast
from contract.model_reference import LocalReference, suggest_model_name
from controller.artifacts.heads import Artifact, Ct2, Gguf, HfFolder, UnreadArtifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import SPLIT_FILE
from controller.downloads.forecast import (
    ModelPaths,
    UnknownModelError,
    build_model,
    choose_gpu_count,
    forecast_memory,
)
from controller.engines import resolve_backend
from controller.planning.placement import free_hosts
from controller.state import ObservedState

MOST_CONTEXT: Final = 32_768
"""Tokens of context that a declaration made from a file asks for at most, however many the model was trained for: the
cache grows with them, and takes the memory of other models."""
LEAST_CONTEXT: Final = 4096
"""Tokens of context below which no smaller one is tried to make a model fit."""
_LONGEST_NAME: Final = 200
_HUB_MODEL: Final = "models--"
"""Prefix of a repository's folder in the Hugging Face cache: `models--ORGANISATION--NAME/snapshots/COMMIT`."""
_PRECISION: Final = re.compile(r"[-_.]*(bf16|f16|f32|fp16|fp32|q\d\w*)$")
_NEXT_WORD: Final = re.compile(r"$|[-_]|\.(?!\d)")
_CONTEXT_FIELDS: Final[Mapping[str, str]] = {
    "llama_server": "llama_server_n_ctx",
    "vllm_serve": "vllm_max_model_len",
}
"""Field of the context length, by those backends whose memory follows from it."""
_GPU_BACKENDS: Final = frozenset({"exllamav3", "vllm_serve"})
"""Backends for folders whose programs, as they are installed by default, compute on GPUs alone."""
_POOLING_RANK: Final = 4
"""llama.cpp's `LLAMA_POOLING_TYPE_RANK`; 1 to 3 pool to embeddings."""
_NO_MODELS: Final[Mapping[str, str]] = {
    "mmproj": "it reads images or sound for the model that lies beside it, and is served with that",
    "adapter": "it is an adapter (LoRA) of another model: name it in that model's `llama_server_lora`",
    "imatrix": "it is an importance matrix, which only quantising reads",
}
"""Why a GGUF file is no model by itself, by its `general.type`."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model in a models folder: a file, a split set by its first file, or a folder."""

    root: Path
    """The models folder, with symbolic links resolved."""
    path: str
    """Path below `root`."""
    is_folder: bool
    files: tuple[str, ...]
    """Paths of its files below `root`, sorted."""
    size: int
    """Bytes of its files."""

    @property
    def is_candidate(self) -> bool:
        """Whether it may be a model that an engine serves, by its name alone."""
        return self.is_folder or (resolve_backend(self.path) is not None and not self.is_projector)

    @property
    def is_projector(self) -> bool:
        """Whether it is a multimodal projector, by its name alone."""
        return self.path.lower().endswith(".gguf") and "mmproj" in PurePosixPath(self.path).name.lower()


@dataclass(frozen=True)
class ModelFolders:
    """All that lies in the models folders at one look."""

    models: tuple[FoundModel, ...]
    roots: ModelRoots
    """Absolute."""
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    """What the heads of the files say, by the path that `name_path` returns."""

    def name_path(self, found: FoundModel) -> str:
        """Return the path by which a definition names a model: relative where that leads to it, else absolute."""
        return str(found.root / found.path) if self._path_counts[found.path] > 1 else found.path

    @cached_property
    def _path_counts(self) -> Counter[str]:
        """In how many models folders a path leads to a model."""
        return Counter(path for _, path in {(each.root, each.path) for each in self.models})

    @cached_property
    def _beside(self) -> Mapping[tuple[Path, str], tuple[Sequence[FoundModel], Sequence[FoundModel]]]:
        """The files that may be models, and the projectors, by their folder."""
        by_folder: dict[tuple[Path, str], tuple[list[FoundModel], list[FoundModel]]] = {}
        for each in self.models:
            if each.is_projector or (each.is_candidate and not each.is_folder):
                by_folder.setdefault(_folder(each), ([], []))[each.is_projector].append(each)
        return by_folder

    def find_names(self, paths: Mapping[str, str]) -> dict[FoundModel, str]:
        """Return the names that models have by `paths`: name to the path by which a definition names its model."""
        if not paths:
            return {}
        names = {path: name for name, path in paths.items()}
        return {each: names[path] for each in self.models if (path := self.name_path(each)) in names}

    def find_projector(self, found: FoundModel) -> FoundModel | None:
        """Return the projector that lies beside a GGUF file and is of its model: by its name, or because the folder
        holds no other model. None: there is none."""
        if found.is_folder or not found.path.lower().endswith(".gguf"):
            return None
        others, projectors = self._beside.get(_folder(found), ((), ()))
        is_alone = all(each == found for each in others)
        name = PurePosixPath(found.path).stem.lower()
        fitting = [each for each in projectors if is_alone or _begins_with(name, _projector_stem(each))]
        # Not every GPU computes in bfloat16.
        return min(
            fitting,
            key=lambda each: (-len(_projector_stem(each)), "bf16" in each.path.lower(), each.path),
            default=None,
        )


def _folder(found: FoundModel) -> tuple[Path, str]:
    return found.root, found.path.rpartition("/")[0]


def _begins_with(name: str, stem: str) -> bool:
    """Return whether a name without suffix is `stem`, or that and more words: `gemma-3-4b` begins with `gemma-3`,
    `gemma-3n` and `gemma-3.5` do not."""
    return bool(stem) and name.startswith(stem) and _NEXT_WORD.match(name, len(stem)) is not None


def _projector_stem(projector: FoundModel) -> str:
    text = PurePosixPath(projector.path).stem.lower().replace("mmproj", "").strip("-_.")
    return _PRECISION.sub("", text).strip("-_.")


def name_models(models: Iterable[FoundModel], kept: Mapping[FoundModel, str]) -> dict[FoundModel, str]:
    """Return a name for each model: that of its file or folder, without suffix and numbers of parts. Models that would
    have the same name have their path for a name, and where that is no difference either, a digest at its end. Names
    are unique, upper and lower case not distinguished, and depend neither on the order nor on models with other file
    names. `kept`: names that models have already, and keep whatever lies beside them now; they are unique."""
    names = {each: kept.get(each) or _short_name(each) for each in models}
    for longer in (_path_name, _digest_name):
        counts = Counter(name.casefold() for name in names.values())
        names = {
            each: longer(each) if counts[name.casefold()] > 1 and each not in kept else name
            for each, name in names.items()
        }
    return names


def _short_name(found: FoundModel) -> str:
    _, repository, inner = _split_path(found)
    # A snapshot of the hub is named by its commit, and a folder in it by what it has of the model.
    return _clean_name(repository[-1] if repository and (found.is_folder or not inner) else inner[-1])


def _clean_name(part: str) -> str:
    return suggest_model_name(LocalReference(path=f"/{part}"))


def _split_path(found: FoundModel) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """Return the folders above a snapshot in the Hugging Face cache, its repository (organisation and name), and the
    path in the snapshot. Of what lies elsewhere: nothing, nothing, and the path."""
    parts = PurePosixPath(found.path).parts
    for place, part in enumerate(parts[:-2]):
        if part.startswith(_HUB_MODEL) and parts[place + 1] == "snapshots":
            return parts[:place], part.split("--", 2)[1:], parts[place + 3 :]
    return (), (), parts


def _path_name(found: FoundModel) -> str:
    name = "/".join(_clean_name(part) for each in _split_path(found) for part in each)
    return name if len(name) <= _LONGEST_NAME else _digest_name(found)


def _digest_name(found: FoundModel) -> str:
    digest = hashlib.sha256(str(found.root / found.path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{_short_name(found)[: _LONGEST_NAME - 13]}-{digest}"


def declare_file(found: FoundModel, name: str, folders: ModelFolders, observed: ObservedState) -> FileDeclaration:
    """Return the declaration that serves a model under `name`, made from what its file says of itself: backend,
    embeddings or rankings, projector, and the GPUs and the context that fit beside what `observed` has loaded. Where it
    cannot be served, the result says why, and has no fields."""
    path = folders.name_path(found)
    artifact = folders.artifacts.get(path)
    projector = folders.find_projector(found)
    projector_path = None if projector is None else folders.name_path(projector)
    blank = FileDeclaration(path=path, name=name, projector=projector_path)
    fault = _find_fault(found, artifact)
    backend = _choose_backend(path, artifact)
    if fault is None and backend is None:
        fault = _explain_no_backend(found)
    if fault is not None or backend is None:
        return blank.model_copy(update={"reason": fault})
    paths = ModelPaths(path, projector_path, backend, _read_options(backend, artifact))
    if (reason := _find_obstacle(paths, folders.roots, observed)) is not None:
        return blank.model_copy(update={"reason": reason})
    trained = _trained_context(artifact)
    forecast, paths, context = _choose_context(paths, trained, folders, observed)
    if forecast.devices and not any(fit.fits_alone or fit.fits for fit in forecast.devices):
        return blank.model_copy(update={"reason": forecast.summary, "forecast": forecast})
    fields: dict[str, JsonValue] = {"model_path": path, "backend": backend, **paths.options}
    if projector_path is not None and backend == "llama_server":
        fields["llama_server_mmproj"] = projector_path
    gpus = choose_gpu_count(forecast) or int(backend in _GPU_BACKENDS)
    if gpus:
        fields["gpus"] = gpus
    return blank.model_copy(
        update={
            "fields": fields,
            "forecast": forecast,
            "context": context,
            "trained_context": trained,
            "has_chat_template": "tokenizer.chat_template" in artifact.fields if isinstance(artifact, Gguf) else None,
        }
    )


def describe_declared(
    found: FoundModel, name: str, folders: ModelFolders, backend: str, fields: Mapping[str, JsonValue]
) -> FileDeclaration:
    """Return the declaration that serves a model already: `fields` under `name`. Nothing is worked out anew."""
    path = folders.name_path(found)
    context = fields.get(_CONTEXT_FIELDS.get(backend, ""))
    return FileDeclaration(
        path=path,
        name=name,
        fields=dict(fields),
        context=context if isinstance(context, int) else None,
        trained_context=_trained_context(folders.artifacts.get(path)),
        declared="before",
    )


def _find_fault(found: FoundModel, artifact: Artifact | None) -> str | None:
    """Return why a file is no model that can be served, by what it says of itself; None: nothing is wrong with it."""
    if found.is_projector:
        return _NO_MODELS["mmproj"]
    if isinstance(artifact, UnreadArtifact):
        return artifact.reason
    if (split := SPLIT_FILE.fullmatch(found.path)) and (count := int(split["count"])) != len(found.files):
        return f"it is one of {count} parts, of which {len(found.files)} are here"
    if not isinstance(artifact, Gguf):
        return None
    kind = "mmproj" if artifact.architecture == "clip" else artifact.fields.get("general.type")
    if (fault := _NO_MODELS.get(str(kind))) is not None:
        return fault
    return None if artifact.blocks else "it has no weights, only a vocabulary"


def _choose_backend(path: str, artifact: Artifact | None) -> str | None:
    if isinstance(artifact, HfFolder):
        quantization = artifact.config.get("quantization_config")
        is_exl3 = isinstance(quantization, Mapping) and quantization.get("quant_method") == "exl3"
        return "exllamav3" if is_exl3 else "vllm_serve"
    return "ct2" if isinstance(artifact, Ct2) else resolve_backend(path)


def _explain_no_backend(found: FoundModel) -> str:
    what = "such a folder" if found.is_folder else f"files named *{PurePosixPath(found.path).suffix}"
    return f"no backend is known for {what}; declare it with `backend` in a desired-state file if one serves it"


def _read_options(backend: str, artifact: Artifact | None) -> dict[str, JsonValue]:
    """Return the fields that make an engine serve embeddings or rankings where the file is of a model for these."""
    if backend != "llama_server" or not isinstance(artifact, Gguf):
        return {}
    pooling = artifact.get_number("pooling_type", 0) or 0
    if pooling == _POOLING_RANK:
        return {"llama_server_reranking": True}
    return {"llama_server_embedding": True} if pooling else {}


def _find_obstacle(paths: ModelPaths, roots: ModelRoots, observed: ObservedState) -> str | None:
    """Return why no replica can be started here, whatever its memory; None: one can."""
    needs_gpu = paths.backend in _GPU_BACKENDS
    if needs_gpu and not observed.gpus:
        return f"{paths.backend} needs a GPU, and this host has none that can be read"
    try:
        build_model(paths, roots, int(needs_gpu))
    except UnknownModelError as error:
        return str(error)
    return None


def _trained_context(artifact: Artifact | None) -> int | None:
    if isinstance(artifact, Gguf):
        return artifact.get_number("context_length")
    if isinstance(artifact, HfFolder):
        tokens = artifact.config.get("max_position_embeddings")
        return tokens if isinstance(tokens, int) and tokens > 0 else None
    return None


def _choose_context(
    paths: ModelPaths, trained: int | None, folders: ModelFolders, observed: ObservedState
) -> tuple[MemoryForecast, ModelPaths, int | None]:
    """Return the forecast, the paths with the context length among their options, and that length: the longest that
    fits best. None: the backend has no field for it, or the file does not say what the model was trained for."""
    field_name = _CONTEXT_FIELDS.get(paths.backend or "")
    best: tuple[int, MemoryForecast, ModelPaths, int | None] | None = None
    for context in _list_contexts(trained) if field_name is not None else (None,):
        tried = paths
        if field_name is not None and context is not None:
            tried = replace(paths, options={**paths.options, field_name: context})
        forecast = forecast_memory(tried, folders.artifacts, folders.roots, observed)
        rank = _rank_fit(forecast)
        if best is None or rank < best[0]:
            best = (rank, forecast, tried, context)
        if rank == 0 or not forecast.devices:
            break
    assert best is not None, "there is a context to try, or none is needed"
    return best[1:]


def _list_contexts(trained: int | None) -> Iterator[int | None]:
    """Yield the context lengths to try, longest first."""
    if not trained:
        yield None
        return
    tokens = min(trained, MOST_CONTEXT)
    yield tokens
    while (tokens := tokens // 2) >= LEAST_CONTEXT:
        yield tokens


def _rank_fit(forecast: MemoryForecast) -> int:
    """Return how well a model fits: 0 on a GPU now, 1 on a GPU once others are unloaded, 2 and 3 likewise in main
    memory, 4 nowhere or unknown."""
    fits = forecast.devices
    tests: Sequence[bool] = (
        any(fit.gpus and fit.fits for fit in fits) or (not any(fit.gpus for fit in fits) and any(f.fits for f in fits)),
        any(fit.gpus and fit.fits_alone for fit in fits),
        any(fit.fits for fit in fits),
        any(fit.fits_alone for fit in fits),
    )
    return next((rank for rank, holds in enumerate(tests) if holds), len(tests))


@dataclass(frozen=True, slots=True)
class Discovery:
    """Which files of the models folders become models by themselves, made by `discover_models`: what is declared for
    them, under which names, and why the others are not."""

    declarations: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    """Fields of an `autoload` model for each file that can be served, by the model's name."""
    names: Mapping[FoundModel, str] = field(default_factory=dict)
    """The name that each candidate has or would have."""
    reasons: Mapping[FoundModel, str] = field(default_factory=dict)
    """Why a file that is not declared is not among `declarations`."""


def discover_models(
    folders: ModelFolders,
    users: Mapping[FoundModel, Collection[str]],
    taken_names: Collection[str],
    observed: ObservedState,
    kept: Mapping[FoundModel, str] = MappingProxyType({}),
    identify: Callable[[FoundModel], Path] = lambda found: found.root / found.path,
) -> Discovery:
    """Return a declaration for each file in the models folders that can be served and that no other declaration names.

    `users`: names of the declared models that use a file; such a file is not declared again. `taken_names`: names and
    aliases of declared models, which none of the result has. `observed`: the host, of which only GPUs and main memory
    count (see `empty_host`), so that the result does not change with what is loaded. `kept`: the names of those that
    were discovered before. `identify` returns the same path for two that lead to one file, of which the first alone is
    declared.
    """
    names = name_models((each for each in folders.models if each.is_candidate), kept)
    taken = {name.casefold() for name in taken_names}
    host = empty_host(observed)
    seen = {identify(each): each for each in reversed(folders.models) if users.get(each)}
    declarations: dict[str, Mapping[str, JsonValue]] = {}
    reasons: dict[FoundModel, str] = {}
    for found in sorted(folders.models, key=lambda each: (str(each.root), each.path)):
        if users.get(found):
            continue
        name = names.get(found)
        if name is None:
            reasons[found] = _NO_MODELS["mmproj"] if found.is_projector else _explain_no_backend(found)
            continue
        if (same := seen.setdefault(identify(found), found)) != found:
            reasons[found] = f"it is the same file as {same.path}"
            continue
        declared = declare_file(found, name, folders, host)
        if declared.reason is not None:
            reasons[found] = declared.reason
        elif name.casefold() in taken:
            reasons[found] = f"another model is named {name}: serve it by another name"
        else:
            declarations[name] = {**declared.fields, "enabled": False, "autoload": True}
    return Discovery(declarations, names, reasons)


def empty_host(observed: ObservedState) -> ObservedState:
    """Return the hosts of an observation with nothing loaded: their GPUs and their main memory."""
    return ObservedState(observed.at, hosts=free_hosts(observed.hosts))
