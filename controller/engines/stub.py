"""A worker that answers a fixed text: for tests and dry installs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.engines.base import Engine, Launch, Probe, RenderContext
from controller.engines.capabilities import apply_declared
from controller.engines.options import Flag, Hashed, JoinedFlag, render_options
from controller.engines.worker import WORKER_CHAT_APIS, WORKER_TOKEN_ENV, percent_progress, worker_probe, worker_program
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition
from controller.schema.routing import ThinkingControl


class StubDefinition(Definition):
    """A stand-in for a model."""

    backend: Literal["stub"]
    stub_text: Annotated[str | None, JoinedFlag("--text"), Hashed.ALWAYS] = Field(
        default=None, description="The answer to everything."
    )
    stub_load_s: Annotated[float, Flag("--load-s", omit=0), Hashed.ALWAYS] = Field(
        default=0.0, ge=0, description="How long loading seems to take, in seconds."
    )
    stub_token_delay_ms: Annotated[int, Flag("--token-delay-ms", omit=0), Hashed.ALWAYS] = Field(
        default=0, ge=0, description="Pause before each token, in milliseconds."
    )
    stub_fail: Annotated[str | None, JoinedFlag("--fail"), Hashed.ALWAYS] = Field(
        default=None, description="End with this message instead of loading."
    )


class Stub(Engine[StubDefinition]):
    """Renders the worker's command line."""

    name: ClassVar[str] = "stub"
    definition = StubDefinition
    image_kind: ClassVar[str | None] = "worker"
    computes: ClassVar[bool] = False
    thinking_switch: ClassVar[ThinkingControl] = "thinking"

    def render_command(self, definition: StubDefinition, ctx: RenderContext) -> Launch:
        """Return `python -m worker stub ...`."""
        options = render_options(definition, Flag | JoinedFlag)
        args = (*worker_program(self.name, ctx), *options, *definition.extra_args)
        return Launch(args, dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def describe_probe(self, definition: StubDefinition) -> Probe:
        """Return the worker's probe."""
        return worker_probe()

    def list_apis(self, definition: StubDefinition) -> tuple[str, ...]:
        """Return all paths that a worker has."""
        return (*WORKER_CHAT_APIS, "/v1/embeddings")

    def parse_progress(self, log_tail: str) -> float | None:
        """Read the last `loading: 40 %` of the log."""
        return percent_progress(log_tail)

    def derive_capabilities(self, definition: StubDefinition) -> Capabilities:
        """Return the declared capabilities; else text, in conversations, and no more."""
        return apply_declared(definition, Capabilities(tools=False, structured_output=False, logprobs=False))
