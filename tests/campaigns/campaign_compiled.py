"""The gateway's tests on its compiled files, as its image has them.

In CI they run on the sources; the tests with containers run on the image, and so on compiled files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tests.campaigns.record import REPOSITORY, Outcome, Table
from tests.support.compiled_gateway import build_gateway, environment_of

ABOUT = """
Compiles the files of the gateway's hot path (`pyproject.toml` names them) and runs the tests of the gateway and the
assistant on them, but those marked `interpreted`, which replace or watch something inside such a file. What must hold:
no test fails that passes on the sources.
"""
FOLDERS: Final = ("tests/unit/gateway", "tests/integration/gateway", "tests/integration/assistant")
_WHERE: Final = "import gateway.exchange.exchange as module; print(module.__file__)"


def run(_seed: int) -> Outcome:
    """Build what is not built, run the tests of `FOLDERS`, and count by folder."""
    environment = {**os.environ, **environment_of(build_gateway())}
    shown = subprocess.run([sys.executable, "-c", _WHERE], env=environment, capture_output=True, text=True, check=True)
    if not shown.stdout.strip().endswith(".so"):
        return Outcome((), (f"the tests would run on {shown.stdout.strip()}",))
    with tempfile.TemporaryDirectory(prefix="rh") as work:
        report = Path(work) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--import-mode=append"),
            *("-m", "not interpreted and not engines", f"--junitxml={report}", *FOLDERS),
        ]
        status = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
        if not report.exists():
            return Outcome((), (f"pytest ended with {status} and left no report",))
        cases = list(ET.parse(report).getroot().iter("testcase"))  # pytest's own, written a moment ago
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    for case in cases:
        place = case.get("classname", "")
        folder = next((each for each in FOLDERS if place.startswith(each.replace("/", "."))), place)
        found = next((each for kind in ("error", "failure", "skipped") if (each := case.find(kind)) is not None), None)
        counts[folder, "passed" if found is None else found.tag] += 1
        if found is not None and found.tag != "skipped":
            failures.append(f"{place}::{case.get('name')}\n{found.get('message', '')}")
    if status and not failures:
        failures.append(f"pytest ended with {status}, and no test failed")
    return Outcome(
        [Table("Tests", ("folder", "outcome", "tests"), [(*of, counts[of]) for of in sorted(counts)])], failures
    )
