"""The anonymous tokens of registries: what a refusal asks for, and what the token server answers. Pure.

A registry (distribution specification of the Open Container Initiative) answers 401 with the address of its token
server, which gives everybody a token for public repositories.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from common.network.bounded_answer import parse_json
from common.network.errors import UnreadableAnswerError

_PARAMETER: Final = re.compile(r'([A-Za-z_]+)=(?:"([^"]*)"|([^\s,]+))', re.ASCII)
_PATH: Final = re.compile(r"/v2/(.+)/(?:manifests|blobs)/[^/]+")
_TOKEN: Final = re.compile(r"[!-~]{1,32768}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a `WWW-Authenticate` header with the scheme `Bearer` asks for: a token of the token server `realm`, for
    `service` (None: none is named)."""

    realm: str
    """Address of the token server."""
    service: str | None

    def build_query(self, repository: str) -> dict[str, str]:
        """Return the parameters of the query that asks the token server for a token to read the repository. A scope
        that the registry named is ignored."""
        service = {} if self.service is None else {"service": self.service}
        return {**service, "scope": f"repository:{repository}:pull"}


def parse_challenge(header: str) -> Challenge | None:
    """Return what a `WWW-Authenticate` header asks for; None: no token server is named."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    found = {key.lower(): quoted or plain for key, quoted, plain in _PARAMETER.findall(rest)}
    return Challenge(found["realm"], found.get("service")) if found.get("realm") else None


def find_repository(path: str) -> str | None:
    """Return the repository in the path of a manifest's or a blob's URL (`/v2/REPOSITORY/manifests/...`); None: the
    path is no such path."""
    found = _PATH.fullmatch(path)
    return None if found is None else found[1]


def parse_token(body: bytes) -> str | None:
    """Return the token in the body of a token server's answer; None: the body has none."""
    try:
        answer = parse_json(body)
    except UnreadableAnswerError:
        return None
    named = (answer.get("token"), answer.get("access_token")) if isinstance(answer, dict) else ()
    return next((each for each in named if isinstance(each, str) and _TOKEN.fullmatch(each)), None)
