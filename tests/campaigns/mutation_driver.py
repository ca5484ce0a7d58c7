"""The program that judges mutants, in a copy of the repository whose modules hold them all: `run_driver` starts it.

It learns which tests call which functions. Each mutant then has a forked process of its own, which runs the tests that
call its function until one fails.

It says what it does in lines of JSON, each with `event`:

- `learned`: `lessons`, which another run of the same content is given; `complete`: the time was not over before
- `started`: mutants are judged from now on
- `judged`: `name` of the mutant, `verdict`, `seconds`, and `by`, the test that failed, if one did
- `stopped`: `left`, how many mutants were not judged when the time was over
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test

from tests.campaigns import mutation_plugin
from tests.campaigns.mutation_learning import MARKS, OPTIONS, Lessons, end_after
from tests.campaigns.mutation_processes import Ended, Job, run_jobs

KILLED, SURVIVED, TIMED_OUT, UNTESTED, UNCLEAR = "killed", "survived", "timed out", "untested", "unclear"
"""Unclear: pytest ended with an error of its own, and no test failed."""
TESTS_S = 60.0
"""How long the tests of one mutant may take together, by what they took without one."""
FIRST_S, FIRST_TESTS = 1.0, 40
"""What is run first: most mutants are killed by it, and the other tests need not be collected."""


def limit_of(seconds: float) -> float:
    """After how many seconds a test hangs that took `seconds` without a mutant. The machine may be busy."""
    return 8 + 5 * seconds


@dataclass(eq=False)
class Driver:
    files: Mapping[str, Sequence[str]]
    """By module: the test files that judge it, the nearest first."""
    stop_at: float
    """Unix time."""
    workers: int
    tell: Callable[[dict[str, Any]], None]
    scratch: Path
    lessons: Lessons = field(default_factory=Lessons)
    order: dict[str, int] = field(default_factory=dict)
    """The place of each test in its file."""

    def learn(self, known: Mapping[str, Any] | None) -> bool:
        """Import every test, as what is forked needs that, and run the unknown ones. False: the time was over."""
        set_mutant_under_test("stats")
        del os.environ["MUTANT_UNDER_TEST"]  # programs that tests start are as they are
        if known is not None:
            self.lessons.take_up(known)
        files = sorted({file for files in self.files.values() for file in files})
        pytest.main(
            [*OPTIONS, "--collect-only", "--continue-on-collection-errors", "-m", MARKS, *files], plugins=[self]
        )
        jobs = self.lessons.jobs(files, self.scratch)
        left = run_jobs(
            jobs, self.workers, self.stop_at, self.scratch, lambda ended: self.lessons.on_end(ended, self.scratch)
        )
        self.tell({"event": "learned", "lessons": self.lessons.to_json(), "complete": not left})
        return not left

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.order = {item.nodeid: number for number, item in enumerate(items)}

    def judge(self, names: Sequence[str]) -> None:
        """Judge mutants until the time is over."""
        self.tell({"event": "started"})
        jobs: list[Job] = []
        for name in names:
            if tests := self.choose_tests(name):
                jobs.append(self._job(name, tests))
            else:
                self._tell_verdict(name, UNTESTED)
        if left := run_jobs(jobs, self.workers, self.stop_at, self.scratch, self.judge_end):
            self.tell({"event": "stopped", "left": left})

    def choose_tests(self, name: str) -> list[str]:
        """The tests of a mutant: those of the nearest files first, the quickest of each file in turn, as long as they
        take less than TESTS_S together."""
        function = name.partition("__mutmut_")[0]
        files = self.files[function.rpartition(".")[0]]
        by_file: dict[str, deque[str]] = {file: deque() for file in files}
        is_imported = function in mutation_plugin.called_on_import  # any test may use what was made then
        tests = self.lessons.seconds if is_imported else self.lessons.tests.get(function, ())
        for test in sorted(tests, key=lambda test: self.lessons.seconds[test]):
            file = test.partition("::")[0]
            if file in by_file and test not in self.lessons.left_out:
                by_file[file].append(test)
        chosen: list[str] = []
        left_s = TESTS_S
        while any(by_file.values()):
            for waiting in filter(None, by_file.values()):
                test = waiting.popleft()
                left_s -= self.lessons.seconds[test]
                if left_s < 0:
                    return chosen
                chosen.append(test)
        return chosen

    def _job(self, name: str, tests: Sequence[str]) -> Job:
        batches, seconds = self._in_batches(tests), self.lessons.seconds

        def body(folder: Path, told: int) -> int:
            set_mutant_under_test(name)
            for batch in batches:
                words = [*OPTIONS, "-x", f"--basetemp={folder}", *batch]
                if status := int(pytest.main(words, plugins=[_Watch(seconds, told)])):
                    return status
            return 0

        return Job(name, body, 30 + 5 * sum(seconds[test] for test in tests))

    def _in_batches(self, tests: Sequence[str]) -> list[list[str]]:
        """A few tests first. Those of a file stay together, in the file's order."""
        count, left_s = 0, FIRST_S
        for test in tests[:FIRST_TESTS]:
            left_s -= self.lessons.seconds[test]
            if count and left_s < 0:
                break
            count += 1
        batches = (tests[:count], tests[count:])
        return [sorted(batch, key=lambda test: self.order.get(test, 0)) for batch in batches if batch]

    def judge_end(self, ended: Ended) -> Iterator[Job]:
        """Say what became of a mutant. There is nothing further to run."""
        by = ended.told.partition("\n")[0] or None
        was_ended = ended.status in (-signal.SIGALRM, -signal.SIGKILL)
        verdict = SURVIVED if not ended.status else TIMED_OUT if was_ended else UNCLEAR
        if by is not None or ended.status == 1 or (ended.status < 0 and not was_ended):
            verdict = KILLED
        self._tell_verdict(ended.job.name, verdict, ended.seconds, by)
        return iter(())

    def _tell_verdict(self, name: str, verdict: str, seconds: float = 0.0, by: str | None = None) -> None:
        self.tell({"event": "judged", "name": name, "verdict": verdict, "seconds": round(seconds, 2), "by": by})


@dataclass(eq=False)  # pytest needs a hash
class _Watch:
    """pytest's plugin that ends the process where a test hangs, and says which test failed."""

    seconds: Mapping[str, float]
    told: int

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A test has some times what it took without a mutant."""
        end_after(limit_of(self.seconds.get(item.nodeid, 0.0)))
        try:
            return (yield)
        finally:
            end_after(0)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that a mutant keeps from being imported."""
        if report.failed:
            os.write(self.told, f"{report.nodeid}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first that fails; `-x` ends it then."""
        if report.failed:
            os.write(self.told, f"{report.nodeid}\n".encode())


def main() -> None:
    """Judge what the orders say."""
    orders = json.loads(Path(sys.argv[1]).read_text())
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what pytest says is a log

    def tell(event: dict[str, Any]) -> None:
        answers.write(json.dumps(event) + "\n")

    scratch = Path(os.environ["TMPDIR"])
    driver = Driver(orders["tests"], orders["stop_at"], orders["workers"], tell, scratch)
    if driver.learn(orders["lessons"]):
        driver.judge(orders["names"])
    answers.close()
    os._exit(0)  # threads that a test left are not waited for


if __name__ == "__main__":
    main()
