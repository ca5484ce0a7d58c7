"""What a process gives back of the memory that it has freed."""

from __future__ import annotations

import subprocess
import sys

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
