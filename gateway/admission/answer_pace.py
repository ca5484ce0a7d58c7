"""Expected duration of a model's answers, learned from its recent answers. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

_KEPT: Final = 0.9
"""Weight that the earlier answers keep when one is recorded, so that about the last ten count."""
_LONGER: Final = 4
"""An answer without a token limit is expected to have at most this many times the mean number of tokens."""
_PROMPT_LONGER: Final = 2
_PROMPT_MORE: Final = 64
"""A prompt of more than `_PROMPT_LONGER` times the mean number of tokens plus `_PROMPT_MORE` gets no prediction."""


class AnswerPace:
    """Weighted means over about the last ten answers of one model: seconds, prompt tokens, completion tokens.

    Predicts how long an answer takes, so that the gateway gathers only long ones from a stream (`engine_stage`).
    """

    __slots__ = ("_answers", "_completion_tokens", "_prompt_tokens", "_seconds")

    def __init__(self) -> None:
        self._answers = self._seconds = self._prompt_tokens = self._completion_tokens = 0.0

    def record_answer(self, prompt_tokens: int, completion_tokens: int, seconds: float) -> None:
        """Record a complete answer. `seconds`: from sending the request to the answer's end, prompt processing
        included."""
        self._answers = self._answers * _KEPT + 1
        self._seconds = self._seconds * _KEPT + seconds
        self._prompt_tokens = self._prompt_tokens * _KEPT + prompt_tokens
        self._completion_tokens = self._completion_tokens * _KEPT + completion_tokens

    def expected_s(self, prompt_tokens: int, most_tokens: int | None, *, runs_to_bound: bool) -> float | None:
        """Return the seconds that an answer is expected to take at most; None if the recorded answers do not tell.

        They do not tell if there are none, if the prompt has more than twice the mean number of tokens and 64 more, or
        if the answer has no end (`runs_to_bound` and no limit). `most_tokens`: the request's limit; None: it sets none.
        `runs_to_bound`: the model's end of text is ignored, so that the answer has as many tokens as the limit allows;
        False: it is expected to have at most four times the mean number of tokens, or `most_tokens` where that is less.
        """
        if not self._completion_tokens or (runs_to_bound and most_tokens is None):
            return None
        if prompt_tokens > _PROMPT_LONGER * self._prompt_tokens / self._answers + _PROMPT_MORE:
            return None
        likely_tokens = _LONGER * self._completion_tokens / self._answers
        tokens = (
            most_tokens if most_tokens is not None and (runs_to_bound or most_tokens < likely_tokens) else likely_tokens
        )
        return tokens * self._seconds / self._completion_tokens


class AnswerPaces:
    """The `AnswerPace` of every model, by name. One object per gateway, kept in `Services.paces`."""

    def __init__(self) -> None:
        self._pace_by_model: dict[str, AnswerPace] = {}

    def of(self, model: str) -> AnswerPace:
        """Return the pace of `model`; an empty one on first use."""
        pace = self._pace_by_model.get(model)
        if pace is None:
            pace = self._pace_by_model[model] = AnswerPace()
        return pace

    def keep_models(self, models: Container[str]) -> None:
        """Forget models that are not in `models`. Call when a new routing table is in force."""
        for model in [each for each in self._pace_by_model if each not in models]:
            del self._pace_by_model[model]
