"""Dialects that translate an API family into chat completions, for engines that serve those. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.chat import codec, llama_server, vllm
from gateway.protocols.chat.engine_request import adapt_fields, adapt_thinking, ask_for_prompt_tokens
from gateway.protocols.chat.stream_collector import CallNumbers, OpenAICollector
from gateway.protocols.chat.tool_choice import narrow_tools
from gateway.protocols.common import errors
from gateway.protocols.common.capabilities import check_prompt
from gateway.protocols.common.conversation import Answer, AnswerWriter, Assistant, Fields, Finish, Prompt, Tokens
from gateway.protocols.common.dialect import EventStream, StreamCollector, Usage
from gateway.protocols.common.event_reader import EventReader
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.known_fields import CHAT_FIELDS, check_foreign_fields, drop_foreign_fields
from gateway.protocols.common.output_constraints import adapt_constraints
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.stream_compat import differs_as_stream, wants_probabilities
from gateway.protocols.common.usage import usage_of


class ViaChatBase(ABC):
    """The part of a `Dialect` that reads a request, checks it, and writes it as a chat completion. The base of
    `ViaChatDialect` for answers and of `TokenCountDialect`."""

    may_flow: bool = False

    @abstractmethod
    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for. Called once for each request, by `check_request`.

        Of a large body, the outline may be read, but `passed_fields` of the result must hold constraints on the
        answer's form (`output_constraints.CONSTRAINT_FIELDS`) with their whole text.

        Raises:
            RoundhouseError: `invalid_request`, or another code for what cannot be translated, such as
                `modality_unsupported`; its `param` is the path to the value in the request.
        """

    def can_serve(self, request: InferenceRequest) -> bool:
        """Return True: what cannot be translated is refused when the request is read."""
        return True

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Read the request, and refuse it if it cannot be translated or asks for what the model does not support.

        Call it before the other methods, and again whenever the model's route has changed. The first call reads the
        request and sets `request.prompt`; later calls check that prompt against the new route. Each call sets
        `request.repeated_turn`: for llama-server the last turn if the answer continues it, as the client sent it; else
        None; and `request.continues_text`: whether vLLM is asked to continue it.

        Raises:
            RoundhouseError: as `read_request`; `invalid_request` for constraints on the answer's form that are wrong;
                the code of what the model does not support, such as `tools_unsupported` (`capabilities.check_prompt`)
                or `structured_output_unsupported`; `invalid_json` if the repeated turn of a large body is not valid.
        """
        if request.prompt is None:
            request.prompt = self.read_request(request)
        prompt = self.prompt_for(request, request.prompt, route)
        check_prompt(prompt, route.capabilities, route.name)
        _check_constraints(prompt, route)
        check_foreign_fields(dict(prompt.passed_fields), CHAT_FIELDS, route)
        request.continues_text = route.backend in vllm.BACKENDS and bool(vllm.fields_for(prompt))
        is_repeated = route.backend == llama_server.BACKEND
        request.repeated_turn = _whole_turn(llama_server.repeated_turn(prompt), request) if is_repeated else None

    def prompt_for(self, request: InferenceRequest, prompt: Prompt, route: ModelRoute) -> Prompt:
        """Return what counts of `prompt`, which `request` asks for, with the model of `route`: here all of it. A
        subclass may leave out wishes that a model may ignore, in a copy: `request.prompt` keeps them, because the model
        may change while the request waits."""
        return prompt

    def _chat_fields(self, request: InferenceRequest, route: ModelRoute) -> Fields:
        assert request.prompt is not None, "checked before"
        prompt = self.prompt_for(request, request.prompt, route)
        thinking_fields = {} if prompt.thinking is None else {"thinking": prompt.thinking}
        fields = adapt_fields(adapt_thinking(codec.write_request(prompt) | thinking_fields, route), route)
        fields = adapt_constraints(fields, route, is_chat=True)
        if route.backend == llama_server.BACKEND:
            fields = narrow_tools(fields | llama_server.fields_for(prompt), names_one=True)
        if route.backend in vllm.BACKENDS:
            fields |= vllm.fields_for(prompt)
        fields = drop_foreign_fields(fields, CHAT_FIELDS, route)
        fields["model"] = route.served_name
        return fields


class ViaChatDialect(ViaChatBase):
    """The part of a `Dialect` that translates answers. Errors and heartbeats come from the family's own dialect, which
    a subclass inherits too."""

    tells_prompt_first: bool = False
    """Whether the first event of the family's streams holds the prompt's token count."""

    @abstractmethod
    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        """Return a new writer for one answer in the client's family. Call after `check_request`."""

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the request as a chat completion, which asks for a stream with usage if the client did or `as_stream`
        is set. Call after `check_request`.

        Raises:
            RoundhouseError: `invalid_request`: the tool that must be called is not among the tools.
        """
        fields = self._chat_fields(request, route)
        if as_stream or request.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
            if self.tells_prompt_first and request.stream:
                fields = ask_for_prompt_tokens(fields, route)
        return json_bytes(fields)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """Return a new `TranslatedStream` for the answer. Call after `check_request`."""
        return TranslatedStream(
            self.open_writer(request), request.id, request.repeated_turn, continues_text=request.continues_text
        )

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return a new `TranslatedCollector`; None if a stream cannot give the same answer (`stream_compat`), so that
        a blocking chat completion must be asked for and translated. Call after `check_request`."""
        prompt = request.prompt
        assert prompt is not None, "checked before"
        outline = _chat_outline(prompt)
        if wants_probabilities(outline) or differs_as_stream(outline):
            return None
        return TranslatedCollector(
            self.open_writer(request), request.repeated_turn, continues_text=request.continues_text
        )

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that translates a blocking chat completion; never None. Call the function once. It raises
        RoundhouseError as `translate_body`. Call this after `check_request`."""
        writer, repeated_turn, goes_on = self.open_writer(request), request.repeated_turn, request.continues_text
        return lambda body: translate_body(body, writer, repeated_turn, continues_text=goes_on)


def _check_constraints(prompt: Prompt, route: ModelRoute) -> None:
    """Refuse the constraints on the answer's form that `adapt_constraints` refuses, under the client's names."""
    fields, output = dict(prompt.passed_fields), prompt.output_format
    if output is None:
        adapt_constraints(fields, route, is_chat=True)
    else:
        fields["response_format"] = codec.write_format(output)
        adapt_constraints(fields, route, is_chat=True, format_name=output.place)


def _whole_turn(turn: Assistant | None, request: InferenceRequest) -> Assistant | None:
    """Return the turn as the client sent it, also if the request was read by its outline."""
    body = request.large_body
    if turn is None or body is None:
        return turn
    fill = body.fill_text
    return replace(turn, text=fill(turn.text), thought=fill(turn.thought), refusal=fill(turn.refusal))


def _chat_outline(prompt: Prompt) -> Fields:
    """Return the fields of the chat request that `stream_compat` examines, without writing the whole conversation."""
    is_continuation = bool(prompt.turns) and isinstance(prompt.turns[-1], Assistant)
    messages = [{"role": "assistant"}] if is_continuation else []
    stop = prompt.stop or prompt.passed_fields.get("stop")
    return {**prompt.passed_fields, "messages": messages, "stop": stop, "max_tokens": prompt.max_tokens}


class TranslatedStream(EventReader):
    """`EventStream` that translates chat completion chunks into events of the client's family. Of several choices, the
    first alone is translated."""

    __slots__ = (
        "_calls",
        "_continues_text",
        "_finish",
        "_has_begun",
        "_is_over",
        "_out",
        "_repeated_text",
        "_repeated_thought",
        "_request_id",
        "_stop_sequence",
        "_tokens",
        "_writer",
    )

    def __init__(
        self, writer: AnswerWriter, request_id: str, repeated: Assistant | None, *, continues_text: bool = False
    ) -> None:
        """`writer` must be a new one. `repeated` is `InferenceRequest.repeated_turn`: the turn that the engine repeats
        first, and that is removed from the answer; None: nothing is repeated. `continues_text`, of the same request:
        what the engine takes for thoughts is text."""
        super().__init__()
        self._writer = writer
        self._request_id = request_id
        self._repeated_text, self._repeated_thought = _turn_texts(repeated)
        self._continues_text = continues_text
        self._calls = CallNumbers()
        self._out: list[bytes] = []
        self._has_begun = False
        self._is_over = False
        self._finish: Finish | None = None
        self._stop_sequence: str | None = None
        self._tokens: Tokens | None = None

    def feed_data(self, chunk: bytes) -> bytes:
        """Return the translation of the events that `chunk` completes. May be empty. Events after the stream's end are
        dropped. Raises EventTooLongError if an event does not end within `HOLD_LIMIT` bytes. See
        `dialect.EventStream`."""
        events = self._cut_events(chunk)
        return self._write_events(events) if events else b""

    def finish_stream(self) -> bytes:
        """Return the translation of the last event, if no blank line closed it; else empty. See `EventStream`."""
        held_events = self._take_held()
        return self._write_events(held_events) if held_events else b""

    @property
    def is_complete(self) -> bool:
        """Whether the family's last event or an error was written. The last event is written when `[DONE]` has come
        after a finish reason or a tool call."""
        return self._is_over

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the family's last events for `error`; empty if the stream is already complete."""
        if self._is_over:
            return b""
        self._is_over = True
        return self._writer.fail_answer(error.build_envelope(request_id).error.model_dump())

    def _write_events(self, events: bytes) -> bytes:
        self._read_events(events)
        if self._is_done and not self._is_over and self._finish is not None:
            self._is_over = True
            self._out.append(self._writer.end_answer(self._finish, self._stop_sequence, self._tokens))
        out, self._out = b"".join(self._out), []
        return out

    def _take_event(self, fields: Fields) -> None:
        if self._is_over:
            return
        if fields.get("error") is not None:
            self._take_error(fields["error"])
            return
        if fields.get("usage"):
            self._tokens = codec.tokens_of(fields["usage"])
            self.usage = usage_of(fields["usage"])
        elif (prompt_tokens := llama_server.prompt_tokens_in(fields)) is not None:
            self._tokens = prompt_tokens
            if not codec.has_text(fields):
                return  # the answer has not begun
        if not self._has_begun:
            self._has_begun = True
            self._out.append(self._writer.begin_answer(codec.id_of(fields), self._tokens))
        choices = fields.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            self._write_choice(choices[0])
        if "__verbose" in fields:  # llama-server sends it in the first of its last events
            self._stop_sequence = llama_server.stop_sequence_in(fields)

    def _write_choice(self, choice: Fields) -> None:
        if choice.get("index"):
            return  # the client's family has room for one answer: the first
        delta = choice.get("delta")
        if delta and isinstance(delta, dict):
            self._write_delta(delta, choice)
        if choice.get("finish_reason") is not None:
            finish = codec.finish_of(choice)
            self._finish = "tool_calls" if finish == "stop" and self._finish == "tool_calls" else finish
            self._stop_sequence = codec.stop_sequence_of(choice) or self._stop_sequence

    def _write_delta(self, delta: Fields, choice: Fields) -> None:
        writer, out = self._writer, self._out
        thought = codec.thought_in(delta)
        if thought and self._repeated_thought:
            thought, self._repeated_thought = _skip_repeated(thought, self._repeated_thought)
        if thought:
            out.append(writer.write_text(thought, None) if self._continues_text else writer.write_reasoning(thought))
        text = delta.get("content")
        if text and isinstance(text, str):
            if self._repeated_text:
                text, self._repeated_text = _skip_repeated(text, self._repeated_text)
            if text:
                out.append(writer.write_text(text, codec.logprobs_of(choice)))
        if calls := delta.get("tool_calls"):
            # Some engines end with `stop` after calls, but clients wait for the reason `tool_calls`.
            self._finish = "tool_calls"
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    out.append(self._write_call(call))
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            out.append(writer.write_refusal(refusal))

    def _write_call(self, call: Fields) -> bytes:
        function = call.get("function")
        if not isinstance(function, dict):
            function = {}
        call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        return self._writer.write_tool_call(
            self._calls.number_of(call),
            call_id if isinstance(call_id, str) and call_id else None,
            name if isinstance(name, str) and name else None,
            arguments if isinstance(arguments, str) else "",
        )

    def _take_error(self, error: Any) -> None:
        if self._is_over:
            return
        envelope = errors.complete_error(errors.status_of(error), {"error": error}, b"", self._request_id)
        self._out.append(self._writer.fail_answer(envelope["error"]))
        self._is_over = True


