"""Lists what differs between two commits beyond moved modules and renamed identifiers.

    python docs/adr/0015/prove_moves.py OLD NEW MOVES [RENAMES...]

OLD and NEW are commits. MOVES: lines of `old.module new.module`. RENAMES: lines of `package.module.Name[.member] new`.
The syntax trees of every Python file are walked side by side. They must be equal, but for imports (compared as sets,
modules mapped), identifiers that a table renames, and module names in strings. The exit code is 0 where nothing else
differs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IDENTIFIERS = ("arg", "attr", "id", "name", "rest")
"""Fields of syntax trees that hold an identifier."""
Import = tuple[str, str, str]
"""Module, name and alias; empty where there is none."""


def run_git(*arguments: str) -> str:
    """The output of a git command. Raises CalledProcessError."""
    found = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)  # noqa: S607
    return found.stdout


def read_table(path: str) -> list[tuple[str, str]]:
    """The first two words of each line that is not empty and no comment."""
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return [(words[0], words[1]) for words in lines if words and words[0] != "#"]


def read_sources(commit: str) -> dict[str, str]:
    """Path to text of the commit's Python files."""
    names = run_git("ls-tree", "-r", "--name-only", commit).splitlines()
    return {name: run_git("show", f"{commit}:{name}") for name in names if name.endswith(".py")}


def module_of(path: str) -> str:
    """The dotted name of the module in a file."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@dataclass
class Comparison:
    """One comparison of two commits. `known`: the old commit's modules. `renamed`: pairs of an old and a new word."""

    moves: dict[str, str]
    renamed: set[tuple[str, str]]
    known: set[str]
    differences: list[str] = field(default_factory=list)
    path: str = ""

    def __post_init__(self) -> None:
        spelled = self.moves | {old.replace(".", "/"): new.replace(".", "/") for old, new in self.moves.items()}
        longest_first = sorted(spelled, key=len, reverse=True)
        self._spelled = spelled
        self.renamed_words: dict[str, list[str]] = {}
        for one, other in sorted(self.renamed):
            self.renamed_words.setdefault(one, []).append(other)
        self._names = re.compile(rf"(?<![\w/.-])({'|'.join(map(re.escape, longest_first)) or '(?!)'})(?![\w-])")

    def path_after(self, path: str) -> str:
        """Where the file of an old path is."""
        module = module_of(path)
        end = "/__init__.py" if path.endswith("__init__.py") else ".py"
        return self.moves.get(module, module).replace(".", "/") + end

    def compare_files(self, path: str, old: str, new: str) -> None:
        """Note what differs in one file, which is at `path` now."""
        self.path = path
        tree = ast.parse(new)
        self._compare(ast.parse(old), tree, tree)

    def _note(self, node: ast.AST, text: str) -> None:
        self.differences.append(f"{self.path}:{getattr(node, 'lineno', 1)}: {text}")

    def _compare(self, old: object, new: object, at: ast.AST) -> None:
        if type(old) is not type(new):
            self._note(at, f"{type(old).__name__} became {type(new).__name__}")
        elif isinstance(old, ast.Constant) and isinstance(old.value, str):
            assert isinstance(new, ast.Constant)
            if not self._is_same_text(old.value, str(new.value)):
                self._note(new, f"{old.value[:80]!r} became {str(new.value)[:80]!r}")
        elif isinstance(old, ast.AST):
            assert isinstance(new, ast.AST)
            for name in old._fields:
                self._compare_field(name, getattr(old, name, None), getattr(new, name, None), new)
        elif isinstance(old, list):
            assert isinstance(new, list)
            if old and all(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in old):
                old, new = self._sort_texts(old, new)
            self._compare_lists(old, new, at)
        elif old != new:
            self._note(at, f"{old!r} became {new!r}")

    def _sort_texts(self, old: list[Any], new: list[Any]) -> tuple[list[Any], list[Any]]:
        """The same lists, the second in the order of the first: `__slots__` are sorted by name."""
        texts = {str(getattr(each, "value", each)): each for each in new}
        ordered = [
            texts.get(each.value)
            or next((texts[name] for name in self.renamed_words.get(each.value, ()) if name in texts), None)
            for each in old
        ]
        return (old, ordered) if len(old) == len(new) and all(each is not None for each in ordered) else (old, new)

    def _compare_field(self, name: str, old: object, new: object, at: ast.AST) -> None:
        if name in IDENTIFIERS and isinstance(old, str) and isinstance(new, str):
            if old != new and (old, new) not in self.renamed:
                self._note(at, f"{old} became {new}")
        else:
            self._compare(old, new, at)

    def _compare_lists(self, old: list[object], new: list[object], at: ast.AST) -> None:
        imports = (ast.Import, ast.ImportFrom)
        before = {each for node in old if isinstance(node, imports) for each in self._imports(node, is_old=True)}
        after = {each for node in new if isinstance(node, imports) for each in self._imports(node, is_old=False)}
        for module, name, alias in sorted(before - after):
            if not any(self._is_same_import((module, name, alias), other) for other in after - before):
                self._note(at, f"the import of {module} {name} is gone")
        rest = [node for node in old if not isinstance(node, imports)]
        now = [node for node in new if not isinstance(node, imports)]
        if len(rest) != len(now):
            self._note(at, f"{len(rest)} parts became {len(now)}")
        for one, other in zip(rest, now, strict=False):
            self._compare(one, other, other if isinstance(other, ast.AST) else at)

    def _imports(self, node: ast.Import | ast.ImportFrom, *, is_old: bool) -> list[Import]:
        found = []
        for alias in node.names:
            module, name = (alias.name, "") if isinstance(node, ast.Import) else (node.module or "", alias.name)
            if is_old and f"{module}.{name}" in self.known:
                module, _, name = self.moves.get(f"{module}.{name}", f"{module}.{name}").rpartition(".")
            elif is_old:
                module = self.moves.get(module, module)
            found.append((module, name, alias.asname or ""))
        return found

    def _is_same_import(self, old: Import, new: Import) -> bool:
        same_name = old[1] == new[1] or (old[1], new[1]) in self.renamed
        return old[0] == new[0] and same_name and (old[2] == new[2] or not old[2])

    def _is_same_text(self, old: str, new: str) -> bool:
        words = re.compile(r"\w+|\W")
        before, after = words.findall(self._names.sub(lambda name: self._spelled[name[1]], old)), words.findall(new)
        pairs = zip(before, after, strict=False)
        return len(before) == len(after) and all(one == other or (one, other) in self.renamed for one, other in pairs)


def main(arguments: Sequence[str]) -> int:
    """Compare, and say what differs."""
    old_commit, new_commit, moves_path, *rename_paths = arguments
    before, after = read_sources(old_commit), read_sources(new_commit)
    moves = dict(read_table(moves_path))
    renames = [pair for path in rename_paths for pair in read_table(path)]
    renamed = {(old.rpartition(".")[2], new.rpartition(".")[2]) for old, new in (*renames, *moves.items())}
    comparison = Comparison(moves, renamed, {module_of(name) for name in before})
    for name, text in before.items():
        path = comparison.path_after(name)
        if path in after:
            comparison.compare_files(path, text, after.pop(path))
        else:
            comparison.differences.append(f"{path}: the file is not there")
    comparison.differences += [f"{path}: the file is new" for path, text in after.items() if ast.parse(text).body[1:]]
    sys.stdout.write("\n".join([*comparison.differences, f"{len(before)} files compared", ""]))
    return bool(comparison.differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
