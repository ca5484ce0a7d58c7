"""Proves that a commit moved and renamed and did nothing else.

    python prove_moves.py OLD NEW MOVES [RENAMES...]

OLD and NEW are commits. MOVES: lines of `old.module new.module`. RENAMES: lines of `package.module.Name[.member] new`.
Both trees of every Python file are walked side by side: they must be equal but for imports (compared as sets, after
mapping module names), identifiers that a rename table lists, and module names in strings. What differs is printed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def pairs(path: str) -> list[tuple[str, str]]:
    lines = (line.split() for line in Path(path).read_text().splitlines() if line.strip() and not line.startswith("#"))
    return [(line[0], line[1]) for line in lines]


OLD, NEW, MOVES, *RENAMES = sys.argv[1:]
MOVED = dict(pairs(MOVES))
IDENTIFIERS = {(old.rpartition(".")[2], new) for path in RENAMES for old, new in pairs(path)}
IDENTIFIERS |= {(old.rpartition(".")[2], new.rpartition(".")[2]) for old, new in MOVED.items()}
SPELLED: dict[str, str] = {}
for old, new in MOVED.items():
    SPELLED |= {old: new, old.replace(".", "/"): new.replace(".", "/")}
NAMES = re.compile(r"(?<![\w/.-])(" + "|".join(map(re.escape, sorted(SPELLED, key=len, reverse=True))) + r")(?![\w-])")


def sources(commit: str) -> dict[str, str]:
    names = [name for name in git("ls-tree", "-r", "--name-only", commit).split() if name.endswith(".py")]
    return {name: git("show", f"{commit}:{name}") for name in names}


def path_after(name: str) -> str:
    module = name[:-3].replace("/", ".")
    package = module.removesuffix(".__init__")
    if module.endswith(".__init__"):
        return MOVED.get(package, package).replace(".", "/") + "/__init__.py"
    return MOVED.get(module, module).replace(".", "/") + ".py"


def imports(node: ast.stmt, known: set[str], moved: bool) -> set[tuple[str, str, str]]:
    """(module, name, bound) of one import, its modules mapped if it is an old one."""
    found = set()
    if isinstance(node, ast.Import):
        for alias in node.names:
            module = MOVED.get(alias.name, alias.name) if moved else alias.name
            found.add((module, "", alias.asname or ""))
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if moved and whole in known:
                module, _, name = MOVED.get(whole, whole).rpartition(".")
            else:
                module, name = (MOVED.get(node.module or "", node.module or "") if moved else node.module or ""), alias.name
            found.add((module, name, alias.asname or ""))
    return found


class Comparison:
    def __init__(self, name: str, known: set[str]) -> None:
        self.name, self.known, self.faults = name, known, []

    def fault(self, node: ast.AST, text: str) -> None:
        self.faults.append(f"{self.name}:{getattr(node, 'lineno', '?')}: {text}")

    def identifier(self, node: ast.AST, old: str | None, new: str | None) -> None:
        if old != new and (old, new) not in IDENTIFIERS:
            self.fault(node, f"{old} became {new}")

    def statements(self, old: list[ast.stmt], new: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Both without imports, which are compared here."""
        def split(body, moved):
            rest, found = [], set()
            for node in body:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    found |= imports(node, self.known, moved)
                else:
                    rest.append(node)
            return rest, found
        old_rest, old_imports = split(old, True)
        new_rest, new_imports = split(new, False)
        gone, come = old_imports - new_imports, new_imports - old_imports
        for module, name, bound in sorted(gone):
            match = [c for c in come if c[0] == module and ((name, c[1]) in IDENTIFIERS or c[1] == name)]
            if match:
                come.discard(match[0])
                if match[0][2] != bound and not (not bound and match[0][2]):
                    self.fault(new[0], f"import {name} as {bound} became {match[0]}")
            else:
                self.fault(new[0] if new else ast.Pass(), f"import of {module}.{name} is gone")
        for one in come:
            self.fault(new[0], f"import of {one} has come")
        return old_rest, new_rest

    def compare(self, old: object, new: object, node: ast.AST) -> None:
        if type(old) is not type(new):
            self.fault(node, f"{type(old).__name__} became {type(new).__name__}")
        elif isinstance(old, ast.Constant) and isinstance(old.value, str):
            if self.spell(old.value) != new.value and not self.is_listed(old.value, new.value):
                self.fault(new, f"{old.value[:80]!r} became {new.value[:80]!r}")
        elif isinstance(old, ast.AST):
            for field in old._fields:
                before, after = getattr(old, field, None), getattr(new, field, None)
                if field in ("id", "attr", "name", "arg", "rest") and isinstance(before, str | None) and isinstance(after, str | None):
                    self.identifier(new, before, after)
                elif field in ("lineno", "type_comment"):
                    continue
                else:
                    self.compare(before, after, new)
        elif isinstance(old, list):
            if old and isinstance(old[0], ast.stmt) or new and isinstance(new[0], ast.stmt):
                old, new = self.statements(old, new)
            if len(old) != len(new):
                self.fault(node, f"{len(old)} parts became {len(new)}")
            for before, after in zip(old, new, strict=False):
                self.compare(before, after, after if isinstance(after, ast.AST) else node)
        elif old != new:
            self.fault(node, f"{old!r} became {new!r}")

    def spell(self, text: str) -> str:
        return NAMES.sub(lambda found: SPELLED[found.group(1)], text)

    def is_listed(self, old: str, new: str) -> bool:
        """Whether two texts differ by words of the tables alone."""
        words = re.compile(r"\w+|\W")
        before, after = words.findall(self.spell(old)), words.findall(new)
        return len(before) == len(after) and all(a == b or (a, b) in IDENTIFIERS for a, b in zip(before, after))


def main() -> int:
    before, after = sources(OLD), sources(NEW)
    known = {n[:-3].replace("/", ".").removesuffix(".__init__") for n in before}
    faults, compared = [], 0
    for name, text in before.items():
        target = path_after(name)
        if target not in after:
            faults.append(f"{name}: {target} is not there")
            continue
        one = Comparison(target, known)
        old, new = ast.parse(text), ast.parse(after.pop(target))
        one.compare(old, new, new)
        faults += one.faults
        compared += 1
    for name, text in after.items():
        body = ast.parse(text).body
        if not name.endswith("__init__.py") or len(body) > 1 or (body and not isinstance(body[0], ast.Expr)):
            faults.append(f"{name}: is new")
    print("\n".join(faults))
    print(f"{compared} files compared, {len(faults)} differences")
    return bool(faults)


sys.exit(main())
