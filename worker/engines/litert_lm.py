"""LiteRT-LM: serves a `.litertlm` model in this process, one request at a time. Each session keeps its conversation."""

from __future__ import annotations

import base64
import binascii
import importlib
import inspect
import json
import math
import random
from argparse import ArgumentParser, Namespace
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.engine import Api, FinishReason, Job, PartialEngine, Piece, call_id
from worker.errors import LoadError, RequestError
from worker.preflight import check_file
from worker.schema import ChatRequest, Message
from worker.text.grammars import check_unconstrained
from worker.text.prompt_form import build_variables

Object = dict[str, Any]


def messages_for(messages: Sequence[Message], *, images: bool, audio: bool) -> list[Object]:
    """Return the conversation in LiteRT-LM's form: contents are lists of parts, arguments of calls are objects, a
    tool's result has the tool's name (empty if no earlier call has its id) and the value of its text where that is
    JSON, and the role `developer` becomes `system`. `images`, `audio`: the model takes images, or audio.

    Raises RequestError, with the field in `param`, for content that the model does not take, an image or audio in a
    tool's result, an image that is no base64 data URL, audio that is no base64, and a malformed tool call.
    """
    converted_messages = []
    names: dict[str, str] = {}
    for number, message in enumerate(messages):
        fields = message.model_dump(exclude_unset=True)
        content = _content(message, f"messages[{number}].content", images=images, audio=audio)
        role = "system" if message.role == "developer" else message.role
        if role == "tool":
            name = names.get(str(fields.get("tool_call_id")), "")
            content = [{"type": "tool_response", "name": name, "response": _result(content)}]
        converted_message: Object = {"role": role, "content": content}
        calls = fields.get("tool_calls")
        if isinstance(calls, list) and calls:
            converted_message["tool_calls"] = [
                _call(call, f"messages[{number}].tool_calls[{index}]") for index, call in enumerate(calls)
            ]
            names |= {str(call.get("id")): call["function"]["name"] for call in calls}
        converted_messages.append(converted_message)
    return converted_messages


def _content(message: Message, place: str, *, images: bool, audio: bool) -> list[Object]:
    if not isinstance(message.content, list):
        return [{"type": "text", "text": message.content}] if message.content else []
    parts: list[Object] = []
    for index, part in enumerate(message.content):
        if part.get("type") == "text":
            parts.append({"type": "text", "text": str(part.get("text", ""))})
        elif part.get("type") == "image_url" and images and message.role != "tool":
            parts.append({"type": "image", "blob": _image(part, f"{place}[{index}].image_url")})
        elif part.get("type") == "input_audio" and audio and message.role != "tool":
            parts.append({"type": "audio", "blob": _audio(part, f"{place}[{index}].input_audio")})
        else:
            kinds = ["text", *(["images"] if images else []), *(["audio"] if audio else [])]
            readable = "text in a tool's result" if message.role == "tool" else " and ".join(kinds)
            raise RequestError(f"This engine reads {readable}, not {part.get('type')}.", param=f"{place}[{index}].type")
    return parts


