"""Every walk of the page in every look: a desk and a phone, the light theme and the dark one."""

from __future__ import annotations

import argparse

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
A browser takes every walk of the page against a running Roundhouse with real engines four times: in a window of a desk
(1280 by 800) and of a phone (390 by 844, touched), in the light theme and in the dark one. CI takes each walk in one of
these. The walks that look at all four by themselves (axe-core) and the one by Firefox are taken once.
"""
FOLDER = "tests/e2e/page"
TESTS = (FOLDER,)


def declare_options(parser: argparse.ArgumentParser) -> None:
    """Which walks are taken."""
    parser.add_argument("--files", help="names of files of walks, as in test_NAME.py, with commas between them")


def run(seed: int, files: str | None = None) -> Outcome:
    """The tests in all looks. `files`: names of their files, with commas between them; None: all."""
    paths = TESTS if files is None else [f"{FOLDER}/test_{name}.py" for name in files.split(",")]
    return run_tests(paths, seed)
