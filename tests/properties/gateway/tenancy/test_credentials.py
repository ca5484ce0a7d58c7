"""Whatever a request carries in place of a key: 401 of one shape, and nothing is touched for it: no store, no engine,
no controller, no account of a key's limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gateway.tenancy.api_keys import KeyRing
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.access_table import list_expected
from tests.support.campaign import campaign_count
from tests.support.outcomes import error_of
from tests.support.queueing import key
from tests.support.raw_http import Answer, raw, request

Headers = Sequence[tuple[bytes, bytes]]
NOW = 1_800_000_000.0
SECRET, OTHER, EXPIRED = b"secret-alice", b"secret-bob", b"secret-carol"
KEYS = (
    key("alice", scopes=("inference", "admin"), requests_per_minute=10_000, tokens_per_minute=10_000, concurrency=3),
    key("bob", requests_per_minute=10_000),
    key("carol", expires_at=1.0),
)
WORDS = re.compile(
    r"The request carries (two keys|no key|a key that is not known here)\.|"
    r"The Authorization header has another form than `Bearer SECRET`\.|The key carol expired at [0-9T:Z-]+\."
)
BEARER = re.compile(rb"bearer [ \t]*(.*?)[ \t]*", re.IGNORECASE | re.DOTALL)

secrets = st.one_of(
    st.sampled_from(
        [SECRET, OTHER, EXPIRED, SECRET[:-1], SECRET + b"x", SECRET.upper(), SECRET + b" " + OTHER, b"alice"]
    ),
    st.sampled_from(
        [KEYS[0].sha256.encode(), bytes.fromhex(KEYS[0].sha256), SECRET + b"," + OTHER, b"", b"*", b"null"]
    ),
    st.binary(max_size=40),
)
schemes = st.one_of(
    st.sampled_from(
        [b"Bearer ", b"bearer ", b"BEARER ", b"bEaReR   ", b"Bearer\t", b"Bearer", b" Bearer ", b"", b"Token "]
    ),
    st.sampled_from(
        [b"Basic ", b"Digest ", b"Bearer: ", b"Bearer=", b"Bearer Bearer ", b"\xe2\x80\x83Bearer ", b"ApiKey "]
    ),
    st.binary(max_size=10),
)
values = st.builds(
    lambda *parts: b"".join(parts), schemes, secrets, st.sampled_from([b"", b"", b" ", b"\t ", b"\xa0", b"\0", b"\r"])
)
names = st.sampled_from(
    [b"authorization", b"x-api-key", b"authorization", b"x-api-key", b"proxy-authorization", b"cookie"]
)
headers: st.SearchStrategy[Headers] = st.lists(st.tuples(names, values), max_size=4)


def known_secret(sent: Headers) -> bytes | None:
    """The secret that lets these headers in, by the words of docs/keys.md: it is carried once, or once in each of the
    two headers; None: there is none."""
    credentials = [(name, value) for name, value in sent if name in (b"authorization", b"x-api-key")]
    found: set[bytes | None] = set()
    for name, value in credentials:
        match = BEARER.fullmatch(value) if name == b"authorization" else None
        found.add(match[1] if match else value.strip(b" \t") if name == b"x-api-key" else None)
    is_one = len(found) == 1 and len(credentials) == len({name for name, _ in credentials})
    return next((secret for secret in (SECRET, OTHER) if is_one and found == {secret}), None)


@settings(max_examples=campaign_count(100, 5_000))
@given(headers)
@example([(b"authorization", b"BEARER " + SECRET)])
@example([(b"authorization", b"Bearer\t" + SECRET)])
@example([(b"authorization", b"Bearerx" + SECRET)])
@example([(b"authorization", b"Bearer " + SECRET), (b"x-api-key", SECRET)])
@example([(b"authorization", b"Bearer " + SECRET), (b"x-api-key", OTHER)])
@example([(b"x-api-key", SECRET), (b"authorization", b"Basic " + SECRET)])
@example([(b"x-api-key", SECRET), (b"x-api-key", SECRET)])
@example([(b"authorization", b"Bearer " + b"\xff" * 100_000)])
def test_a_known_secret_and_nothing_else_opens(sent: Headers) -> None:
    ring, secret = KeyRing.of(KEYS), known_secret(sent)
    if secret is not None:
        assert ring.authenticate_key(sent, NOW).name == secret.decode().removeprefix("secret-")
        return
    error = error_of(lambda: ring.authenticate_key(sent, NOW))
    assert error.entry.code == "invalid_api_key"
    assert WORDS.fullmatch(error.message), "nothing of what was sent is said"


@dataclass
class Bench:
    """One gateway for all examples, on a loop that runs during each."""

    runner: asyncio.Runner
    gateway: GatewayHarness
    engine: MockEngine
    routes: list[tuple[str, str]]
    """Method and target of every route that is not open. Those of stored responses name one that there is."""
    body: bytes
    plain: dict[tuple[str, str], Answer]
    """What each says to who carries no key."""

    def touched(self) -> tuple[Any, ...]:
        """Figures of everything that a request may reach."""
        server: Any = self.gateway.server
        parts, responses = server.gateway.inference._services, self.gateway.assistant.responses
        store: Any = responses._store
        accounts = {
            name: (account.inflight, account.request_bucket and account.request_bucket.level)
            for name, account in parts.limits._states.items()
        }
        return (
            (store._jobs_asked, store._bytes_asked, len(responses._running)),
            (len(self.engine.requests), self.engine.connections, len(self.gateway.controller.admin.requests)),
            (accounts, len(parts.exchanges), dict(parts.lines._clients)),
        )


async def send(gateway: GatewayHarness, method: str, target: str, body: bytes, sent: Headers) -> Answer:
    """One answer. Names of headers are sent in another case than they are compared in."""
    lines = [b"%b: %b" % (name.title(), value) for name, value in sent]
    data = request(method, target, body if method == "POST" else b"")
    head, _, rest = data.partition(b"\r\n")
    async with raw(gateway) as client:
        client.write(b"\r\n".join([head, *lines, rest]))
        return await client.answer()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """With keys that have limits, and a stored response of one of them."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = contextlib.AsyncExitStack()

        async def start() -> Bench:
            gateway = await stack.enter_async_context(gateway_harness(engine_state_routes=True))
            (engine,) = await stack.enter_async_context(engines(1))
            await gateway.publish(route("m", [engine.url]), keys=KEYS)
            made = send(gateway, "POST", "/v1/responses", b'{"model": "m", "input": "Hi"}', [(b"x-api-key", SECRET)])
            stored_id = json.loads((await made).body)["id"]
            body = b'{"model": "m", "input": "Hi", "messages": [], "previous_response_id": "%b"}' % stored_id.encode()
            parts = {"{response_id}": stored_id, "{name:path}": "m", "{id}": "0", "{rest:path}": "plan"}
            routes = []
            for (method, path), access in list_expected().items():
                for part, text in parts.items():
                    path = path.replace(part, text)  # noqa: PLW2901
                if access not in ("open", "page", "metrics"):  # without such a key, these are open
                    routes.append((method.replace("*", "POST"), path))
            plain = {(method, path): await send(gateway, method, path, body, []) for method, path in routes}
            return Bench(runner, gateway, engine, routes, body, plain)

        yield runner.run(start())
        runner.run(stack.aclose())


