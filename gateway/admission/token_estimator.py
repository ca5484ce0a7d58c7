"""How many tokens requests of one model take, learned from what its engines count. Pure."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from gateway.admission.token_demand import TokenDemand

LEAST_ANSWER: Final = 64
"""Tokens that an answer without a limit is expected to take at least."""
TEMPLATE_TOKENS: Final = 32
"""Added to each prompt for what its chat template adds, which the size of a body does not show."""
MARGIN: Final = 1.1
"""By which an estimate exceeds the densest prompt that was seen."""
OVERRUN_FACTOR: Final = 1.5
MOST_OVERRUN_FACTOR: Final = 8.0
OVERRUN_PAUSE_S: Final = 1.0
"""An engine that is full fails all its requests at once: that is one overrun."""
_RECOVERY: Final = 0.98
"""By which an overrun's factor falls with each request that was counted."""
_MEMORY: Final = 32
"""Requests in which a maximum moves most of the way to what is seen now."""
_ANSWERS_KEPT: Final = 64
_ANSWER_QUANTILE: Final = 0.9
_FIRST_MEDIA_TOKENS: Final = 1024.0
"""Of a request's images and sound, while none was counted."""
_SIZE_CLASSES: Final = 24


class TokenEstimator:
    """What the requests of one model have taken.

    A prompt is estimated by its bytes, at the greatest number of tokens per byte that was seen lately of prompts of
    about its size: small ones have more, because of the template. While nothing was seen, a byte is a token, which is
    what a tokenizer with byte fallback makes at most.
    """

    __slots__ = ("_answers", "_media_tokens", "_overrun_at", "_overrun_factor", "_rates", "answer_tokens")

    def __init__(self) -> None:
        self._rates = [0.0] * _SIZE_CLASSES
        """Tokens per byte, by the size's power of four; 0: none was seen."""
        self._media_tokens = _FIRST_MEDIA_TOKENS
        self._answers: deque[int] = deque(maxlen=_ANSWERS_KEPT)
        self._overrun_factor = 1.0
        self._overrun_at: float | None = None
        self.answer_tokens: int | None = None
        """What nine of ten of the latest answers without an effective limit took at most; None: none was seen."""

    def estimate_prompt(self, demand: TokenDemand) -> int:
        """Tokens of the prompt, an upper bound as far as what was seen goes."""
        tokens = self._estimate_text(demand)
        if demand.has_media:
            tokens += ceil(self._media_tokens * MARGIN * self._overrun_factor)
        return tokens

    def record_usage(self, demand: TokenDemand, prompt_tokens: int, answer_tokens: int) -> None:
        """An engine counted a request: so many tokens in, and out in all of its answers."""
        self._overrun_factor = max(1.0, self._overrun_factor * _RECOVERY)
        if prompt_tokens > 0 and demand.has_media:
            self._media_tokens = _follow(self._media_tokens, max(0, prompt_tokens - self._estimate_text(demand)))
        elif prompt_tokens > 0 and demand.text_bytes > 0:
            size_class = _size_class(demand.text_bytes)
            self._rates[size_class] = _follow(self._rates[size_class], prompt_tokens / demand.text_bytes)
        tokens = ceil(answer_tokens / demand.sequences)
        if tokens > 0 and (demand.max_tokens is None or tokens < demand.max_tokens):
            self._answers.append(tokens)
            self.answer_tokens = sorted(self._answers)[int(_ANSWER_QUANTILE * (len(self._answers) - 1))]

    def record_overrun(self, now: float) -> None:
        """An engine had more inside than it has room for: estimates were too low."""
        if self._overrun_at is None or now - self._overrun_at >= OVERRUN_PAUSE_S:
            self._overrun_at = now
            self._overrun_factor = min(self._overrun_factor * OVERRUN_FACTOR, MOST_OVERRUN_FACTOR)

    def _estimate_text(self, demand: TokenDemand) -> int:
        rate = self._rate_of(_size_class(demand.text_bytes))
        if not rate:
            return demand.text_bytes + TEMPLATE_TOKENS
        return ceil(demand.text_bytes * rate * MARGIN * self._overrun_factor) + TEMPLATE_TOKENS

    def _rate_of(self, size_class: int) -> float:
        """Of its class, else of the nearest smaller one, which has no fewer, else of the nearest greater one."""
        rates = self._rates
        return (
            rates[size_class]
            or next((rate for rate in rates[size_class::-1] if rate), 0.0)
            or next((rate for rate in rates[size_class:] if rate), 0.0)
        )


def _size_class(text_bytes: int) -> int:
    return min(text_bytes.bit_length() // 2, _SIZE_CLASSES - 1)


def _follow(greatest: float, value: float) -> float:
    """A maximum that follows what is seen: up at once, down slowly."""
    return value if value > greatest else greatest + (value - greatest) / _MEMORY
