"""API families on engines that speak chat completions alone: the request becomes a chat, its answer theirs. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.chat.dialect import (
    LEGACY_FIELDS,
    adapt_fields,
    adapt_thinking,
    ask_for_prompt_tokens,
    narrow_tools,
)
from gateway.protocols.chat.prompt_progress import read_progress
from gateway.protocols.chat.stream_collector import CallNumbers, OpenAICollector, normalize_message
from gateway.protocols.common import errors
from gateway.protocols.common.bodies import (
    CHAT_FIELDS,
    LLAMA_SERVER,
    VLLM_BACKENDS,
    adapt_constraints,
    check_foreign_fields,
    drop_foreign_fields,
)
from gateway.protocols.common.capabilities import check_prompt
from gateway.protocols.common.conversation import (
    Answer,
    AnswerWriter,
    Assistant,
    Call,
    Fields,
    Finish,
    Image,
    OutputFormat,
    Part,
    Prompt,
    System,
    Text,
    Tokens,
    Tool,
    ToolChoice,
    ToolResult,
    Turn,
    User,
)
from gateway.protocols.common.dialect import EventStream, StreamCollector, count_of, usage_of
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import check_effects, rename_param
from gateway.protocols.common.streams import NO_JSON, EventReader, differs_as_stream, wants_probabilities

_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def write_request(prompt: Prompt) -> Fields:
    """Return the fields of a chat completion request, without `model` and `stream`.

    `thinking` and `thinking_tokens` are left out, because each engine has its own switch for them (`adapt_thinking`,
    `llama_server_fields`). Leading system turns become one message. Without `prompt.tools`, a tool choice is left
    out, too.
    """
    fields: Fields = {**prompt.passed_fields, "messages": _messages(prompt.turns)}
    if prompt.tools:
        fields["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.tool_choice is not None:
            fields["tool_choice"] = _tool_choice(prompt.tool_choice)
        if prompt.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = prompt.parallel_tool_calls
    if prompt.output_format is not None:
        fields["response_format"] = write_format(prompt.output_format)
    if prompt.max_tokens is not None:
        fields["max_tokens"] = prompt.max_tokens
    if prompt.stop:
        fields["stop"] = list(prompt.stop)
    if prompt.effort is not None:
        fields["reasoning_effort"] = prompt.effort
    return fields


def answer_of(fields: Fields) -> Answer:
    """Return the first choice of a decoded blocking chat completion as an `Answer`. Raises RoundhouseError
    `engine_error` for a message that says something which an answer has no place for (`normalize_message`).

    Fields that the engine leaves out or gives in another type count as empty. Without any choice the answer is empty.
    """
    choices = fields.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = normalize_message(message) if isinstance(message, dict) else {}
    calls = tuple(_calls(message.get("tool_calls")))
    return Answer(
        id=id_of(fields),
        text=_text(message.get("content")),
        thought=thought_in(message),
        refusal=_text(message.get("refusal")),
        calls=calls,
        finish="tool_calls" if calls and choice.get("finish_reason") == "stop" else finish_of(choice),
        stop_sequence=stop_sequence_of(choice) or stop_sequence_in(fields),
        tokens=tokens_of(fields.get("usage")),
        logprobs=tuple(logprobs_of(choice) or ()),
    )


def id_of(fields: Fields) -> str:
    """Return the engine's id of an answer or of a chunk; empty if it has none."""
    return _text(fields.get("id"))


def has_text(chunk: Fields) -> bool:
    """Whether the first choice in a chunk of a stream holds a part of the answer's text. Thoughts and tool calls are
    no text."""
    choices = chunk.get("choices")
    delta = choices[0].get("delta") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    return isinstance(delta, dict) and bool(delta.get("content"))


def thought_in(message: Fields) -> str:
    """Return the thoughts in a message or a delta, from `reasoning_content` or else `reasoning`; empty if there are
    none."""
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def finish_of(choice: Fields) -> Finish:
    """Return why a choice ended. An unknown or missing reason counts as `stop`; the caller checks whether the choice
    has ended."""
    return _FINISHES.get(str(choice.get("finish_reason")), "stop")


def stop_sequence_of(choice: Fields) -> str | None:
    """Return the stop string that ended a choice, as vLLM and our worker report it (`stop_reason`); None: no stop
    string did, or it is not reported."""
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, str) else None


