"""What vLLM's chat completions take beyond OpenAI's. Pure."""

from __future__ import annotations

from typing import Final

from gateway.protocols.common.conversation import Assistant, Fields, Prompt

BACKENDS: Final = ("vllm_serve", "vllm")
_GOES_ON: Final = "continue_final_message"


def fields_for(prompt: Prompt) -> Fields:
    """Return the fields that a translated request to vLLM needs in addition; empty if it needs none.

    If the last turn is a text of the model without tool calls, the answer continues that text, as llama-server does by
    itself. vLLM does not repeat the text. A request that says by fields of its own what the answer begins with stays
    as it is.
    """
    last = prompt.turns[-1] if prompt.turns else None
    goes_on = isinstance(last, Assistant) and bool(last.text) and not last.calls
    if not goes_on or not prompt.passed_fields.keys().isdisjoint((_GOES_ON, "add_generation_prompt")):
        return {}
    return {_GOES_ON: True, "add_generation_prompt": False}
