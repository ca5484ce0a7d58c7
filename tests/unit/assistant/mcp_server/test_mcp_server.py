"""The tools, their handlers and their page are the same ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.mcp_server.handlers import HANDLERS, McpToolCalls
from assistant.mcp_server.protocol import CallKey, CancellableCalls, CancelledByClientError
from assistant.mcp_server.tools import (
    MOST_BYTES,
    MOST_MESSAGE,
    TOOLS,
    Tool,
    answer_error,
    answer_fields,
    clean_fields,
    cut_log,
    fit_fields,
)
from contract.errors import RoundhouseError
from tests.support.doc_tables import row, rows_of


def test_each_tool_has_one_handler_and_those_of_the_scope_inference_change_nothing() -> None:
    assert [tool.name for tool in TOOLS] == list(HANDLERS)
    assert all(tool.is_read_only for tool in TOOLS if tool.scope == "inference")
    assert not any(tool.is_destructive and tool.is_read_only for tool in TOOLS)


def test_the_page_has_each_tool_with_its_scope_and_annotations() -> None:
    assert rows_of("mcp.md", "Tools") == [row(*_cells(tool)) for tool in TOOLS]


def _cells(tool: Tool) -> tuple[str, ...]:
    changes = "nothing" if tool.is_read_only else "destructive" if tool.is_destructive else "additive"
    world = "open" if tool.is_open_world else "closed"
    fields = tool.build_schema()["properties"]
    arguments = ", ".join(f"`{name}`" for name in fields)
    assert tool.is_idempotent, "the page has no column for it"
    return f"`{tool.name}`", f"`{tool.scope}`", changes, world, arguments, tool.description


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_schemas_explain_each_argument(tool: Tool) -> None:
    schema = tool.build_schema()
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for name, field in properties.items():
        assert field["description"].endswith("."), name
        assert "title" not in field


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=40,
)
NAMES = st.sampled_from("abcdefgh")


LEFT_OUT = " earlier bytes are left out: ask for fewer `lines`, or one `replica`]\n"


def size_of(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


@given(st.dictionaries(NAMES, VALUES, max_size=8), st.integers(100, 3000))
def test_what_does_not_fit_is_cut_and_said(fields: dict[str, Any], most_bytes: int) -> None:
    cleaned = clean_fields(fields)
    fitted = fit_fields(cleaned, most_bytes)
    assert size_of(fitted) <= most_bytes
    if size_of(cleaned) <= most_bytes:
        assert fitted == cleaned
        return
    sentences = fitted.pop("cut")
    assert sentences
    for name, value in cleaned.items():
        if name in fitted and fitted[name] != value:
            assert value[: len(fitted[name])] == fitted[name], "its beginning is kept"
            assert any(each.startswith(f"`{name}`: ") for each in sentences)


def test_the_largest_value_is_cut_first() -> None:
    fields = {"name": "m", "entries": ["x" * 100] * 50, "error": "e" * 500, "definition": {"a": "y" * 2000}}
    assert fit_fields(fields, 4000) == {
        "name": "m",
        "entries": ["x" * 100] * 12,
        "error": "e" * 500,
        "definition": {"a": "y" * 2000},
        "cut": ["`entries`: 12 of 50 entries, because not all fitted."],
    }
    fitted = fit_fields(fields, 1000)
    assert fitted["name"] == "m"
    assert fitted["error"] == "e" * 500
    assert fitted["cut"] == [
        "`entries`: 0 of 50 entries, because not all fitted.",
        "`definition`: left out, because it has 2009 bytes.",
    ]


def test_a_long_text_keeps_its_beginning() -> None:
    fitted = fit_fields({"last_error": "".join(chr(97 + n % 26) for n in range(10_000))}, 1000)
    kept = fitted["last_error"]
    assert 700 < len(kept) < 1000
    assert kept.startswith("abcdefghijklmnopqrstuvwxyzabc")
    assert fitted["cut"] == [f"`last_error`: {len(kept)} of 10000 characters, because not all fitted."]


def test_an_answer_of_any_size_and_of_half_characters_fits() -> None:
    answer = answer_fields({"name": "\ud800!"})
    assert (answer.fields, answer.text) == ({"name": "?!"}, '{"name": "?!"}')
    answer = answer_fields({"models": [{"name": f"model-{n}"} for n in range(10_000)]})
    assert len(answer.text.encode()) <= MOST_BYTES
    assert json.loads(answer.text) == answer.fields


def test_an_error_has_its_code_and_next_steps() -> None:
    answer = answer_error(RoundhouseError("unknown_model", "No model is named 'x'.", param="model"), "req-1")
    error = answer.fields["error"]
    assert (error["code"], error["param"], error["request_id"]) == ("unknown_model", "model", "req-1")
    assert answer.is_error
    steps = "".join(f"\n- {each}" for each in error["next_steps"])
    assert answer.text == f"unknown_model: No model is named 'x'.{steps}"
    assert error["next_steps"]
    long = answer_error(RoundhouseError("model_failed", "x" * 100_000), "req-1")
    assert long.fields["error"]["message"] == "x" * MOST_MESSAGE + " [...]"


@pytest.mark.parametrize(
    ("log", "before", "most", "told"),
    [
        (b"first\nsecond\nthird\n", 0, 100, "first\nsecond\nthird\n"),
        (b"first\nsecond\nthird\n", 0, 19, "first\nsecond\nthird\n"),
        (b"first\nsecond\nthird\n", 0, 18, f"[6{LEFT_OUT}second\nthird\n"),
        (b"first\nsecond\nthird\n", 1000, 8, f"[1013{LEFT_OUT}third\n"),
        (b"x" * 20, 0, 8, f"[12{LEFT_OUT}xxxxxxxx"),  # a line that is too long
        ("ä".encode(), 0, 1, f"[1{LEFT_OUT}\ufffd"),
        (b"", 0, 8, ""),
    ],
)
def test_a_log_loses_whole_lines_at_its_beginning(log: bytes, before: int, most: int, told: str) -> None:
    assert cut_log(log, before, most) == told


async def test_a_call_that_is_about_to_end_may_be_cancelled_again() -> None:
    calls, key, unwinds, may_end = CancellableCalls(), CallKey(None, "s", 1), asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with calls.hold(key):
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                unwinds.set()
                await may_end.wait()

    running = asyncio.create_task(run())
    await asyncio.sleep(0)
    calls.cancel(key)
    await unwinds.wait()
    calls.cancel(key)
    may_end.set()
    with pytest.raises(CancelledByClientError):
        await running


async def test_all_calls_are_ended_also_where_one_is_about_to_end() -> None:
    unused: Any = None
    calls = McpToolCalls(unused, unused)
    unwinds, may_end = asyncio.Event(), asyncio.Event()

    async def run(*, is_slow: bool) -> None:
        async with asyncio.timeout(None) as limit:
            calls._running.add(limit)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                if is_slow:
                    unwinds.set()
                    await may_end.wait()

    first = asyncio.create_task(run(is_slow=True))
    await asyncio.sleep(0)
    calls.end_all()
    await unwinds.wait()
    second = asyncio.create_task(run(is_slow=False))
    await asyncio.sleep(0)
    calls.end_all()
    may_end.set()
    ended = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(each) for each in ended] == [TimeoutError, TimeoutError]
