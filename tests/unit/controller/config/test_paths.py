"""Declared model paths."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from controller.config.paths import PathRefusedError, relative_to_models
from controller.engines.ct2 import CT2Definition
from controller.engines.llama_server import LlamaServerDefinition
from tests.support.config_files import parse_text, problems_of

ROOT = PurePosixPath("/srv/models")


@pytest.mark.parametrize(
    ("declared", "relative"),
    [
        ("a.gguf", "a.gguf"),
        ("./sub//a.gguf", "sub/a.gguf"),
        ("sub/", "sub"),
        ("/srv/models/sub/a.gguf", "sub/a.gguf"),
        ("//srv/models/a.gguf", "a.gguf"),
        ("/srv/./models/a.gguf", "a.gguf"),
        ("a..b/c..gguf", "a..b/c..gguf"),
        ("with space.gguf", "with space.gguf"),
    ],
)
def test_a_path_below_the_models_folder(declared: str, relative: str) -> None:
    assert relative_to_models(declared, ROOT) == relative


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("../a.gguf", "a path may not hold `..`"),
        ("sub/../../a.gguf", "a path may not hold `..`"),
        ("/srv/models/../a.gguf", "a path may not hold `..`"),
        ("/etc/passwd", "`/etc/passwd` lies outside the models folder /srv/models"),
        ("/srv/models2/a.gguf", "`/srv/models2/a.gguf` lies outside the models folder /srv/models"),
        ("/srv/models", "names no file or folder below the models folder"),
        ("", "names no file or folder below the models folder"),
        (".", "names no file or folder below the models folder"),
        ("~/a.gguf", "`~` is not expanded; write the path relative to the models folder"),
        ("a\nb", "a path holds printable characters only"),
        ("a\0b", "a path holds printable characters only"),
    ],
)
def test_a_path_that_is_refused(declared: str, reason: str) -> None:
    with pytest.raises(PathRefusedError) as refused:
        relative_to_models(declared, ROOT)
    assert str(refused.value) == reason


def test_every_path_of_a_definition_is_normalised() -> None:
    parsed = parse_text(
        "models: {a: {model_path: /srv/models/x/a.gguf, llama_server_mmproj: ./m.gguf}, "
        "b: {backend: stub, model_path: ./w}}"
    )
    definition = parsed.definitions["a"]
    assert isinstance(definition, LlamaServerDefinition)
    assert (definition.model_path, definition.llama_server_mmproj) == ("x/a.gguf", "m.gguf")
    assert parsed.definitions["b"].model_path == "w"
    assert parsed.declared_models["a"]["model_path"] == "/srv/models/x/a.gguf"


def test_a_folder_stays_a_folder_where_files_in_it_are_needed() -> None:
    parsed = parse_text("models: {a: {backend: ct2, model_path: ./m, ct2_tokenizer: ./t}}")
    definition = parsed.definitions["a"]
    assert isinstance(definition, CT2Definition)
    assert (definition.model_path, definition.ct2_tokenizer) == ("m", "t")


def test_every_path_of_a_definition_is_checked() -> None:
    assert problems_of(
        "models:\n  a:\n    model_path: ../a.gguf\n    llama_server_mmproj: /m.gguf\n"
        "    llama_server_chat_template_file: ../t\n"
    ) == [
        "desired-state/models.yaml:3: models.a.model_path: a path may not hold `..`",
        "desired-state/models.yaml:4: models.a.llama_server_mmproj: `/m.gguf` lies outside the models folder "
        "/srv/models",
        "desired-state/models.yaml:5: models.a.llama_server_chat_template_file: a path may not hold `..`",
    ]
