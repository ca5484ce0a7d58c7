"""Which files a reference means: of a Hugging Face repository, and of a registry's manifest. Pure.

A manifest's layer is one file. Its name is in an annotation, or made of the model's name where it has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.network.answers import UnreadableAnswerError, parse_json
from contract.model_reference import validate_file_path
from transfers.sources.base import is_file_size

DEFAULT_QUANTISATIONS: Final = ("Q4_K_M", "Q8_0")
"""In this order, where a reference names none, as llama-server's `-hf` has it."""
_SPLIT: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_PRECISION: Final = re.compile(r"[-.][A-Z_]*(\d{1,3})[A-Z0-9_]*$", re.IGNORECASE | re.ASCII)
"""The word at the end of a name, such as `Q4_K_M`, `BF16` or `MXFP4`."""
_QUANTISATION: Final = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q|TQ)\d[A-Z0-9_]*|BF16|F16|F32|(?:MX|NV)FP4(?:_MOE)?)$", re.IGNORECASE | re.ASCII
)
"""The end of a GGUF file's name that names its quantisation."""
_BESIDE: Final = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_WEIGHTS: Final = (".safetensors",)
_MOST_SHARDS: Final = 999
_TEXTS: Final = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_CT2_VOCABULARIES: Final = ("shared_vocabulary", "source_vocabulary", "vocabulary")


class NoSuchFileError(Exception):
    """The repository does not have what the reference names. The message says what it has."""


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """Paths in the repository, the main one first."""

    paths: tuple[str, ...]
    is_folder: bool = False
    """Whether the model is the folder, and not its first file."""
    projector: str | None = None
    """The multimodal projector among the paths; None: there is none."""


def choose_files(
    paths: Iterable[str], *, quantisation: str | None, path: str | None, include_pickle: bool
) -> ChosenFiles:
    """Choose what to download from a repository with these files.

    With `path`: this file, and if it is a shard, all shards of the same model. With `quantisation`: the GGUF file, or
    the shards, whose name has it, and the projector in the nearest folder. With neither: the same for one of
    `DEFAULT_QUANTISATIONS`, else the first GGUF file; in a repository without GGUF files, the weights in the top folder
    and all texts. `include_pickle`: whether weights in pickle files are taken, too.

    Raises:
        NoSuchFileError: the repository has no such file, lacks a shard, or has weights in pickle files alone.
    """
    every = sorted(paths)
    if path is not None:
        if path not in every:
            raise NoSuchFileError(f"it has no file {path!r:.200}; {_list_some(every)}")
        return ChosenFiles(tuple(_find_shards(every, path)))
    models = [each for each in every if _is_gguf(each) and not _is_beside(each)]
    if quantisation is not None or models:
        return _choose_gguf(every, models, quantisation)
    return _choose_folder(every, include_pickle=include_pickle)


@dataclass(frozen=True, slots=True)
class OfferedFiles:
    """Files that an order for one of a repository's models takes, and what names them."""

    files: ChosenFiles
    quantisation: str | None = None
    """As the name of the main file tells it; None: it tells none."""
    path: str | None = None
    """What a reference must name, because the quantisation would not lead to these files; None: nothing."""


def list_choices(paths: Iterable[str], most: int) -> tuple[list[OfferedFiles], int]:
    """Return the models of a repository with these files, at most `most`, and how many more there are: each GGUF model
    that has all of its parts; in a repository without GGUF files, the folder, if it has safetensors and a
    `config.json`. Weights in pickle files are none."""
    every = sorted(paths)
    models = [each for each in every if _is_gguf(each) and not _is_beside(each)]
    if not models:
        try:
            folder = _choose_folder(every, include_pickle=False)
        except NoSuchFileError:
            return [], 0
        is_model = "config.json" in folder.paths and folder.paths[0].endswith(_WEIGHTS)
        return ([OfferedFiles(folder)] if is_model else []), 0
    first_shards = _find_first_shards(models)
    found = []
    for path in first_shards[:most]:
        try:
            found.append(_offer_gguf(every, models, path))
        except NoSuchFileError:
            continue  # a part is missing
    return found, max(0, len(first_shards) - most)


