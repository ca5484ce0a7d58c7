"""The head of a model that is not here says what the head of the same model says that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.downloads import Inspection, RangeOrder, RemoteFile
from contract.errors import RoundhouseError
from controller.artifacts.heads import Gguf, HfFolder, SizedArtifact, UnreadArtifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import FIRST_READ, files_below, read_artifact
from controller.downloads.forecast import read_remote_artifacts
from tests.support.gguf_files import write_llama
from tests.support.mutated_models import hub_model, split_model

PINNED = "hf:user/repo@abc"


class Source:
    """Files that can be read in parts."""

    def __init__(self, files: dict[str, bytes], failure: RoundhouseError | None = None) -> None:
        self.files = files
        self.failure = failure
        self.ranges: list[RangeOrder] = []

    async def read_range(self, order: RangeOrder) -> bytes:
        if self.failure is not None:
            raise self.failure
        assert order.reference == PINNED
        self.ranges.append(order)
        return self.files[order.path][order.start : order.start + order.length]

    def inspection(self, main: str, projector: str | None = None) -> Inspection:
        files = [RemoteFile(path=path, target=path, size=len(data)) for path, data in self.files.items()]
        total = sum(each.size for each in files)
        return Inspection(
            reference="hf:user/repo", pinned=PINNED, files=files, main=main, projector=projector, total_bytes=total,
            missing_bytes=total, free_bytes=10**12,
        )  # fmt: skip


def local(folder: Path, files: dict[str, bytes], main: str) -> object:
    """What is read of the same files on a disk."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return read_artifact(main, files_below(ModelRoots((folder,)), main))


async def test_a_long_head_is_read_in_parts_and_no_more_than_it(tmp_path: Path) -> None:
    write_llama(tmp_path / "long.gguf", vocabulary=90_000, width=64, heads=2)
    files = {"u/r/long.gguf": (tmp_path / "long.gguf").read_bytes()}
    source = Source(files)
    found = await read_remote_artifacts(source, source.inspection("u/r/long.gguf"))
    here = local(tmp_path, files, "u/r/long.gguf")
    assert isinstance(here, Gguf)
    assert found == {"u/r/long.gguf": here}
    read = sum(order.length for order in source.ranges)
    assert len(source.ranges) > 1
    assert read < len(files["u/r/long.gguf"])
    assert [order.start for order in source.ranges][:2] == [0, FIRST_READ]


async def test_a_split_model_with_a_projector(tmp_path: Path) -> None:
    write_llama(tmp_path / "p.gguf", layers=1)
    files = {f"u/r/{name}": data for name, data in split_model().items()}
    main = min(files)
    files |= {"u/r/mmproj-F16.gguf": (tmp_path / "p.gguf").read_bytes(), "u/r/README.md": b"x"}
    source = Source(files)
    found = await read_remote_artifacts(source, source.inspection(main, "u/r/mmproj-F16.gguf"))
    assert found[main] == local(tmp_path, files, main)
    assert isinstance(found[main], Gguf)
    assert isinstance(found["u/r/mmproj-F16.gguf"], Gguf)


async def test_a_folder_of_safetensors(tmp_path: Path) -> None:
    files = {f"u/r/{name}": data for name, data in hub_model().items()}
    source = Source(files)
    found = (await read_remote_artifacts(source, source.inspection("u/r")))["u/r"]
    here = local(tmp_path, files, "u/r")
    assert isinstance(found, HfFolder)
    assert isinstance(here, HfFolder)
    assert (found.size, found.config, found.weights) == (here.size, here.config, here.weights)


@pytest.mark.parametrize(
    ("files", "main", "words"),
    [
        ({"m.gguf": b"no model"}, "m.gguf", "is not a GGUF file"),
        ({"m.gguf": b"GGUF\x03"}, "m.gguf", "ends within its head"),
        ({"u/config.json": b"[]", "u/a.safetensors": b""}, "u", "is not a JSON object"),
        ({"u/config.json": b"{}", "u/a.safetensors": b"\x05"}, "u", "is not a safetensors file"),
        ({"other.gguf": b""}, "m.gguf", "lists no such file"),
    ],
)
async def test_what_is_no_model_is_said(files: dict[str, bytes], main: str, words: str) -> None:
    source = Source(files)
    found = (await read_remote_artifacts(source, source.inspection(main)))[main]
    assert isinstance(found, UnreadArtifact)
    assert words in found.reason


async def test_a_source_that_fails_is_a_reason_and_no_error() -> None:
    source = Source({"m.gguf": b"GGUF"}, RoundhouseError("source_unavailable", "It does not answer."))
    found = (await read_remote_artifacts(source, source.inspection("m.gguf")))["m.gguf"]
    assert found == UnreadArtifact("m.gguf: It does not answer", 4)


async def test_of_other_files_the_size_alone_is_known() -> None:
    source = Source({"u/model.onnx": b"12345", "u/config.json": b"{}"})
    assert await read_remote_artifacts(source, source.inspection("u/model.onnx")) == {"u/model.onnx": SizedArtifact(5)}
    assert not source.ranges
