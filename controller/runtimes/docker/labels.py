"""The labels by which Roundhouse recognizes its containers. There is no other record of what runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controller.runtimes.base import StartRequest
from controller.schema.status import SCHEMA_VERSION
from controller.state import ReplicaId

PREFIX: Final = "dev.roundhouse."
MANAGED_BY: Final = PREFIX + "managed-by"
INSTANCE: Final = PREFIX + "instance"
ROLE: Final = PREFIX + "role"
SCHEMA: Final = PREFIX + "schema_version"
MODEL: Final = PREFIX + "model"
REPLICA: Final = PREFIX + "replica"
SPEC_HASH: Final = PREFIX + "spec-hash"
ATTEMPT: Final = PREFIX + "attempt"
CLAIMS: Final = PREFIX + "claims"
CREATED: Final = PREFIX + "created"

REPLICA_ROLE: Final = "replica"
PROBE_ROLE: Final = "gpu-probe"
NETWORK_ROLE: Final = "engines"
CACHE_ROLE: Final = "cache"

_MANAGER: Final = "roundhouse"


class UnreadableLabelsError(ValueError):
    """A container has labels of Roundhouse that this version cannot read: a newer version wrote them, or they are
    damaged. It is a ValueError."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The replica's id and claims (MiB by GPU uuid or HOST), as `read_labels` reads them from the labels of its
    container."""

    id: ReplicaId
    claims: Mapping[str, int]
    """GPU uuid to MiB, and HOST to MiB of main memory."""


def own_labels(instance: str, role: str) -> dict[str, str]:
    """Return the labels of everything that this instance creates: containers, networks and volumes. `role` is one of
    the constants `..._ROLE`."""
    return {MANAGED_BY: _MANAGER, INSTANCE: instance, ROLE: role, SCHEMA: str(SCHEMA_VERSION)}


def own_filter(instance: str) -> list[str]:
    """Return the label filter, for requests to the daemon, that selects what this instance created."""
    return [f"{MANAGED_BY}={_MANAGER}", f"{INSTANCE}={instance}"]


def is_own(labels: Mapping[str, str] | None, instance: str, role: str) -> bool:
    """Return whether labels are those of something that this instance created for this role. False for None. The
    version of the labels is not checked."""
    label_map = labels or {}
    return label_map.get(MANAGED_BY) == _MANAGER and label_map.get(INSTANCE) == instance and label_map.get(ROLE) == role


def write_labels(instance: str, request: StartRequest, now: float) -> dict[str, str]:
    """Return the labels of a replica's container. They hold no secret. `now` is a Unix time in seconds."""
    return {
        **own_labels(instance, REPLICA_ROLE),
        MODEL: request.id.model,
        REPLICA: str(request.id.index),
        SPEC_HASH: request.id.spec_hash,
        ATTEMPT: str(request.id.attempt),
        CLAIMS: json.dumps(dict(request.claims), sort_keys=True, separators=(",", ":")),
        CREATED: f"{now:.3f}",
    }


def read_labels(labels: Mapping[str, str]) -> Labels:
    """Read the labels that `write_labels` made. Other labels are ignored.

    Raises UnreadableLabelsError if one is missing or damaged, or if a newer version wrote them. Which instance and role
    they name is not checked: see `is_own`.
    """
    try:
        _check_version(int(labels[SCHEMA]))
        replica = ReplicaId(
            model=labels[MODEL],
            index=int(labels[REPLICA]),
            spec_hash=labels[SPEC_HASH],
            attempt=int(labels[ATTEMPT]),
        )
        return Labels(replica, _claims(labels[CLAIMS]))
    except KeyError as error:
        raise UnreadableLabelsError(f"label {error.args[0]} is missing") from error
    except UnreadableLabelsError:
        raise
    except ValueError as error:
        raise UnreadableLabelsError(str(error)) from error


def _check_version(version: int) -> None:
    if version > SCHEMA_VERSION:
        raise UnreadableLabelsError(f"they are of schema_version {version}, this Roundhouse knows {SCHEMA_VERSION}")


def _claims(text: str) -> dict[str, int]:
    claims = json.loads(text)
    if not isinstance(claims, dict) or not all(type(mib) is int for mib in claims.values()):
        raise UnreadableLabelsError(f"label {CLAIMS} is not a mapping of GPU uuids to MiB: {text!r}")
    return claims
