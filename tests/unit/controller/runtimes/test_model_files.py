"""What the heads of model files say: GGUF files, and folders of the Hugging Face hub."""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.artifacts import read
from controller.artifacts.heads import (
    Artifact,
    ArtifactError,
    Ct2,
    Gguf,
    HfFolder,
    SizedArtifact,
    TooShort,
    UnreadArtifact,
    build_gguf,
    parse_head,
    tensor_bytes,
)
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import files_below, read_artifact
from controller.engines.memory import LlamaLoad, Prediction, Unpredicted, predict_llama
from tests.support.campaign import campaign_count
from tests.support.gguf_files import gguf_head, write_llama

TENSORS = {
    "token_embd.weight": (100, 8),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.ffn_up.weight": (16, 8),
    "blk.1.attn_q.weight": (8, 8),
    "output_norm.weight": (8,),
    "rope_freqs.weight": (8,),
}
FIELDS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 8,
    "llama.context_length": 512,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": [1, 2],
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": [f"token {number}" for number in range(100)],
    "tokenizer.ggml.scores": list(range(5000)),
}
HEAD = gguf_head(FIELDS, TENSORS)
DATA = 4 * (800 + 64 + 128 + 64 + 8 + 8)


def read_below(root: Path, path: str) -> Artifact:
    return read_artifact(path, files_below(ModelRoots((root,)), path))


def read_gguf(root: Path, path: str = "a.gguf") -> Gguf:
    facts = read_below(root, path)
    assert isinstance(facts, Gguf)
    return facts


def unread(root: Path, path: str) -> UnreadArtifact:
    facts = read_below(root, path)
    assert isinstance(facts, UnreadArtifact)
    return facts


