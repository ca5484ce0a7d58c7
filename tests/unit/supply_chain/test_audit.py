"""What `make audit` makes of pip-audit's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.supply_chain.audit import Audit, judge_audits, list_requirements, read_report
from tests.supply_chain.locks import Pin

SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
CLEAN = {"name": "a", "version": "1.0", "vulns": []}
HIT = {
    "name": "c",
    "version": "2.0",
    "vulns": [
        {"id": "PYSEC-2", "fix_versions": [], "aliases": [], "description": "worse"},
        {
            "id": "PYSEC-1",
            "fix_versions": ["2.1", "3.0"],
            "aliases": ["CVE-2026-1"],
            "description": "bad\n\nvery " * 90,
        },
    ],
}


def report(*packages: dict[str, Any]) -> Audit:
    return read_report(json.dumps({"dependencies": packages, "fixes": []}))


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):", "[]", '{"fixes": []}'])
def test_what_is_no_report_is_no_answer(text: str) -> None:
    assert not read_report(text).is_answer


def test_every_version_of_every_package_is_asked_for_once() -> None:
    pins = [Pin(name, version, frozenset()) for name, version in (("b", "2"), ("a", "1"), ("b", "1+cpu"), ("b", "2"))]
    assert list_requirements(pins) == [["a==1", "b==1"], ["b==2"]]
    assert list_requirements([]) == []


def test_nobody_asked_is_neither_good_nor_bad() -> None:
    status, [line] = judge_audits([("pypi", report(SKIPPED, SKIPPED)), ("osv", read_report(""))])
    assert status == 3
    assert line == "audit: no source of advisories could be reached (pypi and osv): nothing is known, good or bad"


def test_nothing_found() -> None:
    assert judge_audits([("pypi", report(CLEAN))]) == (0, ["audit: 0 known vulnerabilities in 1 packages, by pypi"])


def test_what_is_found_is_told_with_its_remedy() -> None:
    status, lines = judge_audits([("pypi", read_report("")), ("osv", report(CLEAN, SKIPPED, HIT))])
    assert status == 1
    assert lines[0].startswith("c 2.0: PYSEC-1, CVE-2026-1 (fixed in 2.1, 3.0): bad very bad very ")
    assert len(lines[0]) < 220
    assert lines[1:] == [
        "c 2.0: PYSEC-2 (fixed in no version): worse",
        "audit: osv does not know 1 packages: b",
        "audit: 2 known vulnerabilities in 2 packages, by osv",
    ]
