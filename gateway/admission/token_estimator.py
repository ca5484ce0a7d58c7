"""Estimate how many tokens a model's requests take, from the counts that its engines report. Pure."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from gateway.admission.token_demand import TokenDemand

LEAST_ANSWER: Final = 64
"""Tokens that an answer without a limit is expected to take at least."""
TEMPLATE_TOKENS: Final = 32
"""Tokens added to each prompt for its chat template, which the size of a body does not show."""
MARGIN: Final = 1.1
"""Factor by which estimates exceed the densest recent prompt."""
OVERRUN_FACTOR: Final = 1.5
"""Factor by which estimates grow with each overrun: an engine that reports a full KV cache."""
MOST_OVERRUN_FACTOR: Final = 8.0
"""Bound of the product of these factors."""
OVERRUN_PAUSE_S: Final = 1.0
"""Overruns within this time count as one: a full engine fails all its requests at once."""
_RECOVERY: Final = 0.98
"""Factor by which the overrun factor falls with each request that an engine counted."""
_MEMORY: Final = 32
"""Number of requests in which a remembered maximum falls most of the way to the current values."""
_ANSWERS_KEPT: Final = 64
_ANSWER_QUANTILE: Final = 0.9
_FIRST_MEDIA_TOKENS: Final = 1024.0
"""Tokens assumed for a request's images and sound until an engine has counted some."""
_SIZE_CLASSES: Final = 24
"""Prompts are grouped by powers of 4 of their bytes."""


class TokenEstimator:
    """Estimates the tokens of one model's requests.

    A prompt is estimated by its bytes times the highest recent number of tokens per byte among prompts of similar size;
    small prompts have more tokens per byte, because of the template. Before any count, a byte is one token, the most
    that a tokenizer with byte fallback makes of it.
    """

    __slots__ = ("_answers", "_media_tokens", "_overrun_at", "_overrun_factor", "_rates", "answer_tokens")

    def __init__(self) -> None:
        self._rates = [0.0] * _SIZE_CLASSES
        """Highest recent tokens per byte of each size class; 0: no request of that class was counted."""
        self._media_tokens = _FIRST_MEDIA_TOKENS
        self._answers: deque[int] = deque(maxlen=_ANSWERS_KEPT)
        self._overrun_factor = 1.0
        self._overrun_at: float | None = None
        self.answer_tokens: int | None = None
        """Tokens that about 9 of 10 recent answers stayed within, of those that no limit cut; None: none was counted.
        """

    def estimate_prompt(self, demand: TokenDemand) -> int:
        """Return the estimated tokens of the prompt, chat template and media included.

        The estimate is meant as an upper bound, but a prompt may exceed it.
        """
        tokens = self._estimate_text(demand)
        if demand.has_media:
            tokens += ceil(self._media_tokens * MARGIN * self._overrun_factor)
        return tokens

    def record_usage(self, demand: TokenDemand, prompt_tokens: int, answer_tokens: int) -> None:
        """Learn from an engine's counts of one request, and lower, a little, the factor that `record_overrun` raised.

        `answer_tokens`: of all its answers together. Counts of 0 teach nothing about tokens, and neither does the
        length of an answer that its limit cut.
        """
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
        """Raise estimates by half, because an engine reported a full KV cache. `now`: monotonic seconds.

        Calls within `OVERRUN_PAUSE_S` (1 s) after one that counted do nothing. All raises together make at most a
        factor of `MOST_OVERRUN_FACTOR` (8).
        """
        if self._overrun_at is None or now - self._overrun_at >= OVERRUN_PAUSE_S:
            self._overrun_at = now
            self._overrun_factor = min(self._overrun_factor * OVERRUN_FACTOR, MOST_OVERRUN_FACTOR)

    def _estimate_text(self, demand: TokenDemand) -> int:
        rate = self._rate_of(_size_class(demand.text_bytes))
        if not rate:
            return demand.text_bytes + TEMPLATE_TOKENS
        return ceil(demand.text_bytes * rate * MARGIN * self._overrun_factor) + TEMPLATE_TOKENS

    def _rate_of(self, size_class: int) -> float:
        """Return the tokens per byte of a size class; if unknown, of the nearest smaller class, else the next larger.

        Smaller prompts have no fewer tokens per byte, so theirs is the safer guess.
        """
        rates = self._rates
        return (
            rates[size_class]
            or next((rate for rate in rates[size_class::-1] if rate), 0.0)
            or next((rate for rate in rates[size_class:] if rate), 0.0)
        )


def _size_class(text_bytes: int) -> int:
    return min(text_bytes.bit_length() // 2, _SIZE_CLASSES - 1)


def _follow(greatest: float, value: float) -> float:
    """Return the remembered maximum after a new value: it rises at once and falls slowly."""
    return value if value > greatest else greatest + (value - greatest) / _MEMORY
