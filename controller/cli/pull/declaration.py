"""The declaration of a downloaded model: what `pull --declare` sends, and prints for a file. Pure."""

from __future__ import annotations

from typing import Any, Final

from controller.engines import resolve_backend
from controller.schema.desired import Definition
from controller.schema.downloads import Inspection
from controller.schema.model_files import MemoryForecast

SOURCE_FIELD: Final = "source"
_PROJECTOR_FIELD: Final = "llama_server_mmproj"
_PROJECTOR_BACKEND: Final = "llama_server"


def build_fields(inspection: Inspection, forecast: MemoryForecast, backend: str | None) -> dict[str, Any]:
    """Return the fields of a definition of the model: where it is, where it is from, and GPUs where it fits there.

    `backend`: as the operator named it; None: the one that follows from the file.
    """
    fields = _name_source(inspection)
    fields["model_path"] = inspection.main
    if backend is not None:
        fields["backend"] = backend
    if inspection.projector is not None and (backend or resolve_backend(inspection.main)) == _PROJECTOR_BACKEND:
        fields[_PROJECTOR_FIELD] = inspection.projector
    if (gpus := choose_gpu_count(forecast)) > 0:
        fields["gpus"] = gpus
    return fields


def _name_source(inspection: Inspection) -> dict[str, Any]:
    """Return the field with the pinned source, if definitions have it."""
    return {SOURCE_FIELD: inspection.pinned} if SOURCE_FIELD in Definition.model_fields else {}


def choose_gpu_count(forecast: MemoryForecast) -> int:
    """Return on how many GPUs a replica fits, as few as possible, also if it does not now because of other models; 0:
    on none, or it is not known."""
    return min((len(fit.gpus) for fit in forecast.devices if fit.gpus and (fit.fits or fit.fits_alone)), default=0)
