"""Names that others rely on: of containers, files, headers, variables, modules that are named in strings.

What no function gives is read off the source: strings of whatever file, docstrings left out, so that moving a file
changes nothing here.
"""

from __future__ import annotations

import ast
import itertools
import re
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from controller.artifacts.model_roots import ModelRoots
from tests.support.goldens.product import (
    CACHE_ROLE,
    COMMAND,
    JOURNAL_NAME,
    NETWORK_ROLE,
    PROBE_ROLE,
    RESPONSES_NAME,
    SECRET_PREFIX,
    ControllerSettings,
    HostContext,
    MemoryHistory,
    ProcessRuntime,
    ReplicaId,
    StateDatabase,
    StateDir,
    StoredMemory,
    own_labels,
    replica_name,
    save_last_good,
    save_observed,
    started_by_up,
    up_files,
)
from tests.support.goldens.product import EventLog as EventJournal

REPOSITORY: Final = Path(__file__).resolve().parents[3]
_ONE_WORD: Final = frozenset(
    {
        *("accept", "allow", "authorization", "connection", "cookie", "date", "expect", "forwarded", "host"),
        *("location", "origin", "server", "te", "trailer", "upgrade", "vary", "via"),
    }
)
"""Header names that are words as well: counted where they stand in bytes, as headers do."""
_STANDARD: Final = re.compile(
    r"(?:accept|access-control|cache|content|keep|last|proxy|retry|sec|set|transfer|user|www|anthropic|openai)"
    r"(?:-[a-z]+)+|traceparent|tracestate"
)
_FILE: Final = r"[\w{}.-]+\.(json|db|sock|lock|log|damaged)"
_DOCKER_WORDS: Final = ("ENTRYPOINT", "CMD", "USER", "ENV", "EXPOSE", "VOLUME", "WORKDIR", "STOPSIGNAL", "HEALTHCHECK")


def make_docker() -> Any:
    """Labels, and names of containers, networks and volumes."""
    host = HostContext("golden", "n", publishes_ports=False, models=(), log_mib=1)
    names = ("m", "org/model:q4", "a.b", "a-b", "UPPER", "x" * 80, "m-01234567")
    settings = ControllerSettings.model_fields
    return {
        "labels": {role: own_labels("golden", role) for role in (CACHE_ROLE, NETWORK_ROLE, PROBE_ROLE)},
        "names_in_strings": sorted({text for text, _ in _strings() if re.fullmatch(r"rh-\{[\w{}-]*", text)}),
        "cache_volume": host.cache_volume,
        "containers": {name: replica_name("golden", ReplicaId(name, 1, "0123456789abcdef", 12)) for name in names},
        "defaults": {name: settings[name].default for name in settings if name.startswith(("image_", "engines_net"))},
        "probe_command": list(COMMAND),
        "secrets_begin_with": SECRET_PREFIX,
    }


def make_deployment() -> Any:
    """The compose file, and what the images declare."""
    dockerfiles = sorted((REPOSITORY / "images").glob("*/Dockerfile"))
    return {
        "compose": YAML(typ="safe", pure=True).load(REPOSITORY / "compose.yaml"),
        "images": {path.parent.name: _instructions(path.read_text()) for path in dockerfiles},
    }


def make_state_folder() -> Any:
    """Every file and folder that controller, process runtime, `roundhouse up` and gateway keep, with its mode."""
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        folder = Path(root) / "state"
        store = StateDir.open_folder(folder, "golden")
        store.next_epoch(1.0)
        store.save_memory(StoredMemory())
        save_last_good(folder, {}, {}, 0.0)
        save_observed(folder, MemoryHistory().file_content())
        ProcessRuntime("golden", folder, ModelRoots((Path(root) / "models",)))
        journal = EventJournal(folder / JOURNAL_NAME)
        journal.close()
        StateDatabase(folder / RESPONSES_NAME, max_bytes=2**20, retention_s=1.0, clock=lambda: 0.0).close()
        store.close()
        kept = {
            f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": f"{path.stat().st_mode & 0o777:o}"
            for path in folder.rglob("*")
        }
    return {"kept": kept, "up": sorted(up_files())}


