"""Whether `up` can have its address, asked of the system, and how long its programs get to end."""

from __future__ import annotations

import socket

import pytest

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.stop_timeouts import (
    GATEWAY_S,
    MARGIN_S,
    UP_GATEWAY_S,
    gateway_stop_timeout_s,
    up_gateway_timeout_s,
)
from controller.cli.up.port_check import check_port_free
from tests.support.ports import free_port


def test_a_port_that_is_free_is_given_back_and_left_free() -> None:
    port = free_port()
    assert check_port_free(["127.0.0.1"], port) == port
    with socket.create_server(("127.0.0.1", port)), pytest.raises(CommandError) as raised:
        check_port_free(["127.0.0.1"], port)
    assert raised.value.args[0] == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --host or --port"
    )
    assert raised.value.code is ExitCode.ADDRESS_TAKEN


def test_for_port_0_a_free_one_is_found() -> None:
    assert 0 < check_port_free(["127.0.0.1"], 0) < 65_536


def test_every_address_is_looked_at() -> None:
    port = free_port()
    hosts = ["127.0.0.2", "127.0.0.3"]
    assert check_port_free(hosts, port) == port
    assert 0 < check_port_free(hosts, 0) < 65_536
    with socket.create_server(("127.0.0.3", port)), pytest.raises(CommandError, match=f"127.0.0.3:{port}"):
        check_port_free(hosts, port)


def test_a_name_that_is_none_is_a_matter_of_the_option() -> None:
    with pytest.raises(CommandError) as raised:
        check_port_free(["127.0.0.1", "no-such-host.invalid"], 0)
    assert raised.value.args[0].startswith("cannot listen on no-such-host.invalid: ")
    assert raised.value.args[0].endswith("; --host names the address")
    assert raised.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("value", "grace_s"),
    [
        ("", GATEWAY_S),
        ("7.5", 7.5),
        ("0", 0),
        ("x", GATEWAY_S),
        ("inf", GATEWAY_S),
        ("nan", GATEWAY_S),
        ("-1", GATEWAY_S),
    ],
)
def test_the_gateways_time_is_its_grace_and_a_margin(
    value: str, grace_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_SHUTDOWN_GRACE_S", value)
    assert gateway_stop_timeout_s() == grace_s + MARGIN_S
    assert up_gateway_timeout_s() == grace_s + UP_GATEWAY_S
