"""What the backends that run in our own worker have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from controller.engines.base import Probe, RenderContext, Verdict

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
    listen_flags = ("--host", ctx.host, "--port", str(ctx.port), "--served-name", ctx.served_name)
    return (worker_python(ctx), "-m", "worker", engine, *listen_flags)


def worker_python(ctx: RenderContext) -> str:
    """The interpreter that the worker runs in."""
    return "/opt/roundhouse/bin/python" if ctx.runtime == "docker" else ctx.executables["python"]


def worker_probe(*, embedding: bool = False) -> Probe:
    """The worker answers OpenAI's paths and counts as llama.cpp does."""
    return Probe(
        health_path="/health",
        ready_path="/v1/embeddings" if embedding else "/v1/completions",
        ready_body={"input": "a"} if embedding else {"prompt": "a", "max_tokens": 1},
        metrics_path="/metrics",
        busy_metrics=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        progress_metrics=("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
        template_path=None if embedding else "/apply-template",
    )


def worker_chat_probe() -> Probe:
    """The worker's, of an engine that knows chats alone."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    return replace(worker_probe(), ready_path="/v1/chat/completions", ready_body=body, template_path=None)


def percent_progress(log_tail: str) -> float | None:
    """How far a load is, by the worker's last `loading: 40 %`; None: it has not told."""
    percentages = re.findall(r"^loading: (\d{1,3}) %$", log_tail, re.MULTILINE)
    return int(percentages[-1]) / 100 if percentages else None


def memory_verdicts(library: str, lower: str) -> tuple[tuple[str, Verdict], ...]:
    """For a load, or an engine that served, for which memory did not suffice. `lower`: the fields that make it take
    less."""
    words = r"out of memory|Insufficient VRAM|OutOfMemoryError|MemoryError|bad_alloc|Cannot allocate memory"
    return (
        (rf"{library} failed: .*({words})", Verdict(f"out of memory while it served (lower {lower})")),
        (words, Verdict(f"out of memory while it loaded (lower {lower})")),
    )


def gpu_verdict(library: str) -> tuple[str, Verdict]:
    """For a load, or an engine that served, that the GPU failed, which may go well another time; before what `cannot
    load`, `failed` and `cannot be used` say otherwise."""
    pattern = (
        rf"{library} (cannot load [^:]*|failed): .*(CUDA|NCCL|cuBLAS|cuDNN|driver)"
        rf"|{library} cannot be used: .*CUDA error"
    )
    return pattern, Verdict(f"the GPU, its driver or its libraries failed {library}")


def first_verdict(verdicts: Iterable[tuple[str, Verdict]], log_tail: str) -> Verdict | None:
    """The first whose pattern is in the log."""
    return next((verdict for pattern, verdict in verdicts if re.search(pattern, log_tail, re.IGNORECASE)), None)
