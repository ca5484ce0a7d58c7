"""Every walk of the page in every look: a desk and a phone, the light theme and the dark one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
A browser takes every walk of the page against a running Roundhouse with real engines four times: in a desktop window
(1280 by 800) and on a phone (390 by 844, touch), in the light and the dark theme. CI takes each walk in one of these.
Two walks run once: Firefox, and axe-core, which checks all four itself.
"""
PARTS: Mapping[str, Sequence[str]] = {
    "chat": (
        "attachments",
        "chat",
        "composer",
        "conversations",
        "first_hour",
        "messages",
        "server_offers",
        "tool_calls",
    ),
    "streams": ("injection", "streams"),
    "views": ("accessibility", "activity", "documents_view", "firefox", "models_view"),
}
"""Names of the walks' files, as in test_NAME.py."""


def _paths(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"tests/e2e/page/test_{name}.py" for part in parts for name in PARTS[part])


TESTS = _paths(tuple(PARTS))


def declare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=PARTS, help="only these walks")


def run(seed: int, part: str | None = None) -> Outcome:
    """The walks in all looks, of three files at a time, as CI takes them. `part`: those of a part alone; None: all."""
    return run_tests(TESTS if part is None else _paths((part,)), seed, options=("-n", "3", "--dist", "loadfile"))
