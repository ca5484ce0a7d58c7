"""The arguments of each tool, as its input schema describes them. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from controller.schema.journal import EventKind

LONGEST_WAIT_S: Final = 60.0
"""Most seconds that a tool waits for a load or an unload."""
MOST_LOG_LINES: Final = 1000
MOST_EVENTS: Final = 200

_ModelName = Annotated[str, Field(min_length=1, max_length=400, description="Name or alias of the model.")]
_WaitSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=LONGEST_WAIT_S,
        allow_inf_nan=False,
        description="Most seconds to wait until it is done. 0: answer as soon as it has begun. It goes on after that.",
    ),
]


class ToolArguments(BaseModel):
    """Base of all arguments: pydantic's ValidationError refuses unknown fields and wrong types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NoArguments(ToolArguments):
    """Arguments of a tool that takes none."""


class ModelArguments(ToolArguments):
    """Arguments of a tool about one model."""

    model: _ModelName


class LoadArguments(ModelArguments):
    """Arguments of `load_model`."""

    values: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Fields of the model's backend for this load only, as `load_constraints` of `get_model` names "
        "them; left out: as declared.",
    )
    replicas: int | None = Field(None, ge=1, description="Number of replicas; null: as declared.")
    restart: bool = Field(
        default=False,
        description="true: take `values` also while the model is loaded or loading; its replicas are replaced one at "
        "a time, and running requests finish.",
    )
    wait_s: _WaitSeconds = 0.0


class UnloadArguments(ModelArguments):
    """Arguments of `unload_model`."""

    hold: bool = Field(
        default=True,
        description="Applies to `autoload` models. true: the model stays unloaded until the next load. false: the next "
        "request loads it again.",
    )
    wait_s: _WaitSeconds = 0.0


class EventArguments(ToolArguments):
    """Arguments of `list_events`."""

    model: str | None = Field(None, max_length=400, description="Only events of this model; null: all.")
    kinds: list[EventKind] | None = Field(
        None, description="Only events of these kinds; null: those that say who or what changed something."
    )
    limit: int = Field(50, ge=1, le=MOST_EVENTS, description="Most events.")
    before: int | None = Field(
        None, ge=0, le=2**53 - 1, description="Only events older than the one with this id; null: from the newest on."
    )


class LogArguments(ModelArguments):
    """Arguments of `get_logs`."""

    replica: str | None = Field(
        None, max_length=200, description="Only the log of this replica, as `get_model` names it; null: of all."
    )
    lines: int = Field(100, ge=1, le=MOST_LOG_LINES, description="Number of last lines of each replica.")


class PullArguments(ToolArguments):
    """Arguments of `pull_model`."""

    reference: str = Field(
        min_length=1,
        max_length=400,
        description="What to download, such as `ggml-org/gemma-3-4b-it-GGUF:Q4_K_M`.",
    )


class SearchArguments(ToolArguments):
    """Arguments of `search_documents`."""

    query: str = Field(min_length=1, max_length=32_768, description="What to look for, in words.")
    top_k: int = Field(5, ge=1, le=20, description="Most passages.")
    filter: dict[str, Any] | None = Field(
        None, description='Only documents whose metadata match, such as `{"lang": "en"}`; null: all documents.'
    )
