"""What `roundhouse status --json` prints: models under the field names of the admin API's rows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from controller.schema.status import ControllerStatus

ROW_NAMES: Final = {
    "state": "runtime_state",
    "backend": "resolved_backend",
    "progress": "load_progress",
    "replicas": "replica_details",
}
"""Field of a model's status, deprecated in the output, to the field of a row that says the same."""


def status_as_json(snapshot: ControllerStatus) -> dict[str, Any]:
    """The status for scripts. Fields that rows name otherwise stand under both names, for one version."""
    fields = snapshot.model_dump(mode="json")
    for model in fields["models"]:
        model |= {row_name: model[name] for name, row_name in ROW_NAMES.items()}
        model["is_loaded"] = model["runtime_state"] == "loaded"
    return fields
