"""Which files a repository of the hub and a registry's manifest have for a reference."""

from __future__ import annotations

from typing import Any

import pytest

from transfers.sources.model_files import (
    ChosenFiles,
    NoSuchFileError,
    UnusableManifestError,
    choose_files,
    choose_layers,
    find_single_manifest,
    parse_manifest,
    read_layers,
)

GGUF = ("README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-IQ4_K_M.gguf", "m.imatrix", "imatrix_m.gguf")
SHARDS = tuple(f"Q8_0/m-Q8_0-{number:05d}-of-00003.gguf" for number in (1, 2, 3))
TENSORS = ("config.json", "tokenizer.json", "tokenizer.model", "model.safetensors", "README.md", ".gitattributes")


def choose(
    *paths: str, quantisation: str | None = None, path: str | None = None, include_pickle: bool = False
) -> ChosenFiles:
    """Choose from files in reverse order, which must not matter."""
    return choose_files(reversed(paths), quantisation=quantisation, path=path, include_pickle=include_pickle)


@pytest.mark.parametrize(
    ("paths", "named", "chosen"),
    [
        (GGUF, {"quantisation": "q8_0"}, ("m-Q8_0.gguf",)),
        (("m-IQ4_K.gguf", "m-Q4_K.gguf"), {"quantisation": "Q4_K"}, ("m-Q4_K.gguf",)),
        (("m-IQ4_K.gguf",), {"quantisation": "Q4_K"}, ("m-IQ4_K.gguf",)),
        (("m-Q4_K_M-imat.gguf", "m-Q4_K_M.gguf"), {"quantisation": "Q4_K_M"}, ("m-Q4_K_M.gguf",)),
        (("m-Q4_K_M-imat.gguf",), {"quantisation": "Q4_K_M"}, ("m-Q4_K_M-imat.gguf",)),
        (GGUF, {}, ("m-Q4_K_M.gguf",)),
        (("m-Q8_0.gguf", "m-F16.gguf"), {}, ("m-Q8_0.gguf",)),
        (("m-F16.gguf", "n-F16.gguf"), {}, ("m-F16.gguf",)),
        (SHARDS, {"quantisation": "Q8_0"}, SHARDS),
        (SHARDS, {"path": SHARDS[1]}, SHARDS),
        (("mmproj-F16.gguf", *GGUF), {"path": "m-Q8_0.gguf"}, ("m-Q8_0.gguf",)),
    ],
    ids=[
        *("a name in any case", "a whole word first", "a part of a word", "the end of the name", "within the name"),
        "the usual one without a name",
        *("the best without the usual", "the first of equals", "all shards in order", "the shards of a path"),
        "a path alone",
    ],
)
def test_which_gguf_files_are_taken(paths: tuple[str, ...], named: dict[str, Any], chosen: tuple[str, ...]) -> None:
    assert choose(*paths, **named) == ChosenFiles(chosen)


def test_a_missing_shard_is_told() -> None:
    with pytest.raises(NoSuchFileError, match="00002-of-00003"):
        choose(SHARDS[0], SHARDS[2], quantisation="Q8_0")


def test_the_nearest_projector_comes_along_in_half_precision() -> None:
    chosen = choose("mmproj-m-BF16.gguf", "mmproj-m-F16.gguf", "mmproj-m-F32.gguf", *GGUF, quantisation="Q4_K_M")
    assert chosen.projector == "mmproj-m-F16.gguf"
    assert chosen.paths[-1] == chosen.projector
    near = choose("a/m-Q8_0.gguf", "a/mmproj-F32.gguf", "mmproj-F16.gguf", "b/mmproj-F16.gguf", quantisation="Q8_0")
    assert near.projector == "a/mmproj-F32.gguf"


@pytest.mark.parametrize("named", [{"quantisation": "Q2_K"}, {"path": "x.gguf"}])
def test_what_is_not_there_is_told_with_what_is(named: dict[str, Any]) -> None:
    with pytest.raises(NoSuchFileError, match=r"m-Q8_0\.gguf"):
        choose(*GGUF, **named)


def test_a_folder_of_weights_has_its_texts_and_nothing_else() -> None:
    chosen = choose(*TENSORS, "onnx/model.onnx", "extra/notes.json", "original/consolidated.00.pth")
    assert chosen.is_folder
    assert set(chosen.paths) == {*TENSORS, "extra/notes.json"} - {"README.md", ".gitattributes"}
    assert "consolidated.safetensors" not in choose(*TENSORS, "consolidated.safetensors").paths
    assert "model.bin" in choose("config.json", "model.bin", "vocabulary.json").paths, "CTranslate2's is no pickle"


def test_pickles_are_taken_only_when_they_are_asked_for() -> None:
    files = ("config.json", "pytorch_model.bin")
    with pytest.raises(NoSuchFileError, match="run code"):
        choose(*files)
    assert set(choose(*files, include_pickle=True).paths) == set(files)
    assert "pytorch_model.bin" not in choose(*TENSORS, "pytorch_model.bin").paths


@pytest.mark.parametrize("files", [(), ("README.md",), ("config.json", "tokenizer.json")])
def test_a_repository_without_weights_is_told(files: tuple[str, ...]) -> None:
    with pytest.raises(NoSuchFileError, match="no weights"):
        choose(*files)


TITLE = "org.opencontainers.image.title"
FILEPATH = "org.cncf.model.filepath"


