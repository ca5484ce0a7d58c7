"""API keys: as a desired file declares them, and as the controller passes them to gateways.

The secret itself is never stored; files and routing tables hold its SHA-256. A fast hash is safe here, because a secret
is 256 random bits and not a password that somebody chose.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SecretStr, field_validator

from contract.status import Wire

KeyScope = Literal["inference", "admin"]
"""What a key gives access to. `inference`: all model routes. `admin`: /v1/admin/*, and the routes that change or reveal
an engine's inner state. `admin` does not include `inference`."""

ServiceTier = Literal["priority", "default", "flex"]
"""Order among the waiting requests of one tenant: `priority` before `default` before `flex`."""

KeyName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")]
"""Name of a key or a tenant, in characters that headers, logs and metrics can all show."""

DEFAULT_TENANT = "default"
"""The tenant of all requests while no keys are declared. Documents are also of the client that `X-Client-Id` names."""


def _reveal_secret(secret: SecretStr) -> str:
    return secret.get_secret_value()


# Only the link between controller and gateways transports the secret itself; repr and logs mask it.
Token = Annotated[SecretStr, PlainSerializer(_reveal_secret, when_used="json")]
"""A bearer token or another secret. JSON holds it in plain text; `repr` and `str` mask it."""


def _moment(value: object) -> object:
    """Convert a date without a time to the end of that day in UTC. YAML 1.2 has no dates, so a date comes as text."""
    if isinstance(value, str) and len(value) == len("2027-01-31"):
        return f"{value}T23:59:59Z"
    return value


class KeyDefinition(BaseModel):
    """One API key as a desired file declares it under `keys`. Immutable. A wrong value or an unknown field raises
    pydantic.ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the secret as 64 hex digits. `roundhouse key new` prints it."
    )
    scopes: list[KeyScope] = Field(
        default=["inference"],
        min_length=1,
        description="Routes that the key gives access to. `inference`: all model routes. `admin`: /v1/admin/* and "
        "the routes that change or reveal an engine's inner state. `admin` does not include `inference`.",
    )
    models: list[str] | None = Field(
        default=None,
        description="Names of the models that the key may use; `*` stands for any text; default: all models.",
    )
    tools: list[str] = Field(
        default=[],
        description="Tools that the key may call, by name (`current_time`, `SERVER__TOOL` of an MCP server); `*` "
        "stands for any text; default: none.",
    )
    tenant: KeyName | None = Field(
        default=None, description="Name of the tenant that the key belongs to; default: the key's own name."
    )
    weight: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="The tenant's share of a busy model, relative to the weights of other tenants.",
    )
    service_tiers: list[ServiceTier] = Field(
        default=["default", "flex"],
        min_length=1,
        description="Values of the request field `service_tier` that the key may use. A request with another value "
        "gets the next lower tier.",
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="Maximum requests per minute; default: no limit."
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="Maximum tokens per minute, prompt and answer together; default: no limit."
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="Maximum requests at a time, including waiting ones; default: no limit."
    )
    expires: Annotated[datetime, BeforeValidator(_moment), Field(strict=False)] | None = Field(
        default=None,
        description="When the key expires: a date (the end of that day in UTC) or a time (ISO 8601); default: never.",
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
    """One API key as gateways know it: with the SHA-256 of the secret, never the secret. None means all models in
    `models`, and no limit in a limit."""

    name: str
    sha256: str
    tenant: str
    scopes: tuple[KeyScope, ...] = ("inference",)
    models: tuple[str, ...] | None = None
    tools: tuple[str, ...] = ()
    weight: float = 1.0
    service_tiers: tuple[ServiceTier, ...] = ("default", "flex")
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    expires_at: float | None = Field(
        default=None, description="Unix time in seconds from which the key is refused; null: it does not expire."
    )