def _image(part: Mapping[str, Any], place: str) -> str:
    """Return the base64 of an image in a data URL."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    head, comma, body = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RequestError("An image is sent as a data URL: `data:image/png;base64,...`.", param=place)
    return _base64(body, "image", place)


def _audio(part: Mapping[str, Any], place: str) -> str:
    """Return the base64 of audio. LiteRT-LM finds out its format by itself."""
    audio = part.get("input_audio")
    body = audio.get("data") if isinstance(audio, dict) else None
    if not isinstance(body, str) or not body:
        raise RequestError("Audio is sent as base64 in `data`.", param=place)
    return _base64(body, "audio", place)


def _base64(body: str, what: str, place: str) -> str:
    """Return the text. Raises RequestError if it is no base64; `what` names it there."""
    try:
        base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise RequestError(f"The {what} is not base64: {error}.", param=place) from None
    return body


def _result(content: Sequence[Mapping[str, Any]]) -> Any:
    """Return a tool's result: the value if the text is JSON, else the text."""
    text = "\n".join(part["text"] for part in content)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _call(call: Any, place: str) -> Object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("A call has a `function` with a `name`.", param=place)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"The arguments are not JSON: {error}.", param=f"{place}.function.arguments") from None
    if not isinstance(arguments, dict):
        raise RequestError("The arguments are not a JSON object.", param=f"{place}.function.arguments")
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def piece_of(chunk: Mapping[str, Any], calls_before: int, most_calls: int | None = None) -> Piece:
    """Return a chunk of LiteRT-LM's answer as a piece, without a finish reason; an empty one if the chunk has no text,
    thought or call. `calls_before`: number of calls in earlier chunks. Calls beyond `most_calls` of the whole answer
    are dropped; None: no limit."""
    content = chunk.get("content") or ()
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    calls = tuple(_delta(call, index) for index, call in enumerate(chunk.get("tool_calls") or (), calls_before))
    calls = calls if most_calls is None else calls[: max(0, most_calls - calls_before)]
    return Piece(text, thought="".join((chunk.get("channels") or {}).values()), tool_calls=calls)


def _delta(call: Mapping[str, Any], index: int) -> Object:
    function = call.get("function", call)
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    return {
        "index": index,
        "id": call_id(),
        "type": "function",
        "function": {"name": function.get("name", ""), "arguments": arguments},
    }


def answer_of(pieces: Iterable[Piece]) -> Object:
    """Return the message that an answer's pieces make, in the form in which `messages_for` writes it when a client
    sends it back: to recognise that a request continues the conversation. Thoughts are left out."""
    pieces = [*pieces]
    text = "".join(piece.text for piece in pieces)
    message: Object = {"role": "assistant", "content": [{"type": "text", "text": text}] if text else []}
    if calls := [call for piece in pieces for call in piece.tool_calls]:
        message["tool_calls"] = [_call(call, "") for call in calls]
    return message


@dataclass(slots=True)
class HeldConversation:
    """A conversation of `litert_lm` whose last answer is complete, with the messages that its cache holds and what a
    request must have in common with it to continue it. The holder closes `conversation`."""

    conversation: Any
    key: str
    """Sampling, tools and template variables, which must be the same in a request that continues it."""
    messages: list[dict[str, Any]]
    """All messages so far, the last answer included."""

    def is_continued_by(self, key: str, earlier: list[dict[str, Any]]) -> bool:
        """Return whether a request with this key, whose last message follows `earlier`, continues the conversation."""
        return self.key == key and self.messages == earlier


class HeldConversations:
    """Conversations of `litert_lm` kept for later requests: one per session, of at most `capacity` sessions, and that
    of the last request without a session. Closes each conversation that it drops. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: maximum number of sessions; 0: none is kept."""
        self._capacity = capacity
        self._sessions: OrderedDict[str, HeldConversation] = OrderedDict()
        self._last_plain: HeldConversation | None = None

    def take(self, session_id: str | None, key: str, earlier: list[dict[str, Any]]) -> Any:
        """Return and remove the session's conversation, if the request continues it; the caller then owns it. Else
        close and remove it, if there is one, and return None.

        `key` and `earlier` are those of the request, as in `HeldConversation`. `session_id` None: the request belongs
        to no session.
        """
        if session_id is None:
            held, self._last_plain = self._last_plain, None
        else:
            held = self._sessions.pop(session_id, None)
        if held is None or held.is_continued_by(key, earlier):
            return None if held is None else held.conversation
        held.conversation.close()
        return None

    def make_room(self, session_id: str | None) -> None:
        """Close the conversations of the sessions that were used longest ago, until there is room for another session.
        Call before a conversation is created for `session_id`, which holds none. None: the request has no session, and
        nothing is done."""
        while session_id is not None and self._sessions and len(self._sessions) >= self._capacity:
            self._sessions.popitem(last=False)[1].conversation.close()

    def keep(self, session_id: str | None, held: HeldConversation) -> None:
        """Keep a conversation whose answer is complete, for the next request of the session `session_id`; None: for the
        next request without a session. It takes the place of that session's earlier conversation, which `take` has
        removed. If the capacity is 0, a session's conversation is closed at once. Call `make_room` before the
        conversation is created: nothing is dropped here."""
        if session_id is None:
            self._last_plain = held
        elif self._capacity:
            self._sessions[session_id] = held
        else:
            held.conversation.close()

    def drop_all(self) -> bool:
        """Close and drop all conversations, to free memory for another. Return whether there were any."""
        held = [*self._sessions.values(), *([] if self._last_plain is None else [self._last_plain])]
        self._sessions.clear()
        self._last_plain = None
        for each in held:
            each.conversation.close()
        return bool(held)


