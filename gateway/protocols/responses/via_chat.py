"""Responses of engines that speak chat completions, and the compaction of a conversation. Pure.

As in OpenAI's API, the output of a compaction is every user, system and developer message, followed by one `compaction`
item, which a later request sends back. Its `encrypted_content` is opaque to clients (`encode_summary`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from contract.errors import RoundhouseError
from gateway.protocols.common import errors
from gateway.protocols.common.conversation import Answer, AnswerWriter, Fields, Prompt, Text, Tokens, User
from gateway.protocols.common.dialect import EnvelopeDialect
from gateway.protocols.common.errors import OVERFLOW_CODE
from gateway.protocols.common.field_reader import field_error
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.streams import DONE
from gateway.protocols.responses.answer import ResponseWriter, error_event, usage_fields
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.items import encode_summary
from gateway.protocols.responses.request import read_prompt
from gateway.protocols.via_chat import TokenCountDialect, ViaChatBase, ViaChatDialect

SUMMARY_REQUEST: Final = (
    "The conversation so far is about to be replaced by a summary, because it has grown too long. Write that summary "
    "now, for an assistant that goes on with the task and sees nothing else but the user's own messages. Say what the "
    "user wants and every constraint given; what was done and decided, and why; facts, names, paths, identifiers, "
    "figures and results of tools that are still needed, exactly; what failed; and what is left to do next. Do not "
    "answer the conversation, and call no tool. Write the summary alone."
)
_KEPT_ROLES: Final = ("user", "system", "developer")


def read_compaction(fields: Fields, context: ResponseContext) -> Prompt:
    """Return the prompt that asks the model to summarise the conversation of a request, `context.history` included,
    without its tools and output format. Sets `context.keeps_items` and `context.input_items`. Raises RoundhouseError as
    `read_prompt`, and if `stream` is true."""
    if fields.get("stream"):
        raise field_error("stream", "must be false: a compaction is answered whole")
    context.keeps_items = True
    prompt = read_prompt(fields, context)
    turns, request = prompt.turns, Text(SUMMARY_REQUEST)
    last_turn = turns[-1] if turns else None
    if isinstance(last_turn, User):  # some chat templates refuse two user messages in a row
        turns = (*turns[:-1], replace(last_turn, parts=(*last_turn.parts, request)))
    else:
        turns = (*turns, User((request,), place="input"))
    # With tools or an output format, the model would not answer with a summary.
    return replace(prompt, turns=turns, tools=(), tool_choice=None, parallel_tool_calls=None, output_format=None)


class CompactionWriter(ResponseWriter):
    """`AnswerWriter` that writes a compaction from the model's summary. Only `build_answer` is used, because
    compactions are not streamed."""

    def build_answer(self, answer: Answer) -> Fields:
        """Return the compaction object. Raises RoundhouseError `engine_error` if the model wrote no summary; its
        thoughts do not count as one."""
        summary = answer.text.strip()
        if not summary:
            raise RoundhouseError("engine_error", "The model wrote no summary of the conversation.")
        context = self._context
        item = {"id": context.new_id("cmp"), "type": "compaction", "encrypted_content": encode_summary(summary)}
        return {
            "id": context.id,
            "object": "response.compaction",
            "created_at": context.created_at,
            "output": [*filter(_is_kept, (*context.history, *context.input_items)), item],
            "usage": usage_fields(answer.tokens or Tokens()),
        }


def _is_kept(item: Fields) -> bool:
    return item["type"] == "message" and item["role"] in _KEPT_ROLES


class ResponsesDialect(EnvelopeDialect):
    """The part that the dialects of `/v1/responses` and `/v1/responses/compact` share: how errors are sent."""

    form: str | None = "responses"

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
        return bool(errors.decode_json(error)["error"]["code"] == OVERFLOW_CODE)


class _ResponsesBase(ViaChatBase):
    """What responses and their token count share. The caller must set a request's `state` to its `ResponseContext`
    before `check_request`."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        """Return what the request asks for, after the history in its `ResponseContext`, of which it may set
        `input_items`. Media in a large body stay left out until the request is sent; texts, and items to be stored, are
        filled in. Raises RoundhouseError as `read_prompt`, and `invalid_json` for a string of a large body that is not
        valid."""
        context: ResponseContext = request.state
        body = request.large_body
        if body is not None:
            body.fill_fields(request.outline_fields, kept_names=_MEDIA)
        prompt = read_prompt(request.outline_fields, context)
        if body is not None:
            body.fill_fields({"input": list(context.input_items)}, kept_names=())
        return prompt


class ResponsesViaChat(_ResponsesBase, ViaChatDialect, ResponsesDialect):
    """Dialect of `/v1/responses`, translated into chat completions. The caller must set a request's `state` to its
    `ResponseContext` before `check_request`."""

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        return _open_writer(request)


class CompactionViaChat(ViaChatDialect, ResponsesDialect):
    """Dialect of `/v1/responses/compact`: asks an engine for a summary by a chat completion. The caller must set a
    request's `state` to its `ResponseContext` before `check_request`."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        return read_compaction(request.fields, request.state)

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        return CompactionWriter(request.fields, request.state)


class ResponsesTokenCount(_ResponsesBase, TokenCountDialect, JsonDialect):
    """Dialect of `/v1/responses/input_tokens`, answered by the engine's token count of chat completions. The caller
    must set a request's `state` to its `ResponseContext` before `check_request`."""

    form: str | None = "responses"

    def build_count(self, tokens: int) -> Fields:
        return {"object": "response.input_tokens", "input_tokens": tokens}


def _open_writer(request: InferenceRequest) -> AnswerWriter:
    context: ResponseContext = request.state
    return context.writer or ResponseWriter(request.outline_fields, context)


_MEDIA: Final = ("image_url", "data")
"""Fields that go to the engine unchanged."""

RESPONSES_VIA_CHAT: Final = ResponsesViaChat()
COMPACTION_VIA_CHAT: Final = CompactionViaChat()
RESPONSES_COUNT: Final = ResponsesTokenCount()
