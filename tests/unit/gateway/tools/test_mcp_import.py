"""The library of MCP: its import, which comes with the first server, costs no stream a pause later on."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from gateway.tools.mcp_client.servers import import_connection
counts = [gc.get_freeze_count()]
for _ in range(2):
    import_connection()
    kept = [[] for _ in range(1000)]
    counts.append(gc.get_freeze_count())
print(*counts)
"""


def test_what_the_import_leaves_is_collected_never() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, first, second = map(int, done.stdout.split())
    assert before == 0
    assert first > 10_000
    # A later connection freezes nothing: what requests leave behind by then can be collected.
    assert second == first
