"""Finds the model files of a definition, and reads their heads. The only module of this package that opens files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

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
    find_custom_code,
    head_length,
    measure_tensors,
    measure_tokenizer,
    parse_ct2,
    parse_head,
    shard_names,
    show_text,
    tensor_bytes,
    text_config,
)
from controller.artifacts.model_roots import ModelRoots, path_below, resolve_folder


@dataclass(frozen=True, slots=True)
class LocatedPath:
    """A declared model path on this disk: its models folder and its place in it. The file need not exist."""

    root: Path
    """The models folder that contains the path, with symbolic links resolved."""
    path: Path
    """`root` joined with the rest of the declared path, which may contain symbolic links."""
    searched_roots: tuple[Path, ...]
    """The models folders, resolved, in which the path may lie by its text; all of them for a relative path."""


def locate_path(roots: ModelRoots, path: str) -> LocatedPath:
    """Resolve a model path to a models folder and a place in it, which need not exist. Reads the disk.

    A relative path means the first models folder that has an entry of that name, or the first folder where none has. An
    absolute path means the models folders that contain it, in the same way. Symbolic links below the models folder are
    not followed, so check the result with `is_inside`.

    Raises:
        ArtifactError: the path leads out of the models folders.
    """
    candidates: list[LocatedPath] = []
    for folder in roots.folders:
        root = resolve_folder(folder)
        # An absolute path may begin with the folder as declared, or with its resolved form.
        spellings = (folder.absolute(), root) if PurePosixPath(path).is_absolute() else (root,)
        inner = next((each for spelling in spellings if (each := path_below(str(spelling / path), spelling))), None)
        if inner is not None:
            candidates.append(LocatedPath(root, root / inner, (root,)))
    if not candidates:
        raise ArtifactError(f"is outside {roots.resolve().describe()}")
    located = next((each for each in candidates if os.path.lexists(each.path)), candidates[0])
    return LocatedPath(located.root, located.path, tuple(each.root for each in candidates))


def is_inside(roots: ModelRoots, target: Path) -> bool:
    """Return whether `target`, an absolute path without symbolic links, lies in one of the models folders or is one.
    Reads the disk, for the models folders' own symbolic links."""
    return any(target.is_relative_to(root) for root in roots.resolve().folders)


FIRST_READ: Final = 2**20
"""Bytes that are read first of a GGUF file. A longer head is read again with four times as many."""
LONGEST_GGUF_HEAD: Final = 2**26
"""Maximum bytes of a GGUF head: several times that of a vocabulary of 256,000 tokens with its merges."""
LONGEST_JSON: Final = 2**22
"""Maximum bytes of a `config.json`."""
_LONGEST_INDEX: Final = 2**25
_TOKENIZER: Final = "tokenizer.json"
_CONFIGURATION: Final = "config.json"
"""Suffix of the files in which transformers looks for an `auto_map`: those of the model, its tokenizer and its
processors."""
SPLIT_FILE: Final = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
"""Name of one file of a split set, as llama.cpp's gguf-split makes them."""
_OUTSIDE: Final = ("_data", ".data")
"""Suffixes of the files in which exporters keep weights of an ONNX model."""

Stamp = tuple[tuple[str, int, int], ...]
"""(name, size in bytes, modification time in ns) of each file. Equal stamps mean equal content."""


def list_files(target: Path) -> list[Path]:
    """Return the files of the model at `target`, in no order: a file with its external weights, the set of a split
    file, or all files of a folder and its subfolders. A path where nothing is gives the path itself. Blocks on the
    disk. Raises OSError where a folder cannot be read."""
    if target.is_dir():
        return [file for file in target.rglob("*") if file.is_file()]
    if split := SPLIT_FILE.fullmatch(target.name):
        set_pattern = re.compile(re.escape(split["stem"]) + r"-\d{5}-of-" + split["count"] + r"\.gguf")
        return [file for file in target.parent.iterdir() if set_pattern.fullmatch(file.name)] or [target]
    outside_files = [target.with_name(target.name + suffix) for suffix in _OUTSIDE] if target.suffix == ".onnx" else []
    return [target, *(file for file in outside_files if file.is_file())]


