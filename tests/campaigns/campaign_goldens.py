"""Each golden fails where its subject changes.

Found by their text, so that files may move.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tests.campaigns.record import REPOSITORY, Outcome, Table


@dataclass(frozen=True, slots=True)
class Change:
    """`find`, which is there exactly once, becomes `replace`."""

    golden: str
    """The one that must fail: its name, or the test of the state folders that must."""
    what: str
    find: str
    replace: str

    @property
    def subject(self) -> str:
        return self.golden.partition("/")[0]


CHANGES: Final = (
    Change("engines/llama_server", "a flag is another", '"--kv-unified"', '"--kv-split"'),
    Change("engines/llama_cpp", "a flag is another", 'Flag("--n-ctx")', 'Flag("--context")'),
    Change("engines/vllm", "a flag is left out", '        "--disable-uvicorn-access-log",\n', ""),
    Change("engines/vllm_serve", "another program", '(binary or "vllm", "serve")', '(binary or "vllm", "server")'),
    Change("engines/exllamav3", "a flag is another", 'Flag("--cache-size")', 'Flag("-c")'),
    Change("engines/ct2", "a flag is another", 'Flag("--compute-type")', 'Flag("--type")'),
    Change("engines/litert_lm", "another folder of the cache", '/ "litert-lm"', '/ "litert"'),
    Change(
        "engines/onnx",
        "a field counts no longer in the spec hash",
        '"--no-normalize"), Hashed.ALWAYS',
        '"--no-normalize"), Hashed.NEVER',
    ),
    Change("engines/openai_remote", "another default", 'default="/models", description=', 'default="/", description='),
    Change("engines/stub", "a container may write to its root", '"ReadonlyRootfs": True', '"ReadonlyRootfs": False'),
    Change("engines/stub", "the spec hash counts one thing less", '        "served_name": served_name,\n', ""),
    Change("routing/table", "another kind of message", 'Literal["table"] = "table"', 'Literal["routes"] = "routes"'),
    Change("routing/report", "another kind of message", 'Literal["report"] = "report"', 'Literal["told"] = "told"'),
    Change("journal/entries", "an entry says something else", '"the controller stopped"', '"the controller ended"'),
    Change(
        "openapi/document",
        "a parameter has another bound",
        '"schema": {"type": "integer", "minimum": 0},',
        '"schema": {"type": "integer", "minimum": 1},',
    ),
    Change(
        "openapi/document",
        "a path is another",
        '"/v1/admin/models/{name:path}/override",',
        '"/v1/admin/models/{name:path}/statement",',
    ),
    Change("openapi/document", "fewer paths are passed on", '= "/v1/admin/"', '= "/v1/admin/models"'),
    Change("openapi/routes", "a path is another", '.websocket("/internal/link")', '.websocket("/internal/tables")'),
    Change("schema/desired-state", "a field has another bound", "le=31_536_000", "le=31_536_001"),
    Change("cli/roundhouse", "an option is named otherwise", '"--restart"', '"--anew"'),
    Change("cli/worker", "a flag takes another type", '"--token-delay-ms", type=float', '"--token-delay-ms", type=int'),
    Change("cli/exit-codes", "another number", "USAGE = 64", "USAGE = 65"),
    Change(
        "errors/codes",
        "another status",
        "[requests.invalid_load_request]\nstatus = 400",
        "[requests.invalid_load_request]\nstatus = 422",
    ),
    Change(
        "metrics/families",
        "a metric is named otherwise",
        '"roundhouse_gateway_queue_wait_seconds"',
        '"roundhouse_gateway_wait_seconds"',
    ),
    Change("settings/variables", "another default", "heartbeat_s: float = Field(10", "heartbeat_s: float = Field(11"),
    Change("names/docker", "labels begin otherwise", '"dev.roundhouse."', '"org.roundhouse."'),
    Change(
        "names/deployment",
        "the controller listens elsewhere",
        "ROUNDHOUSE_CONTROLLER_LISTEN: controller.control:8090",
        "ROUNDHOUSE_CONTROLLER_LISTEN: controller.control:8091",
    ),
    Change("names/state-folder", "a file is named otherwise", '"observed-memory.json"', '"history.json"'),
    Change("names/strings", "a header is named otherwise", 'b"x-queue-position: %d', 'b"x-queue-place: %d'),
    Change(
        "names/modules",
        "a string names another module",
        '"controller.runtimes.nvml", "--interval"',
        '"controller.runtimes.gpus", "--interval"',
    ),
    Change(
        "state-folders/test_what_a_controller_kept_is_read",
        "the last good state is looked for elsewhere",
        '"desired.json"',
        '"last-good.json"',
    ),
    Change(
        "state-folders/test_what_a_controller_kept_is_read",
        "records of replicas are looked for elsewhere",
        'for path in own_paths if path.suffix == ".json"',
        'for path in own_paths if path.suffix == ".record"',
    ),
    Change(
        "state-folders/test_what_a_gateway_kept_is_read",
        "stored responses are looked for elsewhere",
        '"responses.db"',
        '"answers.db"',
    ),
    Change(
        "state-folders/test_what_a_gateway_of_before_the_first_release_kept_is_refused_and_stays",
        "a file of before the first release is taken for today's",
        "if 0 < version < known_version:",
        "if version < 0:",
    ),
)


ABOUT = """
What must never change by accident is written down in tests/golden, and compared exactly by
tests/unit/goldens/test_goldens.py and tests/unit/goldens/test_golden_state_folders.py. In a copy of the work tree each
subject is changed by a small patch of the product, one at a time: the golden of it must fail, as must nothing before
the first patch.
"""

_GOLDENS: Final = "tests/unit/goldens/test_goldens.py"
_STATE_FOLDERS: Final = "tests/unit/goldens/test_golden_state_folders.py"
_OF_THE_PRODUCT: Final = (".ci", "images", "compose.yaml", "pyproject.toml")
"""Beside the packages."""


def run(seed: int) -> Outcome:
    """Every change there is; nothing here is random."""
    del seed
    rows: list[tuple[str, str, str]] = []
    failures: list[str] = []
    with scratch_copy() as copy:
        if broken := failing_tests(copy, _GOLDENS, _STATE_FOLDERS):
            failures.append(f"without a change there fail {', '.join(broken)}")
        for change in CHANGES:
            failed, problem = try_change(copy, change)
            rows.append((change.golden, f"{change.what}: `{_shown(change)}`", ", ".join(map(_in_table, failed))))
            if problem is not None:
                failures.append(f"{change.golden}, {change.what}: {problem}")
            print(f"{change.golden}: {problem or 'failed, as it must'}", flush=True)
    return Outcome((Table("Changes", ("golden", "what was changed", "tests that failed"), rows),), failures)


@contextmanager
def scratch_copy() -> Iterator[Path]:
    """A copy of the work tree, what git ignores left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        copy = Path(root) / "copy"
        for name in filter(None, listed.stdout.split("\0")):
            if (REPOSITORY / name).is_file():  # else it is deleted, and not yet in git
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, copy / name)
        yield copy


