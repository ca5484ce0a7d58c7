"""An MCP server that speaks through its standard input and output, run as a replica by the worker's bridge.

It is no backend of models: no file can name it. The declared `mcp_servers` with a `command` become definitions of it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from contract.desired import Definition, Settable
from contract.tools import REPLICA_PREFIX
from controller.engines.base import Engine, Launch, Probe, RenderContext, Verdict
from controller.engines.options import Hashed
from controller.engines.worker import WORKER_TOKEN_ENV, worker_python

HTTP_PATH: Final = "/mcp"
"""Path at which the bridge offers the server over streamable HTTP."""


class McpBridgeDefinition(Definition):
    """A declared MCP server with a command."""

    backend: Annotated[Literal["mcp"], Settable.ALWAYS]
    mcp_command: Annotated[list[str], Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        min_length=1, description="Program and arguments."
    )
    mcp_network: Annotated[bool, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=False, description="Whether it may reach the network."
    )
    mcp_mounts: Annotated[list[str], Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default_factory=list, description="Folders that its container gets."
    )


class McpBridge(Engine[McpBridgeDefinition]):
    """Renders the command line of a worker process that runs an MCP server and offers it over streamable HTTP. It uses
    no GPU, serves no model, and gets no folder of models."""

    name: ClassVar[str] = "mcp"
    definition = McpBridgeDefinition
    image_kind: ClassVar[str | None] = "worker"
    start_timeout_s: ClassVar[float] = 60.0
    computes: ClassVar[bool] = False
    program_noun: ClassVar[str] = "launcher"
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = (
        (
            r"the MCP server .* cannot be used: (No such file or directory|Permission denied)",
            Verdict("the program of the MCP server is missing or cannot be run", permanent=True),
        ),
        (r"the MCP server .* ended before it introduced itself", Verdict("its command ended before it spoke MCP")),
        (r"the MCP server .* cannot be used", Verdict("its command does not speak MCP")),
        (r"the MCP server .* ended", Verdict("its command ended")),
        (r"port .* is taken", Verdict("port taken")),
    )

    def render_command(self, definition: McpBridgeDefinition, ctx: RenderContext) -> Launch:
        """Return the command line `python -m worker mcp ...`, which ends with the server's command; the definition's
        environment and mounts; and whether the container may reach the network. As a process, raises KeyError if the
        runtime knows no `python`."""
        variables = [word for name in sorted(definition.env) for word in ("--pass-env", name)]
        listen_flags = (
            "--host",
            ctx.host,
            "--port",
            str(ctx.port),
            "--name",
            ctx.served_name.removeprefix(REPLICA_PREFIX),
        )
        argv = (worker_python(ctx), "-m", "worker", self.name, "--", *listen_flags, *variables, "--")
        return Launch(
            (*argv, *definition.mcp_command),
            dict(definition.env),
            self.resolve_image(definition, ctx.images),
            WORKER_TOKEN_ENV,
            mounts=tuple(definition.mcp_mounts),
            has_egress=definition.mcp_network,
        )

    def describe_probe(self, definition: McpBridgeDefinition) -> Probe:
        """Return the bridge's probe: `/health`, which is 200 once the server has introduced itself. `ready_path` is
        empty: there is no second request."""
        return Probe(health_path="/health", ready_path="", ready_body={}, figure_paths=())
