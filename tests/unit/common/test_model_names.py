"""Names for models, made from references."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from common.model_names import suggest_model_name
from common.model_reference import parse_reference
from controller.schema.desired import ModelName

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
