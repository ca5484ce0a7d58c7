"""Which files of a repository a reference means."""

from __future__ import annotations

import pytest

from transfers.sources.hub_files import ChosenFiles, NoSuchFileError, choose_files

GGUF = ("README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-IQ4_K_M.gguf", "m.imatrix", "imatrix_m.gguf")
SHARDS = tuple(f"Q8_0/m-Q8_0-{number:05d}-of-00003.gguf" for number in (1, 2, 3))
TENSORS = ("config.json", "tokenizer.json", "tokenizer.model", "model.safetensors", "README.md", ".gitattributes")


def choose(
    *paths: str, quantisation: str | None = None, path: str | None = None, include_pickle: bool = False
) -> ChosenFiles:
    """Choose from files in reverse order, which must not matter."""
    return choose_files(reversed(paths), quantisation=quantisation, path=path, include_pickle=include_pickle)


def test_a_named_quantisation_is_taken_in_any_case() -> None:
    assert choose(*GGUF, quantisation="q8_0").paths == ("m-Q8_0.gguf",)


def test_a_quantisation_is_a_whole_word_where_there_is_one() -> None:
    assert choose("m-IQ4_K.gguf", "m-Q4_K.gguf", quantisation="Q4_K").paths == ("m-Q4_K.gguf",)
    assert choose("m-IQ4_K.gguf", quantisation="Q4_K").paths == ("m-IQ4_K.gguf",)


def test_without_a_name_the_usual_quantisation_is_taken() -> None:
    assert choose(*GGUF).paths == ("m-Q4_K_M.gguf",)
    assert choose("m-Q8_0.gguf", "m-F16.gguf").paths == ("m-Q8_0.gguf",)
    assert choose("m-F16.gguf", "n-F16.gguf").paths == ("m-F16.gguf",)


def test_all_shards_come_with_the_first_one_first() -> None:
    assert choose(*SHARDS, quantisation="Q8_0").paths == SHARDS
    assert choose(*SHARDS, path=SHARDS[1]).paths == SHARDS


def test_a_missing_shard_is_told() -> None:
    with pytest.raises(NoSuchFileError, match="00002-of-00003"):
        choose(SHARDS[0], SHARDS[2], quantisation="Q8_0")


def test_the_nearest_projector_comes_along_in_half_precision() -> None:
    chosen = choose("mmproj-m-BF16.gguf", "mmproj-m-F16.gguf", "mmproj-m-F32.gguf", *GGUF, quantisation="Q4_K_M")
    assert chosen.projector == "mmproj-m-F16.gguf"
    assert chosen.paths[-1] == chosen.projector
    near = choose("a/m-Q8_0.gguf", "a/mmproj-F32.gguf", "mmproj-F16.gguf", "b/mmproj-F16.gguf", quantisation="Q8_0")
    assert near.projector == "a/mmproj-F32.gguf"


def test_a_file_by_its_path_is_taken_alone() -> None:
    assert choose("mmproj-F16.gguf", *GGUF, path="m-Q8_0.gguf") == ChosenFiles(("m-Q8_0.gguf",))


@pytest.mark.parametrize("named", [{"quantisation": "Q2_K"}, {"path": "x.gguf"}])
def test_what_is_not_there_is_told_with_what_is(named: dict[str, str]) -> None:
    with pytest.raises(NoSuchFileError, match=r"m-Q8_0\.gguf"):
        choose(*GGUF, **named)  # type: ignore[arg-type]


def test_a_folder_of_weights_has_its_texts_and_nothing_else() -> None:
    chosen = choose(*TENSORS, "onnx/model.onnx", "extra/notes.json", "original/consolidated.00.pth")
    assert chosen.is_folder
    assert set(chosen.paths) == {*TENSORS, "extra/notes.json"} - {"README.md", ".gitattributes"}


def test_weights_that_are_there_twice_come_once() -> None:
    assert "consolidated.safetensors" not in choose(*TENSORS, "consolidated.safetensors").paths


def test_pickles_are_taken_only_when_they_are_asked_for() -> None:
    files = ("config.json", "pytorch_model.bin")
    with pytest.raises(NoSuchFileError, match="run code"):
        choose(*files)
    assert set(choose(*files, include_pickle=True).paths) == set(files)
    assert "pytorch_model.bin" not in choose(*TENSORS, "pytorch_model.bin").paths


def test_a_folder_of_ctranslate2_is_no_pickle() -> None:
    assert "model.bin" in choose("config.json", "model.bin", "vocabulary.json").paths


@pytest.mark.parametrize("files", [(), ("README.md",), ("config.json", "tokenizer.json")])
def test_a_repository_without_weights_is_told(files: tuple[str, ...]) -> None:
    with pytest.raises(NoSuchFileError, match="no weights"):
        choose(*files)
