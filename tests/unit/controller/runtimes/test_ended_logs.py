"""Kept logs of removed replicas."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.ended_logs import KEPT_LOGS, EndedLogs


def test_a_kept_log_that_cannot_be_read_is_no_error_of_the_system(tmp_path: Path) -> None:
    logs = EndedLogs(tmp_path)
    assert logs.read_log("rh-a-m-0") is None
    logs.log_path("rh-a-m-0").mkdir()
    with pytest.raises(RuntimeUnavailableError, match="the kept log of rh-a-m-0 cannot be read: Is a directory"):
        logs.read_log("rh-a-m-0")


def test_logs_of_a_clock_that_was_ahead_do_not_displace_newer_ones(tmp_path: Path) -> None:
    logs, ahead = EndedLogs(tmp_path), time.time() + 40 * 86_400
    for number in range(KEPT_LOGS):
        logs.save_log(f"rh-a-m-0-{number}", b"ahead\n")
        os.utime(logs.log_path(f"rh-a-m-0-{number}"), (ahead, ahead))
    for number in range(KEPT_LOGS, KEPT_LOGS + 3):
        logs.save_log(f"rh-a-m-0-{number}", b"right\n")
    assert len(list(tmp_path.iterdir())) == KEPT_LOGS
    assert [logs.read_log(f"rh-a-m-0-{number}") for number in range(KEPT_LOGS, KEPT_LOGS + 3)] == [b"right\n"] * 3
