"""Progress of a load, and causes of an end, in the log of vLLM 0.32 and its transformers. Pure."""

from __future__ import annotations

import re
from typing import Final

from controller.engines.base import Verdict
from controller.engines.cuda_log import OLD_DRIVER

_SHARDS: Final = re.compile(r"(?:checkpoint|loading) shards:\s*(\d{1,3})%")

_CAUSE: Final = re.compile(
    r"^(?:\([\w-]+(?: rank=\d+)? pid=\d+\) )?(?:ERROR [\d: -]+ \[[\w.]+:\d+\] )?\s*"
    r"(?:(?:[A-Za-z_][\w.]*\.)?(?P<kind>[A-Z]\w*(?:Error|Exception)): |Value error, "
    r"|(?=Input should be |Failed: Cuda error )|vllm[\w ]*: error: )(?P<text>.+)$",
    re.MULTILINE,
)
"""The line that names an exception, as Python, vLLM's log, pydantic, argparse or a CUDA kernel of vLLM writes it."""
_TOLD: Final = re.compile(
    r"^(?:No module named|there is no model|vLLM (?:was killed|ended|crashed)|terminate called|ERROR: "
    r"|(?:\([\w-]+ pid=\d+\) )?\s*Please pass the argument ).*$",
    re.MULTILINE,
)
"""Other lines about an end: of our launcher, C++, uvicorn, and the second line of what transformers says. A successful
start writes none of them."""
_NO_CAUSE: Final = re.compile(
    r"initialization failed|validation errors? for |returned non-zero exit status|Error raised in subprocess:"
)
"""Sentences of the processes above the one that failed, which do not name the cause."""
_SERVING: Final = re.compile(
    r"Application startup complete|EngineCore encountered a fatal error|EngineDeadError|vLLM .* while serving"
)
"""Sentences of an engine that has loaded."""
_CAUSE_LENGTH: Final = 300

