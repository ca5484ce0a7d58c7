"""What `web/build` installs with npm: what a build needs, and what checks the page where that is asked for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[3] / "web"


class Checkout:
    """A checkout with `web/build` alone, whose Node.js notes what npm is asked for, and installs nothing."""

    def __init__(self, root: Path) -> None:
        self._web = root / "web"
        self._web.mkdir()
        shutil.copy(WEB / "build", self._web)
        (self._web / ".npmrc").touch()
        (root / "requirements").mkdir()
        (root / "requirements" / "page.txt").touch()
        self.change_lock("first")
        self._asked = root / "asked"
        self._asked.touch()
        (root / "bin").mkdir()
        self._python = self._write(root / "bin" / "python", f"echo {root}")
        self._write(root / "bin" / "node", f'mkdir node_modules; shift; echo "$*" >>{self._asked}')

    def _write(self, path: Path, command: str) -> Path:
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
        return path

    def change_lock(self, text: str) -> None:
        """Have another lock."""
        (self._web / "package-lock.json").write_text(text)

    def install(self, *options: str) -> list[str]:
        """Run `web/build --modules-only` and return the commands of npm that it gave."""
        self._asked.write_text("")
        subprocess.run([self._web / "build", "--python", self._python, "--modules-only", *options], check=True)
        return self._asked.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


BUILD = ["ci --ignore-scripts --no-progress --omit=dev"]
WITH_CHECKS = ["ci --ignore-scripts --no-progress"]


def test_a_build_installs_no_checks_and_that_once(checkout: Checkout) -> None:
    assert checkout.install() == BUILD
    assert checkout.install() == []
    checkout.change_lock("second")
    assert checkout.install() == BUILD


def test_checks_are_installed_where_they_are_asked_for_and_stay(checkout: Checkout) -> None:
    assert checkout.install() == BUILD
    assert checkout.install("--with-checks") == WITH_CHECKS
    assert checkout.install("--with-checks") == []
    assert checkout.install() == []
    checkout.change_lock("second")
    assert checkout.install() == WITH_CHECKS


def test_the_two_kinds_are_kept_apart_in_a_cache(checkout: Checkout, tmp_path: Path) -> None:
    cached = ("--modules-cache", str(tmp_path / "cache"))
    assert checkout.install(*cached) == BUILD
    assert checkout.install("--with-checks", *cached) == WITH_CHECKS
    kept = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len(kept) == 2
    assert kept[1] == f"{kept[0]}-with-checks"
    shutil.rmtree(tmp_path / "web" / "node_modules")
    assert checkout.install("--with-checks", *cached) == []


def test_what_the_build_imports_is_no_check() -> None:
    wanted = json.loads((WEB / "package.json").read_text())
    imported = re.findall(r'^import .* from "([^."][^"]*)";', (WEB / "vite.config.ts").read_text(), re.MULTILINE)
    assert "vite" in imported
    assert [name for name in imported if name not in wanted["dependencies"]] == []
