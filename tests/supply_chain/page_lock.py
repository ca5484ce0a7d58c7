"""The npm packages that the built page may hold pieces of, as `web/package-lock.json` locks them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Final

from tests.supply_chain.locks import REPOSITORY

PAGE_LOCK: Final = REPOSITORY / "web" / "package-lock.json"
_FOLDER: Final = "node_modules/"
_NOT_BUILT_IN: Final = ("dev", "devOptional", "optional")
"""Marks of packages that only build or check the page, or that only Node.js would load."""


@dataclass(frozen=True, slots=True)
class PagePackage:
    """One locked version of one npm package."""

    name: str
    """With its scope, if it has one: `@scope/name`."""
    version: str
    sha512: str
    """Of its tarball, in hexadecimal digits."""


def read_page_lock(text: str) -> tuple[PagePackage, ...]:
    """Return the packages of a `package-lock.json` that the page is bundled from, sorted, each version once."""
    packages = json.loads(text)["packages"]
    found = {
        PagePackage(
            folder.rpartition(_FOLDER)[2],
            package["version"],
            base64.b64decode(package["integrity"].removeprefix("sha512-")).hex(),
        )
        for folder, package in packages.items()
        if folder and not any(package.get(mark) for mark in _NOT_BUILT_IN)
    }
    return tuple(sorted(found, key=lambda package: (package.name, package.version)))
