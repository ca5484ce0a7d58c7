"""Which blocking requests must not be answered from a stream. Pure.

Found by reading llama-server (tools/server of llama.cpp) and by comparing its answers.
"""

from __future__ import annotations

from typing import Any, Final

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "n_predict")


def differs_as_stream(fields: dict[str, Any]) -> bool:
    """Return whether a stream of llama-server would leave out or change a part of the blocking answer to a request
    with these decoded fields, in any API family. Then the request must not be sent as a stream. True for:

    - Stop strings with a token limit: text that could start a stop string is held back, and lost if the limit falls
      there.
    - `n_indent`: the line that ends the answer is removed from a blocking answer, but was sent in a stream.
    - `verbose`: `__verbose` of a stream describes its last part only.
    - `reasoning_format` deepseek-legacy: in a stream, thoughts are part of the content.
    - An answer that continues the last assistant message: some versions send that message's text in blocking answers
      only.
    - `best_of`: the best answer is known only when all have ended.
    """
    if _stops(fields) and any(fields.get(name) is not None for name in _LIMITS):
        return True
    if fields.get("continue_final_message") or _goes_on(fields.get("messages")):
        return True
    if fields.get("n_indent") or fields.get("verbose") or fields.get("reasoning_format") == "deepseek-legacy":
        return True
    return fields.get("best_of") not in (None, 1)


def wants_probabilities(fields: dict[str, Any]) -> bool:
    """Return whether the request asks for log probabilities of tokens, by `logprobs`, `top_logprobs` or `n_probs`. The
    number 0 does not count as asking."""
    return bool(fields.get("logprobs") or fields.get("top_logprobs") or fields.get("n_probs"))


def _stops(fields: dict[str, Any]) -> bool:
    return bool(fields.get("stop") or fields.get("stop_sequences"))


def _goes_on(messages: Any) -> bool:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"
