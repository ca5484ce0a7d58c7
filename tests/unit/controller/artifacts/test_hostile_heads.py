"""What the campaign `artifacts` found in heads that are damaged or hostile, each by itself; GGUF heads byte by byte."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest

from controller.artifacts import heads
from controller.artifacts.heads import TYPE_SIZES, ArtifactError, GgufHead, UnreadArtifact, parse_head
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import files_below, read_artifact
from tests.support.gguf_files import gguf_head
from tests.support.mutated_models import SPLIT_NAMES, Files, ct2_model, hub_model, safetensors_file, split_model

SHARD = "model-1.safetensors"
INDEX = "model.safetensors.index.json"


def write_model(folder: Path, files: Files) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def read_reason(root: Path, path: str) -> str:
    artifact = read_artifact(path, files_below(ModelRoots((root,)), path))
    assert isinstance(artifact, UnreadArtifact)
    return artifact.reason


def shard_of(head: Any, data: int = 0) -> bytes:
    text = (head if isinstance(head, str) else json.dumps(head)).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def index_of(name: str) -> bytes:
    return json.dumps({"weight_map": {"a": name}}).encode()


# Which file it is


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", b"[", "is not JSON"),
        ("config.json", b" " * (2**22 + 1), "has more than 4 MiB"),
        (INDEX, b"{}", "has no `weight_map`"),
        (SHARD, b"", "is not a safetensors file"),
        (SHARD, (50).to_bytes(8, "little") + b"{}", "ends within its head: was it copied to the end?"),
    ],
)
def test_the_file_of_a_folder_that_is_wrong_is_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    write_model(tmp_path / "m", hub_model() | {name: content})
    assert read_reason(tmp_path, "m") == f"m/{name} {reason}"


def test_a_damaged_file_of_ctranslate2_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"model.bin": ct2_model()["model.bin"][:30]})
    assert read_reason(tmp_path, "m") == "m/model.bin ends within its head: was it copied to the end?"


@pytest.mark.parametrize(("length", "reason"), [(60, "ends within its head"), (-256, "ends before its tensors do")])
def test_the_file_of_a_split_set_that_is_wrong_is_named(tmp_path: Path, length: int, reason: str) -> None:
    files = split_model()
    write_model(tmp_path / "sub", files | {SPLIT_NAMES[1]: files[SPLIT_NAMES[1]][:length]})
    expected = f"sub/{SPLIT_NAMES[1]} {reason}: was it copied to the end?"
    assert read_reason(tmp_path, f"sub/{SPLIT_NAMES[0]}") == expected


def test_a_file_that_ends_within_its_last_tensor_is_told(tmp_path: Path) -> None:
    whole = gguf_head({"general.architecture": "llama"}, {"a": (8,), "b": (16,)}) + bytes(96)
    for length, reason in ((len(whole), ""), (len(whole) - 1, "a.gguf ends before its tensors do")):
        (tmp_path / "a.gguf").write_bytes(whole[:length])
        artifact = read_artifact("a.gguf", files_below(ModelRoots((tmp_path,)), "a.gguf"))
        assert isinstance(artifact, UnreadArtifact) == bool(reason)
        assert reason in getattr(artifact, "reason", "")


def test_sizes_of_types_are_those_of_gguf() -> None:
    known = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: known[kind] for kind in TYPE_SIZES} == TYPE_SIZES


# Texts of somebody else's in errors


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"'\x1b[2J'"),
        ("a\nb", r"'a\nb'"),
        ("\ud800", r"'\ud800'"),
        ("\u202egnp.exe", r"'\u202egnp.exe'"),
        ("a" * 5000, "a" * 100 + "..."),
        ("über", "über"),
    ],
)
def test_texts_of_a_file_cannot_write_on_a_terminal_or_break_an_answer(tmp_path: Path, text: str, shown: str) -> None:
    write_model(tmp_path / "m", hub_model() | {SHARD: shard_of({text: 1})})
    assert read_reason(tmp_path, "m") == f"m/{SHARD} has no type and offsets of the tensor {shown}: it is damaged"
    write_model(tmp_path / "m", hub_model() | {INDEX: index_of(text)})
    assert read_reason(tmp_path, "m") == f"m has no file {shown}, which its index names"
    (tmp_path / "a.gguf").write_bytes(gguf_head({"general.alignment": text.encode("utf-8", "replace").decode()}))
    assert read_reason(tmp_path, "a.gguf").isprintable()


def test_a_file_s_name_need_not_be_a_text(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"config.json": b"{}"})
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/m/\xff.safetensors")).write_bytes(b"")
    assert read_reason(tmp_path, "m") == r"'m/\udcff.safetensors' is not a safetensors file"


# Numbers

NO_NUMBERS = ("[0, 1e999]", "[0, 10.5]", '["0", "10"]')


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        *((offsets, "has no type and offsets of the tensor a: it is damaged") for offsets in NO_NUMBERS),
        *((offsets, "has wrong offsets of the tensor a: it is damaged") for offsets in ("[5, 4]", "[-5, 4]")),
        *((f"[0, {end}]", "ends before its tensors do: was it copied to the end?") for end in (11, 10**400)),
        ('[0, 10]}, "b": {"dtype": "F16", "data_offsets": [0, 10]', "has tensors that overlap: it is damaged"),
    ],
)
def test_offsets_are_numbers_within_the_file(tmp_path: Path, offsets: str, reason: str) -> None:
    head = f'{{"a": {{"dtype": "BF16", "data_offsets": {offsets}}}}}'
    write_model(tmp_path / "m", {"config.json": b"{}", "model.safetensors": shard_of(head, 10)})
    assert read_reason(tmp_path, "m") == f"m/model.safetensors {reason}"


# Memory


@pytest.mark.parametrize("name", ["config.json", INDEX, SHARD])
def test_a_small_file_takes_little_memory_whatever_it_says(tmp_path: Path, name: str) -> None:
    files = hub_model()
    if name == SHARD:
        files[SHARD] = (99_999_999).to_bytes(8, "little") + files[SHARD][8:]
    write_model(tmp_path / "m", files)
    tracemalloc.start()
    read_artifact("m", files_below(ModelRoots((tmp_path,)), "m"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**18, "64 MiB were set aside for an index, and 100 for a head that is not there"


def test_a_head_that_is_there_is_not_read_beyond_a_bound(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"config.json": b"{}", "model.safetensors": (2**25 + 1).to_bytes(8, "little")})
    with (tmp_path / "m" / "model.safetensors").open("r+b") as file:
        file.truncate(2**30)
    assert read_reason(tmp_path, "m") == "m/model.safetensors has a head of more than 32 MiB"


def test_json_of_very_many_values_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_MOST_VALUES", 1000)
    write_model(tmp_path / "m", hub_model() | {"config.json": b'{"a":[' + b"{}," * 1000 + b"1]}"})
    assert read_reason(tmp_path, "m") == "m/config.json holds more than 1,000 values"
    write_model(tmp_path / "m", hub_model() | {SHARD: safetensors_file({f"t{n}": ("F16", 0) for n in range(200)})})
    assert "holds more than 1,000 values" in read_reason(tmp_path, "m")


def test_what_is_not_kept_of_a_gguf_head_is_not_copied() -> None:
    array = struct.pack("<IIQ", 9, 5, 2**20) + bytes(4 * 2**20)
    text = struct.pack("<IQ", 8, 2**22) + b"a" * 2**22
    parts = (struct.pack("<Q", 1) + name + value for name, value in ((b"a", array), (b"t", text)))
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + b"".join(parts)
    tracemalloc.start()
    head = parse_head(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (head.fields, head.lengths) == ({}, {"a": 2**20, "t": 2**22})
    assert most < 2**16


def head(key: str, value: bytes) -> bytes:
    """A head of one field and no tensor; `value` begins with its type."""
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key.encode() + value


def test_an_array_of_numbers_is_kept_and_one_of_a_type_that_is_not_known_reported() -> None:
    def array(kind: int) -> bytes:
        return struct.pack("<IIQII", 9, kind, 2, 7, 8)

    assert parse_head(head("k", array(4))) == GgufHead({"k": (7, 8)}, {}, {}, 64)
    for kind in (9, 13):
        words = f"^holds an array of the unknown type {kind}: it is damaged, or newer than this reader$"
        with pytest.raises(ArtifactError, match=words):
            parse_head(head("k", array(kind)))
