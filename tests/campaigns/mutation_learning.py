"""Which tests call which functions, and how long they take.

Each test file runs twice in a forked process without a mutant, every second of its tests each time, as a mutant's tests
are not all of a file's either.
"""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import pytest
from mutmut.state import state

from tests.campaigns import mutation_plugin
from tests.campaigns.mutation_processes import Ended, Job

MARKS: Final = "not engines and not slow and not docker and not embedded and not vllm"
_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "tests.campaigns.mutation_plugin")
_WITHOUT = ("cacheprovider", "unraisableexception", "threadexception")
OPTIONS: Final = (
    *("--rootdir=.", "--assert=plain", "--tb=no", "-q"),
    *(word for name in _PLUGINS for word in ("-p", name)),
    *(word for name in _WITHOUT for word in ("-p", f"no:{name}")),
)
"""A mutant's process starts pytest in 0.1 s with these alone, and in 0.3 s with every plugin that is installed."""
LONGEST_TEST_S = 5.0
"""A test that takes longer judges nothing: it waits."""
HANGS_S = 60.0
"""A test that takes longer is ended, and with it the process."""
HALF_S = 900.0
"""Of half a file's tests."""


def end_after(seconds: float) -> None:
    """Let the kernel end this process, whatever it does then; 0: do not."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@dataclass
class Lessons:
    tests: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By function, as mutmut names it: the tests that call it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of each test."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tests that judge nothing, and why."""
    done: list[str] = field(default_factory=list)
    """The halves of files that ran."""

    def take_up(self, known: Mapping[str, Any]) -> None:
        """Go on with what another run learned."""
        names = list(known["seconds"])
        for function, numbers in known["tests"].items():
            self.tests[function] += [names[number] for number in numbers]
        self.seconds.update(known["seconds"])
        self.left_out.update(known["left_out"])
        self.done += known["done"]

    def to_json(self) -> dict[str, Any]:
        """For another run. `tests` has numbers of tests, in the order of `seconds`: a function may have thousands."""
        numbers = {test: number for number, test in enumerate(self.seconds)}
        tests = {function: [numbers[test] for test in tests] for function, tests in self.tests.items()}
        return {"tests": tests, "seconds": self.seconds, "left_out": self.left_out, "done": self.done}

    def jobs(self, files: Sequence[str], scratch: Path) -> list[Job]:
        halves = [(file, half) for file in files for half in (0, 1) if f"{file} {half}" not in self.done]
        return [self._job(file, half, scratch) for file, half in halves]

    def _job(self, file: str, half: int, scratch: Path) -> Job:
        name = f"{file} {half}"
        record = scratch / f"{name.replace('/', '.')}.jsonl"
        skipped = frozenset(self.left_out)

        def body(folder: Path, told: int) -> int:
            del told
            with record.open("w") as output:
                pytest.main(
                    [*OPTIONS, "-m", MARKS, f"--basetemp={folder}", file], plugins=[_Learner(half, skipped, output)]
                )
            return 0

        return Job(name, body, HALF_S)

    def on_end(self, ended: Ended, scratch: Path) -> Iterator[Job]:
        """Keep what a half said. A test that ended the process is left out, and the others run again."""
        file, _, half = ended.job.name.rpartition(" ")
        record = scratch / f"{ended.job.name.replace('/', '.')}.jsonl"
        lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        record.unlink(missing_ok=True)
        if ended.status and lines and "seconds" not in lines[-1]:
            self.left_out[lines[-1]["test"]] = "it hangs or ends its process without a mutant"
            yield self._job(file, int(half), scratch)
            return
        for line in lines:
            if "seconds" in line:
                self._keep(**line)
        self.done.append(ended.job.name)

    def _keep(self, test: str, seconds: float, failed: bool, functions: Sequence[str]) -> None:
        self.seconds[test] = seconds
        for function in functions:
            self.tests[function].append(test)
        if failed:
            self.left_out[test] = "it fails without a mutant"
        elif seconds > LONGEST_TEST_S:
            self.left_out[test] = f"it takes more than {LONGEST_TEST_S:g} s"


@dataclass(eq=False)  # pytest needs a hash
class _Learner:
    """pytest's plugin that writes a line as a test begins, and one as it ends."""

    half: int
    skipped: frozenset[str]
    output: TextIO
    seconds: float = 0.0
    failed: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items[self.half :: 2] if item.nodeid not in self.skipped]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """What is called, and for how long."""
        self._write(test=item.nodeid)
        self.seconds, self.failed = 0.0, False
        state()._stats.clear()
        end_after(HANGS_S)
        try:
            return (yield)
        finally:
            end_after(0)
            functions = sorted(state()._stats - mutation_plugin.called_on_import)
            self._write(test=item.nodeid, seconds=round(self.seconds, 3), failed=self.failed, functions=functions)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """How long each part of a test took, and whether it failed."""
        self.seconds += report.duration
        self.failed |= report.failed

    def _write(self, **line: Any) -> None:
        self.output.write(json.dumps(line) + "\n")
        self.output.flush()