def make_strings() -> Any:
    """Names that stand in strings of the source."""
    found = _strings()
    return {
        "files": sorted(
            {text for text, _ in found if re.fullmatch(r"[\w{}*.-]+\.(json|db|sock|lock|log|damaged)", text)}
        ),
        "headers": sorted({name for text, is_bytes in found for name in _headers(text, is_bytes)}),
        "variables": sorted({text for text, _ in found if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", text)}),
    }


def make_modules() -> Any:
    """Modules that are named in strings: whoever moves one must find all of these."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    named = re.compile(r"\b(?:assistant|cli|controller|gateway|worker)(?:\.[a-z_{][a-z0-9_{}]*)+")
    is_file = re.compile(r".*\.(sock|log|json|db|control|md)")
    found = {name for text, _ in _strings() for name in named.findall(text) if not is_file.fullmatch(name)}
    scripts = [REPOSITORY / "Makefile", *sorted((REPOSITORY / ".ci").glob("*")), REPOSITORY / "images" / "build"]
    text = "\n".join(path.read_text() for path in scripts if path.is_file())
    return {
        "in_strings": sorted(found),
        "run_as_modules": sorted(_run_as_modules()),
        "run_by_up": started_by_up(),
        "in_scripts": sorted(set(re.findall(r"-m ((?:assistant|cli|controller|gateway|worker)[\w.]*)", text))),
        "entry_points": project["project"]["scripts"],
    }


# The source.


@cache
def _sources() -> tuple[ast.Module, ...]:
    packages = [
        path.parent for path in sorted(REPOSITORY.glob("*/__init__.py")) if path.parent.name not in ("grafana", "tests")
    ]
    return tuple(ast.parse(path.read_text()) for package in packages for path in sorted(package.rglob("*.py")))


@cache
def _strings() -> frozenset[tuple[str, bool]]:
    """Every string, and whether it is one of bytes. `{}` stands for what is filled in."""
    return frozenset(found for tree in _sources() for found in _strings_in(tree))


def _strings_in(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    skipped = {id(each) for node in ast.walk(tree) for each in _no_names(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if _is_text(part) else "{}" for part in node.values), False  # type: ignore[attr-defined]
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            if isinstance(node.value, bytes):
                yield node.value.decode("latin-1"), True
            elif isinstance(node.value, str):
                yield node.value, False


def _no_names(node: ast.AST) -> Iterator[ast.AST]:
    """Docstrings, parts of f-strings, and what a module exports."""
    if isinstance(node, ast.Expr):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield from node.values
    elif isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
        yield from ast.walk(node.value)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _headers(text: str, is_bytes: bool) -> Iterator[str]:
    """Of lines as they are sent, of lists of names, and of names by themselves."""
    for line in text.replace("\r\n", "\n").split("\n"):
        for part in line.split(", "):
            name = part.partition(": ")[0].lower()
            is_ours = re.fullmatch(r"x(-[a-z0-9{}]+)+-?", name) is not None
            if is_ours or _STANDARD.fullmatch(name) or (is_bytes and name in _ONE_WORD):
                yield name


def _run_as_modules() -> set[str]:
    """What follows `-m` in a command line."""
    commands = [node.elts for tree in _sources() for node in ast.walk(tree) if isinstance(node, ast.Tuple | ast.List)]
    words = [[each.value if isinstance(each, ast.Constant) else None for each in elements] for elements in commands]
    return {str(module) for each in words for flag, module in itertools.pairwise(each) if flag == "-m" and module}


def _instructions(dockerfile: str) -> list[str]:
    """Those that say how the image runs, of all stages, in order."""
    lines = re.sub(r"\\\n\s*", "", dockerfile).splitlines()
    return [line for line in lines if line.startswith(_DOCKER_WORDS)]