def list_gguf_models(folder: Path) -> list[str]:
    """Return the names of the GGUF files directly in a folder that a model path may name, sorted: of a split set the
    first file alone. Blocks. Raises OSError where the folder cannot be listed."""
    names = sorted(each.name for each in folder.iterdir() if each.name.lower().endswith(".gguf"))
    return [name for name in names if not (split := SPLIT_FILE.fullmatch(name)) or f"{split['stem']}-00001-" in name]


def files_below(roots: ModelRoots, path: str) -> list[Path]:
    """Return the files of the model at `path`, a declared model path: its file, its split set, or all files of its
    folder, sorted by name. A path where nothing is gives that path, and no error. Blocks on the disk.

    Raises:
        ArtifactError: the path leads out of the models folders, or cannot be read.
    """
    located = locate_path(roots, path)
    try:
        leads_outside = not is_inside(roots, located.path.resolve())
        files = [] if leads_outside else sorted(list_files(located.path))
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: a zero byte in the path
        raise ArtifactError(f"cannot be read: {_describe_error(error)}") from None
    if leads_outside:
        raise ArtifactError(f"is a symbolic link that leads out of {roots.resolve().describe()}")
    return files


def find_outside_link(roots: ModelRoots, path: str) -> Path | None:
    """Return the first file or folder of the model at `path`, a declared model path, from which a symbolic link leads
    out of the models folders; None: there is none, as where nothing is at the path. Blocks on the disk: reads the whole
    folder of a model.

    Raises:
        ArtifactError: the path leads out of the models folders by its text.
        OSError: a folder cannot be read.
    """
    located = locate_path(roots, path)
    folders = roots.resolve().folders
    for each in _list_links(located.path):
        target = Path(os.path.realpath(each))
        if not any(target.is_relative_to(folder) for folder in folders):
            return each
    return None


def _list_links(target: Path) -> Iterator[Path]:
    """Yield `target`, the other files of its set, and every symbolic link below it."""
    yield target
    if not target.is_dir():
        yield from list_files(target) if target.parent.is_dir() else ()
        return
    for folder, folders, files in os.walk(target):
        yield from (entry for name in (*folders, *files) if (entry := Path(folder, name)).is_symlink())


def read_stamps(roots: ModelRoots, paths: Iterable[str]) -> Mapping[str, Stamp | None]:
    """Return the stamp of the files at each of these model paths; None where they are missing or cannot be looked at.
    Blocks on the disk; raises nothing."""
    stamps: dict[str, Stamp | None] = {}
    for path in paths:
        stamps[path] = None
        with suppress(ArtifactError, OSError):
            stamps[path] = stamp_of(files_below(roots, path))
    return stamps


def stamp_of(files: Iterable[Path]) -> Stamp:
    """Return the stamp of these files, by which a change is detected: path, size in bytes and modification time in ns
    of each, in their order. Blocks on the disk. Raises ArtifactError where a file is missing, cannot be read or is not
    a regular file."""
    try:
        stats = [(str(file), file.stat()) for file in files]
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read: {_describe_error(error)}") from None
    for name, status in stats:
        if not stat.S_ISREG(status.st_mode):  # to open a pipe is to wait for its writer
            raise ArtifactError(f"has something that is no file: {show_text(name)}")
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in stats)


def read_artifact(path: str, files: list[Path]) -> Artifact:
    """Read the facts of the model at `path` from its `files`, as `files_below` returns them. Blocks on the disk: reads
    the heads of large files, and whole JSON files. Never raises for a bad file: UnreadArtifact names the file that is
    wrong, and how. SizedArtifact is for kinds that are not read."""
    folder = min((file.parent for file in files), key=lambda each: len(each.parts), default=Path())
    size: int | None = None
    try:
        sizes = {name: length for name, length, _ in stamp_of(files)}
        size = sum(sizes.values())
        if path.endswith(".gguf"):
            return build_gguf([(_gguf_head(file, path), sizes[str(file)]) for file in files])
        files_by_name = {file.name: file for file in files if file.parent == folder}
        if "model.bin" in files_by_name and not any(name.endswith(".safetensors") for name in files_by_name):
            with _naming(f"{path}/model.bin"), files_by_name["model.bin"].open("rb") as stream:
                ct2 = parse_ct2(stream, sizes[str(files_by_name["model.bin"])])
            return replace(ct2, size=size, longest_token=_measure_longest_token(files_by_name))
        if "config.json" in files_by_name and any(name.endswith((".safetensors", ".bin")) for name in files_by_name):
            with _naming(f"{path}/config.json"):
                config = text_config(_read(files_by_name["config.json"], LONGEST_JSON))
            weights = _weights(path, files_by_name)
            return HfFolder(size, config, weights, _measure_longest_token(files_by_name))
    except _FileError as error:
        return UnreadArtifact(str(error), size)
    except (ArtifactError, OSError) as error:
        return UnreadArtifact(f"{path} {_describe_error(error)}", size)
    return SizedArtifact(size)


