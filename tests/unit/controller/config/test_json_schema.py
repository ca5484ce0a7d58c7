"""The JSON Schema that editors use."""

from __future__ import annotations

import re
from pathlib import Path

from contract.desired import Definition
from contract.keys import KeyDefinition
from controller.config.json_schema import files_schema, schema_text
from controller.config.parse import SCHEMA_FILE, TOP_LEVEL, parse_folder, read_folder
from controller.engines import BACKEND_OF_SUFFIX, ENGINES
from tests.support.definitions import MODELS_ROOT, snapshot

EXAMPLE = Path(__file__).parents[4] / "desired-state"


def test_the_file_of_the_example_is_the_one_that_the_code_makes() -> None:
    assert (EXAMPLE / SCHEMA_FILE).read_text() == schema_text(), "run `roundhouse schema --write`"


def test_the_example_works_as_it_stands_and_points_editors_at_the_schema() -> None:
    read = read_folder(EXAMPLE)
    parsed = parse_folder(read, MODELS_ROOT)
    assert list(parsed.problems) == []
    assert {"clockwork", "clockwork-embed"} <= set(parsed.definitions)
    assert read.files["models.yaml"].startswith(b"# yaml-language-server: $schema=./schema.json\n")


def test_what_the_example_comments_out_would_work_too() -> None:
    text = (EXAMPLE / "models.yaml").read_text()
    # Comments of a YAML block: two spaces, the sign, and then a key or what belongs to it.
    taken = [line.replace("# ", "", 1) if _is_yaml(line) else line for line in text.splitlines()]
    parsed = parse_folder(snapshot({"models.yaml": "\n".join(taken)}), MODELS_ROOT)
    assert list(parsed.problems) == []
    assert {"gemma", "coder", "large", "hosted"} <= set(parsed.definitions)
    assert {"laptop", "batch"} <= set(parsed.keys)


def _is_yaml(line: str) -> bool:
    words = line.strip().removeprefix("# ").split()
    return (
        line.startswith(("  # ", "# keys:", "#   ")) and bool(words) and words[0].endswith(":") and words[0] != "with:"
    )


def test_each_backend_has_its_fields_and_no_others_each_is_described_and_may_be_null() -> None:
    schema = files_schema()
    for backend, engine in ENGINES.items():
        defined = schema["$defs"][backend]
        assert set(defined["properties"]) == set(engine.definition.model_fields)
        assert defined["additionalProperties"] is False
        assert "required" not in defined, "one file may say part of a definition"
    for definition in (*ENGINES, "any", "key"):
        for name, field in schema["$defs"][definition]["properties"].items():
            assert field["description"], name
            types = field.get("type", [])
            branches = [branch.get("type") for branch in field.get("anyOf", [])]
            assert "null" in types or "null" in branches or None in field.get("enum", []), name
            assert "enum" not in field or None in field["enum"], name


def test_the_variant_is_chosen_by_the_backend() -> None:
    *declared, case = files_schema()["$defs"]["model"]["allOf"]
    chosen = {each["if"]["properties"]["backend"]["const"]: each["then"]["$ref"] for each in declared}
    assert chosen == {name: f"#/$defs/{name}" for name in ENGINES}
    by_pattern = {}
    while "else" in case:
        by_pattern[case["if"]["properties"]["model_path"]["pattern"]] = case["then"]["$ref"]
        case = case["else"]
    assert case["then"]["$ref"] == "#/$defs/any"
    for suffix, name in BACKEND_OF_SUFFIX.items():
        [pattern] = [each for each, chosen in by_pattern.items() if chosen == f"#/$defs/{name}"]
        assert re.search(pattern, f"a/Model{suffix.upper()}")
        assert re.search(pattern, f"model{suffix}")
        assert not re.search(pattern, f"model{suffix}.txt")
        assert not re.search(pattern, f"model{suffix.removeprefix('.')}")


def test_the_fields_of_keys_and_of_any_backend_are_those_of_their_classes() -> None:
    schema = files_schema()
    assert list(schema["properties"]) == list(TOP_LEVEL)
    assert set(schema["$defs"]["key"]["properties"]) == set(KeyDefinition.model_fields)
    fields = {name for engine in ENGINES.values() for name in engine.definition.model_fields}
    assert set(schema["$defs"]["any"]["properties"]) == fields | set(Definition.model_fields)
