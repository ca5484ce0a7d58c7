"""Where downloads connect to: the address that was checked and no other, whatever names, redirects and DNS say."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from common.network.address_rule import AllowedHosts, parse_allowed_hosts
from common.network.transport import AddressRefusedError
from tests.support.fake_hub import FakeHub, Fault, FaultPlan, HubRepository
from tests.support.networks import PUBLIC, Resolver, connected, make_certificate
from tests.support.transfers_harness import error_code, make_network, open_site, trust_nobody
from transfers.network import NetworkOptions, SourceClient

__all__ = ["connected"]

OTHER_PUBLIC = "2606:4700::1111"
MODEL = {"model-Q4_K_M.gguf": random.Random(5).randbytes(70_000), "config.json": b"{}"}
REFERENCE = "hf:some/model:Q4_K_M"
CODE = "source_address_refused"


def make_repositories() -> list[HubRepository]:
    return [HubRepository("some/model", dict(MODEL))]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port of loopback. Nobody may connect to it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        found.setblocking(False)
        yield found
        with pytest.raises(BlockingIOError):
            found.accept()


def fetch(url: str, options: NetworkOptions) -> int:
    """The status of an answer to a request of the downloads' client."""
    client = SourceClient(options)
    try:
        with client.open(url, {}) as (response, _):
            return response.status_code
    finally:
        client.close()


def make_options(resolver: Any = None, allowed: AllowedHosts | None = None) -> NetworkOptions:
    """How to connect where nothing but the public internet is allowed."""
    more = {} if resolver is None else {"resolver": resolver}
    return NetworkOptions(allowed=allowed or AllowedHosts(), tls=trust_nobody(), **more)


LOOPBACK_FORMS = """
    127.0.0.1 127.0.0.1. 127.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 017700000001 127.0.0.1%2e %31%32%37.0.0.1
    ①②⑦.⓪.⓪.① 127。0。0。1 0 0.0.0.0 localhost LOCALHOST.
    [::1] [::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:0:0:1] [::127.0.0.1] [64:ff9b::127.0.0.1] [2002:7f00:1::] [::]
    user:password@127.0.0.1 public.example@127.0.0.1
"""


@pytest.mark.parametrize("host", LOOPBACK_FORMS.split())
def test_no_form_of_an_address_reaches_loopback(host: str, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises((AddressRefusedError, httpx2.ConnectError, httpx2.InvalidURL)):
        fetch(f"https://{host}:{port}/", make_options())


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "017700000001"])
def test_the_address_behind_another_form_is_what_is_named(host: str, listener: socket.socket) -> None:
    with pytest.raises(AddressRefusedError, match=r"127\.0\.0\.1 is loopback"):
        fetch(f"https://{host}:{listener.getsockname()[1]}/", make_options())


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], [PUBLIC, "127.0.0.1"], ["fe80::1%eth0"], ["::ffff:10.0.0.1"], ["no"]]
)
def test_a_name_with_one_address_that_is_refused_is_not_connected_to(answers: list[str], connected: list[str]) -> None:
    with pytest.raises(AddressRefusedError, match=r"hub\.example must not be connected to"):
        fetch("https://hub.example/", make_options(Resolver(answers)))
    assert connected == []


def test_the_address_that_was_checked_is_connected_to_and_the_name_not_resolved_again(connected: list[str]) -> None:
    resolver = Resolver([PUBLIC, OTHER_PUBLIC], ["127.0.0.1"])
    options = make_options(resolver)
    with pytest.raises(httpx2.ConnectError):
        fetch("https://hub.example/", options)
    assert resolver.queries == ["hub.example"]
    assert connected == [PUBLIC, OTHER_PUBLIC]
    with pytest.raises(AddressRefusedError):
        fetch("https://hub.example/", options)
    assert connected == [PUBLIC, OTHER_PUBLIC]


def test_storage_in_the_network_of_the_host_is_refused_where_the_hub_alone_is_allowed(tmp_path: Path) -> None:
    with FakeHub(make_repositories()) as hub:
        allowed = parse_allowed_hosts(hub.endpoint.removeprefix("http://"))
        network = make_network(hub.endpoint, allowed=allowed)
        with open_site(tmp_path / "models", hub.endpoint, network=network) as site:
            found = site.pull(REFERENCE)
        assert error_code(found) == CODE
        assert {each.server for each in hub.requests} == {"hub"}


