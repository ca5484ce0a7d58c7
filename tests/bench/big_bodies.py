"""A client of large bodies, in a process of its own so that it costs the load generator's loop nothing.

    python -m tests.bench.big_bodies PORT SECRET MODEL SECONDS PER_SECOND CLIENTS

Sends chat completions of 12 MB, an image as a data URL; prints `STATUSES MEDIAN_MS` as JSON when the time is over. A
refusal counts as an answer: an engine without eyes has read the body before it says so.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter

from tests.bench.load import CHAT, post_bytes

BODY_BYTES = 12_000_000


def image_request(port: int, secret: str, model: str) -> bytes:
    """A chat completion with one image, some 12 MB of base64."""
    image = base64.b64encode(random.Random(7).randbytes(BODY_BYTES * 3 // 4)).decode()
    parts = [
        {"type": "text", "text": "What is in this picture?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
    ]
    messages = [{"role": "user", "content": parts}]
    return post_bytes(port, secret, CHAT, model=model, messages=messages, max_tokens=4)


def _ask(port: int, request: bytes) -> int:
    """Send the request on a connection of its own, and read the answer to its end; its status."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(request)
        received = b""
        while not _is_whole(received):
            part = connection.recv(65536)
            if not part:
                break
            received += part
    return int(received[9:12] or b"0")


def _is_whole(received: bytes) -> bool:
    head, blank, body = received.partition(b"\r\n\r\n")
    lower = head.lower()
    if not blank:
        return False
    if b"\r\ncontent-length:" in lower:
        return len(body) >= int(lower.split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0])
    return body.endswith(b"0\r\n\r\n")


def main() -> None:
    """Ask until the time is over: PER_SECOND times a second by each client, or at once again where one takes longer."""
    port, seconds, per_second, clients = int(sys.argv[1]), float(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
    request = image_request(port, sys.argv[2], sys.argv[3])
    print("ready", flush=True)
    end = time.monotonic() + seconds
    took: list[float] = []
    statuses: Counter[int] = Counter()

    def ask_again() -> None:
        while (begun := time.monotonic()) < end:
            statuses[_ask(port, request)] += 1
            took.append(time.monotonic() - begun)
            time.sleep(max(0.0, begun + 1 / per_second - time.monotonic()))

    threads = [threading.Thread(target=ask_again) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"statuses": statuses, "median_ms": statistics.median(took) * 1e3}))


if __name__ == "__main__":
    main()
