"""API keys, the callers that they make, and clients without a key. Pure.

A `KeyRing` is made once per routing table; all requests share its callers. A secret is hashed before it is looked up,
so neither the time of the lookup nor a message reveals anything of it.

A client without a key chooses its own name, so its limits only keep well-meaning programs from crowding each other out.
Declare keys to stop others.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from typing import Final

from contract.errors import RoundhouseError
from contract.keys import DEFAULT_TENANT, Key, KeyScope, ServiceTier
from contract.routing import ModelRoute


class NamePatterns:
    """Patterns that a name may match, in which `*` stands for any text, also none; without patterns, no name matches.
    Immutable. Matching is case-sensitive and takes linear time: a regular expression with many stars could take
    exponential time."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(tuple(pattern.split("*")) for pattern in patterns)

    def matches(self, name: str) -> bool:
        """Return whether one of the patterns matches the whole name. Matching is case-sensitive, and `*` in a pattern
        stands for any text."""
        return any(_matches(pieces, name) for pieces in self._patterns)


def _matches(pieces: tuple[str, ...], name: str) -> bool:
    """Return whether the name consists of the pieces with any text between them."""
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


LONGEST_CLIENT_ID: Final = 100
"""Bytes. Bounds what is remembered per client, since a header may be much longer."""
REMEMBERED_CALLERS: Final = 1024
"""Clients whose `Caller` is cached."""
UNFIT_TEXT: Final = re.compile(rb"[^\x21-\x7e ]+")
"""Characters that a header value must not contain when the gateway forwards it."""


