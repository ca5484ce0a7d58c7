"""Downloads from a hub where generated faults happen: the right bytes or a clear error, and nothing in between."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from contract.downloads import Download
from tests.support.campaign import RecordProperty, campaign_seeds, record_figure
from tests.support.fake_hub import FakeHub, Fault, FaultPlan, HubRepository
from tests.support.fake_hub.faults import FaultKind
from tests.support.transfers_harness import (
    SEGMENT_BYTES,
    DownloadSite,
    hash_files,
    list_models,
    list_partials,
    open_site,
)

LENGTHS: tuple[FaultKind, ...] = ("short_length", "long_length", "no_length", "more_bytes")
ENDURED: tuple[FaultKind, ...] = (*LENGTHS, "drop", "other_range", "ignored_range", "slow", "no_head", "stall")
"""Faults of the storage that a download gets over by itself, as it does over `status` where another try may help."""
FATAL: tuple[FaultKind, ...] = ("other_total", "other_etag", "other_commit", "encoded", "wrong_bytes", "redirect")
CLEAR_ERRORS = {"source_mismatch", "source_unavailable", "source_forbidden", "source_not_found"}
MOST_ENDURED = 5
"""Fewer than the failures in a row after which the downloads of these tests are given up."""


def make_repository(chance: random.Random) -> tuple[HubRepository, str, dict[str, bytes | Path]]:
    """A repository, a reference into it, and the files that the reference means."""

    def noise(most: int = 8 * SEGMENT_BYTES) -> bytes:
        few = chance.choice([1, SEGMENT_BYTES, SEGMENT_BYTES + 1])
        return chance.randbytes(few if chance.random() < 0.3 else chance.randrange(SEGMENT_BYTES, most))

    kind = chance.choice(["single", "split", "vision", "folder", "named"])
    others: dict[str, bytes | Path] = {"README.md": b"# A model\n", "model-Q2_K.gguf": noise()}
    if kind == "single":
        chosen: dict[str, bytes | Path] = {"model-Q4_K_M.gguf": noise()}
    elif kind == "split":
        count = chance.randrange(2, 5)
        chosen = {f"Q4_K_M/model-Q4_K_M-{number:05d}-of-{count:05d}.gguf": noise() for number in range(1, count + 1)}
    elif kind == "vision":
        chosen = {"model-Q4_K_M.gguf": noise(), "mmproj-model-F16.gguf": noise()}
    elif kind == "named":
        chosen = {"some/path/weights.gguf": noise()}
        return HubRepository("some/model", others | chosen), "hf:some/model/some/path/weights.gguf", chosen
    else:
        chosen = {
            "config.json": b"{}",
            "empty.txt": b"",
            "model.safetensors": noise(),
            "tokenizer.json": noise(2 * SEGMENT_BYTES),
        }
        return HubRepository("some/model", {**chosen, "README.md": b"#", "old.bin": noise()}), "hf:some/model", chosen
    return HubRepository("some/model", others | chosen), "hf:some/model:Q4_K_M", chosen


def make_fault(chance: random.Random, kind: FaultKind) -> Fault:
    """A fault of the kind, somewhere in a download."""
    return Fault(
        kind,
        site=chance.choice(["storage", "storage", "resolve"]) if kind in ("other_etag", "other_commit") else "storage",
        after_bytes=chance.choice([0, 1, chance.randrange(SEGMENT_BYTES)]),
        resets=chance.random() < 0.5,
        bytes_per_s=400_000,
        skip=chance.choice([0, 0, 0, 1, 2]),
    )


def make_refusal(chance: random.Random) -> Fault:
    """A status that says nothing about the next try."""
    return Fault(
        "status",
        site=chance.choice(["storage", "resolve", "api"]),
        status=chance.choice([429, 500, 502, 503, 504]),
        retry_after=chance.choice([None, "0", "Wed, 21 Oct 2015 07:28:00 GMT", "soon"]),
        skip=chance.randrange(3),
    )


def make_faults(chance: random.Random) -> tuple[list[Fault], bool]:
    """A few faults, and whether a download must get over all of them."""
    endured = [
        make_refusal(chance) if chance.random() < 0.3 else make_fault(chance, chance.choice(ENDURED))
        for _ in range(chance.randrange(1, MOST_ENDURED + 1))
    ]
    if chance.random() < 0.5:
        return endured, True
    fatal = chance.choice(
        [
            *(make_fault(chance, chance.choice(FATAL)) for _ in range(4)),
            Fault("status", site=chance.choice(["storage", "resolve", "api"]), status=503, times=0),
            Fault("status", site="resolve", status=429, retry_after="3600", times=0),
            Fault("status", site=chance.choice(["resolve", "api"]), status=403),
            Fault("status", site="resolve", status=404, error_code="EntryNotFound"),
            Fault("drop", site="api", after_bytes=30, times=0),
        ]
    )
    return [fatal, *endured], False


def check_end(site: DownloadSite, found: Download, right: dict[str, str]) -> None:
    """What must hold after every end: all files or none, each whole."""
    if found.state == "finished":
        assert list_models(site.models) == right
        assert list_partials(site.models) == []
        assert {each.path: each.sha256 for each in found.files} == right
        assert found.done_bytes == found.total_bytes
    else:
        assert found.state == "failed"
        assert found.error is not None
        assert found.error.code in CLEAR_ERRORS, found.error
        assert len(found.error.message) > 20
        assert list_models(site.models) == {}


@pytest.mark.parametrize("seed", campaign_seeds(10, 100))
def test_each_download_ends_in_the_right_bytes_or_a_clear_error(
    seed: int, tmp_path: Path, record_property: RecordProperty
) -> None:
    chance = random.Random(seed)
    repository, reference, chosen = make_repository(chance)
    faults, is_endured = make_faults(chance)
    plan = FaultPlan(*faults)
    with FakeHub([repository], faults=plan) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        right = hash_files("some/model", chosen)
        found = site.pull(reference)
        check_end(site, found, right)
        if is_endured:
            assert found.state == "finished", (found.error, plan.hit)
        for kind, count in Counter(each.kind for each in plan.hit).items():
            record_figure(record_property, f"faults that happened: {kind}", count)
        end = "the right bytes" if found.error is None else found.error.code
        record_figure(record_property, f"downloads that ended with {end}", 1)
        plan.clear()
        if found.state == "failed" and chance.random() < 0.5:
            assert site.board.cancel(found.id).state == "cancelled"
            assert list_partials(site.models) == []
            assert list_models(site.models) == {}
        again = site.pull(reference)
        assert again.state == "finished", again.error
        check_end(site, again, right)
