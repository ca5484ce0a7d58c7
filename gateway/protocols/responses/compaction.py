"""Compaction of a conversation: the model writes a summary that replaces all but the instructions and user messages.
Pure.

As in OpenAI's API, the output is every user, system and developer message, followed by one `compaction` item, which a
later request sends back. Its `encrypted_content` is opaque to clients (`encode_summary`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Answer, Fields, Prompt, Text, Tokens, User
from gateway.protocols.common.field_reader import field_error
from gateway.protocols.responses.answer_stream import ResponseWriter
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.items import encode_summary
from gateway.protocols.responses.request import read_prompt
from gateway.protocols.responses.response_object import usage_fields

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
    without its tools and output format. Sets `context.keeps_items` and `context.input_items`.

    Raises:
        RoundhouseError: `invalid_request`, also if `stream` is true, or `modality_unsupported`; its `param` is the
            path to the value, such as `input[0].role`.
    """
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
        """Return the compaction object: the user, system and developer messages, then one item with the summary.
        Raises RoundhouseError `engine_error` if the model wrote no summary. Thoughts do not count as one."""
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
