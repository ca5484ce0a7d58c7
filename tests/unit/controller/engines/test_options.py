"""One declaration per option: what follows from it, shown by a further option of llama-server."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from contract.desired import Definition, Settable
from controller.admin.override_rules import load_request_model
from controller.config.json_schema import definition_schema
from controller.engines import ENGINES, spec_hash
from controller.engines.base import FileCheck
from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from controller.engines.memory import Unpredicted
from controller.engines.options import (
    MOVES_MEMORY,
    Flag,
    Hashed,
    JsonFlag,
    Loadable,
    PathFlag,
    SpecialFlag,
    Switch,
    find_memory_mover,
    list_constraints,
    list_options,
    list_paths,
    read_hashed_values,
    render_options,
)
from tests.support.definitions import DOCKER, define, parse_text, problems_of
from tests.support.doc_tables import option_rows
from tests.support.option_values import sample_value, tried_options


class OneMore(LlamaServerDefinition):
    """llama-server's definition with one more option."""

    llama_server_further: Annotated[int | None, Flag("--further"), Loadable(), Settable.ALWAYS] = Field(
        default=None, ge=2, le=8, description="Steps at a time; default: 4."
    )


class OneMoreServer(LlamaServer):
    """llama-server with that definition, and nothing else of its own."""

    definition = OneMore


@pytest.fixture
def engine() -> OneMoreServer:
    return OneMoreServer()


def _made(**fields: Any) -> OneMore:
    return OneMore.model_validate({"model_path": "m.gguf", **fields})


def test_a_declaration_is_the_schema_of_files_and_their_validation(engine: OneMoreServer) -> None:
    schema = definition_schema(engine)["properties"]["llama_server_further"]
    assert schema == {
        "description": "Steps at a time; default: 4.", "minimum": 2, "maximum": 8, "type": ["integer", "null"],
    }  # fmt: skip
    for wrong in (1, 9, "4", 4.5):
        with pytest.raises(ValidationError, match="llama_server_further"):
            _made(llama_server_further=wrong)


def test_a_declaration_is_the_constraint_of_a_load_its_request_schema_and_its_check(engine: OneMoreServer) -> None:
    constraint = list_constraints(engine.load_fields)["llama_server_further"]
    assert constraint.model_dump(exclude_unset=True) == {"kind": "integer", "minimum": 2, "maximum": 8, "step": 1}
    request = load_request_model([engine])
    assert request.model_json_schema()["properties"]["llama_server_further"]["description"] == (
        "Steps at a time. (llama_server)"
    )
    assert [each.message for each in engine.load_faults({"llama_server_further": 9})] == ["must be at most 8, is 9"]
    assert engine.load_faults({"llama_server_further": 8}) == []


def test_a_declaration_is_an_argument_and_nothing_where_it_is_not_set(engine: OneMoreServer) -> None:
    before = ENGINES["llama_server"].render_command(LlamaServerDefinition(model_path="m.gguf"), DOCKER).argv
    assert engine.render_command(_made(), DOCKER).argv == before
    argv = engine.render_command(_made(llama_server_further=3), DOCKER).argv
    assert [each for each in argv if each not in before] == ["--further", "3"]


def test_a_declaration_counts_in_the_spec_hash_where_it_is_set() -> None:
    before = spec_hash(LlamaServerDefinition(model_path="m.gguf"), "image", "m")
    assert spec_hash(_made(), "image", "m") == before
    hashes = {spec_hash(_made(llama_server_further=value), "image", "m") for value in (2, 3)}
    assert len(hashes | {before}) == 3


def test_a_declaration_is_a_row_of_the_docs_and_is_tried_by_the_tests() -> None:
    [row] = [row for row in option_rows(OneMore) if "llama_server_further" in row]
    told = "integer 2..8 | Steps at a time; default: 4."
    assert row == f"| `llama_server_further` `--further` | {told} |"
    assert "llama_server_further" in tried_options(OneMore)
    [option] = [each for each in list_options(OneMore) if each.name == "llama_server_further"]
    assert sample_value(option) == 3


