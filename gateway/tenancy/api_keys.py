"""Who sends a request, by its key, and what that key opens. Pure: `now` is an argument.

A ring is made once per routing table; its callers are shared by all requests. A secret is hashed before anything looks
at it, so neither the lookup nor a message can tell anything of it.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.keys import ANONYMOUS_TENANT, Key, KeyScope, ServiceTier
from controller.schema.routing import ModelRoute

REMEMBERED_MODELS: Final = 1024
"""Models of which a caller remembers whether it may use them."""

_TIERS: Final[tuple[ServiceTier, ...]] = ("priority", "default", "flex")
"""By rank."""
_ALL_SCOPES: Final[tuple[KeyScope, ...]] = ("inference", "admin")
_BEARER: Final = b"bearer "


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """One key and its rights, or everybody where no keys are declared."""

    name: str | None
    """None: everybody."""
    client_id: bytes
    """As `X-Client-Id` and `X-RateLimit-Client` carry it."""
    tenant: str
    weight: float
    scopes: frozenset[KeyScope]
    expires_at: float | None
    """Unix time; None: never."""
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    is_limited: bool
    sha256: bytes = field(repr=False)
    _models: tuple[tuple[str, ...], ...] | None = field(repr=False)
    """Per pattern its pieces between stars; None: every model."""
    _ranks: Mapping[str, int] = field(repr=False)
    _default_rank: int = field(repr=False)
    _access_cache: dict[str, tuple[tuple[str, ...], bool]] = field(default_factory=dict, repr=False)
    """Model to the aliases it had when it was looked at, and whether the key is for it."""

    @classmethod
    def of(cls, key: Key) -> Caller:
        """Who sends this key."""
        return _caller_of(key, key.name)

    def require_scope(self, scope: KeyScope) -> None:
        """Raises RoundhouseError `scope_required`."""
        if scope not in self.scopes:
            raise RoundhouseError("scope_required", f"The key {self.name} lacks the scope `{scope}`.")

    def require_model(self, route: ModelRoute) -> None:
        """Raises RoundhouseError `model_not_allowed`."""
        if self._models is not None and not self.may_see_model(route):
            # Not the model's name: an alias must not tell what stands behind it.
            raise RoundhouseError("model_not_allowed", f"The key {self.name} is not for this model.", param="model")

    def may_see_model(self, route: ModelRoute) -> bool:
        """Whether the key is for the model, by its name or by an alias."""
        if self._models is None:
            return True
        cache_entry = self._access_cache.get(route.name)
        if cache_entry is not None and cache_entry[0] == route.aliases:
            return cache_entry[1]
        is_allowed = any(map(self.may_see_name, (route.name, *route.aliases)))
        if len(self._access_cache) >= REMEMBERED_MODELS:
            self._access_cache.clear()
        self._access_cache[route.name] = (route.aliases, is_allowed)
        return is_allowed

    def may_see_name(self, name: str) -> bool:
        """Whether the key is for a model by this name."""
        return self._models is None or any(_matches(pieces, name) for pieces in self._models)

    def tier_rank(self, service_tier: object) -> int:
        """The place of a request that asks for this tier: 0 priority, 1 default, 2 flex.

        A tier that the key lacks counts as the next lower one that it has; where it has none below, as the next above.
        What names no tier (`auto`, unknown texts, other types, which the engine may refuse) counts as `default`.
        """
        if service_tier.__class__ is str:
            return self._ranks.get(service_tier, self._default_rank)
        return self._default_rank


def _caller_of(key: Key, name: str | None) -> Caller:
    ranks = _ranks(key.service_tiers)
    return Caller(
        name=name,
        client_id=key.name.encode(),
        tenant=key.tenant,
        weight=key.weight,
        scopes=frozenset(key.scopes),
        expires_at=key.expires_at,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        concurrency=key.concurrency,
        is_limited=(key.requests_per_minute, key.tokens_per_minute, key.concurrency) != (None, None, None),
        sha256=_digest_bytes(key.sha256),
        _models=None if key.models is None else tuple(tuple(model.split("*")) for model in key.models),
        _ranks=ranks,
        _default_rank=ranks["default"],
    )


def _ranks(tiers: Collection[ServiceTier]) -> dict[str, int]:
    """Of each tier that may be asked for, the place that it gives to a key with these."""
    own_ranks = [rank for rank, tier in enumerate(_TIERS) if tier in tiers] or [len(_TIERS) - 1]
    return {
        tier: next((rank for rank in own_ranks if rank >= asked_rank), own_ranks[-1])
        for asked_rank, tier in enumerate(_TIERS)
    }


def _matches(pieces: tuple[str, ...], name: str) -> bool:
    """Whether the name is the pieces with any text between them. No regular expression: many stars would make one
    take exponential time."""
    first_piece, *inner_pieces = pieces
    if not inner_pieces:
        return name == first_piece
    last_piece = inner_pieces.pop()
    if not name.startswith(first_piece) or not name.endswith(last_piece):
        return False
    position, end = len(first_piece), len(name) - len(last_piece)
    for piece in inner_pieces:
        index = name.find(piece, position, end)
        if index < 0:
            return False
        position = index + len(piece)
    return position <= end


_EVERYBODY: Final = Key(
    name=ANONYMOUS_TENANT, sha256=b"", tenant=ANONYMOUS_TENANT, scopes=_ALL_SCOPES, service_tiers=_TIERS
)


def _digest_bytes(digest: str) -> bytes:
    """A damaged digest is no secret's."""
    try:
        return bytes.fromhex(digest)
    except ValueError:
        return b""


