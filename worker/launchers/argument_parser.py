"""Parsing of a launcher's command line whose errors are exceptions: the launcher says them in its own form."""

from __future__ import annotations

import argparse
from typing import NoReturn


class RaisingParser(argparse.ArgumentParser):
    """A parser without `--help` and abbreviations that raises ValueError for a wrong command line; argparse's own
    prints its usage and ends the process, also with `exit_on_error=False`, where an argument is missing."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with `message`, argparse's description of what is wrong with the command line."""
        raise ValueError(message)
