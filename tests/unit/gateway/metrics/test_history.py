"""The last hour of each model: minutes of the counters, bounded, with gaps where nothing is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from contract.routing import RoutingTable
from gateway.api.declare import HttpRoutes
from gateway.api.operations import MetricsHistoryAnswer, declare_history
from gateway.metrics.history import KEPT_MINUTES, MetricsHistory, find_median
from gateway.metrics.request_metrics import EngineWork, Metrics
from gateway.protocols.common.dialect import Usage
from gateway.routing.table import LiveRoutes
from gateway.server.body_budget import BodyBudget


@dataclass
class Hour:
    """A history, and what it reads."""

    live: LiveRoutes = field(default_factory=LiveRoutes)
    metrics: Metrics = field(default_factory=Metrics)
    queued: dict[str, int] = field(default_factory=dict)
    at: float = 100.0

    def __post_init__(self) -> None:
        self.history = MetricsHistory(self.live, self.queued, self.metrics.requests, lambda: self.at)

    def publish(self, *names: str) -> None:
        models = [
            {"name": name, "backend": "stub", "state": "loaded", "created": 0, "served_name": name} for name in names
        ]
        table = {"instance": "i", "stamp": {"epoch": 1, "seq": 1}, "models": models}
        self.live.apply_table(RoutingTable.model_validate(table))

    def answer(self, model: str, tokens: int, first_token_s: float) -> None:
        self.metrics.series_of(model, "/v1/responses").count_tokens(Usage(1, tokens))
        work = EngineWork(inference_s=1.0, chunks=3, first_token_s=first_token_s, stream_s=1.0)
        self.metrics.model_series_of(model).count_finished("completed", work, Usage(1, tokens), 0)

    def pass_minute(self) -> None:
        self.at += 60
        self.history.look()


def test_a_minute_is_what_came_since_the_last_one() -> None:
    hour = Hour()
    hour.history.look()
    assert hour.history.minutes == {}, "no table, so no model"
    hour.publish("a", "b")
    hour.answer("a", 600, 0.05)
    hour.queued["a"] = 7
    hour.at += 5
    hour.history.look()
    del hour.queued["a"]
    assert hour.history.minutes == {}, "the minute is not over"
    hour.at += 55
    hour.history.look()
    [first] = hour.history.minutes["a"]
    # Most that waited, though nobody does now; the value lies in the bucket from 0.04 to 0.06.
    assert first == pytest.approx((10.0, 7, 0.05))
    assert list(hour.history.minutes["b"]) == [(0.0, 0, None)]
    hour.pass_minute()
    assert hour.history.minutes["a"][-1] == (0.0, 0, None), "an hour of silence is none of old requests"


def test_a_model_that_leaves_the_table_is_dropped_and_begins_anew() -> None:
    hour = Hour()
    hour.publish("a", "b")
    hour.answer("a", 60, 0.05)
    hour.pass_minute()
    hour.publish("b")
    hour.pass_minute()
    assert {name: len(minutes) for name, minutes in hour.history.minutes.items()} == {"b": 2}
    hour.publish("a", "b")
    hour.pass_minute()
    assert list(hour.history.minutes["a"]) == [(0.0, 0, None)]
    for _ in range(KEPT_MINUTES + 5):
        hour.pass_minute()
    assert {len(minutes) for minutes in hour.history.minutes.values()} == {KEPT_MINUTES}


@pytest.mark.parametrize(
    ("counts", "median"),
    [([0, 0, 0], None), ([4, 0, 0], 0.5), ([1, 2, 0], 1.25), ([0, 0, 3], 2.0), ([2, 0, 2], 1.0)],
)
def test_a_median_is_estimated_within_its_bucket(counts: list[int], median: float | None) -> None:
    assert find_median(counts, (1.0, 2.0)) == median


async def test_the_route_answers_the_minutes_oldest_first() -> None:
    hour, app = Hour(), FastAPI()
    hour.publish("a")
    declare_history(HttpRoutes(app, 100, BodyBudget(100)), hour.history)
    [route] = [each for each in app.routes if isinstance(each, Route) and each.path == "/v1/metrics/history"]
    hour.answer("a", 60, 0.05)
    hour.pass_minute()
    hour.pass_minute()
    answer = json.loads((await route.endpoint()).body)
    assert answer["models"] == {"a": {"tokens_per_s": [1.0, 0.0], "waiting": [0, 0], "first_token_s": [0.05, None]}}
    MetricsHistoryAnswer.model_validate(answer)