def _offer_gguf(every: Sequence[str], models: Sequence[str], path: str) -> OfferedFiles:
    split = _SPLIT.fullmatch(path)
    named = _QUANTISATION.search(split["stem"] if split is not None else path[: -len(".gguf")])
    quantisation = None if named is None else named[1]
    if quantisation is not None:
        chosen = _choose_gguf(every, models, quantisation)
        if chosen.paths[0] == path:
            return OfferedFiles(chosen, quantisation)
    return OfferedFiles(ChosenFiles(tuple(_find_shards(every, path))), quantisation, path)


def _find_first_shards(models: Sequence[str]) -> list[str]:
    return [each for each in models if (split := _SPLIT.fullmatch(each)) is None or int(split["number"]) == 1]


def _choose_gguf(every: Sequence[str], models: Sequence[str], quantisation: str | None) -> ChosenFiles:
    first_shards = _find_first_shards(models)
    for wanted in DEFAULT_QUANTISATIONS if quantisation is None else (quantisation,):
        # As llama-server's `-hf` has it, but first a whole word (Q4_K is not IQ4_K) that ends the name.
        word, whole = re.escape(wanted), r"(?<![A-Za-z0-9])"
        for pattern in (rf"{whole}{word}(?:-\d{{5}}-of-\d{{5}})?\.gguf$", rf"{whole}{word}[.-]", rf"{word}[.-]"):
            named = re.compile(pattern, re.IGNORECASE)
            found = next((each for each in first_shards if named.search(each)), None)
            if found is not None:
                return _with_projector(every, found)
    if quantisation is None and first_shards:
        return _with_projector(every, first_shards[0])
    have = f"it has {_show(first_shards[:12])}" if first_shards else "it has no GGUF file"
    raise NoSuchFileError(f"it has no quantisation {quantisation}; {have}")


def _with_projector(every: Sequence[str], model: str) -> ChosenFiles:
    shards = _find_shards(every, model)
    folder = model.rpartition("/")[0]
    near = [
        each
        for each in every
        if _is_gguf(each) and _is_projector(each) and (f"{folder}/").startswith(_folder_prefix(each))
    ]
    if not near:
        return ChosenFiles(tuple(shards))
    # The nearest folder and then the nearest precision, as llama-server's `-hf` has it; of two that are as near, the
    # one that is not in bfloat16, which not every GPU computes.
    bits = _read_bits(model)
    projector = min(
        near, key=lambda each: (-each.count("/"), abs(_read_bits(each) - bits), "bf16" in each.lower(), each)
    )
    return ChosenFiles((*shards, projector), projector=projector)


def _folder_prefix(path: str) -> str:
    folder = path.rpartition("/")[0]
    return f"{folder}/" if folder else ""


def are_of_one_set(path: str, other: str) -> bool:
    """Return whether two paths name parts of one split GGUF set, by their names alone."""
    splits = _SPLIT.fullmatch(path), _SPLIT.fullmatch(other)
    return None not in splits and len({(each["stem"], each["count"]) for each in splits if each is not None}) == 1


def _find_shards(every: Sequence[str], path: str) -> list[str]:
    split = _SPLIT.fullmatch(path)
    if split is None:
        return [path]
    count = int(split["count"])
    if count > _MOST_SHARDS:
        raise NoSuchFileError(f"{path!r:.200} is one of {count} parts, which are too many")
    shards = [f"{split['stem']}-{number:05d}-of-{split['count']}.gguf" for number in range(1, count + 1)]
    missing = sorted(set(shards).difference(every))
    if missing:
        raise NoSuchFileError(f"a part of {path!r:.200} is missing: {missing[0]!r:.200}")
    return shards


