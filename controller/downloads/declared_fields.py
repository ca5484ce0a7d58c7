"""The fields of a definition that serves a model which is downloaded. Pure."""

from __future__ import annotations

from pydantic import JsonValue

from controller.schema.downloads import Inspection
from controller.schema.model_files import MemoryForecast


def build_fields(inspection: Inspection, forecast: MemoryForecast) -> dict[str, JsonValue]:
    """Return the fields of a definition that serves the inspected model: the pinned source, whose files take the place
    of paths; the backend of the forecast, if one is known; and the number of GPUs, if the model fits on any. Without
    a backend the fields are no valid definition."""
    fields: dict[str, JsonValue] = {"source": inspection.pinned}
    if forecast.backend is not None:
        fields["backend"] = forecast.backend
    if (gpus := choose_gpu_count(forecast)) > 0:
        fields["gpus"] = gpus
    return fields


def choose_gpu_count(forecast: MemoryForecast) -> int:
    """Return the smallest number of GPUs on which one replica fits, now or without the models that are loaded now; 0:
    it fits on none, or it is not known whether it does."""
    return min((len(fit.gpus) for fit in forecast.devices if fit.gpus and (fit.fits or fit.fits_alone)), default=0)