@pytest.mark.parametrize(
    ("location", "places"),
    [
        ("http://127.0.0.2:{port}/x", ["api", "resolve", "storage"]),
        ("//127.0.0.2:{port}/x", ["api", "resolve", "storage"]),
        ("https://127.0.0.2:{port}/x", ["storage"]),
        ("http://169.254.169.254/latest/meta-data/", ["api", "resolve"]),
        ("https://169.254.169.254/latest/meta-data/", ["storage"]),
        ("https://[::ffff:169.254.169.254]/", ["resolve"]),
        ("https://[fe80::1]/", ["resolve"]),
        ("https://[::1]:{port}/", ["api", "resolve"]),
        ("https://2130706434:{port}/", ["resolve"]),
        ("https://0x7f.0.0.2:{port}/", ["resolve"]),
        ("https://10.0.0.1/", ["resolve"]),
        ("file:///etc/passwd", ["api", "resolve"]),
        ("ftp://127.0.0.2:{port}/", ["resolve"]),
        ("unix:///var/run/docker.sock", ["api", "resolve"]),
    ],
)
def test_a_redirect_into_the_network_of_the_host_is_refused(location: str, places: list[Any], tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", 0))
        listener.listen()
        listener.setblocking(False)
        target = location.format(port=listener.getsockname()[1])
        plan = FaultPlan()
        with FakeHub(make_repositories(), faults=plan) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
            for place in places:
                plan.add(Fault("redirect", site=place, location=target))
                found = site.pull(REFERENCE)
                assert error_code(found) == CODE
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert [each.site for each in plan.hit] == places


@pytest.mark.parametrize("place", ["api", "resolve", "storage"])
def test_redirects_without_end_are_given_up(place: Any, tmp_path: Path) -> None:
    plan = FaultPlan(Fault("redirect", site=place, times=0))
    with FakeHub(make_repositories(), faults=plan) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        found = site.pull(REFERENCE)
        assert len(hub.requests) < 20
    assert found.error is not None
    assert found.error.code == "source_unavailable"
    assert "redirects" in found.error.message


@pytest.fixture
def tls_files(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's side of a certificate for loopback, and a client's that trusts it."""
    certificate, key = make_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))


@pytest.mark.parametrize("place", ["api", "resolve", "storage"])
def test_no_redirect_to_plain_http(
    place: Any, tls_files: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path
) -> None:
    server, client = tls_files
    with FakeHub(make_repositories()) as plain:
        plan = FaultPlan(Fault("redirect", site=place, location=f"{plain.endpoint}/api/models/some/model"))
        with FakeHub(make_repositories(), faults=plan, tls=server) as hub:
            network = make_network(hub.endpoint, "hf_tester", tls=client)
            with open_site(tmp_path / "models", hub.endpoint, token="hf_tester", network=network) as site:
                found = site.pull(REFERENCE)
                assert error_code(found) == CODE
                assert plain.requests == []
                plan.clear()
                assert site.pull(REFERENCE).state == "finished"


def test_a_hub_s_certificate_must_be_trusted(tls_files: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path) -> None:
    with FakeHub(make_repositories(), tls=tls_files[0]) as hub:
        network = make_network(hub.endpoint, tls=ssl.create_default_context())
        with open_site(tmp_path / "models", hub.endpoint, network=network) as site:
            found = site.pull(REFERENCE)
        assert error_code(found) == "source_unavailable"
        assert hub.requests == []


def test_only_the_hub_sees_the_token(tmp_path: Path) -> None:
    repositories = [HubRepository("some/model", {**MODEL, "notes.txt": b"x", "model.safetensors": b"y"}, private=True)]
    with FakeHub(repositories) as hub, open_site(tmp_path / "models", hub.endpoint, token="hf_tester") as site:
        assert site.pull(REFERENCE).state == "finished"
        seen = {(each.server, each.headers.get("authorization")) for each in hub.requests}
        assert seen == {("hub", "Bearer hf_tester"), ("storage", None)}
        assert "hf_tester" not in "".join(each.target for each in hub.requests)


@pytest.mark.parametrize("place", ["api", "resolve", "storage"])
def test_a_redirect_to_another_hub_does_not_take_the_token_there(place: Any, tmp_path: Path) -> None:
    """Also not by the redirects that `huggingface_hub` itself follows, which are those of the lists (`api`)."""
    with FakeHub(make_repositories()) as other:
        path = "api/models/some/model?blobs=true" if place == "api" else "some/model/resolve/main/model-Q4_K_M.gguf"
        plan = FaultPlan(Fault("redirect", site=place, location=f"{other.endpoint}/{path}"))
        with (
            FakeHub(make_repositories(), faults=plan) as hub,
            open_site(tmp_path / "models", hub.endpoint, token="hf_tester") as site,
        ):
            site.pull(REFERENCE)
            assert any(each.headers.get("authorization") for each in hub.requests)
        assert other.requests
        for each in other.requests:
            assert "authorization" not in each.headers
            assert "hf_tester" not in str(each)


def test_a_proxy_of_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket, tmp_path: Path
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    with FakeHub(make_repositories()) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        assert site.pull(REFERENCE).state == "finished"
        assert not any("authorization" in each.headers for each in hub.requests)