def logprobs_of(choice: Fields) -> list[Fields] | None:
    """Return the log probabilities of a choice or of a part of one, an object for each token in order; None if it has
    none."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else None


def tokens_of(usage: Any) -> Tokens | None:
    """Return the counts of a chat completion's usage object; None if it is empty or not an object. Counts that are
    missing are 0."""
    if not usage or not isinstance(usage, dict):
        return None
    return Tokens(
        prompt=_count(usage, "prompt_tokens"),
        completion=_count(usage, "completion_tokens"),
        cached=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: Any, name: str) -> int:
    return count_of(counts.get(name)) if isinstance(counts, dict) else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _calls(calls: Any) -> Iterable[Call]:
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            name, arguments = _text(function.get("name")), _text(function.get("arguments"))
            yield Call(_text(call.get("id")) or f"call_{number}", name, arguments)


def _messages(turns: tuple[Turn, ...]) -> list[Fields]:
    """Return the messages of a request. Leading system turns become one message, because most chat templates accept one
    system message, at the start."""
    leading_count = 0
    while leading_count < len(turns) and isinstance(turns[leading_count], System):
        leading_count += 1
    leading_texts = [turn.text for turn in turns[:leading_count] if isinstance(turn, System)]
    first: list[Fields] = [{"role": "system", "content": "\n\n".join(leading_texts)}] if leading_texts else []
    return first + [_message(turn) for turn in turns[leading_count:]]


def _message(turn: Turn) -> Fields:
    match turn:
        case System():
            return {"role": "system", "content": turn.text}
        case User():
            return {"role": "user", "content": _content(turn.parts)}
        case ToolResult():
            return {"role": "tool", "tool_call_id": turn.call_id, "content": _content(turn.parts)}
        case Assistant():
            return _assistant(turn)


def _assistant(turn: Assistant) -> Fields:
    # Templates disagree on null content; all of them take an empty string beside tool calls.
    message: Fields = {"role": "assistant", "content": turn.text or turn.refusal}
    if turn.thought:
        message |= {"reasoning_content": turn.thought, "reasoning": turn.thought}
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    return message


def _content(parts: tuple[Part, ...]) -> str | list[Fields]:
    """Return a string if all parts are text, which every engine accepts, else a list of parts. Texts are joined as
    llama-server and vLLM join them."""
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part) for part in parts]


def _part(part: Part) -> Fields:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        url = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
        return {"type": "image_url", "image_url": url}
    return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}


def _tool(tool: Tool) -> Fields:
    function: Fields = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> str | Fields:
    if choice.kind == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.kind


def write_format(output: OutputFormat) -> Fields:
    """Return the `response_format` of a chat completion request: `json_object` where `output.schema` is None, else
    `json_schema`, without a description or `strict` that is None."""
    if output.schema is None:
        return {"type": "json_object"}
    schema: Fields = {"name": output.name, "schema": output.schema}
    if output.description is not None:
        schema["description"] = output.description
    if output.strict is not None:
        schema["strict"] = output.strict
    return {"type": "json_schema", "json_schema": schema}


def llama_server_fields(prompt: Prompt) -> Fields:
    """Return the fields that a translated request to llama-server needs in addition; empty if it needs none.

    `verbose`: llama-server reports the stop string that ended an answer only in verbose answers. `echo`: a blocking
    answer always repeats the assistant turn that it continues; whether a stream does depends on the version, unless
    the request says so. `thinking_budget_tokens`: the maximum tokens for thoughts.
    """
    fields: Fields = {}
    if repeated_turn(prompt) is not None:
        fields["echo"] = True
    if prompt.stop:
        fields["verbose"] = True
    if prompt.thinking_tokens is not None:
        fields["thinking_budget_tokens"] = prompt.thinking_tokens
    return fields


def repeated_turn(prompt: Prompt) -> Assistant | None:
    """Return the last turn if it is an assistant turn without tool calls: the answer continues it, and llama-server
    repeats it first. None if the answer starts a turn of its own."""
    last = prompt.turns[-1] if prompt.turns else None
    return last if isinstance(last, Assistant) and not last.calls else None


def stop_sequence_in(fields: Fields) -> str | None:
    """Return the stop string that ended an answer, from a blocking answer or an event of a request with `verbose`
    (`llama_server_fields`); None: no stop string did, or it is not reported."""
    details: Any = fields.get("__verbose")
    word = details.get("stopping_word") if isinstance(details, dict) else None
    return word if isinstance(word, str) and word else None


_GOES_ON: Final = "continue_final_message"


def vllm_fields(prompt: Prompt) -> Fields:
    """Return the fields that a translated request to vLLM needs in addition; empty if it needs none.

    If the last turn is a text of the model without tool calls, the answer continues that text, as llama-server does by
    itself. vLLM does not repeat the text. A request that says by fields of its own what the answer begins with stays
    as it is.
    """
    last = prompt.turns[-1] if prompt.turns else None
    goes_on = isinstance(last, Assistant) and bool(last.text) and not last.calls
    if not goes_on or not prompt.passed_fields.keys().isdisjoint((_GOES_ON, "add_generation_prompt")):
        return {}
    return {_GOES_ON: True, "add_generation_prompt": False}


class ViaChatBase(ABC):
    """The part of a `Dialect` that reads a request, checks it, and writes it as a chat completion. The base of
    `ViaChatDialect` for answers and of `TokenCountDialect`."""

    may_flow: bool = False
    form: str | None
    """Form of the client's requests, of `request_fields.PARAMS`."""

    @abstractmethod
    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for. Called once for each request, by `check_request`.

        Of a large body, the outline may be read, but `passed_fields` of the result must hold constraints on the
        answer's form (`bodies.CONSTRAINT_FIELDS`) with their whole text.

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
        check_effects(prompt.passed_fields, "chat", route)
        for name in LEGACY_FIELDS:
            if prompt.passed_fields.get(name):
                message = f"`{name}` is a field of chat completions: declare `tools`, and choose one by `tool_choice`."
                raise RoundhouseError("not_supported", message, param=name, status=400)
        request.continues_text = route.backend in VLLM_BACKENDS and bool(vllm_fields(prompt))
        is_repeated = route.backend == LLAMA_SERVER
        request.repeated_turn = _whole_turn(repeated_turn(prompt), request) if is_repeated else None

    def prompt_for(self, request: InferenceRequest, prompt: Prompt, route: ModelRoute) -> Prompt:
        """Return what counts of `prompt`, which `request` asks for, with the model of `route`: here all of it. A
        subclass may leave out wishes that a model may ignore, in a copy: `request.prompt` keeps them, because the model
        may change while the request waits."""
        return prompt

    def _chat_fields(self, request: InferenceRequest, route: ModelRoute) -> Fields:
        assert request.prompt is not None, "checked before"
        prompt = self.prompt_for(request, request.prompt, route)
        thinking_fields = {} if prompt.thinking is None else {"thinking": prompt.thinking}
        fields = adapt_fields(adapt_thinking(write_request(prompt) | thinking_fields, route), route)
        fields = adapt_constraints(fields, route, is_chat=True)
        if route.backend == LLAMA_SERVER:
            fields = narrow_tools(fields | llama_server_fields(prompt), names_one=True)
        if route.backend in VLLM_BACKENDS:
            fields |= vllm_fields(prompt)
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
        is set. Raises RoundhouseError `invalid_request` if the tool that must be called is not among the tools."""
        fields = self._chat_fields(request, route)
        if as_stream or request.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
            if self.tells_prompt_first and request.stream:
                fields = ask_for_prompt_tokens(fields, route)
        return json_bytes(fields)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        return TranslatedStream(self.open_writer(request), request, self.form)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        prompt = request.prompt
        assert prompt is not None, "checked before"
        outline = _chat_outline(prompt)
        if wants_probabilities(outline) or differs_as_stream(outline):
            return None
        return TranslatedCollector(self.get_body_converter(request))

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes]:
        """Return the function that translates a blocking chat completion. Call it once. It raises RoundhouseError as
        `translate_body`."""
        writer, repeated_turn, goes_on = self.open_writer(request), request.repeated_turn, request.continues_text
        return lambda body: translate_body(body, writer, repeated_turn, continues_text=goes_on)


def _check_constraints(prompt: Prompt, route: ModelRoute) -> None:
    """Refuse the constraints on the answer's form that `adapt_constraints` refuses, under the client's names."""
    fields, output = dict(prompt.passed_fields), prompt.output_format
    if output is None:
        adapt_constraints(fields, route, is_chat=True)
    else:
        fields["response_format"] = write_format(output)
        adapt_constraints(fields, route, is_chat=True, format_name=output.place)


def _whole_turn(turn: Assistant | None, request: InferenceRequest) -> Assistant | None:
    """Return the turn as the client sent it, also if the request was read by its outline."""
    body = request.large_body
    if turn is None or body is None:
        return turn
    fill = body.fill_text
    return replace(turn, text=fill(turn.text), thought=fill(turn.thought), refusal=fill(turn.refusal))


def _chat_outline(prompt: Prompt) -> Fields:
    """Return the fields of the chat request that `differs_as_stream` examines, without the conversation."""
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
        "_form",
        "_has_begun",
        "_has_ended",
        "_is_over",
        "_out",
        "_repeated_text",
        "_repeated_thought",
        "_request_id",
        "_stop_sequence",
        "_tokens",
        "_writer",
    )

    def __init__(self, writer: AnswerWriter, request: InferenceRequest, form: str | None) -> None:
        """`writer` must be a new one. What the engine repeats of `request` is removed from the answer, and what it
        takes for thoughts may be text (`repeated_turn`, `continues_text`). `form`: of the client's request, for the
        field that an error names (`rename_param`)."""
        super().__init__()
        self._form = form
        self._writer = writer
        self._request_id = request.id
        self._repeated_text, self._repeated_thought = _turn_texts(request.repeated_turn)
        self._continues_text = request.continues_text
        self._calls = CallNumbers()
        self._out: list[bytes] = []
        self._has_begun = False
        self._has_ended = False
        self._is_over = False
        self._finish: Finish | None = None
        self._stop_sequence: str | None = None
        self._tokens: Tokens | None = None

    def feed_data(self, chunk: bytes) -> bytes:
        events = self._cut_events(chunk)
        return self._write_events(events) if events else b""

    def finish_stream(self) -> bytes:
        """Return the events that are left. Some servers send no `[DONE]`: an answer with a finish reason is whole."""
        events = self._write_events(self._take_held())  # the last event may lack its blank line
        self.is_done = self.is_done or self._has_ended
        return events + self._write_events(b"")

    @property
    def is_complete(self) -> bool:
        """Whether the family's last event or an error was written. The last event is written when `[DONE]` has come
        after a finish reason or a tool call, or the stream has ended after a finish reason."""
        return self._is_over

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        if self._is_over:
            return b""
        self._is_over = True
        return self._writer.fail_answer(error.build_envelope(request_id).error.model_dump())

    def _write_events(self, events: bytes) -> bytes:
        self._read_events(events)
        if self.is_done and not self._is_over and self._finish is not None:
            self._is_over = True
            self._out.append(self._writer.end_answer(self._finish, self._stop_sequence, self._tokens))
        out, self._out = b"".join(self._out), []
        return out

    def _take_event(self, fields: Fields) -> None:
        if self._is_over:
            return
        if fields.get("usage"):
            self._tokens = tokens_of(fields["usage"])
            self.usage = usage_of(fields["usage"])
        elif (progress := read_progress(fields)) is not None:  # the first comes before the prompt is processed
            self._tokens = Tokens(prompt=progress.total, cached=progress.cached)
            if not has_text(fields):
                return  # the answer has not begun
        if not self._has_begun:
            self._has_begun = True
            self._out.append(self._writer.begin_answer(id_of(fields), self._tokens))
        choices = fields.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            self._write_choice(choices[0])
        if "__verbose" in fields:  # llama-server sends it in the first of its last events
            self._stop_sequence = stop_sequence_in(fields)

    def _take_unreadable(self) -> None:
        self._take_fault(NO_JSON)

    def _write_choice(self, choice: Fields) -> None:
        if choice.get("index"):
            return  # the client's family has room for one answer: the first
        delta = choice.get("delta")
        if delta and isinstance(delta, dict):
            try:
                self._write_delta(normalize_message(delta), choice)
            except RoundhouseError as error:
                self._take_fault(error.message)
                return
        if choice.get("finish_reason") is not None:
            self._has_ended = True
            finish = finish_of(choice)
            self._finish = "tool_calls" if finish == "stop" and self._finish == "tool_calls" else finish
            self._stop_sequence = stop_sequence_of(choice) or self._stop_sequence

    def _write_delta(self, delta: Fields, choice: Fields) -> None:
        writer, out = self._writer, self._out
        thought = thought_in(delta)
        if thought and self._repeated_thought:
            thought, self._repeated_thought = _skip_repeated(thought, self._repeated_thought)
        if thought:
            out.append(writer.write_text(thought, None) if self._continues_text else writer.write_reasoning(thought))
        text = delta.get("content")
        if text and isinstance(text, str):
            if self._repeated_text:
                text, self._repeated_text = _skip_repeated(text, self._repeated_text)
            if text:
                out.append(writer.write_text(text, logprobs_of(choice)))
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

    def _take_error(self, error: Fields) -> None:
        if self._is_over:
            return
        envelope = errors.complete_error(errors.status_of(error), {"error": error}, b"", self._request_id)
        named = {**envelope["error"], "param": rename_param(envelope["error"]["param"], self._form)}
        self._out.append(self._writer.fail_answer(named))
        self._is_over = True


class TranslatedCollector(OpenAICollector):
    """`StreamCollector` that builds a blocking answer of the client's family from chat completion chunks."""

    __slots__ = ("_translate",)

    def __init__(self, translate: Callable[[bytes], bytes]) -> None:
        """`translate`: returns the answer for the body of a chat completion; may raise RoundhouseError."""
        super().__init__(is_chat=True)
        self._translate = translate

    def build_result(self) -> tuple[int, bytes] | None:
        result = super().build_result()
        if result is None or result[0] >= 400:
            return result
        return result[0], self._translate(result[1])


