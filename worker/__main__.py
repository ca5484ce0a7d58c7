"""`python -m worker ENGINE ...`: hosts one replica in one process.

Exit codes: 0 stopped by a signal, 1 the engine could not load or failed, 2 bad arguments, 3 the port is taken. For a
code other than 0, the last line on stderr says why.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from worker import engines
from worker.errors import LoadError, PortTakenError
from worker.preflight import port_number

LAUNCHERS = ("llama_server", "mcp", "vllm")
"""Engines with a server of their own. They take that server's flags, after `--`."""


def main() -> NoReturn:
    """Run the worker that the command line describes until it ends, and end the process with its exit code: 0 after
    SIGTERM or Ctrl-C, 1 the engine could not load or failed, 2 bad arguments, 3 the port is taken. Does not return, and
    runs no `atexit` functions."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    try:
        code = dispatch(sys.argv[1:])
    except SystemExit as exiting:
        code = exiting.code if isinstance(exiting.code, int) else 1
    except KeyboardInterrupt:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    # An engine thread inside a C call can be neither interrupted nor joined, and nothing is left to save.
    os._exit(code)


def dispatch(argv: Sequence[str]) -> int:
    """Run the engine or launcher that `argv[0]` names, with the flags after it, until it ends. Blocks. Return the
    worker's exit code: 0 stopped by a signal, 1 the engine could not load or failed, 3 the port is taken, and of a
    launcher 2 for bad arguments. For a code other than 0, the last line on stderr says why.

    Raises SystemExit for bad arguments and `--help`, as argparse does.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(engines.__path__))
    parser = argparse.ArgumentParser(prog="python -m worker", description="Host one engine in this process.")
    parser.add_argument("engine", choices=[*names, *LAUNCHERS], help="then its own flags; see ENGINE --help")
    engine_name = parser.parse_args(argv[:1]).engine
    try:
        return _launch(engine_name, argv[1:]) if engine_name in LAUNCHERS else _serve(engine_name, argv[1:])
    except ModuleNotFoundError as error:
        return _fail(1, f"{error} (install the extra that brings it; docs/worker.md names them)")


def _launch(name: str, argv: Sequence[str]) -> int:
    code: int = importlib.import_module(f"worker.launchers.{name}").run(argv[1:] if argv[:1] == ["--"] else argv)
    return code


def _serve(name: str, argv: Sequence[str]) -> int:
    from worker.serving import run_server

    module, args = parse_engine(name, argv)
    try:
        run_server(module.create(args), args)
    except PortTakenError as error:
        return _fail(3, str(error))
    except LoadError as error:
        return _fail(1, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it was, the last line must say so plainly
        traceback.print_exc()
        return _fail(1, f"the worker failed: {error!r}")
    return 0


def parse_engine(name: str, argv: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Import the module of an engine in `worker.engines`, and return it with its parsed command line: `host`, `port`,
    `served_name`, and what its `add_arguments` declares.

    Raises SystemExit for bad arguments and `--help`, as argparse does; ModuleNotFoundError if there is no such engine.
    """
    module = importlib.import_module(f"worker.engines.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m worker {name}", description=module.__doc__, allow_abbrev=False)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=_port)
    parser.add_argument("--served-name", required=True, metavar="NAME", help="the model's name in answers")
    module.add_arguments(parser)
    return module, parser.parse_args(argv)


def _port(text: str) -> int:
    try:
        return port_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _fail(code: int, line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return code


if __name__ == "__main__":
    main()
