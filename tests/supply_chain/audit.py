"""`make audit`: known vulnerabilities of what is locked, by pip-audit. No part of the gate: its answer changes.

Ends with 0 where nothing is known, with 1 where something is, and with 3 where nobody could be asked: pip-audit itself
ends with 0 where an index mirror answers 404 to every question, and with 1 where none answers at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.supply_chain.locks import Pin, list_locks, read_lock

SERVICES: Final = ("pypi", "osv")
"""Asked in this order, until one knows anything."""
FOUND: Final = 1
NOBODY_ASKED: Final = 3
_LONGEST: Final = 160
"""Characters shown of a description."""


@dataclass(frozen=True, slots=True)
class Audit:
    audited: int
    """Packages that it knows."""
    skipped: tuple[str, ...]
    """Packages that it does not know."""
    findings: tuple[str, ...]

    @property
    def is_answer(self) -> bool:
        """Whether it knew anything at all."""
        return self.audited > 0

    def join(self, other: Audit) -> Audit:
        skipped = tuple(sorted({*self.skipped, *other.skipped}))
        return Audit(self.audited + other.audited, skipped, (*self.findings, *other.findings))


def read_report(text: str) -> Audit:
    """What pip-audit printed as JSON; of anything else an audit that is no answer."""
    try:
        packages: list[dict[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Audit(0, (), ())
    known = [package for package in packages if "skip_reason" not in package]
    skipped = tuple(sorted(package["name"] for package in packages if "skip_reason" in package))
    findings = tuple(
        _describe(package, finding) for package in known for finding in sorted(package["vulns"], key=lambda f: f["id"])
    )
    return Audit(len(known), skipped, findings)


def _describe(package: dict[str, Any], finding: dict[str, Any]) -> str:
    fixed = ", ".join(finding["fix_versions"]) or "no version"
    aliases = "".join(f", {alias}" for alias in finding.get("aliases", ()))
    text = " ".join(str(finding.get("description", "")).split())[:_LONGEST]
    return f"{package['name']} {package['version']}: {finding['id']}{aliases} (fixed in {fixed}): {text}"


def judge_audits(audits: Sequence[tuple[str, Audit]]) -> tuple[int, list[str]]:
    """The exit status, and what is printed, of what the services said: the first that is an answer counts."""
    answers = [(service, audit) for service, audit in audits if audit.is_answer]
    if not answers:
        asked = " and ".join(service for service, _ in audits)
        return NOBODY_ASKED, [
            f"audit: no source of advisories could be reached ({asked}): nothing is known, good or bad"
        ]
    service, audit = answers[0]
    lines = list(audit.findings)
    if audit.skipped:
        lines.append(f"audit: {service} does not know {len(audit.skipped)} packages: {', '.join(audit.skipped)}")
    lines.append(f"audit: {len(audit.findings)} known vulnerabilities in {audit.audited} packages, by {service}")
    return FOUND if audit.findings else 0, lines


def ask_service(service: str) -> tuple[Audit, str]:
    """What a service says of all locks, and why it is asked no further where it does not answer."""
    audit, complaint = Audit(0, (), ()), ""
    for lines in list_requirements(pin for lock in list_locks() for pin in read_lock(lock.read_text())):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(lines))
            file.flush()
            options = ("--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json")
            command = [sys.executable, "-m", "pip_audit", *options, "-s", service, "-r", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        part = read_report(done.stdout)
        audit = audit.join(part)
        if not part.is_answer:
            said = (done.stderr.strip().splitlines() or [""])[-1][:_LONGEST]
            complaint = f"it knows none of {len(part.skipped)} packages" if part.skipped else said
            break
    return audit, complaint


def list_requirements(pins: Iterable[Pin]) -> list[list[str]]:
    """All versions of all packages, whatever their markers, as lists of requirements: pip-audit takes a name once.
    Builds of a version (`1.0+cpu`) have no advisories of their own."""
    versions: dict[str, set[str]] = {}
    for pin in pins:
        versions.setdefault(pin.name, set()).add(pin.version.partition("+")[0])
    ordered = {name: sorted(each) for name, each in sorted(versions.items())}
    rounds = range(max(map(len, ordered.values()), default=0))
    return [[f"{name}=={each[number]}" for name, each in ordered.items() if number < len(each)] for number in rounds]


def main() -> None:
    """Ask, print, and end with the status."""
    audits: list[tuple[str, Audit]] = []
    for service in SERVICES:
        audit, complaint = ask_service(service)
        audits.append((service, audit))
        if complaint:
            print(f"audit: {service} does not answer: {complaint}", file=sys.stderr)
        if audit.is_answer:
            break
    status, lines = judge_audits(audits)
    print("\n".join(lines))
    sys.exit(status)


if __name__ == "__main__":
    main()
