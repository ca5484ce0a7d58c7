"""How long a model's answers take, learned from those that it gave. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

_KEPT: Final = 0.9
"""Share of what was learned that the next answer leaves in force: some ten answers count."""
_LONGER: Final = 4
"""An answer without a bound of its own is expected to have at most so many times the tokens of the others."""
_PROMPT_LONGER: Final = 2
_PROMPT_MORE: Final = 64
"""A prompt of more than so many times the tokens of the others, and so many more, may take a time of its own."""


class AnswerPace:
    """One model's."""

    __slots__ = ("_answers", "_completion_tokens", "_prompt_tokens", "_seconds")

    def __init__(self) -> None:
        self._answers = self._seconds = self._prompt_tokens = self._completion_tokens = 0.0

    def record_answer(self, prompt_tokens: int, completion_tokens: int, seconds: float) -> None:
        """A complete answer of this many tokens took this long, its prompt included."""
        self._answers = self._answers * _KEPT + 1
        self._seconds = self._seconds * _KEPT + seconds
        self._prompt_tokens = self._prompt_tokens * _KEPT + prompt_tokens
        self._completion_tokens = self._completion_tokens * _KEPT + completion_tokens

    def expected_s(self, prompt_tokens: int, most_tokens: int | None, *, runs_to_bound: bool) -> float | None:
        """Seconds that an answer may take; None: what is known says nothing of such a request.

        `most_tokens`: as many as the request allows; None: it sets no bound. `runs_to_bound`: the model's own end is
        ignored.
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
    """All models', by name."""

    def __init__(self) -> None:
        self._pace_by_model: dict[str, AnswerPace] = {}

    def of(self, model: str) -> AnswerPace:
        """The model's."""
        pace = self._pace_by_model.get(model)
        if pace is None:
            pace = self._pace_by_model[model] = AnswerPace()
        return pace

    def keep_models(self, models: Container[str]) -> None:
        """Forget the models that are not among these."""
        for model in [each for each in self._pace_by_model if each not in models]:
            del self._pace_by_model[model]
