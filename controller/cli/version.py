"""`roundhouse version`."""

from __future__ import annotations

from controller import __version__
from controller.cli.exit_codes import Exit
from controller.cli.options import Json
from controller.cli.output import say, say_json


def version(as_json: Json = False) -> int:
    """Print the version."""
    if as_json:
        say_json({"version": __version__})
    else:
        say(f"roundhouse {__version__}")
    return Exit.DONE
