"""The fields of a definition that serves a model which is downloaded. Pure."""

from __future__ import annotations

from pydantic import JsonValue

from controller.schema.downloads import Inspection
from controller.schema.model_files import MemoryForecast


def build_fields(inspection: Inspection, forecast: MemoryForecast) -> dict[str, JsonValue]:
    """Return the fields: the pinned source, whose files take the place of paths, the backend of the forecast, and GPUs
    where the model fits there. Without a known backend they are no valid definition."""
    fields: dict[str, JsonValue] = {"source": inspection.pinned}
    if forecast.backend is not None:
        fields["backend"] = forecast.backend
    if (gpus := choose_gpu_count(forecast)) > 0:
        fields["gpus"] = gpus
    return fields


def choose_gpu_count(forecast: MemoryForecast) -> int:
    """Return on how many GPUs a replica fits, as few as possible, also if it does not now because of other models; 0:
    on none, or it is not known."""
    return min((len(fit.gpus) for fit in forecast.devices if fit.gpus and (fit.fits or fit.fits_alone)), default=0)
