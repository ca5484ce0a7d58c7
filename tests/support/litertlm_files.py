"""Where the `.litertlm` models of the tests are."""

from __future__ import annotations

from pathlib import Path

from tests.support.ci_cache import cached_build
from tests.support.require import require


def litertlm(name: str) -> Path:
    """`clockwork` or `caller`, as `litertlm_model.py` says. Skips the test where they were not written."""
    folder = cached_build("litertlm")
    require("litertlm", folder.is_dir(), "the .litertlm models were not written (.ci/litertlm)")
    return folder / f"{name}.litertlm"
