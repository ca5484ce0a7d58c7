"""Wire contract of the admin API's downloads and model files: what an order says beside the download itself, and what
lies in the models folders."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from contract.admin import EstimateSource
from contract.downloads import Download, DownloadOrder, Inspection
from contract.status import Wire


class ModelDownloadOrder(DownloadOrder):
    """What to download, or to look at, and for which backend."""

    backend: str | None = Field(
        default=None,
        max_length=100,
        description="Backend whose memory is predicted; default: the one that follows from the file.",
    )


class DeviceFit(Wire):
    """Whether one replica fits on one device: a GPU, several GPUs together, or main memory."""

    gpus: list[str] = Field(description="Labels of the GPUs, such as `0`; empty: main memory.")
    needed_mib: int = Field(description="MiB that a replica takes there; of several GPUs, of each.")
    free_mib: int | None = Field(
        default=None, description="MiB that are free there now; of several GPUs, of the fullest. null: not known."
    )
    total_mib: int | None = Field(default=None, description="MiB in all; of several GPUs, of the smallest.")
    fits: bool = Field(description="Whether a replica fits there now, beside the others.")
    fits_alone: bool = Field(description="Whether a replica fits there once no other model of Roundhouse is loaded.")
    beside: list[str] = Field(description="Models that are loaded there, by name.")
    reason: str | None = Field(default=None, description="Why it does not fit; null: it does.")


class MemoryForecast(Wire):
    """The memory that a model will take that is not downloaded yet, at its default context length, and where it
    fits."""

    summary: str = Field(description="The forecast in words, such as `fits on GPU 0 beside qwen`.")
    backend: str | None = Field(default=None, description="Backend of the forecast; null: not known.")
    devices: list[DeviceFit] = Field(
        default_factory=list, description="Every GPU, and main memory. Empty: what the model takes is not known."
    )
    reason: str | None = Field(default=None, description="Why it is not known; null: it is.")


class InspectedModel(Wire):
    """What a reference is, before anything is downloaded."""

    name: str = Field(description="A name for the model, made from the reference.")
    inspection: Inspection = Field(description="Files and sizes.")
    forecast: MemoryForecast = Field(description="Memory, and where it fits.")
    fields: dict[str, JsonValue] = Field(
        description="Fields of a definition that serves the model, for a file or a runtime declaration."
    )


class OrderedDownload(Download):
    """A download that was just ordered."""

    inspection: Inspection = Field(description="Files and sizes.")
    forecast: MemoryForecast = Field(description="Memory, and where it fits.")


class ModelFile(Wire):
    """A model in a models folder: a file, all files of a split one, or a folder."""

    path: str = Field(description="Path below its models folder, as a definition names it.")
    folder: str = Field(description="The models folder.")
    kind: Literal["file", "folder"] = Field(description="What is at the path.")
    size: int = Field(description="Bytes of all its files.")
    origin: Literal["download", "hand"] = Field(
        description="`download`: all its files were downloaded; `hand`: somebody put at least one of them there."
    )
    download: str | None = Field(default=None, description="Id of the download; null: there is none.")
    reference: str | None = Field(default=None, description="Reference with its revision; null: not downloaded.")
    used_by: list[str] = Field(description="Declared models that use it, by name.")
    memory_mib: int | None = Field(
        default=None, description="Estimated memory of one replica in MiB, all its GPUs together; null: not known."
    )
    memory_on: Literal["gpu", "host"] | None = Field(
        default=None, description="Which memory that is: of GPUs, or main memory; null: not known."
    )
    memory_source: EstimateSource | None = Field(default=None, description="Where the estimate is from; null: none.")


class ModelFileList(Wire):
    """Answer of `GET /v1/admin/models/files`."""

    folders: list[str] = Field(description="The models folders, in the order in which a path is searched.")
    models: list[ModelFile] = Field(description="What lies there, by path.")
    total_bytes: int = Field(description="Size of all of it.")
    is_complete: bool = Field(description="false: there are more files than are listed.")
