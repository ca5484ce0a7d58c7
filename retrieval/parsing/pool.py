"""Parses files in processes of their own, which start with the first file and end when they are idle.

A file that hangs the parser, crashes it or exhausts its memory ends that process only; the next file gets another.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from retrieval.parsing.base import (
    FRAME_HEAD,
    MIB,
    ChunkingOptions,
    FrameError,
    ParseAnswer,
    ParsedDocument,
    ParseRequest,
    ParsingError,
    ParsingLimits,
    decode_answer,
    encode_request,
    read_frame_head,
)
from retrieval.settings import RetrievalSettings

PROGRAM: Final = (sys.executable, "-P", "-m", "retrieval.parsing.worker")
_PASSED_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
"""Environment variables that a process gets: those that Python needs to start. It gets no tokens or addresses."""
_STREAM_LIMIT: Final = MIB
_LOGGED_BYTES: Final = 2000

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Recycling:
    """When a parsing process is ended although it works; the next file gets a new one."""

    files: int = 200
    """Files that one process parses."""
    rss_bytes: int = 256 * MIB
    """Bytes of resident memory that a process may hold after a file."""
    idle_s: float = 60.0
    """Seconds that a process waits for its next file."""


class ParserPool:
    """Implements `Parser` with up to `processes` child processes (`retrieval.parsing.worker`), one file each at a time.

    A process starts when a file finds none idle, and ends as `Recycling` says, after a timeout, and after a failure.
    One pool serves the whole program, on its event loop. The owner calls `close`.
    """

    def __init__(
        self,
        limits: ParsingLimits | None = None,
        *,
        processes: int = 1,
        recycling: Recycling | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Start nothing yet. None for `limits` and `recycling` means their defaults.

        `program`: command line of a program like `retrieval.parsing.worker`; the limits are added as a JSON argument.
        """
        self._limits = limits or ParsingLimits()
        self._recycling = recycling or Recycling()
        self._command = (*program, json.dumps(dataclasses.asdict(self._limits)))
        self._places = asyncio.Semaphore(processes)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def parse_file(
        self, path: Path, *, filename: str | None, media_type: str | None, chunking: ChunkingOptions
    ) -> ParsedDocument:
        """Return the text and the chunks of a file, parsed in a child process. `filename`, `media_type`: as the client
        named them; None: not at all. Waits without limit while all processes are busy. Cancelling the call kills the
        process. Raises ParsingError if the file cannot be parsed or the pool is closed (see `Parser.parse_file`), and
        OSError if the file does not exist or no process can be started."""
        self._check_size(path)
        request = ParseRequest(path.absolute(), filename, media_type, chunking)
        async with self._places:
            answer = await self._ask_process(request)
        if isinstance(answer.result, ParsingError):
            raise answer.result
        return answer.result

    async def close(self) -> None:
        """Kill the processes, and wait until they are gone. Calls under way and later ones raise ParsingError
        `parsing_failed`. A second `close` does nothing."""
        self._is_closed = True
        for worker in (*self._idle, *self._busy):
            self._end(worker)
        self._idle.clear()
        while self._ending:
            await asyncio.wait(self._ending)

    def _check_size(self, path: Path) -> None:
        """Refuse a file by its size, before anything of it is read."""
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ParsingError("unsupported_media_type", "this is no file")
        if status.st_size == 0:
            raise ParsingError("document_empty", "the file is empty")
        if status.st_size > self._limits.max_file_bytes:
            limit = self._limits.max_file_bytes
            raise ParsingError("document_too_large", f"the file has {status.st_size} bytes, more than {limit}")

    async def _ask_process(self, request: ParseRequest) -> ParseAnswer:
        """Return the answer of an idle process or a new one, which is ended unless it can serve again.

        Raises:
            ParsingError: `parsing_timeout` or `parsing_failed`; a file's own error is in the answer.
        """
        if self._is_closed:
            raise ParsingError("parsing_failed", "the parser is closed")
        worker = self._take_idle() or await self._start()
        self._busy.add(worker)
        is_reusable = False
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                answer = await worker.ask(request, self._limits.max_text_bytes)
            is_reusable = worker.files < self._recycling.files and answer.rss_bytes <= self._recycling.rss_bytes
        except TimeoutError:
            raise ParsingError("parsing_timeout", f"parsing took more than {self._limits.timeout_s:g} s") from None
        except (FrameError, EOFError, OSError) as error:
            raise await self._explain_failure(worker, error) from error
        finally:
            self._busy.discard(worker)
            if is_reusable and not self._is_closed:
                self._keep_idle(worker)
            else:
                self._end(worker)
        return answer

    async def _explain_failure(self, worker: _Worker, error: Exception) -> ParsingError:
        if self._is_closed:
            return ParsingError("parsing_failed", "the parser was closed")
        if isinstance(error, FrameError):
            worker.kill()
        code = await worker.stop()
        _log.warning("a parsing process failed (%s, exit status %s): %s", error, code, worker.get_last_words())
        if code == -signal.SIGXCPU:
            seconds = self._limits.timeout_s
            return ParsingError("parsing_timeout", f"parsing took more than {seconds:g} s of processor time")
        if isinstance(error, FrameError):
            return ParsingError("parsing_failed", "the process that parsed the file did not answer as it should")
        return ParsingError("parsing_failed", f"the process that parsed the file died (exit status {code})")

    async def _start(self) -> _Worker:
        worker = await _Worker.start(self._command)
        if self._is_closed:
            self._end(worker)
            raise ParsingError("parsing_failed", "the parser is closed")
        return worker

    def _take_idle(self) -> _Worker | None:
        """Return the process that worked last, None if none is idle and alive."""
        while self._idle:
            worker = self._idle.pop()
            worker.cancel_timer()
            if worker.is_alive:
                return worker
            self._end(worker)
        return None

    def _keep_idle(self, worker: _Worker) -> None:
        self._idle.append(worker)
        loop = asyncio.get_running_loop()
        worker.timer = loop.call_later(self._recycling.idle_s, self._end_idle, worker)

    def _end_idle(self, worker: _Worker) -> None:
        self._idle.remove(worker)
        self._end(worker)

    def _end(self, worker: _Worker) -> None:
        """Kill a process now; `close` waits until it is gone."""
        worker.cancel_timer()
        worker.kill()
        task = asyncio.get_running_loop().create_task(worker.wait_until_gone())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _Worker:
    """A process that parses one file at a time. Its owner calls `kill`, then `wait_until_gone`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last_words = b""
        self._reading_errors = asyncio.get_running_loop().create_task(self._read_errors())
        self.files = 0
        """Files that were given to the process so far."""
        self.timer: asyncio.TimerHandle | None = None
        """Timer that ends the process when it is idle for too long; None while it works."""

    @classmethod
    async def start(cls, command: Sequence[str]) -> _Worker:
        """Start a process in a group of its own, with the variables `_PASSED_VARIABLES` alone. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
            # No session of its own: Linux may share out processors by session first, and then the process's low
            # priority would count for nothing beside searches.
            process_group=0,
            limit=_STREAM_LIMIT,
        )
        return cls(process)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs: asked of the kernel, as the event loop learns of an end later."""
        if self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    async def ask(self, request: ParseRequest, most_text_bytes: int) -> ParseAnswer:
        """Send a request, and return the process's answer, which may be the file's own ParsingError (not raised).

        One call at a time. After an error or a cancellation the process must be ended.

        Raises:
            FrameError: the process wrote no answer, or one with more than `most_text_bytes` bytes of text.
            EOFError: the process ended.
            OSError: the pipe is broken.
        """
        writer, reader = self._process.stdin, self._process.stdout
        if writer is None or reader is None:
            raise EOFError
        self.files += 1
        writer.write(encode_request(request))
        await writer.drain()
        json_length, raw_length = read_frame_head(await reader.readexactly(FRAME_HEAD.size), most_text_bytes)
        body = await reader.readexactly(json_length)
        raw = await reader.readexactly(raw_length)
        # The text may be 32 MiB large: other requests go on meanwhile.
        return await asyncio.to_thread(decode_answer, body, raw)

    def cancel_timer(self) -> None:
        """Cancel the timer that ends the process when it is idle, if one is set."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def kill(self) -> None:
        """Send SIGKILL to the process and to what it started, unless it has ended. Does not wait."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> int:
        """Wait 1 s for the process to end by itself, else kill it. Return its exit status, negative for a signal."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._process.wait()
        self.kill()
        return await self._process.wait()

    async def wait_until_gone(self) -> None:
        """Wait until the process has ended and its pipes are closed. Does not end it: call `kill` first."""
        await self._process.wait()
        await self._reading_errors
        if self._process.stdin is not None:
            self._process.stdin.close()

    def get_last_words(self) -> str:
        """Return the last 2000 bytes that the process wrote to standard error, for logs."""
        return self._last_words.decode("utf-8", "replace").strip()

    async def _read_errors(self) -> None:
        """Read what it writes to standard error, so that it never waits for a reader."""
        if self._process.stderr is None:
            return
        while block := await self._process.stderr.read(_STREAM_LIMIT):
            self._last_words = (self._last_words + block)[-_LOGGED_BYTES:]


def open_parser(settings: RetrievalSettings) -> ParserPool:
    """Return a pool of parsing processes with the limits of the settings. The pool starts a process with the first
    file. The caller closes the pool."""
    limits = ParsingLimits(
        max_file_bytes=settings.retrieval_max_file_mib * MIB,
        timeout_s=settings.retrieval_parse_timeout_s,
        memory_bytes=settings.retrieval_parse_memory_mib * MIB,
    )
    return ParserPool(limits, processes=settings.retrieval_parsers)