class TranslatedCollector:
    """`StreamCollector` that builds a blocking answer of the client's family from chat completion chunks."""

    def __init__(self, writer: AnswerWriter, repeated_turn: Assistant | None, *, continues_text: bool = False) -> None:
        self._continues_text = continues_text
        self._writer = writer
        self._repeated = repeated_turn
        self._chat = OpenAICollector(is_chat=True)

    @property
    def usage(self) -> Usage | None:
        """Token counts that the stream has reported so far; None: none yet."""
        return self._chat.usage

    def feed_data(self, chunk: bytes) -> None:
        """Add bytes of the stream, cut anywhere. Raises EventTooLongError if an event does not end within `HOLD_LIMIT`
        bytes. See `dialect.StreamCollector`."""
        self._chat.feed_data(chunk)

    def build_result(self) -> tuple[int, bytes] | None:
        """Return status and translated body; None if the stream broke off. The body of an error is not translated.
        Raises RoundhouseError as `translate_body`. See `StreamCollector`."""
        result = self._chat.build_result()
        if result is None or result[0] >= 400:
            return result
        body, goes_on = result[1], self._continues_text
        return result[0], translate_body(body, self._writer, self._repeated, continues_text=goes_on)


def translate_body(
    body: bytes, writer: AnswerWriter, repeated: Assistant | None, *, continues_text: bool = False
) -> bytes:
    """Return a blocking chat completion as the writer's family answers it, without the turn `repeated` that the engine
    repeats first (None: nothing is repeated). `continues_text`: what the engine takes for thoughts is text.

    Raises:
        RoundhouseError: `engine_disconnected`: the body is no chat completion. `engine_error`: it is an error, or the
            writer cannot make an answer of it.
    """
    fields = errors.decode_json(body)
    if isinstance(fields, dict) and fields.get("error") is not None:
        error = errors.complete_error(500, fields, b"", None)["error"]
        raise RoundhouseError("engine_error", error["message"])
    if not isinstance(fields, dict) or not isinstance(fields.get("choices"), list):
        raise RoundhouseError("engine_disconnected", "The engine failed: its answer is no chat completion.")
    answer = _strip_repeated(repeated, codec.answer_of(fields))
    if continues_text:
        answer = replace(answer, text=answer.thought + answer.text, thought="")
    return errors.encode_json(writer.build_answer(answer))


def _strip_repeated(repeated_turn: Assistant | None, answer: Answer) -> Answer:
    if repeated_turn is None:
        return answer
    text, thought = _turn_texts(repeated_turn)
    return replace(
        answer, text=_skip_repeated(answer.text, text)[0], thought=_skip_repeated(answer.thought, thought)[0]
    )


def _turn_texts(turn: Assistant | None) -> tuple[str, str]:
    """Return the text of a turn as the engine got it, and its thoughts."""
    return ("", "") if turn is None else (turn.text or turn.refusal, turn.thought)


def _skip_repeated(text: str, prefix: str) -> tuple[str, str]:
    """Return what a part says beyond the repeated text, and how much of the repeated text is still to come."""
    return ("", prefix[len(text) :]) if prefix.startswith(text) else (text.removeprefix(prefix), "")
