"""The generated parts of docs/architecture.md: packages by layer, and protocols with several implementations.

`python -m tests.support.architecture` prints them, `--write` replaces them in the page, where each package has the
first sentence of its docstring. Everything is read from the sources without importing them, so optional libraries need
not be installed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.doc_tables import DOCS, row

ROOT: Final = DOCS.parent
PAGE: Final = DOCS / "architecture.md"
PROGRAMS: Final = (
    "controller",
    "gateway",
    "assistant",
    "retrieval",
    "transfers",
    "worker",
    "cli",
    "contract",
    "common",
)
"""Top-level packages, in the order of the page."""
WIDTH: Final = 150
"""Columns of the page's generated paragraphs."""
_IN_EVERY_PROGRAM: Final = ("__main__", "health_check", "settings")
"""Modules that say by their name what they are; the page leaves them out."""
_COMMANDS: Final = "cli"
"""The command line. docs/cli.md says what its modules are for: one command each."""
_NAMED_IMPLEMENTATIONS: Final = 2
"""Implementations of a protocol that the page names."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The members of a class or module, by which it implements a protocol or not."""

    name: str
    """`Class`, `Class.method`, `function`, or a module's path."""
    module: str
    """Path of its file below the repository's root."""
    members: Mapping[str, tuple[str, ...] | None]
    """Name to the parameters of a method, without `self`; None: an attribute or a property."""

    has_library_base: bool = False
    """A base class is not of the programs, so attributes may come from there."""

    def implements(self, protocol: Shape) -> bool:
        """Return whether every member of `protocol` is here, methods with the same parameters in the same order."""
        own, its = self.module.partition("/")[0], protocol.module.partition("/")[0]
        return self._has_methods(protocol) and (own == its or {own, its} == {"assistant", "gateway"})

    def _has_methods(self, protocol: Shape) -> bool:
        methods = {name: parameters for name, parameters in protocol.members.items() if parameters is not None}
        attributes = protocol.members.keys() - methods.keys()
        has_attributes = attributes <= self.members.keys() or bool(self.has_library_base and methods)
        return has_attributes and all(self.members.get(name) == parameters for name, parameters in methods.items())


@functools.cache
def parse_sources() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the programs, by its path below the repository's root."""
    files = (path for program in PROGRAMS for path in sorted((ROOT / program).rglob("*.py")))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


# Packages


def list_packages() -> list[str]:
    """Return the folder of every package, such as `gateway/exchange`."""
    files = (path for program in PROGRAMS for path in sorted((ROOT / program).rglob("__init__.py")))
    return [str(path.parent.relative_to(ROOT)) for path in files]


def package_lines(program: str) -> list[str]:
    """Return a program's purpose, a blank line, and one list item per layer, from the top layer to the lowest, each
    followed by the packages inside it. A program without layers has the names of its modules in the place of items."""
    lines = [*_wrap(f"`{program}/`: {_read_purpose(f'{program}/')}"), ""]
    layers = _read_layers().get(program)
    if program == _COMMANDS:
        return lines[:-1]
    if layers is None:
        return [*lines, *_wrap(f"Modules: {', '.join(f'`{each}`' for each in _list_modules(program))}.")]
    for part in [_find_part(f"{program}/{name}") for name in layers if name not in _IN_EVERY_PROGRAM]:
        inner = [f"{each}/" for each in list_packages() if part.endswith("/") and f"{each}/".startswith(part)]
        for each in inner or [part]:
            indent = "  " * (each.count("/") - part.count("/"))
            lines += _wrap(f"{indent}- `{each}`: {_read_purpose(each)}", f"{indent}  ")
    return lines


