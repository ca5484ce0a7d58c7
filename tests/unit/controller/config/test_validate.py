"""What is wrong with a definition, in plain words, with file, line and field."""

from __future__ import annotations

import pytest

from controller.engines import ENGINES
from controller.engines.llama_server import LlamaServerDefinition
from tests.support.definitions import parse_text, problems_of

FIRST = "desired-state/models.yaml"


def in_stub(line: str) -> list[str]:
    """The problems of a stub model with this field on line 4, without the file's name."""
    found = problems_of(f"models:\n  chat:\n    backend: stub\n    {line}\n")
    return [each.removeprefix(f"{FIRST}:4: models.chat.") for each in found]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("replica: 2", "replica: unknown field; did you mean `replicas`?"),
        ("colour: red", "colour: unknown field"),
        ("text: hi", "text: unknown field; did you mean `stub_text`?"),
        (
            "llama_server_n_ctx: 4096",
            "llama_server_n_ctx: belongs to backend llama_server; this model's backend is stub",
        ),
        ('replicas: "2"', 'replicas: must be a whole number, is the text "2"'),
        ("replicas: 2.5", "replicas: must be a whole number, is 2.5"),
        ("replicas: true", "replicas: must be a whole number, is true"),
        ("replicas: 0", "replicas: must be at least 1, is 0"),
        ("replicas: 1000", "replicas: must be at most 256, is 1000"),
        ("start_timeout_s: 0", "start_timeout_s: must be more than 0, is 0"),
        ("start_timeout_s: soon", 'start_timeout_s: must be a number, is the text "soon"'),
        ("enabled: on", 'enabled: must be true or false, is the text "on"'),
        ("enabled: 'a \"b\\c'", 'enabled: must be true or false, is the text "a \\"b\\\\c"'),
        ("enabled: 1", "enabled: must be true or false, is 1"),
        ("stub_text: 4", "stub_text: must be a string, is a number: put it in quotes"),
        ("stub_text: {a: b}", "stub_text: must be a string, is a mapping"),
        ("env: {A: 1}", "env.A: must be a string, is a number: put it in quotes"),
        ("env: [A]", "env: must be a mapping, is a list"),
        ("extra_args: --api-key hunter2secret", "extra_args: must be a list, is a string"),
        ("env: hunter2secretvalue", "env: must be a mapping, is a string"),
        ("env: {A: 12345678}", "env.A: must be a string, is a number: put it in quotes"),
        ("extra_args: 12345678", "extra_args: must be a list, is a number"),
        ("stub_token_delay_ms: hunter2", "stub_token_delay_ms: must be a whole number, is a string"),
        ("stub_token_delay_ms: -5", "stub_token_delay_ms: must be at least 0, is -5"),
        ("enabled: --api-key hunter2secret", "enabled: must be true or false, is `--api-key ***`"),
        ("gpus: two", 'gpus: must be a whole number, is the text "two", or must be a list, is the text "two"'),
        ("gpus: 99", "gpus: must be at most 64, is 99"),
        ("gpus: []", "gpus: must have at least 1 item(s)"),
        ("gpus: [{}]", "gpus[0]: must be a string, is a mapping"),
        (
            "aliases: [ok, 'not ok']",
            "aliases[1]: must begin with a letter or digit and hold only letters, digits and . _ : / @ + -; "
            "is `not ok`",
        ),
        (
            "model_path: /out/x://user:pa55word@h",
            "model_path: `/out/x://***@h` lies outside the models folder /srv/models",
        ),
        ("model_path: ../secret", "model_path: a path may not hold `..`"),
    ],
)
def test_a_wrong_field_is_one_problem_of_its_line(line: str, problem: str) -> None:
    assert in_stub(line) == [problem]


def test_a_value_that_is_one_of_a_few_is_suggested() -> None:
    assert problems_of("models:\n  a:\n    model_path: a.gguf\n    llama_server_pooling: meen\n") == [
        f"{FIRST}:4: models.a.llama_server_pooling: must be `none`, `mean`, `cls`, `last` or `rank`, is `meen`; "
        "did you mean `mean`?"
    ]


def test_on_is_the_string_that_flash_attention_wants() -> None:
    parsed = parse_text("models: {a: {model_path: a.gguf, llama_server_flash_attn: on}}")
    definition = parsed.definitions["a"]
    assert isinstance(definition, LlamaServerDefinition)
    assert definition.llama_server_flash_attn == "on"


