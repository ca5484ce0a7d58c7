"""Remotes: keys as they are found in the wild, what gateways say of them, and when one holds no request any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from contract.routing import GatewayReport, RemoteResult, Stamp
from controller.engines.openai_remote import OpenAIRemoteDefinition
from controller.engines.stub import StubDefinition
from controller.observe.gateway_hub import KEPT_S, GatewayHub, GatewayResult, RemoteDraining, RemoteHealth, judge_remote
from controller.planning.draining import ARRIVAL_S, FORGET_S, GatewayView
from controller.state import DesiredModel, DesiredState, Statement
from tests.support.loop_clock import LoopClock, loop_clock

__all__ = ["loop_clock"]

URL = "http://127.0.0.1:9/v1"
WELL, DOWN, GONE = (GatewayResult(error, 0.0, at) for error, at in ((None, 5.0), ("down", 6.0), ("gone", 7.0)))


@pytest.mark.parametrize(
    ("results", "connected", "now", "judged"),
    [
        ({}, ["a"], 8.0, None),
        ({"a": WELL}, ["a"], 1e9, WELL),
        ({"a": WELL, "b": DOWN}, ["a", "b"], 8.0, WELL),
        ({"a": GONE, "b": DOWN}, ["a", "b"], 8.0, GONE),
        ({"a": WELL, "b": DOWN}, ["b"], 8.0, DOWN),
        ({"a": WELL, "b": DOWN}, ["c"], 8.0, WELL),
        ({"a": WELL}, [], 5.0 + KEPT_S - 0.1, WELL),
        ({"a": WELL, "b": DOWN}, [], 5.0 + KEPT_S, DOWN),
        ({"a": WELL}, [], 5.0 + KEPT_S, None),
    ],
)
def test_a_remote_is_well_if_any_gateway_reaches_it_and_connected_gateways_rule(
    results: dict[str, GatewayResult], connected: list[str], now: float, judged: GatewayResult | None
) -> None:
    assert judge_remote(results, connected, now) == judged


class Bench:
    """What is known of remotes, by a hub's gateways and a clock of the test's own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wakes = 0
        self.hub = GatewayHub("i", 1, wake=lambda: None, clock=lambda: self.now)
        self.remotes = RemoteHealth(self.hub, interval_s=2.0, timeout_s=5.0, wake=self._wake, clock=lambda: self.now)

    def _wake(self) -> None:
        self.wakes += 1

    def report(self, gateway: str = "gw", **remotes: RemoteResult) -> None:
        """Of a gateway; its first one opens its link."""
        if gateway not in self.hub.connected_ids:
            self.hub.open_link(gateway)
        report = GatewayReport(gateway_id=gateway, stamp=None, remotes=remotes)
        self.hub.take_report(report)
        self.remotes.take_report(report)


def _model(name: str, spec: str = "h", **fields: str) -> DesiredModel:
    definition = OpenAIRemoteDefinition(backend="openai_remote", base_url=URL, **fields)  # type: ignore[arg-type]
    return DesiredModel(name, definition, "openai_remote", spec, 1, Statement("file", 0.0, ""), runs=False)


def _result(at: float, error: str | None = None, spec: str = "h", retry_at: float | None = None) -> RemoteResult:
    return RemoteResult(spec=spec, at=at, error=error, retry_at=retry_at)


def _tracking() -> Bench:
    """One that tracks the model `m`."""
    bench = Bench()
    bench.remotes.track_models([_model("m")])
    return bench


