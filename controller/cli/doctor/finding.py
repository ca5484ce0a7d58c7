"""What `roundhouse doctor` finds, and how the checks are made. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from controller.cli.doctor.facts import HostFacts


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `message`: what is wrong, with the subject. `remedy`: what to do about it."""

    severity: Literal["fault", "warning"]
    """`fault`: something declared cannot work. `warning`: it works, and may not do so for long, or is not safe."""
    message: str
    remedy: str


Check: TypeAlias = Callable[[HostFacts], Iterator[Finding]]
"""Judges one subject of the facts. Yields nothing where all is well."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found. Empty `findings`: all is well."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Literal["ok", "warning", "fault"]:
        """The worst severity among the findings, `ok` without any."""
        severities = {finding.severity for finding in self.findings}
        if "fault" in severities:
            return "fault"
        return "warning" if severities else "ok"


def fault(message: str, remedy: str) -> Finding:
    """Return a finding of severity `fault`. `message`: what is wrong, with the subject. `remedy`: what to do about
    that."""
    return Finding("fault", message, remedy)


def warning(message: str, remedy: str) -> Finding:
    """Return a finding of severity `warning`. `message`: what is wrong, with the subject. `remedy`: what to do about
    that."""
    return Finding("warning", message, remedy)
