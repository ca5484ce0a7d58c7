"""What a process gives back of its memory, and errors that hold no frame."""

from __future__ import annotations

import subprocess
import sys

import pytest

from common.processes import without_tracebacks

HOLDS = """
import sys
from common.processes import return_freed_memory

def read_anonymous_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) / 1024

if sys.argv[1] == "yes":
    return_freed_memory()
large = bytearray(31 << 20)
del large  # glibc takes the next ones of this size from its heap
before = read_anonymous_mib()
large = bytearray(20 << 20)
above = bytearray(100_000)  # so that the heap's end is not free
del large
print(read_anonymous_mib() - before)
"""


def held_mib(calls_it: str) -> float:
    """What a program holds of 20 MiB that it has freed."""
    done = subprocess.run([sys.executable, "-c", HOLDS, calls_it], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_a_large_block_is_given_back_when_it_is_freed() -> None:
    assert held_mib("no") > 19, "what this is for"
    assert held_mib("yes") < 1


def _fail_third() -> None:
    try:
        try:
            dict[str, int]()["first"]
        except KeyError as error:
            raise OSError("second") from error
    except OSError:
        raise ValueError("third") from None


def test_an_error_and_those_that_caused_it_lead_to_no_frame() -> None:
    with pytest.raises(ValueError, match="third") as raised:
        _fail_third()
    error = raised.value
    assert without_tracebacks(error) is error
    second = error.__context__
    assert isinstance(second, OSError)
    first = second.__cause__
    assert isinstance(first, KeyError)
    assert [each.__traceback__ for each in (error, second, first)] == [None, None, None]


def test_errors_that_caused_each_other_are_looked_at_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert without_tracebacks(first) is first
