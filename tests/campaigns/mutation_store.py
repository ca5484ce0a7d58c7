"""What is known of mutants from earlier runs, outside of the work tree, by content.

A module's mutants and their verdicts belong to its text: where that changes, they do not count any more. A verdict
holds for the test files that gave it; that of a killed mutant also while the file of the test that killed it is as it
was.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.mutmut_run import Mutant, module_of, mutate, require_mutmut, to_json
from tests.campaigns.record import REPOSITORY

KILLED = "killed"
_FORMAT = 1
"""Another number: nothing that is known counts any more."""


@dataclass(frozen=True, slots=True)
class Result:
    """One mutant's verdict."""

    name: str
    verdict: str
    seconds: float
    """How long its process took."""
    by: str | None
    """The test that failed."""
    by_file: str | None
    """The digest of that test's file."""
    tests: str
    """The digest of the test files that judged it."""


def cache_folder() -> Path:
    root = os.environ.get("ROUNDHOUSE_CACHE") or Path.home() / ".cache" / "roundhouse"
    return Path(root) / "mutation"


class MutationStore:
    def __init__(self, folder: Path, repository: Path = REPOSITORY) -> None:
        self.folder = folder
        self.repository = repository
        self.version = require_mutmut()
        self._digests: dict[str, str | None] = {}

    # Mutants

    def read_mutated(self, path: str) -> tuple[str, list[Mutant]]:
        """A module's text with all of its mutants, and these: made, if they are not known yet."""
        kept = self.folder / "mutants" / f"{self._name(path)}.json.gz"
        if kept.exists():
            data = json.loads(gzip.decompress(kept.read_bytes()))
            return data["code"], [Mutant(**each) for each in data["mutants"]]
        code, mutants = mutate(path, (self.repository / path).read_text())
        data = {"code": code, "mutants": to_json(mutants)}
        _replace(kept, gzip.compress(json.dumps(data).encode(), 6))
        return code, mutants

    def _name(self, path: str) -> str:
        source = (self.repository / path).read_bytes()
        return f"{module_of(path)}-{_digest([f'{_FORMAT} {self.version} {path}'.encode(), source])}"

    # Verdicts

    def read_results(self, path: str, tests: str) -> dict[str, Result]:
        """The verdicts that hold, by the mutants' names. `tests`: the digest of the test files."""
        kept = self._results(path)
        lines = kept.read_text().splitlines() if kept.exists() else []
        results = (Result(**json.loads(line)) for line in lines if line.endswith("}"))
        return {result.name: result for result in results if self._holds(result, tests)}

    def _holds(self, result: Result, tests: str) -> bool:
        if result.tests == tests:
            return True
        return result.verdict == KILLED and result.by_file is not None and result.by_file == self.digest_of(result.by)

    def add_result(self, path: str, tests: str, judged: Mapping[str, Any]) -> Result:
        """Keep what the driver said of a mutant that the test files with the digest `tests` judged."""
        by = judged["by"]
        result = Result(judged["name"], judged["verdict"], judged["seconds"], by, self.digest_of(by), tests)
        kept = self._results(path)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with kept.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        return result

    def _results(self, path: str) -> Path:
        return self.folder / "results" / f"{self._name(path)}.jsonl"

    # Which tests call what

    def read_lessons(self, paths: Iterable[str], tests: Iterable[str]) -> dict[str, Any] | None:
        """What was learned of these modules and test files."""
        kept = self._lessons(paths, tests)
        return json.loads(kept.read_text()) if kept.exists() else None

    def keep_lessons(self, paths: Iterable[str], tests: Iterable[str], lessons: Mapping[str, Any]) -> None:
        _replace(self._lessons(paths, tests), json.dumps(lessons).encode())

    def _lessons(self, paths: Iterable[str], tests: Iterable[str]) -> Path:
        names = [self._name(path).encode() for path in sorted(paths)]
        return self.folder / "lessons" / f"{_digest([*names, self.digest_files(tests).encode()])}.json"

    # Digests

    def digest_files(self, files: Iterable[str]) -> str:
        """Of several files' names and contents."""
        return _digest([f"{file} {self.digest_of(file)}".encode() for file in sorted(files)])

    def digest_of(self, test: str | None) -> str | None:
        """Of the file of a test, which is named as pytest does; None: there is none."""
        if test is None:
            return None
        file = test.partition("::")[0]
        if file not in self._digests:
            path = self.repository / file
            self._digests[file] = _digest([path.read_bytes()]) if path.is_file() else None
        return self._digests[file]


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} ".encode() + part)
    return digest.hexdigest()[:16]


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)
