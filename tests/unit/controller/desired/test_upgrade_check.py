"""What a new version would change, decided."""

from __future__ import annotations

from typing import Any

from controller.desired.differences import (
    RunningReplica,
    UpgradeChange,
    list_engine_changes,
    list_schema_changes,
    list_setting_changes,
)
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.engines import ENGINES, spec_hash
from controller.state import DesiredModel
from controller.state_dir import StoredState

IMAGES = {"llama-server": "new/llama:2", "worker": "new/worker:2"}


def desired(**models: dict[str, Any]) -> dict[str, DesiredModel]:
    """Models as this version resolves them in containers."""
    declared = {
        name: DeclaredModel(ENGINES[fields["backend"]].definition.model_validate(fields), fields, 0.0)
        for name, fields in models.items()
    }
    return dict(resolve_desired(declared, StoredState(), Defaults(IMAGES), generation=1).models)


LLAMA = {"backend": "llama_server", "model_path": "m.gguf"}


def test_a_render_version_is_named() -> None:
    models = desired(a=LLAMA)
    before = spec_hash(models["a"].definition, models["a"].image, "a", render_version=1)
    [change] = list_engine_changes(models, [RunningReplica("a", before)] * 2)
    assert change == UpgradeChange(
        "engine", "a", "2 engines would be restarted: llama_server is started otherwise (render_version 1, now 2)"
    )


def test_a_default_image_is_named_where_there_is_one() -> None:
    models = desired(a=LLAMA, own={**LLAMA, "image": "own:1"})
    before = spec_hash(models["a"].definition, "old/llama:1", "a")
    [change] = list_engine_changes(models, [RunningReplica("a", before)])
    assert "1 engine would be restarted: another default image (now new/llama:2)" in change.message
    [change] = list_engine_changes(models, [RunningReplica("own", "0" * 16)])
    assert "image" not in change.message


def test_what_goes_on_as_it_runs_is_replaced_anyway_or_not_declared_is_left_out() -> None:
    models = desired(a=LLAMA, b={"backend": "stub"})
    replicas = [RunningReplica(name, model.spec_hash) for name, model in models.items()]
    replicas += [RunningReplica("a", "0" * 16, is_outdated=True), RunningReplica("gone", "1" * 16)]
    assert list_engine_changes(models, replicas) == []


def test_settings_that_this_version_does_not_read_are_told() -> None:
    variables = ("ROUNDHOUSE_PORT", "ROUNDHOUSE_STOP_TIMEOUT", "ROUNDHOUSE_MOON")
    changes = list_setting_changes(variables, ("ROUNDHOUSE_PORT", "ROUNDHOUSE_STOP_TIMEOUT_S"))
    assert {change.subject: change.message for change in changes} == {
        "ROUNDHOUSE_MOON": "this version does not read it",
        "ROUNDHOUSE_STOP_TIMEOUT": "this version does not read it; there is ROUNDHOUSE_STOP_TIMEOUT_S",
    }
    assert not any(change.is_obstacle for change in changes)


def test_a_file_of_another_schema_version_is_an_obstacle() -> None:
    older, newer = list_schema_changes({"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 2, "c": 2})
    assert (older.subject, older.is_obstacle) == ("a", True)
    assert older.message == (
        "a Roundhouse of before 0.1.0 wrote it (schema_version 1, this version reads 2): "
        "stay with that one, or move the file away"
    )
    assert (newer.subject, newer.is_obstacle) == ("c", True)
    assert newer.message == "a newer Roundhouse wrote it (schema_version 3); this version reads up to 2"
