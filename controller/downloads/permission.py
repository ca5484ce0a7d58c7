"""Decides whether models may be downloaded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from common.listening import is_loopback

VARIABLE: Final = "ROUNDHOUSE_DOWNLOADS"
"""Environment variable of the setting."""


@dataclass(frozen=True, slots=True)
class DownloadPermission:
    """Whether models may be downloaded, and why: half a sentence."""

    is_allowed: bool
    reason: str


def decide_downloads(
    setting: Literal["on", "off"] | None, *, has_keys: bool, hosts: Sequence[str]
) -> DownloadPermission:
    """Return whether models may be downloaded.

    `setting`: the operator's decision; None: the operator made none. Downloads are then allowed if it is known who may
    order one: if keys are declared (`has_keys`), or if the gateway listens on loopback addresses alone. `hosts`: the
    addresses that the gateway listens on.
    """
    if setting is not None:
        return DownloadPermission(setting == "on", f"{VARIABLE} is `{setting}`")
    if has_keys:
        return DownloadPermission(True, "keys are declared")
    open_hosts = [host for host in hosts if not is_loopback(host)]
    if not open_hosts:
        return DownloadPermission(True, "the gateway listens on this machine alone")
    return DownloadPermission(
        False, f"{VARIABLE} is not set, no key is declared, and the gateway listens on {', '.join(open_hosts)}"
    )
