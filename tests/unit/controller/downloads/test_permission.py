"""Who may order downloads where nothing is set: whoever is known."""

from __future__ import annotations

from typing import Literal

import pytest

from controller.downloads.permission import decide_downloads

OPEN = ("0.0.0.0",)
HERE = ("127.0.0.1", "::1", "localhost")


@pytest.mark.parametrize(
    ("setting", "has_keys", "hosts", "is_allowed"),
    [
        ("on", False, OPEN, True),
        ("off", True, HERE, False),
        (None, True, OPEN, True),
        (None, False, HERE, True),
        (None, False, (*HERE, "192.168.1.5"), False),
        (None, False, ("gpu.example",), False),
    ],
)
def test_who_may_order(
    setting: Literal["on", "off"] | None, has_keys: bool, hosts: tuple[str, ...], is_allowed: bool
) -> None:
    assert decide_downloads(setting, has_keys=has_keys, hosts=hosts).is_allowed is is_allowed


def test_a_refusal_says_what_it_is_for() -> None:
    assert decide_downloads("off", has_keys=True, hosts=HERE).reason == "ROUNDHOUSE_DOWNLOADS is `off`"
    reason = decide_downloads(None, has_keys=False, hosts=("127.0.0.1", *OPEN)).reason
    assert reason == "ROUNDHOUSE_DOWNLOADS is not set, no key is declared, and the gateway listens on 0.0.0.0"
