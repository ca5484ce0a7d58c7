"""What probes mean: an engine's health, its figures, whether its template takes a system message, and what a silent
runtime leads to. Pure.

An engine is ready once its health path answers and it has generated one token (or one embedding). A failed probe only
stops routing to the engine. An engine is restarted only if it exits, if it reports that it is dead, or if for 120 s it
makes no progress while it is busy or while it accepts connections without answering.

What an answer does not tell of the engine's figures, or tells in an unknown form, is None.

Many templates raise an error on a system message after the first user message (`System message must be at the
beginning.`), others drop it silently. The engine itself renders test conversations without answering them, because each
engine changes messages in its own way (other roles, merged messages) before its template sees them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from controller.state import AppliedFigures, Health, IdleSpan

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


_MARK: Final = "7351"
"""Text to find in the rendered prompt. Digits, because tokens of digits join to this very text: tokenizers that mark
where a word begins put no mark between digits."""
_SYSTEM: Final = {"role": "system", "content": _MARK}
_USER: Final = {"role": "user", "content": "a"}
_ANSWERED: Final = ({"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})
LATE_SYSTEM: Final[dict[str, Any]] = {"messages": [_USER, _SYSTEM, *_ANSWERED], "return_token_strs": True}
"""Request with the system message after the first user message. `return_token_strs` is for vLLM, which answers with
tokens."""
LEADING_SYSTEM: Final[dict[str, Any]] = {"messages": [_SYSTEM, _USER, *_ANSWERED], "return_token_strs": True}
"""The same conversation with the system message first. It shows whether the template refused the message's position
or system messages as such."""
Rendering = Literal["taken", "refused", "untold"]
"""What the template did with the system message. `untold`: the engine does not tell, or not now."""
BUSY_STATUSES: Final = frozenset({429, 503})
"""HTTP statuses of an engine that may answer later."""
_UNTOLD_STATUSES: Final = BUSY_STATUSES | {401, 403, 404, 405, 501}
"""HTTP statuses that say nothing about the template: a busy engine, missing permission, or no such path."""


def judge_rendering(status: int, text: str) -> Rendering:
    """Return what the template did with the system message, by the engine's answer to LATE_SYSTEM or LEADING_SYSTEM:
    its HTTP status and its body. `taken`: the prompt has it. `refused`: the template raised an error, or dropped the
    message silently. `untold`: the answer does not tell. Never raises. llama-server and our worker answer with the
    prompt, vLLM with the strings of its tokens."""
    if status in _UNTOLD_STATUSES:
        return "untold"
    if status != 200:
        return "refused"
    try:
        fields = json.loads(text)
        prompt = fields["prompt"] if "prompt" in fields else "".join(fields["token_strs"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return "untold"
    if not isinstance(prompt, str):
        return "untold"
    return "taken" if _MARK in prompt else "refused"


UNHEALTHY_AFTER_S = 30.0
"""Seconds of silence after which the controller calls itself unhealthy. A Docker Engine restarts in less."""


@dataclass(frozen=True, slots=True)
class RuntimeSilence:
    """A period in which the runtime has not answered. The reconciler keeps it from the first failed observation to the
    next one that succeeds. Times are monotonic seconds: a clock that is set must not end the controller."""

    since: float
    """When the first observation failed."""
    gone_since: float | None
    """When something was first seen not to listen at the runtime's address, without a break since; None: something
    listens there, or it is not known."""

    def is_unhealthy(self, now: float) -> bool:
        """Return whether, at the monotonic time `now`, the silence has lasted 30 s (`UNHEALTHY_AFTER_S`) or longer, so
        that the health check must fail."""
        return now - self.since >= UNHEALTHY_AFTER_S

    def ends_controller(self, now: float, limit_s: float) -> bool:
        """Return whether the controller should exit, because only its own restart gives it the runtime's new address.
        True once nothing has listened at the runtime's address for `limit_s` seconds; 0 means never. A runtime that
        listens but hangs does not count, since it would still hang after a restart of the controller."""
        return limit_s > 0 and self.gone_since is not None and now - self.gone_since >= limit_s


def extend_silence(silence: RuntimeSilence | None, *, is_gone: bool, now: float) -> RuntimeSilence:
    """Return the silence after one more failed observation at the monotonic time `now`. `silence` is the one so far;
    None if the previous observation succeeded. `is_gone`: nothing listens at the runtime's address."""
    since = now if silence is None else silence.since
    if not is_gone:
        return RuntimeSilence(since, None)
    gone_since = None if silence is None else silence.gone_since
    return RuntimeSilence(since, now if gone_since is None else gone_since)


