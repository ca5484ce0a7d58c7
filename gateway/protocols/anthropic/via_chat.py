"""Anthropic's messages by an engine that speaks chat completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.anthropic import request as messages
from gateway.protocols.anthropic.answer_stream import MessagesWriter
from gateway.protocols.anthropic.dialect import MessagesDialect
from gateway.protocols.common.conversation import AnswerWriter, Fields, Prompt
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.via_chat.dialect import OverChat, ReadForChat
from gateway.protocols.via_chat.token_count import CountedOverChat


class _MessagesRead(ReadForChat):
    """What both of them check."""

    def check(self, request: InferenceRequest, route: ModelRoute) -> None:
        """See Dialect. Anthropic's clients send their `thinking` object to any model, so that is a wish; the word alone
        is an order, as it is in chat completions."""
        if request.prompt is None:
            request.prompt = self.read(request)
        thinking = request.prompt.thinking
        is_wish = thinking is not None and not isinstance(request.fields["thinking"], str)
        if is_wish and thinking not in route.capabilities.thinking_modes:
            request.prompt = replace(request.prompt, thinking=None, thinking_tokens=None)
        super().check(request, route)


class MessagesOverChat(_MessagesRead, OverChat, MessagesDialect):
    """Messages."""

    def read(self, request: InferenceRequest) -> Prompt:
        """See OverChat."""
        return messages.prompt_of(request.fields)

    def writer(self, request: InferenceRequest) -> AnswerWriter:
        """See OverChat."""
        return MessagesWriter(request.model)


class MessagesCountedOverChat(_MessagesRead, CountedOverChat, MessagesDialect):
    """The tokens of messages."""

    def read(self, request: InferenceRequest) -> Prompt:
        """See ReadForChat."""
        return messages.prompt_of(request.fields, needs_limit=False)

    def counted(self, tokens: int) -> Fields:
        """See CountedOverChat."""
        return {"input_tokens": tokens}


MESSAGES_OVER_CHAT: Final = MessagesOverChat()
MESSAGES_COUNTED_OVER_CHAT: Final = MessagesCountedOverChat()
