"""Where the image's health check asks, by the gateway's own variables."""

from __future__ import annotations

import pytest

from gateway.health_check import DEFAULT_HOST, DEFAULT_PORT, HealthTarget, find_target
from gateway.settings import GatewaySettings


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
def test_where_it_asks(variables: dict[str, str], target: HealthTarget) -> None:
    assert find_target({f"ROUNDHOUSE_{name}": value for name, value in variables.items()}) == target


@pytest.mark.parametrize("port", ["many", "0", "-1", "65536", "²"])
def test_a_port_that_cannot_be_asked_at_is_named(port: str) -> None:
    with pytest.raises(ValueError, match=f"ROUNDHOUSE_PORT is {port}"):
        find_target({"ROUNDHOUSE_PORT": port})


def test_hosts_that_name_nothing() -> None:
    with pytest.raises(ValueError, match="names no address"):
        find_target({"ROUNDHOUSE_HOST": " , "})


def test_defaults_are_the_gateways() -> None:
    fields = GatewaySettings.model_fields
    assert (fields["host"].default, str(fields["port"].default)) == (DEFAULT_HOST, DEFAULT_PORT)
