"""OpenAI's chat completions and completions, passed through: `data:` events, `[DONE]` at the end.

The usage event has no choices and comes last. The gateway always asks the engine for it, and removes it from the
client's stream unless the client asked for it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.chat import engine_request, llama_server, reasoning
from gateway.protocols.chat.stream_collector import OpenAICollector
from gateway.protocols.common import bodies
from gateway.protocols.common.choices import check_choices
from gateway.protocols.common.dialect import EventStream, StreamCollector
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.known_fields import CHAT_FIELDS, COMPLETION_FIELDS, check_foreign_fields
from gateway.protocols.common.openai_events import OpenAIStream, as_events
from gateway.protocols.common.output_constraints import CONSTRAINT_FIELDS, adapt_constraints
from gateway.protocols.common.passthrough import EnvelopeDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.stream_compat import differs_as_stream, wants_probabilities


class ChatStream(OpenAIStream):
    """`EventStream` of chat completion events, passed through. Thoughts are sent under both of their field names,
    `reasoning_content` and `reasoning`."""

    __slots__ = ()

    def feed_data(self, chunk: bytes) -> bytes:
        """Return the whole events that `chunk` completes, with thoughts under both names. Raises EventTooLongError as
        `PassthroughStream.feed_data`. See `dialect.EventStream`."""
        events = super().feed_data(chunk)
        return reasoning.alias_in_events(events) if reasoning.MARK in events else events


class ChatCollector(OpenAICollector):
    """`StreamCollector` of a blocking chat completion. Thoughts are sent under both of their field names,
    `reasoning_content` and `reasoning`."""

    __slots__ = ()

    def build_result(self) -> tuple[int, bytes] | None:
        """Return status and body with thoughts under both names; None if the stream broke off. See
        `StreamCollector`."""
        result = super().build_result()
        return result if result is None else (result[0], reasoning.alias_in_body(result[1]))


class OpenAIDialect(EnvelopeDialect):
    """Dialect of chat completions (`is_chat`) or of completions, for engines that serve them: both are passed
    through."""

    may_flow: bool = True

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._known_fields = CHAT_FIELDS if is_chat else COMPLETION_FIELDS

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what the model does not support: capabilities, fields that a remote model must not get, too many
        answers, output constraints, and completion options that llama-server ignores.

        Raises:
            RoundhouseError: `invalid_request`, or the code of what the model does not support; `param` is the field. Or
                `invalid_json`: a string of a large body with output constraints is not valid.
        """
        super().check_request(request, route)
        fields = request.outline_fields
        check_foreign_fields(fields, self._known_fields, route)
        check_choices(fields, route)
        adapt_constraints(request.whole_where_any(CONSTRAINT_FIELDS), route, is_chat=self._is_chat)
        if not self._is_chat and route.backend == llama_server.BACKEND:
            llama_server.check_completion(fields)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the body as the engine understands it: output constraints and, for chat, thinking, tools and system
        messages in the engine's terms, without fields that it must not get, and asking for usage in each stream. Call
        after `check_request`.

        Raises:
            RoundhouseError: `invalid_request`: `tool_choice` names a tool that is not among `tools`.
        """
        asked_fields = request.whole_where_any(CONSTRAINT_FIELDS)
        fields = adapt_constraints(asked_fields, route, is_chat=self._is_chat)
        if fields is not asked_fields:
            request = replace(request, outline=json_bytes(fields), outline_fields=fields)
        if self._is_chat:
            request = engine_request.adapt_request(request, route)
        request = bodies.without_foreign_fields(request, self._known_fields, route)
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=True)
        if request.stream and not request.wants_usage:
            return bodies.with_usage(request, route.served_name)
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """Return a `ChatStream`, or for completions an `OpenAIStream`, that removes the usage event unless the client
        asked for it."""
        stream_class = ChatStream if self._is_chat else OpenAIStream
        return stream_class(request.id, strip_usage=not request.wants_usage)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return a new collector for a blocking answer; None if a stream cannot give the same answer.

        None if `differs_as_stream` is true, for log probabilities in a chat, and for log probabilities with stop
        strings in a completion. Chat streams of llama-server lack the log probabilities of tokens without text; its
        completion streams include those of a stop string, which a blocking answer leaves out.
        """
        fields = request.outline_fields
        if differs_as_stream(fields) or (wants_probabilities(fields) and (self._is_chat or fields.get("stop"))):
            return None
        return ChatCollector(is_chat=True) if self._is_chat else OpenAICollector(is_chat=False)

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return a function that puts a chat answer's thoughts under both names, `reasoning_content` and `reasoning`;
        None for completions, which pass unchanged."""
        return reasoning.alias_in_body if self._is_chat else None

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """Return the error, whose JSON is `body`, as a `data:` event and `[DONE]`. See `Dialect`."""
        return as_events(body)


CHAT: Final = OpenAIDialect(is_chat=True)
COMPLETIONS: Final = OpenAIDialect(is_chat=False)
