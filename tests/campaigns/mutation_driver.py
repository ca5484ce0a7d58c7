"""The program that judges mutants, in a copy of the repository whose modules hold them all: `run_driver` starts it.

It learns once which tests call which functions, and how long they take. Each test then runs in a forked process without
a mutant; one that fails there judges nothing. Each mutant has a forked process of its own, which runs the tests that
call its function until one fails.

It says what it does in lines of JSON, each with `event`:

- `learned`: `lessons`, which another run of the same content is given; `complete`: the time was not over before
- `started`: it is learned, and mutants are judged from now on
- `judged`: `name` of the mutant, `verdict`, `seconds`, and `by`, the test that failed, if one did
- `stopped`: `left`, how many mutants were not judged when the time was over
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

from tests.campaigns import mutation_plugin

KILLED, SURVIVED, TIMED_OUT, UNTESTED = "killed", "survived", "timed out", "untested"
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
TESTS_S = 20.0
"""How long the tests of one mutant may take together, by what they took without one."""
FIRST_S, FIRST_TESTS = 1.0, 40
"""What is run first: most mutants are killed by it, and the other tests need not be collected."""
MEMORY_BYTES = 4 << 30
"""Of a mutant's process; one that fills a list for ever ends by it."""
PATIENCE_S = 5.0
"""For mutants that are being judged when the time is over; longer ones are judged another time."""
CONTROL = "control"
"""In place of a mutant's name: no mutant."""


def limit_of(seconds: float) -> float:
    """After how many seconds a test hangs that took `seconds` without a mutant. The machine may be busy."""
    return 8 + 5 * seconds


