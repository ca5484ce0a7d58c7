"""A fake: the program `vllm`, whose server answers as `MockEngine` does, and which takes its time to end.

    python -m tests.fakes.fake_vllm serve MODEL --host 127.0.0.1 --port 8000 ...

After SIGTERM it serves nobody, and ends FAKE_VLLM_END_S seconds later, as a busy or tensor-parallel vLLM does.

With `--enable-sleep-mode` it is an ASGI application, as vLLM is, with the middleware that `--middleware` names and the
routes of vLLM's development mode. The file that FAKE_VLLM_STATE names with `.` and its process id at the end says
`awake` or `asleep`; FAKE_VLLM_FAULT says what goes wrong with a sleep:

    wrong        it answers otherwise after it was woken
    dies_asleep  it ends a moment after it fell asleep
    dies_awake   it ends when it is to be woken
    deaf         it answers the call, and does not fall asleep
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import signal
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.fakes.mock_engine import WORDS, MockEngine

END_VARIABLE = "FAKE_VLLM_END_S"
FAULT_VARIABLE = "FAKE_VLLM_FAULT"
STATE_VARIABLE = "FAKE_VLLM_STATE"
METRICS = (
    b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n"
    b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0.0\n"
)


async def serve(port: int) -> None:
    """Serve until SIGTERM, and then do nothing for a while."""
    ends = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
    engine = MockEngine(keep=False)
    engine.answers["/metrics"] = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(METRICS) + METRICS
    )
    await engine.start(port)
    await ends.wait()
    await engine.stop()
    await asyncio.sleep(float(os.environ.get(END_VARIABLE, "0")))


@dataclass
class SleepingServer:
    """What the server with sleep answers, and whether it sleeps. Weights and cache wake apart, as level 2 has it."""

    fault: str
    state_file: Path
    level: int = 0
    lacks: frozenset[str] = frozenset()
    """What is not in the memory of the GPU: `weights`, `kv_cache`, and `content` of the weights."""
    wakes: int = 0

    def write_state(self) -> None:
        self.state_file.write_text("asleep" if self.lacks else "awake")

    async def sleep(self, request: Request) -> Response:
        if self.fault == "deaf":
            return Response()
        self.level = int(request.query_params.get("level", "1"))
        content = {"content"} if self.level == 2 else set()
        self.lacks = frozenset({"weights", "kv_cache"} | content)
        self.write_state()
        if self.fault == "dies_asleep":
            asyncio.get_running_loop().call_later(0.2, os._exit, 9)
        return Response()

    async def wake(self, request: Request) -> Response:
        if self.fault == "dies_awake":
            os._exit(9)
        tags = request.query_params.getlist("tags") or ["weights", "kv_cache"]
        self.lacks -= set(tags)
        self.wakes += 1
        self.write_state()
        return Response()

    async def call_workers(self, request: Request) -> Response:
        assert await request.json() == {"method": "reload_weights"}, "the one method that a wake needs"
        assert "weights" not in self.lacks, "weights are read into memory that is there"
        self.lacks -= {"content"}
        return JSONResponse({"results": [None]})

    async def answer(self, _: Request) -> Response:
        if self.lacks:
            return JSONResponse({"error": {"message": f"asleep: {sorted(self.lacks)}"}}, 500)
        text = "nonsense" if self.wakes and self.fault == "wrong" else " ".join(WORDS)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "text": text, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": len(WORDS), "total_tokens": 7 + len(WORDS)}
        return JSONResponse({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

    def routes(self) -> list[Route]:
        async def tell_state(_: Request) -> Response:
            return JSONResponse({"is_sleeping": bool(self.lacks)})

        async def tell_nothing(_: Request) -> Response:
            return Response()

        async def tell_metrics(_: Request) -> Response:
            return PlainTextResponse(METRICS)

        return [
            Route("/health", tell_nothing),
            Route("/metrics", tell_metrics),
            Route("/is_sleeping", tell_state),
            Route("/sleep", self.sleep, methods=["POST"]),
            Route("/wake_up", self.wake, methods=["POST"]),
            Route("/collective_rpc", self.call_workers, methods=["POST"]),
            Route("/v1/completions", self.answer, methods=["POST"]),
            Route("/v1/chat/completions", self.answer, methods=["POST"]),
        ]


def serve_with_sleep(port: int, middleware: str) -> None:
    """Serve with the routes of vLLM's development mode until SIGTERM."""
    assert os.environ.get("VLLM_SERVER_DEV_MODE") == "1", "vLLM has these routes in its development mode alone"
    state_file = Path(f"{os.environ[STATE_VARIABLE]}.{os.getpid()}")
    server = SleepingServer(os.environ.get(FAULT_VARIABLE, ""), state_file)
    server.write_state()
    module, _, name = middleware.rpartition(".")
    app: Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]] = Starlette(routes=server.routes())
    app = getattr(importlib.import_module(module), name)(app)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def main() -> None:
    """Serve as a process of its own."""
    parser = argparse.ArgumentParser(description="a fake vLLM")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--enable-sleep-mode", action="store_true")
    parser.add_argument("--middleware")
    words = parser.parse_known_args()[0]
    if words.enable_sleep_mode:
        serve_with_sleep(words.port, words.middleware)
    else:
        asyncio.run(serve(words.port))


if __name__ == "__main__":
    main()
