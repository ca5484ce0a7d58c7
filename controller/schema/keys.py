"""API keys: as a desired file declares them, and as the controller passes them to gateways.

The secret itself is never stored; files and routing tables hold its SHA-256. A fast hash is safe here, because a secret
is 256 random bits and not a password that somebody chose.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from controller.schema.status import Wire

KeyScope = Literal["inference", "admin"]
"""What a key gives access to. `inference`: all model routes. `admin`: /v1/admin/*, and the routes that change or reveal
an engine's inner state. `admin` does not include `inference`."""

ServiceTier = Literal["priority", "default", "flex"]
"""Order among the waiting requests of one tenant: `priority` before `default` before `flex`."""

KeyName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")]
"""Name of a key or a tenant, in characters that headers, logs and metrics can all show."""

ANONYMOUS_TENANT = "anonymous"
"""The tenant of all requests while no keys are declared."""


def _moment(value: object) -> object:
    """Convert a date without a time to the end of that day in UTC. YAML 1.2 has no dates, so a date comes as text."""
    if isinstance(value, str) and len(value) == len("2027-01-31"):
        return f"{value}T23:59:59Z"
    return value


class KeyDefinition(BaseModel):
    """One API key as a desired file declares it under `keys`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the secret, 64 hex digits; `roundhouse key new` prints it."
    )
    scopes: list[KeyScope] = Field(default=["inference"], min_length=1, description="What it opens.")
    models: list[str] | None = Field(
        default=None, description="Models that it may use, by name; `*` stands for any text. Left out: all."
    )
    tenant: KeyName | None = Field(default=None, description="Whose it is; default: the key's own name.")
    weight: float = Field(
        default=1.0, gt=0, le=1000, description="The tenant's share of a busy model, against other tenants' weights."
    )
    service_tiers: list[ServiceTier] = Field(
        default=["default", "flex"],
        min_length=1,
        description="Values of a request's `service_tier` that have effect; another one counts as the next lower.",
    )
    requests_per_minute: int | None = Field(default=None, ge=1, description="Left out: no limit.")
    tokens_per_minute: int | None = Field(default=None, ge=1, description="Prompt and answer; left out: no limit.")
    concurrency: int | None = Field(
        default=None, ge=1, description="Requests at a time, waiting ones included; left out: no limit."
    )
    expires: Annotated[datetime, BeforeValidator(_moment), Field(strict=False)] | None = Field(
        default=None, description="A date (its end, UTC) or a moment (ISO 8601). Left out: never."
    )

    @field_validator("expires")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        try:
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        except OverflowError:
            raise ValueError("lies outside of the calendar") from None


class Key(Wire):
    """One API key as gateways know it."""

    name: str
    sha256: str
    tenant: str
    scopes: tuple[KeyScope, ...] = ("inference",)
    models: tuple[str, ...] | None = None
    weight: float = 1.0
    service_tiers: tuple[ServiceTier, ...] = ("default", "flex")
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    expires_at: float | None = Field(default=None, description="Unix time.")
