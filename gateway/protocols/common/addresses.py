"""Removes network addresses from what engines say: where an engine runs and what it connects to is not for clients.
Pure.

Hidden are URLs with a host (`scheme://...`), IP addresses with their port or prefix length, `host:port`, the host in
`host='...'`, names in private domains (`engine.internal`), and names of replicas, which are those of their containers.
Text of the same form is hidden too: a place in a source file (`x.py:123`), a version of four numbers. A bare host name
stays, because it cannot be told from a word.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final

HIDDEN: Final = "[address]"
"""Replaces each address."""

_ESCAPED: Final = r"(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})"
"""Position after a character that was escaped for JSON: the last letter of the escape is not part of a name."""
_NUMBER_START: Final = rf"(?:(?<![\w.])|{_ESCAPED})"
_NAME_START: Final = rf"(?:(?<![\w.-])|{_ESCAPED})"
_IPV4_DIGITS: Final = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"

_URL: Final = re.compile(r"(?<![a-z0-9])[a-z][a-z0-9+.-]{0,30}:(?:\\?/){2}[^\s\"'`<>]+", re.IGNORECASE)
"""A URL with a host. Its slashes may be escaped."""
_AFTER_URL: Final = ".,:;!?)\\"
"""Characters at the end of a URL that belong to the sentence or quotation around it."""
_BRACKETED: Final = re.compile(r"\[([0-9a-f:.]{2,45}(?:%[\w.-]{1,20})?)\](?::[0-9]{1,5})?", re.IGNORECASE)
_COLONS: Final = re.compile(
    _NUMBER_START + r"(?:[0-9a-f]{0,4}:){2,8}(?:" + _IPV4_DIGITS + r"|[0-9a-f]{1,4})?"
    r"(?P<rest>(?:%[\w.-]{1,20})?(?:/[0-9]{1,3})?)(?![\w:])",
    re.IGNORECASE,
)
"""Possibly an IPv6 address. A time of day has the same form."""
_IPV4: Final = re.compile(_NUMBER_START + _IPV4_DIGITS + r"(?:[:/][0-9]{1,5})?(?!\w|\.[0-9])")
_REPLICA: Final = re.compile(_NAME_START + r"rh(?:-[a-z0-9]+)+-[0-9]+-[0-9a-f]{8}-[0-9]+(?![\w-])")
"""Names of replicas, as `controller/runtimes/naming.py` makes them."""
_HOST_AND_PORT: Final = re.compile(
    _NAME_START + r"(?![0-9]{4}-[0-9]{2}-[0-9]{2}T)(?=[0-9_.-]{0,252}[^\W\d_])\w(?:[\w.-]{0,252}\w)?\.?:[0-9]{2,5}"
    r"(?!\w|\.[0-9])"
)
"""A host and its port. The host must have a letter and must not be a date; otherwise it is a time of day. A port with
decimals is a version, as in `image:22.04`."""
_NAMED_HOST: Final = re.compile(
    rf"({_NAME_START}(?:host(?:name)?\s?=\s?\\?[\"']?|host(?:name)?\\?[\"']\s?:\s?\\?[\"']))[\w.-]+", re.IGNORECASE
)
_PRIVATE_NAME: Final = re.compile(
    _NAME_START + r"(?:[\w-]{1,63}\.){1,20}(?:local|localdomain|internal|intranet|lan|corp|svc|arpa)(?![\w-])",
    re.IGNORECASE,
)


def hide_addresses(text: str) -> str:
    """Return the text with each network address replaced by `HIDDEN` (`[address]`): URLs with a host, IP addresses,
    `host:port`, the host in `host='...'`, names in private domains, and names of replicas. A bare host name stays, and
    text that only looks like an address is replaced too, such as a version of four numbers."""
    text = _URL.sub(_hide_url, text)
    text = _BRACKETED.sub(_hide_bracketed, text)
    text = _COLONS.sub(_hide_colons, text)
    for pattern in (_IPV4, _REPLICA, _HOST_AND_PORT):
        text = pattern.sub(HIDDEN, text)
    text = _NAMED_HOST.sub(rf"\g<1>{HIDDEN}", text)
    return _PRIVATE_NAME.sub(HIDDEN, text)


def hide_in_json(value: Any) -> Any:
    """Return a copy of decoded JSON with each network address in its strings and keys replaced, as `hide_addresses`
    does. The value itself is not changed.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    if isinstance(value, str):
        return hide_addresses(value)
    if isinstance(value, list):
        return [hide_in_json(each) for each in value]
    if isinstance(value, dict):
        return {hide_addresses(name): hide_in_json(each) for name, each in value.items()}
    return value


def _hide_url(match: re.Match[str]) -> str:
    return HIDDEN + match[0][len(match[0].rstrip(_AFTER_URL)) :]


def _hide_bracketed(match: re.Match[str]) -> str:
    return HIDDEN if _is_ip_address(match[1]) else match[0]


def _hide_colons(match: re.Match[str]) -> str:
    text = match[0].removesuffix(match["rest"]) if match["rest"] else match[0]
    if not any(character.isalnum() for character in text):
        return match[0]
    if _is_ip_address(text):
        return HIDDEN
    address, _, after = text.rpartition(":")  # the colon may introduce a port or belong to the sentence
    if address and _is_ip_address(address):
        return HIDDEN if after else f"{HIDDEN}:"
    return match[0]


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
