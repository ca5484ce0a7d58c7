"""What a model's `source` stands for before and after its files are here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.model_reference import parse_reference
from controller.artifacts.model_roots import ModelRoots
from controller.config.parse import FolderSnapshot, ParsedFolder, parse_folder
from controller.config.validate import PlacedSource, list_sources, placeholder_path
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.engines import ENGINES
from controller.state import DesiredModel
from controller.state_dir import StoredState

ROOTS = ModelRoots((Path("/models"),))
HASH = "0" * 64
REMOTE = "base_url: 'http://h/v1'"
LOADING = [name for name in ENGINES if name not in ("openai_remote", "stub")]


def parse(text: str) -> ParsedFolder:
    return parse_folder(FolderSnapshot("desired", {"m.yaml": text.encode()}), ROOTS)


def resolve(text: str, sources: dict[str, PlacedSource]) -> DesiredModel:
    parsed = parse(text)
    assert parsed.is_valid, parsed.problems
    [(name, definition)] = parsed.definitions.items()
    declared = {name: DeclaredModel(definition, parsed.declared_models[name], 1.0)}
    return resolve_desired(declared, StoredState(), Defaults(), generation=1, sources=sources).models[name]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("hf:a/b:Q4_K_M", "a/b/Q4_K_M.gguf"),
        ("hf:a/b-GGUF", "a/b-GGUF/model.gguf"),
        ("a/b", "a/b"),
        ("hf:a/b/dir/x.gguf@main", "a/b/dir/x.gguf"),
        ("ollama:qwen:0.6b", "qwen/0.6b.gguf"),
        ("oci:host:5000/a/b:1", "a/b/1.gguf"),
        (f"https://host/x/y.gguf?a=b#sha256={HASH}", "url/y.gguf"),
        ("file:/data/m.gguf", "local/m.gguf"),
    ],
)
def test_the_path_that_stands_for_the_files(source: str, path: str) -> None:
    assert placeholder_path(parse_reference(source)) == path


def test_a_source_alone_declares_a_model_and_its_files_take_its_place() -> None:
    text = "models: {m: {source: 'a/b:Q4_K_M', llama_server_n_ctx: 512}}"
    awaited = resolve(text, {})
    assert (awaited.backend, awaited.missing_source) == ("llama_server", "hf:a/b:Q4_K_M")
    here = resolve(text, {"hf:a/b:Q4_K_M": PlacedSource("a/b/x-Q4_K_M.gguf", "a/b/mmproj.gguf")})
    assert here.missing_source is None
    fields = here.definition.model_dump(exclude_unset=True)
    assert (fields["model_path"], fields["llama_server_mmproj"]) == ("a/b/x-Q4_K_M.gguf", "a/b/mmproj.gguf")
    assert here.spec_hash != awaited.spec_hash


def test_paths_that_are_declared_stay() -> None:
    sources = {"hf:a/b:Q4": PlacedSource("a/b/x.gguf", "a/b/mmproj.gguf")}
    own = resolve("models: {m: {source: 'hf:a/b:Q4', model_path: mine.gguf}}", {})
    assert (own.missing_source, own.definition.model_path) == (None, "mine.gguf")
    bare = resolve("models: {m: {model_path: mine.gguf}}", {})
    assert own.spec_hash == bare.spec_hash, "a source added to a model that runs restarts nothing"
    projector = resolve("models: {m: {source: 'hf:a/b:Q4', llama_server_mmproj: p.gguf}}", sources)
    assert projector.definition.model_dump()["llama_server_mmproj"] == "p.gguf"


@pytest.mark.parametrize("backend", LOADING)
def test_every_backend_that_loads_files_takes_a_source(backend: str) -> None:
    gpus = "" if backend == "onnx" else ", gpus: 1"
    text = f"models: {{m: {{source: 'hf:a/b', backend: {backend}{gpus}}}}}"
    assert resolve(text, {}).missing_source == "hf:a/b"
    here = resolve(text, {"hf:a/b": PlacedSource("a/b")})
    assert (here.missing_source, here.definition.model_path) == (None, "a/b")


def test_the_same_files_by_path_or_by_source_are_the_same_engine() -> None:
    sources = {"hf:a/b:Q4": PlacedSource("a/b/x.gguf")}
    by_source = resolve("models: {m: {source: 'hf:a/b:Q4'}}", sources)
    assert by_source.spec_hash == resolve("models: {m: {model_path: a/b/x.gguf}}", {}).spec_hash


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ("source: 'what is this'", "models.m.source", "no reference of a model"),
        ("source: 4", "models.m.source", "string"),
        (f"{{source: 'hf:a/b:Q4', backend: openai_remote, {REMOTE}}}", "models.m.source", "loads no files"),
        ("{source: 'hf:a/b:Q4', backend: stub}", "models.m.source", "loads no files"),
        ("source: 'hf:a/b'", "models.m", "the source does not tell which backend"),
    ],
)
def test_a_source_that_cannot_be_is_told_with_its_place(fields: str, field: str, words: str) -> None:
    body = fields if fields.startswith("{") else f"{{{fields}}}"
    parsed = parse(f"models:\n  m: {body}\n")
    assert [(each.file, each.line, each.field) for each in parsed.problems] == [("desired/m.yaml", 2, field)], parsed
    assert words in parsed.problems[0].message


REFERENCES = st.sampled_from(
    ["hf:a/b:Q4", "hf:a/b-GGUF", "hf:a/b/x.gguf", "ollama:m", "file:/x/y.gguf", f"https://h/x.gguf#sha256={HASH}"]
)


@given(
    source=REFERENCES,
    declares_path=st.booleans(),
    placed=st.dictionaries(REFERENCES, st.just(PlacedSource("x/y.gguf")), max_size=3),
)
def test_a_model_waits_for_its_source_exactly_while_nothing_says_where_its_files_are(
    source: str, declares_path: bool, placed: dict[str, PlacedSource]
) -> None:
    fields: dict[str, Any] = {"source": source, "backend": "llama_server"}
    if declares_path:
        fields["model_path"] = "own.gguf"
    sources = {str(parse_reference(each)): place for each, place in placed.items()}
    model = resolve(f"models: {{m: {fields}}}", sources)
    canonical = str(parse_reference(source))
    assert list_sources([model.definition]) == {canonical}
    expected = None if declares_path or canonical in sources else canonical
    assert model.missing_source == expected
    path = "own.gguf" if declares_path else "x/y.gguf"
    assert model.definition.model_path == (placeholder_path(parse_reference(source)) if expected else path)
