"""The worker's metrics in Prometheus' text format, under llama.cpp's names, so that one parser reads both."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """The values of all counters of one worker at one moment."""

    prompt_tokens: int
    """Prompt tokens processed since the worker's start."""
    tokens_predicted: int
    """Tokens generated since the worker's start."""
    processing: int
    """Requests that the engine works for now."""
    deferred: int
    """Requests that wait for a slot now."""


class Counters:
    """The worker's counters, which engine threads and the event loop share; all methods hold a lock. Each
    `count_queued` must be followed by `count_withdrawn`, or by `count_started` and then `count_finished`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prompt_tokens = 0
        self._tokens_predicted = 0
        self._processing = 0
        self._deferred = 0

    def add_prompt_tokens(self, tokens: int) -> None:
        with self._lock:
            self._prompt_tokens += tokens

    def add_predicted_token(self) -> None:
        with self._lock:
            self._tokens_predicted += 1

    def count_queued(self) -> None:
        """Count a request that begins to wait for a slot."""
        with self._lock:
            self._deferred += 1

    def count_withdrawn(self) -> None:
        """Count a request that stopped waiting before it got a slot."""
        with self._lock:
            self._deferred -= 1

    def count_started(self) -> None:
        """Count a waiting request that got its slot."""
        with self._lock:
            self._deferred -= 1
            self._processing += 1

    def count_finished(self) -> None:
        """Count a request that gave its slot back: the engine no longer works for it."""
        with self._lock:
            self._processing -= 1

    def read_figures(self) -> Figures:
        """Return all counters' values at one moment."""
        with self._lock:
            return Figures(self._prompt_tokens, self._tokens_predicted, self._processing, self._deferred)


def prometheus_text(figures: Figures) -> str:
    """Return the figures in Prometheus' text exposition format, version 0.0.4. The names begin with `llamacpp:`."""
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
