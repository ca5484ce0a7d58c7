# ruff: noqa: B905, C901, E501, F841, PERF401, PLC0206, RET504, S607, T201
"""Renames classes, functions, methods and attributes by what mypy knows of every use.

    python rename_symbols.py TABLE...   TABLE: lines of `package.module.Name[.member] new_name`; `package.*.member` names
                                        the members of all classes below a package, and `*.member` of all classes

A member is renamed where the object's type has it from that class; protocols and the classes that keep to them are
named one by one. What mypy cannot type (Any) is listed, and left alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from mypy import build
from mypy.modulefinder import BuildSource
from mypy.nodes import (
    GDEF,
    AssignmentStmt,
    CallExpr,
    ClassDef,
    FuncDef,
    ImportFrom,
    MemberExpr,
    MypyFile,
    NameExpr,
    Node,
    RefExpr,
    StrExpr,
    SuperExpr,
    TypeInfo,
    Var,
)
from mypy.options import Options
from mypy.subtypes import is_subtype
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    Overloaded,
    TupleType,
    Type,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)
from mypy.typevars import fill_typevars

FILES = [
    f
    for f in subprocess.check_output(["git", "ls-files", "*.py"], text=True).split()
    if f.split("/")[0] in ("controller", "gateway", "worker", "common", "tests")
]


def module_of(name: str) -> str:
    return name[:-3].replace("/", ".").removesuffix(".__init__")


def instances(kind: Type | None) -> list[tuple[TypeInfo, bool]] | None:
    """The classes that a value may be of; None: unknown."""
    if kind is None:
        return None
    kind = get_proper_type(kind)
    if isinstance(kind, Instance):
        found = [(kind.type, False)]
        return found
    if isinstance(kind, UnionType):
        parts: list[tuple[TypeInfo, bool]] = []
        for item in kind.items:
            parts += instances(item) or []
        return parts
    if isinstance(kind, TupleType):
        return instances(kind.partial_fallback)
    if isinstance(kind, TypeType):
        return instances(kind.item)
    if isinstance(kind, TypeVarType):
        return instances(kind.upper_bound)
    if isinstance(kind, CallableType) and kind.is_type_obj():
        return [(kind.type_object(), True)]
    if isinstance(kind, Overloaded):
        return instances(kind.items[0])
    if isinstance(kind, AnyType):
        return None
    return []


REFERENCES = {
    "node",
    "info",
    "type",
    "unanalyzed_type",
    "names",
    "def_frame",
    "original_def",
    "fullname",
    "analyzed",
    "defn",
    "inferred_type",
    "unanalyzed_items",
    "impl",
    "special_alias",
    "ref",
    "local_definitions",
    "from_generic",
}
"""Attributes of mypy's nodes that lead elsewhere."""


def walk(node: Node):
    """Every node below a node, itself included. mypy is compiled: its visitors cannot be inherited from."""
    stack: list[object] = [node]
    seen: set[int] = set()
    while stack:
        one = stack.pop()
        if isinstance(one, (list, tuple)):
            stack.extend(one)
            continue
        if not isinstance(one, Node) or id(one) in seen or isinstance(one, (TypeInfo, Var)):
            continue
        seen.add(id(one))
        yield one
        for kind in type(one).__mro__:
            for name in getattr(kind, "__mypyc_attrs__", ()):
                if name not in REFERENCES and not name.startswith("__"):
                    stack.append(getattr(one, name, None))


