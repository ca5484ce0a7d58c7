"""Unpacks a bundle of tests/gpu/run --bundle on a host without a network: needs nothing but Python.

    python3 unpack.py TARGET [FOLDER...]

The parts may lie beside this file, or in other folders. TARGET is then ready: TARGET/run is tests/gpu/run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

SUMS = "SHA256SUMS"
WRONG = 2


class UnpackError(Exception):
    """What is missing or damaged. The message says what to do."""


def find_parts(folders: Sequence[Path]) -> list[Path]:
    """The parts in their order. Raises UnpackError where one is missing or not what was written."""
    lists = [folder / SUMS for folder in folders if (folder / SUMS).exists()]
    if not lists:
        raise UnpackError(f"there is no {SUMS} in {', '.join(map(str, folders))}")
    parts, missing = [], []
    for line in lists[0].read_text().splitlines():
        digest, name = line.split()
        found = [folder / name for folder in folders if (folder / name).exists()]
        if not found:
            missing.append(name)
        elif not (whole := next((path for path in found if read_sum(path) == digest), None)):
            raise UnpackError(f"{found[0]} is damaged: copy it again")
        else:
            parts.append(whole)
    if missing:
        raise UnpackError(f"missing: {', '.join(missing)}: name the folders that they are in")
    return parts


def read_sum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


class Joined:
    """The parts as one stream to read."""

    def __init__(self, parts: Iterable[Path]) -> None:
        self._parts = iter(parts)
        self._file: IO[bytes] | None = None

    def read(self, size: int) -> bytes:
        """So many bytes; fewer at the end alone."""
        data = b""
        while len(data) < size:
            if self._file is None:
                path = next(self._parts, None)
                if path is None:
                    break
                self._file = path.open("rb")
            piece = self._file.read(size - len(data))
            if not piece:
                self._file.close()
                self._file = None
            data += piece
        return data


def unpack_parts(parts: Sequence[Path], target: Path) -> dict[str, Any]:
    """All files of the bundle, in `target`. Returns what it says of itself."""
    with tarfile.open(fileobj=cast("IO[bytes]", Joined(parts)), mode="r|gz") as archive:
        for member in archive:
            if member.name.startswith("/") or ".." in Path(member.name).parts or not member.isfile():
                raise UnpackError(f"{member.name} is no file of a bundle")
            path = target / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                source = cast("IO[bytes]", archive.extractfile(member))
                while piece := source.read(2**20):
                    file.write(piece)
            path.chmod(member.mode & 0o755 | 0o600)
    about: dict[str, Any] = json.loads((target / "bundle.json").read_text())
    return about


def check_python(wanted: str, own: str) -> None:
    """Raise UnpackError where the wheels are for another Python."""
    if wanted != own:
        raise UnpackError(f"the wheels are for Python {wanted}, this is {own}: use the other, or --python {own}")


def make_environment(target: Path, name: str, folder: Path, *, shares_host: bool) -> None:
    """A virtual environment of the wheels in `folder`, by the pip that the bundle brings."""
    [pip] = (target / "wheels" / "roundhouse").glob("pip-*.whl")
    more = ["--system-site-packages"] if shares_host else []
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *more, str(target / name)], check=True)
    wheels = sorted(str(wheel) for wheel in folder.glob("*.whl"))
    install = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", *wheels]
    subprocess.run([str(target / name / "bin" / "python"), f"{pip}/pip", *install], check=True)


def name_roundhouse(environment: Path, version: str) -> None:
    """Let Roundhouse, which runs from its work tree, find its version as if it were installed."""
    [packages] = environment.glob("lib/python*/site-packages")
    folder = packages / f"roundhouse-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: roundhouse\nVersion: {version}\n")


def write_run(target: Path, has_vllm: bool) -> None:
    """TARGET/run: tests/gpu/run with what was unpacked."""
    words = [
        str(target / "roundhouse/tests/gpu/run"),
        "--as-is",
        "--llama-server",
        str(target / "llama-server/llama-server"),
    ]
    words += ["--vllm", str(target / "vllm/bin/vllm")] if has_vllm else []
    python, cache = shlex.quote(str(target / "python/bin/python")), shlex.quote(str(target / "cache"))
    lines = [
        "#!/usr/bin/env bash",
        f"export ROUNDHOUSE_PYTHON={python} ROUNDHOUSE_CACHE=${{ROUNDHOUSE_CACHE:-{cache}}}",
        f'exec {shlex.join(words)} "$@"',
    ]
    script = target / "run"
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)


def main(arguments: Sequence[str]) -> int:
    """Unpack, make the environments, say what to run."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return WRONG
    target = Path(arguments[0]).absolute()
    folders = [Path(__file__).absolute().parent, *map(Path, arguments[1:])]
    os.environ.pop("PIP_FIND_LINKS", None)
    try:
        about = unpack_parts(find_parts(folders), target)
        check_python(about["python"], "{}.{}".format(*sys.version_info))
        make_environment(target, "python", target / "wheels/roundhouse", shares_host=False)
        name_roundhouse(target / "python", about["version"])
        if has_vllm := (target / "wheels/vllm").is_dir():
            make_environment(target, "vllm", target / "wheels/vllm", shares_host=bool(about["without"]))
    except UnpackError as error:
        print(f"unpack: {error}", file=sys.stderr)
        return WRONG
    write_run(target, has_vllm)
    print(f"unpacked {about['commit']}; now: {target / 'run'}" + (" --cpu" if about["cpu"] else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
