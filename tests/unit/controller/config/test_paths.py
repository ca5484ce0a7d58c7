"""Declared model paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.config.validate import PathRefusedError, normalize_model_path
from controller.engines.ct2 import CT2Definition
from controller.engines.llama_server import LlamaServerDefinition
from tests.support.definitions import parse_text, problems_of

ONE = ModelRoots((Path("/srv/models"),), home=Path("/home/ann"))
SEVERAL = ModelRoots((Path("/srv/models"), Path("/home/ann/.cache/hub"), Path("/data"), Path("/data/new")), ONE.home)


@pytest.mark.parametrize(
    ("declared", "normalized"),
    [
        ("a.gguf", "a.gguf"),
        ("./sub//a.gguf", "sub/a.gguf"),
        ("sub/", "sub"),
        ("/srv/models/sub/a.gguf", "sub/a.gguf"),
        ("//srv/models/a.gguf", "a.gguf"),
        ("/srv/./models/a.gguf", "a.gguf"),
        ("a..b/c..gguf", "a..b/c..gguf"),
        ("with space.gguf", "with space.gguf"),
        ("a~/b", "a~/b"),
    ],
)
def test_a_path_below_the_first_models_folder_is_relative_whatever_folders_follow(
    declared: str, normalized: str
) -> None:
    assert normalize_model_path(declared, ONE) == normalized
    assert normalize_model_path(declared, SEVERAL) == normalized


@pytest.mark.parametrize(
    ("declared", "normalized"),
    [
        ("/data/a.gguf", "/data/a.gguf"),
        ("//data//./sub/a.gguf", "/data/sub/a.gguf"),
        ("/data/new/a.gguf", "/data/new/a.gguf"),
        ("/data/new", "/data/new"),
        ("~/.cache/hub/models--a--b/snapshots/1", "/home/ann/.cache/hub/models--a--b/snapshots/1"),
    ],
)
def test_a_path_below_a_further_models_folder_is_absolute(declared: str, normalized: str) -> None:
    assert normalize_model_path(declared, SEVERAL) == normalized


def test_home_may_hold_the_first_models_folder() -> None:
    assert normalize_model_path("~/m/a.gguf", ModelRoots((Path("/home/ann/m"),), Path("/home/ann"))) == "a.gguf"


OUTSIDE = "lies outside the models folder /srv/models"


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("../a.gguf", "a path may not hold `..`"),
        ("sub/../../a.gguf", "a path may not hold `..`"),
        ("/srv/models/../a.gguf", "a path may not hold `..`"),
        ("~/../a.gguf", "a path may not hold `..`"),
        (
            "/etc/passwd",
            f"`/etc/passwd` {OUTSIDE}: `ROUNDHOUSE_MODELS=/srv/models,/etc` (or `--models`) adds the folder /etc",
        ),
        (
            "~/my models/a.gguf",
            f"`~/my models/a.gguf` {OUTSIDE}: `ROUNDHOUSE_MODELS='/srv/models,/home/ann/my models'` (or `--models`) "
            "adds the folder /home/ann/my models",
        ),
        # Its files are links into a folder beside it: the cache as a whole is what can be used.
        (
            "/hub/models--a--b/snapshots/1/a.gguf",
            f"`/hub/models--a--b/snapshots/1/a.gguf` {OUTSIDE}: `ROUNDHOUSE_MODELS=/srv/models,/hub` (or `--models`) "
            "adds the folder /hub",
        ),
        (
            "/srv/models2/a.gguf",
            f"`/srv/models2/a.gguf` {OUTSIDE}: `ROUNDHOUSE_MODELS=/srv/models,/srv/models2` (or `--models`) adds the "
            "folder /srv/models2",
        ),
        ("/a.gguf", f"`/a.gguf` {OUTSIDE}"),
        ("/a,b/a.gguf", f"`/a,b/a.gguf` {OUTSIDE}"),
        ("/srv/models", "names no file or folder below the models folder"),
        ("", "names no file or folder below the models folder"),
        (".", "names no file or folder below the models folder"),
        ("~bob/a.gguf", "`~` is your own home folder alone; write the absolute path of another's"),
        ("./~/a.gguf", "`~` in the models folder cannot be named, because `~` is your home: rename it"),
        ("/srv/models/~b/a.gguf", "`~b` in the models folder cannot be named, because `~` is your home: rename it"),
        ("a\nb", "a path holds printable characters only"),
        ("a\0b", "a path holds printable characters only"),
    ],
)
def test_a_path_that_is_refused(declared: str, reason: str) -> None:
    with pytest.raises(PathRefusedError) as refused:
        normalize_model_path(declared, ONE)
    assert str(refused.value) == reason


def test_all_models_folders_are_named_where_a_path_lies_in_none() -> None:
    roots = ModelRoots((Path("/a"), Path("/b")))
    with pytest.raises(PathRefusedError) as refused:
        normalize_model_path("/c/m.gguf", roots)
    assert str(refused.value) == (
        "`/c/m.gguf` lies outside the models folders /a, /b: `ROUNDHOUSE_MODELS=/a,/b,/c` (or `--models`) adds the "
        "folder /c"
    )
    with pytest.raises(PathRefusedError, match="`~` stands for nothing, because HOME is not set"):
        normalize_model_path("~/m.gguf", roots)


def test_every_path_of_a_definition_is_normalized() -> None:
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
