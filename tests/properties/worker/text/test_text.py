"""What the worker reads from a model's text, stop strings, thoughts and calls, is the same however the text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.campaign import campaign_count
from worker.engine import Piece
from worker.text import tool_calls
from worker.text.answer_text import GEMMA, MISTRAL, QWEN, Marks, split_reasoning, until_stop
from worker.text.tool_calls import Markup, split_calls

cuts = st.lists(st.integers(0, 80), max_size=12)
MARKS = [QWEN, GEMMA, MISTRAL]
BODIES = {
    tool_calls.QWEN.begin: ['{"name": "f", "arguments": {"a": 1}}', "<function=f>", "</function>"],
    tool_calls.GEMMA.begin: ['call:h{b:<|"|>x<|"|>}', "call:f{}"],
    tool_calls.MISTRAL.begin: ["g[ARGS]{}", '[{"name": "f"}, {"name": "g"}]'],
}
MARKUPS = [tool_calls.QWEN, tool_calls.GEMMA, tool_calls.MISTRAL]


def text_with(*marks: str) -> st.SearchStrategy[str]:
    """Texts of these marks, halves of them, white space and words."""
    halves = [half for mark in marks for half in (mark[: len(mark) // 2], mark[len(mark) // 2 :])]
    return st.lists(st.sampled_from([*marks, *marks, *halves, "\n\n", " ", "a", "é"]), max_size=9).map("".join)


def pieces_of(text: str, places: Iterable[int], finish: str = "stop") -> Generator[Piece]:
    """A text, cut there, as an engine gives it."""
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    for begin, end in itertools.pairwise(bounds):
        yield Piece(text[begin:end])
    yield Piece(finish_reason="stop" if finish == "stop" else "length")


def told(pieces: Iterable[Piece]) -> tuple[str, str, list[tuple[str, str]], str | None, str | None]:
    """Thought, text, calls, and how it ended. Exactly the last piece says that."""
    all_pieces = list(pieces)
    assert [piece.finish_reason is not None for piece in all_pieces] == [False] * (len(all_pieces) - 1) + [True]
    calls = [call["function"] for piece in all_pieces for call in piece.tool_calls]
    return (
        "".join(piece.thought for piece in all_pieces),
        "".join(piece.text for piece in all_pieces),
        [(call["name"], call["arguments"]) for call in calls],
        all_pieces[-1].finish_reason,
        all_pieces[-1].stop_reason,
    )


def ended_by(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Character by character: the stop string that is complete first; of several, the longest."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=campaign_count(50, 3_000))
@given(text=st.text("ab\n☺", max_size=40), stop=st.text("ab\n☺", min_size=1, max_size=4), places=cuts)
def test_a_text_ends_before_its_stop_string(text: str, stop: str, places: list[int]) -> None:
    thought, said, calls, finish, reason = told(until_stop(pieces_of(text, places, "length"), [stop]))
    assert said == text.split(stop, maxsplit=1)[0]
    assert (finish, reason) == (("stop", stop) if stop in text else ("length", None))
    assert (thought, calls) == ("", [])


@settings(max_examples=campaign_count(50, 3_000))
@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    places=cuts,
)
def test_of_several_stop_strings_the_first_that_is_complete(text: str, stops: list[str], places: list[int]) -> None:
    _, said, _, _, reason = told(until_stop(pieces_of(text, places), stops))
    assert (said, reason) == ended_by(text, stops)


@settings(max_examples=campaign_count(50, 3_000))
@given(data=st.data(), marks=st.sampled_from(MARKS), opened=st.booleans(), places=cuts)
def test_thoughts_come_in_any_parts(data: st.DataObject, marks: Marks, opened: bool, places: list[int]) -> None:
    text = data.draw(text_with(marks.begin, marks.end))

    def stage(pieces: Generator[Piece]) -> Generator[Piece]:
        return split_reasoning(pieces, marks, is_thinking=opened)

    thought, said, *_ = whole = told(stage(pieces_of(text, [])))
    assert told(stage(pieces_of(text, places))) == whole
    if opened or text.lstrip().startswith(marks.begin):
        begun = text if opened else text.lstrip().removeprefix(marks.begin)
        inner, _, after = begun.partition(marks.end)
        assert (thought, said) == (inner.strip(), after.lstrip())
    else:
        assert (thought, said) == ("", text)


@settings(max_examples=campaign_count(50, 3_000))
@given(data=st.data(), markup=st.sampled_from(MARKUPS), several=st.booleans(), places=cuts)
def test_calls_come_in_any_parts(data: st.DataObject, markup: Markup, several: bool, places: list[int]) -> None:
    marks = [markup.begin, markup.end] if markup.end else [markup.begin]
    whole_calls = [f"{markup.begin}{body}{markup.end or ''}" for body in BODIES[markup.begin]]
    text = data.draw(text_with(*marks, *BODIES[markup.begin], *whole_calls))

    def stage(pieces: Generator[Piece]) -> Generator[Piece]:
        numbers = itertools.count()
        return split_calls(pieces, markup, {}, lambda: str(next(numbers)), several=several)

    _, said, calls, finish, _ = whole = told(stage(pieces_of(text, [])))
    assert told(stage(pieces_of(text, places))) == whole
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    assert finish == ("tool_calls" if calls else "stop")
    if not calls:
        assert said == text
    if not several:
        assert len(calls) <= 1
