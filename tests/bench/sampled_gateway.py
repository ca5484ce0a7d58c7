"""A gateway that notes what it spends CPU time on, by a signal for every few milliseconds of CPU.

Samplers from outside count a process that was put off the CPU as one that runs, so on a shared machine they blame the
system calls after which that happens. This one counts CPU time alone. What C code takes counts for the line of Python
that called it.

    python -m tests.bench.sampled_gateway OUT     as `python -m gateway`; SIGUSR1 writes OUT, and begins anew
"""

from __future__ import annotations

import dis
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import gateway
from gateway.__main__ import main

GATEWAY_FOLDER = f"{Path(gateway.__file__).parent}/"
LOOP = "event loop, sockets and parser, outside gateway/"
_EVERY_S = 0.001
"""Of CPU time; the kernel's tick may make it longer."""


class Sampler:
    """Samples by function of gateway/ (with the libraries that it called), and by line."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._functions: Counter[str] = Counter()
        self._lines: Counter[str] = Counter()
        self._entries: dict[CodeType, int] = {}

    def take(self, _number: int, frame: FrameType | None) -> None:
        at = frame
        if at is not None and at.f_lasti == self._entry(at.f_code):
            at = at.f_back  # a signal that came in C code is told at the first Python function that this calls
        self._lines[LOOP if at is None or _is_loop(at) else f"{_name(at)}:{at.f_lineno}"] += 1
        while at is not None and (not at.f_code.co_filename.startswith(GATEWAY_FOLDER) or _is_loop(at)):
            at = at.f_back
        self._functions[LOOP if at is None else _name(at)] += 1

    def write(self, _number: int, _frame: FrameType | None) -> None:
        """Write what was noted, and begin anew."""
        part = self._out.with_suffix(".part")
        part.write_text(json.dumps({"function": self._functions, "line": self._lines}))
        part.rename(self._out)
        self._functions.clear()
        self._lines.clear()

    def _entry(self, code: CodeType) -> int:
        """Where a function's own instructions begin."""
        found = self._entries.get(code)
        if found is None:
            resumes = (step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")
            found = self._entries[code] = next(resumes, -1)
        return found


def _is_loop(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.endswith(("gateway/__main__.py", "asyncio/runners.py", "uvloop/__init__.py"))


def _name(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    where = f"gateway/{path.removeprefix(GATEWAY_FOLDER)}" if path.startswith(GATEWAY_FOLDER) else Path(path).name
    return f"{frame.f_code.co_qualname} {where}"


if __name__ == "__main__":
    sampler = Sampler(Path(sys.argv[1]))
    signal.signal(signal.SIGPROF, sampler.take)
    signal.signal(signal.SIGUSR1, sampler.write)
    signal.setitimer(signal.ITIMER_PROF, _EVERY_S, _EVERY_S)
    sys.exit(main())
