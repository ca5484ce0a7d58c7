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
from gateway.protocols.via_chat.dialect import ViaChatBase, ViaChatDialect
from gateway.protocols.via_chat.token_count import TokenCountDialect


class _MessagesBase(ViaChatBase):
    """What both of them check."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """See Dialect. Anthropic's clients send their `thinking` object to any model, so that is a wish; the word alone
        is an order, as it is in chat completions."""
        if request.prompt is None:
            request.prompt = self.read_request(request)
        thinking = request.prompt.thinking
        is_wish = thinking is not None and not isinstance(request.outline_fields["thinking"], str)
        if is_wish and thinking not in route.capabilities.thinking_modes:
            request.prompt = replace(request.prompt, thinking=None, thinking_tokens=None)
        super().check_request(request, route)


class MessagesViaChat(_MessagesBase, ViaChatDialect, MessagesDialect):
    """Messages."""

    tells_prompt_first = True

    def read_request(self, request: InferenceRequest) -> Prompt:
        """See ViaChat."""
        return messages.read_prompt(request.outline_fields)

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        """See ViaChat."""
        return MessagesWriter(request.model)


class MessagesTokenCount(_MessagesBase, TokenCountDialect, MessagesDialect):
    """The tokens of messages."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        """See ViaChatBase."""
        return messages.read_prompt(request.outline_fields, needs_limit=False)

    def build_count(self, tokens: int) -> Fields:
        """See CountedViaChat."""
        return {"input_tokens": tokens}


MESSAGES_VIA_CHAT: Final = MessagesViaChat()
MESSAGES_COUNTED_VIA_CHAT: Final = MessagesTokenCount()
