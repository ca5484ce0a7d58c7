"""Completions, of engines that speak chat alone."""

from __future__ import annotations

from typing import Final

from gateway.dialects.openai import OpenAIDialect
from gateway.dialects.over_chat import OverChat
from gateway.request import InferenceRequest
from gateway.translation import completions
from gateway.translation.completions import CompletionWriter
from gateway.translation.conversation import AnswerWriter, Prompt


class CompletionsOverChat(OverChat, OpenAIDialect):
    """The prompt is what a user says."""

    def read(self, request: InferenceRequest) -> Prompt:
        """See OverChat."""
        return completions.read(request.fields)

    def writer(self, request: InferenceRequest) -> AnswerWriter:
        """See OverChat."""
        made = f"cmpl-{request.id.removeprefix('req-')}"
        return CompletionWriter(made, int(request.received_at), request.model, wants_usage=request.wants_usage)


COMPLETIONS_OVER_CHAT: Final = CompletionsOverChat(is_chat=False)
