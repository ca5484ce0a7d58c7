"""What llama-server's chat completions take and tell beyond OpenAI's, and what its completions overlook. Pure."""

from __future__ import annotations

from typing import Any, Final

from gateway.protocols.common.conversation import Assistant, Fields, Prompt, Tokens
from gateway.protocols.common.field_reader import describe_value, field_error

BACKEND: Final = "llama_server"


def fields_for(prompt: Prompt) -> Fields:
    """Further fields of a request. Which stop string ended an answer it tells only where it is to tell everything.
    Whether a stream repeats what it goes on with differs between versions, unless it is told to; a blocking answer
    always does."""
    fields: Fields = {}
    if repeated_turn(prompt) is not None:
        fields["echo"] = True
    if prompt.stop:
        fields["verbose"] = True
    if prompt.thinking_tokens is not None:
        fields["thinking_budget_tokens"] = prompt.thinking_tokens
    return fields


def repeated_turn(prompt: Prompt) -> Assistant | None:
    """What an answer goes on with, and so begins with once more."""
    last = prompt.turns[-1] if prompt.turns else None
    return last if isinstance(last, Assistant) and not last.calls else None


def check_completion(fields: Fields) -> None:
    """Refuse what a completion of llama-server's overlooks: the prompt in the answer, a text behind it, the best of
    several answers.

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
    """The prompt's tokens, by an event of `return_progress`, the first of which comes before they are processed; None:
    the event is another one."""
    progress: Any = fields.get("prompt_progress")
    if not isinstance(progress, dict):
        return None
    total, cached = progress.get("total"), progress.get("cache")
    return Tokens(
        prompt=total if isinstance(total, int) else 0,
        cached=cached if isinstance(cached, int) else 0,
    )


def stop_sequence_in(fields: Fields) -> str | None:
    """The stop string that ended an answer, where a blocking answer or an event tells it."""
    details: Any = fields.get("__verbose")
    word = details.get("stopping_word") if isinstance(details, dict) else None
    return word if isinstance(word, str) and word else None
