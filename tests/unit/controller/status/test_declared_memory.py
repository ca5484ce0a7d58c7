"""When a declared `vram_mib` is worth a word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.engines.stub import StubDefinition
from controller.state import DesiredModel, Statement
from controller.status.model_status import explain_vram_gap

MODEL = DesiredModel(
    "m", StubDefinition(backend="stub"), "stub", "h", 1, Statement("file", 0.0, ""), gpu_count=1, vram_mib=8000
)


@pytest.mark.parametrize("observed_mib", [None, 0, 7201, 8000, 8799])
def test_what_is_about_right_is_not_spoken_of(observed_mib: int | None) -> None:
    assert explain_vram_gap(MODEL, observed_mib) is None


def test_a_tenth_more_or_less_is_said_with_both_figures() -> None:
    more, less = explain_vram_gap(MODEL, 9120), explain_vram_gap(MODEL, 4000)
    assert more == (
        "`vram_mib` declares 8000 MiB of each GPU, and a replica was seen to take 9120, 14% more: raise it, or its "
        "next load may find too little memory"
    )
    assert less == (
        "`vram_mib` declares 8000 MiB of each GPU, and a replica was seen to take 4000, 50% less: a lower one leaves "
        "room for others"
    )
    assert explain_vram_gap(MODEL, 7200) is not None
    assert explain_vram_gap(MODEL, 8800) is not None


def test_nothing_is_said_where_nothing_is_declared_or_no_gpu_is_used() -> None:
    assert explain_vram_gap(replace(MODEL, vram_mib=None), 9120) is None
    assert explain_vram_gap(replace(MODEL, gpu_count=0), 9120) is None
