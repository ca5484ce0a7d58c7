"""The flags of `vllm serve`, of the release that the tests run and of the one that is locked, and what changed from one
release to another. `vllm_flags.json` keeps them by version.

    python -m tests.support.vllm_flags            # the newest release that pip finds, against the locked one
    python -m tests.support.vllm_flags 0.33.0     # another release, against the locked one
    python -m tests.support.vllm_flags --write    # vllm_flags.json anew: of `.ci/vllm`, and of the locked release

A release's own parser tells its flags. It runs in the environment that `.ci/vllm` makes, by the Python files of the
release's wheel, which pip downloads (340 MB) into a folder that is removed again. It ends with 1 where something
changed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from packaging.requirements import Requirement

from tests.support.ci_cache import cached_build

Flags: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By flag, as `vllm_parser.list_flags` says."""

REPOSITORY: Final = Path(__file__).resolve().parents[2]
FILE: Final = Path(__file__).with_suffix(".json")
PARSER: Final = Path(__file__).with_name("vllm_parser.py")
TESTED, LOCKED = ".ci/vllm.txt", "images/worker/vllm.txt"
_LACKING: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_MOST_LACKING: Final = 5
_WIDTH: Final = 4


@dataclass(frozen=True, slots=True)
class FlagChanges:
    """What changed between two releases."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, Mapping[str, tuple[Any, Any]]]
    """By flag: what differs, with the earlier and the later value; None: there was, or is, none. Of two lists: what is
    only in the earlier one, and what is only in the later one."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        lines = [f"+ {flag}" for flag in self.added] + [f"- {flag}" for flag in self.removed]
        for flag, parts in self.changed.items():
            lines += [f"~ {flag}: {part} {before!r} -> {after!r}" for part, (before, after) in parts.items()]
        return "\n".join(lines)


def compare_flags(before: Flags, after: Flags) -> FlagChanges:
    """Return what is different in `after`."""
    changed = {
        flag: {
            part: _differ(before[flag].get(part), after[flag].get(part))
            for part in sorted({*before[flag], *after[flag]})
            if before[flag].get(part) != after[flag].get(part)
        }
        for flag in sorted({*before} & {*after})
    }
    return FlagChanges(
        tuple(sorted({*after} - {*before})),
        tuple(sorted({*before} - {*after})),
        {flag: parts for flag, parts in changed.items() if parts},
    )


def _differ(before: Any, after: Any) -> tuple[Any, Any]:
    if isinstance(before, list) and isinstance(after, list):
        return [each for each in before if each not in after], [each for each in after if each not in before]
    return before, after


def read_flags() -> dict[str, Flags]:
    """Return what is committed, by version."""
    flags: dict[str, Flags] = json.loads(FILE.read_text())
    return flags


def read_version(lock: str) -> str:
    """Return the release of vLLM, or of vLLM for the CPU, that a lock pins."""
    [version] = re.findall(r"^vllm(?:-cpu)?==([\d.]+) ", (REPOSITORY / lock).read_text(), re.MULTILINE)
    return str(version)


def ask_parser(sources: Path | None = None) -> Flags:
    """Return the flags by the installed vLLM for the CPU, or by the release whose files `sources` holds. Packages that
    it needs and the environment lacks are installed into `sources`. Raises RuntimeError where it does not start."""
    python, lacking = cached_build("vllm") / "bin" / "python", ""
    for _ in range(_MOST_LACKING):
        path = {} if sources is None else {"PYTHONPATH": str(sources)}
        done = subprocess.run([python, PARSER, "--flags"], env=path, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            flags: Flags = json.loads(done.stdout)
            return flags
        found = _LACKING.findall(done.stderr)
        if sources is None or not found or found[-1] == lacking:
            break
        lacking = found[-1]
        _install_needed(python, sources, lacking)
    raise RuntimeError(done.stderr[-2000:])


def _install_needed(python: Path, sources: Path, module: str) -> None:
    metadata = (sources / "METADATA").read_text()
    needs = [Requirement(each) for each in re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE)]
    named = [f"{need.name}{need.specifier}" for need in needs if need.name.replace("-", "_") == module]
    _pip(python, "install", "--quiet", "--no-deps", "--target", str(sources), *named[:1])


def _pip(python: Path, *arguments: str) -> str:
    done = subprocess.run([python, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def download_flags(version: str | None, folder: Path) -> tuple[str, Flags]:
    """Download a release, or the newest that pip finds, into `folder`. Return its version and its flags."""
    python = cached_build("vllm") / "bin" / "python"
    wanted = "vllm" if version is None else f"vllm=={version}"
    _pip(python, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted)
    [wheel] = folder.glob("vllm-*.whl")
    sources = folder / "sources"
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.endswith((".py", ".json")):
                files.extract(name, sources)
        # Not where Python looks for it: vLLM takes itself for a build for the CPU by what `.ci/vllm` has written there.
        [metadata] = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        (sources / "METADATA").write_bytes(files.read(metadata))
    return wheel.name.split("-")[1], ask_parser(sources)


def render_flags(flags: Mapping[str, Flags]) -> str:
    """Return the text of `vllm_flags.json`: a line for each flag."""
    blocks = []
    for version, each in flags.items():
        lines = ",\n".join(f"{' ' * _WIDTH}{json.dumps(flag)}: {json.dumps(about)}" for flag, about in each.items())
        blocks.append(f"  {json.dumps(version)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main() -> int:
    """Print what changed, or write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.vllm_flags")
    parser.add_argument("version", nargs="?", help="the release; default: the newest")
    parser.add_argument("--write", action="store_true", help="write vllm_flags.json anew")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        version = read_version(LOCKED) if given.write else given.version
        told, flags = download_flags(version, Path(folder))
    if given.write:
        FILE.write_text(render_flags({read_version(TESTED): ask_parser(), told: flags}))
        return 0
    locked = read_version(LOCKED)
    changes = compare_flags(read_flags()[locked], flags)
    print(f"vLLM {told}, against {locked}, which is locked: {len(flags)} flags", changes or "nothing changed", sep="\n")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
