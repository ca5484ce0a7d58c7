"""A worker that answers a fixed text: for tests and dry installs."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from controller.engines.base import Engine, Launch, Probe, RenderContext
from controller.engines.capabilities import apply_declared
from controller.engines.worker import WORKER_CHAT_APIS, WORKER_TOKEN_ENV, percent_progress, worker_probe, worker_program
from controller.schema.admin import Capabilities
from controller.schema.desired import Definition
from controller.schema.routing import ThinkingControl


class StubDefinition(Definition):
    """A model that is no model."""

    backend: Literal["stub"]
    stub_text: str | None = Field(default=None, description="The answer to everything.")
    stub_load_s: float = Field(default=0.0, ge=0, description="How long loading seems to take, in seconds.")
    stub_token_delay_ms: int = Field(default=0, ge=0, description="Pause before each token, in milliseconds.")
    stub_fail: str | None = Field(default=None, description="End with this message instead of loading.")


class Stub(Engine):
    """Renders the worker's command line."""

    name: ClassVar[str] = "stub"
    definition = StubDefinition
    image_kind: ClassVar[str | None] = "worker"
    computes: ClassVar[bool] = False
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    hashed_fields: ClassVar[tuple[str, ...]] = ("stub_text", "stub_load_s", "stub_token_delay_ms", "stub_fail")

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """`python -m worker stub ...`."""
        assert isinstance(definition, StubDefinition)
        args = list(worker_program(self.name, ctx))
        if definition.stub_text is not None:
            # With `=`, so that a text may begin with a dash.
            args.append(f"--text={definition.stub_text}")
        if definition.stub_load_s:
            args += ("--load-s", str(definition.stub_load_s))
        if definition.stub_token_delay_ms:
            args += ("--token-delay-ms", str(definition.stub_token_delay_ms))
        if definition.stub_fail is not None:
            args.append(f"--fail={definition.stub_fail}")
        args += definition.extra_args
        return Launch(tuple(args), dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def describe_probe(self, definition: Definition) -> Probe:
        """The worker's."""
        return worker_probe()

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """All that a worker has."""
        return (*WORKER_CHAT_APIS, "/v1/embeddings")

    def parse_progress(self, log_tail: str) -> float | None:
        """By its last `loading: 40 %`."""
        return percent_progress(log_tail)

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """As declared; else text, in conversations, and no more."""
        return apply_declared(definition, Capabilities(tools=False, structured_output=False, logprobs=False))
