"""Names from a hub that point out of the models folder, links in the way, and files that are somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, Fault, FaultPlan, HubRepository
from tests.support.transfers_harness import DownloadSite, error_code, hash_files, list_models, list_partials, open_site

CONTENT = b"weights" * 5000
MODEL = "model-Q4_K_M.gguf"
REFERENCE = "hf:some/model:Q4_K_M"
NAMES = [
    *(f"../{MODEL}", f"a/../../{MODEL}", f"/tmp/{MODEL}", f"./{MODEL}", f"a//{MODEL}", f"a\\..\\{MODEL}"),
    *(f"line\nfeed-{MODEL}", f"null\0{MODEL}", f"turned\u202e-{MODEL}", f"{'x' * 250}-{MODEL}"),
    f"{'/'.join(['deep'] * 250)}/{MODEL}",
]


@contextmanager
def site_with(
    folder: Path, files: dict[str, bytes | Path], faults: FaultPlan | None = None
) -> Iterator[tuple[DownloadSite, FakeHub]]:
    """A hub whose one repository has these files, and downloads from it into `models`."""
    repository = HubRepository("some/model", files)
    with FakeHub([repository], faults=faults) as hub, open_site(folder / "models", hub.endpoint) as site:
        yield site, hub


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_path_below_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    with site_with(tmp_path, {name: CONTENT}) as (site, hub):
        found = site.pull(REFERENCE)
        assert found.error is not None
        assert (found.error.code, found.error.message.isprintable()) == ("source_mismatch", True)
        assert list_models(site.models) == {}
        assert not any(each.server == "storage" for each in hub.requests)
    assert [each.name for each in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("link", ["some", "some/model", f"some/model/{MODEL}"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_on_the_way_is_neither_followed_nor_replaced(link: str, is_there: bool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    if is_there:
        (outside / "model").mkdir(parents=True)
    models = tmp_path / "models"
    place = models / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    with site_with(tmp_path, {MODEL: CONTENT}) as (site, _):
        found = site.pull(REFERENCE)
    assert error_code(found) == "models_file_conflict"
    assert place.readlink() == outside
    assert [each for each in outside.rglob("*") if each.is_file()] == []


def test_a_link_that_appears_meanwhile_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    plan = FaultPlan(Fault("stall", after_bytes=10))
    with site_with(tmp_path, {MODEL: CONTENT}, plan) as (site, _):
        download = site.order(REFERENCE)
        plan.wait_hit()
        (site.models / "some").symlink_to(outside)
        found = site.wait_final(download)
    assert error_code(found) == "models_file_conflict"
    assert list(outside.iterdir()) == []


def test_a_link_in_the_place_of_a_partial_file_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    plan = FaultPlan()
    with site_with(tmp_path, {MODEL: CONTENT}, plan) as (site, _):
        plan.add(Fault("status", site="resolve", status=404))
        failed = site.pull(REFERENCE)
        partial = site.folder.partial_path(failed.id, MODEL)
        for path in (partial, partial.with_name(f"{partial.name}.journal")):
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        assert site.pull(REFERENCE).state == "failed"
    assert target.read_text() == "mine"


def test_a_file_that_appears_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    place = tmp_path / "models" / "some" / "model" / MODEL
    plan = FaultPlan(Fault("stall", after_bytes=10))
    with site_with(tmp_path, {MODEL: CONTENT}, plan) as (site, _):
        download = site.order(REFERENCE)
        plan.wait_hit()
        place.parent.mkdir(parents=True)
        place.write_text("mine")
        found = site.wait_final(download)
        assert error_code(found) == "models_file_conflict"
        assert place.read_text() == "mine"
        place.unlink()
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(site.models) == hash_files("some/model", {MODEL: CONTENT})
        assert list_partials(site.models) == []


def test_a_hash_that_does_not_match_leaves_nothing(tmp_path: Path) -> None:
    plan = FaultPlan(Fault("wrong_bytes", after_bytes=77, times=0))
    with site_with(tmp_path, {MODEL: CONTENT}, plan) as (site, _):
        found = site.pull(REFERENCE)
        assert error_code(found) == "source_mismatch"
        assert list_models(site.models) == {}
        kept = [path for path in site.folder.own.glob("partial/*/*") if path.stat().st_size]
        assert kept == []
