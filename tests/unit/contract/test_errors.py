"""The error table: documented, and the envelope's form. The golden `errors` pins codes and statuses."""

from __future__ import annotations

import json

import pytest

from contract.errors import ERROR_CODES, RoundhouseError
from tests.support.doc_tables import error_rows, error_types, rows_of, rows_within


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