def test_the_backend_is_resolved_from_the_artifact_and_stands_in_the_definition_only() -> None:
    parsed = parse_text("models: {a: {model_path: a.GGUF}}")
    assert parsed.definitions["a"].backend == "llama_server"
    assert parsed.declared_models["a"] == {"model_path": "a.GGUF"}


def test_an_artifact_that_tells_no_backend_is_a_problem() -> None:
    assert problems_of("models:\n  a: {model_path: weights}\n") == [
        f"{FIRST}:2: models.a: the artifact does not tell which backend serves it: set `backend` to one of "
        + ", ".join(ENGINES)
    ]


def test_an_unknown_backend_does_not_hide_other_problems() -> None:
    assert problems_of("models:\n  a:\n    backend: stubb\n    replica: 2\n    vram_mib: lots\n    stub_text: x\n") == [
        f"{FIRST}:3: models.a.backend: unknown backend `stubb`; did you mean `stub`?",
        f"{FIRST}:4: models.a.replica: unknown field; did you mean `replicas`?",
        f'{FIRST}:5: models.a.vram_mib: must be a whole number, is the text "lots"',
    ]


def test_a_missing_field_is_reported_at_the_model_and_fields_that_contradict_each_other() -> None:
    assert problems_of("models:\n\n  a: {backend: llama_server}\n") == [f"{FIRST}:3: models.a.model_path: is required"]
    assert in_stub("replicas: 3\n    replica_max: 2") == ["replicas: replicas is 3, above replica_max 2"]


def test_every_problem_of_every_model_is_told_in_the_order_of_the_file() -> None:
    found = problems_of(
        """\
        models:
          b: {backend: stub, replicas: 0, foo: 1}
          a: 3
          "x y": {backend: stub}
          c:
            backend: openai_remote
            base_url: ftp://x
        """
    )
    assert found == [
        f"{FIRST}:2: models.b.replicas: must be at least 1, is 0",
        f"{FIRST}:2: models.b.foo: unknown field",
        f"{FIRST}:3: models.a: a model's definition is a mapping of fields",
        f"{FIRST}:4: models.x y: the name must begin with a letter or digit and hold only letters, digits and "
        ". _ : / @ + -; is `x y`",
        f"{FIRST}:7: models.c.base_url: must be an http:// or https:// address without a query, is `ftp://x`",
    ]


def test_what_cannot_be_read_comes_before_what_may_follow_from_it() -> None:
    assert problems_of("models:\n  a:\n    <<: {backend: stub}\n  b: {backend: stub}\n  b: {backend: stub}\n") == [
        f"{FIRST}:3: `<<` is not part of YAML 1.2; write the fields, or use an alias for a whole value",
        f"{FIRST}:5: `b` stands twice; it is first on line 4",
        f"{FIRST}:2: models.a: the artifact does not tell which backend serves it: set `backend` to one of "
        f"{', '.join(ENGINES)}",
    ]
    assert problems_of("models:\n  a:\n  model_path: a.gguf\n") == [
        f"{FIRST}:3: models.model_path: `model_path` is a field: indent it below the name of its model"
    ]


def test_one_broken_model_rejects_all() -> None:
    parsed = parse_text("models: {good: {backend: stub}, bad: {backend: stub, replicas: 0}}")
    assert (parsed.is_valid, parsed.definitions, parsed.declared_models, parsed.digest) == (False, {}, {}, "")


def test_a_role_is_of_one_model_alone() -> None:
    found = problems_of("models:\n  a: {backend: stub, role: aicore}\n  b: {backend: stub, role: aicore}\n")
    assert found == [f"{FIRST}:3: models.b.role: model a has the role `aicore` already"]


def test_aliases_are_taken_once() -> None:
    of_a, of_b = (
        "    backend: stub\n    aliases: [b, x, x]\n",
        "    backend: stub\n    aliases:\n      - x\n      - b\n",
    )
    text = f"models:\n  a:\n{of_a}  b:\n{of_b}"
    assert problems_of(text) == [
        f"{FIRST}:4: models.a.aliases[0]: alias `b` is already the name of model b",
        f"{FIRST}:4: models.a.aliases[2]: alias `x` is already an alias of model a",
        f"{FIRST}:8: models.b.aliases[0]: alias `x` is already an alias of model a",
        f"{FIRST}:9: models.b.aliases[1]: alias `b` is already the name of model b",
    ]
    free = text.replace("      - b\n", "")
    assert problems_of(free, local="models: {a: null}") == [], "those of a removed model are free"
