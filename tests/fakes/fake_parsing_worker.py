"""`python -m tests.fakes.fake_parsing_worker MODE LIMITS`: a fake of the process that parses, which misbehaves.

It does so for a file named `bad`; of every other file it says that its text is "fine".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from retrieval.parsing.base import FRAME_HEAD, ChunkSpan, ParsingLimits, decode_request, encode_answer, read_frame_head
from retrieval.parsing.worker import _limit_process, _limit_time


def main() -> None:
    """Answer requests, and misbehave."""
    mode, limits = sys.argv[1], ParsingLimits(**json.loads(sys.argv[2]))
    while head := sys.stdin.buffer.read(FRAME_HEAD.size):
        request = decode_request(sys.stdin.buffer.read(read_frame_head(head, 0)[0]))
        if request.filename == "bad":
            _misbehave(mode, limits)
        rss = 10**12 if request.filename == "large" else 1
        # The process's number, so that tests can tell processes apart, and what it has for an environment.
        about = json.dumps({"pid": os.getpid(), "environment": sorted(os.environ), "nice": os.nice(0)})
        sys.stdout.buffer.write(encode_answer("fine", about, [ChunkSpan(0, 4, "fine", (), None)], rss))
        sys.stdout.buffer.flush()


def _misbehave(mode: str, limits: ParsingLimits) -> None:
    ways: dict[str, Callable[[], object]] = {
        "hang": signal.pause,
        "spin": lambda: _spin(limits),
        "die": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "exit": lambda: sys.exit("these are my last words"),
        "garbage": lambda: os.write(1, b"garbage " * 1000),
        "huge": lambda: os.write(1, FRAME_HEAD.pack(b"RHP1", 2, 2**31)),
        "malformed": lambda: _write(b"{}"),
        "no-json": lambda: _write(b"no"),
        "code": lambda: _write(b'{"code": "unknown", "message": "", "rss": 0}'),
        "children": _start_child,
        "allocate": lambda: _allocate(limits),
    }
    ways[mode]()


def _write(body: bytes) -> None:
    os.write(1, FRAME_HEAD.pack(b"RHP1", len(body), 0) + body)


def _spin(limits: ParsingLimits) -> None:
    _limit_time(limits)
    while True:
        pass


def _start_child() -> None:
    subprocess.Popen(["/bin/sleep", "1000"], stdin=subprocess.DEVNULL)
    signal.pause()


def _allocate(limits: ParsingLimits) -> None:
    _limit_process(limits)
    kept = []
    while True:
        kept.append(bytearray(1024 * 1024))


if __name__ == "__main__":
    main()
