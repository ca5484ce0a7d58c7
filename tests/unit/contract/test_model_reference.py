"""References to models: what is one, what it names, and the name of a model that is made of one."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from contract.desired import ModelName
from contract.model_reference import (
    HubReference,
    InvalidReferenceError,
    LocalReference,
    ModelReference,
    RegistryReference,
    UrlReference,
    parse_reference,
    suggest_model_name,
    validate_file_path,
)

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"
PAGES = (
    *("hf://u/r", "huggingface.co/u/r", "https://huggingface.co/u/r", "http://www.huggingface.co/u/r/"),
    *("https://huggingface.co/u/r/tree/main", "https://huggingface.co/u/r?library=x", "https://hf.co/u/r#files"),
)
"""Addresses of one repository."""


@pytest.mark.parametrize(
    ("text", "reference", "canonical"),
    [
        ("ggml-org/gemma", HubReference("ggml-org/gemma"), "hf:ggml-org/gemma"),
        ("hf:u/r:Q4_K_M", HubReference("u/r", "Q4_K_M"), "hf:u/r:Q4_K_M"),
        ("u/r:Q8_0@main", HubReference("u/r", "Q8_0", None, "main"), "hf:u/r:Q8_0@main"),
        ("u/r@refs/pr/1", HubReference("u/r", None, None, "refs/pr/1"), "hf:u/r@refs/pr/1"),
        ("u/r/a b/c.gguf@v1", HubReference("u/r", None, "a b/c.gguf", "v1"), "hf:u/r/a b/c.gguf@v1"),
        ("ollama:qwen3", RegistryReference(None, "qwen3"), "ollama:qwen3:latest"),
        ("ollama:me/m:8b", RegistryReference(None, "me/m", "8b"), "ollama:me/m:8b"),
        ("ollama:m:8b@" + DIGEST, RegistryReference(None, "m", "8b", DIGEST), f"ollama:m:8b@{DIGEST}"),
        ("oci:Reg.io:5000/a/b:1", RegistryReference("reg.io:5000", "a/b", "1"), "oci:reg.io:5000/a/b:1"),
        (f"oci:g.io/a@{DIGEST}", RegistryReference("g.io", "a", "latest", DIGEST), f"oci:g.io/a:latest@{DIGEST}"),
        (f"https://h/a#sha256={HEX.upper()}", UrlReference("https://h/a", HEX), f"https://h/a#sha256={HEX}"),
        (f"http://h:1/a?b=c#sha256={HEX}", UrlReference("http://h:1/a?b=c", HEX), f"http://h:1/a?b=c#sha256={HEX}"),
        ("hf.co/u/r", HubReference("u/r"), "hf:u/r"),
        ("hf.co/u/r:Q4_K_M", HubReference("u/r", "Q4_K_M"), "hf:u/r:Q4_K_M"),
        *((text, HubReference("u/r"), "hf:u/r") for text in PAGES),
        (
            "https://huggingface.co/u/r/blob/main/a%20b/c.gguf",
            HubReference("u/r", None, "a b/c.gguf"),
            "hf:u/r/a b/c.gguf",
        ),
        (
            "https://hf.co/u/r/resolve/v1/c.gguf?download=true",
            HubReference("u/r", None, "c.gguf", "v1"),
            "hf:u/r/c.gguf@v1",
        ),
        (
            "https://huggingface.co/u/r/tree/refs%2Fpr%2F1",
            HubReference("u/r", None, None, "refs/pr/1"),
            "hf:u/r@refs/pr/1",
        ),
        ("hf://u/r@v1/a/c.gguf", HubReference("u/r", None, "a/c.gguf", "v1"), "hf:u/r/a/c.gguf@v1"),
        ("hf://u/r:Q8_0", HubReference("u/r", "Q8_0"), "hf:u/r:Q8_0"),
        ("https://ollama.com/library/qwen3:8b", RegistryReference(None, "qwen3", "8b"), "ollama:qwen3:8b"),
        ("ollama.com/me/m", RegistryReference(None, "me/m"), "ollama:me/m:latest"),
        ("registry.ollama.ai/library/m:8b", RegistryReference(None, "m", "8b"), "ollama:m:8b"),
        (
            f"https://huggingface.co/u/r/resolve/main/c.gguf#sha256={HEX}",
            UrlReference("https://huggingface.co/u/r/resolve/main/c.gguf", HEX),
            f"https://huggingface.co/u/r/resolve/main/c.gguf#sha256={HEX}",
        ),
        ("file:///m/a.gguf", LocalReference("/m/a.gguf"), "file:/m/a.gguf"),
        ("file:/m/", LocalReference("/m"), "file:/m"),
    ],
)
def test_a_reference_names_one_thing(text: str, reference: ModelReference, canonical: str) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == canonical


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "USER/REPO"),
        ("model", "USER/REPO"),
        ("ftp:x", "no source 'ftp'"),
        ("u/r:", "quantisation"),
        ("u/r:Q4 K", "quantisation"),
        ("u/r@", "revision"),
        ("u/r@a..b", "revision"),
        ("u/r/../x", "`..`"),
        ("u/r//x", "empty part"),
        ("u/r/a\\b", "backslash"),
        *((text, "no name of a repository") for text in ("u/..", "-u/r", "u/a--b", "u/r.git")),
        (" u/r", "white space"),
        ("u/r\n", "white space or control"),
        *((text, "no name of a model") for text in ("ollama:", "ollama:a/b/c", "ollama:a..b")),
        ("ollama:a:b:c", "no tag"),
        ("ollama:a@md5:1", "no digest"),
        ("ollama:a@", "no digest"),
        *((text, "HOST/NAME:TAG") for text in ("oci:host", "oci:host/UPPER", "oci:ho st/a", "oci:h/a/../b")),
        ("https://h/a.gguf", "hash is missing"),
        ("https://huggingface.co/datasets/u/r", "no page of a model"),
        ("https://huggingface.co/u", "USER/REPO"),
        ("https://huggingface.co/u/r/discussions/1", "no page of a repository"),
        ("https://huggingface.co/u/r/tree/main/folder", "that of a folder"),
        ("https://huggingface.co/u/r/blob/main/../x", "`..`"),
        (f"https://h/#sha256={HEX}", "names no file"),
        (f"https://h/a%2Fb#sha256={HEX}", "names no file"),
        (f"https://h/..#sha256={HEX}", "names no file"),
        (f"https:///a#sha256={HEX}", "no host"),
        (f"https://h:x/a#sha256={HEX}", "no address"),
        ("file:a", "absolute"),
        ("file:/a/../b", "absolute"),
        ("u/" + "r" * 3000, "at most 2048"),
    ],
)
def test_what_is_no_reference_is_told_why(text: str, word: str) -> None:
    with pytest.raises(InvalidReferenceError) as caught:
        parse_reference(text)
    assert word in str(caught.value)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidReferenceError) as caught:
        parse_reference(f"https://me:hunter2@h/a#sha256={HEX}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("path", ["", ".", "..", "a/..", "/a", "a/", "a//b", "a\x00b", "a\nb", "a\\b", "a" * 241])
def test_paths_that_lead_elsewhere_are_none(path: str) -> None:
    assert validate_file_path(path) is not None


@pytest.mark.parametrize("path", ["a", "a/b.gguf", "...", "a b", "ä.gguf", ".hidden"])
def test_paths_of_files_are_taken(path: str) -> None:
    assert validate_file_path(path) is None


HASH = "0" * 64


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "gemma-3-4b-it"),
        ("hf:Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("hf:user/some_gguf/sub/file-Q8_0.gguf@main", "some"),
        ("ollama:llama3.2:1b", "llama3.2-1b"),
        ("ollama:library/gemma3", "gemma3"),
        (f"https://host/a/b/my-model-00001-of-00003.gguf#sha256={HASH}", "my-model"),
        (f"https://host/a/Some%20Model.gguf?x=1#sha256={HASH}", "Some-Model"),
        ("file:/mnt/models/Tiny Model.gguf", "Tiny-Model"),
        ("file:/mnt/\u6a21\u578b.gguf", "model"),
    ],
)
def test_the_name_of_a_reference(reference: str, name: str) -> None:
    assert suggest_model_name(parse_reference(reference)) == name
    TypeAdapter(ModelName).validate_python(name)