@dataclass
class Lessons:
    """pytest's plugin that learns which tests call which functions."""

    tests: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By function, as mutmut names it: the tests that call it."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of each test, in the order in which they ran."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tests that judge nothing, and why."""
    files: list[str] = field(default_factory=list)
    """Test files that ran to their end."""
    controlled: list[str] = field(default_factory=list)
    """Halves of them that ran without a mutant, too."""
    stop_at: float = field(default=math.inf, kw_only=True)
    """Unix time."""
    session: pytest.Session | None = field(default=None, kw_only=True)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """What is stopped when the time is over."""
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """How long each part of a test took, and whether it failed."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.left_out[report.nodeid] = "it fails without a mutant"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """What was called since the test before, what was called by importing included."""
        for function in state()._stats | mutation_plugin.called_on_import:
            self.tests[function].append(nodeid)
        state()._stats.clear()
        if self.seconds[nodeid] > LONGEST_TEST_S:
            self.left_out.setdefault(nodeid, f"it takes more than {LONGEST_TEST_S:g} s")
        if time.time() > self.stop_at and self.session is not None:
            self.session.shouldstop = "the time is over"

    def take_up(self, known: Mapping[str, Any]) -> None:
        """Go on with what another run learned."""
        names = list(known["seconds"])
        for function, numbers in known["tests"].items():
            self.tests[function] += [names[number] for number in numbers]
        self.seconds.update(known["seconds"])
        self.left_out.update(known["left_out"])
        self.files += known["files"]
        self.controlled += known["controlled"]
        mutation_plugin.called_on_import.update(known["on_import"])

    def end_files(self, files: Sequence[str]) -> None:
        """Keep what was learned of `files`, which were to run: of the one at which the time was over, nothing."""
        was_stopped = self.session is not None and bool(self.session.shouldstop)
        ran = list(dict.fromkeys(test.partition("::")[0] for test in self.seconds))
        broken = ran[-1] if was_stopped and ran else None
        seen = ran.index(broken) if broken is not None else len(ran)
        done = {*ran[:seen], *(() if was_stopped else files)}
        self.files += sorted(done - {*self.files})
        for tests in self.tests.values():
            tests[:] = [test for test in tests if test.partition("::")[0] != broken]
        for by_test in (self.seconds, self.left_out):
            for test in [test for test in by_test if test.partition("::")[0] == broken]:
                del by_test[test]

    def to_json(self) -> dict[str, Any]:
        """For another run. `tests` has numbers of tests, in the order of `seconds`: a function may have thousands."""
        numbers = {test: number for number, test in enumerate(self.seconds)}
        return {
            "tests": {function: [numbers[test] for test in tests] for function, tests in self.tests.items()},
            "seconds": self.seconds,
            "left_out": self.left_out,
            "files": self.files,
            "controlled": self.controlled,
            "on_import": sorted(mutation_plugin.called_on_import),
        }


@dataclass
class _Child:
    """A process that runs tests with a mutant, or with none."""

    name: str
    pid: int
    began: float
    ends: float
    killer: int
    """Where it writes which test failed."""


@dataclass
class Driver:
    """One run."""

    files: Mapping[str, Sequence[str]]
    """By module: the test files that judge it, the nearest first."""
    stop_at: float
    """Unix time."""
    workers: int
    tell: Callable[[dict[str, Any]], None]
    scratch: Path
    lessons: Lessons = field(default_factory=Lessons)

    def learn(self, known: Mapping[str, Any] | None) -> bool:
        """Run every test once that is not known. Where all are, only import them: what is forked needs that. False:
        there was not the time."""
        set_mutant_under_test("stats")
        del os.environ["MUTANT_UNDER_TEST"]  # programs that tests start are as they are
        if known is not None:
            self.lessons.take_up(known)
        files = sorted({file for files in self.files.values() for file in files})
        new = [file for file in files if file not in self.lessons.files]
        words = [*OPTIONS, "--continue-on-collection-errors", "-m", MARKS, f"--basetemp={self.scratch / 'learn'}"]
        if new:
            self.lessons.stop_at = self.stop_at
            pytest.main([*words, *new], plugins=[self.lessons])
            self.lessons.end_files(new)
        else:
            pytest.main([*words, "--collect-only", *files])
        complete = {*files} <= {*self.lessons.files} and self._control()
        self.tell({"event": "learned", "lessons": self.lessons.to_json(), "complete": complete})
        return complete

    def _control(self) -> bool:
        """Run each test in a forked process without a mutant, every second one of a file at a time, as a mutant's tests
        are not all of a file's either. False: there was not the time."""
        by_half: dict[str, list[str]] = defaultdict(list)
        for number, test in enumerate(self.lessons.seconds):
            if test not in self.lessons.left_out:
                by_half[f"{CONTROL} {test.partition('::')[0]} {number % 2}"].append(test)

        def judged(name: str, verdict: str, seconds: float, by: str | None) -> Iterator[tuple[str, list[str]]]:
            del seconds
            tests = by_half[name]
            if verdict == SURVIVED:
                self.lessons.controlled.append(name)
                return
            for test in [by] if by in tests else list(tests):
                self.lessons.left_out[test] = f"{verdict} in a forked process without a mutant"
                tests.remove(test)
            if tests:
                yield name, tests

        return not self._run([job for job in by_half.items() if job[0] not in self.lessons.controlled], judged)

    def judge(self, names: Sequence[str]) -> None:
        """Judge mutants until the time is over."""

        def judged(name: str, verdict: str, seconds: float, by: str | None) -> Iterator[tuple[str, list[str]]]:
            self.tell({"event": "judged", "name": name, "verdict": verdict, "seconds": round(seconds, 2), "by": by})
            return iter(())

        self.tell({"event": "started"})
        left = self._run([(name, self.choose_tests(name)) for name in names], judged)
        if left:
            self.tell({"event": "stopped", "left": left})

    def choose_tests(self, name: str) -> list[str]:
        """The tests of a mutant: those of the nearest files first, the quickest of each file in turn, as long as they
        take less than TESTS_S together."""
        function = name.partition("__mutmut_")[0]
        files = self.files[function.rpartition(".")[0]]
        by_file: dict[str, deque[str]] = {file: deque() for file in files}
        for test in sorted(self.lessons.tests.get(function, ()), key=lambda test: self.lessons.seconds[test]):
            file = test.partition("::")[0]
            if file in by_file and test not in self.lessons.left_out:
                by_file[file].append(test)
        chosen: list[str] = []
        left_s = TESTS_S
        while any(by_file.values()):
            for tests in filter(None, by_file.values()):
                test = tests.popleft()
                left_s -= self.lessons.seconds[test]
                if left_s < 0:
                    return chosen
                chosen.append(test)
        return chosen

    def _run(
        self,
        jobs: Iterable[tuple[str, list[str]]],
        judged: Callable[[str, str, float, str | None], Iterator[tuple[str, list[str]]]],
    ) -> int:
        """Run each job's tests in a process of its own. `judged` may give further jobs. Returns how many were left when
        the time was over."""
        waiting, children = deque(jobs), dict[int, _Child]()
        while waiting or children:
            while waiting and len(children) < self.workers and time.time() < self.stop_at:
                name, tests = waiting.popleft()
                if not tests:
                    waiting.extend(judged(name, UNTESTED, 0.0, None))
                    continue
                child = self._fork(name, tests)
                children[os.pidfd_open(child.pid)] = child
            if not children:
                break
            now = time.time()
            if now > self.stop_at + PATIENCE_S:
                break
            soonest = min(self.stop_at + PATIENCE_S + 1, *(child.ends for child in children.values()))
            ended, _, _ = select.select(list(children), [], [], max(soonest - now, 0.01))
            late = [handle for handle, child in children.items() if child.ends <= time.time()]
            for handle in {*ended, *late}:
                child = children.pop(handle)
                verdict, by = self._end(handle, child)
                waiting.extend(judged(child.name, verdict, time.time() - child.began, by))
        for handle, child in children.items():
            self._end(handle, child)
        return len(waiting) + len(children)

    def _fork(self, name: str, tests: Sequence[str]) -> _Child:
        killer, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_child(name, self._in_batches(tests), self.lessons.seconds, told, self.scratch)
        os.close(told)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        now = time.time()
        allowed_s = 30 + 5 * sum(self.lessons.seconds[test] for test in tests)
        return _Child(name, pid, now, now + allowed_s, killer)

    def _in_batches(self, tests: Sequence[str]) -> list[list[str]]:
        """A few tests first. Those of a file stay together, in the file's order."""
        count, left_s = 0, FIRST_S
        for test in tests[:FIRST_TESTS]:
            left_s -= self.lessons.seconds[test]
            if count and left_s < 0:
                break
            count += 1
        order = {test: number for number, test in enumerate(self.lessons.seconds)}
        return [sorted(batch, key=order.__getitem__) for batch in (tests[:count], tests[count:]) if batch]

    def _end(self, handle: int, child: _Child) -> tuple[str, str | None]:
        """A child's verdict, and the test that failed. Whatever it started ends with it."""
        with contextlib.suppress(ProcessLookupError):
            # Not reaped yet, so the number is its own: as it is where it has ended by itself.
            os.killpg(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        os.close(handle)
        told = (
            os.read(child.killer, 4096).decode(errors="replace") if select.select([child.killer], [], [], 0)[0] else ""
        )
        os.close(child.killer)
        shutil.rmtree(self.scratch / str(child.pid), ignore_errors=True)
        by = told.partition("\n")[0] or None
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return SURVIVED, None
        return (TIMED_OUT if by is None and code in (-signal.SIGALRM, -signal.SIGKILL) else KILLED), by


def _run_child(
    name: str, batches: Sequence[Sequence[str]], seconds: Mapping[str, float], told: int, scratch: Path
) -> NoReturn:
    """In a forked process: end with 0 where no test failed, and with 1 where one did."""
    try:
        os.setpgid(0, 0)
        set_mutant_under_test(name)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for batch in batches:
            watch = _Watch(seconds, told)
            if pytest.main([*OPTIONS, "-x", f"--basetemp={scratch / str(os.getpid())}", *batch], plugins=[watch]):
                os._exit(1)
        os._exit(0)
    except BaseException:
        os._exit(1)


@dataclass
class _Watch:
    """pytest's plugin that ends the process where a test hangs, and says which test failed."""

    seconds: Mapping[str, float]
    told: int

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """The kernel ends it, whatever the process does."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_of(self.seconds.get(item.nodeid, 0.0)))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

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
