"""A forked child whose end is always seen, explained, and never outlived.

Each case is a program of its own: a test runner must not be forked.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.support.worker_process import alive, eventually

PROGRAM = """
import ctypes, os, signal, sys, time
from worker.launchers.child_process import supervise
def child(ready):
    {child}
ending = supervise(child, lambda line: line.strip() if line.startswith("error") else None, lambda: signal.{stop})
print({told})
"""
TOLD = "ending.asked_for, ending.was_ready, ending.signal and ending.signal.name, ending.first_error"


@contextmanager
def program(child: str, told: str = TOLD, stop: str = "SIGTERM") -> Iterator[subprocess.Popen[str]]:
    """A process that supervises `child`, a few Python statements on one line, and prints what it saw."""
    code = PROGRAM.format(child=child, told=told, stop=stop)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ending(child: str) -> tuple[str, str]:
    """What the supervisor saw, and what it passed on."""
    with program(child) as process:
        out, err = process.communicate(timeout=60)
    return out.strip(), err


@pytest.mark.parametrize(
    ("child", "seen"),
    [
        ("pass", "False False None None"),
        ("os.write(ready, b'.')", "False True None None"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "False False SIGKILL None"),
        ("os.write(ready, b'.'); os.abort()", "False True SIGABRT None"),
        (r"os.write(2, b'fine\nerror: one\nerror: two\n')", "False False None error: one"),
        (r"os.write(2, b'error: no newline')", "False False None error: no newline"),
    ],
)
def test_the_end_of_a_child_is_said_in_words(child: str, seen: str) -> None:
    assert ending(child)[0] == seen


@pytest.mark.parametrize(
    ("child", "code"), [("pass", 1), ("sys.exit(2)", 2), ("sys.exit('words')", 1), ("os.abort()", None)]
)
def test_what_it_exited_with(child: str, code: int | None) -> None:
    with program(f"print('never buffered', file=sys.stderr); {child}", "ending.code") as process:
        out, _ = process.communicate(timeout=60)
    assert out.split()[-1] == str(code)


def test_children_that_it_leaves_behind_are_killed() -> None:
    # They hold its stderr open, and some start children of their own: the supervisor must neither wait nor leave them.
    asleep = "import os, time; os.fork(); os.write(2, b'asleep\\\\n'); time.sleep(3600)"
    child = (
        f"import subprocess; subprocess.Popen([sys.executable, '-c', \"{asleep}\"], start_new_session=True); "
        "time.sleep(3600)"
    )
    with program(child) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == ["asleep\n"] * 2
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 3
        family[0].kill()
        out, _ = process.communicate(timeout=60)
    assert out.strip() == "False False SIGKILL None"
    eventually("all are gone", lambda: not any(map(alive, family)))


def test_everything_below_a_process_can_be_killed() -> None:
    asleep = "import os, time; os.fork(); os.write(2, b'asleep\\n'); time.sleep(3600)"
    code = f"""
import os, subprocess, sys
from worker.launchers.child_process import kill_descendants
subprocess.Popen([sys.executable, "-c", {asleep!r}], start_new_session=True)
sys.stdin.read()
kill_descendants(os.getpid())
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == ["asleep\n"] * 2
        family = psutil.Process(process.pid).children(recursive=True)
        process.communicate("", timeout=60)
    assert len(family) == 2
    eventually("all are gone", lambda: not any(map(alive, family)))


def test_its_words_are_passed_on_and_so_is_its_traceback() -> None:
    seen, passed_on = ending(r"os.write(2, b'one\ntwo\n'); raise ValueError('three')")
    assert seen == "False False None None"
    assert passed_on.startswith("one\ntwo\nTraceback")
    assert passed_on.endswith("ValueError: three\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("holder", ["ctypes.PyDLL", "ctypes.CDLL"])
def test_a_signal_ends_it_even_while_it_holds_the_interpreter_s_lock(number: signal.Signals, holder: str) -> None:
    # PyDLL keeps the GIL through the call, as xllamacpp does while it loads: no Python handler of the child can run.
    with program(f"os.write(2, b'asleep\\n'); {holder}(None).sleep(3600)") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "asleep\n"
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        assert len(family) == 2
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert out.strip() == "True False SIGTERM None"
    assert process.returncode == 0
    eventually("both are gone", lambda: not any(map(alive, family)))


def test_it_may_be_stopped_by_another_signal() -> None:
    # Waited for, and not handled: a handler of Python would not run if the signal came just before a sleep begins.
    child = (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.write(2, b'asleep\\n'); "
        "signal.sigwait([signal.SIGUSR2]); os._exit(7)"
    )
    with program(child, "ending.asked_for, ending.code", "SIGUSR2") as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert out.strip() == "True 7"


def test_a_supervisor_that_is_killed_takes_the_child_with_it() -> None:
    with program("os.write(2, b'asleep\\n'); time.sleep(3600)") as process:
        assert process.stderr is not None
        process.stderr.readline()
        (child,) = psutil.Process(process.pid).children()
        process.kill()
        eventually("the child is gone", lambda: not alive(child))
