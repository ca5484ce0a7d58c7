"""The program `roundhouse`."""

from __future__ import annotations

import sys

OLDEST_PYTHON = (3, 11)


def main() -> None:
    """Run the command line of this process (`sys.argv`) and end the process with its exit code. Never returns: raises
    SystemExit."""
    if sys.version_info < OLDEST_PYTHON:
        python_version = ".".join(str(part) for part in sys.version_info[:3])
        sys.exit(f"roundhouse: needs Python 3.11 or newer; this is Python {python_version} ({sys.executable})")
    # After the check: what is imported here does not even compile on an older Python.
    from common.line_writer import end_program, open_missing_streams

    open_missing_streams()
    from cli.app import run

    end_program(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