class Finder:
    def visit(self, tree: Node) -> None:
        for node in walk(tree):
            visitor = VISITORS.get(type(node))
            if visitor is not None:
                visitor(self, node)

    def __init__(
        self, path: str, types, wanted: dict[str, str], members: dict[str, dict[str, str]], out, unknown, every, graph
    ) -> None:
        self.path, self.types, self.graph = path, types, graph
        self.wanted, self.members, self.every = wanted, members, every
        self.out, self.unknown = out, unknown
        self.module = module_of(path)
        self.lines = Path(path).read_text().splitlines()

    def mark(self, line: int, column: int, old: str, new: str) -> None:
        """The first `old` as a word at or after a place."""
        for number in range(line, line + 80):
            if number > len(self.lines):
                break
            text = self.lines[number - 1]
            start = column if number == line else 0
            # mypy's columns count characters as Python's ast counts bytes
            start = len(text.encode()[:start].decode(errors="ignore"))
            found = re.compile(rf"(?<![\w]){re.escape(old)}(?!\w)").search(text, start)
            if found:
                self.out.add((self.path, number, found.start(), old, new))
                return
        self.unknown.append(f"{self.path}:{line}: cannot find {old}")

    def visit_member_expr(self, o: MemberExpr) -> None:
        names = self.members.get(o.name)
        if names is None and o.fullname not in self.wanted:
            return
        if o.fullname in self.wanted:
            self.mark_member(o, self.wanted[o.fullname])
            return
        found = instances(self.types.get(o.expr))
        if found is None or not found:
            if isinstance(o.expr, RefExpr) and isinstance(o.expr.node, TypeInfo):
                found = [(o.expr.node, True)]
            else:
                if found is None and o.name in self.every:
                    self.mark_member(o, self.every[o.name])
                elif found is None:
                    self.unknown.append(f"{self.path}:{o.line}: .{o.name} of an unknown type")
                return
        for info, _ in found:
            for base in info.mro:
                if o.name in base.names:
                    new = (names or {}).get(f"{base.fullname}")
                    if new:
                        self.mark_member(o, new)
                    break

    def mark_member(self, o: MemberExpr | SuperExpr, new: str) -> None:
        # The name stands at the end of the expression.
        line, end = o.end_line or o.line, o.end_column
        text = self.lines[line - 1]
        stop = len(text.encode()[:end].decode(errors="ignore")) if end is not None else len(text)
        if text[stop - len(o.name) : stop] != o.name and end is not None:
            stop = end  # of some expressions, mypy counts characters
        start = stop - len(o.name)
        if text[start:stop] == o.name:
            self.out.add((self.path, line, start, o.name, new))
        else:
            self.unknown.append(f"{self.path}:{o.line}: place of .{o.name} not found")

    def visit_patch(self, o: CallExpr) -> None:
        """`setattr(owner, "name", value)` of a test: the name is text."""
        place = next((number for number, each in enumerate(o.args) if isinstance(each, StrExpr)), None)
        if not isinstance(o.callee, MemberExpr) or o.callee.name not in ("setattr", "object") or place != 1:
            return
        owner, text = o.args[0], o.args[1]
        assert isinstance(text, StrExpr)
        if isinstance(owner, RefExpr) and isinstance(owner.node, MypyFile):
            if new := self.wanted.get(f"{owner.node.fullname}.{text.value}"):
                self.mark(text.line, text.column, text.value, new)
            return
        if text.value not in self.members:
            return
        owners = instances(self.types.get(owner))
        if isinstance(owner, RefExpr) and isinstance(owner.node, TypeInfo):
            owners = [(owner.node, True)]
        for info, _ in owners or []:
            for base in info.mro:
                if text.value in base.names:
                    if new := self.members[text.value].get(base.fullname):
                        self.mark(text.line, text.column, text.value, new)
                    break
        if not owners:
            self.unknown.append(f"{self.path}:{o.line}: setattr of {text.value} on an unknown type")

    def visit_call_expr(self, o: CallExpr) -> None:
        self.visit_patch(o)
        for name, argument in zip(o.arg_names, o.args):
            if name is None or name not in self.members:
                continue
            owners = instances(self.types.get(o.callee))
            if isinstance(o.callee, RefExpr) and o.callee.fullname == "dataclasses.replace":
                owners = instances(self.types.get(o.args[0]))
            elif isinstance(o.callee, MemberExpr) and o.callee.name == "_replace":
                owners = instances(self.types.get(o.callee.expr))
            elif not (owners and owners[0][1]) and not (
                isinstance(o.callee, RefExpr) and isinstance(o.callee.node, TypeInfo)
            ):
                continue
            if isinstance(o.callee, RefExpr) and isinstance(o.callee.node, TypeInfo):
                owners = [(o.callee.node, True)]
            for info, _ in owners or []:
                for base in info.mro:
                    if name in base.names and isinstance(base.names[name].node, Var):
                        new = self.members[name].get(base.fullname)
                        if new:
                            self.mark_keyword(argument, name, new)
                        break

    def mark_keyword(self, argument: Node, name: str, new: str) -> None:
        """The `name=` before an argument."""
        for number in range(argument.line, max(argument.line - 3, 0), -1):
            text = self.lines[number - 1]
            stop = (
                len(text.encode()[: argument.column].decode(errors="ignore")) if number == argument.line else len(text)
            )
            found = list(re.finditer(rf"(?<![\w.]){name}\s*=\s*\(?\s*$", text[:stop]))
            if found:
                self.out.add((self.path, number, found[-1].start(), name, new))
                return
        self.unknown.append(f"{self.path}:{argument.line}: keyword {name} not found")

    def visit_name_expr(self, o: NameExpr) -> None:
        if o.fullname in self.wanted and o.node is not None and o.fullname.rpartition(".")[2] == o.name:
            self.mark(o.line, o.column, o.name, self.wanted[o.fullname])

    def visit_class_def(self, o: ClassDef) -> None:
        if o.fullname in self.wanted:
            self.mark(o.line, o.column, o.name, self.wanted[o.fullname])

    def visit_func_def(self, o: FuncDef) -> None:
        if o.fullname in self.wanted:
            self.mark(o.line, o.column, o.name, self.wanted[o.fullname])
        elif o.info and f"{o.info.fullname}.{o.name}" in self.wanted:
            self.mark(o.line, o.column, o.name, self.wanted[f"{o.info.fullname}.{o.name}"])

    def visit_assignment_stmt(self, o: AssignmentStmt) -> None:
        if isinstance(o.lvalues[0], NameExpr) and o.lvalues[0].name == "__slots__":
            info = o.lvalues[0].node.info if isinstance(o.lvalues[0].node, Var) else None
            for text in walk(o.rvalue):
                if info and isinstance(text, StrExpr) and (new := self.wanted.get(f"{info.fullname}.{text.value}")):
                    self.mark(text.line, text.column, text.value, new)
        if isinstance(o.lvalues[0], NameExpr) and o.lvalues[0].name == "__all__" and self.module in self.graph:
            names = self.graph[self.module].tree.names
            for text in walk(o.rvalue):
                whole = names[text.value].fullname if isinstance(text, StrExpr) and text.value in names else ""
                if whole in self.wanted and whole.rpartition(".")[2] == text.value:
                    self.mark(text.line, text.column, text.value, self.wanted[whole])
        for left in o.lvalues:
            if isinstance(left, NameExpr) and left.kind == GDEF:
                whole = f"{self.module}.{left.name}"
                if whole in self.wanted:
                    self.mark(left.line, left.column, left.name, self.wanted[whole])
            if (
                isinstance(left, NameExpr)
                and isinstance(left.node, Var)
                and left.node.info
                and f"{left.node.info.fullname}.{left.name}" in self.wanted
            ):
                self.mark(left.line, left.column, left.name, self.wanted[f"{left.node.info.fullname}.{left.name}"])

    def visit_super_expr(self, o: SuperExpr) -> None:
        for base in o.info.mro[1:] if o.info else []:
            if o.name in base.names:
                if new := self.wanted.get(f"{base.fullname}.{o.name}"):
                    self.mark_member(o, new)
                break

    def visit_import_from(self, o: ImportFrom) -> None:
        source = self.graph[o.id].tree if o.id in self.graph else None
        for name, _ in o.names:
            symbol = source.names.get(name) if source else None
            whole = symbol.fullname if symbol and symbol.fullname else f"{o.id}.{name}"
            if whole.rpartition(".")[2] != name:
                continue
            if whole in self.wanted:
                self.mark(o.line, o.column + len(f"from {o.id} import "), name, self.wanted[whole])


