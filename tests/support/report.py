"""What a test run tells at its end: seconds by folder and file (`--durations=0`), and what was skipped.

A pytest plugin. With pytest-xdist the reports of all processes come together in the first one, which prints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from tests.support.require import summarize_skips

WAS_XFAIL = "wasxfail"


class RunReport:
    """Collects every test's seconds and every skip's reason."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._skips: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.skipped and not hasattr(report, WAS_XFAIL):
            self._skips.append(_reason_of(report))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print seconds by folder and file where all durations were asked for."""
        if self._config.getoption("durations") != 0:
            return
        terminalreporter.section("seconds by folder and file")
        for line in summarize_times(self._seconds):
            terminalreporter.line(line)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Print what was skipped, after everything else."""
        yield
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and not self._config.getoption("collectonly"):
            for line in summarize_skips(self._skips):
                terminal.write_line(line)


def summarize_times(seconds: Mapping[str, float]) -> list[str]:
    """One line per folder, with its files below it, both from the slowest. `seconds` is by file."""
    folders: defaultdict[str, float] = defaultdict(float)
    for path, spent in seconds.items():
        folders[path.rpartition("/")[0]] += spent
    lines = [f"{sum(seconds.values()):9.1f} s in all, added up over processes"]
    for folder, whole in _slowest_first(folders):
        lines.append(f"{whole:9.1f} s {folder}")
        within = {path: spent for path, spent in seconds.items() if path.rpartition("/")[0] == folder}
        lines += [f"{spent:14.1f} s {path.rpartition('/')[2]}" for path, spent in _slowest_first(within)]
    return lines


def _slowest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])


def _reason_of(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


def pytest_configure(config: pytest.Config) -> None:
    """Report in the process that prints: the only one, or the one that the others report to."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunReport(config), "roundhouse-run-report")
