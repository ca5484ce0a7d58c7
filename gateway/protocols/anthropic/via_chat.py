"""Anthropic's messages, translated for engines that serve chat completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.anthropic import request as messages
from gateway.protocols.anthropic.answer_stream import MessagesWriter
from gateway.protocols.anthropic.dialect import MessagesDialect
from gateway.protocols.common.conversation import AnswerWriter, Fields, Prompt
from gateway.protocols.common.output_constraints import CONSTRAINT_FIELDS
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.via_chat.dialect import ViaChatBase, ViaChatDialect
from gateway.protocols.via_chat.token_count import TokenCountDialect


class _MessagesBase(ViaChatBase):
    """What messages and their token count share."""

    def prompt_for(self, request: InferenceRequest, prompt: Prompt, route: ModelRoute) -> Prompt:
        """Return `prompt` without a `thinking` object that the model does not support, because Anthropic's clients send
        one to any model. A `thinking` string stays, and is refused, as in chat completions. See `ViaChatBase`."""
        is_wish = prompt.thinking is not None and not isinstance(request.outline_fields["thinking"], str)
        if is_wish and prompt.thinking not in route.capabilities.thinking_modes:
            return replace(prompt, thinking=None, thinking_tokens=None)
        return prompt


class MessagesViaChat(_MessagesBase, ViaChatDialect, MessagesDialect):
    """Dialect of `/v1/messages` for engines that serve chat completions: translates requests, answers and streams."""

    tells_prompt_first = True

    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for. `max_tokens` is required. Raises RoundhouseError as
        `anthropic.request.read_prompt` and `InferenceRequest.fields`."""
        return messages.read_prompt(request.whole_where_any(CONSTRAINT_FIELDS))

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        """Return a new `MessagesWriter` for one answer."""
        return MessagesWriter(request.model)


class MessagesTokenCount(_MessagesBase, TokenCountDialect, MessagesDialect):
    """Dialect of `/v1/messages/count_tokens`, answered by the engine's token count of chat completions."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for. `max_tokens` may be missing. Raises RoundhouseError as
        `anthropic.request.read_prompt` and `InferenceRequest.fields`."""
        return messages.read_prompt(request.whole_where_any(CONSTRAINT_FIELDS), needs_limit=False)

    def build_count(self, tokens: int) -> Fields:
        """Return the body of Anthropic's token count, `{"input_tokens": tokens}`."""
        return {"input_tokens": tokens}


MESSAGES_VIA_CHAT: Final = MessagesViaChat()
MESSAGES_COUNTED_VIA_CHAT: Final = MessagesTokenCount()