STALL_S = 120.0
"""Seconds without progress after which a busy engine counts as stalled."""
PREEMPTION_PROBES = 2
"""Consecutive probes with new preemptions after which an engine counts as preempting. A single burst does not count."""
PREEMPTION_HOLD_S = 600.0
"""Seconds for which an engine counts as preempting after the last preemption that a probe saw."""


_NUMBER_LABEL = re.compile(r'(\w+)="(\d+)"')


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What one probe of one engine found. None in a field: not known, or not asked by this probe; `error` None: the
    probe succeeded."""

    healthy: bool
    """Whether the health path answered with 200."""
    reached: bool = True
    """False: no connection was made, which says something about the network rather than about the engine."""
    dead: bool = False
    """Whether the engine answered that it is dead and cannot continue."""
    generated: bool = False
    """Whether the engine has generated its first token. Always True in healthy probes of an engine that is ready."""
    busy_requests: float | None = None
    """Requests inside the engine, by the engine's own metrics; None: unknown."""
    progress: float | None = None
    """A metric that grows while the engine works, such as tokens generated; None: unknown."""
    error: str | None = None
    asleep: bool = False
    """Whether the engine answered that it sleeps."""
    canary: str | None = None
    """The answer to the first token's request, where that is the canary; None: not asked this time."""
    figures: AppliedFigures = field(default_factory=AppliedFigures)
    """Figures of its own configuration that the engine reported this time."""
    system_first: bool | None = None
    """Whether the model's chat template accepts system messages only at the beginning of a conversation; None: not
    asked this time, or unknown."""
    kv_cache_tokens: int | None = None
    """Tokens that the engine's KV cache holds; None: unknown."""
    preemptions: float | None = None
    """How often the engine has ever preempted a running request, taking back its KV cache; None: unknown."""


@dataclass(frozen=True, slots=True)
class ProbedHealth:
    """What all probes of one engine so far add up to. Immutable: `apply_outcome` returns the next one. Times are Unix
    times in seconds, unless they say that they are monotonic."""

    health: Health = Health.STARTING
    ready_since: float | None = None
    """When the engine first became ready; None: it never was."""
    progress: float | None = None
    """The last known `ProbeOutcome.progress`; None: unknown so far."""
    progressed_at: float | None = None
    """Monotonic seconds when the engine last made progress, had nothing to do, or could not be reached; None: never
    probed."""
    idle: bool | None = None
    """Whether the engine had no request inside at the last probe, by its own metrics; None: unknown."""
    idle_span: IdleSpan | None = None
    """The unbroken run of probes that found the engine idle; None: the last probe did not."""
    probed_at: float | None = None
    """When the last probe began; what it found is no older than that. None: never probed."""
    error: str | None = None
    """Why the last probe failed; None: it succeeded."""
    canary: str | None = None
    """What the engine answered to its canary when it was first ready; None: it was not asked."""
    figures: AppliedFigures = field(default_factory=AppliedFigures)
    """All that the engine has reported of its own configuration so far."""
    system_first: bool | None = None
    """The last known `ProbeOutcome.system_first`; None: unknown so far."""
    kv_cache_tokens: int | None = None
    """The last known `ProbeOutcome.kv_cache_tokens`; None: unknown so far."""
    preemptions: float | None = None
    """The last known `ProbeOutcome.preemptions`; None: unknown so far."""
    preempting_probes: int = 0
    """How many consecutive probes, up to the last one, saw new preemptions."""
    preempting_until: float | None = None
    """Monotonic seconds until which the engine counts as preempting; None: it does not. It is cleared by the first
    probe after that time."""

    @property
    def is_preempting(self) -> bool:
        """Whether the engine, as of its last probe, keeps preempting running requests because its KV cache is full."""
        return self.preempting_until is not None


