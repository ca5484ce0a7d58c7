"""`python -P -m retrieval.parsing.worker LIMITS`: parse files, one after the other, in a process that may fail.

Requests come by standard input, answers go by standard output (`messages`). `LIMITS` is a JSON object with the fields
of `ParsingLimits`. The process limits its memory, processor time, open files and priority, and cannot write files. It
ends when its input does.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

from common.processes import return_freed_memory
from retrieval.parsing.base import ParsingError, ParsingLimits
from retrieval.parsing.chunking import cut_text
from retrieval.parsing.extract import extract_file
from retrieval.parsing.messages import (
    FRAME_HEAD,
    ParseRequest,
    decode_request,
    encode_answer,
    encode_error,
    read_frame_head,
)

_NICENESS: Final = 10
_MOST_OPEN_FILES: Final = 64
_GRACE_S: Final = 10
"""Seconds after its time that the process ends itself, if nobody did."""


def main() -> None:
    """Parse the files that standard input asks for, one after the other, until it ends.

    Sets the limits of the first argument on this process for good. A file that takes too long ends the process by a
    signal (SIGXCPU, SIGALRM), without an answer. Raises FrameError, KeyError, TypeError or ValueError for input that is
    no request.
    """
    return_freed_memory()
    limits = ParsingLimits(**json.loads(sys.argv[1]))
    logging.disable()
    requests, answers = _take_pipes()
    _limit_process(limits)
    while head := requests.read(FRAME_HEAD.size):
        length, _ = read_frame_head(head, 0)
        request = decode_request(requests.read(length))
        _limit_time(limits)
        answer = answer_request(request, limits)
        signal.alarm(0)
        answers.write(answer)
        answers.flush()


def answer_request(request: ParseRequest, limits: ParsingLimits) -> bytes:
    """Parse a file, and return the frame of the answer: its text and chunks, or the code and text of a ParsingError.

    Blocks. Raises no Exception: MemoryError becomes the code `document_too_large`, RecursionError `document_malformed`,
    and any other exception of a library `parsing_failed`.
    """
    try:
        extracted = extract_file(request.path, request.filename, request.media_type, limits)
        chunks = cut_text(
            extracted.text, request.chunking, extracted.structure, extracted.page_starts, extracted.headings
        )
        return encode_answer(extracted.text, extracted.media_type, chunks, _measure_rss())
    except ParsingError as error:
        problem = error
    except MemoryError:
        problem = ParsingError("document_too_large", "parsing the file takes more memory than is allowed")
    except RecursionError:
        problem = ParsingError("document_malformed", "the file is nested too deeply")
    except Exception as error:  # noqa: BLE001 - whatever a file makes of the libraries
        problem = ParsingError("parsing_failed", f"the file cannot be read ({type(error).__name__}: {error!s:.200})")
    return encode_error(problem, _measure_rss())


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return input and output, and put others in their place: what a library prints goes to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, answers


def _limit_process(limits: ParsingLimits) -> None:
    """Limit what the process may take until it ends. A lower limit that is in force already stays."""
    os.nice(_NICENESS)
    for name, limit in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MOST_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(name)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(name, (bound, bound))


def _limit_time(limits: ParsingLimits) -> None:
    """Limit the processor time of the next file, and its time in case that the pool is gone. A signal ends the
    process then."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    bound = math.ceil(time.process_time() + limits.timeout_s)
    resource.setrlimit(resource.RLIMIT_CPU, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))
    signal.alarm(math.ceil(limits.timeout_s) + _GRACE_S)


def _measure_rss() -> int:
    """Return the memory that the process holds, in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
