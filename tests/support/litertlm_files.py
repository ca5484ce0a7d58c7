"""Where the `.litertlm` models of the tests are."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from tests.support.require import require

SCRIPT = Path(__file__).parents[2] / ".ci" / "litertlm"


@functools.cache
def _folder() -> Path:
    return Path(subprocess.run([SCRIPT, "--path"], check=True, capture_output=True, text=True).stdout.strip())


def litertlm(name: str) -> Path:
    """`clockwork` or `caller`, as `litertlm_model.py` says. Skips the test where they were not written."""
    require("litertlm", _folder().is_dir(), "the .litertlm models were not written (.ci/litertlm)")
    return _folder() / f"{name}.litertlm"