class Every(Definition):
    """An option of each kind."""

    model_path: str
    text: Annotated[str | None, Flag("--text"), Loadable({"format": "words"}, null="none")] = Field(
        default=None, description="A text; default: none."
    )
    choice: Annotated[Literal["a", "b"], Flag("--choice"), Loadable({"default": "a"})] = Field(
        default="a", description="A or b."
    )
    shares: Annotated[list[float] | None, Flag("--shares"), MOVES_MEMORY] = Field(default=None, description="Shares.")
    share: Annotated[float | None, Flag("--share", omit=1)] = Field(default=None, description="A share.")
    plain: Annotated[bool, Switch("--plain")] = Field(default=False, description="On.")
    either: Annotated[bool | None, Switch("--either", "--no-either")] = Field(default=None, description="On or off.")
    file: Annotated[str | None, PathFlag("--file", "file")] = Field(default=None, description="A file.")
    folders: Annotated[list[str] | None, PathFlag("--folders", "folder", inside="x.json")] = Field(
        default=None, description="Folders."
    )
    content: Annotated[dict[str, int] | None, JsonFlag("--content")] = Field(default=None, description="Content.")
    special: Annotated[int | None, SpecialFlag("--special")] = Field(default=None, description="Special.")
    old: Annotated[int | None, Hashed.ALWAYS] = Field(default=None, description="An old one.")
    unseen: Annotated[int | None, Hashed.NEVER] = Field(default=None, description="The engine does not see it.")


VALUES: dict[str, Any] = {"text": "t", "choice": "b", "shares": [0.5, 2.0], "share": 0.12345678, "plain": True}
MORE_VALUES: dict[str, Any] = {"either": False, "file": "f", "folders": ["d/e", "d/f"], "content": {"x": 1}}
EVERYTHING = Every(model_path="m", **VALUES, **MORE_VALUES, special=3, unseen=4)


def test_flags_are_rendered_by_kind_and_in_the_order_of_declaration() -> None:
    assert render_options(EVERYTHING, Flag, decimals=3) == [
        *("--text", "t", "--choice", "b", "--shares", "0.5,2.0", "--share", "0.123"),
    ]
    assert render_options(EVERYTHING, Switch) == ["--plain", "--no-either"]
    assert render_options(EVERYTHING, PathFlag, DOCKER.resolve_path) == [
        *("--file", "/models/f", "--folders", "/models/d/e,/models/d/f"),
    ]
    assert render_options(EVERYTHING, JsonFlag) == ["--content", '{"x":1}']
    assert render_options(Every(model_path="m"), Flag | Switch | PathFlag | JsonFlag) == ["--choice", "a"]
    assert render_options(Every(model_path="m", share=1), Flag, fallbacks={"text": "u", "choice": "b"}) == [
        *("--text", "u", "--choice", "a"),
    ]
    assert render_options(Every(model_path="m", content={}), JsonFlag) == []


def test_an_option_counts_in_the_spec_hash_as_declared() -> None:
    assert read_hashed_values(Every(model_path="m")) == {"old": None}
    assert set(read_hashed_values(EVERYTHING)) == set(Every.model_fields) - set(Definition.model_fields) - {"unseen"}


def test_paths_are_listed_for_validation_and_preflight() -> None:
    assert [(name, value) for name, _, value in list_paths(EVERYTHING)] == [("file", "f"), ("folders", ["d/e", "d/f"])]
    files = ENGINES["stub"].list_files(EVERYTHING)
    assert files == (
        FileCheck("file", "f", "file"),
        FileCheck("folders", "d/e", "folder"),
        FileCheck("folders", "d/e", "file", "x.json"),
        FileCheck("folders", "d/f", "folder"),
        FileCheck("folders", "d/f", "file", "x.json"),
    )