def shape(answer: Answer) -> Any:
    """All that must be the same, whatever was carried."""
    error = answer.error
    header_names = sorted(name for name, _ in answer.headers)
    fixed = {name: error.get(name) for name in ("type", "code", "param", "status", "next_steps")}
    return answer.status, header_names, answer["www-authenticate"], sorted(error), fixed


sendable = headers.map(lambda sent: [(name, re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b"", value)) for name, value in sent])
"""As far as HTTP can carry it."""


@settings(max_examples=campaign_count(60, 3_000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sendable, st.integers(0, 1000))
@example([(b"authorization", b"Bearer " + b"a" * 30_000)], 0)
@example([(b"x-api-key", b"\xff" * 30_000)], 1)
@example([(b"authorization", b"Bearer " + SECRET), (b"x-api-key", OTHER)], 2)
@example([(b"authorization", b"Basic " + SECRET), (b"x-api-key", SECRET)], 3)
@example([(b"authorization", b"Bearer " + EXPIRED)], 4)
def test_what_is_no_key_is_refused_in_one_shape_and_touches_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture, sent: Headers, number: int
) -> None:
    assume(known_secret(sent) is None)
    method, target = bench.routes[number % len(bench.routes)]
    before = bench.touched()
    answer = bench.runner.run(send(bench.gateway, method, target, bench.body, sent))
    assert answer.status == 401
    assert shape(answer) == shape(bench.plain[method, target])
    assert WORDS.fullmatch(answer.error["message"])
    assert bench.touched() == before
    assert "secret-" not in caplog.text


def test_what_is_touched_would_be_seen(bench: Bench) -> None:
    before = bench.touched()
    for target in ("/v1/responses", "/v1/admin/plan"):
        answer = bench.runner.run(
            send(
                bench.gateway,
                "POST",
                target,
                bench.body,
                [(b"authorization", b"bEARER " + SECRET), (b"x-api-key", SECRET)],
            )
        )
        assert answer.status == 200
    after = bench.touched()
    assert [mine != old for mine, old in zip(after, before, strict=True)] == [True, True, True]
    assert all(figure != old for figure, old in zip(after[0][:2], before[0][:2], strict=True))


def test_what_is_too_large_is_refused_before_anybody_looks_at_it(bench: Bench) -> None:
    for secret in (SECRET + b" " * 40_000, b"a" * 40_000):
        before = bench.touched()
        answer = bench.runner.run(
            send(bench.gateway, "POST", "/v1/responses", bench.body, [(b"authorization", b"Bearer " + secret)])
        )
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
        assert bench.touched() == before
