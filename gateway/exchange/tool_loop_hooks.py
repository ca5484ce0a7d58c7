"""Hooks of responses whose `tools` name MCP servers: the gateway runs the calls of these, between rounds of the
model."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks
from gateway.exchange.inner_requests import InnerOpener
from gateway.exchange.loop_memory import LoopMemory
from gateway.exchange.tool_loop import ToolLoop
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.mcp_tools import (
    BUILT_IN,
    OfferedServer,
    OfferedTool,
    function_name,
    is_mcp,
    read_mcp_tools,
)
from gateway.server.body_budget import BodyBudget
from gateway.sessions.session_name import SESSION_FIELD

_NOT_REACHABLE: Final = "The MCP server {name} is not reachable now."


def _find_servers(exchange: Exchange, _: ModelRoute) -> None:
    tools = exchange.request.outline_fields.get("tools")
    if isinstance(tools, list) and any(map(is_mcp, tools)):
        context: ResponseContext = exchange.request.state
        context.mcp = read_mcp_tools(exchange.request.fields, _list_servers(exchange))


def _open_loop(exchange: Exchange, route: ModelRoute, opener: InnerOpener, budget: BodyBudget) -> None:
    _find_servers(exchange, route)
    context: ResponseContext = exchange.request.state
    if context.mcp is not None and not context.may_lack_input:
        session = exchange.request.outline_fields.get(SESSION_FIELD)
        session_fields = {} if session is None else {SESSION_FIELD: session}
        loop = ToolLoop(exchange, opener, LoopMemory(budget), session_fields)
        exchange.add_hooks(ExchangeHooks(before_admission=(loop.begin,)))


def _list_servers(exchange: Exchange) -> dict[str, OfferedServer]:
    """Return the servers of which the caller may call anything, by their labels."""
    runner, caller = exchange.services.tools, exchange.caller
    if runner is None:
        return {}
    tools: dict[str, list[OfferedTool]] = {}
    for spec in runner.list_tools(caller):
        label = BUILT_IN if spec.server is None else spec.server
        name = spec.name if spec.server is None else spec.name.removeprefix(function_name(label, ""))
        offered = OfferedTool(label, name, spec.description, spec.parameters, spec.writes)
        tools.setdefault(label, []).append(offered)
    servers = {label: OfferedServer(label, tuple(each)) for label, each in tools.items()}
    for label in runner.list_down(caller):
        servers.setdefault(label, OfferedServer(label, (), _NOT_REACHABLE.format(name=label)))
    return servers


COUNTED_TOOLS: Final = ExchangeHooks(on_request=(_find_servers,))
"""For requests that make no response: the tools of servers count as the model's. After the hooks of responses."""


def tool_loop_hooks(opener: InnerOpener, budget: BodyBudget) -> ExchangeHooks:
    """Return the hooks of requests for responses, to be added after all that answer or keep a stream themselves.
    `opener` opens the rounds. `budget`: for the memory of large bodies, of which the conversations take a part."""
    return ExchangeHooks(on_request=(partial(_open_loop, opener=opener, budget=budget),))