def _choose_folder(every: Sequence[str], *, include_pickle: bool) -> ChosenFiles:
    top = [each for each in every if "/" not in each and not each.startswith(".")]
    weights = [each for each in top if each.endswith(_WEIGHTS)]
    if any(each.startswith("model") for each in weights):
        # Mistral's repositories have all weights twice.
        weights = [each for each in weights if not each.startswith("consolidated")]
    if not weights and "model.bin" in top and any(each.startswith(_CT2_VOCABULARIES) for each in top):
        weights = ["model.bin"]  # CTranslate2's own format
    if include_pickle:
        weights.extend(each for each in top if each.endswith(_PICKLES) and each not in weights)
    if not weights:
        pickles = [each for each in top if each.endswith(_PICKLES)]
        if pickles:
            names = _show(pickles[:12])
            raise NoSuchFileError(
                f"its weights are pickles, which run code when they are loaded: {names}. `--pickle` takes them"
            )
        raise NoSuchFileError(f"it has no weights that an engine loads; {_list_some(every)}")
    texts = [each for each in every if each.endswith(_TEXTS) and not each.startswith(".") and "/." not in each]
    return ChosenFiles((*weights, *(each for each in texts if each not in weights)), is_folder=True)


def _is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def _is_projector(path: str) -> bool:
    return "mmproj" in path.rpartition("/")[2].lower()


def _is_beside(path: str) -> bool:
    """Whether the file is no model of its own: a projector, a draft model for speculation, or an importance matrix,
    which only quantising reads."""
    name = path.rpartition("/")[2].lower()
    return any(each in name for each in _BESIDE)


def _read_bits(path: str) -> int:
    """Return the bits of a weight that the name of a GGUF file tells; 0: it tells none."""
    split = _SPLIT.fullmatch(path)
    found = _PRECISION.search(split["stem"] if split is not None else path[: -len(".gguf")])
    return 0 if found is None else int(found[1])


def _list_some(paths: Sequence[str]) -> str:
    return f"it has {_show(paths[:12])}{' and more' if len(paths) > 12 else ''}" if paths else "it has no files"


def _show(paths: Sequence[str]) -> str:
    """Return names that a source wrote for a message: short, and without what is not printable."""
    shown = ("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in path) for path in paths)
    return ", ".join(path[:200] for path in shown)


INDEX_TYPES: Final = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    *sorted(INDEX_TYPES),
)
"""What a request for a manifest accepts."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_NAMES: Final = ("org.cncf.model.filepath", "org.opencontainers.image.title")
_ARCHIVES: Final = re.compile(r"(?:tar|gzip|zstd)$", re.ASCII)
_MODELS: Final = frozenset({"application/vnd.ollama.image.model"})
_PROJECTORS: Final = frozenset({"application/vnd.ollama.image.projector", "application/vnd.docker.ai.mmproj"})
_MOST_LAYERS: Final = 2000


class UnusableManifestError(Exception):
    """A manifest cannot be read, or has what Roundhouse does not take. The message says what."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a registry's manifest: one file, whose bytes are a blob with this digest."""

    media_type: str
    digest: str
    """`sha256:` and 64 hexadecimal digits."""
    size: int
    """Bytes."""
    name: str | None
    """Path that the layer's file has; None: none is named."""

    @property
    def is_projector(self) -> bool:
        """Whether the file is a multimodal projector by its type."""
        return self.media_type in _PROJECTORS

    @property
    def is_model(self) -> bool:
        """Whether the file is a GGUF model by its type."""
        return not self.is_projector and (self.media_type in _MODELS or "gguf" in self.media_type)


@dataclass(frozen=True, slots=True)
class RegistryFiles:
    """The layers of a manifest that are fetched, by the path that each gets."""

    chosen: ChosenFiles
    layers: Mapping[str, Layer]
    """By path."""


