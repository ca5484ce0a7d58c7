"""The tokens that programs of Roundhouse show to each other: who shows which, and what it opens. Pure.

The programs that check tokens decide by this table; docs/security.md shows it. Tokens of engines, of which each replica
has its own, are in `controller.runtimes.base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Program = Literal["controller", "gateway", "retrieval", "transfers"]

OPEN_PATHS: Final[Mapping[Program, frozenset[str]]] = MappingProxyType(
    {
        "controller": frozenset({"/internal/health", "/metrics"}),
        "retrieval": frozenset({"/health", "/metrics"}),
        "transfers": frozenset({"/health"}),
    }
)
"""Paths that need no token, for health checks and Prometheus, where a program listens on a port. On a unix socket no
path needs one: its owner alone may connect. What the gateway's clients need is in `gateway.ingress.middleware`."""


@dataclass(frozen=True, slots=True)
class InternalToken:
    """One kind of token, without its value: who makes it, who sends it, which file has it, and what it opens."""

    name: str
    """What it is called in docs/security.md."""
    header: str
    """Header that carries it, in lower case. No program forwards a client's header of this name."""
    variable: str
    """Environment variable that names the file."""
    made_by: Program
    shown_by: tuple[Program | Literal["command line"], ...]
    opens: Mapping[Program, frozenset[tuple[str, str]] | None]
    """By program, the routes that it opens there, as method and path; None: all of them."""
    refusal: str = "invalid_api_key"
    """Error code of the answer that the program `made_by` gives to a request without the token."""

    def opens_route(self, program: Program, method: str, path: str) -> bool:
        """Return whether the token opens a route of a program. `path`: decoded, without the query."""
        routes = self.opens.get(program, frozenset())
        return routes is None or (method, path) in routes


LINK_TOKEN: Final = InternalToken(
    name="link token",
    header="x-roundhouse-gateway-token",
    variable="ROUNDHOUSE_GATEWAY_TOKEN_FILE",
    made_by="controller",
    shown_by=("gateway", "command line"),
    opens={"controller": None},
    refusal="invalid_gateway_token",
)
TRANSFERS_TOKEN: Final = InternalToken(
    name="transfers token",
    header="x-roundhouse-transfers-token",
    variable="ROUNDHOUSE_TRANSFERS_TOKEN_FILE",
    made_by="transfers",
    shown_by=("controller",),
    opens={"transfers": None},
)
RETRIEVAL_TOKEN: Final = InternalToken(
    name="retrieval token",
    header="x-roundhouse-retrieval-token",
    variable="ROUNDHOUSE_RETRIEVAL_TOKEN_FILE",
    made_by="retrieval",
    shown_by=("gateway", "retrieval"),
    opens={"retrieval": None, "gateway": frozenset({("POST", "/v1/embeddings"), ("POST", "/v1/rerank")})},
)
INTERNAL_TOKENS: Final = (LINK_TOKEN, TRANSFERS_TOKEN, RETRIEVAL_TOKEN)