def find_client_text(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return how a client names itself: the first `X-Client-Id`, else the last `User-Agent`; empty if it has neither.

    The value is cut to `LONGEST_CLIENT_ID` bytes and not cleaned: it may hold characters that are unfit for a header.
    `headers`: names in lower case.
    """
    client_text = b""
    for name, value in headers:
        if name == b"x-client-id":
            client_text = value
            break
        if name == b"user-agent":
            client_text = value
    return client_text[:LONGEST_CLIENT_ID]


def clean_client_text(client_text: bytes) -> bytes:
    """Return the text cut to `LONGEST_CLIENT_ID` bytes, with only its printable ASCII characters. Spaces at both ends
    are removed as well. `anonymous` if nothing is left."""
    return UNFIT_TEXT.sub(b"", client_text[:LONGEST_CLIENT_ID]).strip() or b"anonymous"


def client_id_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the client's id for `X-Client-Id` and `X-RateLimit-Client`, from the headers of its request. `headers`:
    names in lower case. The id is never empty: a client that does not name itself is `anonymous`."""
    return clean_client_text(find_client_text(headers))


def find_document_tenant(caller: Caller, headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return whose documents a request is about: those of the key's tenant, whatever the headers say; without a key,
    those of the client that its first `X-Client-Id` names, else of `DEFAULT_TENANT`. `headers`: names in lower case."""
    if caller.name is not None:
        return caller.tenant
    client_text = next((value for name, value in headers if name == b"x-client-id"), b"")
    return UNFIT_TEXT.sub(b"", client_text[:LONGEST_CLIENT_ID]).strip().decode("ascii") or DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of each client id while no keys are declared: per minute, and requests at a time. None: no such limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class ClientDirectory:
    """Makes the callers of requests without a key, and caches the latest `REMEMBERED_CALLERS`.

    The authenticator asks it while no keys are declared. Usage is counted in `RateLimits`, by client id.
    """

    def __init__(self, limits: ClientLimits) -> None:
        self._is_limited = limits != ClientLimits()
        self._caller_of = lru_cache(REMEMBERED_CALLERS)(partial(_limited_caller, limits))

    def find_caller(self, headers: Sequence[tuple[bytes, bytes]]) -> Caller:
        """Return the caller for a request's headers, whose names are in lower case. Never raises.

        Without limits, the caller is `ANONYMOUS` for all requests; else one with the rights of `ANONYMOUS`, the
        client's id and the limits.
        """
        return self._caller_of(client_id_of(headers)) if self._is_limited else ANONYMOUS


def _limited_caller(limits: ClientLimits, client_id: bytes) -> Caller:
    return replace(
        ANONYMOUS,
        client_id=client_id,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrency=limits.concurrency,
        is_limited=True,
    )


REMEMBERED_MODELS: Final = 1024
"""Models for which a caller remembers whether it may use them."""

_TIERS: Final[tuple[ServiceTier, ...]] = ("priority", "default", "flex")
"""Service tiers by rank: 0, 1, 2."""
_ALL_SCOPES: Final[tuple[KeyScope, ...]] = ("inference", "admin")
_BEARER: Final = b"bearer "


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """The sender of a request: one key with its rights and limits, or a client without a key while none are declared.
    None for a limit: there is none. `expires_at`: Unix time in seconds.

    It is immutable and belongs to one routing table; `KeyRing.renew_caller` finds that of a later table.
    """

    name: str | None
    """The key's name; None: a client without a key."""
    client_id: bytes
    """Value of the headers `X-Client-Id` and `X-RateLimit-Client`."""
    tenant: str
    weight: float
    """The tenant's share in fair queueing."""
    scopes: frozenset[KeyScope]
    expires_at: float | None
    """Unix time in seconds from which the key is refused; None: it never expires."""
    requests_per_minute: int | None
    """Maximum number of requests per minute; None: no limit."""
    tokens_per_minute: int | None
    """Maximum number of tokens per minute, prompts and answers together; None: no limit."""
    concurrency: int | None
    """Maximum number of requests at a time, waiting ones included; None: no limit."""
    is_limited: bool
    """Whether any of the three limits is set."""
    sha256: bytes = field(repr=False)
    """Digest of the key's secret."""
    _models: NamePatterns | None = field(repr=False)
    """The models that the key may use; None: every model."""
    _tools: NamePatterns | None = field(repr=False)
    """The tools that the key may call; None: every tool that is enabled."""
    _ranks: Mapping[str, int] = field(repr=False)
    _default_rank: int = field(repr=False)
    is_internal: bool = False
    """Whether the caller is another program of Roundhouse, which no routing table knows."""
    _access_cache: dict[str, tuple[tuple[str, ...], bool]] = field(default_factory=dict, repr=False)
    """By model: its aliases when it was checked, and whether the key may use it."""

    @classmethod
    def of(cls, key: Key) -> Caller:
        """Make the caller of a declared key. Never raises: a digest that is not hexadecimal matches no secret."""
        return _caller_of(key, key.name)

    def require_scope(self, scope: KeyScope) -> None:
        """Check that the key has `scope`. A caller without a key has every scope.

        Raises:
            RoundhouseError: `scope_required` if the key lacks it.
        """
        if scope not in self.scopes:
            raise RoundhouseError("scope_required", f"The key {self.name} lacks the scope `{scope}`.")

    def require_model(self, route: ModelRoute) -> None:
        """Check that the key may use the model: a pattern of the key matches the model's name or one of its aliases.

        Raises:
            RoundhouseError: `model_not_allowed` if none does.
        """
        if self._models is not None and not self.may_see_model(route):
            # The message does not name the model: an alias must not reveal the model's own name.
            raise RoundhouseError("model_not_allowed", f"The key {self.name} is not for this model.", param="model")

    def may_see_model(self, route: ModelRoute) -> bool:
        """Return whether a pattern of the key matches the model's name or one of its aliases.

        If so, the key may use the model by any of these names. True for a key without patterns, and without a key.
        """
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
        """Return whether one of the key's patterns matches exactly this text; aliases are not looked up.

        Matching is case-sensitive, and `*` stands for any text. True for a key without patterns, and without a key.
        """
        return self._models is None or self._models.matches(name)

    def may_call_tool(self, name: str) -> bool:
        """Return whether one of the key's patterns matches the name of a tool. Matching is case-sensitive, and `*`
        stands for any text; a key without patterns may call none. True for a caller without a key."""
        return self._tools is None or self._tools.matches(name)

    def tier_rank(self, service_tier: object) -> int:
        """Return the queue rank for the `service_tier` of a request: 0 priority, 1 default, 2 flex; lowest first.

        A tier that the key lacks counts as the next lower one that the key has, or else the next higher one. Any other
        value (None, `auto`, unknown texts, other types) counts as `default`, and nothing is raised.
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
        _models=None if key.models is None else NamePatterns(key.models),
        _tools=None if name is None else NamePatterns(key.tools),
        _ranks=ranks,
        _default_rank=ranks["default"],
    )


def _ranks(tiers: Collection[ServiceTier]) -> dict[str, int]:
    """Return the rank that a key with `tiers` gets for each tier that a request may ask for."""
    own_ranks = [rank for rank, tier in enumerate(_TIERS) if tier in tiers] or [len(_TIERS) - 1]
    return {
        tier: next((rank for rank in own_ranks if rank >= asked_rank), own_ranks[-1])
        for asked_rank, tier in enumerate(_TIERS)
    }


_EVERYBODY: Final = Key(name="anonymous", sha256=b"", tenant=DEFAULT_TENANT, scopes=_ALL_SCOPES, service_tiers=_TIERS)


def _digest_bytes(digest: str) -> bytes:
    """Decode a digest; an invalid one becomes empty, which no secret has."""
    try:
        return bytes.fromhex(digest)
    except ValueError:
        return b""


ANONYMOUS: Final = _caller_of(_EVERYBODY, None)
"""The caller of requests while no keys are declared. Clients with limits have callers of their own: see
`ClientDirectory`."""


class KeyRing:
    """The keys of one routing table, indexed by name and by the digests of their secrets. Callers without a name are
    left out. Immutable."""

    __slots__ = ("_by_digest", "by_name", "is_empty")

    def __init__(self, callers: Iterable[Caller]) -> None:
        self.by_name: Mapping[str, Caller] = {caller.name: caller for caller in callers if caller.name is not None}
        self._by_digest = {caller.sha256: caller for caller in self.by_name.values()}
        self.is_empty = not self.by_name
        """Whether no keys are declared; then `authenticate_key` returns `ANONYMOUS` for every request."""

    @classmethod
    def of(cls, keys: tuple[Key, ...]) -> KeyRing:
        """Index the keys of a routing table."""
        return cls(Caller.of(key) for key in keys)

    def authenticate_key(self, headers: Sequence[tuple[bytes, bytes]], now_unix: float) -> Caller:
        """Return the caller whose secret is in `Authorization: Bearer` or `X-Api-Key`; `ANONYMOUS`, whatever the
        headers say, if no keys are declared.

        `headers`: names in lower case. `now_unix`: Unix time in seconds; a key is refused from `expires_at` on.

        Raises:
            RoundhouseError: `invalid_api_key` if both headers are missing, the key is unknown or expired,
                `Authorization` has another scheme, a header is repeated, or the two headers have different secrets.
        """
        if self.is_empty:
            return ANONYMOUS
        secret: bytes | None = None
        for name, value in headers:
            if name == b"authorization" or name == b"x-api-key":
                header_secret = _secret_of(name, value)
                # Some clients send the same key in both headers. No client needs to repeat a header.
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
        """Return the caller of this table, with its present rights, for the `caller` that an older table returned.

        A caller without a key, and an internal one, is returned as it is. `now_unix`: Unix time in seconds.

        Raises:
            RoundhouseError: `invalid_api_key` if no key of that name is declared any more, its secret was changed, or
                it has expired; or if the request carried no key and keys are declared now.
        """
        if caller.is_internal:
            return caller
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
