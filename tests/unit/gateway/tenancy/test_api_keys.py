"""Keys at the gateway: who sends a request, and what that key opens."""

from __future__ import annotations

import time
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from contract.errors import RoundhouseError
from contract.keys import Key, ServiceTier
from contract.routing import ModelRoute
from gateway.tenancy.api_keys import (
    ANONYMOUS,
    LONGEST_CLIENT_ID,
    REMEMBERED_MODELS,
    Caller,
    ClientDirectory,
    ClientLimits,
    KeyRing,
    NamePatterns,
    client_id_of,
    find_document_tenant,
)
from gateway.tenancy.rate_limits import REMEMBERED_CLIENTS, RateLimits, client_headers
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of
from tests.support.queueing import key as tool_key

SECRET, OTHER = b"rh-" + b"s" * 43, b"rh-" + b"o" * 43
NOON = 1_800_000_000.0


def key(name: str = "ci", secret: bytes = SECRET, **fields: Any) -> Key:
    return Key.model_validate({"name": name, "tenant": name, "sha256": sha256(secret).hexdigest(), **fields})


def aliased(name: str, *aliases: str) -> ModelRoute:
    return route(name).model_copy(update={"aliases": aliases})


RING = KeyRing.of((key(), key("other", OTHER)))


def refusal(ring: KeyRing, *headers: tuple[bytes, bytes], now: float = NOON) -> str:
    error = error_of(lambda: ring.authenticate_key([(b"host", b"localhost"), *headers], now))
    assert error.entry.code == "invalid_api_key"
    assert not any(secret.decode() in error.message for secret in (SECRET, OTHER))
    return error.message


@pytest.mark.parametrize("secret", [SECRET, b"XsX", b"Bearer s"])
def test_a_key_is_known_by_its_secret_off_which_nothing_but_blanks_is_cut(secret: bytes) -> None:
    ring = KeyRing.of((key("ci", secret), key("other", OTHER)))
    for value in (b"Bearer %b", b"bearer %b", b"BEARER   %b ", b"Bearer \t%b\t "):
        assert ring.authenticate_key([(b"accept", b"*/*"), (b"authorization", value % secret)], NOON).name == "ci"
    for value in (b"%b", b" %b", b"\t %b \t"):
        assert ring.authenticate_key([(b"accept", b"*/*"), (b"x-api-key", value % secret)], NOON).name == "ci"


def test_a_caller_is_what_its_key_says() -> None:
    limits = {"requests_per_minute": 1, "tokens_per_minute": 2, "concurrency": 3}
    caller = Caller.of(key().model_copy(update={"tenant": "team", "weight": 2.5, "expires_at": NOON} | limits))
    assert (caller.name, caller.client_id, caller.tenant, caller.weight) == ("ci", b"ci", "team", 2.5)
    assert (caller.requests_per_minute, caller.tokens_per_minute, caller.concurrency) == (1, 2, 3)
    assert (caller.expires_at, caller.sha256) == (NOON, sha256(SECRET).digest())


def test_a_key_without_the_field_calls_no_tool_and_without_keys_everybody_calls_all() -> None:
    assert not Caller.of(tool_key("alice")).may_call_tool("calculate")
    assert ANONYMOUS.may_call_tool("calculate")


def test_patterns_match_whole_names() -> None:
    assert NamePatterns(["a*c"]).matches("abc")
    assert not NamePatterns(["ab*b"]).matches("ab"), "its pieces do not overlap"
    assert NamePatterns(["ab*b"]).matches("abb")


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "concurrency"])
def test_one_limit_is_a_limit(limit: str) -> None:
    declared: dict[str, Any] = {limit: 5}
    assert Caller.of(key(**declared)).is_limited
    assert not Caller.of(key()).is_limited
    assert not ANONYMOUS.is_limited


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