def translate_body(body: bytes, writer: AnswerWriter, repeated: Assistant | None, *, continues_text: bool) -> bytes:
    """Return a blocking chat completion as the writer's family answers it, without the turn `repeated` that the engine
    repeats first (None: nothing is repeated). `continues_text`: what the engine takes for thoughts is text. Raises
    RoundhouseError `engine_disconnected` if the body is no chat completion, `engine_error` if it is an error, or the
    writer cannot make an answer of it."""
    fields = errors.decode_json(body)
    if isinstance(fields, dict) and fields.get("error") is not None:
        error = errors.complete_error(500, fields, b"", None)["error"]
        raise RoundhouseError("engine_error", error["message"])
    if not isinstance(fields, dict) or not isinstance(fields.get("choices"), list):
        raise RoundhouseError("engine_disconnected", "The engine failed: its answer is no chat completion.")
    answer = answer_of(fields)
    if repeated is not None:
        text, thought = _turn_texts(repeated)
        answer = replace(
            answer, text=_skip_repeated(answer.text, text)[0], thought=_skip_repeated(answer.thought, thought)[0]
        )
    if continues_text:
        answer = replace(answer, text=answer.thought + answer.text, thought="")
    return errors.encode_json(writer.build_answer(answer))


def _turn_texts(turn: Assistant | None) -> tuple[str, str]:
    """Return the text of a turn as the engine got it, and its thoughts."""
    return ("", "") if turn is None else (turn.text or turn.refusal, turn.thought)