def test_keys_with_a_line_end_are_keys_and_bad_ones_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remotes = Bench().remotes
    (tmp_path / "key").write_text("sk-123\n")
    (tmp_path / "empty").write_text("\n")
    monkeypatch.setenv("KEY", "sk-123\n")
    monkeypatch.setenv("BROKEN", "sk-1\n23")
    models = [
        _model("open"),
        _model("file", api_key_file=str(tmp_path / "key")),
        _model("env", api_key_env="KEY"),
        _model("broken", api_key_env="BROKEN"),
        _model("unset", api_key_env="NO_SUCH_VARIABLE"),
        _model("empty", api_key_file=str(tmp_path / "empty")),
        _model("missing", api_key_file=str(tmp_path / "nowhere")),
    ]
    remotes.track_models(models)
    errors = remotes.list_errors()
    assert errors.keys() == {"broken", "unset", "empty", "missing"}, "of the others no gateway has told"
    assert "no header can carry" in (errors["broken"] or "")
    assert "NO_SUCH_VARIABLE" in (errors["unset"] or "")
    assert "is empty" in (errors["empty"] or "")
    assert "cannot be read" in (errors["missing"] or "")
    assert "sk-" not in str(errors)
    probes = remotes.list_probes()
    assert probes.keys() == {"open", "file", "env"}, "gateways need not ask the others"
    assert {probe.url for probe in probes.values()} == {f"{URL}/models"}
    assert [probes[name].token is None for name in ("open", "file", "env")] == [True, False, False]
    assert "sk-" not in str(probes)
    assert remotes.read_token("file") == remotes.read_token("env") == "sk-123"
    (tmp_path / "key").write_text("sk-456")
    remotes.track_models(models)
    assert remotes.read_token("file") == "sk-456"
    assert remotes.list_probes()["file"] != probes["file"]


def test_what_gateways_say_counts_for_the_definition_that_they_asked_by() -> None:
    early = Bench()
    early.report(m=_result(1.0))
    early.remotes.track_models([_model("m")])
    assert early.remotes.list_errors() == {"m": None}, "a report from before the files were read"
    bench = _tracking()
    bench.report()
    assert (bench.remotes.list_errors(), bench.wakes) == ({}, 0)
    bench.report(m=_result(1.0, "http://u:pa55@h/v1 is down"))
    assert bench.remotes.list_errors() == {"m": "http://***@h/v1 is down"}
    bench.report(m=_result(2.0, "http://u:pa55@h/v1 is down"))
    assert bench.wakes == 1, "nothing changed"
    bench.report(m=_result(3.0))
    assert (bench.remotes.list_errors(), bench.wakes) == ({"m": None}, 2)
    bench.remotes.track_models([_model("m", "other")])
    assert bench.remotes.list_errors() == {}
    bench.report(m=_result(4.0))
    assert bench.remotes.list_errors() == {}, "by the definition before"
    bench.report(m=_result(5.0, spec="other"))
    assert bench.remotes.list_errors() == {"m": None}
    bench.remotes.track_models([])
    assert (bench.remotes.list_errors(), bench.remotes.knows_model("m")) == ({}, False)


def test_when_a_failed_remote_is_asked_again_is_said() -> None:
    bench = Bench()
    bench.remotes.track_models([_model("m"), _model("n", api_key_env="NO_SUCH_VARIABLE")])
    bench.report(m=_result(1.0, "down", retry_at=3.0), n=_result(1.0, "down", retry_at=3.0))
    assert bench.remotes.list_retries() == {"m": 3.0}, "the other waits for its key"
    bench.report(m=_result(3.0, "down", retry_at=7.0))
    assert (bench.remotes.list_retries(), bench.wakes) == ({"m": 7.0}, 2)
    bench.report(m=_result(7.0, "HTTP 401; its key was refused"))
    assert bench.remotes.list_retries() == {}


def test_after_a_reset_the_next_answer_counts_also_if_it_is_the_same() -> None:
    bench = _tracking()
    bench.report(m=_result(1.0, "down"))
    before = bench.remotes.list_probes()["m"]
    bench.remotes.reset_health("m")
    assert bench.remotes.list_errors() == {}
    bench.remotes.track_models([_model("m")])
    assert bench.remotes.list_probes()["m"] == before.model_copy(update={"reset_count": 1}), "it is asked at once"
    bench.report(m=_result(1.0, "down"))
    assert bench.remotes.list_errors() == {}, "it was not asked again"
    wakes = bench.wakes
    bench.report(m=_result(3.0, "down"))
    assert (bench.remotes.list_errors(), bench.wakes) == ({"m": "down"}, wakes + 1)
    bench.remotes.reset_health("nobody")