ANONYMOUS: Final = _caller_of(_EVERYBODY, None)
"""Everybody, where no keys are declared."""


class KeyRing:
    """The keys of one routing table, by the digest of their secrets."""

    __slots__ = ("_by_digest", "by_name", "is_empty")

    def __init__(self, callers: Iterable[Caller]) -> None:
        self.by_name: Mapping[str, Caller] = {caller.name: caller for caller in callers if caller.name is not None}
        self._by_digest = {caller.sha256: caller for caller in self.by_name.values()}
        self.is_empty = not self.by_name
        """No keys are declared: everybody is `ANONYMOUS`."""

    @classmethod
    def of(cls, keys: tuple[Key, ...]) -> KeyRing:
        """Index the keys of a table."""
        return cls(Caller.of(key) for key in keys)

    def authenticate_key(self, headers: Sequence[tuple[bytes, bytes]], now_unix: float) -> Caller:
        """Who sends a request with these headers, whose names are in lower case.

        Raises RoundhouseError `invalid_api_key`.
        """
        if self.is_empty:
            return ANONYMOUS
        secret: bytes | None = None
        for name, value in headers:
            if name == b"authorization" or name == b"x-api-key":
                header_secret = _secret_of(name, value)
                # Some clients send the same key in both headers; nobody needs one header twice.
                if secret is not None and (header_secret != secret or _has_repeated_header(headers)):
                    raise _invalid_key_error("The request carries two keys.")
                secret = header_secret
        if secret is None:
            raise _invalid_key_error("The request carries no key.")
        digest = sha256(secret).digest()
        caller = self._by_digest.get(digest)
        if caller is None or not hmac.compare_digest(caller.sha256, digest):
            raise _invalid_key_error("The request carries a key that is not known here.")
        if caller.expires_at is not None and now_unix >= caller.expires_at:
            raise _expired_key_error(caller)
        return caller

    def renew_caller(self, caller: Caller, now_unix: float) -> Caller:
        """Whose a request is that came under an older table, by the key that it carried then.

        Raises RoundhouseError `invalid_api_key`: the key is no more, or there are keys now and it carried none.
        """
        if caller.name is None:
            if not self.is_empty:
                raise _invalid_key_error("Keys have been declared while the request waited, and it carries none.")
            return caller
        current_caller = self.by_name.get(caller.name)
        if current_caller is None or not hmac.compare_digest(current_caller.sha256, caller.sha256):
            raise _invalid_key_error(f"The key {caller.name} was revoked while the request waited.")
        if current_caller.expires_at is not None and now_unix >= current_caller.expires_at:
            raise _expired_key_error(current_caller)
        return current_caller


def _expired_key_error(caller: Caller) -> RoundhouseError:
    expired_at = datetime.fromtimestamp(caller.expires_at or 0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _invalid_key_error(f"The key {caller.name} expired at {expired_at}.")


def _secret_of(name: bytes, value: bytes) -> bytes:
    if name != b"authorization":
        return value.strip(b" \t")
    if value[:7].lower() != _BEARER:
        raise _invalid_key_error("The Authorization header has another form than `Bearer SECRET`.")
    return value[7:].strip(b" \t")


def _has_repeated_header(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    names = [name for name, _ in headers if name in (b"authorization", b"x-api-key")]
    return len(names) != len(set(names))


def _invalid_key_error(message: str) -> RoundhouseError:
    return RoundhouseError("invalid_api_key", message)
