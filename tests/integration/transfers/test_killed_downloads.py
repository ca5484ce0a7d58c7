"""kill -9 at random moments of a download: it goes on with what it had, and ends with the right bytes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.campaign import RecordProperty, campaign_seeds, record_figure
from tests.support.download_site import SEGMENT_BYTES, hash_files, list_models, list_partials
from tests.support.fake_hub import FakeHub, HubRepository
from tests.support.roundhouse_stack import REPOSITORY
from tests.support.wait import DEADLINE_S
from transfers.fetch.journal import FetchJournal
from transfers.folder.models_folder import OWN_FOLDER

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


def list_asked(hub: FakeHub) -> dict[str, list[tuple[int, int]]]:
    """The ranges that were asked for, by the hash of the file."""
    asked: dict[str, list[tuple[int, int]]] = {}
    for each in hub.requests:
        if each.server == "storage":
            first, _, last = each.headers["range"].removeprefix("bytes=").partition("-")
            asked.setdefault(each.target.partition("?")[0].rpartition("/")[2], []).append((int(first), int(last) + 1))
    return asked


def check_whole(models: Path, right: dict[str, str]) -> None:
    for path, digest in list_models(models).items():
        assert right[path] == digest


@pytest.mark.parametrize("seed", campaign_seeds(1, 10))
def test_three_kills_cost_nothing_that_was_here(seed: int, tmp_path: Path, record_property: RecordProperty) -> None:
    chance = random.Random(seed)
    files = make_files()
    right, models = hash_files("some/model", files), tmp_path / "models"
    with FakeHub([HubRepository("some/model", files)], bytes_per_s=1_000_000) as hub:
        kills = [
            kill_after_ranges(models, hub, chance.randrange(1, 12)),
            *(kill_at_change(models, hub, kind, chance.randrange(most)) for kind, most in STEPS.items()),
        ]
        check_whole(models, right)
        record_figure(record_property, "kills while it ran", kills.count(KILLED))
        done = read_journals(models)
        hub.clear_requests()
        process = start(models, hub)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert output.split() == ["begun", "finished"]
        for digest, ranges in list_asked(hub).items():
            for asked in ranges:
                assert not any(asked[0] < end and begin < asked[1] for begin, end in done.get(digest, [])), asked
    assert list_models(models) == right
    assert sorted(path.name for path in (models / OWN_FOLDER).iterdir()) == ["lock", "partial", "records"]
    assert list_partials(models) == []
    assert [path.suffix for path in (models / OWN_FOLDER / "records").iterdir()] == [".json"]
