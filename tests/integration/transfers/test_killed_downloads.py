"""kill -9 at random moments of a download: it goes on with what it had, and ends with the right bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.campaign import RecordProperty, campaign_seeds, record_figure
from tests.support.fake_hub import FakeHub, HubRepository
from tests.support.roundhouse_stack import REPOSITORY
from tests.support.transfers_harness import SEGMENT_BYTES, hash_files, list_models, list_partials, wait_for
from tests.support.wait import DEADLINE_S
from transfers.fetch import FetchJournal
from transfers.models_folder import OWN_FOLDER

REFERENCE = "hf:some/model:Q4_K_M"
SHARDS = 3
STEPS = {"any": 50, "move": 12}
"""Changes of files that a download makes which goes on after a kill, about, by kind."""
KILLED = -signal.SIGKILL


def make_files() -> dict[str, bytes | Path]:
    chance = random.Random(7)
    return {
        f"model-Q4_K_M-{number:05d}-of-{SHARDS:05d}.gguf": chance.randbytes(8 * SEGMENT_BYTES + number)
        for number in range(1, SHARDS + 1)
    }


def start(models: Path, hub: FakeHub, *step: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.transfers.download_program", models, hub.endpoint, REFERENCE]
    return subprocess.Popen(list(map(str, [*command, *step])), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def count_ranges(hub: FakeHub) -> int:
    return sum(each.server == "storage" for each in hub.requests)


def kill_after_ranges(models: Path, hub: FakeHub, count: int) -> int:
    """Kill a download when so many ranges were asked for. Returns its exit status."""
    hub.clear_requests()
    process = start(models, hub)
    ends = time.monotonic() + DEADLINE_S
    while count_ranges(hub) < count and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    return process.returncode


def kill_at_change(models: Path, hub: FakeHub, kind: str, step: int) -> int:
    """Let a download kill itself at a change of files. Returns its exit status."""
    process = start(models, hub, kind, step)
    process.communicate(timeout=DEADLINE_S)
    return process.returncode


def read_journals(models: Path) -> dict[str, list[tuple[int, int]]]:
    """What is noted as done of each file that is not in its place, by its hash."""
    done = {}
    for path in (models / OWN_FOLDER / "partial").glob("*/*.journal"):
        identity = path.read_text().partition("\n")[0]
        size, _, digest = identity.partition(" ")
        if size.isdigit():
            done[digest] = FetchJournal(path).read(identity, int(size))
    return done


def list_matching(hub: FakeHub) -> dict[str, list[tuple[int, int]]]:
    """The ranges that were asked for, by the hash of the file."""
    asked: dict[str, list[tuple[int, int]]] = {}
    for each in hub.requests:
        if each.server == "storage":
            first, _, last = each.headers["range"].removeprefix("bytes=").partition("-")
            asked.setdefault(each.target.partition("?")[0].rpartition("/")[2], []).append((int(first), int(last) + 1))
    return asked


def check_whole(models: Path, right: dict[str, str]) -> None:
    """What is under a final name is whole; where the main file is, the others are."""
    found = list_models(models)
    assert found.items() <= right.items()
    assert min(right) not in found or found == right


@pytest.mark.parametrize("seed", campaign_seeds(1, 10))
def test_three_kills_cost_nothing_that_was_here(seed: int, tmp_path: Path, record_property: RecordProperty) -> None:
    chance = random.Random(seed)
    files = make_files()
    right, models = hash_files("some/model", files), tmp_path / "models"
    with FakeHub([HubRepository("some/model", files)], bytes_per_s=1_000_000) as hub:
        kills = [kill_after_ranges(models, hub, chance.randrange(1, 12))]
        for kind, most in STEPS.items():
            check_whole(models, right)
            kills.append(kill_at_change(models, hub, kind, chance.randrange(most)))
        check_whole(models, right)
        record_figure(record_property, "kills while it ran", kills.count(KILLED))
        done = read_journals(models)
        hub.clear_requests()
        process = start(models, hub)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert output.split() == ["begun", "finished"]
        for digest, ranges in list_matching(hub).items():
            for asked in ranges:
                assert not any(asked[0] < end and begin < asked[1] for begin, end in done.get(digest, [])), asked
    assert list_models(models) == right
    assert sorted(path.name for path in (models / OWN_FOLDER).iterdir()) == ["lock", "partial", "records"]
    assert list_partials(models) == []
    assert [path.suffix for path in (models / OWN_FOLDER / "records").iterdir()] == [".json"]


def request(address: Path, method: str, path: str, body: str | None = None) -> Any:
    """The answer of a program of downloads."""
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(address)), timeout=30) as client:
        answer = client.request(method, f"http://transfers{path}", content=body)
        answer.raise_for_status()
        return answer.json()


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(str(path))
        return True
    return False


def start_program(folder: Path, hub: FakeHub) -> subprocess.Popen[bytes]:
    """`python -m transfers`. Returns when it listens."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    path = folder / "transfers.sock"
    path.unlink(missing_ok=True)
    settings = {
        "ROUNDHOUSE_MODELS": str(folder / "models"),
        "ROUNDHOUSE_TRANSFERS_LISTEN": f"unix:{path}",
        "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS": "127.0.0.1",
        "ROUNDHOUSE_TRANSFERS_KEEP_FREE_GB": "0",
        "ROUNDHOUSE_HUB_ENDPOINT": hub.endpoint,
    }
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "transfers"], cwd=REPOSITORY, env=own | settings, stdout=log, stderr=log
        )
    try:
        wait_for("a listener", lambda: is_listening(path))
    except BaseException:
        process.kill()
        process.wait(30)
        raise
    return process


def test_the_program_goes_on_by_itself_after_a_kill(tmp_path: Path) -> None:
    files = make_files()
    with FakeHub([HubRepository("some/model", files)], bytes_per_s=400_000) as hub:
        program = start_program(tmp_path, hub)
        try:
            order = json.dumps({"reference": REFERENCE})
            download = request(tmp_path / "transfers.sock", "POST", "/downloads", order)["id"]
            wait_for("a range", lambda: count_ranges(hub) > 0)
        finally:
            program.kill()
            program.wait(30)
        hub.bytes_per_s = None
        program = start_program(tmp_path, hub)
        try:
            found = wait_for(
                "the end",
                lambda: (
                    found
                    if (found := request(tmp_path / "transfers.sock", "GET", f"/downloads/{download}"))["ended_at"]
                    else None
                ),
            )
        finally:
            program.terminate()
            program.wait(30)
    assert found["state"] == "finished"
    assert list_models(tmp_path / "models") == hash_files("some/model", files)
    assert list_partials(tmp_path / "models") == []
