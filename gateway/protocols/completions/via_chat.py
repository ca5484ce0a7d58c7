"""OpenAI's completions, translated for engines that serve chat completions alone."""

from __future__ import annotations

from typing import Final

from gateway.protocols.chat.dialect import OpenAIDialect
from gateway.protocols.common.conversation import AnswerWriter, Prompt
from gateway.protocols.common.output_constraints import CONSTRAINT_FIELDS
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.completions import codec
from gateway.protocols.completions.codec import CompletionWriter
from gateway.protocols.via_chat.dialect import ViaChatDialect


class CompletionsViaChat(ViaChatDialect, OpenAIDialect):
    """Dialect of `/v1/completions` for engines that serve chat completions alone: the prompt becomes a user message."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for, as a conversation of one user message. Raises RoundhouseError as
        `completions.codec.read_prompt` and `InferenceRequest.fields`."""
        return codec.read_prompt(request.whole_where_any(CONSTRAINT_FIELDS))

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        """Return a new `CompletionWriter` for one answer, whose id is `cmpl-` and the request's id without `req-`."""
        completion_id = f"cmpl-{request.id.removeprefix('req-')}"
        return CompletionWriter(completion_id, int(request.received_at), request.model, wants_usage=request.wants_usage)


COMPLETIONS_VIA_CHAT: Final = CompletionsViaChat(is_chat=False)
