"""The check of arguments: by the schema, and at bounded cost whatever the schema is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from assistant.tools.arguments import ArgumentCheck, SchemaProblem
from assistant.tools.files import job_runner
from assistant.tools.files.job_runner import AT_ONCE, JobRunner
from assistant.tools.runner import _MOST_MASKED, _Masker, redact_arguments
from assistant.tools.spec import ToolCall, cut_text
from contract.errors import RoundhouseError
from gateway.tenancy.api_keys import ANONYMOUS
from tests.support.outcomes import error_of
from tests.support.wait import DEADLINE_S

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"$ref": "#/$defs/name"}}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 3}},
}


def refusal(schema: dict[str, Any], arguments: dict[str, Any]) -> RoundhouseError:
    return error_of(lambda: ArgumentCheck(schema).check(arguments))


def test_what_fits_passes_in_an_older_dialect_too() -> None:
    ArgumentCheck(SCHEMA).check({"a": 1, "b": ["abc"]})
    ArgumentCheck({}).check({"anything": [1, {"x": None}]})
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"minimum": 1}}}
    ArgumentCheck(schema).check({"a": 1})
    assert refusal(schema, {"a": 0}).param == "params.a"


def test_references_of_a_schema_lead_nowhere_else() -> None:
    for reference in ("http://127.0.0.1:9/schema", "file:///etc/passwd", "#/$defs/nothing"):
        assert refusal({"properties": {"a": {"$ref": reference}}}, {"a": 1}).entry.code == "tool_failed"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        *(({}, "params"), ({"a": "1"}, "params.a"), ({"a": True}, "params.a")),
        *(({"a": 1, "b": ["abc", "abcd"]}, "params.b[1]"), ({"a": 1, "c": 2}, "params")),
    ],
)
def test_what_does_not_is_refused_with_its_place(arguments: dict[str, Any], param: str) -> None:
    error = refusal(SCHEMA, arguments)
    assert (error.entry.code, error.param) == ("tool_arguments_invalid", param)


@pytest.mark.parametrize(
    "schema",
    [{"type": "nonsense"}, {"properties": 1}, {"required": "a"}, {"description": "x" * 70_000}, {"$schema": 1}],
)
def test_a_schema_that_is_none_is_a_problem(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaProblem):
        ArgumentCheck(schema)


@pytest.mark.parametrize(
    "pattern", [r"^\p{L}+$", r"(?<y>\d{4})", r"^[^\/]+$", r"^\u{1F600}$", "[^]", r"[\w-.]", r"(?<!a)b", "^(", "\\c"]
)
def test_expressions_of_another_language_are_the_servers_to_check(pattern: str) -> None:
    """JSON Schema recommends ECMA-262, of which Python's `re` refuses some."""
    schemas: list[dict[str, Any]] = [{"properties": {"p": {"pattern": pattern}}}, {"patternProperties": {pattern: {}}}]
    for schema in schemas:
        ArgumentCheck({"type": "object", **schema}).check({"p": "x"})


