"""Names and tokens of replicas. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from controller.state import ReplicaId

LONGEST_NAME: Final = 63
"""Characters of a replica's name at most. A container's name is a DNS label on its network (RFC 1035)."""

_INSTANCE: Final = re.compile(r"[a-z0-9]{1,16}")
_NAME: Final = re.compile(r"rh-[a-z0-9]{1,16}(-[a-z0-9]+)+")
_PLAIN: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DIGEST_AT_END: Final = re.compile(r"(^|-)[0-9a-f]{8}$")
_INDEX_DIGITS: Final = 3
_ATTEMPT_DIGITS: Final = 6


def replica_name(instance: str, replica: ReplicaId) -> str:
    """Return `rh-<instance>-<slug>-<index>-<hash8>-<attempt>`, a DNS label and valid container name.

    The slug is the model's name. If that is too long, has characters that a DNS label may not have, or ends like a
    digest itself, the slug is changed and ends with a digest of the name, so that `a.b` and `a-b` differ. Raises
    ValueError for an invalid instance.
    """
    if not _INSTANCE.fullmatch(instance):
        raise ValueError(f"instance {instance!r} is not 1 to 16 lower case letters and digits")
    index, attempt = str(replica.index), str(replica.attempt)
    frame = f"rh-{instance}--{replica.spec_hash[:8]}--"
    # Room for the longest index and attempt, so that a model's slug is the same for all its replicas.
    digits = max(_INDEX_DIGITS, len(index)) + max(_ATTEMPT_DIGITS, len(attempt))
    slug = _slug(replica.model, LONGEST_NAME - len(frame) - digits)
    return f"rh-{instance}-{slug}-{index}-{replica.spec_hash[:8]}-{attempt}"


def is_replica_name(instance: str, name: str) -> bool:
    """Return whether a text from outside has the form of a replica name of this instance. Whether there is or was such
    a replica is not checked.

    Such a text is short and contains no path, so it can be used as a file name.
    """
    has_prefix = name.startswith(f"rh-{instance}-") and len(name) <= LONGEST_NAME
    return has_prefix and _NAME.fullmatch(name) is not None


def names_of(instance: str, model: str) -> re.Pattern[str]:
    """Return a pattern for `fullmatch` that matches the names of a model's replicas, of any index, spec hash and
    attempt. Raises ValueError for an invalid instance."""
    sample = replica_name(instance, ReplicaId(model, 0, "0" * 8, 0))
    return re.compile(re.escape(sample.removesuffix("-0-00000000-0")) + r"-\d+-[0-9a-f]{8}-\d+")


def _slug(model: str, max_length: int) -> str:
    is_plain = _PLAIN.fullmatch(model) is not None and len(model) <= max_length
    if is_plain and not _DIGEST_AT_END.search(model):
        return model
    digest = hashlib.sha256(model.encode()).hexdigest()[:8]
    stem = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"{stem[: max_length - len(digest) - 1].rstrip('-')}-{digest}".lstrip("-")


def replica_token(secret: bytes, name: str) -> str:
    """Return the replica's own bearer token: the HMAC-SHA256 of its name in hex, with the instance's `secret` as the
    key. The same arguments always give the same token, so that nothing has to store it."""
    return hmac.new(secret, name.encode(), hashlib.sha256).hexdigest()
