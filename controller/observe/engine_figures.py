"""Reads the figures of an engine's own configuration out of its answers. Pure. Never raises: what an answer does not
tell, or tells in an unknown form, is None."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from controller.schema.applied_figures import AppliedFigures

MODELS_PATH: Final = "/v1/models"
"""Path under which every engine lists its one model."""
PROPS_PATH: Final = "/props"
"""Path of llama-server's properties."""
SLOTS_PATH: Final = "/slots"
"""Path of llama-server's slots."""
_CACHE_INFO: Final = "vllm:cache_config_info{"
_LABEL: Final = re.compile(r'(\w+)="([^"\\]*)"')
_SPECULATION: Final = re.compile(r"^vllm:spec_decode_", re.MULTILINE)


def parse_figures(path: str, text: str) -> AppliedFigures:
    """Return the figures of an engine's own configuration in its answer to a GET of `path`, whose body is `text`. The
    answers to `/v1/models`, `/props` and `/slots` are read as JSON, and that to any other path as Prometheus' text
    format. Never raises: a figure that the answer lacks, or has in an unknown form, is None."""
    if path == MODELS_PATH:
        return _parse_models(_read_json(text))
    if path == PROPS_PATH:
        return _parse_props(_read_json(text))
    return _parse_slots(_read_json(text)) if path == SLOTS_PATH else _parse_metrics(text)


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_models(answer: Any) -> AppliedFigures:
    """Read the first model: `max_model_len` of vLLM, or `meta` of our worker and of llama-server, whose `n_ctx` is
    already per slot and no more than the model's training context."""
    models = answer.get("data") if isinstance(answer, dict) else None
    model = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
    meta = model.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    return AppliedFigures(
        context_length=_count(model.get("max_model_len")) or _count(meta.get("n_ctx")),
        trained_context_length=_count(meta.get("n_ctx_train")),
        slots=_count(meta.get("slots")),
        cache_type_k=_word(meta.get("cache_type_k")),
        cache_type_v=_word(meta.get("cache_type_v")),
    )


def _parse_props(answer: Any) -> AppliedFigures:
    """Read llama-server's properties. `speculative.types` there is a default of requests, so it is not used."""
    fields = answer if isinstance(answer, dict) else {}
    settings = fields.get("default_generation_settings")
    settings = settings if isinstance(settings, dict) else {}
    return AppliedFigures(context_length=_count(settings.get("n_ctx")), slots=_count(fields.get("total_slots")))


def _parse_slots(answer: Any) -> AppliedFigures:
    """Read llama-server's slots, all of which speculate, or none."""
    slots = answer if isinstance(answer, list) else []
    values = {value for slot in slots if isinstance(slot, dict) and isinstance(value := slot.get("speculative"), bool)}
    return AppliedFigures(speculates=values.pop() if len(values) == 1 else None)


def _parse_metrics(text: str) -> AppliedFigures:
    """Read vLLM's metrics. The labels of one metric hold its cache configuration. The metrics of speculation are there
    only while vLLM speculates; older versions lack them, so that their absence tells nothing."""
    line = next((each for each in text.splitlines() if each.startswith(_CACHE_INFO)), "")
    labels = dict(_LABEL.findall(line))
    cache_type = _word(labels.get("cache_dtype"))
    return AppliedFigures(
        cache_type_k=cache_type,
        cache_type_v=cache_type,
        speculates=True if _SPECULATION.search(text) else None,
        prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        kv_cache_bytes=_count(_number(labels.get("kv_cache_memory_bytes", ""))),
        gpu_share=_share(labels.get("gpu_memory_utilization", "")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[\w.,-]{1,40}", value) else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _share(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[01](\.[0-9]{1,20})?", text) else None
