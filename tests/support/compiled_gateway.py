"""The packages with the gateway's hot path compiled (ADR 31), as the gateway's image has them: for `PYTHONPATH`.

`python -m tests.support.compiled_gateway` builds them where they are not built, and prints their folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tests.support.ci_cache import REPOSITORY
from tests.support.docker_images import cache_dir
from tests.support.packages import PACKAGES

_SOURCES: Final = (*PACKAGES, "images/gateway/mypy.ini", "pyproject.toml", "README.md", "LICENSE")
_KEY_LENGTH: Final = 16
_KEPT: Final = 3
"""Builds of other states of the tree that are kept besides."""


def build_gateway() -> Path:
    """Return the folder of the packages, as the tree is now. It takes a minute or two where that state is not built.

    Raises:
        subprocess.CalledProcessError: it could not be compiled, as without a C compiler.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *_SOURCES],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name and (REPOSITORY / name).is_file()]
    digest = hashlib.sha256(sys.version.encode())
    for name in names:
        digest.update(name.encode() + b"\0" + (REPOSITORY / name).read_bytes())
    builds = cache_dir() / "compiled"
    folder = builds / digest.hexdigest()[:_KEY_LENGTH]
    if not folder.exists():
        builds.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=builds) as work:
            _build_into(Path(work), names).rename(folder)
        # Finished builds alone: another process may be at work in a folder of its own.
        finished = (each for each in builds.glob("?" * _KEY_LENGTH) if each != folder)
        older = sorted(finished, key=lambda each: each.stat().st_mtime)
        for each in older[:-_KEPT]:
            shutil.rmtree(each, ignore_errors=True)
    return folder


def _build_into(work: Path, names: list[str]) -> Path:
    for name in names:
        (work / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, work / "source" / name)
    environment = {**os.environ, "HATCH_BUILD_HOOK_ENABLE_MYPYC": "true"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(work)]
    subprocess.run(command, cwd=work / "source", env=environment, check=True, stdout=subprocess.DEVNULL)
    [wheel] = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(work / "packages")
    return work / "packages"


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment variables with which Python takes the packages from `folder`, wherever it runs."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]), "PYTHONSAFEPATH": "1"}


if __name__ == "__main__":
    print(build_gateway())