VISITORS = {
    MemberExpr: Finder.visit_member_expr,
    CallExpr: Finder.visit_call_expr,
    NameExpr: Finder.visit_name_expr,
    ClassDef: Finder.visit_class_def,
    FuncDef: Finder.visit_func_def,
    AssignmentStmt: Finder.visit_assignment_stmt,
    ImportFrom: Finder.visit_import_from,
    SuperExpr: Finder.visit_super_expr,
}


def classes_of(tree: MypyFile) -> list[TypeInfo]:
    """Every class of a file, nested ones and those in functions included."""
    return [node.info for node in walk(tree) if isinstance(node, ClassDef)]


def add_overrides(classes: list[TypeInfo], wanted: dict[str, str]) -> None:
    """A member that overrides a renamed one has its new name."""
    for info in classes:
        for name in info.names:
            for base in info.mro[1:]:
                new = wanted.get(f"{base.fullname}.{name}")
                if new and f"{info.fullname}.{name}" not in wanted:
                    print(f"override: {info.fullname}.{name} {new}")
                    wanted[f"{info.fullname}.{name}"] = new


def add_fakes(classes: list[TypeInfo], wanted: dict[str, str]) -> None:
    """A class of the tests that keeps to a protocol by structure has its new names."""
    for protocol in [info for info in classes if info.is_protocol]:
        renamed = {
            m: wanted[f"{protocol.fullname}.{m}"]
            for m in protocol.protocol_members
            if f"{protocol.fullname}.{m}" in wanted
        }
        for info in classes:
            if not renamed or not info.fullname.startswith("tests.") or info.is_protocol or protocol in info.mro:
                continue
            if all(info.get(name) for name in protocol.protocol_members) and is_subtype(
                fill_typevars(info), fill_typevars(protocol)
            ):
                for name, new in renamed.items():
                    owner = next(base for base in info.mro if name in base.names)
                    if owner.fullname.startswith("tests.") and f"{owner.fullname}.{name}" not in wanted:
                        print(f"fake of {protocol.name}: {owner.fullname}.{name} {new}")
                        wanted[f"{owner.fullname}.{name}"] = new


