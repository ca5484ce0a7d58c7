"""`roundhouse version`."""

from __future__ import annotations

from controller import __version__
from controller.cli.exit_codes import ExitCode
from controller.cli.options import Json
from controller.cli.output import print_json, print_line


def version(as_json: Json = False) -> int:
    """Print the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        print_line(f"roundhouse {__version__}")
    return ExitCode.DONE
