"""Wire contract of the admin API's downloads and model files: what an order says beside the download itself, and what
lies in the models folders."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from contract.admin import EstimateSource
from contract.desired import ModelName
from contract.downloads import Download, DownloadOrder, Inspection, ModelChoice, RepositoryFacts
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


class OfferedModel(ModelChoice):
    """A model that a search found, and where it fits by the size of its files."""

    forecast: MemoryForecast = Field(
        description="About the memory that it takes, and where it fits. An inspection reads the files and knows better."
    )
    is_present: bool = Field(default=False, description="Whether the models folder has it.")
    used_by: list[str] = Field(default_factory=list, description="Declared models that use it, by name.")


class OfferedRepository(RepositoryFacts):
    """A repository of the hub in the results of a search, with its models and about where each fits."""

    choices: list[OfferedModel] = Field(default_factory=list, description="Its models, the smallest first.")


class ModelSearch(Wire):
    """Answer to a search of the hub: repositories, their models, and about where each fits."""

    repositories: list[OfferedRepository] = Field(description="Those with a model, the most downloaded first.")


class OrderedDownload(Download):
    """A download that was just ordered."""

    inspection: Inspection = Field(description="Files and sizes.")
    forecast: MemoryForecast = Field(description="Memory, and where it fits.")


class FileMemory(Wire):
    """The memory of one replica of a model that uses a file."""

    memory_mib: int | None = Field(
        default=None, description="Estimated memory of one replica in MiB, all its GPUs together; null: not known."
    )
    memory_on: Literal["gpu", "host"] | None = Field(
        default=None, description="Which memory that is: of GPUs, or main memory; null: not known."
    )
    memory_source: EstimateSource | None = Field(default=None, description="Where the estimate is from; null: none.")


class ModelFile(FileMemory):
    """A model in a models folder: a file, all files of a split one, or a folder. Its memory is that of the model that
    takes the most of those that use it."""

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
    memory_by_model: dict[str, FileMemory] = Field(
        default_factory=dict,
        description="Memory of each model that uses it, by name, where they differ; empty: one does, or all take the "
        "same.",
    )
    serve_as: str | None = Field(
        default=None, description="Name under which it can be declared; null: a model uses it, or it cannot be served."
    )
    reason: str | None = Field(default=None, description="Why it cannot be served; null: it can, or a model uses it.")


class FileDeclarationOrder(BaseModel):
    """Which file of the models folders to declare."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(
        min_length=1,
        max_length=2048,
        description="Path of a file or folder below the models folder, or its absolute path.",
    )
    name: ModelName | None = Field(
        default=None,
        description="Name of the model; default: the name of the model that serves the file already, else the file's.",
    )
    dry_run: bool = Field(default=False, description="true: only say what would be declared.")


class FileDeclaration(Wire):
    """The declaration of a model that serves a file or folder of the models folders, made from what the file says of
    itself, or the one in force that serves it already; or why it cannot be served."""

    path: str = Field(description="Path of the file or folder, as the definition names it.")
    name: str = Field(description="Name of the model.")
    fields: dict[str, JsonValue] = Field(
        default_factory=dict, description="Fields of the definition; empty: it cannot be served."
    )
    forecast: MemoryForecast | None = Field(
        default=None, description="Memory, and where it fits; null: it was not looked at."
    )
    context: int | None = Field(
        default=None, description="Tokens of context that the fields ask for; null: the engine's own number."
    )
    trained_context: int | None = Field(
        default=None, description="Tokens of context that the model was trained for; null: the file does not say."
    )
    has_chat_template: bool | None = Field(
        default=None, description="Whether the file has a template for chats; null: not known."
    )
    projector: str | None = Field(
        default=None, description="Path of the projector beside it, which reads images or sound; null: there is none."
    )
    reason: str | None = Field(default=None, description="Why it cannot be served; null: it can.")
    declared: Literal["new", "before"] | None = Field(
        default=None, description="`new`: it was declared now. `before`: it already was. null: it is not."
    )


class ModelFileList(Wire):
    """Answer of `GET /v1/admin/models/files`."""

    folders: list[str] = Field(description="The models folders, in the order in which a path is searched.")
    models: list[ModelFile] = Field(description="What lies there, by path.")
    total_bytes: int = Field(description="Size of all of it.")
    is_complete: bool = Field(description="false: there are more files than are listed.")
