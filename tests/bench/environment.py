"""Programs that a benchmark needs and the project does not: each in a virtual environment of its own, kept."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

_INSTALL_LIMIT_S = 900


class UnavailableError(Exception):
    """It cannot be installed; the message says why."""


def program(cache: Path, name: str, version: str, requirement: str) -> Path:
    """The program `name` of `requirement`, at that version, from the package index unless it is there already.

    Raises:
        UnavailableError: it is not there, and cannot be had.
    """
    home = cache / f"{name}-{version}"
    found, complete = home / "bin" / name, home / ".complete"
    if complete.exists() and found.exists():
        return found
    print(f"installing {requirement}=={version} into {home}", file=sys.stderr)
    try:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run(
            [home / "bin" / "python", "-m", "pip", "install", "--quiet", f"{requirement}=={version}"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_LIMIT_S,
        )
    except subprocess.CalledProcessError as error:
        told = [line for line in str(error.stderr).splitlines() if line.startswith("ERROR")]
        raise UnavailableError(told[-1][-300:] if told else f"pip ended with {error.returncode}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(str(error)) from None
    complete.touch()
    return found
