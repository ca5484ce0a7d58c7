"""What a control group says that its processes hold."""

from __future__ import annotations

from controller.runtimes.docker.memory import mapped_bytes


def test_both_kinds_of_control_groups_are_read() -> None:
    first = {"rss": 1, "total_rss": 300, "total_mapped_file": 70, "total_cache": 5000}
    second = {"anon": 300, "file": 5000, "file_mapped": 70, "inactive_file": 4000}
    assert (mapped_bytes(first), mapped_bytes(second), mapped_bytes({})) == (370, 370, 0)
