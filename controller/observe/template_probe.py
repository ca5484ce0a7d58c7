"""Whether a model's chat template takes a system message behind the first user message. Pure.

Many templates raise on one (`System message must be at the beginning.`), others leave it out without a word. The engine
itself is asked, with conversations that it renders and does not answer, because what it makes of messages before its
template sees them (other roles, merged messages) is its own.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

_MARK: Final = "7351"
"""Digits: tokenizers that mark the beginning of a word do not mark one between them."""
_SYSTEM: Final = {"role": "system", "content": _MARK}
_USER: Final = {"role": "user", "content": "a"}
_ANSWERED: Final = ({"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})
LATE_SYSTEM: Final[dict[str, Any]] = {"messages": [_USER, _SYSTEM, *_ANSWERED], "return_token_strs": True}
"""The system message is behind the first user message. `return_token_strs`: for vLLM, which answers with tokens."""
LEADING_SYSTEM: Final[dict[str, Any]] = {"messages": [_SYSTEM, _USER, *_ANSWERED], "return_token_strs": True}
"""The same conversation with its system message first: it tells whether the place was what was refused."""
Rendering = Literal["taken", "refused", "untold"]
"""What became of a system message. `untold`: the engine does not say, or cannot now."""
BUSY_STATUSES: Final = frozenset({429, 503})
"""Of an engine that may tell later."""
_UNTOLD_STATUSES: Final = BUSY_STATUSES | {401, 403, 404, 405, 501}
"""The others are of one that refuses whoever asks, or has no such path."""


def judge_rendering(status: int, text: str) -> Rendering:
    """What the engine's answer to one of these conversations tells. llama-server and our worker answer with the
    prompt, vLLM with its tokens."""
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