MAGIC: Final = b"LITERTLM"
BACKENDS: Final = ("cpu", "gpu")
TOP_K, TOP_P, TEMPERATURE = 40, 0.95, 1.0
"""Sampling values if neither request nor file sets them. LiteRT-LM's own default takes the most probable token at any
temperature."""
SESSIONS: Final = 4
ANY_TOP_K: Final = 1 << 20
"""A `top_k` beyond the size of any vocabulary."""

UNKNOWN_SAMPLING: Final = ("min_p", "typical_p", "mirostat_mode", "logit_bias")
"""Request fields that would change the answer and that LiteRT-LM lacks."""
PROBE_TOOL: Final = {
    "type": "function",
    "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}},
}
"""Tool that `load_model` renders to see whether the chat template shows tools to the model."""
NOT_TAKEN: Final = "send_message_stream failed"
"""Part of the library's error about a message that it could not begin with: its template refused the message, or an
image is invalid."""
TOO_LONG: Final = ("Input token ids are too long", "input length exceeds available state")
"""Parts of the library's errors about a conversation that exceeds the context."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help="the .litertlm file")
    parser.add_argument("--backend", choices=BACKENDS, default="cpu", help="where it computes")
    parser.add_argument(
        "--vision-backend", choices=BACKENDS, help="where images are encoded; without it none are taken"
    )
    parser.add_argument("--audio-backend", choices=BACKENDS, help="where audio is encoded; without it none is taken")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of a conversation; default: the file's")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="for compiled weights; default: beside the model")
    parser.add_argument(
        "--session-cache", type=int, default=SESSIONS, metavar="N", help=f"sessions to keep; default: {SESSIONS}"
    )


class LiteRTLM(PartialEngine):
    """The engine `litert_lm`: serves chats of one model by a `litert_lm.Engine`, one at a time. A request that
    continues the conversation of its session, or without a session that of the request before, sends its last message
    alone, because the cache holds the rest."""

    slots = 1
    apis: frozenset[Api] = frozenset({"chat"})

    def __init__(self, args: Namespace) -> None:
        self._args = args
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._library: Any = None
        self._engine: Any = None
        self._sampler: Any = None
        """Sampling settings of the file; None: it has none."""
        self._tells_tools = False
        self._held = HeldConversations(args.session_cache)

    def load_model(self) -> None:
        """Load the file, and find out whether its chat template takes tools. Raises LoadError if the package is
        missing, the file is no usable language model, it lacks what the command line asks for, or the folder of
        `--cache-dir` cannot be made. If the library fails, only its log on stderr says why. See
        `Engine.load_model`."""
        args = self._args
        check_litertlm(args.model)
        try:
            library = self._library = importlib.import_module("litert_lm")
        except (ImportError, OSError) as error:
            raise LoadError(f"LiteRT-LM cannot be used: {error} (it is the extra `litert-lm`)") from None
        library.set_min_log_severity(library.LogSeverity.ERROR)
        if args.cache_dir is not None:
            try:
                args.cache_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LoadError(f"--cache-dir {args.cache_dir} cannot be made: {error.strerror or error}") from None
        try:
            with library.ModelInfo(args.model) as info:
                self._read_info(info)
            self._engine = library.Engine(
                str(args.model),
                self._backend(args.backend),
                max_num_tokens=args.max_tokens,
                vision_backend=args.vision_backend and self._backend(args.vision_backend),
                audio_backend=args.audio_backend and self._backend(args.audio_backend),
                cache_dir=args.cache_dir and str(args.cache_dir),
                enable_benchmark=True,  # token counts come from its figures
            )
            # Few files say whether their model calls tools, but the chat template shows it.
            self._tells_tools = self._render_probe([]) != self._render_probe([PROBE_TOOL])
        except RuntimeError as error:
            where = f"with its computing on the {args.backend}"
            raise LoadError(f"LiteRT-LM cannot load {args.model} {where}: {error}; the log above says why") from None

    def _read_info(self, info: Any) -> None:
        """Read what the file says about its model. Raises LoadError."""
        args = self._args
        if info.llm is None:
            raise LoadError(f"{args.model} holds no language model, but {info.model_type.name.lower()}")
        if args.vision_backend and not info.input_modalities.vision:
            raise LoadError(f"{args.model} takes no images: leave --vision-backend out")
        if args.audio_backend and not info.input_modalities.audio:
            raise LoadError(f"{args.model} takes no audio: leave --audio-backend out")
        most = info.max_context_tokens
        if args.max_tokens and 0 < most < args.max_tokens:
            raise LoadError(f"--max-tokens {args.max_tokens} is more than the {most} that {args.model} was made for")
        # For a model with a dynamic context, the library does not report the length that it chooses.
        self.context_length = args.max_tokens or (None if info.is_dynamic_context or most <= 0 else most)
        file_sampler = info.llm.default_sampler_params
        self._sampler = file_sampler if file_sampler.top_k or file_sampler.temperature else None

    def _render_probe(self, tools: list[dict[str, Any]]) -> str:
        """Return what the file's template makes of a first message with these tools. Raises RuntimeError."""
        with self._engine.create_conversation(tools=self._describe_tools(tools)) as conversation:
            text: str = conversation.render_message_to_string("a")
        return text

    def _describe_tools(self, tools: list[dict[str, Any]]) -> list[Any]:
        """Return tools for the library. It describes them to the model; the client runs them."""
        return [type("Described", (self._library.Tool,), tool_methods(tool))() for tool in tools]

    def _backend(self, name: str) -> Any:
        return {"cpu": self._library.Backend.CPU, "gpu": self._library.Backend.GPU}[name]()

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Answer by the model's own chat template, in the kept conversation if the request continues it. See
        `Engine.stream_chat`.

        Raises RequestError before the first piece for sampling fields, grammars, tools or contents that LiteRT-LM
        lacks, for a last message that is not the user's or a tool's, for a conversation that the template does not
        take, and with `context_length_exceeded`. Raises JobCancelledError while iterating, once the job is cancelled.
        """
        self._check_request(request)
        messages = messages_for(
            request.messages,
            images=self._args.vision_backend is not None,
            audio=self._args.audio_backend is not None,
        )
        if messages[-1]["role"] not in ("user", "tool"):
            place = f"messages[{len(messages) - 1}].role"
            raise RequestError("The last message must be the user's, or a tool's result.", param=place)
        penalties = self._penalties(request)
        key = json.dumps([self._sampling(request), request.offered_tools, build_variables(request)], sort_keys=True)
        session_id = request.session_id or None
        conversation = self._held.take(session_id, key, messages[:-1])
        job.cached_tokens = 0 if conversation is None else conversation.token_count
        if conversation is None:
            self._held.make_room(session_id)
            conversation = self._conversation(request, messages[:-1])
        before = conversation.token_count
        is_held = False
        stream = conversation.send_message_async(
            messages[-1], max_output_tokens=request.token_limit, repetition_penalty_config=penalties
        )
        pieces: list[Piece] = []
        try:
            job.check_cancelled()
            for piece in self._stream_answer(conversation, stream, before, request, job):
                pieces.append(piece)
                yield piece
            is_complete = pieces[-1].finish_reason != "length" and job.completion_tokens < (
                request.token_limit or math.inf
            )
            # The cache holds thoughts, which the template would leave out, and lacks the end of a cut answer.
            if is_complete and not any(piece.thought or _may_lack_calls(piece, request) for piece in pieces):
                held = HeldConversation(conversation, key, [*messages, answer_of(pieces)])
                self._held.keep(session_id, held)
                is_held = True
        finally:
            if not is_held:
                _close_conversation(conversation, stream)

    def _stream_answer(
        self, conversation: Any, stream: Generator[Any], before: int, request: ChatRequest, job: Job
    ) -> Generator[Piece]:
        """Yield the pieces of an answer. `before` is the number of tokens that the conversation held already."""
        texts: list[str] = []
        has_thoughts, calls = False, 0
        for chunk in self._chunks(stream):
            if not texts:
                job.count_prompt_tokens(before + conversation.get_benchmark_info().last_prefill_token_count)
            job.check_cancelled()
            piece = piece_of(chunk, calls, 1 if request.parallel_tool_calls is False else None)
            texts.append(piece.text + piece.thought)
            has_thoughts = has_thoughts or bool(piece.thought)
            job.count_token()
            calls += len(piece.tool_calls)
            if piece != Piece():
                yield piece
        job.check_cancelled()
        figures = conversation.get_benchmark_info()
        if not texts:
            job.count_prompt_tokens(before + figures.last_prefill_token_count)
        token_count = figures.last_decode_token_count
        for _ in range(token_count - job.completion_tokens):  # chunks may hold several; the end has none
            job.count_token()
        plain_text = "" if has_thoughts or request.offered_tools else "".join(texts)
        finish = self._finish(conversation, token_count, request, plain_text)
        yield Piece(finish_reason="tool_calls" if calls and finish == "stop" else finish)

    def _chunks(self, stream: Iterator[Any]) -> Iterator[Mapping[str, Any]]:
        try:
            for message in stream:
                yield message.to_json()
        except RuntimeError as error:
            if NOT_TAKEN in str(error):
                raise _conversation_error(error) from None
            if not any(words in str(error) for words in TOO_LONG):
                raise
            raise RequestError(
                f"The conversation is too long: {error}", code="context_length_exceeded", param="messages"
            ) from None

    def _finish(self, conversation: Any, token_count: int, request: ChatRequest, text: str) -> FinishReason:
        """Return the finish reason, which LiteRT-LM does not report.

        At the token limit, the reason is `stop` only if `text` has one token less than was generated: then the last one
        was the end token. `text` is the whole answer, or empty if there were thoughts or tools, whose marks are in no
        text.
        """
        if self.context_length is not None and conversation.token_count >= self.context_length:
            return "length"
        limit = request.token_limit
        if limit is None or token_count < limit:
            return "stop"
        return "stop" if text and len(self._engine.tokenize(text)) == token_count - 1 else "length"

    def _conversation(self, request: ChatRequest, earlier: list[dict[str, Any]]) -> Any:
        try:
            return self._create_conversation(request, earlier)
        except RuntimeError as error:
            if not self._held.drop_all():  # they take memory, of which there may not be enough
                raise _conversation_error(error) from None
        try:
            return self._create_conversation(request, earlier)
        except RuntimeError as error:
            raise _conversation_error(error) from None

    def _create_conversation(self, request: ChatRequest, earlier: list[dict[str, Any]]) -> Any:
        """Return a new conversation with these messages. Raises RuntimeError."""
        library = self._library
        sampling = self._sampling(request)
        seed = random.randrange(1 << 31) if sampling["seed"] is None else sampling["seed"]  # noqa: S311 - no secret
        has_sampling = any(value is not None for value in sampling.values())
        sampler = (
            library.SamplerConfig(**self._fill_sampling(sampling), seed=seed) if has_sampling or self._sampler else None
        )
        context = build_variables(request)
        thinking = context.get("enable_thinking")
        return self._engine.create_conversation(
            messages=earlier,
            tools=self._describe_tools(request.offered_tools),
            automatic_tool_calling=False,
            extra_context=context,
            thinking_config=None if thinking is None else library.ThinkingConfig(enable_thinking=bool(thinking)),
            sampler_config=sampler,
        )

    def _sampling(self, request: ChatRequest) -> dict[str, Any]:
        sampling = request.model_dump(include={"temperature", "top_p", "top_k", "seed"})
        if sampling["top_k"] is not None and sampling["top_k"] <= 0:
            sampling["top_k"] = ANY_TOP_K
        if sampling["seed"] is not None:
            sampling["seed"] %= 1 << 31
        return sampling

    def _fill_sampling(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for each sampling field: the request's, the file's or ours. Without `top_k`, the library would
        take the most probable token."""
        defaults = {"top_k": TOP_K, "top_p": TOP_P, "temperature": TEMPERATURE}
        file_values = {name: getattr(self._sampler, name, None) for name in defaults}
        return {
            name: sampling[name] if sampling[name] is not None else file_values[name] or default
            for name, default in defaults.items()
        }

    def _penalties(self, request: ChatRequest) -> Any:
        penalties = {
            "repetition_penalty": request.repeat_penalty,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
        }
        if not any(penalties.values()):
            return None
        try:
            return self._library.RepetitionPenaltyConfig(**penalties)
        except ValueError as error:
            raise RequestError(f"{error}", param="repeat_penalty") from None

    def _check_request(self, request: ChatRequest) -> None:
        """Refuse what LiteRT-LM would ignore. Raises RequestError."""
        for name in UNKNOWN_SAMPLING:
            if getattr(request, name):
                raise RequestError(f"LiteRT-LM has no `{name}`: leave it out.", param=name)
        check_unconstrained(request, "LiteRT-LM")
        if request.offered_tools:
            if not self._tells_tools:
                message = "The model's chat template knows no tools: send none."
                raise RequestError(message, code="tools_unsupported", param="tools")
            if request.tool_choice not in (None, "auto"):
                message = "LiteRT-LM cannot be made to call a tool: leave `tool_choice` out."
                raise RequestError(message, code="tools_unsupported", param="tool_choice")


