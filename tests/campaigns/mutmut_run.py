"""mutmut over a few modules, in a copy of the repository, and what became of each mutant.

mutmut makes the mutants of every function, learns which tests call which function, and runs these tests in a process
forked for each mutant, until one fails. It does not mutate what is outside of functions, nor decorated functions.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.campaigns.record import REPOSITORY
from tests.support.campaign import CAMPAIGN_VARIABLE, SEED_VARIABLE

INSTALL = "mutmut is not installed; `pip install 'mutmut>=3.8,<4'`, or `make install`, brings it"
FOLDERS = ("common", "controller", "gateway", "retrieval", "transfers", "worker", "tests")
_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "tests.campaigns.mutation_plugin")
_WITHOUT = ("cacheprovider", "unraisableexception", "threadexception")
PYTEST_OPTIONS = [
    "--assert=plain",
    *(word for name in _PLUGINS for word in ("-p", name)),
    *(word for name in _WITHOUT for word in ("-p", f"no:{name}")),
]
"""A mutant's process starts pytest in 0.1 s with these alone, and in 0.3 s with every plugin that is installed."""
KILLED, SURVIVED, TIMED_OUT, UNTESTED, UNCLEAR = "killed", "survived", "timed out", "untested", "unclear"
VERDICTS = {0: SURVIVED, 1: KILLED, 3: KILLED, 5: UNTESTED, 33: UNTESTED, 36: TIMED_OUT, 255: TIMED_OUT}
"""By the exit status that mutmut keeps: pytest's (3 is an error of pytest's own, which a mutant caused), its own, or a
signal's. Without a limit to wall time's length a mutant that loops ends by SIGXCPU (24)."""
CPU_LIMIT = (24, -24, 152)


class MutmutMissingError(Exception):
    """mutmut is not installed."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One mutant: where it is, what it changes, and what its tests said."""

    path: str
    line: int
    function: str
    """`Class.method` or `function`."""
    before: str
    """The lines that are changed, each stripped, joined by a space; `after` alike."""
    after: str
    verdict: str


def run_mutmut(folder: Path, modules: Sequence[str], tests: Sequence[str], only: Sequence[str] = ()) -> list[Mutant]:
    """Judge the mutants of `modules` by `tests`, in `folder`, which must be empty. `only`: mutmut's names of mutants,
    with `*`; the others are left out of the answer."""
    if find_spec("mutmut") is None:
        raise MutmutMissingError(INSTALL)
    copy_repository(folder, modules, tests)
    environment = {**os.environ, "CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for variable in (CAMPAIGN_VARIABLE, SEED_VARIABLE, "PYTHONPATH"):
        environment.pop(variable, None)
    # Not `python -m mutmut`: it warns of that itself.
    command = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()", "run", *only]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mutmut ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return sorted(mutant for module in modules for mutant in read_mutants(folder, module))


def copy_repository(folder: Path, modules: Sequence[str], tests: Sequence[str]) -> None:
    """What the tests need, and mutmut's configuration, which it takes from pyproject.toml alone."""
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    settings = {
        "source_paths": ["common", "controller", "gateway", "retrieval", "worker"],
        "only_mutate": list(modules),
        "pytest_add_cli_args": PYTEST_OPTIONS,
        "pytest_add_cli_args_test_selection": list(tests),
        "use_git_change_detection": False,
    }
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    text = (REPOSITORY / "pyproject.toml").read_text() + "\n[tool.mutmut]\n" + "".join(lines)
    (folder / "pyproject.toml").write_text(text)


def read_mutants(folder: Path, module: str) -> Iterator[Mutant]:
    """The mutants of one module that were judged."""
    mutated = folder / "mutants" / module
    statuses: dict[str, int | None] = json.loads(mutated.with_name(f"{mutated.name}.meta").read_text())[
        "exit_code_by_key"
    ]
    versions = read_functions(mutated.read_text())
    first_lines = {name: line for name, (line, _) in read_functions((folder / module).read_text()).items()}
    for name, status in statuses.items():
        if status is None:
            continue
        mangled = name.rpartition(".")[2]
        original = mangled.rpartition("__mutmut_")[0]
        function = original.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in original else original.removeprefix("x_")
        offset, before, after = compare(versions[_key(f"{original}__mutmut_orig")][1], versions[_key(mangled)][1])
        verdict = TIMED_OUT if status in CPU_LIMIT else VERDICTS.get(status, UNCLEAR)
        yield Mutant(module, first_lines[function] + offset, function, before, after, verdict)


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
    start, end = changes[0][1], changes[-1][2]
    return start, " ".join(old[start:end]), " ".join(new[changes[0][3] : changes[-1][4]])


def _without_name(lines: Sequence[str]) -> list[str]:
    definition = lines[0].partition("(")
    return ["def (" + definition[2], *lines[1:]]
