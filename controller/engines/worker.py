"""What the backends that run in our own worker have in common."""

from __future__ import annotations

from dataclasses import replace

from controller.engines.base import Probe, RenderContext

WORKER_TOKEN_ENV = "ROUNDHOUSE_ENGINE_TOKEN"  # noqa: S105 - the variable's name, not its value

WORKER_CHAT_APIS = (
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/apply-template",
)
"""Paths of an engine that knows chats and its own tokens."""


def worker_program(engine: str, ctx: RenderContext) -> tuple[str, ...]:
    """The worker's command line up to the engine's own flags."""
    python = "/opt/roundhouse/bin/python" if ctx.runtime == "docker" else ctx.executables["python"]
    listen = ("--host", ctx.host, "--port", str(ctx.port), "--served-name", ctx.served_name)
    return (python, "-m", "worker", engine, *listen)


def worker_probe(*, embedding: bool = False) -> Probe:
    """The worker answers OpenAI's paths and counts as llama.cpp does."""
    return Probe(
        health_path="/health",
        ready_path="/v1/embeddings" if embedding else "/v1/completions",
        ready_body={"input": "a"} if embedding else {"prompt": "a", "max_tokens": 1},
        metrics_path="/metrics",
        busy_metrics=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        progress_metrics=("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
    )


def worker_chat_probe() -> Probe:
    """The worker's, of an engine that knows chats alone."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    return replace(worker_probe(), ready_path="/v1/chat/completions", ready_body=body)


def not_yet(engine: str) -> str:
    """What `Engine.missing` says where only the definition is there."""
    return f"this version of Roundhouse has no {engine} engine yet; its definition is kept and checked"