def _skip_repeated(text: str, prefix: str) -> tuple[str, str]:
    """Return what a part says beyond the repeated text, and how much of the repeated text is still to come."""
    return ("", prefix[len(text) :]) if prefix.startswith(text) else (text.removeprefix(prefix), "")


class TokenCountDialect(ViaChatBase):
    """The part of a `Dialect` that answers with the number of a prompt's tokens, by the engine's
    `/v1/chat/completions/input_tokens`.

    A subclass adds `read_request` and `build_count`; the rest comes from the family's own dialect, which it inherits
    too.
    """

    @abstractmethod
    def build_count(self, tokens: int) -> Fields:
        """Return the client's answer, to be encoded as JSON. `tokens`: the tokens of the prompt, from the engine."""

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        return json_bytes(self._chat_fields(request, route))

    def open_collector(self, request: InferenceRequest) -> None:
        """Return None: token counts are never streamed."""

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that translates the engine's count. It raises RoundhouseError `engine_disconnected` if
        the engine's answer counts no tokens."""
        return self._translate_body

    def _translate_body(self, body: bytes) -> bytes:
        fields = errors.decode_json(body)
        tokens = fields.get("input_tokens") if isinstance(fields, dict) else None
        if not isinstance(tokens, int) or isinstance(tokens, bool):
            raise RoundhouseError("engine_disconnected", "The engine failed: its answer counts no tokens.")
        return errors.encode_json(self.build_count(tokens))