def test_a_schema_of_draft_4_is_read_as_one() -> None:
    schema = {"properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}}
    ArgumentCheck(schema).check({"n": 1})
    assert refusal(schema, {"n": 0}).param == "params.n"


def test_expressions_of_a_schema_are_not_run() -> None:
    """They may take any time; the server checks by itself."""
    schema = {
        "properties": {"a": {"type": "string", "pattern": "^(x+)+$"}},
        "patternProperties": {"^(y+)+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    ArgumentCheck(schema).check({"a": "x" * 50 + "!", "y" * 50 + "!": "text"})


def test_schemas_and_arguments_have_bounds() -> None:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": {}}}
    assert refusal(schema, {}).entry.code == "tool_failed"
    assert refusal({"$ref": "#"}, {}).entry.code == "tool_failed"
    schema = {"properties": {"a": {"uniqueItems": True}}}
    ArgumentCheck(schema).check({"a": [{"x": n} for n in range(4000)]})
    assert refusal(schema, {"a": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]}).param == "params.a"
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"x": deep}
    assert refusal({}, deep).entry.code == "tool_arguments_invalid"
    assert refusal({}, {"a": [0] * 10_001}).entry.code == "tool_arguments_invalid"
    ArgumentCheck({}).check({"a": [0] * 9_999})


@pytest.mark.parametrize(
    "arguments", [{"x": "\ud800"}, {"x": [{"y": "a\udc00"}]}, {"\ud83d": 1}, {"x": float("nan")}, {"x": [float("inf")]}]
)
def test_what_cannot_be_sent_on_as_json_is_refused(arguments: dict[str, Any]) -> None:
    error = refusal({}, arguments)
    assert (error.entry.code, error.param) == ("tool_arguments_invalid", "params")


@pytest.mark.parametrize("levels", [101, 400, 5_000, 100_000])
def test_a_schema_that_is_nested_too_deep_is_a_problem(levels: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    with pytest.raises(SchemaProblem, match="nested deeper than 100"):
        ArgumentCheck(schema)
    for _ in range(levels - 100):
        schema = schema["items"]
    ArgumentCheck(schema).check({})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "{}"),
        ({"path": "a.md", "n": 1, "x": None}, '{"path": "a.md", "n": 1, "x": null}'),
        ({"text": "Grüße"}, '{"text": "Grüße"}'),
        ({"password": "hunter2"}, '{"password": "***"}'),
        (
            {"api_key": 1, "apiKey": {"x": 1}, "Authorization": "x"},
            '{"api_key": "***", "apiKey": "***", "Authorization": "***"}',
        ),
        ({"a": {"client_secret": ["x"]}}, '{"a": {"client_secret": "***"}}'),
        ({"cmd": "curl -H 'Authorization: Bearer abcdefghijkl'"}, '{"cmd": "curl -H \'Authorization: ***\'"}'),
        ({"url": "https://bob:hunter2@example.org/"}, '{"url": "https://***@example.org/"}'),
        ({"url": "https://example.org/?token=abcdef&x=1"}, '{"url": "https://example.org/?***&x=1"}'),
        ({"text": "sk-abcdefghijklmnopqrst"}, '{"text": "***"}'),
        ({"text": "a ghp_abcdefghijklmnopqrst b"}, '{"text": "a *** b"}'),
        ({"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}, '{"a": {"b": {"c": {"d": {"e": "***"}}}}}'),
        ({"a": "x\ny\x1b[31m"}, '{"a": "x\\ny\\u001b[31m"}'),
    ],
)
def test_secrets_are_masked(arguments: dict[str, Any], text: str) -> None:
    assert redact_arguments(arguments) == text


def test_what_is_long_is_cut_and_what_the_controller_masks_is_not() -> None:
    text = redact_arguments({"content": "x" * 10_000_000, "more": list(range(100_000))})
    assert text == '{"content": "' + "x" * (4096 - len('{"content": "' + "...")) + "..."
    assert redact_arguments({"more": list(range(100_000))}) == '{"more": [' + ", ".join(map(str, range(200))) + "]}"
    secret = "of the server alone, which this gateway does not know"
    assert secret in redact_arguments({"x": "y" * 180 + secret})


def test_the_cost_of_masking_has_a_bound_for_numbers_and_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    visited = 0
    mask_value = _Masker.mask_value

    def count(self: _Masker, value: object, depth: int) -> object:
        nonlocal visited
        visited += 1
        return mask_value(self, value, depth)

    monkeypatch.setattr(_Masker, "mask_value", count)
    assert redact_arguments({"a": [[[0] * 200] * 200] * 200}).startswith('{"a": [[[0, 0, ')
    assert visited <= _MOST_MASKED
    # What is beyond the part of a name that is looked at may say that the value is secret.
    assert redact_arguments({"n" * 4_000_000 + "password": "hunter2"}) == '{"' + "n" * 200 + '": "***"}'
    visited = 0
    redact_arguments({"a": [{"n" * 190 + str(n): n for n in range(200)}] * 200})
    assert visited <= _MOST_MASKED / 190 + 10


def test_a_secret_at_the_cut_is_masked_whole() -> None:
    for length in range(4040, 4096):
        text = redact_arguments({"x": "y" * length + " sk-abcdefghijklmnopqrstuvwxyz"})
        assert "sk-abc" not in text
        assert text.endswith(('***"}', "..."))


MARK = "\n[The output is cut here: it is longer than 8 bytes.]"


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        *(("", ""), ("12345678", "12345678"), ("123456789", "12345678" + MARK), ("ääää", "ääää")),
        *(("äääää", "ääää" + MARK), ("aääää", "aäää" + MARK)),
        ("\U0001f600\U0001f600", "\U0001f600\U0001f600"),
        ("\ud800", "?"),
        ("x" * 1_000_000, "x" * 8 + MARK),
    ],
)
def test_a_text_is_cut_between_characters(text: str, cut: str) -> None:
    assert cut_text(text, 8) == cut


