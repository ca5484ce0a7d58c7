"""OpenAI's completions, translated for engines that serve chat completions alone. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

from gateway.protocols.chat.dialect import OpenAIDialect
from gateway.protocols.common.bodies import CONSTRAINT_FIELDS
from gateway.protocols.common.conversation import Answer, AnswerWriter, Fields, Finish, Prompt, Text, Tokens, User
from gateway.protocols.common.field_reader import (
    describe_value,
    field_error,
    optional_count,
    read_thinking,
    require_value,
)
from gateway.protocols.common.json_bytes import json_bytes, quote_text
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import check_as_chat
from gateway.protocols.common.streams import DONE
from gateway.protocols.via_chat import ViaChatDialect

_READ: Final = frozenset(
    {"model", "prompt", "stream", "stream_options", "max_tokens", "stop", "echo", "suffix", "logprobs", "best_of", "n"}
    # These mean nothing in a completion, but something in a chat.
    | {"messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"}
)
"""Fields that are not passed on to the chat completion."""


def read_prompt(fields: Fields) -> Prompt:
    """Return what a request for a completion asks for, as a conversation of one user message. Raises RoundhouseError
    `invalid_request`, also for what a chat completion cannot answer: several prompts, an empty one or one of tokens,
    `echo`, `suffix`, `logprobs` (0 too), and a `best_of` or `n` other than 1."""
    check_as_chat(fields, "completions")
    passed_fields = {name: value for name, value in fields.items() if name not in _READ}
    thinking: Literal["enabled", "disabled"] | None = None
    if isinstance(passed_fields.get("thinking"), str):  # any other type is the engine's own field
        thinking = read_thinking(passed_fields.pop("thinking"))
    return Prompt(
        turns=(User((Text(_prompt(fields.get("prompt"))),), place="prompt"),),
        max_tokens=optional_count(fields, "max_tokens", 0),
        stop=_stop(fields.get("stop")),
        thinking=thinking,
        passed_fields=passed_fields,
    )


def _prompt(value: Any) -> str:
    prompt = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(prompt, str) and prompt:
        return prompt
    kinds = "one string that is not empty: this model's engine knows conversations alone"
    raise field_error("prompt", f"must be {kinds}; {describe_value(value)}")


def _stop(value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, str):
        return (value,) if value else ()
    return tuple(
        require_value(each, str, f"stop[{number}]") for number, each in enumerate(require_value(value, list, "stop"))
    )


class CompletionWriter:
    """`AnswerWriter` for one answer as OpenAI's `text_completion` object or chunks. Thoughts, tool calls and log
    probabilities are dropped."""

    __slots__ = ("_after", "_before", "_top", "_wants_usage")

    def __init__(self, completion_id: str, created: int, model: str, *, wants_usage: bool) -> None:
        """`completion_id` is the answer's id for the client. `created` is in Unix seconds. `model` is the name that the
        client used. `wants_usage`: the client asked for the usage event of a stream."""
        self._top: Fields = {"id": completion_id, "object": "text_completion", "created": created, "model": model}
        self._wants_usage = wants_usage
        envelope = json_bytes({**self._top, "choices": []})
        self._before = b"data: " + envelope.removesuffix(b"]}") + b'{"index":0,"text":'
        self._after = b'}],"usage":null}\n\n' if wants_usage else b"}]}\n\n"

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """Return no event: a stream starts with its first text."""
        return b""

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        return self._before + quote_text(text) + b',"logprobs":null,"finish_reason":null' + self._after

    def write_reasoning(self, text: str) -> bytes:
        """Return no event: completions have no field for thoughts."""
        return b""

    def write_refusal(self, text: str) -> bytes:
        return self.write_text(text, None)

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """Return no event: the request offered no tools."""
        return b""

    def end_answer(self, finish: Finish, stop_sequence: str | None, tokens: Tokens | None) -> bytes:
        """Return the chunk with the finish reason (`stop` for `tool_calls`), the usage event if the client asked for
        it, and `[DONE]`."""
        last = b'"","logprobs":null,"finish_reason":' + quote_text(_finish(finish))
        usage = b""
        if self._wants_usage and tokens is not None:
            usage = b"data: " + json_bytes({**self._top, "choices": [], "usage": _usage(tokens)}) + b"\n\n"
        return self._before + last + self._after + usage + DONE

    def fail_answer(self, error: Fields) -> bytes:
        return b"data: " + json_bytes({"error": error}) + b"\n\n" + DONE

    def build_answer(self, answer: Answer) -> Fields:
        """Return the whole object. A refusal is its text if the answer has no other."""
        text = answer.text or answer.refusal
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": _finish(answer.finish)}
        usage = {"usage": _usage(answer.tokens)} if answer.tokens is not None else {}
        return {**self._top, "choices": [choice], **usage}


def _finish(finish: Finish) -> str:
    return "stop" if finish == "tool_calls" else finish


def _usage(tokens: Tokens) -> Fields:
    usage: Fields = {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "total_tokens": tokens.prompt + tokens.completion,
    }
    if tokens.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    if tokens.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return usage


class CompletionsViaChat(ViaChatDialect, OpenAIDialect):
    """Dialect of `/v1/completions` for engines that serve chat completions alone: the prompt becomes a user message."""

    form: str | None = "completions"

    def read_request(self, request: InferenceRequest) -> Prompt:
        return read_prompt(request.whole_where_any(CONSTRAINT_FIELDS))

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        completion_id = f"cmpl-{request.id.removeprefix('req-')}"
        return CompletionWriter(completion_id, int(request.received_at), request.model, wants_usage=request.wants_usage)


COMPLETIONS_VIA_CHAT: Final = CompletionsViaChat(is_chat=False)