def try_change(copy: Path, change: Change) -> tuple[list[str], str | None]:
    """The tests of the subject that fail with the change, and what is wrong with that; None: nothing."""
    with patched(copy, change):
        if change.subject == "state-folders":
            failed = failing_tests(copy, _STATE_FOLDERS)
        else:
            failed = failing_tests(copy, _GOLDENS, "-k", f"test_a_golden_is_as_the_code_makes_it[{change.subject}/")
    expected = change.golden.removeprefix("state-folders/")
    if not any(expected in name for name in failed):
        return failed, f"{expected} does not fail"
    return failed, None


@contextmanager
def patched(copy: Path, change: Change) -> Iterator[None]:
    [path] = files_with(copy, change)
    text = path.read_text()
    try:
        _write(path, text.replace(change.find, change.replace))
        yield
    finally:
        _write(path, text)


def files_with(root: Path, change: Change) -> list[Path]:
    """The files of the product that hold the text of a change, each as often as it does."""
    packages = [path.parent for path in root.glob("*/__init__.py") if path.parent.name not in ("grafana", "tests")]
    parts = [*packages, *(root / name for name in _OF_THE_PRODUCT)]
    files = [path for part in parts for path in ([part] if part.is_file() else part.rglob("*")) if path.is_file()]
    built = root / "gateway" / "page" / "built"  # in no commit, and no text
    texts = ((path, path.read_text()) for path in files if path.suffix != ".pyc" and built not in path.parents)
    return [path for path, text in texts for _ in range(text.count(change.find))]


def failing_tests(copy: Path, *chosen: str) -> list[str]:
    """The names of those that fail in the copy. Raises where pytest has no verdict of each."""
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", *chosen, f"--junitxml={report}", "-q", "--tb=no"),
        *("-o", "addopts=", "-p", "no:cacheprovider"),
    ]
    # Not this work tree's modules, and not as many examples as a campaign has.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ROUNDHOUSE_", "PYTEST_"))}
    # Plugins would take twice as long as the tests, which need none.
    environment |= {"PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    # 0: all passed, 1: some failed; anything else is no verdict.
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    # The report is pytest's own, written a moment ago.
    cases = list(ET.parse(report).iter("testcase"))
    return [
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Of the same size and second, what is compiled would pass for current.
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _shown(change: Change) -> str:
    find, replace = (" ".join(text.split()) for text in (change.find, change.replace))
    return f"{find} -> {replace}" if replace else f"{find} -> (nothing)"


def _in_table(name: str) -> str:
    return f"`{name}`"
