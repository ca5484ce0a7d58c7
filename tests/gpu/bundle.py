"""`tests/gpu/run --bundle FOLDER`: all that the first hour needs on a host without a network, in parts.

The bundle holds this work tree, wheels for the host's Python, llama-server as it is built here, and vLLM's wheels. The
models are made there. `unpack.py` in the folder joins the parts on the host, and makes environments. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import importlib.metadata
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.campaigns.record import current_commit
from tests.supply_chain.locks import REPOSITORY, Pin, merge_pins, read_lock

MIB: Final = 2**20
PART_MIB: Final = 512
LOCKS: Final = ("requirements/controller.txt", "requirements/gateway.txt")
MORE: Final = ("pip", "pytest", "openai", "gguf")
"""What the steps need beside the programs, with all that these need."""
VLLM_LOCK: Final = "images/worker/vllm.txt"
SUMS: Final = "SHA256SUMS"
UNPACK: Final = Path(__file__).with_name("unpack.py")
GLIBC: Final = range(17, 40)
"""Of 2.x: wheels for one of these are taken; the oldest is that of manylinux2014."""


def build_parser() -> argparse.ArgumentParser:
    """The options of `tests/gpu/run --bundle`."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, metavar="FOLDER", help="to write: a new or empty one")
    parser.add_argument("--part-size", type=float, default=PART_MIB, metavar="MIB", help=f"default: {PART_MIB}")
    parser.add_argument("--cpu", action="store_true", help="for a host without a GPU: llama-server alone, no vLLM")
    parser.add_argument("--python", default="{}.{}".format(*sys.version_info), help="the host's; default: %(default)s")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="packages of vLLM's that the host has, such as torch"
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="more wheels, such as ExLlamaV3 for the host's GPU"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the bundle."""
    parser = build_parser()
    given = parser.parse_args(argv)
    if given.bundle.is_dir() and any(given.bundle.iterdir()):
        parser.error(f"{given.bundle} is not empty")
    if given.bundle.resolve().is_relative_to(REPOSITORY.resolve()):
        parser.error(f"{given.bundle} lies in the work tree, which the bundle holds: name another folder")
    if given.part_size * MIB < 1:
        parser.error("--part-size is a number of MiB above 0")
    server = shutil.which("llama-server")
    if server is None:
        parser.error("llama-server is not on PATH: .ci/engines builds it")
    given.bundle.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.bundle.absolute().parent) as folder:
        wheels = Path(folder)
        download_wheels(list_own_pins(given.python), given.python, wheels / "roundhouse")
        if not given.cpu:
            pins = choose_pins(
                read_lock((REPOSITORY / VLLM_LOCK).read_text(), environment_of(given.python)), given.without
            )
            download_wheels(pins, given.python, wheels / "vllm")
        for wheel in given.wheels.glob("*.whl") if given.wheels else ():
            shutil.copy(wheel, wheels / "roundhouse")
        trees = {"wheels": wheels, "llama-server": Path(server).resolve().parent, "roundhouse": REPOSITORY}
        about = {"commit": current_commit(), "version": importlib.metadata.version("roundhouse")}
        about |= {"python": given.python, "cpu": given.cpu, "without": given.without}
        count = write_bundle(given.bundle, trees, about, int(given.part_size * MIB))
    print(f"{given.bundle}: {count} parts. There: python{given.python} unpack.py TARGET, then TARGET/run")
    return 0


def environment_of(python: str) -> dict[str, str]:
    """The values of markers on a Linux host of this machine's processor with this version of Python."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": platform.machine(),
        "os_name": "posix",
        "extra": "",
    }


def list_own_pins(python: str) -> list[Pin]:
    """What Roundhouse and the steps need, as locked. What `MORE` needs is what their packages say that are installed
    here."""
    locked = {
        pin.name: pin for pin in read_lock((REPOSITORY / "requirements/dev.txt").read_text(), environment_of(python))
    }
    own = (read_lock((REPOSITORY / lock).read_text(), environment_of(python)) for lock in LOCKS)
    pins = merge_pins(pin for each in own for pin in each)
    wanted = [*MORE]
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in locked and name not in pins:
            pins[name] = locked[name]
            wanted += _needs_of(name, environment_of(python))
    return sorted(pins.values(), key=lambda pin: pin.name)


