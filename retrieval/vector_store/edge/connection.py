"""A store's side of one shard's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from retrieval.vector_store.base import CollectionSpec, VectorStoreError
from retrieval.vector_store.edge.frames import encode_frame, receive_frame
from retrieval.vector_store.tokenizer import dump_options

logger = logging.getLogger(__name__)

_CLOSE_S: Final = 30.0
"""How long a process may take to write what is pending."""
_MACHINE_ERRNOS: Final = frozenset({12, 13, 23, 24, 28, 30, 122})
"""Errors of the machine rather than of the files: memory, permissions, open files, space, a read-only disk, quota."""
_CRASHES: Final = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals by which files end the process that opens them. What else is wrong with them, its first message says."""
_OS_ERROR: Final = re.compile(r"os error (\d+)")


class ShardDamagedError(Exception):
    """A shard's files cannot be opened, and a later try would fail in the same way. The text says how it failed."""


class ShardEndedError(Exception):
    """A shard's process ended. Writes that it had answered are in the shard; one that it had not answered may be. The
    text has the exit code or the signal."""


class ShardConnection:
    """Sends requests to the process that has a shard open, and receives the answers, in the order of the requests.

    Belongs to the event loop that created it, where requests may be sent concurrently. The owner ends the process with
    `close` or `kill`. A process that has ended is not started again: see `EdgeCollection`.
    """

    def __init__(self, process: Process) -> None:
        """Take over a process whose first message was read, and begin to read its answers. Use `open_shard`."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._writer, self._reader = process.stdin, process.stdout
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._ended: str | None = None
        self._receiving = asyncio.create_task(self._receive())

    @property
    def is_open(self) -> bool:
        """True until the process is known to have ended; also while `close` waits for its end."""
        return self._ended is None

    @property
    def pid(self) -> int:
        """The process's id; also after it has ended."""
        return self._process.pid

    async def request(self, message: Mapping[str, Any], data: bytes = b"") -> Any:
        """Send a request, and return its result. `shard_process.answer_request` describes `message`, `data` and the
        result, whose tuples arrive as lists.

        A caller that is cancelled stops waiting, but the request is carried out.

        Raises:
            ShardEndedError: the process ended before it answered. The request may have been carried out.
            VectorStoreError: the shard refused the request.
            UnicodeEncodeError, TypeError: JSON cannot hold `message`; nothing was sent.
        """
        return await self.request_encoded(encode_frame(message, data))

    async def request_encoded(self, frame: bytes) -> Any:
        """Send a request that `encode_frame` has encoded, and return its result, as `request` does. A caller that is
        cancelled stops waiting, but the request is carried out. Raises ShardEndedError if the process ended before it
        answered (the request may have been carried out), and VectorStoreError if the shard refused it."""
        if self._ended is not None:
            raise ShardEndedError(self._ended)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        self._writer.write(frame)
        try:
            with contextlib.suppress(ConnectionError):  # then the process ended, as _receive finds out
                await self._writer.drain()
            return await answered
        finally:
            answered.cancel()

    async def close(self) -> None:
        """Let the process answer the requests that it has, flush the shard and end, and wait for its end. A flush that
        fails is not reported.

        A process that needs more than 30 s is killed. Does nothing where the process has ended.
        """
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Kill the process, and return when it has ended. Requests without an answer raise ShardEndedError. Does
        nothing where the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._receiving

    async def _receive(self) -> None:
        try:
            while True:
                answer = await receive_frame(self._reader)
                answered = self._waiting[0]
                if answered.done():  # its caller gave up
                    pass
                elif "error" in answer:
                    answered.set_exception(VectorStoreError(f"the vector store failed: {answer['error']}"))
                else:
                    answered.set_result(answer["result"])
                self._waiting.popleft()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception:
            logger.exception("an answer of the vector store's process cannot be read; the process is ended")
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        code = await self._process.wait()
        self._ended = f"the vector store's process ended ({describe_exit(code)})"
        self._writer.close()
        for answered in self._waiting:
            if not answered.done():
                answered.set_exception(ShardEndedError(self._ended))
        self._waiting.clear()


async def open_shard(folder: Path, lock: int, spec: CollectionSpec, *, create: bool = False) -> ShardConnection:
    """Start a process that opens the shard in `folder`, of a collection with that spec.

    Returns when the shard is open. The caller closes the connection. `lock`: the descriptor of the store's lock, which
    the process inherits and holds until it ends. `create`: whether the shard is to be made, in the empty folder.

    Raises:
        OSError: the process cannot be started.
        ShardDamagedError: the files cannot be opened.
        VectorStoreError: the machine does not allow it (memory, space, permissions), or the process ended before it
            opened them (killed, or a package is broken).
    """
    arguments = [json.dumps(dump_options(spec.bm25))]
    if create:
        arguments.append("none" if spec.dimension is None else str(spec.dimension))
    process = await _start("shard_process", folder, lock, arguments)
    assert process.stdout is not None
    try:
        first = await receive_frame(process.stdout)
    except asyncio.IncompleteReadError:
        code = await process.wait()
        if -code in _CRASHES:
            raise ShardDamagedError(describe_exit(code)) from None
        raise VectorStoreError(f"the vector store's process did not start ({describe_exit(code)})") from None
    except BaseException:
        await _end(process)
        raise
    if "error" not in first:
        return ShardConnection(process)
    await _end(process)
    if is_machine_error(first["error"]):
        raise VectorStoreError(f"the vector store cannot open its files: {first['error']}")
    raise ShardDamagedError(first["error"])


async def optimize_shard(folder: Path, lock: int, stop: asyncio.Event) -> None:
    """Build the indexes of a shard that nobody has open, in a process of the lowest priority, and wait for its end.

    `lock`: as for `open_shard`. Setting `stop`, or cancelling the caller, kills the process. Raises VectorStoreError
    where the process fails or `stop` is set, and OSError where it cannot be started; the caller then removes the
    shard, which may be written in part.
    """
    process = await _start("optimizer", folder, lock, [])
    finished = asyncio.create_task(process.communicate())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((finished, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        _, text = await finished
    if stop.is_set():
        raise VectorStoreError("building the indexes was given up, because the store is being closed")
    if process.returncode != 0:
        ending = describe_exit(process.returncode or 0)
        said = text.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        raise VectorStoreError(f"building the indexes failed ({ending}): {said:.500}")


def is_machine_error(text: str) -> bool:
    """Return whether an error text of Qdrant Edge names an error of the machine (`os error N`: memory, permissions,
    open files, space, a read-only disk, quota), after which the files may still be whole."""
    return any(int(number) in _MACHINE_ERRNOS for number in _OS_ERROR.findall(text))


def describe_exit(code: int) -> str:
    """Return `signal N` or `exit code N` for a return code as `subprocess` gives it (negative: a signal)."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


async def _start(module: str, folder: Path, lock: int, arguments: Sequence[str]) -> Process:
    capture = module == "optimizer"
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"retrieval.vector_store.edge.{module}",
        str(folder),
        str(os.getpid()),
        *arguments,
        stdin=DEVNULL if capture else PIPE,
        stdout=PIPE if not capture else DEVNULL,
        stderr=PIPE if capture else None,
        pass_fds=(lock,),
        # Ctrl-C in a terminal is for the program, which ends its children when it has finished. No session of its own:
        # Linux may share out processors by session first, and then the low priority of an optimizer counts for nothing.
        process_group=0,
    )


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
