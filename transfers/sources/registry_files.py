"""Which files a registry's manifest has. Pure.

A layer is one file. Its name is in an annotation, or made of the model's name where it has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.model_reference import validate_file_path
from common.network.bounded_answer import parse_json
from common.network.errors import UnreadableAnswerError
from transfers.sources.base import is_file_size
from transfers.sources.hub_files import ChosenFiles, NoSuchFileError, choose_files

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