def _needs_of(name: str, environment: Mapping[str, str]) -> list[str]:
    try:
        needs = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
    except importlib.metadata.PackageNotFoundError:
        return []
    return [each.name for each in needs if each.marker is None or each.marker.evaluate(dict(environment))]


def choose_pins(pins: Iterable[Pin], without: Collection[str]) -> list[Pin]:
    """Those whose names none of the patterns in `without` fits."""
    return [pin for pin in pins if not any(fnmatch.fnmatch(pin.name, each) for each in without)]


def download_wheels(pins: Sequence[Pin], python: str, folder: Path) -> None:
    """Exactly the pinned wheels, by pip. Raises CalledProcessError where one is not to be had for this Python."""
    folder.mkdir(parents=True)
    lines = (
        f"{pin.name}=={pin.version} " + " ".join(f"--hash=sha256:{each}" for each in sorted(pin.hashes)) for pin in pins
    )
    lock = folder.with_suffix(".txt")
    lock.write_text("".join(f"{line}\n" for line in lines))
    machine = platform.machine()
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC]
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--require-hashes",
                "--only-binary=:all:",
            ),
            *(f"--python-version={python}", "--implementation=cp", f"--platform=manylinux2014_{machine}", *platforms),
            *(f"--dest={folder}", "-r", str(lock)),
        ],
        check=True,
    )


class PartWriter(io.RawIOBase):
    """A stream that becomes files of `size` bytes at most: `part-000`, `part-001`, ... `sums`: SHA-256 by name."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__()
        self.sums: dict[str, str] = {}
        self._folder, self._size = folder, size
        self._room = 0
        self._file: io.BufferedWriter | None = None
        self._digest = hashlib.sha256()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Take all of it."""
        rest = memoryview(data)
        while rest:
            if self._room == 0:
                self._end_part()
                self._file, self._room = (self._folder / f"part-{len(self.sums):03d}").open("wb"), self._size
                self._digest = hashlib.sha256()
            assert self._file is not None
            piece = rest[: self._room]
            self._file.write(piece)
            self._digest.update(piece)
            self._room -= len(piece)
            rest = rest[len(piece) :]
        return len(data)

    def close(self) -> None:
        """End the last part."""
        if not self.closed:
            self._end_part()
        super().close()

    def _end_part(self) -> None:
        if self._file is not None:
            self._file.close()
            self.sums[Path(self._file.name).name] = self._digest.hexdigest()
            self._file = None


def write_bundle(folder: Path, trees: Mapping[str, Path], about: Mapping[str, Any], part_bytes: int) -> int:
    """Write the parts of these folders, by their names in the bundle, beside their sums and what unpacks them. Of Git's
    work tree only its own files. Returns the number of parts."""
    with (
        PartWriter(folder, part_bytes) as parts,
        gzip.GzipFile(fileobj=cast("io.BufferedWriter", parts), mode="wb", compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        text = json.dumps(about).encode()
        head = tarfile.TarInfo("bundle.json")
        head.size, head.mode = len(text), 0o644
        archive.addfile(head, io.BytesIO(text))
        for name, tree in trees.items():
            for path in _list_files(tree):
                # A link becomes what it links to: the host has no other place for it.
                with path.open("rb") as file:
                    archive.addfile(_describe(path, f"{name}/{path.relative_to(tree)}"), file)
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in parts.sums.items()))
    shutil.copy(UNPACK, folder / "unpack.py")
    return len(parts.sums)


def _describe(path: Path, name: str) -> tarfile.TarInfo:
    member, found = tarfile.TarInfo(name), path.stat()
    member.size, member.mode, member.mtime = found.st_size, found.st_mode & 0o777, int(found.st_mtime)
    return member


def _list_files(tree: Path) -> list[Path]:
    if not (tree / ".git").exists():
        return sorted(path for path in tree.rglob("*") if path.is_file())
    told = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=tree,
        capture_output=True,
        check=True,
    )
    names = re.split("\0", told.stdout.decode())
    return sorted(tree / name for name in names if name and (tree / name).is_file())


if __name__ == "__main__":
    sys.exit(main())