def test_an_expired_key_says_which_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing.of((key(expires_at=NOON),))
    assert ring.authenticate_key([(b"x-api-key", SECRET)], NOON - 1).name == "ci"
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", "XXX-9")  # this machine's clock shows another time than UTC
            time.tzset()
            assert refusal(ring, (b"x-api-key", SECRET)) == "The key ci expired at 2027-01-15T08:00:00Z."
    finally:
        time.tzset()


def test_without_keys_everybody_may_do_everything() -> None:
    ring = KeyRing.of(())
    assert ring.is_empty
    for headers in ([], [(b"authorization", b"Basic x")], [(b"x-api-key", SECRET)] * 2):
        assert ring.authenticate_key(headers, NOON) is ANONYMOUS
    assert (ANONYMOUS.name, ANONYMOUS.client_id, ANONYMOUS.weight) == (None, b"anonymous", 1.0)
    assert ANONYMOUS.tenant == "default", "what is stored and what is searched without keys have one tenant"
    ANONYMOUS.require_scope("inference")
    ANONYMOUS.require_scope("admin")
    ANONYMOUS.require_model(route("any"))
    assert [ANONYMOUS.tier_rank(tier) for tier in ("priority", "default", "flex")] == [0, 1, 2]


def test_a_damaged_key_opens_nothing_and_is_a_key_all_the_same() -> None:
    ring = KeyRing.of((key().model_copy(update={"sha256": "üüü"}),))
    assert not ring.is_empty
    refusal(ring, (b"x-api-key", SECRET))
    refusal(ring, (b"x-api-key", "üüü".encode()))


def test_one_key_is_one_caller_in_either_header_and_shows_neither_secret_nor_hash() -> None:
    headers = [(b"x-api-key", SECRET)]
    assert RING.authenticate_key(headers, NOON) is RING.authenticate_key(headers, NOON + 1) is RING.by_name["ci"]
    assert sha256(SECRET).hexdigest() not in repr(RING.by_name["ci"])
    assert RING.authenticate_key([(b"authorization", b"Bearer " + OTHER), (b"x-api-key", OTHER)], NOON).name == "other"


def test_a_request_that_waited_keeps_its_key_while_there_is_one() -> None:
    caller = RING.by_name["ci"]
    newer = KeyRing.of((key(weight=3.0, expires_at=NOON), key("other", OTHER)))
    assert newer.renew_caller(caller, NOON - 1) is newer.by_name["ci"]
    assert KeyRing.of(()).renew_caller(ANONYMOUS, NOON) is ANONYMOUS
    revoked = "The key ci was revoked while the request waited"
    for ring, who, words in (
        (newer, caller, "The key ci expired at 2027-01-15T08:00:00Z."),
        (KeyRing.of((key("other", OTHER),)), caller, revoked),
        (KeyRing.of((key("ci", OTHER),)), caller, revoked),
        (RING, ANONYMOUS, "Keys have been declared while the request waited"),
    ):
        error = error_of(partial(ring.renew_caller, who, NOON))
        assert error.entry.code == "invalid_api_key"
        assert words in error.message


@pytest.mark.parametrize(("scope", "lacks"), [("inference", "admin"), ("admin", "inference")])
def test_no_scope_holds_another(scope: Any, lacks: Any) -> None:
    caller = Caller.of(key(scopes=[scope]))
    caller.require_scope(scope)
    error = error_of(lambda: caller.require_scope(lacks))
    assert error.entry.code == "scope_required"
    assert f"The key ci lacks the scope `{lacks}`" in error.message