def test_without_gateways_the_last_word_stands_for_a_while() -> None:
    bench = _tracking()
    bench.report(m=_result(1.0))
    bench.hub.close_link("gw")
    bench.now += KEPT_S - 1
    assert bench.remotes.list_errors() == {"m": None}
    bench.report("new")
    assert bench.remotes.list_errors() == {"m": None}, "the new one has not asked yet"
    bench.report("new", m=_result(1.0, "down"))
    assert bench.remotes.list_errors() == {"m": "down"}
    bench.hub.close_link("new")
    bench.now += KEPT_S
    assert bench.remotes.list_errors() == {}


async def test_a_first_table_waits_for_a_gateway_only_for_what_was_served_before_and_not_for_ever(
    loop_clock: LoopClock,
) -> None:
    bench = _tracking()
    await bench.remotes.wait_for_first_round({"other"})
    waiting = asyncio.create_task(bench.remotes.wait_for_first_round({"m"}))
    await asyncio.sleep(0)
    assert not waiting.done()
    bench.report()
    await waiting
    bench = _tracking()
    waiting = asyncio.create_task(bench.remotes.wait_for_first_round({"m"}))
    await loop_clock.skip(ARRIVAL_S + 1)
    await waiting
    assert bench.remotes.list_errors() == {}


REMOTE = DesiredModel(
    "far", StubDefinition(backend="stub"), "stub", "hash", 1, Statement("file", 0.0, "enabled"), runs=False
)
WANTED = DesiredState(1, {"far": REMOTE})
UNWANTED = DesiredState(2, {"far": replace(REMOTE, replicas=0)})
ROUTED, UNROUTED = Stamp(epoch=1, seq=1), Stamp(epoch=1, seq=2)
SINCE = 100.0


def _gateway(stamp: Stamp, count: int = 0, lost_at: float | None = None) -> GatewayView:
    return GatewayView(GatewayReport(gateway_id="g", stamp=stamp, inflight={"far": count} if count else {}), lost_at)


LOST = _gateway(ROUTED, 3, lost_at=SINCE + 50)


@pytest.mark.parametrize(
    ("gateways", "since_s", "drains"),
    [
        ([_gateway(UNROUTED, 1)], 100_000, True),  # waited for as long as it takes
        ([_gateway(ROUTED)], 100_000, True),  # its table still routes to it
        ([_gateway(UNROUTED)], 0, False),
        ([_gateway(UNROUTED), LOST], 50 + ARRIVAL_S - 0.1, True),
        ([_gateway(UNROUTED), LOST], 50 + ARRIVAL_S, False),
        ([_gateway(UNROUTED, 1), LOST], 50 + ARRIVAL_S, True),  # the other one has a request inside
        ([], ARRIVAL_S - 0.1, True),
        ([], ARRIVAL_S, False),
    ],
)
def test_a_remote_drains_until_no_gateway_can_hold_a_request(
    gateways: list[GatewayView], since_s: float, drains: bool
) -> None:
    draining = RemoteDraining()
    draining.follow_desired(WANTED, UNWANTED, SINCE)
    draining.note_published(UNROUTED)
    draining.forget_empty(gateways, SINCE + since_s)
    assert ("far" in draining.models) is drains


def test_one_that_is_wanted_again_drains_no_longer() -> None:
    draining = RemoteDraining()
    draining.follow_desired(WANTED, UNWANTED, SINCE)
    draining.forget_empty([_gateway(UNROUTED)], SINCE + 100)
    assert draining.models == {"far"}, "no table without it was published"
    draining.follow_desired(UNWANTED, WANTED, SINCE)
    assert draining.models == frozenset()


def test_what_a_gateway_said_is_dropped_some_time_after_it_is_gone() -> None:
    bench = _tracking()
    bench.report("a", m=_result(1.0))
    bench.remotes.reset_health("m")
    bench.report("b", m=_result(2.0))
    state = bench.remotes._remote_states["m"]
    for gateway in ("a", "b"):
        bench.hub.close_link(gateway)
    bench.now += FORGET_S
    bench.hub.forget_lost()
    bench.remotes.track_models([_model("m")])
    assert (state.results, state.void_results) == ({}, {})
