"""What the backends of our own worker share: the command line, the probe, the paths, and causes of an end. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

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
"""Paths that the worker answers for an engine that generates text."""

OLD_DRIVER: Final[tuple[str, Verdict]] = (
    r"NVIDIA driver on your system is too old \(found version"
    r"|CUDA driver version is insufficient for CUDA runtime version",
    Verdict(
        "the NVIDIA driver of this host is too old for the CUDA that the engine was built with: update the driver, or "
        "take a build for an earlier CUDA (docs/images.md)",
        permanent=True,
    ),
)
"""Pattern and verdict of a driver that is too old: the sentences of PyTorch (c10/cuda/CUDAFunctions.cpp) and of CUDA
(`cudaErrorInsufficientDriver`). PyTorch also warns with it where an engine counts the GPUs, and then finds none."""

HF_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (r"cannot open .*/tokenizer\.json", Verdict("no tokenizer.json in the folder", True)),
    (r"tokenizers cannot load|/\w+\.json is not (JSON|a JSON object)", Verdict("the tokenizer cannot be read", True)),
    (r"there is no chat template in", Verdict("no chat template in the folder", True)),
    (r"the chat template \S+ cannot be used", Verdict("the chat template cannot be used", True)),
    (r"invalid choice|argument --|unrecognized arguments", Verdict("bad argument", True)),
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)
"""Verdicts of the engines that read a tokenizer of the Hugging Face hub: patterns of what the worker writes."""


def worker_program(engine: str, ctx: RenderContext) -> tuple[str, ...]:
    """Return the worker's command line up to the flags of the engine. `engine`: the worker's name for it, which is the
    backend's name. As a process, raises KeyError if the runtime knows no `python`."""
    listen_flags = ("--host", ctx.host, "--port", str(ctx.port), "--served-name", ctx.served_name)
    return (worker_python(ctx), "-m", "worker", engine, *listen_flags)


def worker_python(ctx: RenderContext) -> str:
    """Return the path of the Python interpreter that runs the worker: that of our images in a container, else the one
    that the runtime found. Raises KeyError if it found no `python`."""
    return "/opt/roundhouse/bin/python" if ctx.runtime == "docker" else ctx.executables["python"]


def worker_probe(*, embedding: bool = False) -> Probe:
    """Return the probe of a worker: `/health`, then one token of a completion, or one embedding if `embedding`. A
    worker's metrics have the names of llama.cpp's."""
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
    """Return the probe of a worker whose engine takes chat completions alone: `/health`, then one token of a chat
    completion."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    return replace(worker_probe(), ready_path="/v1/chat/completions", ready_body=body, template_path=None)


def percent_progress(log_tail: str) -> float | None:
    """Return the progress of a load, from 0 to 1, by the last line `loading: 40 %` that the worker wrote into
    `log_tail`; None: there is none."""
    percentages = re.findall(r"^loading: (\d{1,3}) %$", log_tail, re.MULTILINE)
    return int(percentages[-1]) / 100 if percentages else None


def memory_verdicts(library: str, lower: str) -> tuple[tuple[str, Verdict], ...]:
    """Return patterns and verdicts, for `Engine.verdicts`, of an engine that ran out of memory while it served or while
    it loaded. None is permanent. `library` is the name that the worker writes. `lower` names the definition fields to
    lower, for the message."""
    words = r"out of memory|Insufficient VRAM|OutOfMemoryError|MemoryError|bad_alloc|Cannot allocate memory"
    return (
        (rf"{library} failed: .*({words})", Verdict(f"out of memory while it served (lower {lower})")),
        (words, Verdict(f"out of memory while it loaded (lower {lower})")),
    )


def gpu_verdict(library: str) -> tuple[str, Verdict]:
    """Return a pattern and its verdict, for `Engine.verdicts`, of an engine whose GPU failed. Another start may
    succeed, so the verdict is not permanent. `library` is the name that the worker writes. Place it before the verdicts
    of `cannot load`, `failed` and `cannot be used`, whose lines it matches as well."""
    pattern = (
        rf"{library} (cannot load [^:]*|failed): .*(CUDA|NCCL|cuBLAS|cuDNN|driver)"
        rf"|{library} cannot be used: .*CUDA error"
    )
    return pattern, Verdict(f"the GPU, its driver or its libraries failed {library}")
