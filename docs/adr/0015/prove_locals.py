# ruff: noqa: C901
"""Proves that two commits (or a commit and the work tree) differ by local names alone.

    python docs/adr/0015/prove_locals.py OLD [NEW]

NEW: a commit; the work tree without it. The syntax trees of each Python file are walked side by side. They must be
equal, but for names of variables, parameters and keywords. A docstring that changed is listed: it names a parameter.
Inside a function one old name has one new name, and no two old names became one; the same holds for a module outside
its functions. The exit code is 0 where nothing else differs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def run_git(*arguments: str) -> str:
    """The output of a git command. Raises CalledProcessError."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout  # noqa: S607


def list_files(commit: str) -> list[str]:
    """The commit's Python files."""
    names = run_git("ls-tree", "-r", "--name-only", commit).splitlines()
    return [name for name in names if name.endswith(".py")]


def read_file(commit: str | None, path: str) -> str:
    """One file's text, of a commit or of the work tree."""
    return Path(path).read_text() if commit is None else run_git("show", f"{commit}:{path}")


def pair_nodes(
    old: object, new: object, scope: ast.AST, problems: list[str]
) -> Iterator[tuple[str, str, str, ast.AST, ast.AST]]:
    """Kind, old name, new name, outermost function (or the module) and node of every identifier of two trees."""
    if type(old) is not type(new):
        problems.append(f"line {getattr(new, 'lineno', '?')}: {type(old).__name__} became {type(new).__name__}")
        return
    if isinstance(old, ast.AST) and isinstance(new, ast.AST):
        if isinstance(new, FUNCTIONS) and isinstance(scope, ast.Module):
            scope = new
        for name in old._fields:
            before, after = getattr(old, name, None), getattr(new, name, None)
            if isinstance(before, str) and isinstance(after, str) and not isinstance(old, ast.Constant):
                yield f"{type(old).__name__}.{name}", before, after, scope, new
            elif name == "names" and isinstance(old, (ast.Global, ast.Nonlocal)):
                yield from (
                    ("Name.id", one, other, scope, new) for one, other in zip(before or [], after or [], strict=True)
                )
            else:
                yield from pair_nodes(before, after, scope, problems)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            problems.append(f"{len(old)} parts became {len(new)}: {old[:1]}")
        for one, other in zip(old, new, strict=False):
            yield from pair_nodes(one, other, scope, problems)
    elif old != new:
        problems.append(f"{old!r} became {new!r}")


LOCAL = {"Name.id", "arg.arg", "ExceptHandler.name", "MatchAs.name", "MatchStar.name"}


def compare_file(
    path: str, old: str, new: str, keywords: set[tuple[str, str]], parameters: set[tuple[str, str]]
) -> list[str]:
    """What differs in one file beyond local names."""
    problems: list[str] = []
    scopes: dict[int, dict[str, set[str]]] = {}
    names: dict[int, str] = {}
    for kind, before, after, scope, node in pair_nodes(ast.parse(old), ast.parse(new), ast.Module([], []), problems):
        key = 0 if isinstance(scope, ast.Module) else id(scope)
        names[key] = getattr(scope, "name", "module")
        if kind in LOCAL:
            scopes.setdefault(key, {}).setdefault(before, set()).add(after)
            if kind == "arg.arg" and before != after:
                parameters.add((before, after))
        elif kind == "keyword.arg" and before != after:
            keywords.add((before, after))
            names[key] = getattr(scope, "name", "module")
        elif before != after:
            problems.append(f"line {getattr(node, 'lineno', '?')}: {kind} {before} became {after}")
    for key, renamed in scopes.items():
        targets: dict[str, set[str]] = {}
        for before, afters in renamed.items():
            if len(afters) > 1:
                problems.append(f"{names[key]}: {before} became {sorted(afters)}")
            for after in afters:
                targets.setdefault(after, set()).add(before)
        problems += [
            f"{names[key]}: {sorted(befores)} all became {after}"
            for after, befores in targets.items()
            if len(befores) > 1
        ]
    return [f"{path}: {problem}" for problem in problems]


def main(arguments: Sequence[str]) -> int:
    """Compare, and say what differs."""
    old, new = arguments[0], arguments[1] if len(arguments) > 1 else None
    diff = run_git("diff", "--name-only", "--diff-filter=M", old, *([new] if new else []), "--", "*.py")
    gone = run_git("diff", "--name-only", "--diff-filter=AD", old, *([new] if new else []), "--", "*.py")
    keywords: set[tuple[str, str]] = set()
    parameters: set[tuple[str, str]] = set()
    differences = [f"{path}: came or went" for path in gone.splitlines()]
    for path in diff.splitlines():
        differences += compare_file(path, read_file(old, path), read_file(new, path), keywords, parameters)
    differences += [
        f"keyword {one}= became {other}=, and no parameter did" for one, other in sorted(keywords - parameters)
    ]
    sys.stdout.write("\n".join([*differences, f"{len(diff.splitlines())} files compared", ""]))
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
