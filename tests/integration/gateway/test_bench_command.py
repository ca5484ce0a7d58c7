"""`roundhouse bench` through a gateway, in front of a fake engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.app import run
from cli.output import ExitCode
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.wait import until

ENDLESS = ["--requests", "100000", "--max-tokens", "131072"]


def read(base: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(base.with_suffix(".json").read_text())
    return report


async def test_a_load_test_is_saved_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gateway: GatewayHarness, engine: MockEngine
) -> None:
    common = ["bench", "m", "--gateway", gateway.url, "--concurrency", "3,1", "--requests", "6", "--max-tokens", "10"]
    for name in ("a", "b"):
        assert await asyncio.to_thread(run, [*common, "--output", str(tmp_path / name)]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert f"saved {tmp_path}/b.html and {tmp_path}/b.json" in err
    assert [line.split()[:3] for line in out.splitlines()[1:3]] == [["1", "6", "0"], ["3", "6", "0"]]
    made = read(tmp_path / "a")
    assert (made["model"], made["complete"]) == ("m", True)
    for level in made["levels"]:
        assert (level["answered"], level["output_tokens"], level["errors"]) == (6, 60, {})
        assert (level["ttft_ms"]["count"], level["inter_token_ms"]["count"]) == (6, 54)
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    prompts = {request.body["messages"][0]["content"] for request in engine.requests if request.body.get("stream")}
    assert len(prompts) == 12 < len(engine.requests), "each request of a run asks something of its own"

    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    page = ["--output", str(tmp_path / "both")]
    assert await asyncio.to_thread(run, ["bench", "--compare", *files, *page, "--json"]) == ExitCode.DONE
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert {figure["concurrency"] for figure in figures} == {1, 3}
    assert (tmp_path / "both.html").exists()


async def test_a_level_ends_after_its_time(tmp_path: Path, gateway: GatewayHarness, engine: MockEngine) -> None:
    command = ["bench", "m", "--gateway", gateway.url, "--concurrency", "2", *ENDLESS, "--seconds", "1"]
    assert await asyncio.to_thread(run, [*command, "--output", str(tmp_path / "a")]) == ExitCode.DONE
    [level] = read(tmp_path / "a")["levels"]
    assert (level["answered"], level["cut"], level["errors"]) == (0, 2, {})
    assert level["output_tokens"] > 0
    await gateway.idle()
    assert engine.running == 0, "the engine was told to stop"


async def test_refused_requests_are_counted_by_their_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gateway: GatewayHarness, engine: MockEngine
) -> None:
    await gateway.publish(route("m", [engine.url], target_inflight=1, queue_limit=0))
    command = ["bench", "m", "--gateway", gateway.url, "--concurrency", "8", "--requests", "8", "--max-tokens", "3000"]
    assert await asyncio.to_thread(run, [*command, "--output", str(tmp_path / "a")]) == ExitCode.FAILED
    [level] = read(tmp_path / "a")["levels"]
    assert level["errors"]["queue_full"] + level["answered"] == 8
    assert "8 at a time:" in capsys.readouterr().err


async def test_what_cannot_be_tested_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway_harness() as gateway:
        command = ["bench", "nowhere", "--gateway", gateway.url, "--output", str(tmp_path / "a")]
        assert await asyncio.to_thread(run, command) == ExitCode.FAILED
        assert "nowhere" in capsys.readouterr().err
        url = gateway.url
    assert await asyncio.to_thread(run, ["bench", "m", "--gateway", url]) == ExitCode.NO_CONTROLLER
    assert run(["bench"]) == ExitCode.USAGE
    assert run(["bench", "m", "--concurrency", "many"]) == ExitCode.USAGE
    assert run(["bench", "m", "--output", str(tmp_path / "no" / "a")]) == ExitCode.USAGE
    (tmp_path / "x.json").write_text("{")
    assert run(["bench", "--compare", str(tmp_path / "x.json"), str(tmp_path / "x.json")]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 5
    assert not (tmp_path / "a.json").exists()


async def test_ctrl_c_saves_what_there_is(tmp_path: Path, gateway: GatewayHarness, engine: MockEngine) -> None:
    command = ["bench", "m", "--gateway", gateway.url, "--concurrency", "1,2", *ENDLESS, "--output", "a"]
    # A script of its own, because an installed `roundhouse` may be another checkout's.
    program = "import sys; from cli.app import run; sys.exit(run(sys.argv[1:]))"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *command),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in [str(Path.cwd()), *sys.path] if path)},
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    await until("the load begins", lambda: engine.running > 0)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert b"saved a.html and a.json" in err
    assert b"Traceback" not in err
    made = read(tmp_path / "a")
    assert (made["complete"], [level["concurrency"] for level in made["levels"]]) == (False, [1])
    assert out.count(b"\n") == 2
