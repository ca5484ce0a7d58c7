"""A route of the public API, declared once: the program that serves it, who may ask it, and its part of the OpenAPI
document follow from one `RouteSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

Access = Literal["open", "metrics", "page", "any_key", "inference", "admin"]
"""What a route requires. `open`: nothing. `metrics`: nothing unless `ROUNDHOUSE_METRICS_KEY` is set, then that key or
one of the scope `admin`. `page`: a Host header that this gateway goes by. `any_key`: any valid key.
`inference`, `admin`: a key of that scope."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a route for the OpenAPI document. `schema` is its JSON Schema: the route's handler checks values
    by it, and this object checks nothing."""

    name: str
    description: str
    schema: Mapping[str, Any]
    place: Literal["query", "header", "path"] = "query"
    required: bool = False
    style: Mapping[str, Any] = field(default_factory=dict)
    """How an object is written into the query: OpenAPI's `style` and `explode`."""


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One route. Its handler is elsewhere: in the gateway `gateway.api.declare.HttpRoutes` joins the two; retrieval has
    the handlers of its own routes, whose requests the gateway forwards."""

    method: str
    path: str
    summary: str
    description: str = ""
    """Markdown; empty: the docstring of the handler. The document has the route's error codes below it."""
    answer: Any = None
    """Type of the JSON body of an answer, for the document alone; None: the answer is a file, text or an event
    stream."""
    body: type[BaseModel] | Mapping[str, Any] | None = None
    """Model of the JSON body of a request, which is checked by it. A mapping: its JSON Schema, and the handler checks
    the fields. None: the request has no JSON body."""
    access: Access = "inference"
    codes: tuple[str, ...] = ()
    """Error codes that the route may answer, in the order of the document. A route of retrieval leaves out those that
    every route of the gateway has."""
    query: tuple[Parameter, ...] = ()
    """Parameters that the handler reads itself; those of its signature are not repeated here."""
    tag: str = field(kw_only=True)
    """Group of the route in the document: a name in `gateway.api.declare.TAGS`."""
    status: int = 200
    takes_file: bool = False
    """Whether the body may be `multipart/form-data` with a file."""
