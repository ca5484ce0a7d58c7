"""A few faults of the chaos campaign on a whole Roundhouse with real engines under load (tests/support/chaos)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.chaos.faults import KINDS
from tests.support.chaos.play import Chaos, Kind, play
from tests.support.chaos.up_stage import UpStage
from tests.support.chaos.verdict import Record, find_failures

pytestmark = pytest.mark.engines


async def play_on_processes(folder: Path, clockwork: Path, *kinds: str, kills: int) -> Record:
    """These kinds of faults, in an order that is always the same."""
    stage = UpStage(folder)
    shutil.copy(clockwork, stage.models / "clockwork.gguf")
    chosen: list[Kind] = [each for each in KINDS if each.name in kinds]
    assert len(chosen) == len(kinds), "a kind of that name is not there"
    return await play(Chaos(stage, random.Random(0)), chosen, kills)


async def test_no_fault_makes_an_answer_wrong_and_each_is_mended(folder: Path, clockwork: Path) -> None:
    kinds = ("gateway and controller killed", "controller and engine killed", "model edited")
    record = await play_on_processes(folder, clockwork, *kinds, kills=3)
    assert find_failures(record, 3) == []
    assert record.answered > 0
    assert {kill.victim for fault in record.faults for kill in fault.kills} >= {"gateway", "controller"}
