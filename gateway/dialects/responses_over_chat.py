"""Responses, over an engine's chat completions. Pure."""

from __future__ import annotations

from typing import Final

from gateway.dialects.counting import CountedOverChat
from gateway.dialects.over_chat import OverChat
from gateway.dialects.plain import PlainDialect
from gateway.dialects.responses import ResponsesDialect
from gateway.request import InferenceRequest
from gateway.translation import responses
from gateway.translation.conversation import AnswerWriter, Fields, Prompt
from gateway.translation.responses_writer import ResponseWriter


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
