"""Calls of tools that gateways report: each is in the journal once, bounded, without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.journal import HISTORY_KINDS, JournalEntry
from contract.routing import MOST_TOOL_CALLS, GatewayReport
from contract.tools import ToolCallRecord, replica_model
from controller.journal import KNOWN_GATEWAYS, SHOWN_CHARS, EventLog, ToolCallRecorder
from controller.redaction import Redactor

NOW = 1_700_000_000.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[EventLog]:
    made = EventLog(tmp_path / "journal.db")
    yield made
    made.close()


def call(sequence: int, **fields: object) -> ToolCallRecord:
    values = {"tool": "calculate", "caller": "ci", "arguments": f'{{"n": {sequence}}}', "outcome": "ok", **fields}
    return ToolCallRecord.model_validate({"sequence": sequence, "at": NOW - 1, "duration_ms": 12, **values})


def report(*calls: ToolCallRecord, gateway: str = "gw-1") -> GatewayReport:
    return GatewayReport(gateway_id=gateway, stamp=None, tool_calls=calls)


def recorder(journal: EventLog, redactor: Redactor | None = None) -> ToolCallRecorder:
    redactor = redactor or Redactor(lambda name: f"token of {name}")
    return ToolCallRecorder(journal, lambda: NOW, redactor.redact_text)


def entries(journal: EventLog) -> list[JournalEntry]:
    """The entries of calls, oldest first."""
    return journal.read_page(("tool",), None, None, 10_000)[::-1]


def sequences(journal: EventLog) -> list[tuple[object, object]]:
    return [(each.details.get("gateway"), each.details.get("sequence")) for each in entries(journal)]


def test_an_entry_says_who_called_what_and_what_came_of_it(journal: EventLog) -> None:
    failed = call(2, tool="weather__now", server="weather", outcome="tool_timeout", duration_ms=30_000, request_id="r")
    recorder(journal).record_calls(report(call(1, output_bytes=5), failed))
    ok, timeout = entries(journal)
    assert (ok.kind, ok.model, ok.actor, ok.message) == ("tool", None, "ci", "called calculate: ok, 12 ms")
    assert ok.details == {
        "tool": "calculate", "server": None, "arguments": '{"n": 1}', "outcome": "ok", "duration_ms": 12,
        "output_bytes": 5, "at": NOW - 1, "request_id": "", "gateway": "gw-1", "sequence": 1,
    }  # fmt: skip
    assert timeout.message == "called weather__now: tool_timeout, 30000 ms"
    assert (timeout.details["server"], timeout.details["request_id"]) == ("weather", "r")
    assert "tool" in HISTORY_KINDS


def test_a_repeated_call_is_written_once_whatever_repeats_it(journal: EventLog) -> None:
    first = recorder(journal)
    first.record_calls(report())
    first.record_calls(report(call(1), call(2)))
    first.record_calls(report(call(1), call(2), call(3)))
    first.record_calls(report(call(2), call(1)))
    # The next controller goes on after what this one wrote.
    recorder(journal).record_calls(report(call(2), call(3), call(4)))
    recorder(journal).record_calls(report(call(1), gateway="gw-2"))
    assert sequences(journal) == [*(("gw-1", number) for number in (1, 2, 3, 4)), ("gw-2", 1)]


def test_a_call_that_lies_behind_many_of_another_gateway_is_not_written_again(journal: EventLog) -> None:
    first = recorder(journal)
    first.record_calls(report(call(70), gateway="idle"))
    for last in range(MOST_TOOL_CALLS, 65 * MOST_TOOL_CALLS + 1, MOST_TOOL_CALLS):
        first.record_calls(report(*(call(last - number) for number in range(MOST_TOOL_CALLS)), gateway="busy"))
    written = len(entries(journal))
    assert written == 2 + 65 * MOST_TOOL_CALLS
    recorder(journal).record_calls(report(call(70), gateway="idle"))
    assert len(entries(journal)) == written


def test_calls_that_no_report_holds_any_more_are_counted(journal: EventLog) -> None:
    made = recorder(journal)
    made.record_calls(report(call(1)))
    made.record_calls(report(call(5), call(6), call(9)))
    called, lost = "called calculate: ok, 12 ms", "calls of tools are not recorded: there were more than a report holds"
    expected = [called, f"3 {lost}", called, called, f"2 {lost}", called]
    assert [each.message for each in entries(journal)] == expected
    assert [each.details.get("missing") for each in entries(journal)] == [None, 3, None, None, 2, None]


def test_a_report_with_too_many_calls_or_one_number_twice_is_bounded(journal: EventLog) -> None:
    recorder(journal).record_calls(report(*(call(number) for number in range(1, 200)), call(199), call(199)))
    written = entries(journal)
    assert len(written) == MOST_TOOL_CALLS - 2 + 1
    assert (written[0].details["missing"], written[-1].details["sequence"]) == (199 - (MOST_TOOL_CALLS - 2), 199)


def test_only_some_gateways_are_remembered_and_the_newest_of_them(journal: EventLog) -> None:
    made = recorder(journal)
    for number in range(KNOWN_GATEWAYS + 1):
        made.record_calls(report(call(1), gateway=f"gw-{number}"))
    written = len(entries(journal))
    made.record_calls(report(call(1), gateway=f"gw-{KNOWN_GATEWAYS}"))
    made.record_calls(report(call(1), gateway="gw-1"))
    assert len(entries(journal)) == written == KNOWN_GATEWAYS + 1
    made.record_calls(report(call(1), gateway="gw-0"))
    assert len(entries(journal)) == written + 1, "the one that wrote longest ago is forgotten"


def test_secrets_are_masked_before_a_text_is_cut(journal: EventLog) -> None:
    redactor = Redactor(lambda name: name)
    fields = {"url": "https://a/", "headers": {"Authorization": "Bearer tok-0123456789", "X-Id": "plain-value"}}
    redactor.learn_secrets({replica_model("a"): fields, "other": {"env": {"API_KEY": "of-another-model"}}})
    texts = {
        "marked": '{"api_key": "sk-very-secret", "q": "x"}',
        "known": '{"q": "tok-0123456789 and plain-value"}',
        "cut": f'{{"q": "{"x" * (SHOWN_CHARS - 12)}tok-0123456789"}}',
        "foreign": '{"q": "of-another-model"}',
    }
    made = recorder(journal, redactor)
    made.record_calls(
        report(*(call(1 + at, server="a", tool="a__t", arguments=text) for at, text in enumerate(texts.values())))
    )
    shown = [str(each.details["arguments"]) for each in entries(journal)]
    assert shown[0] == '{"api_key": "***", "q": "x"}'
    assert shown[1] == '{"q": "*** and ***"}'
    assert shown[2] == f'{{"q": "{"x" * (SHOWN_CHARS - 12)}***"}}', "not half of the secret"
    assert shown[3] == texts["foreign"], "of a server its own secrets are known"
    assert all(len(each) <= SHOWN_CHARS for each in shown)


def test_long_and_strange_texts_of_a_gateway_are_bounded(journal: EventLog) -> None:
    strange = call(
        1, tool="t" * 10_000, caller="c\n\x1b" * 500, outcome="o" * 500, request_id="r" * 999, server="s" * 999
    )
    recorder(journal).record_calls(report(strange))
    [entry] = entries(journal)
    texts = [entry.actor, *(each for each in entry.details.values() if isinstance(each, str))]
    assert max(map(len, texts)) == SHOWN_CHARS
    assert len(entry.message) <= 3 * SHOWN_CHARS
    assert entry.message.isprintable()