def read_custom_code(folder: Path) -> tuple[str, str] | None:
    """Return the file name and the class of Python code that comes with the model in `folder`, by the `auto_map` of the
    files directly in it whose names end with `config.json`; of several files, the first by name. None means that there
    is none, or that `folder` is no folder. Blocks on the disk.

    Raises ArtifactError, whose message begins with the file's name, where a file cannot be read, has more than 32 MiB,
    or is not a JSON object; OSError where the folder cannot be listed.
    """
    files = folder.iterdir() if folder.is_dir() else ()
    for file in sorted(file for file in files if file.name.endswith(_CONFIGURATION) and file.is_file()):
        with _naming(file.name):
            found = find_custom_code(_read(file, _LONGEST_INDEX))
        if found is not None:
            return show_text(file.name), found
    return None


class _FileError(ArtifactError):
    """Problem with one file. The message begins with the file's name."""


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except (ArtifactError, OSError) as error:
        raise _FileError(f"{show_text(name)} {_describe_error(error)}") from None


def _gguf_head(file: Path, path: str) -> GgufHead:
    length = FIRST_READ
    with _naming(str(Path(path).with_name(file.name))):
        while True:
            data = _read_start(file, length)
            try:
                head = parse_head(data)
            except TooShort:
                if len(data) < length:
                    raise ArtifactError("ends within its head: was it copied to the end?") from None
            else:
                measure_tensors(head, file.stat().st_size)
                return head
            if length >= LONGEST_GGUF_HEAD:
                raise ArtifactError(f"has a head of more than {LONGEST_GGUF_HEAD // 2**20} MiB: it is damaged")
            length *= 4


def _measure_longest_token(files: dict[str, Path]) -> int | None:
    """Read the tokenizer beside the weights. None means unknown; a tokenizer that cannot be read is for its engine to
    report."""
    tokenizer = files.get(_TOKENIZER)
    if tokenizer is None:
        return None
    try:
        return measure_tokenizer(_read(tokenizer, _LONGEST_INDEX))
    except (ArtifactError, OSError, RecursionError):
        return None


def _weights(path: str, files: dict[str, Path]) -> dict[str, int]:
    names = [name for name in files if name.endswith(".safetensors")]
    index = files.get("model.safetensors.index.json")
    if index is not None:
        # Beside them there may be the same weights in their makers' own form.
        with _naming(f"{path}/{index.name}"):
            names = sorted(shard_names(_read(index, _LONGEST_INDEX)))
        if missing_names := [name for name in names if name not in files]:
            raise ArtifactError(f"has no file {show_text(missing_names[0])}, which its index names")
    if not names:
        return {"": sum(file.stat().st_size for name, file in files.items() if name.endswith(".bin"))}
    sums: dict[str, int] = {}
    for name in names:
        with _naming(f"{path}/{name}"):
            lengths = _tensor_bytes(files[name])
        for kind, length in lengths.items():
            sums[kind] = sums.get(kind, 0) + length
    return sums


def _tensor_bytes(file: Path) -> dict[str, int]:
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        length = head_length(stream.read(HEAD_LENGTH), size)
        head = stream.read(length)
    return tensor_bytes(head, size - HEAD_LENGTH - length)


def _read(file: Path, max_bytes: int) -> bytes:
    data = _read_start(file, max_bytes + 1)
    if len(data) > max_bytes:
        raise ArtifactError(f"has more than {max_bytes // 2**20} MiB")
    return data


def _read_start(file: Path, length: int) -> bytes:
    with file.open("rb") as stream:
        # Python sets aside what is asked for before it reads.
        return stream.read(min(length, os.fstat(stream.fileno()).st_size))


def _describe_error(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
