"""What llama-server tells of a prompt: asked for, read, and kept from clients that did not ask."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.chat.prompt_progress import (
    PromptProgress,
    PromptProgressStream,
    ask_for_progress,
    tells_progress,
)
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.completions.via_chat import COMPLETIONS_VIA_CHAT
from gateway.protocols.llama_native.dialect import NATIVE
from tests.fakes.fake_controller import route

LLAMA = route("m").model_copy(update={"backend": "llama_server"})


def event(fields: dict[str, Any], processed: int | None = None, total: int = 100) -> bytes:
    """One event, of a prompt of which so many tokens are processed."""
    told = {"total": total, "cache": 10, "processed": processed, "time_ms": 1}
    return b"data: %b\n\n" % json.dumps(fields if processed is None else {**fields, "prompt_progress": told}).encode()


def choice(index: int = 0, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat."""
    return {"choices": [{"index": index, "finish_reason": None, **fields}]}


ROLE = choice(delta={"role": "assistant", "content": None})
TEXT = choice(delta={"content": 'it says "prompt_progress"'})
END = choice(delta={}) | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"


def parsed(**fields: Any) -> InferenceRequest:
    """A request."""
    return parse_request(json.dumps({"model": "m", "stream": True, **fields}).encode(), may_stream=True)


def fed(stream: bytes, *, drops: bool = True, size: int | None = None, dialect: Any = CHAT) -> tuple[bytes, list[Any]]:
    """What a client gets of a stream that comes in pieces of this size, and what is told."""
    told: list[PromptProgress] = []
    reader = PromptProgressStream(dialect.open_stream(parsed()), told.append, drops=drops)
    step = size or len(stream)
    passed = b"".join(reader.feed_data(stream[start : start + step]) for start in range(0, len(stream), step))
    passed += reader.finish_stream()
    assert reader.is_complete
    return passed, told


WHOLE = event(ROLE, 10) + event(ROLE, 60) + event(ROLE, 100) + event(ROLE) + event(TEXT) + event(END) + DONE
REST = event(ROLE) + event(TEXT) + event(END) + DONE
TOLD = [PromptProgress(100, 10, done) for done in (10, 60, 100)]


@pytest.mark.parametrize("size", range(1, 40))
def test_the_progress_is_told_and_dropped_wherever_the_stream_is_cut(size: int) -> None:
    assert fed(WHOLE, size=size) == (REST, TOLD)


def test_a_client_that_asked_itself_gets_it_too() -> None:
    assert fed(WHOLE, drops=False) == (WHOLE, TOLD)


def test_a_stream_without_progress_passes_byte_for_byte() -> None:
    assert fed(REST) == (REST, [])
    assert fed(REST.removesuffix(b"\n\n"), size=7) == (REST, [])


@pytest.mark.parametrize(
    ("fields", "dialect"),
    [
        (choice(delta={"role": "assistant", "content": "Hi"}), CHAT),
        (choice(delta={"reasoning_content": "Hm", "reasoning": "Hm"}), CHAT),
        (choice(text="Hi"), COMPLETIONS),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, CHAT),
        ({"index": 0, "content": "Hi", "stop": False}, NATIVE),
    ],
)
def test_an_event_that_holds_a_part_of_the_answer_loses_the_progress_alone(fields: Any, dialect: Any) -> None:
    passed, told = fed(event(fields, 100) + DONE, dialect=dialect)
    assert [json.loads(passed.split(b"\n\n")[0].removeprefix(b"data: ")), *told] == [fields, TOLD[-1]]


@pytest.mark.parametrize(
    "fields", [choice(text=""), choice(delta={"role": "assistant", "content": None}), {"content": "", "stop": False}]
)
def test_an_event_of_the_progress_alone_is_dropped(fields: Any) -> None:
    assert fed(event(fields, 100) + DONE)[0] == DONE


def test_several_prompts_are_told_of_together() -> None:
    stream = event(choice(0, text=""), 50) + event(choice(1, text=""), 10, 300) + event(choice(1, text=""), 300, 300)
    assert fed(stream + DONE)[1] == [
        PromptProgress(100, 10, 50),
        PromptProgress(400, 20, 60),
        PromptProgress(400, 20, 350),
    ]


@pytest.mark.parametrize("told", ["null", "[]", '"x"', "{}", '{"total": "x", "processed": -1, "cache": true}'])
def test_whatever_an_engine_sends_in_its_place(told: str) -> None:
    passed, _ = fed(b'data: {"choices":[{"index":null}],"prompt_progress":%b}\n\n' % told.encode() + DONE)
    assert passed.endswith(DONE)


@pytest.mark.parametrize(("prompt", "share"), [((0, 0, 0), 1.0), ((4, 0, 1), 0.25), ((4, 4, 4), 1.0), ((4, 0, 9), 1.0)])
def test_the_share(prompt: tuple[int, int, int], share: float) -> None:
    assert PromptProgress(*prompt).share == share


@pytest.mark.parametrize("asked", [{}, {"return_progress": False}, {"return_progress": None}])
def test_a_request_asks(asked: dict[str, Any]) -> None:
    request = parsed(messages=[], **asked)
    asking = ask_for_progress(request)
    sent = json.loads(CHAT.engine_body(asking, LLAMA, as_stream=False))
    assert sent == {
        "model": "m",
        "stream": True,
        "messages": [],
        "return_progress": True,
        "stream_options": {"include_usage": True},
    }
    assert asking.outline_fields["return_progress"] is True
    assert ask_for_progress(asking) is asking


def test_a_translated_request_asks() -> None:
    request = parsed(prompt="Hi")
    request.prompt = COMPLETIONS_VIA_CHAT.read_request(request)
    asking = ask_for_progress(request)
    assert json.loads(COMPLETIONS_VIA_CHAT.engine_body(asking, LLAMA, as_stream=False))["return_progress"] is True


@pytest.mark.parametrize(
    ("api", "backend", "tells"),
    [
        ("/v1/chat/completions", "llama_server", True),
        ("/completion", "llama_server", True),
        ("/v1/messages", "llama_server", False),
        ("/v1/chat/completions", "vllm_serve", False),
        ("/v1/chat/completions", "openai_remote", False),
    ],
)
def test_who_tells(api: str, backend: str, tells: bool) -> None:
    assert tells_progress(api, route("m").model_copy(update={"backend": backend})) is tells
