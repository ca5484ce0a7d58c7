"""Names from a hub that point out of the models folder, links in the way, and files that are somebody else's."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from controller.schema.errors import RoundhouseError
from tests.support.download_site import hash_files, list_models, list_partials, open_site
from tests.support.fake_hub import FakeHub, Fault, FaultPlan, HubRepository

CONTENT = b"weights" * 5000
MODEL = "model-Q4_K_M.gguf"
NAMES = [
    f"../{MODEL}",
    f"a/../../{MODEL}",
    f"/tmp/{MODEL}",
    f"./{MODEL}",
    f"a//{MODEL}",
    f"a\\..\\{MODEL}",
    f"line\nfeed-{MODEL}",
    f"null\0{MODEL}",
    f"turned\u202e-{MODEL}",
    f"{'x' * 250}-{MODEL}",
    f"{'/'.join(['deep'] * 250)}/{MODEL}",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_path_below_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    with FakeHub([HubRepository("some/model", {name: CONTENT})]) as hub:
        with open_site(tmp_path / "models", hub.endpoint) as site:
            found = site.pull("hf:some/model:Q4_K_M")
            assert found.error is not None
            assert found.error.code == "source_mismatch"
            assert found.error.message.isprintable()
            assert list_models(site.models) == {}
        assert not any(each.server == "storage" for each in hub.requests)
    assert [each.name for each in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("name", NAMES)
def test_the_folder_itself_refuses_such_a_name(name: str, tmp_path: Path) -> None:
    with FakeHub([]) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        partial = site.folder.partial_path("dl_" + "0" * 24, name)
        partial.write_bytes(CONTENT)
        for use in (site.folder.find_file, site.folder.remove_file, lambda path: site.folder.place_file(partial, path)):
            with pytest.raises(RoundhouseError, match="cannot be a path of a model") as failure:
                use(name)
            assert failure.value.entry.code == "models_file_conflict"


def test_a_hub_cannot_reach_the_folder_of_the_downloads(tmp_path: Path) -> None:
    with FakeHub([]) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        assert site.folder.own.name == ".roundhouse"
        with pytest.raises(RoundhouseError, match="folder of the downloads"):
            site.folder.find_file(".roundhouse/records/dl_x.json")


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
    with FakeHub([HubRepository("some/model", {MODEL: CONTENT})]) as hub, open_site(models, hub.endpoint) as site:
        found = site.pull("hf:some/model:Q4_K_M")
    assert found.error is not None
    assert found.error.code == "models_file_conflict"
    assert place.readlink() == outside
    assert [each for each in outside.rglob("*") if each.is_file()] == []


def test_a_link_that_appears_meanwhile_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    plan = FaultPlan(Fault("stall", after_bytes=10))
    with (
        FakeHub([HubRepository("some/model", {MODEL: CONTENT})], faults=plan) as hub,
        open_site(tmp_path / "models", hub.endpoint) as site,
    ):
        download = site.order("hf:some/model:Q4_K_M")
        plan.wait_hit()
        (site.models / "some").symlink_to(outside)
        found = site.wait_final(download)
    assert found.error is not None
    assert found.error.code == "models_file_conflict"
    assert list(outside.iterdir()) == []


def test_a_link_in_the_place_of_a_partial_file_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    with (
        FakeHub([HubRepository("some/model", {MODEL: CONTENT})]) as hub,
        open_site(tmp_path / "models", hub.endpoint) as site,
    ):
        plan = hub.faults
        plan.add(Fault("status", site="resolve", status=404))
        failed = site.pull("hf:some/model:Q4_K_M")
        partial = site.folder.partial_path(failed.id, MODEL)
        for path in (partial, partial.with_name(f"{partial.name}.journal")):
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        assert site.pull("hf:some/model:Q4_K_M").state == "failed"
    assert target.read_text() == "mine"


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    place = tmp_path / "models" / "some" / "model" / MODEL
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    with (
        FakeHub([HubRepository("some/model", {MODEL: CONTENT})]) as hub,
        open_site(tmp_path / "models", hub.endpoint) as site,
    ):
        found = site.pull("hf:some/model:Q4_K_M")
    assert found.error is not None
    assert found.error.code == "models_file_conflict"
    assert place.read_text() == "mine"


def test_a_file_that_appears_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    place = tmp_path / "models" / "some" / "model" / MODEL
    plan = FaultPlan(Fault("stall", after_bytes=10))
    with (
        FakeHub([HubRepository("some/model", {MODEL: CONTENT})], faults=plan) as hub,
        open_site(tmp_path / "models", hub.endpoint) as site,
    ):
        download = site.order("hf:some/model:Q4_K_M")
        plan.wait_hit()
        place.parent.mkdir(parents=True)
        place.write_text("mine")
        found = site.wait_final(download)
        assert found.error is not None
        assert found.error.code == "models_file_conflict"
        assert place.read_text() == "mine"
        place.unlink()
        assert site.pull("hf:some/model:Q4_K_M").state == "finished"
        assert list_models(site.models) == hash_files("some/model", {MODEL: CONTENT})
        assert list_partials(site.models) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o2775])
def test_files_get_the_owner_and_the_rights_of_the_folder(mode: int, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    os.chown(models, 12345, 12346)
    models.chmod(mode)
    with FakeHub([HubRepository("some/model", {MODEL: CONTENT})]) as hub, open_site(models, hub.endpoint) as site:
        assert site.pull("hf:some/model:Q4_K_M").state == "finished"
    for path in (models / "some", models / "some/model", models / "some/model" / MODEL):
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (12345, 12346)
        assert stat.S_IMODE(status.st_mode) == (mode & 0o777 if path.is_dir() else mode & 0o666)


def test_a_hash_that_does_not_match_leaves_nothing(tmp_path: Path) -> None:
    plan = FaultPlan(Fault("wrong_bytes", after_bytes=77, times=0))
    with (
        FakeHub([HubRepository("some/model", {MODEL: CONTENT})], faults=plan) as hub,
        open_site(tmp_path / "models", hub.endpoint) as site,
    ):
        found = site.pull("hf:some/model:Q4_K_M")
        assert found.error is not None
        assert found.error.code == "source_mismatch"
        assert list_models(site.models) == {}
        kept = [path for path in site.folder.own.glob("partial/*/*") if path.stat().st_size]
        assert kept == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_no_obstacle(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    place = tmp_path / "models" / "some" / "model" / MODEL
    with (
        FakeHub([HubRepository("some/model", {MODEL: CONTENT})]) as hub,
        open_site(tmp_path / "models", hub.endpoint) as site,
    ):
        assert site.pull("hf:some/model:Q4_K_M").state == "finished"
        assert list_models(site.models) == hash_files("some/model", {MODEL: CONTENT})
        partial = site.folder.partial_path("dl_" + "0" * 24, MODEL)
        partial.write_bytes(b"other")
        with pytest.raises(RoundhouseError, match="is there already"):
            site.folder.place_file(partial, f"some/model/{MODEL}")
    assert place.read_bytes() == CONTENT
