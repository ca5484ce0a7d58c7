"""Tests whether a model's chat template accepts a system message after the first user message. Pure.

Many templates raise an error on one (`System message must be at the beginning.`), others drop it silently. The engine
itself renders test conversations without answering them, because each engine changes messages in its own way (other
roles, merged messages) before its template sees them.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

_MARK: Final = "7351"
"""Text to find in the rendered prompt. Digits, because tokens of digits join to this very text: tokenizers that mark
where a word begins put no mark between digits."""
_SYSTEM: Final = {"role": "system", "content": _MARK}
_USER: Final = {"role": "user", "content": "a"}
_ANSWERED: Final = ({"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})
LATE_SYSTEM: Final[dict[str, Any]] = {"messages": [_USER, _SYSTEM, *_ANSWERED], "return_token_strs": True}
"""Request with the system message after the first user message. `return_token_strs` is for vLLM, which answers with
tokens."""
LEADING_SYSTEM: Final[dict[str, Any]] = {"messages": [_SYSTEM, _USER, *_ANSWERED], "return_token_strs": True}
"""The same conversation with the system message first. It shows whether the template refused the message's position
or system messages as such."""
Rendering = Literal["taken", "refused", "untold"]
"""What the template did with the system message. `untold`: the engine does not tell, or not now."""
BUSY_STATUSES: Final = frozenset({429, 503})
"""HTTP statuses of an engine that may answer later."""
_UNTOLD_STATUSES: Final = BUSY_STATUSES | {401, 403, 404, 405, 501}
"""HTTP statuses that say nothing about the template: a busy engine, missing permission, or no such path."""


def judge_rendering(status: int, text: str) -> Rendering:
    """Return what the template did with the system message, by the engine's answer to LATE_SYSTEM or LEADING_SYSTEM:
    its HTTP status and its body. `taken`: the prompt has it. `refused`: the template raised an error, or dropped the
    message silently. `untold`: the answer does not tell. Never raises.

    llama-server and our worker answer with the prompt, vLLM with the strings of its tokens.
    """
    if status in _UNTOLD_STATUSES:
        return "untold"
    if status != 200:
        return "refused"
    try:
        fields = json.loads(text)
        prompt = fields["prompt"] if "prompt" in fields else "".join(fields["token_strs"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return "untold"
    if not isinstance(prompt, str):
        return "untold"
    return "taken" if _MARK in prompt else "refused"
