"""`top`: rates from counters, the table, and what it shows when something cannot be reached."""

from __future__ import annotations

import asyncio
import signal
import termios
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import generate_latest

from cli.output import ExitCode, time_words
from cli.top_view import TokenSample, TopView, token_rates, tokens_of
from contract.admin import GpuMemory, GpuMemoryAnswer
from contract.status import Problem
from gateway.metrics.request_metrics import Metrics
from gateway.protocols.common.dialect import Usage
from tests.fakes.fake_control_api import FakeControlApi, listed, row
from tests.support.cli import Cli, Terminal, started
from tests.support.wait import until

pytestmark = pytest.mark.slow

NO_GATEWAY = ("--gateway", "http://127.0.0.1:9")
NO_GPUS = GpuMemoryAnswer(gpus=[], models=[], error="none")
CARD = GpuMemory(
    index=0, name="H200", used_mib=4, total_mib=9, used_over_total="4MiB / 9MiB", uuid="GPU-1", claimed_mib=0
)


def finished(metrics: Metrics, model: str, tokens: int) -> None:
    usage = Usage(prompt=1000, completion=tokens)
    metrics.series_of(model, "/v1/chat/completions").count_finished(200, 1.0, 0.1, usage)


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[str, Metrics]]:
    """A server with a gateway's real metrics; whenever it is asked, `chat` has made 50 tokens more."""
    metrics = Metrics()

    async def answer(_request: web.Request) -> web.Response:
        finished(metrics, "chat", 50)
        return web.Response(body=generate_latest(metrics.registry), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), metrics


def test_the_tokens_of_a_gateways_own_metrics() -> None:
    metrics = Metrics()
    finished(metrics, "chat", 7)
    finished(metrics, "chat", 5)
    finished(metrics, "org/other", 3)
    assert tokens_of(generate_latest(metrics.registry).decode()) == {"chat": 12, "org/other": 3}
    assert tokens_of("") == {}


@pytest.mark.parametrize(
    ("before", "after", "rates"),
    [
        (TokenSample(1.0, {"a": 10}), TokenSample(3.0, {"a": 30, "b": 4}), {"a": 10.0, "b": 2.0}),
        (TokenSample(1.0, {"a": 10}), TokenSample(2.0, {"a": 10}), {"a": 0.0}),
        (TokenSample(1.0, {"a": 100}), TokenSample(2.0, {"a": 30}), {"a": 30.0}),
        (TokenSample(1.0, {"a": 100}), TokenSample(2.0, {}), {}),
        (None, TokenSample(2.0, {"a": 1}), None),
        (TokenSample(1.0, {"a": 1}), None, None),
        (TokenSample(1.0, {"a": 1}), TokenSample(1.0, {"a": 2}), None),
    ],
)
def test_rates_are_differences(
    before: TokenSample | None, after: TokenSample | None, rates: Mapping[str, float] | None
) -> None:
    assert token_rates(before, after) == rates


def test_the_busiest_come_first() -> None:
    models = [
        row("a", "unloaded"),
        row("b", inflight_requests=None, queue_depth=None, vram_estimate_mib=7),
        row("c", inflight_requests=1, queue_depth=2),
        row("d", "loading", inflight_requests=4, replicas=2),
    ]
    assert TopView(listed(*models), NO_GPUS, {"c": 12.34}).rows() == [
        ("d", "loading", "0/2", "4", "0", "-", "0.0", "-"),
        ("c", "loaded", "1/1", "1", "2", "-", "12.3", "-"),
        ("b", "loaded", "1/1", "-", "-", "-", "0.0", "7MiB"),
        ("a", "unloaded", "0/1", "0", "0", "-", "0.0", "-"),
    ]


def test_how_far_loads_and_prompts_are() -> None:
    models = [
        row("a", "loading", load_progress=0.25),
        row("b", inflight_requests=3, prefill_requests=2, prefill_progress=0.416),
        row("c", "loaded", load_progress=1.0),
    ]
    view = TopView(listed(*models), NO_GPUS, None)
    assert [(state, prefill) for _, state, _, _, _, prefill, _, _ in view.rows()] == [
        ("loaded", "2: 42 %"),
        ("loading 25 %", "-"),
        ("loaded", "-"),
    ]
    busiest = view.as_json()["models"][0]
    assert (busiest["load_progress"], busiest["prefill_requests"], busiest["prefill_progress"]) == (None, 2, 0.416)


@pytest.mark.parametrize(("loaded", "is_shown"), [((1, 0), False), ((1, 1), False), ((1, 2), True), ((3,), True)])
def test_where_there_are_several_replicas_it_says_why_one_may_have_all_the_work(
    loaded: tuple[int, ...], is_shown: bool
) -> None:
    models = [row(f"m{number}", loaded_replicas=count) for number, count in enumerate(loaded)]
    lines = TopView(listed(*models), NO_GPUS, None).note_lines()
    assert bool(lines) is is_shown
    assert all("begin alike" in line and "cache" in line for line in lines)


async def test_one_table_without_a_terminal(api: FakeControlApi, cli: Cli) -> None:
    api.memory = GpuMemoryAnswer(gpus=[CARD], models=[], error=None)
    assert (await cli("top", *NO_GATEWAY))[:2] == (
        ExitCode.DONE,
        "GPU 0 H200: 4MiB / 9MiB\n"
        "MODEL  STATE   READY  IN FLIGHT  QUEUE  PREFILL  TOKENS/S  MEMORY\n"
        "chat   loaded  1/1    0          0      -        -         -\n",
    )
    api.memory = NO_GPUS
    api.rows = [row("chat", loaded_replicas=2, replicas=2)]
    shown = await cli("top", *NO_GATEWAY)
    assert shown.lines[2:] == TopView(listed(*api.rows), NO_GPUS, None).note_lines(), "the note stands below"


