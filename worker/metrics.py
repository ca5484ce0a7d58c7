"""The worker's figures, in Prometheus' text format and under llama.cpp's names, so that one reader serves both."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """A consistent reading of all counters."""

    prompt_tokens: int
    tokens_predicted: int
    processing: int
    deferred: int


class Counters:
    """Counters that engine threads and the event loop share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prompt_tokens = 0
        self._tokens_predicted = 0
        self._processing = 0
        self._deferred = 0

    def add_prompt_tokens(self, tokens: int) -> None:
        """Prompt tokens were processed."""
        with self._lock:
            self._prompt_tokens += tokens

    def add_predicted_token(self) -> None:
        """A token was generated."""
        with self._lock:
            self._tokens_predicted += 1

    def count_queued(self) -> None:
        """A request waits for a slot."""
        with self._lock:
            self._deferred += 1

    def count_withdrawn(self) -> None:
        """A request left before it got a slot."""
        with self._lock:
            self._deferred -= 1

    def count_started(self) -> None:
        """A waiting request got its slot."""
        with self._lock:
            self._deferred -= 1
            self._processing += 1

    def count_finished(self) -> None:
        """A request gave its slot back: the engine no longer works for it."""
        with self._lock:
            self._processing -= 1

    def read_figures(self) -> Figures:
        """All figures at one moment."""
        with self._lock:
            return Figures(self._prompt_tokens, self._tokens_predicted, self._processing, self._deferred)


def prometheus_text(figures: Figures) -> str:
    """Prometheus' text exposition format, version 0.0.4."""
    rows = (
        ("prompt_tokens_total", "counter", "Prompt tokens processed.", figures.prompt_tokens),
        ("tokens_predicted_total", "counter", "Tokens generated.", figures.tokens_predicted),
        ("requests_processing", "gauge", "Requests that the engine works for.", figures.processing),
        ("requests_deferred", "gauge", "Requests that wait for a slot.", figures.deferred),
    )
    return "".join(
        f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
        for name, kind, text, value in rows
    )
