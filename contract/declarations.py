"""Runtime declarations: models and keys that an operator declares through the admin API, beside those of the files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from contract.status import Problem

DeclarationKind = Literal["models", "keys"]
"""What a runtime declaration declares."""


class RuntimeDeclaration(BaseModel):
    """One model or key that an operator has declared at run time."""

    model_config = ConfigDict(extra="ignore")

    fields: dict[str, JsonValue] = Field(
        description="The fields as declared, as a desired-state file would have them below the name."
    )
    declared_at: float = Field(description="Unix time in seconds of the last change.")
    actor: str = Field(description="Who declared it.")


class RuntimeDeclarations(BaseModel):
    """All runtime declarations, by name."""

    model_config = ConfigDict(extra="ignore")

    models: dict[str, RuntimeDeclaration] = Field(default_factory=dict, description="Declared models, by name.")
    keys: dict[str, RuntimeDeclaration] = Field(default_factory=dict, description="Declared API keys, by name.")


class DeclarationsView(RuntimeDeclarations):
    """Answer of `GET /v1/admin/declarations`. Secrets are masked."""

    problems: list[Problem] = Field(
        description="Why a declaration is not in force. `field` begins with `models.NAME` or `keys.NAME`. The other "
        "declarations are in force."
    )
    places: dict[str, str] = Field(
        default_factory=dict,
        description="Where the files declare models and keys: `models.NAME` or `keys.NAME` to the file and the line.",
    )


class DeclarationView(RuntimeDeclaration):
    """One runtime declaration, with its name. Secrets are masked."""

    kind: DeclarationKind = Field(description="`models` or `keys`.")
    name: str = Field(description="Name of the model or the key.")
