"""`python -m gateway.tools.files.process`: one piece of work with files or pages, in a process of its own.

Standard input is one JSON object: `job`, the arguments of the job, `cpu_s`, and `largest_write` (bytes of a file that
may be written). Standard output is one JSON object: `text`, or `problem`, a sentence for the model that asked. The
process limits its memory, processor time and writing. SIGTERM ends it in order, so that nothing half written stays.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.tools.files.confined_folder import FileProblem
from gateway.tools.files.file_jobs import list_files, read_file, search_files, write_file
from gateway.tools.files.html_text import extract_text

MEMORY_BYTES: Final = 512 * 1024 * 1024
"""Address space of the process, Python included."""
NICENESS: Final = 10
"""The gateway, whose streams go on meanwhile, comes first."""
_JOBS: Final[Mapping[str, Callable[..., str]]] = {
    "read_file": read_file,
    "list_files": list_files,
    "search_files": search_files,
    "write_file": write_file,
    "html_text": extract_text,
}


def main() -> None:
    """Do the job that standard input describes, and write its answer to standard output. Call once, as the program:
    this sets a signal handler and limits the process. Raises ValueError or KeyError for other input."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.nice(NICENESS)
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    limit_resources(asked["cpu_s"], asked["largest_write"])
    try:
        answer = {"text": _JOBS[asked["job"]](**asked["arguments"])}
    except FileProblem as problem:
        answer = {"problem": str(problem)}
    except (MemoryError, RecursionError):
        answer = {"problem": "It takes too much memory."}
    except OSError as error:
        answer = {"problem": f"The system refuses: {error.strerror}."}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def limit_resources(cpu_s: int, largest_write: int) -> None:
    """Limit this process, until it ends, to `cpu_s` seconds of processor time, after which a signal ends it, to files
    of `largest_write` bytes (0: none can be written), and to `MEMORY_BYTES`; no core is dumped. A lower limit that is
    in force already is kept."""
    for name, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, largest_write),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard_limit = resource.getrlimit(name)
        bound = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        resource.setrlimit(name, (bound, bound))


if __name__ == "__main__":
    main()