def test_a_gguf_file_s_head(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(HEAD + bytes(DATA))
    facts = read_gguf(tmp_path)
    assert (facts.architecture, facts.size, facts.vocabulary) == ("llama", len(HEAD) + DATA, 100)
    assert (facts.embedding, facts.blocks, facts.output, facts.rest) == (3200, (768, 256), 32, 32)
    assert (facts.weights, facts.has_tied_embeddings) == (DATA, True)
    assert (facts.get_number("block_count"), facts.get_numbers("attention.head_count_kv")) == (2, (1, 2))
    assert facts.get_number("attention.head_count_kv") == 2
    assert facts.get_number("rope.freq_base", 7) == 7, "no whole number"
    assert facts.get_number("missing") is None
    assert not [key for key in facts.fields if key.startswith("tokenizer.")]


def test_what_an_onnx_file_keeps_outside_counts(tmp_path: Path) -> None:
    for name, size in (("a.onnx", 10), ("a.onnx_data", 200), ("a.onnx.data", 3000), ("b.onnx_data", 40000)):
        (tmp_path / name).write_bytes(bytes(size))
    assert read_below(tmp_path, "a.onnx") == SizedArtifact(3210)
    (tmp_path / "a.onnx_data").unlink()
    (tmp_path / "a.onnx.data").unlink()
    assert read_below(tmp_path, "a.onnx") == SizedArtifact(10)


def test_the_files_of_a_split_set_are_one_model(tmp_path: Path) -> None:
    names = list(TENSORS)
    for number, part in enumerate((names[:2], names[2:3], names[3:])):
        fields = {"split.count": 3, "split.no": number} | (FIELDS if number == 0 else {})
        tensors = {name: TENSORS[name] for name in part}
        data = sum(4 * rows * (columns[0] if columns else 1) for rows, *columns in tensors.values())
        (tmp_path / f"a-0000{number + 1}-of-00003.gguf").write_bytes(gguf_head(fields, tensors) + bytes(data))
    facts = read_gguf(tmp_path, "a-00001-of-00003.gguf")
    assert (facts.weights, facts.blocks, facts.embedding) == (DATA, (768, 256), 3200)
    assert facts.size == sum(file.stat().st_size for file in tmp_path.iterdir())
    (tmp_path / "a-00002-of-00003.gguf").unlink()
    short = unread(tmp_path, "a-00001-of-00003.gguf")
    assert short.reason == "a-00001-of-00003.gguf is one of 3 files, of which 2 are here"


def test_a_written_file_adds_up(tmp_path: Path) -> None:
    write_llama(tmp_path / "a.gguf", layers=3, width=64, heads=4, kv_heads=2, vocabulary=512, inner=96, tied=False)
    facts = read_gguf(tmp_path)
    block = 2 * (64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3) + 4 * (64 + 64)
    assert facts.blocks == (block, block, block)
    assert (facts.embedding, facts.output) == (2 * 512 * 64, 2 * 512 * 64 + 4 * 64)
    assert facts.has_tied_embeddings is False


def test_a_large_vocabulary_takes_no_seconds(tmp_path: Path) -> None:
    words = [f"word number {number}" for number in range(256_000)]
    fields = FIELDS | {"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": words}
    (tmp_path / "a.gguf").write_bytes(gguf_head(fields, TENSORS) + bytes(DATA))
    began = time.process_time()
    assert read_gguf(tmp_path).weights == DATA
    assert time.process_time() - began < 2, "0.3 s on two slow cores"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends within its head"),
        (b"GGML" + bytes(100), "is not a GGUF file"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), "version 9"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16, "18446744073709551615 tensors: it is damaged"),
        (HEAD[:200], "ends within its head"),
        (HEAD, "ends before its tensors do"),
        (gguf_head({"a": 1}), "does not name its architecture"),
        (gguf_head({"general.alignment": 0, "general.architecture": "a"}), "alignment is 0"),
    ],
)
def test_what_is_no_gguf_file_is_told(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    facts = unread(tmp_path, "a.gguf")
    assert reason in facts.reason
    assert facts.reason.startswith("a.gguf ")
    assert facts.size == len(content)


def test_a_head_without_end_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LONGEST_GGUF_HEAD", 2**21)
    endless = b"GGUF" + (3).to_bytes(4, "little") + (1).to_bytes(8, "little") + (1).to_bytes(8, "little")
    endless += (1).to_bytes(8, "little") + b"a" + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    with (tmp_path / "a.gguf").open("wb") as file:
        file.write(endless + (2**32).to_bytes(8, "little"))
        file.truncate(2**30)
    facts = unread(tmp_path, "a.gguf")
    assert "has a head of more than 2 MiB" in facts.reason


@settings(max_examples=campaign_count(40, 2_000))
@given(st.randoms(use_true_random=False), st.integers(1, 20))
def test_damage_is_an_error_and_never_a_crash(chance: random.Random, count: int) -> None:
    data = bytearray(HEAD)
    for _ in range(count):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with contextlib.suppress(ArtifactError, TooShort):
        facts = build_gguf([(parse_head(bytes(data)), len(HEAD) + DATA)])
        assert isinstance(predict_llama(facts, LlamaLoad(gpus=2)), Prediction | Unpredicted)


def safetensors(path: Path, tensors: dict[str, tuple[str, int]], **extra: Any) -> None:
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}, **extra}
    offset = 0
    for name, (kind, length) in tensors.items():
        head[name] = {"dtype": kind, "shape": [length], "data_offsets": [offset, offset + length]}
        offset += length
    data = json.dumps(head).encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data + bytes(offset))


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    (folder / "pooling").mkdir(parents=True)
    (folder / "pooling" / "config.json").write_text('{"hidden_size": 3}')
    inner = {"hidden_size": 64, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "hidden_size": 1, "text_config": inner}))
    safetensors(folder / "model-1.safetensors", {"a": ("BF16", 100), "b": ("I32", 40)})
    safetensors(folder / "model-2.safetensors", {"c": ("BF16", 10)})
    return tmp_path


def test_a_folder_of_the_hub(hub: Path) -> None:
    facts = read_below(hub, "m")
    assert isinstance(facts, HfFolder)
    assert facts.weights == {"bf16": 110, "i32": 40}
    assert (facts.config["hidden_size"], facts.config["model_type"]) == (64, "gemma3")
    assert facts.size == sum(file.stat().st_size for file in hub.rglob("*") if file.is_file())


