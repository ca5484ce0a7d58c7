"""`roundhouse doctor`: say what is wrong with this host and installation, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cli.options import Desired, Json, Models, Runtime, State, read_settings
from cli.output import ExitCode, count_words, one_line, print_json, print_line
from controller import __version__

if TYPE_CHECKING:
    from cli.doctor_checks import CheckResult, HostFacts


def doctor(
    desired: Desired = None,
    state: State = None,
    models: Models = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> int:
    """Say what is wrong with this host and installation.

    And what to do about it. Checks Docker, the NVIDIA driver and container toolkit, disk space, clock, memory,
    settings, folders, ports, the desired-state files, model files and images. Needs no controller and changes nothing.
    Exit code 0: nothing is wrong. 1: something cannot work. 2: there are warnings only.
    """
    from cli.doctor_facts import read_facts  # docker, psutil and pydantic

    settings = read_settings(desired=desired, state=state, models=models, runtime=runtime)
    results = check_facts(read_facts(settings, os.environ))
    if as_json:
        print_json(
            {
                "version": __version__,
                "ok": all(result.status == "ok" for result in results),
                "checks": [
                    {
                        "name": result.name,
                        "status": result.status,
                        "findings": [asdict(finding) for finding in result.findings],
                    }
                    for result in results
                ],
            }
        )
    else:
        _print_results(results)
    statuses = {result.status for result in results}
    if "fault" in statuses:
        return ExitCode.FAILED
    return ExitCode.PENDING if "warning" in statuses else ExitCode.DONE


def check_facts(facts: HostFacts) -> list[CheckResult]:
    """Judge the facts by every check of `HOST_CHECKS` and `INSTALL_CHECKS`, and return one result per check, also where
    all is well, in the order in which results are shown."""
    from cli.doctor_checks import HOST_CHECKS, INSTALL_CHECKS, CheckResult

    return [CheckResult(name, tuple(check(facts))) for name, check in {**HOST_CHECKS, **INSTALL_CHECKS}.items()]


def _print_results(results: Sequence[CheckResult]) -> None:
    for result in results:
        for finding in result.findings:
            print_line(f"{finding.severity}: {result.name}: {one_line(finding.message)}")
            print_line(f"    to do: {finding.remedy}")
    healthy = [result.name for result in results if not result.findings]
    if healthy:
        print_line(f"healthy: {', '.join(healthy)}")
    count = sum(len(result.findings) for result in results)
    print_line("nothing is wrong" if not count else count_words(count, "finding"))
