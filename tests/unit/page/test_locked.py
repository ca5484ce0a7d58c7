"""What the page is made of: exact versions, from whatever registry a machine is set to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
WEB = REPOSITORY / "web"
EXACT = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


@pytest.fixture(scope="module")
def locked() -> dict[str, Any]:
    """Packages of the lock, by their folder."""
    packages: dict[str, Any] = json.loads((WEB / "package-lock.json").read_text())["packages"]
    return packages


def test_the_lock_names_no_registry(locked: dict[str, Any]) -> None:
    assert [folder for folder, package in locked.items() if "resolved" in package] == []
    # Whom a package's makers ask to be paid by is no address that anything is loaded from.
    loaded = [{key: value for key, value in package.items() if key != "funding"} for package in locked.values()]
    assert re.findall(r"\w+://[^\"]+", json.dumps(loaded)) == []
    assert "omit-lockfile-registry-resolved=true" in (WEB / ".npmrc").read_text().splitlines()


def test_no_file_of_the_page_names_a_registry() -> None:
    for name in (".npmrc", "package.json", "vite.config.ts", "build"):
        assert not re.search(r"registry\s*=|npmjs|//[\w.-]*pypi", (WEB / name).read_text()), name


def test_every_dependency_is_an_exact_version(locked: dict[str, Any]) -> None:
    wanted = json.loads((WEB / "package.json").read_text())
    loose = {
        name: version
        for kind in ("dependencies", "devDependencies")
        for name, version in wanted[kind].items()
        if not EXACT.fullmatch(version)
    }
    assert loose == {}
    for kind in ("dependencies", "devDependencies"):
        assert locked[""][kind] == wanted[kind], "npm install was not run after a change of package.json"


def test_every_package_is_locked_by_a_hash(locked: dict[str, Any]) -> None:
    unlocked = [
        folder
        for folder, package in locked.items()
        if folder and not package.get("inBundle") and not package.get("integrity", "").startswith("sha512-")
    ]
    assert unlocked == []


def test_a_build_installs_what_is_locked_and_runs_no_scripts_of_packages() -> None:
    assert "ignore-scripts=true" in (WEB / ".npmrc").read_text().splitlines()
    lines = [line for line in (WEB / "build").read_text().splitlines() if not line.lstrip().startswith("#")]
    [by_pip] = [line for line in lines if re.search(r"\bpip\b.* install\b", line)]
    assert '--require-hashes -r "$requirement"' in by_pip
    install, types = [line for line in lines if '"$npm" ' in line]
    assert '"$npm" ci --ignore-scripts ' in install
    assert '"$npm" run --silent types)' in types
    assert [line for line in lines if re.search(r"\b(curl|wget|npx|corepack|git)\b", line)] == []
