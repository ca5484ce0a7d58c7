"""A whole folder: its keys, its emptiness, its digest."""

from __future__ import annotations

from pathlib import Path

from contract.status import Problem
from controller.artifacts.model_roots import ModelRoots
from controller.config.parse import FolderSnapshot, parse_documents, parse_folder, read_documents, read_folder
from tests.support.definitions import MODELS_ROOT, parse_text, problems_of, snapshot

NO_MODELS = "desired-state: no file has the key `models`; `models: {}` declares that there are none"


def test_an_empty_folder_is_an_error() -> None:
    assert problems_of() == ["desired-state: the folder holds no desired-state file (*.yaml, *.yml, *.json)"]


def test_no_models_key_is_an_error_and_an_empty_mapping_a_deletion() -> None:
    assert problems_of("# nothing\n") == [NO_MODELS]
    parsed = parse_text("models: {}")
    assert (parsed.is_valid, parsed.definitions) == (True, {})


def test_models_without_content_would_remove_all_and_is_an_error() -> None:
    # As a local.yaml looks in which everything below `models:` was commented out.
    assert problems_of("models: {a: {backend: stub}}", local="# mine\nmodels:\n#  a: {}\n") == [
        "desired-state/local.yaml:2: models: is empty here, which would remove every model; write `models: {}` for that"
    ]


def test_models_must_be_a_mapping() -> None:
    assert problems_of("models: [a]") == [
        "desired-state/models.yaml:1: models: must map names to definitions, is a list"
    ]


def test_nothing_but_models_is_accepted() -> None:
    assert problems_of("models: {}\nmodel: {}\nsettings: 1\n$schema: x\n") == [
        "desired-state/models.yaml:2: model: unknown key; did you mean `models`?",
        "desired-state/models.yaml:3: settings: unknown key",
        "desired-state/models.yaml:4: $schema: unknown key",
    ]


def test_an_unreadable_file_says_nothing_false_about_the_others() -> None:
    # What models.yaml would have said is unknown, so that local.yaml alone is not judged.
    assert problems_of("models: [", local="models: {a: {replicas: 2}}") == [
        "desired-state/models.yaml:1: not YAML 1.2: expected the node content, but found '<stream end>', "
        "while parsing a flow node"
    ]


def test_an_unreadable_folder_is_not_an_empty_one() -> None:
    problem = Problem(file="desired-state", message="the desired-state folder cannot be read: Permission denied")
    assert parse_folder(FolderSnapshot("desired-state", problems=(problem,)), MODELS_ROOT).problems == (problem,)


def test_the_digest_is_of_what_is_declared() -> None:
    one = parse_text("models: {a: {backend: stub, replicas: 2}, b: {backend: stub}}")
    same = parse_text(
        "# comment\nmodels:\n  b: {backend: stub}\n  a:\n    replicas: 1\n    backend: stub\n",
        local="models: {a: {replicas: 2}}",
    )
    other = parse_text("models: {a: {backend: stub, replicas: 3}, b: {backend: stub}}")
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 16


def test_json_files_and_yaml_files_together() -> None:
    files = {"a.json": '{"models": {"a": {"backend": "stub"}}}', "b.yml": "models: {b: {backend: stub}}"}
    assert sorted(parse_folder(snapshot(files), MODELS_ROOT).definitions) == ["a", "b"]  # type: ignore[arg-type]


def test_names_of_files_count_in_any_case(tmp_path: Path) -> None:
    for number, name in enumerate(("a.YAML", "B.Yml", "c.JSON", "d.yaml.bak", ".E.YAML", "schema.json")):
        (tmp_path / name).write_text(f'{{"models": {{"m{number}": {{"backend": "stub"}}}}}}')
    assert sorted(parse_folder(read_folder(tmp_path), MODELS_ROOT).definitions) == ["m0", "m1", "m2"]


def test_a_folder_of_gguf_files_rejects_no_other_model(tmp_path: Path) -> None:
    """It is refused when it is to start, where it is told which files there are."""
    (tmp_path / "two").mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("a.gguf", "b.GGUF"):
        (tmp_path / "two" / name).touch()
    roots = ModelRoots((tmp_path,))
    text = "models: {m: {model_path: two}, good: {backend: stub}}"
    parsed = parse_folder(snapshot({"a.yaml": text}), roots)
    assert {name: each.backend for name, each in parsed.definitions.items()} == {"m": "llama_server", "good": "stub"}
    for path in ("empty", "missing", "../x"):
        parsed = parse_folder(snapshot({"a.yaml": text.replace("two", path)}), roots)
        assert not parsed.is_valid, path


def test_a_file_is_read_again_only_when_its_bytes_changed() -> None:
    first = snapshot({"a.yaml": "models: {a: {backend: stub}}", "b.yaml": "models: {b: {backend: stub}}"})
    edited = snapshot({"a.yaml": "models: {a: {backend: stub}}", "b.yaml": "models: {c: {backend: stub}}"})
    known = read_documents(first)
    documents = read_documents(edited, known)
    path_a, path_b = (edited.path_of(name) for name in ("a.yaml", "b.yaml"))
    assert documents[path_a] is known[path_a]
    assert documents[path_b] is not known[path_b]
    assert parse_documents(edited, documents, MODELS_ROOT) == parse_folder(edited, MODELS_ROOT)
    assert list(read_documents(snapshot({"b.yaml": "models: {}"}), documents)) == [path_b]
