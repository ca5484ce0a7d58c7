"""Calls of tools through a gateway, as clients send them."""

from __future__ import annotations

from typing import Any

from contract.tools import McpServerRoute
from tests.fakes.gateway_harness import GatewayHarness
from tests.support.wait import until


async def call_tool(gateway: GatewayHarness, tool: str, secret: str | None = None, **params: Any) -> tuple[int, Any]:
    """Status and JSON of the answer. `secret`: of the key that is shown; None: none is."""
    return (await gateway.post("/tools", {"tool": tool, "params": params}, key=secret)).result


async def call_text(gateway: GatewayHarness, tool: str, **params: Any) -> str:
    status, answer = await call_tool(gateway, tool, **params)
    assert status == 200, answer
    return str(answer["plain_text_response"])


async def call_error(gateway: GatewayHarness, tool: str, **params: Any) -> str:
    """What a tool that ran and failed answered."""
    status, answer = await call_tool(gateway, tool, **params)
    assert status == 200, answer
    return str(answer["error"])


async def call_code(gateway: GatewayHarness, tool: str, secret: str | None = None, **params: Any) -> tuple[int, str]:
    """Status and error code of a call that was refused or failed."""
    status, answer = await call_tool(gateway, tool, secret, **params)
    assert set(answer) == {"error"}, answer
    assert isinstance(answer["error"], dict), answer
    return status, answer["error"]["code"]


async def list_tools(gateway: GatewayHarness, secret: str | None = None) -> list[Any]:
    listed: list[Any] = (await gateway.get("/tools", key=secret)).success
    return listed


async def list_names(gateway: GatewayHarness, secret: str | None = None) -> list[str]:
    """The names of GET /tools, in its order."""
    return [tool["tool"] for tool in await list_tools(gateway, secret)]


async def list_servers(gateway: GatewayHarness, secret: str | None = None) -> dict[str, Any]:
    """The answer of GET /tools/servers, by the servers' names."""
    return {each["server"]: each for each in (await gateway.get("/tools/servers", key=secret)).success}


async def get_prompt(
    gateway: GatewayHarness, server: str, name: str, secret: str | None = None, /, **arguments: Any
) -> tuple[int, Any]:
    """Status and JSON of a prompt of a server. `name` stands in the address as it is."""
    return await _post(gateway, f"{server}/prompts/{name}", {"arguments": arguments}, secret)


async def read_resource(gateway: GatewayHarness, server: str, uri: Any, secret: str | None = None) -> tuple[int, Any]:
    return await _post(gateway, f"{server}/resources/read", {"uri": uri}, secret)


async def _post(gateway: GatewayHarness, path: str, body: Any, secret: str | None) -> tuple[int, Any]:
    return (await gateway.request("POST", f"/tools/servers/{path}", body, key=secret, encoded=True)).result


async def in_state(gateway: GatewayHarness, name: str, state: str) -> dict[str, Any]:
    """Wait until a server is in this state; what is told of it."""

    async def look() -> Any:
        server = (await list_servers(gateway)).get(name)
        return server if server is not None and server["state"] == state else None

    found: dict[str, Any] = await until(f"{name} is {state}", look)
    return found


async def connected(gateway: GatewayHarness, name: str = "fake") -> dict[str, Any]:
    """Wait until a server is connected; what is told of it."""
    return await in_state(gateway, name, "connected")


async def down(gateway: GatewayHarness, name: str = "fake") -> str:
    """Wait until a server is down; why it is."""

    async def look() -> Any:
        server = (await list_servers(gateway)).get(name)
        return server["reason"] if server is not None and server["state"] == "down" else None

    return str(await until(f"{name} is down", look))


async def failure(gateway: GatewayHarness, name: str, **params: Any) -> str:
    """What is said of a call that could not be made."""
    status, answer = await call_tool(gateway, name, **params)
    assert (status, answer["error"]["code"]) == (502, "tool_failed"), answer
    return str(answer["error"]["message"])


async def connect(gateway: GatewayHarness, *servers: McpServerRoute) -> dict[str, Any]:
    """Declare MCP servers, and nothing else, and wait until the last one is connected; what is told of it."""
    await gateway.publish(mcp_servers=servers)
    return await connected(gateway, servers[-1].name)
