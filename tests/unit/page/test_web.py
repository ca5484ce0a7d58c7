"""The page's own checks and tests: types, lint, and vitest."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.page_tools import WEB, require_node, run_tool

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _node() -> None:
    require_node()


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