WAIT = (sys.executable, "-ISc", "import time; time.sleep(600)")


def call() -> ToolCall:
    return ToolCall(ANONYMOUS, "anonymous", {}, "req-1", 30.0, 64 * 1024)


async def test_the_event_loop_goes_on_while_a_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, went_on = asyncio.get_running_loop(), threading.Event()
    start = subprocess.Popen

    def slow(*arguments: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(went_on.set)
        assert went_on.wait(DEADLINE_S)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", slow)
    result = await JobRunner().run_job(call(), "html_text", {"charset": "utf-8"}, data=b"<p>Coal</p>")
    assert went_on.is_set()
    assert (result.text.strip(), result.is_error) == ("Coal", False)


async def test_calls_that_are_cancelled_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobRunner()
    with monkeypatch.context() as patched:
        patched.setattr(job_runner, "_PROGRAM", WAIT)
        asked = [asyncio.create_task(jobs.run_job(call(), "html_text", {})) for _ in range(2 * AT_ONCE)]
        await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        assert [type(each) for each in await asyncio.gather(*asked, return_exceptions=True)] == (
            [asyncio.CancelledError] * 2 * AT_ONCE
        )
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(AT_ONCE):
            assert not (await jobs.run_job(call(), "html_text", {"charset": "utf-8"}, data=b"x")).is_error


async def test_what_does_not_start_or_ends_early_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobRunner()
    with monkeypatch.context() as patched:
        patched.setattr(job_runner, "_PROGRAM", ("/nowhere/at-all",))
        for _ in range(AT_ONCE + 1):
            with pytest.raises(RoundhouseError, match="does not start: No such file") as raised:
                await jobs.run_job(call(), "html_text", {})
            assert raised.value.entry.code == "tool_failed"
    assert not (await jobs.run_job(call(), "html_text", {"charset": "utf-8"}, data=b"x")).is_error
    for said in ("", "{", '{"text_bytes": 5}\nCoal', "Coal"):
        monkeypatch.setattr(job_runner, "_PROGRAM", (sys.executable, "-ISc", f"print({said!r}, end='')"))
        with pytest.raises(RoundhouseError, match="ended at its limits"):
            await JobRunner().run_job(call(), "html_text", {})


PROGRAM = """
import gc
from assistant.tools.mcp_client.servers import import_connection
counts = [gc.get_freeze_count()]
for _ in range(2):
    import_connection()
    kept = [[] for _ in range(1000)]
    counts.append(gc.get_freeze_count())
print(*counts)
"""


def test_what_the_import_leaves_is_collected_never() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, first, second = map(int, done.stdout.split())
    assert before == 0
    assert first > 10_000
    # A later connection freezes nothing: what requests leave behind by then can be collected.
    assert second == first


def test_a_gateway_without_mcp_servers_does_not_import_their_library() -> None:
    """It takes a second and 20 MiB."""
    code = "import assistant.extension, sys; print(sorted({'mcp', 'jsonschema', 'pypdf'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
