"""The mutants of a module, and a run that judges some of them in a copy of the repository.

mutmut makes the mutants of every function. It does not mutate what is outside of functions, nor decorated functions.
`mutation_driver` judges them.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from tests.campaigns.record import REPOSITORY
from tests.support.campaign import CAMPAIGN_VARIABLE, SEED_VARIABLE
from tests.support.packages import PACKAGES

INSTALL = "mutmut is not installed; `pip install 'mutmut>=3.8,<4'`, or `make install`, brings it"
GRACE_S = 60.0
"""How long after its time the driver may end by itself."""
FOLDERS = (*PACKAGES, "tests")
_SETTINGS = '\n[tool.mutmut]\nsource_paths = ["controller"]\nuse_git_change_detection = false\n'
"""mutmut reads its settings in the working directory, and refuses to be asked for mutants without any."""


class MutmutMissingError(Exception):
    """mutmut is not installed."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    path: str
    line: int
    function: str
    """`Class.method` or `function`."""
    before: str
    """The lines that are changed, each stripped, joined by a space; `after` alike."""
    after: str
    name: str
    """mutmut's: `gateway.routing.table.x_read__mutmut_3`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Mutants that are judged in one run."""

    sources: Mapping[str, str]
    """Each mutated module's path and its text with all of its mutants."""
    tests: Mapping[str, Sequence[str]]
    """The test files that judge each of these modules, the nearest first."""
    names: Sequence[str]
    """mutmut's names of the mutants, in the order in which they are judged."""
    lessons: Mapping[str, Any] | None = None
    """What an earlier run learned of the same modules and tests."""


def require_mutmut() -> str:
    if find_spec("mutmut") is None:
        raise MutmutMissingError(INSTALL)
    return version("mutmut")


def module_of(path: str) -> str:
    """A file's module, as an import names it."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# Mutants


def mutate(path: str, source: str) -> tuple[str, list[Mutant]]:
    """A module's text with all of its mutants, and these, in mutmut's order. `path` is relative to the repository."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    with tempfile.TemporaryDirectory(prefix="rh") as folder, contextlib.chdir(folder):
        Path("pyproject.toml").write_text(_SETTINGS)
        mutated = mutate_file_contents(path, source)
    return mutated.code, list(read_mutants(path, source, mutated.code, mutated.mutant_names))


def read_mutants(path: str, source: str, code: str, names: Sequence[str]) -> Iterator[Mutant]:
    """What each of mutmut's functions in `code` changes in `source`."""
    versions = read_functions(code)
    first_lines = {name: line for name, (line, _) in read_functions(source).items()}
    module = module_of(path)
    for mangled in names:
        original = mangled.rpartition("__mutmut_")[0]
        function = original.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in original else original.removeprefix("x_")
        offset, before, after = compare(versions[_key(f"{original}__mutmut_orig")][1], versions[_key(mangled)][1])
        yield Mutant(path, first_lines[function] + offset, function, before, after, f"{module}.{mangled}")


def _key(mangled: str) -> str:
    """mutmut puts `xǁClassǁmethod__mutmut_1` into the class."""
    parts = mangled.split("ǁ")
    return f"{parts[1]}.{mangled}" if len(parts) == 3 else mangled


def read_functions(source: str) -> dict[str, tuple[int, list[str]]]:
    """Each function and method of a module: the line of its `def`, and its lines from there on."""
    lines = source.splitlines()
    found: dict[str, tuple[int, list[str]]] = {}

    def read(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                read(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + node.name] = (node.lineno, lines[node.lineno - 1 : node.end_lineno])

    read(ast.parse(source).body, "")
    return found


def compare(original: Sequence[str], mutant: Sequence[str]) -> tuple[int, str, str]:
    """The first line that differs, and the lines that do, before and after. The line of `def` has another name in
    each, which does not count; a default in it does."""
    old, new = ([line.strip() for line in _without_name(lines)] for lines in (original, mutant))
    changes = [
        step for step in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if step[0] != "equal"
    ]
    if not changes:  # only spaces differ, inside of a text of several lines
        return 0, "", ""
    start, end = changes[0][1], changes[-1][2]
    return start, " ".join(old[start:end]), " ".join(new[changes[0][3] : changes[-1][4]])


def _without_name(lines: Sequence[str]) -> list[str]:
    definition = lines[0].partition("(")
    return ["def (" + definition[2], *lines[1:]]


# A run


def run_driver(folder: Path, batch: Batch, stop_at: float, on_event: Callable[[dict[str, Any]], None]) -> None:
    """Judge a batch in `folder`, which must be empty, until `stop_at` (Unix time). `on_event` gets what the driver
    says, as it says it: `mutation_driver` has the forms."""
    copy_repository(folder, batch.sources)
    scratch = folder / "t"
    scratch.mkdir()
    environment = {**os.environ, "CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(scratch)}
    for variable in (CAMPAIGN_VARIABLE, SEED_VARIABLE, "PYTHONPATH", "MUTANT_UNDER_TEST"):
        environment.pop(variable, None)
    orders = folder / "orders.json"
    orders.write_text(
        json.dumps(
            {
                "tests": {module_of(path): list(files) for path, files in batch.tests.items()},
                "names": list(batch.names),
                "lessons": batch.lessons,
                "stop_at": stop_at,
                "workers": os.cpu_count() or 1,
            }
        )
    )
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.mutation_driver", str(orders)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        watchdog = threading.Timer(max(stop_at - time.time(), 0) + GRACE_S, driver.kill)
        watchdog.start()
        try:
            _listen(driver, stop_at, on_event)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{(folder / 'driver.log').read_text()[-3000:]}") from None
        finally:
            watchdog.cancel()
            _end_session(driver)


def _listen(driver: subprocess.Popen[str], stop_at: float, on_event: Callable[[dict[str, Any]], None]) -> None:
    assert driver.stdout is not None
    for line in driver.stdout:
        on_event(json.loads(line))
    if driver.wait() and time.time() < stop_at:
        raise RuntimeError(f"the driver of mutants ended with {driver.returncode}")


def _end_session(driver: subprocess.Popen[str]) -> None:
    """End the driver, if it has not ended, and whatever it or a test left."""
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == driver.pid:
                process.kill()
    driver.wait()


def copy_repository(folder: Path, sources: Mapping[str, str]) -> None:
    """What the tests need, with the mutated modules in place of the repository's."""
    folder.chmod(0o755)  # tests that are another user for a moment find it
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for path, code in sources.items():
        (folder / path).write_text(code)
    (folder / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text() + _SETTINGS)


def to_json(mutants: Sequence[Mutant]) -> list[dict[str, Any]]:
    return [asdict(mutant) for mutant in mutants]
