"""Which addresses and port the mDNS advert names, and the settings of it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.discovery.advert import Advert, AdvertisedAddress, choose_advert, is_container_interface
from gateway.discovery.advertiser import MdnsAdvertiser, is_in_container
from gateway.settings import GatewaySettings
from tests.fakes.gateway_harness import until
from tests.support.outcomes import present

LOCAL = ("127.0.0.1", "192.168.1.20", "10.0.0.2", "::1", "fe80::1", "2001:db8::20")
ALL_IPV4, ALL = "0.0.0.0", "::"


@pytest.mark.parametrize(
    ("bound", "options", "advert"),
    [
        (("192.168.1.20",), {}, (("192.168.1.20",), 8080)),
        (("127.0.0.1", "192.168.1.20", "::1"), {}, (("192.168.1.20",), 8080)),
        ((ALL_IPV4,), {}, (("10.0.0.2", "192.168.1.20"), 8080)),
        ((ALL,), {}, (("10.0.0.2", "192.168.1.20", "2001:db8::20"), 8080)),
        (("127.0.0.1", "::1", "127.0.1.1"), {}, None),
        (("127.0.0.1",), {"advertised": "192.168.1.20"}, None),
        (("fe80::1%eth0",), {}, None),  # another machine cannot use it
        ((ALL_IPV4,), {"in_container": True}, None),
        ((ALL_IPV4,), {"in_container": True, "advertised": "203.0.113.7:80"}, (("203.0.113.7",), 80)),
    ],
)
def test_what_is_bound_is_advertised(bound: tuple[str, ...], options: dict[str, Any], advert: Any) -> None:
    setting = AdvertisedAddress.parse(options["advertised"]) if "advertised" in options else None
    is_in_container = options.get("in_container", False)
    chosen = choose_advert(bound, LOCAL, 8080, advertised=setting, is_in_container=is_in_container)
    assert (chosen and (chosen.ips, chosen.port)) == advert


def test_the_advert_goes_out_where_the_gateway_listens() -> None:
    setting = AdvertisedAddress("203.0.113.7")
    advert = present(choose_advert(["10.0.0.2"], LOCAL, 8080, advertised=setting, is_in_container=False))
    assert (advert.ips, advert.interface_ips) == (("203.0.113.7",), ("10.0.0.2",))
    assert choose_advert([ALL_IPV4], ["127.0.0.1"], 8080, advertised=None, is_in_container=False) is None, "no network"


@pytest.mark.parametrize(
    ("text", "ip", "port"),
    [
        *(("192.168.1.20", "192.168.1.20", None), ("192.168.1.20:80", "192.168.1.20", 80)),
        *(("2001:db8::1", "2001:db8::1", None), ("[2001:db8::1]", "2001:db8::1", None)),
        ("[2001:db8::1]:443", "2001:db8::1", 443),
    ],
)
def test_forms_of_the_setting(monkeypatch: pytest.MonkeyPatch, text: str, ip: str, port: int | None) -> None:
    monkeypatch.setenv("ROUNDHOUSE_ADVERTISE_ADDRESS", text)
    assert GatewaySettings().advertise_address == AdvertisedAddress(ip, port)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gateway.local", "must be an IP address"),
        ("192.168.1.20:many", "must have a port from 1 to 65535"),
        ("192.168.1.20:70000", "must have a port from 1 to 65535"),
        ("192.168.1.20:", "must have a port from 1 to 65535"),
        ("[2001:db8::1]:443x", "must have a port from 1 to 65535"),
        ("[2001:db8::1]:", "must have a port from 1 to 65535"),
        ("[2001:db8::1]443", "must be an IP address"),
        ("[2001:db8::1", "must be an IP address"),
        ("::ffff:127.0.0.1", "no address by which another machine reaches"),
        ("2001:db8::1%eth0", "no address by which another machine reaches"),
        ("127.0.0.1", "no address by which another machine reaches"),
        ("0.0.0.0:80", "no address by which another machine reaches"),
        ("224.0.0.251", "no address by which another machine reaches"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setenv("ROUNDHOUSE_ADVERTISE_ADDRESS", text)
    with pytest.raises(ValidationError, match=words):
        GatewaySettings()


def test_interfaces_and_containers_are_known_by_their_marks(tmp_path: Path) -> None:
    names = ("docker0", "br-0123456789ab", "veth12ab", "virbr0", "eth0", "br-lan", "wlp3s0", "lo")
    assert [name for name in names if is_container_interface(name)] == list(names[:4])
    mark = tmp_path / ".dockerenv"
    assert not is_in_container([mark])
    mark.touch()
    assert is_in_container([tmp_path / "other", mark])


@pytest.mark.parametrize("is_choice_lost", [True, False], ids=["no network", "an address that went away"])
async def test_a_failure_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture, is_choice_lost: bool) -> None:
    calls = 0

    def choose() -> Advert | None:
        nonlocal calls
        calls += 1
        if calls in (4, 5):
            return None
        if is_choice_lost:
            raise OSError("the network is down")
        return Advert(("203.0.113.9",), 8080, ("203.0.113.9",))

    task = asyncio.create_task(MdnsAdvertiser(choose, recheck_s=0).run())
    await until(lambda: calls > 8)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    if is_choice_lost:
        assert warnings == ["this gateway cannot be advertised by mDNS: the network is down"] * 2
    assert "cannot be advertised" in caplog.text