@pytest.mark.parametrize(
    ("models", "name", "aliases", "allowed"),
    [
        *((None, "gemma", (), True), ((), "gemma", (), False), (("gemma",), "gemma", (), True)),
        *((("gemma",), "gemma-2", (), False), (("GEMMA",), "gemma", (), False), (("gem*",), "gemma", (), True)),
        *((("*ma",), "gemma", (), True), (("g*m*a",), "gemma", (), True), (("*",), "gemma", (), True)),
        *((("g**a",), "gemma", (), True), (("gemma*gemma",), "gemma", (), False)),
        *((("gem*mma",), "gemma", (), False), (("g*e*e*a",), "gemma", (), False)),
        *((("*g*",), "gemma", (), True), (("*gemma*",), "gemma", (), True), (("*m*a*",), "mama", (), True)),
        *((("*a*m*",), "ama", (), True), (("g*a*a",), "gema", (), False)),
        *((("gpt-4o",), "gemma", ("gpt-4o", "x"), True), (("x", "gpt-*"), "gemma", ("gpt-4o",), True)),
        *((("ge.*",), "gemma", (), False), (("g?mma", "[g]emma"), "gemma", (), False)),
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
        error = error_of(lambda: caller.require_model(model))
        assert (error.entry.code, error.param) == ("model_not_allowed", "model")
        assert name not in error.message


def test_what_is_remembered_follows_the_aliases_and_has_a_bound() -> None:
    caller = Caller.of(key(models=["gpt"]))
    assert not caller.may_see_model(aliased("m"))
    assert caller.may_see_model(aliased("m", "gpt"))
    assert not caller.may_see_model(aliased("m"))
    for number in range(3 * REMEMBERED_MODELS):
        assert not caller.may_see_model(route(f"m{number}"))
        assert len(caller._access_cache) <= REMEMBERED_MODELS


def test_many_stars_take_no_time() -> None:
    assert not Caller.of(key(models=["*a" * 90 + "b"])).may_see_model(route("a" * 199))


@pytest.mark.parametrize(
    ("tiers", "ranks"),
    [
        (["priority", "default", "flex"], [0, 1, 2, 1]),
        *((["default", "flex"], [1, 1, 2, 1]), (["default"], [1, 1, 1, 1]), (["flex"], [2, 2, 2, 2])),
        *(([], [2, 2, 2, 2]), (["priority"], [0, 0, 0, 0]), (["flex", "priority"], [0, 2, 2, 2])),
        (["default", "priority"], [0, 1, 1, 1]),
    ],
)
def test_a_service_tier_has_the_rank_of_the_keys_order(tiers: list[ServiceTier], ranks: list[int]) -> None:
    caller = Caller.of(key(service_tiers=tiers))
    assert [caller.tier_rank(asked) for asked in ("priority", "default", "flex", "auto")] == ranks
    others: list[object] = [None, "scale", "", 7, [], {"a": 1}, True]
    for unknown in others:
        assert caller.tier_rank(unknown) == ranks[3]


@pytest.mark.parametrize(
    ("patterns", "allowed", "refused"),
    [
        ((), (), ("calculate", "")),
        (("calculate",), ("calculate",), ("calculate2", "Calculate", "*")),
        (("*",), ("calculate", "weather__now", ""), ()),
        (("weather__*",), ("weather__now", "weather__"), ("weather", "other__weather__now")),
        (("*_file", "a*b*c"), ("read_file", "abc", "a1b2c"), ("read_files", "acb", "ab")),
        (("a" + "*a" * 50,), ("a" * 51,), ("a" * 50, "a" * 5000 + "b")),
    ],
)
def test_patterns_allow_tools(patterns: tuple[str, ...], allowed: tuple[str, ...], refused: tuple[str, ...]) -> None:
    caller = Caller.of(tool_key("alice", tools=patterns))
    assert [name for name in allowed if not caller.may_call_tool(name)] == []
    assert [name for name in refused if caller.may_call_tool(name)] == []


TWO = ClientLimits(requests_per_minute=2)
NO_KEYS = KeyRing.of(())


def headers(client_id: str | None = None, agent: str | None = None) -> list[tuple[bytes, bytes]]:
    pairs = ((b"host", "h"), (b"user-agent", agent), (b"x-client-id", client_id))
    return [(name, value.encode()) for name, value in pairs if value is not None]


@pytest.mark.parametrize(
    ("sent", "client_id"),
    [
        (headers("ci", "curl/8"), b"ci"),
        ([*headers("ci"), (b"user-agent", b"curl/8")], b"ci"),
        (headers(agent="curl/8"), b"curl/8"),
        (headers(), b"anonymous"),
        (headers("", "curl/8"), b"anonymous"),
        ([(b"x-client-id", b"a\x1b[31m\xff b ")], b"a[31m b"),
        (headers("x" * 300), b"x" * LONGEST_CLIENT_ID),
    ],
)
def test_a_client_is_what_it_calls_itself(sent: list[tuple[bytes, bytes]], client_id: bytes) -> None:
    assert client_id_of(sent) == client_id


def test_without_keys_documents_are_everybodys_but_of_clients_that_name_themselves() -> None:
    assert find_document_tenant(ANONYMOUS, headers(agent="curl/8")) == "default"
    assert find_document_tenant(ANONYMOUS, headers("", "curl/8")) == "default"
    assert find_document_tenant(ANONYMOUS, headers("me", "curl/8")) == "me"
    key = Caller.of(Key(name="ci", sha256="0" * 64, tenant="team"))
    assert find_document_tenant(key, headers("me")) == "team", "with a key, no header chooses"


def test_a_limited_client_is_anybody_else_by_its_rights() -> None:
    assert ClientDirectory(ClientLimits()).find_caller(headers("ci")) is ANONYMOUS
    caller = ClientDirectory(TWO).find_caller(headers("ci"))
    assert (caller.name, caller.tenant, caller.scopes) == (None, ANONYMOUS.tenant, ANONYMOUS.scopes)
    assert (caller.client_id, caller.is_limited, caller.requests_per_minute) == (b"ci", True, 2)
    assert (caller.tokens_per_minute, caller.concurrency) == (None, None)
    assert NO_KEYS.renew_caller(caller, 0.0) is caller
    assert client_headers(caller) == [(b"x-ratelimit-client", b"ci")]


@pytest.mark.parametrize(
    ("client_limits", "words"),
    [
        (TWO, "2 request(s) per minute"),
        (ClientLimits(concurrency=2), "2 request(s) at a time"),
        (ClientLimits(tokens_per_minute=20), "20 token(s) per minute"),
    ],
)
def test_each_client_has_limits_of_its_own(client_limits: ClientLimits, words: str) -> None:
    limits, clients = RateLimits(), ClientDirectory(client_limits)
    for name in ("a", "b"):
        admit = partial(limits.admit_request, clients.find_caller(headers(name)), 10, 0.0)
        admit(), admit()
        error = error_of(admit)
        assert error.entry.code == "rate_limit_exceeded"
        assert error.message == f"The client '{name}' has reached its limit of {words}."


def test_counts_outlive_a_table_without_keys_and_end_with_one_that_has_some() -> None:
    limits, clients = RateLimits(), ClientDirectory(ClientLimits(concurrency=1))
    entry = limits.admit_request(clients.find_caller(headers("a")), 0, 0.0)
    limits.follow_keys(NO_KEYS, 0.0)
    with pytest.raises(RoundhouseError):
        limits.admit_request(clients.find_caller(headers("a")), 0, 0.0)
    limits.follow_keys(KeyRing.of((Key(name="a", tenant="a", sha256=b"0" * 64, concurrency=1),)), 0.0)
    assert limits.count_inflight("a") == 0, "a client is no key of its name"
    limits.follow_keys(NO_KEYS, 0.0)
    limits.admit_request(clients.find_caller(headers("a")), 0, 0.0)
    entry.release_request(0.0, 0)


def test_names_without_end_are_not_remembered_without_end() -> None:
    limits, clients = RateLimits(), ClientDirectory(ClientLimits(requests_per_minute=1, concurrency=2))
    staying = clients.find_caller(headers("stays"))
    entry = limits.admit_request(staying, 0, 0.0)
    for number in range(2 * REMEMBERED_CLIENTS):
        limits.admit_request(clients.find_caller(headers(f"c{number}")), 0, 0.0).release_request(0.0, 0)
    assert limits.client_count <= REMEMBERED_CLIENTS
    with pytest.raises(RoundhouseError):
        limits.admit_request(staying, 0, 0.0)
    entry.release_request(0.0, 0)