def _list_modules(package: str) -> list[str]:
    """Return the modules of a package by their names below it, such as `network/errors`."""
    paths = [path.removeprefix(f"{package}/") for path in parse_sources() if path.startswith(f"{package}/")]
    return [path.removesuffix(".py") for path in paths if not path.endswith("__init__.py")]


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _read_layers() -> dict[str, list[str]]:
    """Return the layers of each program as import-linter holds them; layers beside each other in their order there."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [name.strip() for layer in contract["layers"] for name in layer.split("|")]
        for contract in contracts
        if contract["type"] == "layers" and contract.get("containers", [""])[0] in PROGRAMS
    }


def _find_part(path: str) -> str:
    return f"{path}/" if f"{path}/__init__.py" in parse_sources() else f"{path}.py"


def _read_purpose(part: str) -> str:
    """Return the first sentence of a docstring, and `Pure.` if its first paragraph says so."""
    tree = parse_sources()[f"{part}__init__.py" if part.endswith("/") else part]
    paragraph = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]
    return f"{sentence} Pure." if re.search(r"\bPure[.:]", paragraph) and "Pure" not in sentence else sentence


# Protocols


def find_protocols() -> list[tuple[Shape, str]]:
    """Return every public `Protocol` class with the first paragraph of its docstring, in the order of the sources."""
    return [
        (Shape(node.name, path, _members_of(node)), " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
        for path, tree in parse_sources().items()
        for node in _classes_in(tree)
        if _is_protocol(node) and not node.name.startswith("_")
    ]


def find_implementations(protocol: Shape, purpose: str) -> list[str]:
    """Return what of the same program has every member of `protocol`, methods with the same parameters: classes; for a
    protocol of `__call__` functions; else modules. Many classes have one short method by chance: of a protocol with a
    single member, only those that `purpose` names, if it names any."""
    if [*protocol.members] == ["__call__"]:
        shapes = _functions()
    else:
        shapes = _classes() if any(shape.implements(protocol) for shape in _classes()) else _modules()
    names = [shape.name for shape in shapes if shape.implements(protocol)]
    named = [name for name in names if re.search(rf"`(\w+\.)*{re.escape(name)}`", purpose)]
    return named if named and len(protocol.members) == 1 else names


def protocol_rows() -> list[str]:
    """Return one table row per protocol with several implementations: name, module, the first implementations and the
    number of the others."""
    found = [(shape, find_implementations(shape, purpose)) for shape, purpose in find_protocols()]
    return [row(f"`{shape.name}`", f"`{shape.module}`", _name_first(names)) for shape, names in found if len(names) > 1]


def _name_first(names: list[str]) -> str:
    others = len(names) - _NAMED_IMPLEMENTATIONS
    words = [f"`{name}`" for name in names[:_NAMED_IMPLEMENTATIONS]]
    return ", ".join([*words, f"{others} more"] if others > 0 else words)


def _classes_in(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(_base_name(base) == "Protocol" for base in node.bases)


def _base_name(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0]


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_method: bool) -> tuple[str, ...]:
    """Return the names of the parameters; a keyword-only one with `*` before it, so that it is no positional one."""
    arguments = node.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    return (*positional[is_method:], *(f"*{each.arg}" for each in arguments.kwonlyargs))


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each).endswith(("property", "setter")) for each in node.decorator_list)


def _members_of(node: ast.ClassDef) -> dict[str, tuple[str, ...] | None]:
    """Return the members that a class body declares, and the attributes that its methods set on `self`."""
    members: dict[str, tuple[str, ...] | None] = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            members[each.target.id] = None
        elif isinstance(each, ast.Assign):
            members |= {target.id: None for target in each.targets if isinstance(target, ast.Name)}
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            members |= {name: None for name in _attributes_set_in(each) if name not in members}
            if not each.name.startswith("__") or each.name == "__call__":
                members[each.name] = None if _is_property(each) else _parameters(each, is_method=True)
    return members


def _attributes_set_in(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _imported_names(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return what a module imports from the programs: the name here, to the module's path and the name there."""
    names: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            path = f"{node.module.replace('.', '/')}.py"
            names |= {each.asname or each.name: (path, each.name) for each in node.names}
    return names


@functools.cache
def _classes() -> tuple[Shape, ...]:
    """Return every class that is no protocol, with the members of its base classes among the programs'."""
    nodes = {(path, node.name): node for path, tree in parse_sources().items() for node in _classes_in(tree)}
    imports = {path: _imported_names(tree) for path, tree in parse_sources().items()}

    def build_shape(path: str, node: ast.ClassDef) -> Shape:
        members: dict[str, tuple[str, ...] | None] = {}
        has_library_base = False
        for name in reversed([_base_name(base) for base in node.bases]):
            base = imports[path].get(name, (path, name))
            if base in nodes:
                inherited = build_shape(base[0], nodes[base])
                members |= inherited.members
                has_library_base |= inherited.has_library_base
            else:
                has_library_base = True
        return Shape(node.name, path, members | _members_of(node), has_library_base)

    return tuple(build_shape(path, node) for (path, _), node in nodes.items() if not _is_protocol(node))


@functools.cache
def _functions() -> tuple[Shape, ...]:
    """Return every function and method, each as a shape of `__call__` alone."""
    shapes = []
    for path, tree in parse_sources().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                shapes.append(Shape(node.name, path, {"__call__": _parameters(node, is_method=False)}))
            elif isinstance(node, ast.ClassDef) and not _is_protocol(node):
                shapes += [
                    Shape(f"{node.name}.{name}".removesuffix(".__call__"), path, {"__call__": parameters})
                    for name, parameters in _members_of(node).items()
                    if parameters is not None
                ]
    return tuple(shapes)


@functools.cache
def _modules() -> tuple[Shape, ...]:
    """Return every module with the names that it assigns and defines, each as an attribute."""
    shapes = []
    for path, tree in parse_sources().items():
        names: dict[str, tuple[str, ...] | None] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names[node.name] = None
            elif isinstance(node, ast.Assign):
                parts = (each for target in node.targets for each in ast.walk(target))
                names |= {each.id: None for each in parts if isinstance(each, ast.Name)}
        shapes.append(Shape(path, path, names))
    return tuple(shapes)


# The page


def generated_parts() -> dict[str, str]:
    """Return the text between the page's markers, by the name in them."""
    parts = {program: "\n".join(package_lines(program)) for program in PROGRAMS}
    header = "| protocol | module | implementations |\n| --- | --- | --- |"
    return parts | {"protocols": "\n".join([header, *protocol_rows()])}


def replace_parts(text: str, parts: Mapping[str, str]) -> str:
    """Return the page's text with its generated parts replaced. Raises ValueError where a part's marker is not there
    exactly once."""
    for name, part in parts.items():
        before, *after = text.split(f"<!-- generated: {name} -->\n")
        if len(after) != 1:
            raise ValueError(f"{PAGE.name} has {len(after)} parts `<!-- generated: {name} -->`, not 1")
        text = f"{before}<!-- generated: {name} -->\n{part}\n<!-- end -->{after[0].partition('<!-- end -->')[2]}"
    return text


def main() -> None:
    """Print the generated parts, or write them into the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.architecture", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the generated parts of docs/architecture.md")
    if parser.parse_args().write:
        PAGE.write_text(replace_parts(PAGE.read_text(), generated_parts()))
    else:
        print("\n\n".join(generated_parts().values()))


if __name__ == "__main__":
    main()