def test_an_option_that_moves_memory_leaves_no_forecast() -> None:
    class Moving(OneMore):
        """With an option that the memory formulas do not follow."""

        llama_server_moving: Annotated[bool, Switch("--move"), MOVES_MEMORY] = Field(default=False, description="Move.")

    assert find_memory_mover(EVERYTHING) == "shares"
    assert find_memory_mover(Moving(model_path="m")) is None
    forecast = LlamaServer().predict_memory(Moving(model_path="m", llama_server_moving=True), {})
    assert forecast == Unpredicted("llama_server_moving changes what is where")


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (engine.name, option.name)
        for engine in ENGINES.values()
        for option in list_options(engine.definition)
        if option.flag is not None and not isinstance(option.flag, SpecialFlag)
    ],
)
def test_every_flag_is_in_the_command_line_of_a_definition_that_sets_the_option(backend: str, name: str) -> None:
    engine = ENGINES[backend]
    [option] = [each for each in list_options(engine.definition) if each.name == name]
    needed = {"llama_server_spec_type": {"llama_server_draft_model_path": "d.gguf"}}.get(name, {})
    fields = {"backend": backend, "model_path": "m", "gpus": int(name.startswith("litert")), **needed}
    value = {"exllama_cache_quant": "8,4"}.get(name, sample_value(option))
    definition = engine.definition.model_validate({**fields, name: value})
    assert option.flag is not None
    flags = {each.partition("=")[0] for each in engine.render_command(definition, DOCKER).argv}
    assert flags & set(option.flag.name.split("/"))


def test_every_option_has_a_description_and_one_flag_at_most() -> None:
    for engine in ENGINES.values():
        for option in list_options(engine.definition):
            assert option.info.description, option.name
            assert option.loadable is None or option.hashed is not Hashed.NEVER, option.name


# Rules between options, and options that hold paths.


@pytest.mark.parametrize(
    ("backend", "fields", "words"),
    [
        ("llama_server", {"llama_server_spec_type": "draft-eagle3"}, "which needs `llama_server_draft_model_path`"),
        (
            "llama_server",
            {"llama_server_chat_template": "chatml", "llama_server_chat_template_file": "t.jinja"},
            "llama_server_chat_template and llama_server_chat_template_file exclude each other",
        ),
        ("vllm", {"gpus": 4, "vllm_pipeline_parallel_size": 8}, "too many for the 4 GPUs"),
        ("vllm", {"gpus": 4, "vllm_pipeline_parallel_size": 2, "vllm_tensor_parallel_size": 4}, "too many for the 4"),
        ("vllm", {"vllm_speculative_config": {"model": "org/x"}}, "does not take model: set `vllm_speculative_model`"),
        ("vllm", {"vllm_hf_overrides": {"text_config": [{"auto_map": {}}]}}, "which needs `vllm_trust_remote_code"),
        ("vllm", {"vllm_speculative_method": "custom_class"}, "which needs `vllm_trust_remote_code"),
    ],
)
def test_what_does_not_fit_together_is_refused(backend: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words.replace("(", r"\(")):
        define(backend, **fields)


LORA = """
    models:
      m:
        model_path: m.gguf
        llama_server_lora: [{}]
"""
NAMED = """
    models:
      m:
        backend: vllm_serve
        model_path: m
        vllm_lora_modules: {{french: {}, terse: b}}
"""


@pytest.mark.parametrize(
    ("text", "field", "good", "written", "bad", "place"),
    [
        (
            *(LORA, "llama_server_lora", "./a//b.gguf, /srv/models/c.gguf", ["a/b.gguf", "c.gguf"]),
            *("a.gguf, /etc/b.gguf", "5: models.m.llama_server_lora[1]"),
        ),
        (
            *(NAMED, "vllm_lora_modules", "/srv/models/c", {"french": "c", "terse": "b"}),
            *("/etc/b", "6: models.m.vllm_lora_modules.french"),
        ),
    ],
    ids=["in a list", "with names"],
)
def test_paths_are_written_in_one_way_and_refused_by_their_place(
    text: str, field: str, good: str, written: object, bad: str, place: str
) -> None:
    assert parse_text(text.format(good)).definitions["m"].model_dump()[field] == written
    [problem] = problems_of(text.format(bad))
    assert problem.startswith(f"desired-state/models.yaml:{place}: ")
    assert "lies outside" in problem


def test_no_new_option_would_restart_every_engine() -> None:
    """`Hashed.ALWAYS` is for the fields of the first releases. The hashes of a golden would be written anew with it."""
    counts = {
        name: sum(option.hashed is Hashed.ALWAYS for option in list_options(engine.definition))
        for name, engine in ENGINES.items()
    }
    first = {"llama_server": 18, "llama_cpp": 7, "vllm_serve": 22, "vllm": 20, "exllamav3": 5}
    assert counts == {**first, "ct2": 6, "litert_lm": 3, "onnx": 5, "openai_remote": 5, "stub": 4}