def layer(media_type: str, number: int = 1, **annotations: str) -> dict[str, Any]:
    named = {"title": TITLE, "filepath": FILEPATH}
    found: dict[str, Any] = {"mediaType": media_type, "digest": f"sha256:{number:064x}", "size": number}
    return found | ({"annotations": {named[key]: value for key, value in annotations.items()}} if annotations else {})


def choose_of_layers(*layers: dict[str, Any], include_pickle: bool = False) -> tuple[tuple[str, ...], str | None]:
    files = choose_layers(read_layers({"layers": list(layers)}), "m-1b", include_pickle=include_pickle)
    assert tuple(files.layers) == files.chosen.paths
    return files.chosen.paths, files.chosen.projector


def test_layers_of_ollama_have_names_made_of_the_models() -> None:
    assert choose_of_layers(
        layer("application/vnd.ollama.image.projector", 2),
        layer("application/vnd.ollama.image.model"),
        layer("application/vnd.ollama.image.template", 3),
        layer("application/vnd.ollama.image.license", 4),
    ) == (("m-1b.gguf", "mmproj-m-1b.gguf"), "mmproj-m-1b.gguf")


def test_layers_of_docker_are_models_with_or_without_names() -> None:
    assert choose_of_layers(
        layer("application/vnd.docker.ai.gguf.v3"), layer("application/vnd.docker.ai.license", 2)
    ) == (("m-1b.gguf",), None)
    named = choose_of_layers(
        layer("application/vnd.docker.ai.gguf.v3", filepath="g-Q4_K_M.gguf"),
        layer("application/vnd.docker.ai.mmproj", 2, filepath="clip.gguf"),
    )
    assert named == (("g-Q4_K_M.gguf", "mmproj-clip.gguf"), "mmproj-clip.gguf")


def test_several_models_without_names_are_shards_in_their_order() -> None:
    shards = [layer("application/vnd.docker.ai.gguf.v3", number) for number in (1, 2)]
    assert choose_of_layers(*shards)[0] == ("m-1b-00001-of-00002.gguf", "m-1b-00002-of-00002.gguf")


def test_an_artifact_with_a_title_has_that_name() -> None:
    assert choose_of_layers(layer("application/octet-stream", title="x/y.gguf"))[0] == ("x/y.gguf",)
    weights = "application/vnd.cncf.model.weight.v1.raw"
    assert choose_of_layers(layer(weights, title="other", filepath="y.gguf"))[0] == ("y.gguf",)


def test_a_folder_of_weights_comes_whole_with_its_config() -> None:
    weights = "application/vnd.docker.ai.safetensors"
    paths, _ = choose_of_layers(
        layer(weights, 1, filepath="model.safetensors"), layer("application/octet-stream", 2, filepath="config.json")
    )
    assert set(paths) == {"model.safetensors", "config.json"}
    with pytest.raises(NoSuchFileError, match=r"config\.json"):
        choose_of_layers(
            layer(weights, 1, filepath="model.safetensors"), layer("application/vnd.docker.ai.vllm.config.tar", 2)
        )


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [layer("application/vnd.ollama.image.license")],
        [layer("application/vnd.oci.image.layer.v1.tar+gzip", title="m.gguf")],
    ],
)
def test_what_has_no_model_is_told_with_what_it_has(layers: list[dict[str, Any]]) -> None:
    with pytest.raises(NoSuchFileError, match=layers[0]["mediaType"].replace("+", r"\+") if layers else "none"):
        choose_of_layers(*layers)


@pytest.mark.parametrize("name", ["../a.gguf", "/a.gguf", "a/../../b.gguf", "a\\b.gguf", "a\n.gguf"])
def test_a_name_that_leads_elsewhere_makes_the_manifest_unusable(name: str) -> None:
    with pytest.raises(UnusableManifestError):
        choose_of_layers(layer("application/vnd.docker.ai.gguf.v3", filepath=name))


@pytest.mark.parametrize(
    "entry",
    [
        {"digest": "sha256:1"},
        {"digest": "sha512:" + "0" * 64},
        *({"size": size} for size in (-1, "1", True)),
        {"mediaType": 1},
    ],
)
def test_a_layer_without_digest_or_size_makes_the_manifest_unusable(entry: dict[str, Any]) -> None:
    with pytest.raises(UnusableManifestError):
        read_layers({"layers": [layer("a") | entry]})


@pytest.mark.parametrize("layers", [None, {}, [1], [{}], [layer("a")] * 3000])
def test_a_manifest_without_layers_is_unusable(layers: object) -> None:
    with pytest.raises(UnusableManifestError):
        read_layers({} if layers is None else {"layers": layers})


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"[" * 100_000, b"\xff"])
def test_what_is_no_object_is_no_manifest(body: bytes) -> None:
    with pytest.raises(UnusableManifestError):
        parse_manifest(body)


def test_an_index_stands_for_its_only_image() -> None:
    digest = "sha256:" + "a" * 64
    attestation = {"digest": "sha256:" + "b" * 64, "platform": {"os": "unknown"}}
    index = {"manifests": [{"digest": digest, "platform": {"os": "linux"}}, attestation]}
    assert find_single_manifest(index) == digest
    assert find_single_manifest({"layers": []}) is None
    with pytest.raises(UnusableManifestError, match="2 images"):
        find_single_manifest({"manifests": [{"digest": digest}, {"digest": digest}]})
    with pytest.raises(UnusableManifestError, match="0 images"):
        find_single_manifest({"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [attestation]})
