"""Kept logs of removed replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.ended_logs import EndedLogs


def test_a_kept_log_that_cannot_be_read_is_no_error_of_the_system(tmp_path: Path) -> None:
    logs = EndedLogs(tmp_path)
    assert logs.read_log("rh-a-m-0") is None
    logs.log_path("rh-a-m-0").mkdir()
    with pytest.raises(RuntimeUnavailableError, match="the kept log of rh-a-m-0 cannot be read: Is a directory"):
        logs.read_log("rh-a-m-0")