def apply_outcome(
    probed_health: ProbedHealth,
    outcome: ProbeOutcome,
    now: float,
    *,
    began_at: float | None = None,
    uptime: float | None = None,
) -> ProbedHealth:
    """Return the health after one more probe, which began at `began_at` (None: at `now`) and ended at `now`; both are
    Unix times in seconds. `uptime`: the end in monotonic seconds, so that a wall clock that is set makes no busy engine
    seem stalled; None: `now`. Apply probes in their order. An engine without `ready_since` is starting until a probe
    finds it healthy and its first token generated. One with it is ready, failing (the last probe failed) or stalled (no
    progress for 120 s, `STALL_S`), or sleeping. It is dead, at any time, if it answers that it is."""
    began_at = now if began_at is None else began_at
    uptime = now if uptime is None else uptime
    has_progressed = outcome.progress is not None and outcome.progress != probed_health.progress
    # An idle or unreachable engine need not make progress; one that accepts connections and does not answer must.
    is_resting = not outcome.reached or (outcome.healthy and outcome.busy_requests in (0, None)) or outcome.asleep
    progressed_at = (
        uptime if has_progressed or is_resting or probed_health.progressed_at is None else probed_health.progressed_at
    )
    new_health = replace(
        probed_health,
        progress=probed_health.progress if outcome.progress is None else outcome.progress,
        progressed_at=progressed_at,
        idle=None if outcome.busy_requests is None else outcome.busy_requests == 0,
        idle_span=_extend_idle_span(probed_health, outcome, began_at),
        probed_at=began_at,
        error=outcome.error,
        canary=outcome.canary or probed_health.canary,
        figures=probed_health.figures.merge_figures(outcome.figures),
        system_first=probed_health.system_first if outcome.system_first is None else outcome.system_first,
        kv_cache_tokens=outcome.kv_cache_tokens or probed_health.kv_cache_tokens,
    )
    new_health = _note_preemptions(new_health, outcome.preemptions, uptime)
    if outcome.dead:
        return replace(new_health, health=Health.DEAD)
    if outcome.asleep:
        return replace(new_health, health=Health.SLEEPING)
    if probed_health.ready_since is None:
        is_ready = outcome.healthy and outcome.generated
        return replace(new_health, health=Health.READY, ready_since=now) if is_ready else new_health
    if uptime - progressed_at >= STALL_S:
        return replace(new_health, health=Health.STALLED)
    return replace(new_health, health=Health.READY if outcome.healthy else Health.FAILING)


def _note_preemptions(probed_health: ProbedHealth, preemptions: float | None, uptime: float) -> ProbedHealth:
    """Return the health with the preemption count of a probe that ended at `uptime`; None: the probe found no count."""
    probes, until = probed_health.preempting_probes, probed_health.preempting_until
    if preemptions is not None:
        has_preempted = probed_health.preemptions is not None and preemptions > probed_health.preemptions
        probes = probes + 1 if has_preempted else 0
        if probes >= PREEMPTION_PROBES or (has_preempted and until is not None):
            until = uptime + PREEMPTION_HOLD_S
    if until is not None and uptime >= until:
        until = None
    return replace(
        probed_health,
        preemptions=probed_health.preemptions if preemptions is None else preemptions,
        preempting_probes=probes,
        preempting_until=until,
    )


def _extend_idle_span(probed_health: ProbedHealth, outcome: ProbeOutcome, began_at: float) -> IdleSpan | None:
    if outcome.busy_requests != 0:
        return None
    span = probed_health.idle_span
    # If the progress metric changed, a request came and went between two probes.
    has_worked = outcome.progress != probed_health.progress
    if span is None or has_worked or began_at < span.until:  # the last: the clock was set back
        return IdleSpan(began_at, began_at)
    return IdleSpan(span.since, began_at)


def metric_sum(text: str, names: Iterable[str]) -> float | None:
    """Return the sum of the named metrics, over all labels, in a Prometheus text; None if it holds none of them.
    Samples that are NaN or infinite are left out."""
    wanted_names = set(names)
    sample = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})? ([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:\s|$)")
    values = [
        float(match[2]) for line in text.splitlines() if (match := sample.match(line)) and match[1] in wanted_names
    ]
    return sum(values) if values else None


def parse_cache_tokens(text: str, metric: str) -> int | None:
    """Return how many tokens the KV cache of a vLLM server holds, by its Prometheus text; None if the text lacks it.
    `metric` names vLLM's info metric about the cache. Each engine of the server has a sample of it, whose labels hold
    `kv_cache_size_tokens`, or else `num_gpu_blocks` and `block_size` (tokens per block). The result is their sum."""
    total = 0
    for line in text.splitlines():
        if line.startswith(metric + "{"):
            labels = dict(_NUMBER_LABEL.findall(line))
            blocks = int(labels.get("num_gpu_blocks", 0)) * int(labels.get("block_size", 0))
            total += int(labels.get("kv_cache_size_tokens", 0)) or blocks
    return total or None
