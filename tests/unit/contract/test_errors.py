"""The error table: documented, and the envelope's form. The golden `errors` pins codes and statuses."""

from __future__ import annotations

import json
import re

import pytest

from cli.output import explain_error
from contract.errors import ERROR_CODES, RoundhouseError, fill_steps
from tests.support.doc_tables import PAGE_STEPS, error_rows, error_types, page_steps_text, rows_of, rows_within

HEADERS = re.compile(r"(?i)authorization|x-[a-z]+-|retry-after|\bhost header|bearer")
ROUTES = re.compile(r"\b(GET|POST|PUT|DELETE) /|/v1/|`param`")
UNFILLED = re.compile(r"[{}|]|(?<![A-Z_])(NAME|MODEL|SECRET|USER|REPO|SERVER|ID|KEY)(?![A-Z_])")
SAID = {"model": "qwen", "param": "top_k", "retry_after_s": 2}


@pytest.mark.parametrize("error_type", error_types())
def test_the_docs_hold_the_same_table(error_type: str) -> None:
    assert rows_of("errors.md", error_type) == error_rows(error_type)


def test_the_docs_hold_no_other_code() -> None:
    assert len(rows_within("errors.md")) == len(ERROR_CODES)


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_code_says_what_to_do(code: str) -> None:
    error = RoundhouseError(code, "words", param="model", retry_after_s=2.4)
    body = json.loads(error.json_bytes("req-1"))["error"]
    assert body["code"] == code
    assert body["status"] == ERROR_CODES[code].status
    assert body["next_steps"]
    assert (body["message"], body["param"], body["request_id"]) == ("words", "model", "req-1")
    expected = {True: {"retry-after": "2"}, False: {"x-should-retry": "false"}, None: {}}
    assert error.build_headers() == expected[ERROR_CODES[code].retry]


def test_every_code_on_every_surface_in_its_words() -> None:
    wrong = []
    for code, entry in ERROR_CODES.items():
        for fields in (SAID, {}):
            given = fill_steps(entry.next_steps, fields)
            page = given if entry.page_steps is None else fill_steps(entry.page_steps, fields)
            _, cli = explain_error("", code, given, fields)
            for surface, steps in (("api", given), ("page", page), ("cli", cli)):
                if not steps and not (surface == "cli" and entry.cli_steps == ()):
                    wrong.append((code, surface, "says nothing"))
                for step in steps:
                    if UNFILLED.search(step) or not step.endswith("."):
                        wrong.append((code, surface, step))
                    if surface != "api" and (HEADERS.search(step) or ROUTES.search(step)):
                        wrong.append((code, surface, step))
                    if (surface == "cli" and "`" in step) or step.count("`") % 2:
                        wrong.append((code, surface, step))
    assert wrong == []


def test_the_page_has_the_same_declaration() -> None:
    assert PAGE_STEPS.read_text(encoding="utf-8") == page_steps_text(), "make derive"


def test_a_step_is_filled_by_what_the_error_says_of_itself() -> None:
    error = RoundhouseError("model_not_loaded", "words", model="qwen/8b")
    body = json.loads(error.json_bytes())["error"]
    assert body["model"] == "qwen/8b"
    assert body["next_steps"][0] == "Load it: `roundhouse load qwen/8b`, or POST /v1/admin/models/qwen/8b/load."
    nameless = json.loads(RoundhouseError("model_not_loaded", "words").json_bytes())["error"]
    assert "model" not in nameless
    assert nameless["next_steps"] == ["Set `enabled: true` or `autoload: true` in its definition."]
    message, steps = explain_error("`m` waits.", "queue_full", [], {"retry_after_s": 7})
    assert (message, steps[0]) == ("m waits.", "Try again in 7 seconds.")
    assert explain_error("", "queue_full", [], {})[1][0] == "Try again in a few seconds."
    assert explain_error("No.", "of_an_engine", ["Read `this`."], {}) == ("No.", ["Read this."])
