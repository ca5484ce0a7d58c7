"""What the system says that a process takes."""

from __future__ import annotations

import re
from pathlib import Path

_FIELDS = ("Rss", "Pss", "Private_Dirty", "Anonymous")


def memory_of(pid: int) -> dict[str, float]:
    """By field of `smaps_rollup`, in lower case, in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = ((name, re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)) for name in _FIELDS)
    return {name.lower(): int(match[1]) / 1024 for name, match in found if match}
