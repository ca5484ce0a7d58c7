"""The forms of log lines."""

from __future__ import annotations

import json
import logging
from types import TracebackType

import pytest

from common.log_formats import create_formatter, tag_request

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def record_of(
    message: str, *args: object, exc_info: ExcInfo | None = None, extra: dict[str, str | None] | None = None
) -> logging.LogRecord:
    logger = logging.getLogger("gateway")
    return logger.makeRecord("gateway", logging.WARNING, "", 0, message, args, exc_info, extra=extra)


def exc_info() -> ExcInfo:
    error = ValueError("unexpected\nin two lines")
    return ValueError, error, error.__traceback__


def test_a_json_line_is_one_object() -> None:
    record = record_of('it says "%s"\n', "ü", extra=tag_request("req-1"))
    record.created = 1_700_000_000.25
    line = create_formatter("json").format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "gateway",
        "message": 'it says "ü"\n',
        "request_id": "req-1",
    }


def test_a_json_line_without_a_request_has_no_id() -> None:
    assert "request_id" not in json.loads(create_formatter("json").format(record_of("a line")))
    assert "request_id" not in json.loads(create_formatter("json").format(record_of("a line", extra=tag_request(None))))


def test_a_traceback_stays_in_its_line() -> None:
    line = create_formatter("json").format(record_of("it failed", exc_info=exc_info()))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: unexpected\nin two lines")


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_for_journald_each_line_has_its_priority(log_format: str) -> None:
    formatter = create_formatter("json" if log_format == "json" else "human", is_journal=True)
    lines = formatter.format(record_of("it failed", exc_info=exc_info())).split("\n")
    assert all(line.startswith("<4>") for line in lines)
    if log_format == "json":
        [line] = lines
        assert json.loads(line.removeprefix("<4>"))["message"] == "it failed"
