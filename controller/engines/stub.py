"""A worker that answers a fixed text: for tests and dry installs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from contract.admin import Capabilities
from contract.desired import Definition, Settable
from contract.routing import ThinkingControl
from controller.engines.base import Engine, Launch, Probe, RenderContext, apply_declared
from controller.engines.options import Flag, Hashed, JoinedFlag, render_options
from controller.engines.worker import WORKER_CHAT_APIS, WORKER_TOKEN_ENV, percent_progress, worker_probe, worker_program


class StubDefinition(Definition):
    """A stand-in for a model."""

    backend: Annotated[Literal["stub"], Settable.ALWAYS]
    stub_text: Annotated[str | None, JoinedFlag("--text"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Text that answers every request; default: a fixed sentence."
    )
    stub_load_s: Annotated[float, Flag("--load-s", omit=0), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=0.0, ge=0, description="Simulated duration of a load, in seconds."
    )
    stub_token_delay_ms: Annotated[int, Flag("--token-delay-ms", omit=0), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=0, ge=0, description="Delay before each token, in milliseconds."
    )
    stub_fail: Annotated[str | None, JoinedFlag("--fail"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Exit with this message instead of loading."
    )


class Stub(Engine[StubDefinition]):
    """The backend `stub`: renders the command line of a worker process that answers a fixed text, for tests and dry
    installs. Placement reserves GPUs for a stub as for any model, but the process uses no GPU."""

    name: ClassVar[str] = "stub"
    definition = StubDefinition
    image_kind: ClassVar[str | None] = "worker"
    computes: ClassVar[bool] = False
    thinking_switch: ClassVar[ThinkingControl] = "thinking"

    def render_command(self, definition: StubDefinition, ctx: RenderContext) -> Launch:
        """Return the command line `python -m worker stub ...` and the definition's environment. As a process, raises
        KeyError if the runtime knows no `python`."""
        options = render_options(definition, Flag | JoinedFlag)
        args = (*worker_program(self.name, ctx), *options, *definition.extra_args)
        return Launch(args, dict(definition.env), self.resolve_image(definition, ctx.images), WORKER_TOKEN_ENV)

    def describe_probe(self, definition: StubDefinition) -> Probe:
        """Return the worker's probe: `/health`, then one token of a completion."""
        return worker_probe()

    def list_apis(self, definition: StubDefinition) -> tuple[str, ...]:
        """Return the request paths that the stub answers: those for text, and `/v1/embeddings`."""
        return (*WORKER_CHAT_APIS, "/v1/embeddings")

    def parse_progress(self, log_tail: str) -> float | None:
        """Return the progress of a load, from 0 to 1, by the log's last line `loading: 40 %`; None: no such line."""
        return percent_progress(log_tail)

    def derive_capabilities(self, definition: StubDefinition) -> Capabilities:
        """Return which requests the model takes: what the definition declares, else text in conversations, without
        tools, JSON schemas or log probabilities."""
        return apply_declared(
            definition, Capabilities(tools=False, forced_tools=False, structured_output=False, logprobs=False)
        )
