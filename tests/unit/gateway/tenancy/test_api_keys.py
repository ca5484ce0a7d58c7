"""Keys at the gateway: who sends a request, and what that key opens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from controller.schema.keys import Key, ServiceTier
from controller.schema.routing import ModelRoute
from gateway.tenancy.api_keys import ANONYMOUS, REMEMBERED_MODELS, Caller, KeyRing
from tests.fakes.fake_controller import route

SECRET, OTHER = b"rh-" + b"s" * 43, b"rh-" + b"o" * 43
NOON = 1_800_000_000.0


def key(name: str = "ci", secret: bytes = SECRET, **fields: Any) -> Key:
    return Key.model_validate({"name": name, "tenant": name, "sha256": sha256(secret).hexdigest(), **fields})


def aliased(name: str, *aliases: str) -> ModelRoute:
    return route(name).model_copy(update={"aliases": aliases})


RING = KeyRing.of((key(), key("other", OTHER)))


def refusal(ring: KeyRing, *headers: tuple[bytes, bytes], now: float = NOON) -> str:
    with pytest.raises(RoundhouseError) as raised:
        ring.authenticate_key([(b"host", b"localhost"), *headers], now)
    assert raised.value.entry.code == "invalid_api_key"
    for secret in (SECRET, OTHER):
        assert secret.decode() not in raised.value.message
    return raised.value.message


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer " + SECRET),
        (b"authorization", b"bearer " + SECRET),
        (b"authorization", b"BEARER   " + SECRET + b" "),
        (b"x-api-key", SECRET),
        (b"x-api-key", b" " + SECRET),
    ],
)
def test_a_key_is_known_by_its_secret(header: tuple[bytes, bytes]) -> None:
    assert RING.authenticate_key([(b"accept", b"*/*"), header], NOON).name == "ci"


@pytest.mark.parametrize("secret", [b"XsX", b"Bearer s"])
def test_nothing_but_blanks_is_cut_off_a_secret(secret: bytes) -> None:
    ring = KeyRing.of((key("ci", secret),))
    for header in ((b"x-api-key", b"\t " + secret + b" \t"), (b"authorization", b"Bearer \t" + secret + b"\t ")):
        assert ring.authenticate_key([header], NOON).name == "ci"


def test_a_caller_is_what_its_key_says() -> None:
    limits = {"requests_per_minute": 1, "tokens_per_minute": 2, "concurrency": 3}
    caller = Caller.of(key().model_copy(update={"tenant": "team", "weight": 2.5, "expires_at": NOON} | limits))
    assert (caller.name, caller.client_id, caller.tenant, caller.weight) == ("ci", b"ci", "team", 2.5)
    assert (caller.requests_per_minute, caller.tokens_per_minute, caller.concurrency) == (1, 2, 3)
    assert (caller.expires_at, caller.sha256) == (NOON, sha256(SECRET).digest())


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "concurrency"])
def test_one_limit_is_a_limit(limit: str) -> None:
    declared: dict[str, Any] = {limit: 5}
    assert Caller.of(key(**declared)).is_limited
    assert not Caller.of(key()).is_limited
    assert not ANONYMOUS.is_limited


def test_the_same_key_in_both_headers_is_one_key() -> None:
    assert RING.authenticate_key([(b"authorization", b"Bearer " + OTHER), (b"x-api-key", OTHER)], NOON).name == "other"


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([], "carries no key"),
        ([(b"authorization", b"Bearer " + SECRET + b"x")], "not known"),
        ([(b"authorization", b"Bearer ")], "not known"),
        ([(b"x-api-key", b"")], "not known"),
        ([(b"x-api-key", SECRET + b"\x0b")], "not known"),
        ([(b"authorization", b"Bearer " + SECRET + b"\x0b")], "not known"),
        ([(b"x-api-key", sha256(SECRET).hexdigest().encode())], "not known"),
        ([(b"authorization", b"Bearer \xff\xfe\x00")], "not known"),
        ([(b"authorization", SECRET)], "another form"),
        ([(b"authorization", b"Basic " + SECRET)], "another form"),
        ([(b"authorization", b"Bearer")], "another form"),
        ([(b"authorization", b"Bearer " + SECRET), (b"x-api-key", OTHER)], "two keys"),
        ([(b"x-api-key", OTHER), (b"authorization", b"Bearer " + SECRET)], "two keys"),
        ([(b"x-api-key", SECRET), (b"x-api-key", SECRET)], "two keys"),
        ([(b"authorization", b"Bearer " + SECRET)] * 2, "two keys"),
        ([(b"authorization", b"Bearer " + SECRET), (b"x-api-key", SECRET), (b"x-api-key", SECRET)], "two keys"),
    ],
)
def test_what_is_no_valid_key(headers: list[tuple[bytes, bytes]], words: str) -> None:
    assert words in refusal(RING, *headers)


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's clock shows another time than UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "XXX-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_away")
def test_an_expired_key_says_which_and_when() -> None:
    ring = KeyRing.of((key(expires_at=NOON),))
    assert ring.authenticate_key([(b"x-api-key", SECRET)], NOON - 1).name == "ci"
    assert refusal(ring, (b"x-api-key", SECRET)) == "The key ci expired at 2027-01-15T08:00:00Z."


def test_without_keys_everybody_may_do_everything() -> None:
    ring = KeyRing.of(())
    assert ring.is_empty
    for headers in ([], [(b"authorization", b"Basic x")], [(b"x-api-key", SECRET)] * 2):
        assert ring.authenticate_key(headers, NOON) is ANONYMOUS
    assert (ANONYMOUS.name, ANONYMOUS.client_id, ANONYMOUS.tenant, ANONYMOUS.weight) == (
        None,
        b"anonymous",
        "anonymous",
        1.0,
    )
    ANONYMOUS.require_scope("inference")
    ANONYMOUS.require_scope("admin")
    ANONYMOUS.require_model(route("any"))
    assert [ANONYMOUS.tier_rank(tier) for tier in ("priority", "default", "flex")] == [0, 1, 2]


def test_a_damaged_key_opens_nothing_and_is_a_key_all_the_same() -> None:
    ring = KeyRing.of((key().model_copy(update={"sha256": "üüü"}),))
    assert not ring.is_empty
    refusal(ring, (b"x-api-key", SECRET))
    refusal(ring, (b"x-api-key", "üüü".encode()))


def test_a_request_that_waited_keeps_its_key_while_there_is_one() -> None:
    caller = RING.by_name["ci"]
    newer = KeyRing.of((key(weight=3.0, expires_at=NOON), key("other", OTHER)))
    assert newer.renew_caller(caller, NOON - 1) is newer.by_name["ci"]
    with pytest.raises(RoundhouseError, match=r"The key ci expired at 2027-01-15T08:00:00Z\.") as raised:
        newer.renew_caller(caller, NOON)
    assert raised.value.entry.code == "invalid_api_key"
    for revoked in (KeyRing.of((key("other", OTHER),)), KeyRing.of((key("ci", OTHER),))):
        with pytest.raises(RoundhouseError, match="The key ci was revoked while the request waited") as raised:
            revoked.renew_caller(caller, NOON)
        assert raised.value.entry.code == "invalid_api_key"


def test_a_request_that_waited_without_a_key_is_everybodys_until_keys_are_declared() -> None:
    assert KeyRing.of(()).renew_caller(ANONYMOUS, NOON) is ANONYMOUS
    with pytest.raises(RoundhouseError, match="Keys have been declared while the request waited") as raised:
        RING.renew_caller(ANONYMOUS, NOON)
    assert raised.value.entry.code == "invalid_api_key"


def test_one_caller_per_key() -> None:
    headers = [(b"x-api-key", SECRET)]
    assert RING.authenticate_key(headers, NOON) is RING.authenticate_key(headers, NOON + 1) is RING.by_name["ci"]


def test_neither_secret_nor_hash_shows() -> None:
    assert sha256(SECRET).hexdigest() not in repr(RING.by_name["ci"])


@pytest.mark.parametrize(("scopes", "lacks"), [(["inference"], "admin"), (["admin"], "inference")])
def test_no_scope_holds_another(scopes: list[str], lacks: Any) -> None:
    caller = Caller.of(key(scopes=scopes))
    caller.require_scope(scopes[0])  # type: ignore[arg-type]
    with pytest.raises(RoundhouseError, match=f"The key ci lacks the scope `{lacks}`") as raised:
        caller.require_scope(lacks)
    assert raised.value.entry.code == "scope_required"


@pytest.mark.parametrize(
    ("models", "name", "aliases", "allowed"),
    [
        (None, "gemma", (), True),
        ((), "gemma", (), False),
        (("gemma",), "gemma", (), True),
        (("gemma",), "gemma-2", (), False),
        (("GEMMA",), "gemma", (), False),
        (("gem*",), "gemma", (), True),
        (("*ma",), "gemma", (), True),
        (("g*m*a",), "gemma", (), True),
        (("*",), "gemma", (), True),
        (("g**a",), "gemma", (), True),
        (("gemma*gemma",), "gemma", (), False),
        (("gem*mma",), "gemma", (), False),
        (("g*e*e*a",), "gemma", (), False),
        (("*g*",), "gemma", (), True),
        (("*gemma*",), "gemma", (), True),
        (("*m*a*",), "mama", (), True),
        (("*a*m*",), "ama", (), True),
        (("g*a*a",), "gema", (), False),
        (("gpt-4o",), "gemma", ("gpt-4o", "x"), True),
        (("x", "gpt-*"), "gemma", ("gpt-4o",), True),
        (("ge.*",), "gemma", (), False),
        (("g?mma", "[g]emma"), "gemma", (), False),
        (("org/*",), "org/chat:q4", (), True),
    ],
)
def test_models_of_a_key(models: tuple[str, ...] | None, name: str, aliases: tuple[str, ...], allowed: bool) -> None:
    caller, model = Caller.of(key(models=models)), aliased(name, *aliases)
    for _ in ("looked up", "remembered"):
        assert caller.may_see_model(model) is allowed
        if allowed:
            caller.require_model(model)
            continue
        with pytest.raises(RoundhouseError) as raised:
            caller.require_model(model)
        assert (raised.value.entry.code, raised.value.param) == ("model_not_allowed", "model")
        assert name not in raised.value.message


def test_many_stars_take_no_time() -> None:
    assert not Caller.of(key(models=["*a" * 90 + "b"])).may_see_model(route("a" * 199))


def test_what_is_remembered_follows_the_aliases_and_has_a_bound() -> None:
    caller = Caller.of(key(models=["gpt"]))
    assert not caller.may_see_model(aliased("m"))
    assert caller.may_see_model(aliased("m", "gpt"))
    assert not caller.may_see_model(aliased("m"))
    for number in range(3 * REMEMBERED_MODELS):
        assert not caller.may_see_model(route(f"m{number}"))
        assert len(caller._access_cache) <= REMEMBERED_MODELS


@pytest.mark.parametrize(
    ("tiers", "ranks"),
    [
        (["priority", "default", "flex"], [0, 1, 2, 1]),
        (["default", "flex"], [1, 1, 2, 1]),
        (["default"], [1, 1, 1, 1]),
        (["flex"], [2, 2, 2, 2]),
        ([], [2, 2, 2, 2]),
        (["priority"], [0, 0, 0, 0]),
        (["flex", "priority"], [0, 2, 2, 2]),
        (["default", "priority"], [0, 1, 1, 1]),
    ],
)
def test_tiers(tiers: list[ServiceTier], ranks: list[int]) -> None:
    caller = Caller.of(key(service_tiers=tiers))
    assert [caller.tier_rank(asked) for asked in ("priority", "default", "flex", "auto")] == ranks
    others: list[object] = [None, "scale", "", 7, [], {"a": 1}, True]
    for unknown in others:
        assert caller.tier_rank(unknown) == ranks[3]
