"""The npm packages that the built page may hold pieces of, as `web/package-lock.json` locks them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.supply_chain.locks import REPOSITORY

PAGE_LOCK: Final = REPOSITORY / "web" / "package-lock.json"
_FOLDER: Final = "node_modules/"
BUILD_TOOLS: Final = frozenset({"@tailwindcss/vite", "@vitejs/plugin-react", "tailwindcss", "vite"})
"""Packages among the page's `dependencies` of which the built page holds nothing: they build it."""


@dataclass(frozen=True, slots=True)
class PagePackage:
    """One locked version of one npm package."""

    name: str
    """With its scope, if it has one: `@scope/name`."""
    version: str
    sha512: str
    """Of its tarball, in hexadecimal digits."""


def read_page_lock(text: str) -> tuple[PagePackage, ...]:
    """Return the packages of a `package-lock.json` that the page is bundled from, sorted, each version once.

    They are what the page depends on, but for `BUILD_TOOLS`, and what those depend on in turn. Optional packages are
    left out: Node.js alone would load them.
    """
    packages = json.loads(text)["packages"]
    folders = {
        _find_folder(packages, "", name) for name in packages[""].get("dependencies", {}) if name not in BUILD_TOOLS
    }
    waiting = list(folders)
    while waiting:
        folder = waiting.pop()
        needed = {_find_folder(packages, folder, name) for name in _needs(packages[folder])}
        waiting += needed - folders
        folders |= needed
    found = {
        PagePackage(
            folder.rpartition(_FOLDER)[2],
            packages[folder]["version"],
            base64.b64decode(packages[folder]["integrity"].removeprefix("sha512-")).hex(),
        )
        for folder in folders
    }
    return tuple(sorted(found, key=lambda package: (package.name, package.version)))


def _needs(package: Mapping[str, Any]) -> set[str]:
    """Return the names of the packages without which a package does not work."""
    peers = package.get("peerDependenciesMeta", {})
    optional = {name for name, meta in peers.items() if meta.get("optional")} | set(
        package.get("optionalDependencies", {})
    )
    return ({*package.get("dependencies", {})} | {*package.get("peerDependencies", {})}) - optional


def _find_folder(packages: Mapping[str, Any], folder: str, name: str) -> str:
    """Return the folder of the package that `name` means in `folder`: the nearest, as Node.js looks for it.

    Raises KeyError where the lock has none.
    """
    while True:
        found = f"{folder}/{_FOLDER}{name}" if folder else f"{_FOLDER}{name}"
        if found in packages:
            return found
        if not folder:
            raise KeyError(f"the lock has no package {name}")
        folder = folder.rpartition(f"/{_FOLDER}")[0]
