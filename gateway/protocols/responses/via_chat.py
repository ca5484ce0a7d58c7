"""Responses, over an engine's chat completions. Pure."""

from __future__ import annotations

from typing import Final

from gateway.protocols.common.conversation import AnswerWriter, Fields, Prompt
from gateway.protocols.common.json_dialect import PlainDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses import request as responses
from gateway.protocols.responses.answer_stream import ResponseWriter
from gateway.protocols.responses.dialect import ResponsesDialect
from gateway.protocols.via_chat.dialect import OverChat
from gateway.protocols.via_chat.token_count import CountedOverChat


class ResponsesOverChat(OverChat, ResponsesDialect):
    """`/v1/responses`. A request's `state` is its `ResponseContext`."""

    def read(self, request: InferenceRequest) -> Prompt:
        """See ReadForChat."""
        return responses.read(request.fields, request.state)

    def writer(self, request: InferenceRequest) -> AnswerWriter:
        """See OverChat."""
        return ResponseWriter(request.fields, request.state)


class ResponsesCount(CountedOverChat, PlainDialect):
    """`/v1/responses/input_tokens`."""

    def read(self, request: InferenceRequest) -> Prompt:
        """See ReadForChat."""
        return responses.read(request.fields, request.state)

    def counted(self, tokens: int) -> Fields:
        """See CountedOverChat."""
        return {"object": "response.input_tokens", "input_tokens": tokens}


RESPONSES_OVER_CHAT: Final = ResponsesOverChat()
RESPONSES_COUNT: Final = ResponsesCount()
