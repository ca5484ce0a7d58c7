"""Repositories of the fake hub: files with their hashes, commits, and small generated ones of every kind."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.gguf_files import write_llama

LFS_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".onnx")
"""Files of these names are kept in the hub's large file storage, which has a SHA-256 of them."""


@dataclass(eq=False)
class HubFile:
    """One file of a commit. Sizes and hashes are those of its first content, whatever it has later."""

    path: str
    content: bytes | Path
    """The bytes, or a file of this machine that has them and does not change."""

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()

    @functools.cached_property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def is_lfs(self) -> bool:
        return self.path.lower().endswith(LFS_SUFFIXES)

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.read()).hexdigest()

    @functools.cached_property
    def pointer(self) -> bytes:
        """What git keeps of a file in the large file storage."""
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @functools.cached_property
    def git_sha1(self) -> str:
        """Id of what git keeps: the content, or the pointer to it."""
        kept = self.pointer if self.is_lfs else self.read()
        return hashlib.sha1(b"blob %d\0" % len(kept) + kept, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        """What the hub's ETag says, without quotation marks."""
        return self.sha256 if self.is_lfs else self.git_sha1


@dataclass
class HubRepository:
    """A repository: its branch `main` is the last of its commits."""

    name: str
    """`USER/REPO`."""
    files: Mapping[str, bytes | Path]
    gated: bool = False
    """Whether the files are for tokens alone; the repository itself is seen by all."""
    private: bool = False
    """Whether nothing of it is seen without a token."""
    downloads: int = 22
    """Of the last 30 days."""
    licence: str = "apache-2.0"
    tags: dict[str, str] = field(default_factory=dict)
    """Commit by tag."""
    commits: dict[str, dict[str, HubFile]] = field(init=False, default_factory=dict)
    """Files by path, by commit."""
    head: str = field(init=False, default="")
    """The commit of `main`."""

    def __post_init__(self) -> None:
        self.commit(self.files)

    def commit(self, files: Mapping[str, bytes | Path]) -> str:
        """Make these files, and no others, the content of `main`. Returns the commit."""
        kept = {path: HubFile(path, content) for path, content in sorted(files.items())}
        seed = json.dumps([self.name, self.head, [(path, file.git_sha1) for path, file in kept.items()]])
        self.head = hashlib.sha1(seed.encode(), usedforsecurity=False).hexdigest()
        self.commits[self.head] = kept
        return self.head

    def swap_content(self, path: str, content: bytes) -> None:
        """Give a file of `main` other bytes, of which no list and no header knows: the hub lies from now on."""
        self.commits[self.head][path].content = content

    def find_commit(self, revision: str) -> str | None:
        """The commit of a branch, tag, commit or beginning of a commit; None: there is none."""
        if revision in ("main", "refs/heads/main", "HEAD"):
            return self.head
        if revision in self.tags:
            return self.tags[revision]
        found = [each for each in self.commits if each.startswith(revision)] if len(revision) >= 7 else []
        return found[0] if len(found) == 1 else None


def read_folder(folder: Path) -> list[HubRepository]:
    """The repositories in a folder, as `USER/REPO/FILES`."""
    return [
        HubRepository(
            repo.relative_to(folder).as_posix(),
            {each.relative_to(repo).as_posix(): each for each in sorted(repo.rglob("*")) if each.is_file()},
        )
        for repo in sorted(folder.glob("*/*"))
        if repo.is_dir()
    ]


@functools.cache
def make_gguf(width: int = 64) -> bytes:
    """A GGUF file whose header can be read. Its weights are zeros, and no engine answers from it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        write_llama(path, width=width, vocabulary=256, context=4096)
        return path.read_bytes()


def make_safetensors(seed: int, size: int) -> bytes:
    """A safetensors file with one tensor of `size` bytes."""
    header = json.dumps({f"weight_{seed}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(size)


def make_repositories() -> list[HubRepository]:
    """Small repositories of every kind, the same each time."""
    chance = random.Random(22)

    def noise() -> bytes:
        return b"GGUF" + chance.randbytes(200_000)

    shards = {f"Q8_0/split-Q8_0-{number:05d}-of-00003.gguf": noise() for number in (1, 2, 3)}
    texts = {"config.json": b'{"model_type": "llama"}\n', "README.md": b"# A model\n"}
    return [
        HubRepository(
            "tiny/llama-GGUF",
            {
                "llama-BF16.gguf": make_gguf(128),
                "llama-Q4_K_M.gguf": make_gguf(64),
                "llama-Q8_0.gguf": make_gguf(96),
                "llama-imatrix.gguf": noise(),
                **texts,
            },
        ),
        HubRepository("tiny/split-GGUF", {**shards, **texts}),
        HubRepository(
            "tiny/vision-GGUF",
            {
                "mmproj-vision-BF16.gguf": noise(),
                "mmproj-vision-F16.gguf": noise(),
                "vision-Q4_K_M.gguf": make_gguf(64),
                "vision-Q8_0.gguf": make_gguf(96),
            },
        ),
        HubRepository("tiny/folder", _make_folder() | texts),
        HubRepository("tiny/pickle", {"pytorch_model.bin": noise(), **texts}),
        HubRepository("tiny/gated-GGUF", {"gated-Q4_K_M.gguf": make_gguf(64)}, gated=True),
        HubRepository("tiny/private-GGUF", {"private-Q4_K_M.gguf": make_gguf(64)}, private=True),
    ]


def _make_folder() -> dict[str, bytes | Path]:
    parts = {f"model-{number:05d}-of-00002.safetensors": make_safetensors(number, 50_000) for number in (1, 2)}
    weights = {f"weight_{number}": name for number, name in enumerate(parts, 1)}
    return {
        **parts,
        "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weights}).encode(),
        "generation_config.json": b"{}\n",
        "tokenizer.json": json.dumps({"version": "1.0"}).encode(),
        "original/notes.txt": b"notes\n",
        "pytorch_model.bin": b"\x80\x04.",
    }
