"""A fake: the program `vllm`, whose server answers as `MockEngine` does, and which takes its time to end.

    python -m tests.fakes.fake_vllm serve MODEL --host 127.0.0.1 --port 8000 ...

After SIGTERM it serves nobody, and ends FAKE_VLLM_END_S seconds later, as a busy or tensor-parallel vLLM does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

from tests.fakes.mock_engine import MockEngine

END_VARIABLE = "FAKE_VLLM_END_S"
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


def main() -> None:
    """Serve as a process of its own."""
    parser = argparse.ArgumentParser(description="a fake vLLM")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_known_args()[0].port))


if __name__ == "__main__":
    main()