async def test_what_keeps_the_controller_from_its_work(api: FakeControlApi, cli: Cli) -> None:
    problem = Problem(file="models.yaml", line=1, message="not YAML 1.2")
    api.trouble = {"paused": True, "observation_error": "docker is away", "desired_problems": [problem]}
    shown = await cli("top", *NO_GATEWAY)
    assert (shown.code, shown.lines[:-2]) == (
        ExitCode.DONE,
        [
            "paused: the controller observes and does not act; `roundhouse resume` ends it",
            f"what runs cannot be seen since {time_words(1000.0)}: docker is away",
            "models.yaml:1: not YAML 1.2 (what was last good rules)",
        ],
    )
    as_json = (await cli("top", "--json", *NO_GATEWAY)).json
    assert (as_json["paused"], as_json["observation_error"], as_json["observed_at"]) == (True, "docker is away", 1000.0)
    assert as_json["desired_problems"] == [problem.model_dump()]


async def test_the_gateways_counters_give_rates(
    cli: Cli, gateway: tuple[str, Metrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = await cli("top", "--json", "--interval", "0.1", "--gateway", gateway[0])
    assert shown.code == ExitCode.DONE
    [model] = shown.json["models"]
    assert 0 < model.pop("tokens_per_s") <= 50 / 0.1
    none = ("load_progress", "prefill_progress", "vram_estimate_mib")
    counts = {"loaded_replicas": 1, "replicas": 1, "inflight_requests": 0, "queue_depth": 0, "prefill_requests": 0}
    assert model == {"name": "chat", "runtime_state": "loaded", **counts, **dict.fromkeys(none)}
    monkeypatch.setenv("ROUNDHOUSE_HOST", "0.0.0.0")
    monkeypatch.setenv("ROUNDHOUSE_PORT", gateway[0].rpartition(":")[2])
    of_up = await cli("top", "--json", "--once", "--interval", "0.1")
    assert of_up.code == ExitCode.DONE
    assert of_up.json["models"][0]["tokens_per_s"] > 0, "the gateway is where `up` listens"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((), None),
        (("KEY",), "Bearer the-key-of-an-administrator"),
        (("KEY", "METRICS_KEY_FILE"), "Bearer the-key-of-the-metrics"),
        (("KEY", "METRICS_KEY"), "Bearer the-key-itself"),
    ],
)
async def test_the_gateways_metrics_are_asked_with_their_key(
    names: tuple[str, ...], shown: str | None, folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers.get("authorization"))
        return web.Response(status=401)

    (folder / "key").write_text("the-key-of-the-metrics\n")
    values = {
        "KEY": "the-key-of-an-administrator",
        "METRICS_KEY_FILE": str(folder / "key"),
        "METRICS_KEY": "the-key-itself",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"ROUNDHOUSE_{name}", value if name in names else "")
    app = web.Application()
    app.router.add_get("/metrics", refuse)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        assert (await cli("top", "--json", "--once", "--gateway", url)).code == ExitCode.DONE
    assert set(seen) == {shown}


async def test_on_a_terminal_it_lives_until_ctrl_c(api: FakeControlApi, gateway: tuple[str, Metrics]) -> None:
    async with Terminal() as terminal:
        program = await started(api, "top", "--interval", "0.1", "--gateway", gateway[0], stdout=terminal.end)
        await until("a table", lambda: "IN FLIGHT" in terminal.text)
        api.rows = [row("other", "failed")]
        api.trouble = {"paused": True}
        await until("the next", lambda: "other" in terminal.text)
        await until("the trouble", lambda: "paused: the controller observes" in terminal.text)
        await api.close()
        await until("the reason", lambda: "no controller answers" in terminal.text)
        program.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            _, err = await program.communicate()
    assert (program.returncode, err) == (ExitCode.DONE, b"")


async def test_on_a_terminal_q_ends_it_and_leaves_the_terminal_as_it_was(api: FakeControlApi) -> None:
    async with Terminal() as terminal:
        before = termios.tcgetattr(terminal.end)
        # An interval that no test would wait for: the key is not looked at between two looks alone.
        program = await started(api, "top", "--interval", "3600", *NO_GATEWAY, stdin=terminal.end, stdout=terminal.end)
        await until("a table", lambda: "IN FLIGHT" in terminal.text)
        await until("its foot", lambda: "q quits" in terminal.text)
        terminal.type_text("xq")
        async with asyncio.timeout(60):
            _, err = await program.communicate()
        assert (program.returncode, err) == (ExitCode.DONE, b"")
        assert termios.tcgetattr(terminal.end) == before


async def test_without_a_terminal_to_read_from_there_is_no_key(api: FakeControlApi) -> None:
    async with Terminal() as terminal:
        nothing = asyncio.subprocess.DEVNULL
        program = await started(api, "top", "--interval", "3600", *NO_GATEWAY, stdin=nothing, stdout=terminal.end)
        await until("a table", lambda: "IN FLIGHT" in terminal.text)
        assert "q quits" not in terminal.text
        program.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            assert await program.wait() == ExitCode.DONE