create = LiteRTLM


def _conversation_error(error: RuntimeError) -> RequestError:
    return RequestError(f"The model takes no such conversation: {error}; the worker's log says why.", param="messages")


def check_litertlm(path: Path) -> None:
    """Check that the file can be read and begins with the magic bytes of a `.litertlm` file; nothing behind them is
    checked. Raises LoadError with the reason."""
    check_file(path)
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise LoadError(f"{path} is not a .litertlm file: it begins with {magic!r}, not {MAGIC!r}")


def tool_methods(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the methods, by name, for a subclass of `litert_lm.Tool` that describes this tool (in OpenAI's form) to
    the model. Its `execute` does nothing: the client runs tools."""
    return {"get_tool_description": lambda self: dict(tool), "execute": lambda self, arguments: None}


def _may_lack_calls(piece: Piece, request: ChatRequest) -> bool:
    """Whether the model may have made more calls than the client got."""
    return bool(piece.tool_calls) and request.parallel_tool_calls is False


def _close_conversation(conversation: Any, stream: Generator[Any]) -> None:
    """Stop the conversation's running answer, and free the conversation."""
    conversation.cancel_process()
    if inspect.getgeneratorstate(stream) != inspect.GEN_CREATED:
        with suppress(RuntimeError):
            for _ in stream:
                pass
    conversation.close()
