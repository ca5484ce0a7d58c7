"""Responses, translated for engines that serve chat completions. Pure."""

from __future__ import annotations

from typing import Final

from gateway.protocols.common import context_overflow, errors
from gateway.protocols.common.conversation import AnswerWriter, Fields, Prompt
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.passthrough import EnvelopeDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses import request as responses
from gateway.protocols.responses.answer_stream import DONE, ResponseWriter, error_event
from gateway.protocols.responses.compaction import CompactionWriter, read_compaction
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.via_chat.dialect import ViaChatDialect
from gateway.protocols.via_chat.token_count import TokenCountDialect


class ResponsesDialect(EnvelopeDialect):
    """The part that the dialects of `/v1/responses` and `/v1/responses/compact` share: how errors are sent."""

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """Return the error, whose JSON is `body`, as an event and `[DONE]`; for a request that was read (its `prompt`
        is set), as the whole stream of a failed response, which becomes `response` of its `ResponseContext`. See
        `Dialect`."""
        error = errors.decode_json(body)["error"]
        if request is None or request.prompt is None:
            return error_event(error, 0) + DONE
        return _open_writer(request).fail_answer(error)

    def is_told_by_events(self, error: bytes) -> bool:
        """Return True for a context overflow (`context_length_exceeded`), False for any other error. OpenAI counts a
        prompt only after it began the response, so Codex looks for this code in `response.failed` alone and takes
        status 400 for any other error."""
        return bool(errors.decode_json(error)["error"]["code"] == context_overflow.CODE)


class ResponsesViaChat(ViaChatDialect, ResponsesDialect):
    """Dialect of `/v1/responses`, translated into chat completions. The caller must set a request's `state` to its
    `ResponseContext` before `check_request`."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for, after the history in its `ResponseContext`, of which it may set
        `input_items`. In the outline of a large body, it puts texts, but not media, back in place. Raises
        RoundhouseError as `responses.request.read_prompt`, and `invalid_json` for a string of a large body that is not
        valid."""
        return _read_prompt(request)

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        """Return the writer of the request's `ResponseContext`, or else a new `ResponseWriter`, for one answer."""
        return _open_writer(request)


class CompactionViaChat(ViaChatDialect, ResponsesDialect):
    """Dialect of `/v1/responses/compact`: asks an engine for a summary by a chat completion. The caller must set a
    request's `state` to its `ResponseContext` before `check_request`."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return the prompt that asks the model for a summary of the conversation, and set `keeps_items` and
        `input_items` of the request's `ResponseContext`. Raises RoundhouseError as `compaction.read_compaction`."""
        return read_compaction(request.fields, request.state)

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        """Return a new `CompactionWriter` for one answer."""
        return CompactionWriter(request.fields, request.state)


class ResponsesTokenCount(TokenCountDialect, JsonDialect):
    """Dialect of `/v1/responses/input_tokens`, answered by the engine's token count of chat completions. The caller
    must set a request's `state` to its `ResponseContext` before `check_request`."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for, after the history in its `ResponseContext`, of which it may set
        `input_items`. In the outline of a large body, it puts texts, but not media, back in place. Raises
        RoundhouseError as `responses.request.read_prompt`, and `invalid_json` for a string of a large body that is not
        valid."""
        return _read_prompt(request)

    def build_count(self, tokens: int) -> Fields:
        """Return the body of OpenAI's token count: `object`, which is `response.input_tokens`, and `input_tokens`."""
        return {"object": "response.input_tokens", "input_tokens": tokens}


def _open_writer(request: InferenceRequest) -> AnswerWriter:
    context: ResponseContext = request.state
    return context.writer or ResponseWriter(request.outline_fields, context)


def _read_prompt(request: InferenceRequest) -> Prompt:
    """Return what the request asks for. Media in a large body stay left out until the request is sent; texts, and items
    to be stored, are filled in."""
    context: ResponseContext = request.state
    body = request.large_body
    if body is not None:
        body.fill_fields(request.outline_fields, kept_names=_MEDIA)
    prompt = responses.read_prompt(request.outline_fields, context)
    if body is not None:
        body.fill_fields({"input": list(context.input_items)}, kept_names=())
    return prompt


_MEDIA: Final = ("image_url", "data")
"""Fields that go to the engine unchanged."""

RESPONSES_VIA_CHAT: Final = ResponsesViaChat()
COMPACTION_VIA_CHAT: Final = CompactionViaChat()
RESPONSES_COUNT: Final = ResponsesTokenCount()
