"""The fake hub: what clients ask of it that no other test asks, its faults, and the program by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.campaigns.record import REPOSITORY
from tests.support.fake_hub import FakeHub, Fault, FaultPlan, HubRepository

CONTENT = bytes(range(256)) * 40
NAME = "model-Q8_0.gguf"


@pytest.mark.parametrize(("tag", "file"), [("latest", "m-Q4_K_M.gguf"), ("q8_0", "m-Q8_0.gguf"), ("Q2_K", None)])
def test_a_manifest_names_the_files_of_a_quantisation(tag: str, file: str | None) -> None:
    names = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-m-F16.gguf"]
    with FakeHub([HubRepository("some/model", dict.fromkeys(names, b"x"))]) as hub:
        answer = httpx2.get(f"{hub.endpoint}/v2/some/model/manifests/{tag}")
    assert answer.status_code == (200 if file else 400)
    assert answer.json().get("ggufFile", {}).get("rfilename") == file


def test_a_fault_hits_the_requests_that_it_is_for() -> None:
    plan = FaultPlan(
        Fault("status", site="resolve", status=429, retry_after="7", skip=1, times=2),
        Fault("status", site="resolve", status=500, path="other.gguf", times=0),
    )
    found = [plan.take("resolve", NAME) for _ in range(4)]
    assert [each and each.status for each in found] == [None, 429, 429, None]
    assert plan.take("storage", "other.gguf") is None
    assert [plan.take("resolve", "other.gguf") for _ in range(3)] == [plan.hit[-1]] * 3
    plan.clear()
    assert plan.take("resolve", "other.gguf") is None


def test_by_hand_it_says_where_it_is_and_serves_a_folder(tmp_path: Path) -> None:
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / NAME).write_bytes(CONTENT)
    command = [sys.executable, "-m", "tests.support.fake_hub", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip().rpartition("=")[2]
        answer = httpx2.get(f"{endpoint}/own/model/resolve/main/{NAME}", follow_redirects=True)
        assert answer.content == CONTENT
    finally:
        process.terminate()
        process.communicate(timeout=30)