def parse_manifest(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a manifest or an index. Raises UnusableManifestError if `body` is no JSON object;
    fields are not checked."""
    try:
        found = parse_json(body)
    except UnreadableAnswerError as error:
        raise UnusableManifestError(str(error)) from None
    if not isinstance(found, dict):
        raise UnusableManifestError("it is no object")
    return found


def find_single_manifest(manifest: Mapping[str, Any]) -> str | None:
    """Return the digest of the one manifest that an index names; None: it is no index.

    Raises:
        UnusableManifestError: the index names no manifest, or several (those with an unknown platform do not count), or
            its list is malformed or has more than 2,000 entries.
    """
    if manifest.get("mediaType") not in INDEX_TYPES and "manifests" not in manifest:
        return None
    # Attestations stand in an index beside what they are about, with an unknown platform.
    named = [each for each in _objects(manifest, "manifests") if _platform(each) != "unknown"]
    digests = [digest for each in named if isinstance(digest := each.get("digest"), str) and _DIGEST.fullmatch(digest)]
    if len(digests) != 1:
        raise UnusableManifestError(f"it is an index of {len(named)} images, and not one model")
    return digests[0]


def read_layers(manifest: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of a manifest, in its order. Raises UnusableManifestError if there is no list of layers, it has
    more than 2,000, or a layer has no type, digest or size, or an impossible file name."""
    return [_read_layer(each) for each in _objects(manifest, "layers")]


def choose_layers(layers: Sequence[Layer], stem: str, *, include_pickle: bool) -> RegistryFiles:
    """Choose which layers to fetch, and give each a path. `stem`: beginning of the file names of layers that have none.
    `include_pickle`: whether weights in pickle files are taken, too.

    Raises:
        NoSuchFileError: no layer is a file that an engine loads, or the weights lack their `config.json`.
    """
    named: dict[str, Layer] = {}
    for layer in layers:
        if layer.name is not None and not _ARCHIVES.search(layer.media_type):
            named[_mark_projector(layer.name) if layer.is_projector else layer.name] = layer
    models = [each for each in layers if each.name is None and each.is_model]
    projectors = [each for each in layers if each.name is None and each.is_projector]
    for number, layer in enumerate(models, 1):
        part = f"-{number:05d}-of-{len(models):05d}" if len(models) > 1 else ""
        named[f"{stem}{part}.gguf"] = layer
    for number, layer in enumerate(projectors, 1):
        named[f"mmproj-{stem}{f'-{number}' if len(projectors) > 1 else ''}.gguf"] = layer
    try:
        chosen = choose_files(named, quantisation=None, path=None, include_pickle=include_pickle)
    except NoSuchFileError:
        kinds = ", ".join(sorted({each.media_type for each in layers})[:8]) or "none"
        raise NoSuchFileError(f"it has no model that an engine loads; its layers are {kinds}") from None
    if chosen.is_folder and "config.json" not in chosen.paths:
        raise NoSuchFileError("it has weights without config.json, or with it in an archive, which is not taken apart")
    return RegistryFiles(chosen, {path: named[path] for path in chosen.paths})


def _read_layer(entry: Mapping[str, Any]) -> Layer:
    media_type, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
    if not isinstance(media_type, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise UnusableManifestError("a layer has no type or no digest of SHA-256")
    if not is_file_size(size):
        raise UnusableManifestError("a layer has no size")
    annotations = entry.get("annotations")
    names = [annotations.get(key) for key in _NAMES] if isinstance(annotations, dict) else []
    name = next((each for each in names if isinstance(each, str) and each), None)
    if name is not None and (problem := validate_file_path(name)) is not None:
        raise UnusableManifestError(f"it names a file {name!r:.200}: {problem}")
    return Layer(media_type.partition(";")[0].strip().lower(), digest, size, name)


def _mark_projector(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return name if "mmproj" in file.lower() else f"{folder}{slash}mmproj-{file}"


def _objects(manifest: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = manifest.get(key)
    if not isinstance(found, list) or len(found) > _MOST_LAYERS or not all(isinstance(each, dict) for each in found):
        raise UnusableManifestError(f"its {key} cannot be read")
    return found


def _platform(entry: Mapping[str, Any]) -> object:
    platform = entry.get("platform")
    return platform.get("os") if isinstance(platform, dict) else None
