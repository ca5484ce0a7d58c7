"""Launches vLLM's own server: `python -m worker vllm -- MODEL VLLM-SERVE-FLAGS...`.

Endpoint, probes, metrics and the check of the API key (VLLM_API_KEY) are vLLM's. The server runs in a forked child. Its
own processes (the engine's core, one worker for each GPU) never outlive it, and the launcher says in one plain line why
it ended.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from worker.errors import LoadError
from worker.launchers.child_process import (
    Ending,
    RaisingParser,
    die_with_parent,
    kill_descendants,
    run_launcher,
    supervise,
)
from worker.preflight import open_listener, port_number

AT_ONCE = signal.SIGUSR2
"""Signal that ends vLLM at once: while it loads, when SIGTERM may leave it hanging, and when its launcher is dead."""
_STARTED = "Application startup complete"
_ERROR_LINE = re.compile(
    r"(?:\([\w-]+ pid=\d+\) )?(?:ERROR [\d: -]+ \[[\w.]+:\d+\] )?\s*"
    r"(?P<text>(?:[A-Za-z_][\w.]*(?:Error|Exception): |Value error, |Input should be |Failed: Cuda error "
    r"|vllm[\w ]*: error: ).+)"
)
_NO_CAUSE = re.compile(
    r"initialization failed|validation errors? for |returned non-zero exit status|Error raised in subprocess:"
)


def run(arguments: Sequence[str]) -> int:
    """Host vLLM's server with these arguments of `vllm serve` until a signal or its end, and return the worker's exit
    code: 0 after a signal, 2 for wrong arguments, 3 for a taken port, else 1. For a code other than 0, the last line on
    stderr says why. Blocks. Call once, in the main thread."""
    log = Log()

    def host(_: None) -> tuple[int, str | None]:
        ending = supervise(
            lambda ready: _host(arguments), log.find_error, lambda: signal.SIGTERM if log.has_served else AT_ONCE
        )
        return explain_ending(ending, has_served=log.has_served)

    return run_launcher(lambda: check_preflight(arguments), host)


def check_preflight(arguments: Sequence[str]) -> None:
    """Check package, model and port before vLLM starts; the port is not kept. A model is looked for only if it is an
    absolute path. Raises LoadError, PortTakenError, or ValueError if the port is invalid, or `--host` or `--port` has
    no value."""
    if importlib.util.find_spec("vllm") is None:
        raise LoadError("No module named 'vllm': install the extra `vllm`")
    parser = RaisingParser()
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8000")
    options, _ = parser.parse_known_args(arguments)
    if options.model.startswith("/") and not Path(options.model).exists():
        raise LoadError(f"there is no model {options.model}")
    try:
        port = port_number(options.port)
    except ValueError as error:
        raise ValueError(f"--port: {error}") from None
    open_listener(options.host, port).close()


def explain_ending(ending: Ending, *, has_served: bool) -> tuple[int, str | None]:
    """Return the worker's exit code, and one plain line that says why the server ended. If a signal to the worker asked
    for the end, they are 0 and None. `has_served`: whether vLLM had begun to serve."""
    if ending.asked_for:
        return 0, None
    cause = f": {ending.first_error}" if ending.first_error else ""
    doing = "serving" if has_served else "loading"
    return 2 if ending.code == 2 else 1, ending.explain("vLLM", doing, cause)


class Log:
    """Reads vLLM's log line by line: whether vLLM has begun to serve (`has_served`), and which error each line of the
    load names."""

    def __init__(self) -> None:
        self.has_served = False

    def find_error(self, line: str) -> str | None:
        """Return the exception that a line of the log names; None if it names none, or one that only says that another
        exception came before. Call once for each line, in order. Sets `has_served` at the line that says that vLLM
        serves; from then on, returns None, because errors are about requests."""
        self.has_served = self.has_served or _STARTED in line
        match = _ERROR_LINE.match(line)
        return None if match is None or self.has_served or _NO_CAUSE.search(line) else match["text"]


def _host(arguments: Sequence[str]) -> None:
    signal.signal(AT_ONCE, _end_at_once)
    die_with_parent(AT_ONCE)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    sys.argv = ["vllm", "serve", *arguments]
    importlib.import_module("vllm.entrypoints.cli.main").main()


def _end_at_once(signum: int, frame: object) -> None:
    kill_descendants(os.getpid())
    os._exit(1)
