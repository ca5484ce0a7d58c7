"""`python -m assistant.tools.files.process`: one piece of work with files or pages, in a process of its own.

Standard input is a line with one JSON object: `job`, `arguments` of the job, `cpu_s`, `largest_write` (bytes of a file
that may be written) and `has_data`; then, if so, the data that the job reads. Standard output is such a line, too:
`problem`, a sentence for the model that asked, or `text_bytes`, and so many bytes of text in UTF-8. Large texts stand
outside the JSON, for which the gateway's event loop would stand still. The process limits its memory, processor time
and writing. SIGTERM ends it in order, so that nothing half written stays.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from assistant.tools.files.file_jobs import FileProblem, list_files, read_file, search_files, write_file
from assistant.tools.files.html_text import extract_text

MEMORY_BYTES: Final = 512 * 1024 * 1024
"""Address space of the process, Python included."""


def read_page(data: bytes, charset: str) -> str:
    """Return the text of an HTML page, which is in the encoding `charset`."""
    return extract_text(data.decode(charset, errors="replace"))


_JOBS: Final[Mapping[str, Callable[..., str]]] = {
    "read_file": read_file,
    "list_files": list_files,
    "search_files": search_files,
    "write_file": write_file,
    "html_text": read_page,
}


def main() -> None:
    """Do the job that standard input describes, and write its answer to standard output. Call once, as the program:
    this sets a signal handler and limits the process. Raises ValueError or KeyError for other input."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    head, _, data = sys.stdin.buffer.read().partition(b"\n")
    asked: dict[str, Any] = json.loads(head)
    limit_resources(asked["cpu_s"], asked["largest_write"])
    arguments = {**asked["arguments"], "data": data} if asked["has_data"] else asked["arguments"]
    text, answer = b"", dict[str, Any]()
    try:
        text = _JOBS[asked["job"]](**arguments).encode("utf-8", errors="replace")
        answer = {"text_bytes": len(text)}
    except FileProblem as problem:
        answer = {"problem": str(problem)}
    except (MemoryError, RecursionError):
        answer = {"problem": "It takes too much memory."}
    except OSError as error:
        answer = {"problem": f"The system refuses: {error.strerror}."}
    except Exception as error:  # noqa: BLE001 - else the gateway would say that a limit ended this process
        answer = {"problem": f"It failed: {type(error).__name__}."}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + text)


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
