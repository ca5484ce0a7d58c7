"""Addresses and file paths hidden in texts that others than the operator read. Pure.

Hidden are URLs with a host (`scheme://...`), IP addresses with their port or prefix length, `host:port`, the host in
`host='...'`, names in private domains (`engine.internal`), and names of replicas, which are those of their containers.
Text of the same form is hidden too: a place in a source file (`x.py:123`), a version of four numbers. A bare host name
stays, because it cannot be told from a word.

Hidden are paths from the root (`/srv/models/m.gguf`) and from a home folder (`~/m.gguf`, `~bob/m.gguf`). A quoted path
ends at the closing quote. Any other ends at a space, unless the next word has a slash inside (`/srv/my models/m`).
Relative paths stay, and so do paths of our own APIs (`/v1/models`), which have the same form.
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
_AFTER: Final = ".,:;!?)\\"
"""Characters at the end of a URL or a path that belong to the sentence or quotation around it."""
_BRACKETED: Final = re.compile(r"\[([0-9a-f:.]{2,45}(?:%[\w.-]{1,20})?)\](?::[0-9]{1,5})?", re.IGNORECASE)
_COLONS: Final = re.compile(
    _NUMBER_START + r"(?:[0-9a-f]{0,4}:){2,8}(?:" + _IPV4_DIGITS + r"|[0-9a-f]{1,4})?"
    r"(?P<rest>(?:%[\w.-]{1,20})?(?:/[0-9]{1,3})?)(?![\w:])",
    re.IGNORECASE,
)
"""Possibly an IPv6 address. A time of day has the same form."""
_IPV4: Final = re.compile(_NUMBER_START + _IPV4_DIGITS + r"(?:[:/][0-9]{1,5})?(?!\w|\.[0-9])")
_REPLICA: Final = re.compile(_NAME_START + r"rh(?:-[a-z0-9]+)+-[0-9]+-[0-9a-f]{8}-[0-9]+(?![\w-])")
"""Names of replicas, as `controller/runtimes/base.py` makes them."""
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
    text = _URL.sub(lambda match: HIDDEN + _after(match), text)
    text = _BRACKETED.sub(_hide_bracketed, text)
    text = _COLONS.sub(_hide_colons, text)
    for pattern in (_IPV4, _REPLICA, _HOST_AND_PORT):
        text = pattern.sub(HIDDEN, text)
    text = _NAMED_HOST.sub(rf"\g<1>{HIDDEN}", text)
    return _PRIVATE_NAME.sub(HIDDEN, text)


def hide_in_json(value: Any) -> Any:
    """Return a copy of decoded JSON with each network address in its strings and keys replaced, as `hide_addresses`
    does. Raises RecursionError if the value is nested too deeply."""
    if isinstance(value, str):
        return hide_addresses(value)
    if isinstance(value, list):
        return [hide_in_json(each) for each in value]
    if isinstance(value, dict):
        return {hide_addresses(name): hide_in_json(each) for name, each in value.items()}
    return value


def _after(match: re.Match[str]) -> str:
    return match[0][len(match[0].rstrip(_AFTER)) :]


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


HIDDEN_PATH: Final = "[path]"
"""Replaces each path."""

_OWN_ROUTE: Final = r"(?:v[12]|health)(?![\w.-])"
_ROOT: Final = rf"(?:~[\w.-]{{0,64}})?(?:\\?/)+(?!{_OWN_ROUTE})"
"""Start of a path. Slashes may be escaped, as in JSON."""
_START: Final = r"(?:(?<![\w.\\/~])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=\s-[A-Za-z]))"
"""Position where a path may start: not within a relative path or a fraction, but after a character escaped for JSON and
after the letter of a command-line option."""
_END: Final = r"\s\"'`<>|\[\]{}"
_WORD: Final = rf"[^{_END}/\\]"
_QUOTED: Final = re.compile(rf"(?P<mark>[\"'`]){_ROOT}(?![\s/])[^\"'`\n]*(?P=mark)")
_BARE: Final = re.compile(rf"{_START}(?<!<){_ROOT}{_WORD}[^{_END}]*(?:(?<![,;:)])[ ]\w[\w.-]*/[^{_END}]+)*")
_IN_ANGLES: Final = re.compile(rf"(?<=<){_ROOT}{_WORD}+/[^{_END}]+")
"""A path in angle brackets. It must have two parts, because one part alone is a closing tag: `</s>`."""


def hide_paths(text: str) -> str:
    """Return the text with each absolute path, and each path from a home folder (`~/...`), replaced by `HIDDEN_PATH`
    (`[path]`). Relative paths and the gateway's own routes (`/v1/...`, `/v2/...`, `/health`) stay."""
    text = _QUOTED.sub(rf"\g<mark>{HIDDEN_PATH}\g<mark>", text)
    for pattern in (_IN_ANGLES, _BARE):
        text = pattern.sub(lambda match: HIDDEN_PATH + _after(match), text)
    return text
