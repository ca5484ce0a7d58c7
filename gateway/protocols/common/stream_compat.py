"""Which blocking calls a stream cannot answer. Pure.

Found by reading llama-server (tools/server of llama.cpp) and by asking it both ways.
"""

from __future__ import annotations

from typing import Any, Final

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "n_predict")


def differs_as_stream(fields: dict[str, Any]) -> bool:
    """True for what a stream of llama-server leaves out, or says otherwise, in any family.

    - stop strings with a limit: text that could begin a stop string is held back, and lost where the limit falls there;
    - `n_indent`: the line that ends it is taken back from a blocking answer, and was sent in a stream;
    - `verbose`: `__verbose` of a stream is about its last part;
    - `reasoning_format` deepseek-legacy: in a stream the thoughts are in the content;
    - an answer that goes on with the assistant's last message: some versions send that message's text in a blocking
      answer alone;
    - `best_of`: the best is known when all have ended.
    """
    if _stops(fields) and any(fields.get(name) is not None for name in _LIMITS):
        return True
    if fields.get("continue_final_message") or _goes_on(fields.get("messages")):
        return True
    if fields.get("n_indent") or fields.get("verbose") or fields.get("reasoning_format") == "deepseek-legacy":
        return True
    return fields.get("best_of") not in (None, 1)


def wants_probabilities(fields: dict[str, Any]) -> bool:
    """Whether the probabilities of tokens are asked for."""
    return bool(fields.get("logprobs") or fields.get("top_logprobs") or fields.get("n_probs"))


def _stops(fields: dict[str, Any]) -> bool:
    return bool(fields.get("stop") or fields.get("stop_sequences"))


def _goes_on(messages: Any) -> bool:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"
