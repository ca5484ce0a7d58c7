"""How long programs get to end: whatever the environment says, a number of seconds."""

from __future__ import annotations

import pytest

from controller.cli.stop_timeouts import (
    GATEWAY_S,
    MARGIN_S,
    UP_GATEWAY_S,
    gateway_stop_timeout_s,
    up_gateway_timeout_s,
)


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
