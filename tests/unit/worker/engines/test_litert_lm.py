"""LiteRT-LM in this process: when a conversation is kept, what is sent to it, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import litert_lm
import pytest

from tests.support.installed_engines import litertlm
from worker.__main__ import parse_engine
from worker.clockwork import COMPLETION_TOKENS, SENTENCE
from worker.engine import Job, Piece
from worker.engines.litert_lm import LiteRTLM
from worker.errors import JobCancelledError, LoadError, RequestError
from worker.metrics import Counters
from worker.schema import ChatRequest, parse_request

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


FIRST = [user("hello")]
SECOND = [*FIRST, assistant(SENTENCE), user("again")]
THIRD = [*SECOND, assistant(SENTENCE), user("and again")]


class Watched:
    """An engine that has loaded, and what it asked of LiteRT-LM."""

    def __init__(self, name: str, cache: Path, *flags: str) -> None:
        listen = ("--host", "127.0.0.1", "--port", "1", "--served-name", "demo", "--cache-dir", str(cache))
        module, args = parse_engine("litert_lm", [*listen, "--model", str(litertlm(name)), *flags])
        self.engine: LiteRTLM = module.create(args)
        self.engine.load_model()
        self.begun: list[int] = []
        """For every conversation that was begun, how many messages it began with."""
        self.open: list[Any] = []
        self.sent: list[Any] = []
        self.cancelled = 0
        self.before_reading: Callable[[], None] = lambda: None
        self._create = self.engine._engine.create_conversation
        self.engine._engine.create_conversation = self._begin

    def _begin(self, **fields: Any) -> Any:
        conversation = self._create(**fields)
        self.begun.append(len(fields["messages"]))
        self.open.append(conversation)
        send, cancel, close = conversation.send_message_async, conversation.cancel_process, conversation.close

        def sends(message: Any, **how: Any) -> Iterator[Any]:
            self.sent.append(message)
            self.before_reading()
            yield from send(message, **how)

        def cancels() -> None:
            self.cancelled += 1
            cancel()

        def closes() -> None:
            if conversation in self.open:
                self.open.remove(conversation)
            close()

        conversation.send_message_async, conversation.cancel_process, conversation.close = sends, cancels, closes
        return conversation

    def end(self) -> None:
        """LiteRT-LM ends the process if a conversation outlives its engine."""
        for conversation in [*self.open]:
            conversation.close()
        self.engine._engine.close()

    def pieces(self, messages: list[Any], job: Job | None = None, **fields: Any) -> Iterator[Piece]:
        request = parse_request(ChatRequest, json.dumps({"messages": messages, **fields}).encode())
        return self.engine.stream_chat(request, job or Job(Counters()))

    def complete(self, messages: list[Any], **fields: Any) -> tuple[str, int, int]:
        """Text, and tokens of prompt and answer."""
        job = Job(Counters())
        text = "".join(piece.text for piece in self.pieces(messages, job, **fields))
        return text, job.prompt_tokens, job.completion_tokens


@pytest.fixture
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """Of the clockwork model, or of the one that is a parameter."""
    opened = Watched(getattr(request, "param", "clockwork"), tmp_path)
    yield opened
    opened.end()


caller = pytest.mark.parametrize("watched", ["caller"], indirect=True)


def test_a_conversation_that_goes_on_sends_its_new_message_alone(watched: Watched) -> None:
    fresh = []
    for messages in (SECOND, THIRD):
        fresh.append(watched.complete(messages))
        watched.complete([user("something else")])
    watched.begun.clear()
    watched.sent.clear()
    reused = [watched.complete(messages) for messages in (FIRST, SECOND, THIRD)][1:]
    assert reused == fresh, "text and counts are those of a conversation that was begun anew"
    assert watched.begun == [0]
    assert [message["content"] for message in watched.sent] == [
        [{"type": "text", "text": text}] for text in ("hello", "again", "and again")
    ]
    assert len(watched.open) == 1, "those before are closed"


def test_the_cache_holds_what_was_said_before(watched: Watched) -> None:
    watched.complete(FIRST)
    figures = watched.open[0].get_benchmark_info
    read = figures().last_prefill_token_count
    _, prompt, _ = watched.complete(SECOND)
    # Of the second prompt, all but the first prompt and its answer.
    assert figures().last_prefill_token_count == prompt - read - COMPLETION_TOKENS


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([user("hello!"), *SECOND[1:]], {}),
        ([FIRST[0], assistant(SENTENCE + "!"), SECOND[-1]], {}),
        ([FIRST[0], user("between"), *SECOND[1:]], {}),
        ([{"role": "system", "content": "be kind"}, *SECOND], {}),
        (FIRST, {}),
        ([*SECOND, user("two at a time")], {}),
        (SECOND, {"temperature": 0}),
        (SECOND, {"seed": 1}),
        (SECOND, {"chat_template_kwargs": {"a": 1}}),
    ],
)
def test_another_conversation_is_begun_anew(watched: Watched, messages: list[Any], fields: dict[str, Any]) -> None:
    watched.complete(FIRST)
    assert watched.complete(messages, **fields)[0]
    assert watched.begun == [0, len(messages) - 1]
    assert len(watched.open) == 1


def test_what_is_the_same_in_other_words_goes_on(watched: Watched) -> None:
    watched.complete(FIRST, top_k=1)
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}, *SECOND[1:]]
    watched.complete(parts, top_k=1, max_tokens=3)
    assert watched.begun == [0]


def test_a_cut_answer_is_not_gone_on_from(watched: Watched) -> None:
    for limit in (3, COMPLETION_TOKENS):
        watched.complete(FIRST, max_tokens=limit)
        assert watched.open == []
    next(pieces := watched.pieces(FIRST))
    pieces.close()  # type: ignore[attr-defined]
    assert watched.open == []
    assert watched.cancelled > 0
    watched.complete([*FIRST, assistant("The quick brown"), user("go on")])
    assert watched.begun == [0, 0, 0, 2]


@caller
def test_thoughts_are_not_gone_on_from_and_calls_are(watched: Watched) -> None:
    fields: dict[str, Any] = {"tools": [TOOL]}
    calls = [call for piece in watched.pieces(FIRST, **fields) for call in piece.tool_calls]
    assert watched.open == [], "the template takes the thought out of earlier answers, the cache has it"
    told = {**assistant(" jumps over a lazy dog"), "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"degrees": 7}'}
    done, _, _ = watched.complete([*FIRST, told, result], **fields)
    assert watched.sent[-1]["content"] == [{"type": "tool_response", "name": "weather", "response": {"degrees": 7}}]
    watched.complete([*FIRST, told, result, assistant(done), user("thanks")], **fields)
    assert watched.begun == [0, 2], "the result begins anew, and what follows goes on"


@caller
@pytest.mark.parametrize("tools", [[TOOL], []])
def test_what_cuts_a_thought_or_a_call_is_the_limit(watched: Watched, tools: list[Any]) -> None:
    job = Job(Counters())
    assert [*watched.pieces(FIRST, job, tools=tools)][-1].finish_reason == ("tool_calls" if tools else "stop")
    whole = job.completion_tokens
    for limit in (1, 4, 7, whole - 1):
        *_, last = watched.pieces(FIRST, tools=tools, max_tokens=limit)
        assert last.finish_reason == "length", limit
        assert watched.open == [], limit


def test_what_the_model_said_and_the_client_did_not_get_is_not_gone_on_from(watched: Watched) -> None:
    engine: Any = watched.engine
    calls = [{"function": {"name": "weather", "arguments": {}}}] * 2
    engine._tells_tools, chunks = True, engine._chunks

    def called(stream: Any) -> Iterator[Any]:
        [*chunks(stream)]
        yield {"tool_calls": calls}

    engine._chunks = called
    for parallel, told in ((True, 2), (False, 1)):
        pieces = [*watched.pieces(FIRST, tools=[TOOL], parallel_tool_calls=parallel)]
        assert len([call for piece in pieces for call in piece.tool_calls]) == told
        assert bool(watched.open) is parallel


def test_an_answer_that_nobody_waits_for_ends_at_its_next_token(watched: Watched) -> None:
    job = Job(Counters())
    pieces = watched.pieces(FIRST, job)
    assert next(pieces).text == "The"
    job.cancel()
    with pytest.raises(JobCancelledError):
        list(pieces)
    assert job.completion_tokens < COMPLETION_TOKENS
    assert (watched.cancelled > 0, watched.open) == (True, [])
    assert watched.complete(FIRST)[0] == SENTENCE


def test_a_request_that_was_cancelled_before_it_began_reads_nothing(watched: Watched) -> None:
    job = Job(Counters())
    job.cancel()
    with pytest.raises(JobCancelledError):
        [*watched.pieces(FIRST, job)]
    assert (watched.sent, watched.open) == ([], [])


@pytest.mark.parametrize("late", [True, False])
def test_a_conversation_that_the_model_s_template_refuses(watched: Watched, late: bool) -> None:
    def refuses(**fields: Any) -> Any:
        raise RuntimeError(
            "litert_lm_conversation_send_message_stream failed" if late else "Failed to create conversation"
        )

    if late:
        watched.before_reading = refuses
    else:
        watched.engine._engine.create_conversation = refuses
    with pytest.raises(RequestError, match="The model takes no such conversation") as raised:
        watched.complete(FIRST)
    assert raised.value.param == "messages"
    assert watched.open == []


def test_a_request_that_is_refused_leaves_the_conversation_as_it_was(watched: Watched) -> None:
    watched.complete(FIRST)
    refused: Any = [{"repeat_penalty": 0.5}, {"min_p": 0.1}, {"chat_template_kwargs": {"messages": []}}]
    for fields in refused:
        with pytest.raises(RequestError):
            watched.complete(SECOND, **fields)
    assert watched.complete(SECOND)[0] == SENTENCE
    assert watched.begun == [0]


def test_other_failures_are_not_the_request_s_fault(watched: Watched) -> None:
    def fails() -> None:
        raise RuntimeError("INTERNAL: something broke")

    watched.before_reading = fails
    with pytest.raises(RuntimeError, match="something broke"):
        watched.complete(FIRST)
    assert watched.open == []


def test_a_conversation_that_grew_too_long_is_given_up(watched: Watched) -> None:
    watched.complete(FIRST)
    with pytest.raises(RequestError) as raised:
        watched.complete([*SECOND[:2], user("x" * 5000)])
    assert raised.value.code == "context_length_exceeded"
    assert watched.open == []
    assert watched.complete(SECOND)[0] == SENTENCE


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(LoadError, match=f"^--cache-dir {file}/cache cannot be made: Not a directory$"):
        Watched("clockwork", file / "cache")


def test_the_audio_backend_reaches_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model that takes audio can be had here, so the file's word for it is replaced."""
    asked: dict[str, Any] = {}
    make = litert_lm.Engine

    def record(*args: Any, **fields: Any) -> Any:
        asked.update(fields)
        return make(*args, **(fields | {"audio_backend": None}))

    hears = litert_lm.SupportedModalities(text=True, vision=False, audio=True, video=False)
    monkeypatch.setattr(litert_lm, "Engine", record)
    monkeypatch.setattr(litert_lm.ModelInfo, "input_modalities", property(lambda _: hears))
    Watched("clockwork", tmp_path, "--audio-backend", "cpu").end()
    assert isinstance(asked["audio_backend"], litert_lm.Backend.CPU)
    assert asked["vision_backend"] is None
