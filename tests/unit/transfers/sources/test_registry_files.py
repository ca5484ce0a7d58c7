"""Which files a registry's manifest has."""

from __future__ import annotations

from typing import Any

import pytest

from transfers.sources.hub_files import NoSuchFileError
from transfers.sources.registry_files import (
    UnusableManifestError,
    choose_layers,
    find_single_manifest,
    parse_manifest,
    read_layers,
)

TITLE = "org.opencontainers.image.title"
FILEPATH = "org.cncf.model.filepath"


def layer(media_type: str, number: int = 1, **annotations: str) -> dict[str, Any]:
    named = {"title": TITLE, "filepath": FILEPATH}
    found: dict[str, Any] = {"mediaType": media_type, "digest": f"sha256:{number:064x}", "size": number}
    return found | ({"annotations": {named[key]: value for key, value in annotations.items()}} if annotations else {})


def choose(*layers: dict[str, Any], include_pickle: bool = False) -> tuple[tuple[str, ...], str | None]:
    files = choose_layers(read_layers({"layers": list(layers)}), "m-1b", include_pickle=include_pickle)
    assert tuple(files.layers) == files.chosen.paths
    return files.chosen.paths, files.chosen.projector


def test_layers_of_ollama_have_names_made_of_the_models() -> None:
    assert choose(
        layer("application/vnd.ollama.image.projector", 2),
        layer("application/vnd.ollama.image.model"),
        layer("application/vnd.ollama.image.template", 3),
        layer("application/vnd.ollama.image.license", 4),
    ) == (("m-1b.gguf", "mmproj-m-1b.gguf"), "mmproj-m-1b.gguf")


def test_layers_of_docker_are_models_with_or_without_names() -> None:
    assert choose(layer("application/vnd.docker.ai.gguf.v3"), layer("application/vnd.docker.ai.license", 2)) == (
        ("m-1b.gguf",),
        None,
    )
    named = choose(
        layer("application/vnd.docker.ai.gguf.v3", filepath="g-Q4_K_M.gguf"),
        layer("application/vnd.docker.ai.mmproj", 2, filepath="clip.gguf"),
    )
    assert named == (("g-Q4_K_M.gguf", "mmproj-clip.gguf"), "mmproj-clip.gguf")


def test_several_models_without_names_are_shards_in_their_order() -> None:
    gguf = "application/vnd.docker.ai.gguf.v3"
    assert choose(layer(gguf, 1), layer(gguf, 2))[0] == ("m-1b-00001-of-00002.gguf", "m-1b-00002-of-00002.gguf")


def test_an_artifact_with_a_title_has_that_name() -> None:
    assert choose(layer("application/octet-stream", title="x/y.gguf"))[0] == ("x/y.gguf",)
    weights = "application/vnd.cncf.model.weight.v1.raw"
    assert choose(layer(weights, title="other", filepath="y.gguf"))[0] == ("y.gguf",)


def test_a_folder_of_weights_comes_whole_with_its_config() -> None:
    weights = "application/vnd.docker.ai.safetensors"
    paths, _ = choose(
        layer(weights, 1, filepath="model.safetensors"), layer("application/octet-stream", 2, filepath="config.json")
    )
    assert set(paths) == {"model.safetensors", "config.json"}
    with pytest.raises(NoSuchFileError, match=r"config\.json"):
        choose(layer(weights, 1, filepath="model.safetensors"), layer("application/vnd.docker.ai.vllm.config.tar", 2))


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
        choose(*layers)


@pytest.mark.parametrize("name", ["../a.gguf", "/a.gguf", "a/../../b.gguf", "a\\b.gguf", "a\n.gguf"])
def test_a_name_that_leads_elsewhere_makes_the_manifest_unusable(name: str) -> None:
    with pytest.raises(UnusableManifestError):
        choose(layer("application/vnd.docker.ai.gguf.v3", filepath=name))


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"mediaType": "a", "digest": "sha256:1", "size": 1},
        {"mediaType": "a", "digest": "sha512:" + "0" * 64, "size": 1},
        {"mediaType": "a", "digest": "sha256:" + "0" * 64, "size": -1},
        {"mediaType": "a", "digest": "sha256:" + "0" * 64, "size": "1"},
        {"mediaType": "a", "digest": "sha256:" + "0" * 64, "size": True},
        {"mediaType": 1, "digest": "sha256:" + "0" * 64, "size": 1},
    ],
)
def test_a_layer_without_digest_or_size_makes_the_manifest_unusable(entry: dict[str, Any]) -> None:
    with pytest.raises(UnusableManifestError):
        read_layers({"layers": [entry]})


@pytest.mark.parametrize("manifest", [{}, {"layers": {}}, {"layers": [1]}, {"layers": [{}] * 3000}])
def test_a_manifest_without_layers_is_unusable(manifest: dict[str, Any]) -> None:
    with pytest.raises(UnusableManifestError):
        read_layers(manifest)


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
