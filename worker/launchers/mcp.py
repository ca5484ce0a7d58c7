"""Hosts an MCP server that speaks through its standard input and output, and offers it over streamable HTTP: `python -m
worker mcp -- --host H --port P --name NAME [--pass-env VARIABLE]... -- COMMAND ARGUMENT...`.

The bridge answers `/health` to everybody, 200 once the server has introduced itself, and `/mcp` to whoever sends the
replica's token. All requests share one server process: its environment has PATH, HOME and the like and the variables of
`--pass-env`, and no other. What it writes to its standard error is the log. The bridge ends when the server ends, and
the server, with all of its own processes, never outlives the bridge.

The server may ask nothing back: the bridge declares no sampling, elicitation or roots. Tools that run only as tasks are
left out.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from worker.errors import LoadError
from worker.launchers.child_process import Ending, RaisingParser, run_launcher, supervise
from worker.preflight import open_listener, port_number, read_token

if TYPE_CHECKING:
    from mcp import Client
    from mcp.server import Server
    from starlette.types import Receive, Scope, Send

MARKS = ("ROUNDHOUSE_INSTANCE", "ROUNDHOUSE_REPLICA", "ROUNDHOUSE_START")
"""Variables by which the controller finds the processes of a replica. They hold no secret."""
LOCALE = ("LANG", "LANGUAGE", "TZ")
PREFIX = "roundhouse mcp: "
"""What the line begins with by which the bridge tells its parent why it ends. It is not in the log."""
HTTP_PATH = "/mcp"
KEEP_ALIVE_SECONDS = 60
"""Seconds that a connection without a request is kept: longer than clients keep theirs, so that none sends a call at
the moment at which the bridge closes it."""
STOP_SECONDS = 1
"""Seconds that answers have to end after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed command line of the MCP launcher."""

    host: str
    port: int
    name: str
    """Name of the server for its clients."""
    variables: tuple[str, ...]
    """Names of the variables that the server gets of this process's environment."""
    command: tuple[str, ...]


def run(arguments: Sequence[str]) -> int:
    """Host the server until a signal or its end, and return the worker's exit code: 0 after a signal, 2 for a wrong
    command line, 3 for a taken port, else 1. For a code other than 0, the last line on stderr says why. Blocks. Call
    once, in the main thread."""

    def prepare() -> tuple[Options, str | None, socket.socket]:
        options = parse_arguments(arguments)
        token = read_token()
        if importlib.util.find_spec("mcp") is None:
            raise LoadError("No module named 'mcp': install the extra `mcp`")
        return options, token, open_listener(options.host, options.port)

    def host(prepared: tuple[Options, str | None, socket.socket]) -> tuple[int, str | None]:
        options, token, listener = prepared
        ending = supervise(
            lambda ready: _host(options, listener, token, ready),
            find_error,
            # The last line says the same.
            is_relayed=lambda line: find_error(line) is None,
        )
        return explain_ending(ending, options)

    return run_launcher(prepare, host)


def parse_arguments(arguments: Sequence[str]) -> Options:
    """Return the parsed command line. Raises ValueError for a wrong one."""
    parser = RaisingParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pass-env", action="append", default=[])
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parsed, rest = parser.parse_known_args(list(arguments[:end]))
    command = tuple(arguments[end + 1 :])
    if rest or not command:
        raise ValueError(f"unknown argument {rest[0]}" if rest else "the server's command is missing after `--`")
    return Options(parsed.host, port_number(parsed.port), parsed.name, tuple(parsed.pass_env), command)