def annotations(path: str, tree: MypyFile, wanted: dict[str, str], out, known_here: dict[str, str]) -> None:
    """Names in annotations, which mypy has analysed away: read by Python's ast, by what the module's names mean."""
    import ast

    text = Path(path).read_text()
    lines = text.splitlines()
    top = ast.parse(text)

    class Names(ast.NodeVisitor):
        def visit_Name(self, node: ast.Name) -> None:
            new = known_here.get(node.id)
            if new:
                start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
                out.add((path, node.lineno, start, node.id, new))

        def visit_Constant(self, node: ast.Constant) -> None:
            if isinstance(node.value, str) and node.lineno == node.end_lineno:
                for old, new in known_here.items():
                    for found in re.finditer(
                        rf"(?<![\w.]){old}(?!\w)", lines[node.lineno - 1][node.col_offset : node.end_col_offset]
                    ):
                        out.add((path, node.lineno, node.col_offset + found.start(), old, new))

    names = Names()
    for node in ast.walk(top):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for arg in [
                *node.args.args,
                *node.args.kwonlyargs,
                *node.args.posonlyargs,
                node.args.vararg,
                node.args.kwarg,
            ]:
                if arg is not None and arg.annotation is not None:
                    names.visit(arg.annotation)
            if node.returns is not None:
                names.visit(node.returns)
        elif isinstance(node, ast.AnnAssign):
            names.visit(node.annotation)
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                names.visit(base)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast" and node.args:
            names.visit(node.args[0])
        elif isinstance(node, ast.Subscript):
            names.visit(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.BinOp, ast.Subscript)):
            names.visit(node.value)


def main() -> None:
    rows = [line.split()[:2] for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    wanted = dict(row for row in rows if row and not row[0].startswith("#"))
    options = Options()
    options.python_version = (3, 11)
    options.export_types = True
    options.preserve_asts = True
    options.incremental = True  # only for libraries: what is cached has no tree
    options.cache_dir = ".mypy_cache/renames"
    options.sqlite_cache = False
    for package in ("controller", "gateway", "worker", "common", "tests"):
        for found in Path(options.cache_dir).glob(f"*/{package}"):
            shutil.rmtree(found)
        for found in Path(options.cache_dir).glob(f"*/{package}.*"):
            found.unlink()
    options.strict_optional = True
    options.check_untyped_defs = True
    options.follow_imports = "normal"
    options.ignore_missing_imports = True
    options.plugins = ["pydantic.mypy"]
    options.config_file = "pyproject.toml"
    options.local_partial_types = True
    result = build.build([BuildSource(f, module_of(f), None) for f in FILES], options)
    every: dict[str, str] = {}
    for whole, new in list(wanted.items()):
        if "*" not in whole:
            continue
        prefix, _, name = whole.rpartition("*.")
        del wanted[whole]
        if not prefix:
            every[name] = new
        for path in FILES:
            module = module_of(path)
            if prefix and not (module + ".").startswith(prefix):
                continue
            for info in classes_of(result.graph[module].tree):
                if name in info.names and not info.names[name].implicit and f"{info.fullname}.{name}" not in wanted:
                    wanted[f"{info.fullname}.{name}"] = new
    classes = [info for path in FILES for info in classes_of(result.graph[module_of(path)].tree)]
    add_fakes(classes, wanted)
    add_overrides(classes, wanted)
    members: dict[str, dict[str, str]] = defaultdict(dict)
    for whole, new in wanted.items():
        owner, _, name = whole.rpartition(".")
        members[name][owner] = new
    out: set[tuple[str, int, int, str, str]] = set()
    unknown: list[str] = []
    seen: set[str] = set()
    for path in FILES:
        tree = result.graph[module_of(path)].tree
        assert tree is not None
        finder = Finder(path, result.types, wanted, members, out, unknown, every, result.graph)
        finder.visit(tree)
        here = {}
        for name, symbol in tree.names.items():
            if symbol.fullname in wanted and symbol.fullname and symbol.fullname.rpartition(".")[2] == name:
                here[name] = wanted[symbol.fullname]
        annotations(path, tree, wanted, out, here)
    for whole in wanted:
        if not any(new == wanted[whole] and old == whole.rpartition(".")[2] for _, _, _, old, new in out):
            print(f"never found: {whole}")
    by_file = defaultdict(list)
    for path, line, column, old, new in out:
        by_file[path].append((line, column, old, new))
    for path, places in by_file.items():
        lines = Path(path).read_text().splitlines(keepends=True)
        for line, column, old, new in sorted(places, reverse=True):
            text = lines[line - 1]
            assert text[column : column + len(old)] == old, (path, line, column, old, text)
            lines[line - 1] = text[:column] + new + text[column + len(old) :]
        Path(path).write_text("".join(lines))
    for line in sorted(set(unknown)):
        print(line)
    print(f"{len(out)} places in {len(by_file)} files")


main()
