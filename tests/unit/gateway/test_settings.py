"""Settings: what may be served where. tests/unit/controller/test_settings.py compares them with docs/settings.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.health_check import DEFAULT_HOST, DEFAULT_PORT, HealthTarget, find_target
from gateway.settings import GatewaySettings


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GatewaySettings.model_fields:
        monkeypatch.delenv(f"ROUNDHOUSE_{name.upper()}", raising=False)


LOOPBACK = ("127.0.0.1", "127.8.9.1", "::1", "localhost", "localhost, ::1,127.0.0.1")
OTHERS = ("0.0.0.0", "192.168.0.1", "::", "example.org", "127.0.0.1,192.168.0.1")


@pytest.mark.parametrize("host", [*LOOPBACK, *OTHERS])
def test_only_loopback_serves_everybody_without_keys_unless_it_is_opened(host: str) -> None:
    is_local = host in LOOPBACK
    assert (GatewaySettings(host=host).is_local, GatewaySettings(host=host).serves_everybody) == (is_local, is_local)
    assert GatewaySettings(host=host, open=True).serves_everybody


def test_hosts_are_comma_separated_lists_with_something_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GatewaySettings(host=" gateway.egress, 127.0.0.1").hosts == ("gateway.egress", "127.0.0.1")
    with pytest.raises(ValidationError, match="names no address"):
        GatewaySettings(host=" ,")
    monkeypatch.setenv("ROUNDHOUSE_ALLOWED_HOSTS", " Gateway, llm.example ,")
    monkeypatch.setenv("ROUNDHOUSE_ADMIN_HOST", "gateway.egress, 127.0.0.1")
    assert GatewaySettings().allowed_hosts == ("gateway", "llm.example")
    assert GatewaySettings().admin_host == ("gateway.egress", "127.0.0.1")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "PORT", "OPEN", "OPEN_ADMIN", "ADMIN_HOST"):
        monkeypatch.setenv(f"ROUNDHOUSE_{name}", "")
    assert (GatewaySettings().host, GatewaySettings().port) == ("127.0.0.1", 8080)
    assert (GatewaySettings().open_admin, GatewaySettings().admin_host) == (None, ())


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({}, True),
        ({"open_admin": False}, False),
        ({"host": "0.0.0.0"}, False),
        ({"host": "127.0.0.1,10.0.0.1", "open": True}, False),
        ({"host": "0.0.0.0", "open": True, "open_admin": True}, True),
    ],
)
def test_who_administers_without_keys(settings: dict[str, Any], is_open: bool) -> None:
    assert GatewaySettings(**settings).opens_admin is is_open


def test_tls_needs_files_that_are_there_and_a_certificate(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    with pytest.raises(ValidationError, match="there is no file"):
        GatewaySettings(tls_cert=file)
    file.write_text("x")
    assert GatewaySettings(tls_cert=file, tls_key=file).tls_key == file
    with pytest.raises(ValidationError, match="set both, or neither"):
        GatewaySettings(tls_key=file)


def test_what_is_listened_on_as_urls(tmp_path: Path) -> None:
    assert GatewaySettings(host="127.0.0.1,::1", port=9000).urls == ("http://127.0.0.1:9000", "http://[::1]:9000")
    (tmp_path / "cert.pem").touch()
    assert GatewaySettings(tls_cert=tmp_path / "cert.pem").urls == ("https://127.0.0.1:8080",)


def test_urls_of_the_controller_that_are_taken() -> None:
    for url in ("http://controller:8081", "unix:/run/controller.sock", "unix:state/controller.sock"):
        assert GatewaySettings(controller_url=url).controller_url == url


@pytest.mark.parametrize("url", ["controller:8081", "http://", "unix:", "ftp://x", ""])
def test_wrong_controller_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="unix:/path"):
        GatewaySettings(controller_url=url)


@pytest.mark.parametrize(
    ("variables", "target"),
    [
        ({}, HealthTarget("127.0.0.1", 8080, is_tls=False)),
        ({"HOST": "", "PORT": "", "TLS_CERT": ""}, HealthTarget("127.0.0.1", 8080, is_tls=False)),
        ({"HOST": "0.0.0.0", "PORT": "80"}, HealthTarget("127.0.0.1", 80, is_tls=False)),
        ({"HOST": "::", "TLS_CERT": "/a.pem"}, HealthTarget("::1", 8080, is_tls=True)),
        ({"HOST": "gateway.egress,127.0.0.1"}, HealthTarget("127.0.0.1", 8080, is_tls=False)),
        ({"HOST": "gateway.egress, gateway.support"}, HealthTarget("gateway.egress", 8080, is_tls=False)),
    ],
)
def test_the_health_check_asks_where_the_gateway_listens(variables: dict[str, str], target: HealthTarget) -> None:
    assert find_target({f"ROUNDHOUSE_{name}": value for name, value in variables.items()}) == target


@pytest.mark.parametrize("port", ["many", "0", "-1", "65536", "²"])
def test_a_port_that_cannot_be_asked_at_is_named(port: str) -> None:
    with pytest.raises(ValueError, match=f"ROUNDHOUSE_PORT is {port}"):
        find_target({"ROUNDHOUSE_PORT": port})


def test_hosts_that_name_nothing_are_refused_and_defaults_are_the_gateways() -> None:
    with pytest.raises(ValueError, match="names no address"):
        find_target({"ROUNDHOUSE_HOST": " , "})
    fields = GatewaySettings.model_fields
    assert (fields["host"].default, str(fields["port"].default)) == (DEFAULT_HOST, DEFAULT_PORT)