def server_environment(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the variables that the server gets in addition to those that the `mcp` package lets every server inherit
    (PATH, HOME, SHELL, TERM, USER, LOGNAME): `names`, the locale, and the marks of the replica."""
    kept_names = {*names, *LOCALE, *MARKS}
    return {key: value for key, value in environment.items() if key in kept_names or key.startswith("LC_")}


def find_error(line: str) -> str | None:
    """Return the reason in a log line that the bridge itself wrote; None: the MCP server wrote the line."""
    match = re.fullmatch(re.escape(PREFIX) + "(.+)", line.rstrip("\n"))
    return None if match is None else match[1]


def explain_ending(ending: Ending, options: Options) -> tuple[int, str | None]:
    """Return the worker's exit code and one plain line that says why the bridge ended. After a signal that asked for
    the end: 0 and None."""
    if ending.asked_for:
        return 0, None
    if ending.first_error is not None:
        return 1, ending.first_error
    name = ending.signal.name if ending.signal is not None else f"code {ending.code}"
    return 1, f"the bridge of the MCP server {options.command[0]} ended ({name})"


class Bridge:
    """An ASGI app that answers for one MCP server. `handle_request` answers `/mcp` once it is set; until then, `/mcp`
    and `/health` get 503. `token`: the bearer token that `/mcp` requires; None: none."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self.handle_request: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
        """None: the server has not introduced itself yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: `/health` to everybody, with 200 once the server has introduced itself and 503 before;
        `/mcp` with 401 without the token and 503 before the server has introduced itself; any other path with 404.
        Other ASGI scopes are ignored."""
        if scope["type"] != "http":
            return
        if scope["path"] == "/health":
            status = 503 if self.handle_request is None else 200
            await _answer(send, status, {"status": "ok" if status == 200 else "loading"})
        elif scope["path"] != HTTP_PATH:
            await _answer(send, 404, {"error": f"there is nothing at {scope['path']}"})
        elif not self._is_authorized(scope):
            await _answer(send, 401, {"error": "the token is missing or wrong"})
        elif self.handle_request is None:
            await _answer(send, 503, {"error": "the MCP server is starting"})
        else:
            await self.handle_request(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        if self._token is None:
            return True
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(values) == 1 and hmac.compare_digest(values[0], f"Bearer {self._token}".encode())


async def _answer(send: Send, status: int, body: Mapping[str, str]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def _host(options: Options, listener: socket.socket, token: str | None, ready: int) -> None:
    raise SystemExit(asyncio.run(_serve(options, listener, token, ready)))


async def _serve(options: Options, listener: socket.socket, token: str | None, ready: int) -> int:
    import uvicorn

    bridge = Bridge(token)
    config = uvicorn.Config(
        bridge,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = _quiet_server(config)
    serving = asyncio.create_task(server.serve([listener]))
    hosting = asyncio.create_task(_host_server(options, bridge, ready))
    await asyncio.wait({serving, hosting}, return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if hosting.done():
        sys.stderr.write(f"{PREFIX}{hosting.result()}\n")
        code = 1
        server.should_exit = True
        await serving
    else:
        hosting.cancel()
        await asyncio.wait({hosting})
    return code


def _quiet_server(config: Any) -> Any:
    """Return a uvicorn server that ends at a signal without raising it again, so that the bridge can end the MCP server
    in order."""
    import uvicorn

    class QuietServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.should_exit = True

    return QuietServer(config)


async def _host_server(options: Options, bridge: Bridge, ready: int) -> str:
    """Run the MCP server and let `bridge` answer for it until it ends. Return why it ended, in one line."""
    from mcp import Client, StdioServerParameters
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    program, *arguments = options.command
    environment = server_environment(os.environ, options.variables)
    parameters = StdioServerParameters(command=program, args=arguments, env=environment)
    ended = asyncio.Event()
    try:
        async with Client(_watched_transport(parameters, ended), cache=None) as client:
            manager = StreamableHTTPSessionManager(_make_server(options.name, client), stateless=True)
            async with manager.run():
                bridge.handle_request = manager.handle_request
                os.write(ready, b"\n")
                await ended.wait()
    except Exception as error:  # noqa: BLE001 - whatever it was, the last line must say so plainly
        if ended.is_set():
            return f"the MCP server {program} ended before it introduced itself"
        return f"the MCP server {program} cannot be used: {_first_cause(error)}"
    finally:
        bridge.handle_request = None
    return f"the MCP server {program} ended"


def _first_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = (error.strerror or "") if isinstance(error, OSError) else str(error)
    return " ".join(text.split())[:300] or type(error).__name__


@asynccontextmanager
async def _watched_transport(parameters: Any, ended: asyncio.Event) -> AsyncIterator[Any]:
    """Start the server, yield the streams to it, and set `ended` once it closes its output."""
    import anyio
    from mcp.client.stdio import stdio_client

    async with stdio_client(parameters) as (read_stream, write_stream):
        copies, copied_stream = anyio.create_memory_object_stream[Any](0)

        async def copy_messages() -> None:
            async with copies:
                async for message in read_stream:
                    await copies.send(message)
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(copy_messages)
            try:
                yield copied_stream, write_stream
            finally:
                group.cancel_scope.cancel()


def _make_server(name: str, client: Client) -> Server[Any]:
    """Return a server that passes every request of the kinds that the client's server offers on to it, and leaves out
    tools that run only as tasks."""
    import mcp_types as types
    from mcp.server import Server

    left_out = set[str]()

    def forward(request_class: Any, result_class: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(context: Any, params: Any) -> Any:
            has_token = "progress_token" in (context.meta or {})
            own_params = None if params is None else params.model_copy(update={"meta": None})
            return await client.session.send_request(
                request_class(params=own_params),
                result_class,
                progress_callback=context.session.report_progress if has_token else None,
            )

        return handle

    async def list_tools(context: Any, params: Any) -> Any:
        # Here, because newer versions of the protocol have no word for it, and the bridge's client may speak one.
        listed = await forward(types.ListToolsRequest, types.ListToolsResult)(context, params)
        names = {each.name for each in listed.tools if each.execution and each.execution.task_support == "required"}
        for tool_name in sorted(names - left_out):
            sys.stderr.write(f"The tool {tool_name} is left out: it runs only as a task, which is not supported.\n")
        left_out.update(names)
        return listed.model_copy(update={"tools": [each for each in listed.tools if each.name not in names]})

    offered, handlers = client.server_capabilities, dict[str, Any]()
    if offered.tools is not None:
        handlers["on_list_tools"] = list_tools
        handlers["on_call_tool"] = forward(types.CallToolRequest, types.CallToolResult)
    if offered.resources is not None:
        handlers["on_list_resources"] = forward(types.ListResourcesRequest, types.ListResourcesResult)
        handlers["on_list_resource_templates"] = forward(
            types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult
        )
        handlers["on_read_resource"] = forward(types.ReadResourceRequest, types.ReadResourceResult)
    if offered.prompts is not None:
        handlers["on_list_prompts"] = forward(types.ListPromptsRequest, types.ListPromptsResult)
        handlers["on_get_prompt"] = forward(types.GetPromptRequest, types.GetPromptResult)
    info = client.server_info
    version = info.version if info is not None else ""
    return Server(name, version=version, instructions=client.instructions, **handlers)
