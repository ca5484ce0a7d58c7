"""The page's streams in a real browser: broken, left, taken over, and cut by a killed gateway."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
A browser reads answers that the campaign paces while their connection breaks 50 times: cut, refused for a while,
offline, by a reload, by leaving the page. Each text is the engine's to the byte, shown once. A second tab follows and
stops; a killed gateway leaves a true prefix that is marked, and a real engine continues one; a refused request keeps
its message; two tabs that send at once lose nothing.
"""
TESTS = ("tests/e2e/page/test_streams.py",)
run = suite(TESTS)