def test_an_index_says_which_files_count(hub: Path) -> None:
    safetensors(hub / "m" / "consolidated.safetensors", {"a": ("BF16", 100), "b": ("I32", 40)})
    index = hub / "m" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "c": "model-2.safetensors"}}))
    facts = read_below(hub, "m")
    assert isinstance(facts, HfFolder)
    assert facts.weights == {"bf16": 110, "i32": 40}
    (hub / "m" / "model-2.safetensors").unlink()
    assert unread(hub, "m").reason == "m has no file model-2.safetensors, which its index names"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", b"[1]", "is not a JSON object"),
        ("config.json", b"[" * 100_000, "is not JSON"),
        ("config.json", b"\xff\xfe", "is not JSON"),
        ("model-1.safetensors", b"", "is not a safetensors file"),
        ("model-1.safetensors", b"\xff" * 20, "is not a safetensors file"),
        ("model-1.safetensors", (50).to_bytes(8, "little") + b"{}", "ends within its head"),
        ("model-1.safetensors", (9).to_bytes(8, "little") + b'{"a": {}}', "no type and offsets of the tensor a"),
        ("model.safetensors.index.json", b"{}", "has no `weight_map`"),
    ],
)
def test_what_is_wrong_in_a_folder_is_told(hub: Path, name: str, content: bytes, reason: str) -> None:
    (hub / "m" / name).write_bytes(content)
    facts = unread(hub, "m")
    assert reason in facts.reason
    assert facts.size is not None


@settings(max_examples=campaign_count(40, 2_000))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "dtype", "data_offsets"]), inner, max_size=3)
        ),
    )
)
def test_no_head_of_safetensors_crashes(value: Any) -> None:
    with contextlib.suppress(ArtifactError):
        assert all(length >= 0 for length in tensor_bytes(json.dumps({"t": value}).encode(), 10).values())


def test_other_files_have_a_size(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(bytes(5))
    assert read_below(tmp_path, "a.onnx") == SizedArtifact(5)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is outside the models folder"):
        files_below(ModelRoots((tmp_path,)), "../a")
    with pytest.raises(ArtifactError, match="cannot be read: embedded null byte"):
        files_below(ModelRoots((tmp_path,)), "a\0")
    assert unread(tmp_path, "gone.gguf").reason.startswith("gone.gguf cannot be read: ")
    os.mkfifo(tmp_path / "a.gguf")
    assert "is no file" in unread(tmp_path, "a.gguf").reason


def ct2_file(variables: list[tuple[str, tuple[int, ...], int, int]], version: int = 6) -> bytes:
    """`model.bin` as CTranslate2's converter writes it: names, shapes, numbers of types, bytes."""
    parts = [struct.pack("<I", version), ct2_text("TransformerDecoderModelSpec"), struct.pack("<II", 8, len(variables))]
    for name, shape, kind, length in variables:
        parts.append(
            ct2_text(name) + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, length) + bytes(length)
        )
    return b"".join(parts) + struct.pack("<I", 0)


def ct2_text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def test_a_ctranslate2_folder(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    content = ct2_file(
        [("a/weight", (4, 8), 4, 64), ("a/bias", (4,), 0, 16), ("b/weight", (8, 8), 1, 64), ("n", (), 3, 4)]
    )
    file = tmp_path / "m" / "model.bin"
    file.write_bytes(content)
    assert read_below(tmp_path, "m") == Ct2(len(content) + 2, {"f16": 64, "i8": 64}, {"f32": 16, "i32": 4})
    for wrong, words in (
        (content[:-80], "ends before its variables do"),
        (content[:30], "ends within its head"),
        (ct2_file([], version=99), "of a version that can be read"),
        (content[:38] + b"\xff" * 20, "4294967295 variables"),
    ):
        file.write_bytes(wrong)
        assert words in unread(tmp_path, "m").reason
