"""What llama-server's chat completions take and report beyond OpenAI's, and what its completions ignore. Pure."""

from __future__ import annotations

from typing import Any, Final

from gateway.protocols.common.conversation import Assistant, Fields, Prompt, Tokens
from gateway.protocols.common.field_reader import describe_value, field_error

BACKEND: Final = "llama_server"


def fields_for(prompt: Prompt) -> Fields:
    """Return the fields that a translated request to llama-server needs in addition; empty if it needs none.

    `verbose`: llama-server reports the stop string that ended an answer only in verbose answers. `echo`: a blocking
    answer always repeats the assistant turn that it continues; whether a stream does depends on the version, unless
    the request says so. `thinking_budget_tokens`: the maximum tokens for thoughts.
    """
    fields: Fields = {}
    if repeated_turn(prompt) is not None:
        fields["echo"] = True
    if prompt.stop:
        fields["verbose"] = True
    if prompt.thinking_tokens is not None:
        fields["thinking_budget_tokens"] = prompt.thinking_tokens
    return fields


def repeated_turn(prompt: Prompt) -> Assistant | None:
    """Return the last turn if it is an assistant turn without tool calls: the answer continues it, and llama-server
    repeats it first. None if the answer starts a turn of its own."""
    last = prompt.turns[-1] if prompt.turns else None
    return last if isinstance(last, Assistant) and not last.calls else None


def check_completion(fields: Fields) -> None:
    """Refuse completion options that llama-server silently ignores: `echo`, `suffix`, and a `best_of` other than `n`.

    Raises:
        RoundhouseError: `invalid_request`; `param` is the field.
    """
    count = fields.get("n") or 1
    for name, is_overlooked in (
        ("echo", bool(fields.get("echo"))),
        ("suffix", bool(fields.get("suffix"))),
        ("best_of", fields.get("best_of") not in (None, count)),
    ):
        if is_overlooked:
            rule = f"cannot be had: llama-server answers what follows the prompt alone; {describe_value(fields[name])}"
            raise field_error(name, rule)


def prompt_tokens_in(fields: Fields) -> Tokens | None:
    """Return the prompt's token counts from a `return_progress` event, `completion` 0; None for any other event. A
    count that is no whole number is 0. The first such event comes before the prompt is processed."""
    progress: Any = fields.get("prompt_progress")
    if not isinstance(progress, dict):
        return None
    total, cached = progress.get("total"), progress.get("cache")
    return Tokens(
        prompt=total if isinstance(total, int) else 0,
        cached=cached if isinstance(cached, int) else 0,
    )


def stop_sequence_in(fields: Fields) -> str | None:
    """Return the stop string that ended an answer, from a blocking answer or an event of a request with `verbose`
    (`fields_for`); None: no stop string did, or it is not reported."""
    details: Any = fields.get("__verbose")
    word = details.get("stopping_word") if isinstance(details, dict) else None
    return word if isinstance(word, str) and word else None