_OUT_OF_MEMORY: Final = (
    r"OutOfMemoryError|out of memory|can't allocate memory|Cannot allocate memory|std::bad_alloc"
    r"|Available memory on node"
)
_WHILE_SERVING: Final[tuple[tuple[str, Verdict], ...]] = (
    (
        _OUT_OF_MEMORY,
        Verdict(
            "out of memory while it served (lower vllm_gpu_memory_utilization or vram_mib, or the cache in bytes, so "
            "that more is left for requests, or target_inflight, which makes them fewer)"
        ),
    ),
)
"""Verdicts of an engine that has loaded, before `_VERDICTS`."""
_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (r"error: (unrecognized arguments|argument |ambiguous option)", Verdict("bad argument", True)),
    (r"No module named .?vllm", Verdict("vLLM is not installed (extra `vllm`)", True)),
    OLD_DRIVER,
    (
        r"No available memory for the cache blocks",
        Verdict(
            "out of memory: its share has no room for a KV cache (raise vram_mib or vllm_gpu_memory_utilization, or "
            "lower target_inflight)"
        ),
    ),
    (
        r"Free memory on device .* is less than",
        Verdict(
            "out of memory: less is free than it takes at once (lower vram_mib or vllm_gpu_memory_utilization, or end "
            "what else uses the GPU)"
        ),
    ),
    (
        _OUT_OF_MEMORY,
        Verdict(
            "out of memory while it loaded (lower vllm_kv_cache_memory_bytes, vllm_max_model_len or target_inflight, "
            "or give it more GPUs)"
        ),
    ),
    (
        r"KV cache is needed, which is larger than",
        Verdict("the KV cache has no room for one whole request (lower vllm_max_model_len, or give it more memory)"),
    ),
    (r"(?i)cuda error|NCCL error", Verdict("the GPU, its driver or its libraries failed vLLM")),
    (
        r"Model architectures .* failed to be inspected",
        Verdict(
            "vLLM could not look into the model's class (rarely the model's fault: the GPU, its driver, vLLM's files)"
        ),
    ),
    (
        r"does not recognize this architecture|Model architectures .* are not supported|has no vLLM implementation",
        Verdict("unsupported model architecture", True),
    ),
    (r"greater than the derived max_model_len", Verdict("vllm_max_model_len is more than the model can do", True)),
    (r"divisible by tensor parallel size", Verdict("the model cannot be split over that many GPUs", True)),
    (
        r"World size \(\d+\) is larger than the number of available GPUs",
        Verdict("vllm_tensor_parallel_size is more than the GPUs that the engine sees", True),
    ),
    (r"invalid tool call parser", Verdict("no such vllm_tool_call_parser", True)),
    (r"(?i)reasoning parser:? .*(not found|chose from)", Verdict("no such vllm_reasoning_parser", True)),
    (r"Unknown quantization method", Verdict("no such vllm_quantization", True)),
    (r"validation errors? for SpeculativeConfig", Verdict("vLLM cannot speculate like that", True)),
    (r"`trust_remote_code=True`", Verdict("the model brings code of its own: vllm_trust_remote_code is not set", True)),
    (r"SafetensorError", Verdict("the model's files are corrupted or incomplete", True)),
    (r"Cannot find any model weights", Verdict("there are no weights in the model's folder", True)),
    (
        r"HarmonyError: (invalid tiktoken vocab file|the env var TIKTOKEN_ENCODINGS_BASE)",
        Verdict("TIKTOKEN_ENCODINGS_BASE names no folder with o200k_base.tiktoken and cl100k_base.tiktoken", True),
    ),
    (
        r"HarmonyError: error downloading or loading vocab file",
        Verdict(
            "this vLLM brings no vocabulary for gpt-oss along, and cannot download it: put o200k_base.tiktoken and "
            "cl100k_base.tiktoken into a folder below the models folder and set TIKTOKEN_ENCODINGS_BASE to it (`env`)"
        ),
    ),
    (
        r"outgoing traffic has been disabled|offline mode is enabled",
        Verdict(
            "a file is missing in the model's folder or the hub's cache, and HF_HUB_OFFLINE keeps vLLM from the hub",
            True,
        ),
    ),
    (r"(?i)couldn't connect to|LocalEntryNotFoundError|MaxRetryError", Verdict("the model's hub cannot be reached")),
    (
        r"Invalid repository ID or local directory|Repo id must be in the form|RepositoryNotFoundError"
        r"|is not a valid model identifier",
        Verdict("there is no such model", True),
    ),
    (r"(?i)address already in use", Verdict("port taken")),
)


def vllm_progress(log_tail: str) -> float | None:
    """Return the progress of reading weights, from 0 to 1; None: the log has no progress bar of checkpoint shards.

    Read from the last `Loading safetensors checkpoint shards:  50% Completed | 2/4 [...]`. 1 does not mean ready:
    compiling and capturing graphs come after the weights.
    """
    percentages = _SHARDS.findall(log_tail)
    return min(1.0, int(percentages[-1]) / 100) if percentages else None


def vllm_verdict(log_tail: str) -> Verdict | None:
    """Return why vLLM ended, by the end of its log. `log_tail` must be of one run.

    The message of a known cause is the cause in plain words and, if the log names an exception, a colon and the first
    exception, cut to 300 characters; exceptions that only report the end of another process do not count. `plain` is
    the message without the exception. The message of an unknown cause is that exception alone, `plain` is empty, and
    `permanent` is False. None: the log names no cause.
    """
    exception_lines = [*_CAUSE.finditer(log_tail)]
    causes = (match for match in exception_lines if not _NO_CAUSE.search(match["text"]))
    cause = next((f"{each['kind']}: {each['text']}" if each["kind"] else each["text"] for each in causes), "")
    cause = cause[:_CAUSE_LENGTH]
    log_lines = "\n".join(match[0] for match in (*exception_lines, *_TOLD.finditer(log_tail)))
    for pattern, verdict in (*_WHILE_SERVING, *_VERDICTS) if _SERVING.search(log_tail) else _VERDICTS:
        if re.search(pattern, log_lines):
            if not cause:
                return verdict
            return Verdict(f"{verdict.message}: {cause}", verdict.permanent, plain=verdict.message)
    return Verdict(cause, plain="") if cause else None
