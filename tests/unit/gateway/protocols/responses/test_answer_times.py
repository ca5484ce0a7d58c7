"""What is kept of the times of a response, for each of its items."""

from __future__ import annotations

from typing import Any

from gateway.protocols.responses.answer_times import AnswerTimes

USAGE = {"input_tokens": 3, "output_tokens": 4}


def response(*names: str) -> dict[str, Any]:
    """A complete response with these items."""
    return {"id": "resp_1", "model": "m", "usage": USAGE, "output": [{"id": name} for name in names]}


def test_each_item_takes_until_the_next_and_the_last_has_the_figures() -> None:
    times = AnswerTimes(100.0)
    times.begin_item(100.5, is_said=False)
    times.begin_item(101.25, is_said=True)
    times.begin_item(103.0, is_said=True)
    times.ended_at = 103.5
    figures = {"model": "m", "usage": USAGE, "first_token_ms": 1250, "total_ms": 3500}
    assert times.describe_items(response("list", "thought", "text")) == [
        {"response_id": "resp_1", "took_ms": 750, "figures": None},
        {"response_id": "resp_1", "took_ms": 1750, "figures": None},
        {"response_id": "resp_1", "took_ms": 500, "figures": figures},
    ]


def test_of_an_answer_that_was_no_stream_only_the_whole_time_is_known() -> None:
    times = AnswerTimes(100.0, ended_at=102.0)
    figures = {"model": "m", "usage": USAGE, "first_token_ms": None, "total_ms": 2000}
    assert times.describe_items(response("thought", "text")) == [
        {"response_id": "resp_1", "took_ms": None, "figures": None},
        {"response_id": "resp_1", "took_ms": None, "figures": figures},
    ]
    assert times.describe_items(response()) == []


def test_an_attempt_of_which_nothing_came_is_forgotten_and_a_clock_that_was_set_back_counts_as_none() -> None:
    times = AnswerTimes(100.0)
    times.begin_item(100.1, is_said=True)
    times.restart()
    times.begin_item(99.0, is_said=True)
    times.ended_at = 98.0
    [described] = times.describe_items(response("text"))
    assert (described["took_ms"], described["figures"]["first_token_ms"], described["figures"]["total_ms"]) == (0, 0, 0)
