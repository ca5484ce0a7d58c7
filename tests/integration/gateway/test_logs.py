"""What the gateway logs: of every request the id, of no request its text; and the log files of real processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from common.log_formats import create_formatter
from gateway.exchange.engine_stage import EngineStage
from gateway.protocols.common.streams import OpenAIStream
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.gateway_process import running
from tests.support.ports import free_port
from tests.support.wait import until

SECRET = "marmalade-7319"
"""Stands in each prompt."""
MESSAGES = [{"role": "user", "content": SECRET}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": SECRET},
    "/v1/responses": {"input": SECRET, "instructions": SECRET},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/embeddings": {"input": SECRET},
}
BROKEN: list[bytes] = [
    b'{"model": "m", "messages": [{"role": "user", "content": "%b' % SECRET.encode(),
    b'{"model": "m", "messages": "%b"}' % SECRET.encode(),
    b'{"model": "m", "messages": [{"role": "%b", "content": 7}]}' % SECRET.encode(),
    b'{"model": "m", "temperature": "%b", "messages": []}' % SECRET.encode(),
    b'{"model": "%b", "messages": []}' % SECRET.encode(),
]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """All that our programs log, debug included."""
    caplog.set_level(logging.INFO)
    for name in ("gateway", "assistant", "common"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def lines_of(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(create_formatter("json").format(each)) for each in log.records]


async def test_no_prompt_is_ever_logged(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = ("", "busy", "error_html", "die_before_answer", "die_mid_stream", "die_mid_body", "garbage", "end_early")
    async with gateway_harness() as gateway, engines(2) as (engine, other):
        engine.words = [SECRET]  # an engine repeats what it was asked
        await gateway.publish(route("m", [engine.url]), route("n", [other.url, "http://127.0.0.1:1"]))
        for path, fields in BODIES.items():
            for stream in (False, True):
                for fault in faults:
                    await gateway.post(path, {"model": "m", "stream": stream, "fault": fault, **fields})
            for body in BROKEN:
                await gateway.post(path, body)
        async with gateway.chat(stream=True, fault="pause_until_release", after=1) as answer:
            await answer.content.readany()
        await gateway.idle()

        def fail(_self: object, *_: object) -> None:
            raise ValueError("a fault of the gateway's own")

        monkeypatch.setattr(OpenAIStream, "feed_data", fail)
        await gateway.post("/v1/completions", model="m", stream=True, prompt=SECRET)
        monkeypatch.setattr(EngineStage, "send_attempt", fail)
        await gateway.chat(messages=MESSAGES)
    lines = lines_of(log)
    assert any("a fault of the gateway's own" in line.get("exception", "") for line in lines), "it was looked at"
    assert not [line for line in lines if SECRET in json.dumps(line)]


async def test_each_line_about_a_request_has_its_id(log: pytest.LogCaptureFixture) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), route("gone", ["http://127.0.0.1:1"]))
        ids = []
        for model, fault in (("m", "die_before_answer"), ("m", "garbage"), ("gone", "")):
            reply = await gateway.chat(model, fault=fault)
            ids.append(reply.headers["x-request-id"])
        await until("each of them is logged", lambda: len(log.records) >= 3)
        lines = [line for line in lines_of(log) if re.match(r"request ", line["message"])]
    assert {line.get("request_id") for line in lines} == set(ids)
    for line in lines:
        assert line["message"].startswith(f"request {line['request_id']}")


TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


async def start_program(program: str, state: Path, stderr_path: Path, **settings: str) -> asyncio.subprocess.Process:
    """The program as journald starts it: its stderr is the file that JOURNAL_STREAM names."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    with stderr_path.open("w") as stderr:
        stat = os.fstat(stderr.fileno())
        own = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}", "ROUNDHOUSE_STATE": str(state)}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", program, env={**clean, **own, **settings}, stderr=stderr
        )


@pytest.mark.parametrize("program", ["controller", "gateway"])
async def test_a_program_keeps_its_log_and_gives_journald_lines_without_times(folder: Path, program: str) -> None:
    (folder / "models.yaml").write_text("models: {}")
    settings = {"ROUNDHOUSE_DESIRED": str(folder), "ROUNDHOUSE_RUNTIME": "process", "ROUNDHOUSE_PORT": str(free_port())}
    process = await start_program(program, folder / "state", folder / "stderr", **settings)
    log_file = folder / "state" / "logs" / f"{program}.log"
    try:
        await until("it listens", lambda: log_file.exists() and "listening on" in log_file.read_text())
    finally:
        process.terminate()
        await process.wait()
    assert re.search(rf"^{TIME} INFO +{program}: .*listening on", log_file.read_text(), re.MULTILINE)
    said = (folder / "stderr").read_text().splitlines()
    assert any(re.match(rf"<6>{program}: .*listening on", line) for line in said)
    assert not any(re.search(TIME, line) for line in said)
    assert "\x1b" not in "".join(said)


async def test_a_gateway_without_a_state_folder_keeps_no_log(folder: Path) -> None:
    state = folder / "state"
    async with running(ROUNDHOUSE_STATE=str(state), ROUNDHOUSE_RESPONSES_RETENTION_H="0"):
        assert not state.exists()


async def test_a_log_is_not_kept_where_it_is_switched_off(folder: Path) -> None:
    async with running(ROUNDHOUSE_STATE=str(folder), ROUNDHOUSE_LOG_MIB="0"):
        assert not (folder / "logs").exists()
